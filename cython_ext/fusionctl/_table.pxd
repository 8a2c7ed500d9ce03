# The compiled fast path: slot -> bucket -> bit.  Laws: nothing here communicates, sleeps or knows the time; bit order is
# a function of agreed history only, never of local timing.
from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector

cdef struct Entry:           # what one bit stands for
    bint bound
    int missing              # slots of the bucket that are not ready here
    int64_t last_used        # tick of agreed history
    int64_t executions       # since it was bound

cdef class Table:
    cdef vector[int] bits            # by slot, -1 where unbound
    cdef vector[char] ready          # by slot
    cdef vector[Entry] entries       # by bit
    cdef vector[vector[int]] buckets # by bit
    cdef int complete                # buckets that are complete here
    cdef int64_t tick

    # 1: the slot's bucket is now complete here; 0: it is not; -1: the slot is bound to no bucket; -2: was ready before.
    cdef int mark_ready(self, int slot) noexcept nogil
    # A slot that failed or was withdrawn is no longer ready.
    cdef void retract(self, int slot) noexcept nogil
    # Words of an exchange: two status bits and one per bit up to the highest bound one.
    cdef int n_words(self) noexcept nogil
    # Bit 0 says RUNNING, bit 1 SETTLED, bit 2 + b that the bucket of bit b is complete here; all others are 0.  The AND
    # over the ranks says who all run, whether nobody has anything new, and which buckets are complete everywhere.
    cdef void offer(self, uint64_t* words, bint running, bint settled) noexcept nogil
    cdef bint has_offer(self) noexcept nogil
    # Appends the bits that all ranks offered, in bit order; their slots are then no longer ready.
    cdef void accept(self, const uint64_t* words, vector[int]& agreed) noexcept nogil
    cdef const vector[int]* members(self, int bit) noexcept nogil
    cdef void grow(self, int slot) noexcept nogil
    cdef Entry* entry(self, int bit) except NULL
