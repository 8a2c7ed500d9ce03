// Raw spans of the timeline: recorded by the engine thread, drained in batches by the writer.  Off, it costs a branch.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

namespace fusionctl {

struct Span {  // the layout of the NumPy dtype that timeline.write_batch reads
    int32_t slot;  // -1: the engine's own track
    int32_t phase;
    int64_t start;
    int64_t end;
    int64_t nbytes;
    int64_t bucket;
};

class Trace {
  public:
    bool on = false;

    void add(int slot, int phase, int64_t start, int64_t end, int64_t nbytes, int64_t bucket) {
        std::lock_guard<std::mutex> lock(mutex_);
        spans_.push_back({slot, phase, start, end, nbytes, bucket});
    }

    void take(std::vector<Span>& out) {
        out.clear();
        std::lock_guard<std::mutex> lock(mutex_);
        out.swap(spans_);
    }

  private:
    std::mutex mutex_;
    std::vector<Span> spans_;
};

}  // namespace fusionctl
