# All-reduce through the memory that the ranks of one node share.
from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from fusionctl._board cimport Board

cdef extern from "<atomic>" namespace "std" nogil:
    cdef cppclass atomic[T]:
        T load(memory_order)
        void store(T, memory_order)
    cdef enum memory_order:
        acquire "std::memory_order_acquire"
        release "std::memory_order_release"

cdef extern from "shared.h" namespace "fusionctl" nogil:
    cdef cppclass Stages:
        atomic[int64_t] packed
        atomic[int64_t] reduced
        atomic[int64_t] unpacked
    const size_t BLOCK_BYTES
    const size_t SEGMENT_BYTES
    const int64_t RING_BLOCKS
    Stages* stages(char* segment)
    char* block(char* segment, int64_t number)

# One bucket on its way, cut into blocks.
cdef cppclass Passage:
    int dtype
    int op
    double prescale
    double factor                   # what floats are multiplied by where they are reduced
    double out_factor               # the same for integers, where they are unpacked
    int n_active                    # ranks that have not joined
    vector[int] slots               # none: this rank has joined
    vector[size_t] ends             # of the slots in the bucket, in elements
    size_t count                    # elements
    size_t itemsize
    int64_t first                   # number of its first block
    int64_t last                    # one beyond its last block

cdef class Shared:
    cdef Board* board
    cdef int rank
    cdef int size
    cdef vector[char*] segments     # by rank
    cdef vector[char] whole         # a small block, reduced
    cdef int64_t n_started          # blocks of all passages so far
    cdef int64_t n_packed           # of this rank
    cdef int64_t n_reduced
    cdef int64_t n_unpacked

    cdef void start(self, Passage* passage) noexcept nogil
    # True when a block went on.
    cdef bint advance(self, Passage* passage) noexcept nogil
    cdef bint settled(self, Passage* passage) noexcept nogil

    cdef bint all_have(self, int stage, int64_t number) noexcept nogil
    cdef size_t block_start(self, Passage* passage, int64_t number) noexcept nogil
    cdef size_t slice_start(self, Passage* passage, size_t count, int rank) noexcept nogil
    cdef bint is_small(self, Passage* passage, size_t count) noexcept nogil
    cdef void pack(self, Passage* passage, int64_t number) noexcept nogil
    cdef void reduce(self, Passage* passage, int64_t number) noexcept nogil
    cdef void unpack(self, Passage* passage, int64_t number) noexcept nogil
    cdef void combine(self, Passage* passage, int64_t number, char* into, size_t begin, size_t end) noexcept nogil
    cdef void move(self, Passage* passage, char* buffer, size_t begin, size_t end, bint outward) noexcept nogil
