# Collectives on rows: all-gather, all-to-all and reduce-scatter, each rank sending its part to each other one directly.
from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from fusionctl._board cimport Board
from fusionctl._mpi cimport Handle, Request

# One bucket on its way.  Rows are those of the first dimension; `row_bytes` and the row counts are by slot, and by peer
# and slot.
cdef cppclass Move:
    int collective
    int dtype
    int op
    double prescale
    double factor                  # what a float reduce-scatter multiplies its sum by
    int tag
    vector[int] slots
    vector[int] peers              # the other ranks that take part
    vector[size_t] row_bytes
    vector[vector[int64_t]] sent   # rows, by rank and slot
    vector[vector[int64_t]] received
    vector[char*] outgoing         # where the block for each rank begins: in `packed`, or in the tensor itself
    vector[char*] incoming         # the same for what comes: in `landed`, or in the result
    char* packed
    char* landed
    vector[Request] requests
    size_t next_request
    bint counting                  # the row counts are on their way, not yet the rows
    int mpi_code
    size_t nbytes                  # received

cdef class Rows:
    cdef Board* board
    cdef int rank
    cdef int size
    cdef Handle comm
    cdef Handle byte
    cdef int64_t chunk_limit
    cdef int64_t messages_sent
    cdef int64_t bytes_sent

    cdef void start(self, Move* move) noexcept nogil
    # True when nothing is in flight any more: all rows are where they belong, or MPI failed.
    cdef bint advance(self, Move* move) noexcept nogil

    cdef void lay_out(self, Move* move) noexcept nogil
    cdef void count_out(self, Move* move) noexcept nogil
    cdef void exchange_counts(self, Move* move) noexcept nogil
    cdef void exchange_rows(self, Move* move) noexcept nogil
    cdef void allocate(self, Move* move) noexcept nogil
    cdef void pack(self, Move* move) noexcept nogil
    cdef void copy_out(self, Move* move, int rank) noexcept nogil
    cdef void post(self, Move* move, bint sending, int peer, char* where, size_t nbytes) noexcept nogil
    cdef void settle(self, Move* move) noexcept nogil
    cdef void place(self, Move* move, int source) noexcept nogil
    cdef void reduce(self, Move* move) noexcept nogil
    cdef bint in_place(self, Move* move) noexcept nogil
    cdef bint takes_part(self, Move* move, int rank) noexcept nogil
    cdef size_t bytes_before(self, Move* move, const vector[vector[int64_t]]& rows, int rank, int s) noexcept nogil
    cdef size_t block_bytes(self, Move* move, const vector[int64_t]& rows) noexcept nogil
