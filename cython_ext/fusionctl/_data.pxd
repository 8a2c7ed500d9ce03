# The data plane: agreed buckets in, reduced tensors out; driven by the engine thread alone, never blocking.
from libc.stdint cimport int32_t, int64_t
from libcpp.deque cimport deque
from libcpp.vector cimport vector

from fusionctl._board cimport Board, Trace
from fusionctl._mpi cimport Handle, Request
from fusionctl._rows cimport Move, Rows
from fusionctl._shared cimport Passage, Shared

cdef extern from "pool.h" namespace "fusionctl" nogil:
    cdef cppclass Pool:
        char* get(size_t nbytes)
        void put(char* memory, size_t nbytes)

# What is done with the tensors of one bucket; equal on all ranks.
cdef struct Spec:
    int collective
    int dtype
    int op
    double prescale
    double postscale
    int root
    bint mergeable

# Spans that the engine records; `phases` gives their names in this order.
cdef enum Phase:
    QUEUE
    NEGOTIATE
    PACK
    UNPACK
    EXCHANGE
    SLOW_PATH
    REDUCE
    REDUCE_HALF
    REDUCE_ADASUM
    BROADCAST
    BY_ROWS                         # the first of three

cdef struct Counters:
    int64_t buckets
    int64_t bytes_reduced
    int64_t messages_sent
    int64_t bytes_sent

# One bucket on its way: its tensors, the buffer that the ranks reduce, and how far its program has come.
cdef cppclass Operation:
    Spec spec
    vector[int] slots
    vector[int64_t] counts          # by tensor
    int n_active                    # ranks that have not joined
    int bit
    size_t itemsize
    size_t count                    # elements in the buffer
    char* buffer
    const char* send                # the tensor itself while it need not be packed, else NULL
    vector[char] written            # chunks whose current value is in the buffer, no longer at `send`
    bint pooled
    char* scratch
    const vector[int32_t]* program  # NULL: one nonblocking MPI collective
    size_t cursor                   # where the program's current step begins
    int steps_left
    vector[Request] requests
    size_t next_request
    int mpi_code
    int tag
    int64_t started
    bint by_rows                    # the move does it
    bint settled
    Move move
    bint by_shared                  # the passage does it
    Passage passage

cdef class DataPlane:
    cdef Board* board
    cdef Trace* trace
    cdef int rank
    cdef int size
    cdef Handle comm
    cdef Handle byte
    cdef Handle dtypes[16]
    cdef Handle ops[8]
    cdef const void* in_place
    cdef int64_t chunk_limit
    cdef vector[int32_t] native
    cdef bint native_scales         # its chunks are reduced once each, and may be scaled then
    cdef vector[int32_t] half
    cdef vector[int32_t] adasum
    cdef Counters counters
    cdef deque[Operation*] queued
    cdef deque[Operation*] flying
    cdef Pool pool
    cdef Rows rows
    cdef Shared shared              # None where the ranks are on several nodes, or another way was chosen
    cdef int sequence

    # No slots: this rank has joined, and gives what changes no result.  `counts` are elements, bytes of a broadcast.
    cdef void push(self, Spec spec, const vector[int]& slots, const vector[int64_t]& counts,
                   const vector[char]& joined, int bit) noexcept nogil
    cdef bint progress(self) noexcept nogil
    cdef bint busy(self) noexcept nogil
    # How long it pays to keep testing without sleep, counted from the start of the oldest operation.
    cdef int64_t patience(self) noexcept nogil

    cdef void start(self, Operation* op) noexcept nogil
    cdef bint advance(self, Operation* op) noexcept nogil
    cdef bint complete(self, Operation* op) noexcept nogil
    cdef void finish(self, Operation* op) noexcept nogil
    cdef int phase(self, Operation* op) noexcept nogil
    cdef void trace_each(self, Operation* op, int phase, int64_t begun, int64_t ended) noexcept nogil
    cdef void lay_out(self, Operation* op) noexcept nogil
    cdef bint needs_all(self, const Spec* spec) noexcept nogil
    cdef void start_rows(self, Operation* op) noexcept nogil
    cdef void start_shared(self, Operation* op) noexcept nogil
    cdef void pack(self, Operation* op) noexcept nogil
    cdef void unpack(self, Operation* op) noexcept nogil
    cdef bint scales_in_program(self, Operation* op) noexcept nogil
    cdef void gather_bytes(self, Operation* op) noexcept nogil
    cdef void scatter_bytes(self, Operation* op) noexcept nogil
    cdef void post_allreduce(self, Operation* op) noexcept nogil
    cdef void post_broadcast(self, Operation* op) noexcept nogil
    cdef char* chunk_value(self, Operation* op, int chunk) noexcept nogil
    cdef size_t chunk_start(self, Operation* op, int chunk) noexcept nogil
    cdef size_t chunk_bytes(self, Operation* op, int chunk) noexcept nogil
    cdef void post_step(self, Operation* op) noexcept nogil
    cdef void post_message(self, Operation* op, const int32_t* record, char* where) noexcept nogil
    cdef void end_step(self, Operation* op) noexcept nogil
    cdef int reduce_chunk(self, Operation* op, const int32_t* records, int n, int r, size_t* at) noexcept nogil
    cdef void combine(self, Operation* op, char* into, const vector[const void*]& sources, size_t n) noexcept nogil
    cdef double factor(self, Operation* op) noexcept nogil
