# One process set's part of the engine: its agreement and its data; all lanes are driven by one thread.
from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector

from fusionctl._board cimport Board, Trace
from fusionctl._data cimport DataPlane, Spec
from fusionctl._mpi cimport Handle, Request
from fusionctl._table cimport Table

cdef class Lane:
    cdef Board* board
    cdef Trace* trace
    cdef Table table
    cdef DataPlane data
    cdef Lane next             # lanes are a chain, since without the GIL no object can be taken out of a list
    cdef object hooks
    cdef int id
    cdef int rank
    cdef int size
    cdef Handle comm
    cdef Handle byte
    cdef Handle word
    cdef Handle band
    cdef int64_t cycle
    cdef int64_t stall
    cdef int64_t threshold
    cdef vector[Spec] specs
    cdef vector[vector[int64_t]] counts    # per bit: elements of each tensor, bytes for a broadcast
    cdef vector[char] joined               # per rank: it has no more data, and the others go on without it
    cdef vector[uint64_t] offered
    cdef vector[uint64_t] result
    cdef vector[int64_t] offered_at
    cdef vector[int] stale
    cdef vector[int] submitted
    cdef vector[int] restated
    cdef vector[int] unbound
    cdef vector[int] changed_groups
    cdef vector[int] agreed
    cdef vector[Request] doorbells
    cdef Request exchange
    cdef bint posted           # an exchange is in flight
    cdef bint fresh            # the local set changed, or something was agreed: offer at once
    cdef bint news             # something to announce
    cdef bint queried          # a rank asks what everybody waits for
    cdef bint stopping
    cdef readonly bint retiring         # it alone: the process set is removed
    cdef bint parting          # a rank has stopped, and all know
    cdef bint left
    cdef object talk           # what the ranks are telling each other: a generator of hooks, see `speak`
    cdef bint talking
    cdef bytes spoken
    cdef object heard
    cdef vector[int] heard_sizes
    cdef vector[int] heard_at
    cdef Request gather
    cdef int64_t talked_since
    cdef int64_t posted_at
    cdef int64_t retry
    cdef int64_t retry_at
    cdef int64_t stall_told_at
    cdef int64_t exchanges
    cdef int64_t exchange_bytes
    cdef int64_t slow_paths

    # Each is asked of this lane and all that follow.
    cdef void drain(self) noexcept nogil
    cdef bint turn(self) noexcept nogil
    cdef bint is_hot(self, int64_t now) noexcept nogil        # moves so soon that it does not pay to sleep
    cdef bint is_waiting(self) noexcept nogil                 # for an exchange, a gather or data
    cdef int64_t earliest_retry(self) noexcept nogil          # 0 when nothing is offered
    cdef void look_around(self, int64_t now) noexcept nogil
    cdef void stop_all(self) noexcept nogil
    cdef bint ends(self) noexcept nogil                       # a rank has left the job
    cdef bint all_left(self) noexcept nogil

    cdef void take_submissions(self) noexcept nogil
    cdef bint negotiate(self) noexcept nogil
    cdef bint unsettled(self) noexcept nogil
    cdef bint has_something_to_say(self) noexcept nogil
    cdef void post_exchange(self) noexcept nogil
    cdef void take_result(self) noexcept nogil
    cdef void execute(self) noexcept nogil
    cdef void start(self, int bit, const vector[int]& slots, const vector[int64_t]& counts) noexcept nogil
    cdef bint merges(self, int bit, int other, int64_t nbytes) noexcept nogil
    cdef vector[int] slots_of(self, int bit) noexcept nogil
    cdef int64_t bucket_bytes(self, int bit) noexcept nogil
    cdef void slow_path(self) noexcept nogil
    cdef bint listen(self) noexcept nogil
    cdef void speak(self, answer)
    cdef void post_gather(self, bytes payload, sizes)
    cdef void part(self) noexcept nogil
    cdef void close(self, message)
    cdef void check(self, int code) noexcept nogil
    cdef int64_t oldest(self) noexcept nogil
    cdef void ring_doorbells(self) noexcept nogil
    cdef void stamp_offers(self) noexcept nogil
    cdef void trace_agreed(self, int bit) noexcept nogil
