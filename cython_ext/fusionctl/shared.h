// What the ranks of a node share: of each rank a segment with its progress and a ring of blocks.
#pragma once
#include <atomic>
#include <cstdint>

namespace fusionctl {

constexpr size_t BLOCK_BYTES = 256 << 10;  // packed, reduced and unpacked while it is in a cache
constexpr int64_t RING_BLOCKS = 4;

// Numbers of blocks that a rank has packed, has reduced its slice of, and has unpacked, since the segments were made.
struct Stages {
    alignas(64) std::atomic<int64_t> packed;
    alignas(64) std::atomic<int64_t> reduced;
    alignas(64) std::atomic<int64_t> unpacked;
};

constexpr size_t SEGMENT_BYTES = 4096 + RING_BLOCKS * BLOCK_BYTES;
static_assert(sizeof(Stages) <= 4096);

static inline Stages* stages(char* segment) { return reinterpret_cast<Stages*>(segment); }

static inline char* block(char* segment, int64_t number) {
    return segment + 4096 + (number % RING_BLOCKS) * BLOCK_BYTES;
}

}  // namespace fusionctl
