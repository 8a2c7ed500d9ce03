# The fast path as a table: slot -> bucket -> bit.  Laws and conventions are in _table.pyx.
from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector

cdef class Table:
    cdef vector[vector[int]] slots_of     # per bit: the bucket's slots; empty when the bit is free
    cdef vector[int] ready_in             # per bit: how many of them are ready and owned
    cdef vector[int64_t] used             # per bit: the tick of its last agreement, or of its binding
    cdef vector[int64_t] agreements       # per bit: since its binding
    cdef vector[int] bit_of               # per slot; -1 when unbound
    cdef vector[char] ready               # per slot
    cdef vector[char] disowned            # per slot
    cdef vector[uint64_t] complete        # the words of the offer, without their status bits
    cdef vector[uint64_t] bound           # the same of every bucket
    cdef int n_complete                   # buckets
    cdef int n_loose                      # ready slots without a bucket
    cdef int n_bits                       # highest bound bit + 1
    cdef int64_t tick                     # exchanges accepted so far
    cdef public bint one_shot             # an agreed bucket must be bound anew before it is offered again
    cdef public bint generous             # every bucket is offered, as this rank has joined: the others decide

    # 1: its bucket is now complete here; 0: marked; -1: marked, but it has no bucket (now); -2: was marked already.
    cpdef int mark_ready(self, int slot) noexcept nogil

    # A failed or withdrawn slot is no longer ready.
    cpdef void retract(self, int slot) noexcept nogil

    # What is submitted to this slot from now on does not fit its bucket: do not offer that before it is bound anew.
    cpdef void disown(self, int slot) noexcept nogil

    cpdef bint is_ready(self, int slot) noexcept nogil
    cpdef bint is_bound(self, int slot) noexcept nogil

    # Words of an exchange: ceil((2 + highest bound bit + 1) / 64), at least 1.
    cpdef int n_words(self) noexcept nogil

    # Whether the others alone could bring something here forward: a bucket is complete, or a ready slot has no bucket
    # yet.  A rank that has this takes part in exchanges although it has nothing new to say.
    cpdef bint has_offer(self) noexcept nogil

    # Write `n_words` words.
    cdef void offer(self, uint64_t* words, bint running, bint settled) noexcept nogil

    # Take the AND of all ranks' offers: append the agreed bits, in bit order, and clear their slots' marks.
    cdef void accept(self, const uint64_t* words, vector[int]& agreed) noexcept nogil

    # Slots of a bucket in bucket order; valid until the bit is bound or unbound.
    cdef const vector[int]* members(self, int bit) noexcept nogil

    cdef int check(self, int bit, slots) except -1
    cdef void grow(self, int slot) noexcept nogil
    cdef void count(self, int bit) noexcept nogil
    cdef void uncount(self, int bit) noexcept nogil
    cdef void agree(self, int bit) noexcept nogil
