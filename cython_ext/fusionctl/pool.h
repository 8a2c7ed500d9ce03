// Buffers that are used again: a fresh one costs a page fault for every 4 KiB.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace fusionctl {

// The buffers of one thread; at most `capacity` wait for their next use.
class Pool {
  public:
    explicit Pool(size_t capacity = 4) : capacity_(capacity) {}
    Pool(const Pool&) = delete;
    ~Pool() {
        for (const Buffer& buffer : free_) std::free(buffer.memory);
    }

    char* get(size_t nbytes) {
        for (size_t i = 0; i < free_.size(); ++i) {
            if (free_[i].nbytes < nbytes || free_[i].nbytes > 4 * nbytes + 65536) continue;
            char* memory = free_[i].memory;
            free_.erase(free_.begin() + i);
            return memory;
        }
        void* fresh = nullptr;
        if (posix_memalign(&fresh, 64, nbytes > 64 ? nbytes : 64) != 0) {
            std::fprintf(stderr, "fusionctl: no memory for a buffer of %zu bytes\n", nbytes);
            std::abort();
        }
        return static_cast<char*>(fresh);
    }

    void put(char* memory, size_t nbytes) {
        if (free_.size() >= capacity_) {
            std::free(free_.front().memory);
            free_.erase(free_.begin());
        }
        free_.push_back({memory, nbytes});
    }

  private:
    struct Buffer {
        char* memory;
        size_t nbytes;
    };
    size_t capacity_;
    std::vector<Buffer> free_;
};

}  // namespace fusionctl
