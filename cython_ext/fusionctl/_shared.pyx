"""All-reduce through the memory that the ranks of one node share: each packs, reduces its slice of all, and unpacks.

Laws: a bucket goes in blocks that fit a cache, so that the memory of the node sees each tensor read and written once;
a rank packs a block when all have unpacked what was in its place, reduces its slice when all have packed, in rank
order, and unpacks when all have reduced; nothing waits, and all ranks go through all blocks in the same order.
"""

from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from fusionctl cimport _kernels as kernels
from fusionctl._board cimport Slot, get_board

cdef enum:
    PACKED
    REDUCED
    UNPACKED
    SMALL = 4096       # bytes that each rank reduces by itself: one wait less
    LINE = 64


def segment_bytes() -> int:
    """Size of the segment that each rank gives."""
    return SEGMENT_BYTES


cdef class Shared:
    def __init__(self, int rank, segments):
        """`segments` are the addresses of all ranks' segments, zeros at first, in rank order."""
        self.rank = rank
        self.size = len(segments)
        for address in segments:
            self.segments.push_back(<char*><size_t>address)
        self.whole.resize(SMALL)
        self.board = get_board()

    cdef void start(self, Passage* passage) noexcept nogil:
        cdef size_t blocks = (passage.count * passage.itemsize + BLOCK_BYTES - 1) // BLOCK_BYTES
        passage.first = self.n_started
        passage.last = self.n_started = self.n_started + <int64_t>blocks

    cdef bint settled(self, Passage* passage) noexcept nogil:
        return self.n_unpacked >= passage.last

    cdef bint advance(self, Passage* passage) noexcept nogil:
        cdef Stages* mine = stages(self.segments[self.rank])
        cdef bint moved = False
        if (
            passage.first <= self.n_unpacked < min(passage.last, self.n_reduced)
            and self.all_have(REDUCED, self.n_unpacked)
        ):
            self.unpack(passage, self.n_unpacked)
            self.n_unpacked += 1
            mine.unpacked.store(self.n_unpacked, release)
            moved = True
        if passage.first <= self.n_reduced < min(passage.last, self.n_packed) and self.all_have(PACKED, self.n_reduced):
            self.reduce(passage, self.n_reduced)
            self.n_reduced += 1
            mine.reduced.store(self.n_reduced, release)
            moved = True
        if passage.first <= self.n_packed < passage.last and self.all_have(UNPACKED, self.n_packed - RING_BLOCKS):
            self.pack(passage, self.n_packed)
            self.n_packed += 1
            mine.packed.store(self.n_packed, release)
            moved = True
        return moved

    cdef bint all_have(self, int stage, int64_t number) noexcept nogil:
        """Whether all ranks have taken a block past a stage."""
        cdef Stages* theirs
        cdef int64_t done
        cdef size_t i
        for i in range(self.segments.size()):
            theirs = stages(self.segments[i])
            if stage == PACKED:
                done = theirs.packed.load(acquire)
            elif stage == REDUCED:
                done = theirs.reduced.load(acquire)
            else:
                done = theirs.unpacked.load(acquire)
            if done <= number:
                return False
        return True

    # -- where things are, in elements ---------------------------------------------------------------------------------

    cdef size_t block_start(self, Passage* passage, int64_t number) noexcept nogil:
        return min(<size_t>(number - passage.first) * (BLOCK_BYTES // passage.itemsize), passage.count)

    cdef size_t slice_start(self, Passage* passage, size_t count, int rank) noexcept nogil:
        """Where in a block a rank's slice begins: at a cache line, so that no two ranks write one."""
        cdef size_t line = LINE // passage.itemsize
        return min((count * rank // self.size + line - 1) // line * line, count)

    cdef bint is_small(self, Passage* passage, size_t count) noexcept nogil:
        return count * passage.itemsize <= SMALL

    # -- the three stages of a block -----------------------------------------------------------------------------------

    cdef void pack(self, Passage* passage, int64_t number) noexcept nogil:
        cdef size_t begin = self.block_start(passage, number)
        cdef size_t end = self.block_start(passage, number + 1)
        cdef char* into = block(self.segments[self.rank], number)
        if passage.slots.empty():  # this rank has joined
            kernels.neutral(passage.dtype, passage.op, into, end - begin)
        else:
            self.move(passage, into, begin, end, False)

    cdef void reduce(self, Passage* passage, int64_t number) noexcept nogil:
        cdef size_t count = self.block_start(passage, number + 1) - self.block_start(passage, number)
        cdef size_t begin = self.slice_start(passage, count, self.rank)
        cdef char* into = block(self.segments[self.rank], number)
        if not self.is_small(passage, count):
            self.combine(passage, number, into + begin * passage.itemsize, begin,
                         self.slice_start(passage, count, self.rank + 1))

    cdef void unpack(self, Passage* passage, int64_t number) noexcept nogil:
        cdef size_t start = self.block_start(passage, number)
        cdef size_t count = self.block_start(passage, number + 1) - start
        cdef size_t begin, end
        cdef int owner
        if passage.slots.empty():
            return
        if self.is_small(passage, count):
            self.combine(passage, number, self.whole.data(), 0, count)
            self.move(passage, self.whole.data(), start, start + count, True)
            return
        for owner in range(self.size):
            begin = self.slice_start(passage, count, owner)
            end = self.slice_start(passage, count, owner + 1)
            self.move(passage, block(self.segments[owner], number) + begin * passage.itemsize, start + begin,
                      start + end, True)

    cdef void combine(self, Passage* passage, int64_t number, char* into, size_t begin, size_t end) noexcept nogil:
        """Elements of a block of all ranks, in rank order, into one."""
        cdef vector[const void*] sources
        cdef size_t i
        for i in range(self.segments.size()):
            sources.push_back(block(self.segments[i], number) + begin * passage.itemsize)
        kernels.combine(passage.dtype, passage.op, into, <const void**>sources.data(), self.size, end - begin,
                        passage.factor, passage.n_active)

    cdef void move(self, Passage* passage, char* buffer, size_t begin, size_t end, bint outward) noexcept nogil:
        """Elements of the bucket from its tensors into a buffer, or outward from it."""
        cdef Slot* slot
        cdef size_t s = 0
        cdef size_t n, at
        while begin < end:
            while passage.ends[s] <= begin:
                s += 1
            slot = &self.board.slot(passage.slots[s])
            at = (begin - (passage.ends[s] - slot.count)) * passage.itemsize
            n = min(passage.ends[s], end) - begin
            if outward:
                kernels.scale(passage.dtype, buffer, <char*>slot.dst + at, n, passage.out_factor)
            else:
                kernels.scale(passage.dtype, <char*>slot.src + at, buffer, n, passage.prescale)
            buffer += n * passage.itemsize
            begin += n
