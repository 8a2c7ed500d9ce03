"""All-gather, all-to-all and reduce-scatter: each rank tells each other one how many rows come, then sends them.

Laws: every call returns at once; what two ranks exchange in one bucket has one tag and a fixed order; rows are placed,
and reduced, in the order of the ranks, never of arrival.  Ranks that have joined take no part.
"""

from libc.stdint cimport int64_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport abort, free, malloc
from libc.string cimport memcpy
from libcpp.vector cimport vector

from fusionctl cimport _kernels as kernels
from fusionctl cimport _mpi as mpi
from fusionctl._board cimport Slot, get_board
from fusionctl._dtypes cimport itemsize, tensor_bytes
from fusionctl._mpi cimport Handle, Request

cdef enum:
    ALLGATHER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    FLOAT64 = 3


cdef class Rows:
    """What one rank moves; the data plane starts and advances the moves, in the agreed order."""

    def __cinit__(self, int rank, int size, int64_t chunk_limit, Handle comm, Handle byte):
        self.rank = rank
        self.size = size
        self.chunk_limit = chunk_limit
        self.comm = comm
        self.byte = byte
        self.board = get_board()

    cdef void start(self, Move* move) noexcept nogil:
        self.lay_out(move)
        self.count_out(move)
        move.counting = move.collective != REDUCESCATTER and not move.peers.empty()
        if move.counting:
            self.exchange_counts(move)
        else:
            self.exchange_rows(move)

    cdef bint advance(self, Move* move) noexcept nogil:
        while move.next_request < move.requests.size():
            move.mpi_code |= mpi.test(&move.requests[move.next_request])
            if move.mpi_code != 0:
                self.settle(move)
                return True
            if not move.requests[move.next_request].done:
                return False
            move.next_request += 1
        if move.counting:
            move.counting = False
            self.exchange_rows(move)
            return self.advance(move)
        self.settle(move)
        return True

    # -- how many rows ------------------------------------------------------------------------------------------------

    cdef void lay_out(self, Move* move) noexcept nogil:
        cdef Slot* slot
        move.next_request = 0
        move.mpi_code = 0
        move.nbytes = 0
        move.packed = move.landed = NULL
        move.outgoing.assign(self.size, NULL)
        move.incoming.assign(self.size, NULL)
        move.sent.assign(self.size, vector[int64_t](move.slots.size(), 0))
        move.received.assign(self.size, vector[int64_t](move.slots.size(), 0))
        for i in move.slots:
            slot = &self.board.slot(i)
            move.row_bytes.push_back(tensor_bytes(slot.dtype, <int>slot.shape.size() - 1, slot.shape.data() + 1))

    cdef void count_out(self, Move* move) noexcept nogil:
        """The rows for each rank; what comes from this one is known too."""
        cdef Slot* slot
        cdef int64_t short
        cdef int64_t left
        cdef int s, r
        for s in range(<int>move.slots.size()):
            slot = &self.board.slot(move.slots[s])
            short = slot.shape[0] // self.size
            left = slot.shape[0] % self.size
            for r in range(self.size):
                if move.collective == ALLGATHER:
                    move.sent[r][s] = slot.rows
                elif move.collective == ALLTOALL:
                    move.sent[r][s] = slot.splits[r]
                else:
                    move.sent[r][s] = short + (r < left)
        move.received[self.rank] = move.sent[self.rank]
        if move.collective == REDUCESCATTER:
            for peer in move.peers:
                move.received[peer] = move.sent[self.rank]

    cdef void exchange_counts(self, Move* move) noexcept nogil:
        cdef size_t nbytes = 8 * move.slots.size()
        for peer in move.peers:
            self.post(move, False, peer, <char*>move.received[peer].data(), nbytes)
        for peer in move.peers:
            self.post(move, True, peer, <char*>move.sent[peer].data(), nbytes)

    # -- the rows -----------------------------------------------------------------------------------------------------

    cdef void exchange_rows(self, Move* move) noexcept nogil:
        move.requests.clear()
        move.next_request = 0
        self.allocate(move)
        self.pack(move)
        for peer in move.peers:
            self.post(move, False, peer, move.incoming[peer], self.block_bytes(move, move.received[peer]))
        for peer in move.peers:
            self.post(move, True, peer, move.outgoing[peer], self.block_bytes(move, move.sent[peer]))

    cdef void allocate(self, Move* move) noexcept nogil:
        """Memory for each tensor's result, whose size is known now."""
        cdef Slot* slot
        cdef int s, r
        for s in range(<int>move.slots.size()):
            slot = &self.board.slot(move.slots[s])
            slot.result.allocator = slot.allocator
            slot.result.dtype = slot.dtype
            slot.result.shape = slot.shape
            slot.result.rows.assign(self.size, 0)
            slot.result.shape[0] = 0
            for r in range(self.size):
                slot.result.rows[r] = move.received[r][s]
                slot.result.shape[0] += move.received[r][s]
            if move.collective == REDUCESCATTER:
                slot.result.shape[0] = move.sent[self.rank][s]
            slot.result.handle = slot.allocator.allocate(
                slot.dtype, <int>slot.result.shape.size(), slot.result.shape.data(), &slot.result.data
            )
            if slot.result.handle == NULL:
                fprintf(stderr, "fusionctl: no memory for the result of tensor '%s'\n", slot.name.c_str())
                abort()

    cdef bint in_place(self, Move* move) noexcept nogil:
        # One tensor is sent from where it is, and received where it belongs unless it is to be reduced.
        return move.slots.size() == 1 and (move.collective != REDUCESCATTER or move.prescale == 1.0)

    cdef void pack(self, Move* move) noexcept nogil:
        """Where each rank's block lies here: in the tensor or its result, else in a buffer."""
        cdef Slot* slot = &self.board.slot(move.slots[0])
        cdef bint direct = self.in_place(move)
        cdef char* out = <char*>slot.src if direct else NULL
        cdef char* into = <char*>slot.result.data if direct and move.collective != REDUCESCATTER else NULL
        cdef size_t n_out = 0, n_in = 0
        cdef int r
        for r in range(self.size):
            n_out += self.block_bytes(move, move.sent[r])
            n_in += self.block_bytes(move, move.received[r])
        move.nbytes = n_in
        if out == NULL:
            out = move.packed = <char*>malloc(n_out + 1)
        if into == NULL:
            into = move.landed = <char*>malloc(n_in + 1)
        for r in range(self.size):
            move.outgoing[r] = out
            move.incoming[r] = into
            into += self.block_bytes(move, move.received[r])
            if not direct and (move.collective != ALLGATHER or r == 0):
                self.copy_out(move, r)
            if move.collective != ALLGATHER:
                out += self.block_bytes(move, move.sent[r])

    cdef void copy_out(self, Move* move, int rank) noexcept nogil:
        """Write the parts of all tensors for a rank one after the other."""
        cdef char* out = move.outgoing[rank]
        cdef Slot* slot
        cdef size_t first, nbytes
        for s in range(<int>move.slots.size()):
            slot = &self.board.slot(move.slots[s])
            first = 0 if move.collective == ALLGATHER else self.bytes_before(move, move.sent, rank, s)
            nbytes = move.sent[rank][s] * move.row_bytes[s]
            kernels.scale(slot.dtype, <char*>slot.src + first, out,
                          nbytes // itemsize(slot.dtype), move.prescale)
            out += nbytes

    cdef size_t bytes_before(self, Move* move, const vector[vector[int64_t]]& rows, int rank, int s) noexcept nogil:
        """Where in a tensor a rank's rows begin: after those of the ranks before it."""
        cdef int64_t first = 0
        for r in range(rank):
            first += rows[r][s]
        return first * move.row_bytes[s]

    cdef size_t block_bytes(self, Move* move, const vector[int64_t]& rows) noexcept nogil:
        cdef size_t nbytes = 0
        for s in range(<int>move.slots.size()):
            nbytes += rows[s] * move.row_bytes[s]
        return nbytes

    cdef void post(self, Move* move, bint sending, int peer, char* where, size_t nbytes) noexcept nogil:
        cdef size_t n
        cdef Request request
        while nbytes > 0:
            n = min(nbytes, <size_t>self.chunk_limit)
            if sending:
                move.mpi_code |= mpi.isend(where, <int>n, self.byte, peer, move.tag, self.comm, &request)
                self.messages_sent += 1
                self.bytes_sent += n
            else:
                move.mpi_code |= mpi.irecv(where, <int>n, self.byte, peer, move.tag, self.comm, &request)
            move.requests.push_back(request)
            where += n
            nbytes -= n

    # -- the end ------------------------------------------------------------------------------------------------------

    cdef void settle(self, Move* move) noexcept nogil:
        cdef int r
        if move.mpi_code == 0 and move.collective == REDUCESCATTER:
            self.reduce(move)
        elif move.mpi_code == 0:
            memcpy(move.incoming[self.rank], move.outgoing[self.rank], self.block_bytes(move, move.sent[self.rank]))
            if not self.in_place(move):
                for r in range(self.size):
                    self.place(move, r)
        free(move.packed)
        free(move.landed)

    cdef void place(self, Move* move, int source) noexcept nogil:
        """Copy what came from a rank to where its rows belong in each result."""
        cdef char* block = move.incoming[source]
        cdef Slot* slot
        cdef size_t first, nbytes
        for s in range(<int>move.slots.size()):
            slot = &self.board.slot(move.slots[s])
            first = 0 if move.collective == REDUCESCATTER else self.bytes_before(move, move.received, source, s)
            nbytes = move.received[source][s] * move.row_bytes[s]
            memcpy(<char*>slot.result.data + first, block, nbytes)
            block += nbytes

    cdef void reduce(self, Move* move) noexcept nogil:
        """Reduce this rank's rows of all ranks; floats are scaled in the same pass."""
        cdef vector[const void*] sources
        cdef bint alone = move.slots.size() == 1
        cdef void* into = self.board.slot(move.slots[0]).result.data if alone else move.incoming[self.rank]
        cdef size_t n = self.block_bytes(move, move.sent[self.rank]) // itemsize(move.dtype)
        cdef int r
        for r in range(self.size):
            if r == self.rank:
                sources.push_back(move.outgoing[r])
            elif self.takes_part(move, r):
                sources.push_back(move.incoming[r])
        kernels.combine(move.dtype, move.op, into, sources.data(), <int>sources.size(), n, move.factor,
                        <int>sources.size())
        if move.dtype > FLOAT64:
            kernels.scale(move.dtype, into, into, n, move.factor)
        if not alone:
            self.place(move, self.rank)

    cdef bint takes_part(self, Move* move, int rank) noexcept nogil:
        for peer in move.peers:
            if peer == rank:
                return True
        return False
