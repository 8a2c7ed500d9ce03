"""The data plane: pack agreed buckets, reduce them over MPI, unpack them; every call returns at once.

Laws: operations start in the agreed order, so collectives match on all ranks; at most `DEPTH` are in flight, so that
one is packed while another travels; a step of a program posts all its receives and sends, and reduces only when all
are complete, in rank order, so that a sum never depends on which message came first.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy
from libcpp.string cimport string
from libcpp.vector cimport vector

from fusionctl cimport _kernels as kernels
from fusionctl cimport _mpi as mpi
from fusionctl._board cimport Slot, get_board, get_trace, now_ns
from fusionctl._dtypes cimport itemsize
from fusionctl._mpi cimport Handle, Request

cdef enum:
    DEPTH = 2
    ALLREDUCE_ = 0
    BROADCAST_ = 1
    ALLGATHER_ = 3
    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    BFLOAT16 = 1
    FLOAT64 = 3
    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    RECORD = 4
    MPI_FAILED = 4


def phases(plan) -> tuple[str, ...]:
    """Names of the spans that the engine records, for a data.Programs."""
    return ("QUEUE", "NEGOTIATE", "PACK", "UNPACK", "EXCHANGE", "SLOW_PATH", plan.native_name, plan.half_name,
            "ADASUM", "MPI_BROADCAST", "ALLGATHER", "ALLTOALL", "REDUCESCATTER")


cdef class DataPlane:
    def __init__(self, int rank, int size, int64_t chunk_limit, dict handles, plan):
        """`handles` maps comm, byte, dtypes, ops and in_place; `plan` is a data.Programs."""
        self.rank = rank
        self.size = size
        self.chunk_limit = chunk_limit
        self.comm = handles["comm"]
        self.byte = handles["byte"]
        self.in_place = <const void*><size_t>handles["in_place"]
        for code, handle in handles["dtypes"].items():
            self.dtypes[<int>code] = handle
        for op, handle in handles["ops"].items():
            self.ops[<int>op] = handle
        self.native = plan.native if plan.native is not None else []
        self.native_scales = plan.native_scales
        self.half = plan.half
        self.adasum = plan.adasum
        self.rows = Rows(rank, size, chunk_limit, self.comm, self.byte)
        self.shared = Shared(rank, handles["segments"]) if plan.shared else None
        self.board = get_board()
        self.trace = get_trace()

    def counts(self) -> dict[str, int]:
        """What has been done since the start."""
        return {
            "buckets": self.counters.buckets,
            "bytes_reduced": self.counters.bytes_reduced,
            "messages_sent": self.counters.messages_sent + self.rows.messages_sent,
            "bytes_sent": self.counters.bytes_sent + self.rows.bytes_sent,
        }

    cdef void push(self, Spec spec, const vector[int]& slots, const vector[int64_t]& counts,
                   const vector[char]& joined, int bit) noexcept nogil:
        cdef Operation* op = new Operation()
        cdef int rank
        op.by_rows = spec.collective >= ALLGATHER_
        op.by_shared = self.shared is not None and spec.collective == ALLREDUCE_ and spec.op != ADASUM
        op.counts = counts
        op.n_active = self.size
        for rank in range(self.size):
            if joined[rank]:
                op.n_active -= 1
            elif rank != self.rank:
                op.move.peers.push_back(rank)
        op.spec = spec
        op.slots = slots
        op.bit = bit
        op.tag = self.sequence
        self.sequence = (self.sequence + 1) % 32768  # the least upper bound for tags that MPI guarantees
        if op.by_rows and slots.empty():  # rows go past a rank that has joined
            del op
        else:
            self.queued.push_back(op)

    cdef bint busy(self) noexcept nogil:
        return not self.flying.empty() or not self.queued.empty()

    cdef int64_t patience(self) noexcept nogil:
        # All ranks have agreed to this operation, so it moves now: 50 µs, and time for 1 GB/s, twice over.
        cdef Operation* op
        if self.flying.empty():
            return 0
        op = self.flying.front()
        return op.started + 50_000 + 2 * <int64_t>(op.count * op.itemsize)

    cdef bint progress(self) noexcept nogil:
        cdef bint moved = False
        cdef size_t i
        while self.flying.size() < DEPTH and not self.queued.empty():
            self.flying.push_back(self.queued.front())
            self.queued.pop_front()
            self.start(self.flying.back())
            moved = True
        for i in range(self.flying.size()):
            moved |= self.advance(self.flying[i])
        while not self.flying.empty() and self.complete(self.flying.front()):
            self.finish(self.flying.front())
            self.flying.pop_front()
            moved = True
        return moved

    # -- the life of one operation ------------------------------------------------------------------------------

    cdef void start(self, Operation* op) noexcept nogil:
        cdef int64_t begun = now_ns()
        if op.by_rows:
            self.start_rows(op)
            return
        if op.by_shared:
            self.start_shared(op)
            return
        self.lay_out(op)
        if op.spec.collective == BROADCAST_:
            self.gather_bytes(op)
        else:
            self.pack(op)
        op.started = now_ns()
        self.trace_each(op, PACK, begun, op.started)
        self.counters.buckets += 1
        self.counters.bytes_reduced += op.count * op.itemsize
        if self.size == 1 or op.count == 0:
            return
        if op.spec.collective == BROADCAST_:
            self.post_broadcast(op)
        elif op.program == NULL:
            self.post_allreduce(op)
        elif op.steps_left > 0:
            self.post_step(op)

    cdef bint advance(self, Operation* op) noexcept nogil:
        """True when a step of the operation was completed."""
        if op.by_rows:
            if not op.settled:
                op.settled = self.rows.advance(&op.move)
                op.mpi_code = op.move.mpi_code
                op.count = op.move.nbytes
                return op.settled
            return False
        if op.by_shared:
            return self.shared.advance(&op.passage)
        if op.next_request == op.requests.size():
            return False
        while op.next_request < op.requests.size():
            op.mpi_code |= mpi.test(&op.requests[op.next_request])
            if not op.requests[op.next_request].done and op.mpi_code == 0:
                return False
            op.next_request += 1
        if op.program != NULL and op.mpi_code == 0:
            self.end_step(op)
        return True

    cdef bint complete(self, Operation* op) noexcept nogil:
        if op.by_rows:
            return op.settled
        if op.by_shared:
            return self.shared.settled(&op.passage)
        return op.next_request == op.requests.size() and (op.steps_left == 0 or op.mpi_code != 0)

    cdef void finish(self, Operation* op) noexcept nogil:
        cdef int64_t reduced = now_ns()
        cdef char[1024] text
        cdef string message
        self.trace_each(op, self.phase(op), op.started, reduced)
        if op.mpi_code != 0:
            mpi.error_text(op.mpi_code, text)
            message = text
            self.board.complete(op.slots, MPI_FAILED, message)
        else:
            if op.spec.collective == BROADCAST_:
                self.scatter_bytes(op)
            elif not op.by_rows and not op.by_shared:
                self.unpack(op)
            self.trace_each(op, UNPACK, reduced, now_ns())
            self.board.complete(op.slots, 0, message)
        if op.pooled:
            self.pool.put(op.buffer, op.count * op.itemsize)
        del op

    cdef int phase(self, Operation* op) noexcept nogil:
        if op.spec.collective == BROADCAST_:
            return BROADCAST
        if op.by_rows:
            return BY_ROWS + op.spec.collective - ALLGATHER_
        if op.program == &self.adasum:
            return REDUCE_ADASUM
        return REDUCE_HALF if op.program == &self.half else REDUCE

    cdef void trace_each(self, Operation* op, int phase, int64_t begun, int64_t ended) noexcept nogil:
        cdef Slot* slot
        if not self.trace.on:
            return
        self.trace.add(-1, phase, begun, ended, op.count * op.itemsize, op.bit)
        for i in op.slots:
            slot = &self.board.slot(i)
            self.trace.add(i, phase, begun, ended, slot.count * itemsize(slot.dtype), op.bit)

    cdef void start_rows(self, Operation* op) noexcept nogil:
        cdef Move* move = &op.move
        move.collective = op.spec.collective
        move.dtype = op.spec.dtype
        move.op = op.spec.op
        move.prescale = op.spec.prescale
        move.factor = self.factor(op)
        move.tag = op.tag
        move.slots = op.slots
        op.started = now_ns()
        op.itemsize = 1
        op.mpi_code = 0
        op.pooled = op.settled = False
        self.rows.start(move)
        op.count = move.nbytes
        self.counters.buckets += 1

    cdef void start_shared(self, Operation* op) noexcept nogil:
        cdef Passage* passage = &op.passage
        cdef int64_t count
        cdef bint is_float = op.spec.dtype <= FLOAT64
        passage.dtype = op.spec.dtype
        passage.op = op.spec.op
        passage.prescale = op.spec.prescale
        passage.factor = self.factor(op) if is_float else 1.0
        passage.out_factor = 1.0 if is_float else self.factor(op)
        passage.n_active = op.n_active
        passage.slots = op.slots
        passage.count = 0
        for count in op.counts:
            passage.count += count
            passage.ends.push_back(passage.count)
        op.count = passage.count
        op.itemsize = passage.itemsize = itemsize(op.spec.dtype)
        op.program = NULL
        op.mpi_code = 0
        op.pooled = False
        op.started = now_ns()
        self.shared.start(passage)
        self.counters.buckets += 1
        self.counters.bytes_reduced += op.count * op.itemsize

    # -- buffers ------------------------------------------------------------------------------------------------

    cdef void lay_out(self, Operation* op) noexcept nogil:
        """Choose the buffer: the tensor's own destination where one tensor travels unchanged, else a fusion buffer."""
        cdef Spec* spec = &op.spec
        cdef int64_t count
        cdef bint as_bytes = spec.collective == BROADCAST_
        op.itemsize = 1 if as_bytes else itemsize(spec.dtype)
        op.count = 0
        for count in op.counts:
            op.count += count
        op.program = NULL
        if not as_bytes and spec.op == ADASUM:
            op.program = &self.adasum
        elif not as_bytes and self.needs_all(spec):
            op.program = &self.half
        elif not as_bytes and not self.native.empty():
            op.program = &self.native
        op.cursor = 2
        op.steps_left = 0
        if op.program != NULL and self.size > 1 and op.count > 0:
            op.steps_left = op.program[0][1]
            op.written.assign(op.program[0][0], 0)
        op.scratch = NULL
        op.send = NULL
        op.next_request = 0
        op.mpi_code = 0
        op.pooled = op.slots.size() != 1
        if op.pooled:
            op.buffer = self.pool.get(op.count * op.itemsize)
        else:
            op.buffer = <char*>self.board.slot(op.slots[0]).dst

    cdef bint needs_all(self, const Spec* spec) noexcept nogil:
        # All contributions must meet: 16-bit elements to be rounded once, integers for a mean that can not overflow.
        return spec.dtype <= BFLOAT16 or (spec.op == AVERAGE and spec.dtype > FLOAT64)

    cdef void pack(self, Operation* op) noexcept nogil:
        cdef size_t at = 0
        cdef Slot* slot
        if op.slots.empty():  # this rank has joined
            kernels.neutral(op.spec.dtype, op.spec.op, op.buffer, op.count)
        if not op.pooled and op.spec.prescale == 1.0 and self.size > 1:
            slot = &self.board.slot(op.slots[0])
            op.send = <const char*>slot.src if slot.src != slot.dst else NULL
            return  # one tensor, unscaled: it is read where it is
        for i in op.slots:
            slot = &self.board.slot(i)
            kernels.scale(op.spec.dtype, slot.src, op.buffer + at, slot.count, op.spec.prescale)
            at += slot.count * op.itemsize

    cdef void unpack(self, Operation* op) noexcept nogil:
        cdef size_t at = 0
        cdef Slot* slot
        cdef bint scaled = op.program != NULL and op.cursor > 2 and self.scales_in_program(op)
        cdef double factor = 1.0 if scaled else self.factor(op)
        for i in op.slots:
            slot = &self.board.slot(i)
            kernels.scale(op.spec.dtype, op.buffer + at, slot.dst, slot.count, factor)
            at += slot.count * op.itemsize

    cdef bint scales_in_program(self, Operation* op) noexcept nogil:
        # Floats are scaled where they are reduced once: no further pass, and a 16-bit average can not overflow in its
        # sum, as it is rounded only then.
        if op.spec.dtype > FLOAT64 or op.spec.op == ADASUM:
            return False
        return op.program == &self.half or self.native_scales

    cdef double factor(self, Operation* op) noexcept nogil:
        # The kernel that means integers divides by itself.
        return op.spec.postscale / (op.n_active if op.spec.op == AVERAGE and op.spec.dtype <= FLOAT64 else 1)

    cdef void gather_bytes(self, Operation* op) noexcept nogil:
        cdef size_t at = 0
        cdef Slot* slot
        if self.rank != op.spec.root:
            return
        for i in op.slots:
            slot = &self.board.slot(i)
            copy(op.buffer + at, slot.src, slot.count * itemsize(slot.dtype))
            at += slot.count * itemsize(slot.dtype)

    cdef void scatter_bytes(self, Operation* op) noexcept nogil:
        cdef size_t at = 0
        cdef Slot* slot
        for i in op.slots:
            slot = &self.board.slot(i)
            copy(slot.dst, op.buffer + at, slot.count * itemsize(slot.dtype))
            at += slot.count * itemsize(slot.dtype)

    # -- MPI's own collectives ------------------------------------------------------------------------------------

    cdef void post_allreduce(self, Operation* op) noexcept nogil:
        cdef size_t piece = max(self.chunk_limit // op.itemsize, 1)
        cdef size_t at = 0
        cdef size_t n
        cdef const void* send
        cdef Handle mpi_op = self.ops[SUM if op.spec.op == AVERAGE else op.spec.op]
        op.requests.resize((op.count + piece - 1) // piece)
        for i in range(op.requests.size()):
            n = min(piece, op.count - at)
            send = self.in_place if op.send == NULL else op.send + at * op.itemsize
            op.mpi_code |= mpi.iallreduce(send, op.buffer + at * op.itemsize, <int>n, self.dtypes[op.spec.dtype],
                                          mpi_op, self.comm, &op.requests[i])
            at += n

    cdef void post_broadcast(self, Operation* op) noexcept nogil:
        cdef size_t at = 0
        cdef size_t n
        op.requests.resize((op.count + self.chunk_limit - 1) // self.chunk_limit)
        for i in range(op.requests.size()):
            n = min(<size_t>self.chunk_limit, op.count - at)
            op.mpi_code |= mpi.ibcast(op.buffer + at, <int>n, self.byte, op.spec.root, self.comm, &op.requests[i])
            at += n

    # -- schedules: one rank's program, see data/program.py ---------------------------------------------------------

    cdef char* chunk_value(self, Operation* op, int chunk) noexcept nogil:
        cdef char* base = op.buffer if op.send == NULL or op.written[chunk] else <char*>op.send
        return base + self.chunk_start(op, chunk)

    cdef size_t chunk_start(self, Operation* op, int chunk) noexcept nogil:
        return (<size_t>chunk * op.count // op.program[0][0]) * op.itemsize

    cdef size_t chunk_bytes(self, Operation* op, int chunk) noexcept nogil:
        return self.chunk_start(op, chunk + 1) - self.chunk_start(op, chunk)

    cdef void post_step(self, Operation* op) noexcept nogil:
        cdef const int32_t* step = op.program.data() + op.cursor
        cdef const int32_t* record
        cdef size_t needed = 0
        cdef size_t at = 0
        cdef int r
        op.requests.clear()
        op.next_request = 0
        for r in range(step[0]):
            record = step + 1 + r * RECORD
            if record[0] == RECV_REDUCE:
                needed += self.chunk_bytes(op, record[2])
        op.scratch = self.pool.get(needed) if needed > 0 else NULL
        for r in range(step[0]):
            record = step + 1 + r * RECORD
            if record[0] == RECV_REDUCE:
                self.post_message(op, record, op.scratch + at)
                at += self.chunk_bytes(op, record[2])
            elif record[0] == RECV:
                self.post_message(op, record, op.buffer + self.chunk_start(op, record[2]))
            else:
                self.post_message(op, record, self.chunk_value(op, record[2]))
        if op.requests.empty():  # nothing for this rank in this step
            self.end_step(op)

    cdef void post_message(self, Operation* op, const int32_t* record, char* where) noexcept nogil:
        cdef size_t left = self.chunk_bytes(op, record[2])
        cdef size_t n
        cdef Request request
        while left > 0:
            n = min(left, <size_t>self.chunk_limit)
            if record[0] == SEND:
                op.mpi_code |= mpi.isend(where, <int>n, self.byte, record[1], op.tag, self.comm, &request)
                self.counters.messages_sent += 1
                self.counters.bytes_sent += n
            else:
                op.mpi_code |= mpi.irecv(where, <int>n, self.byte, record[1], op.tag, self.comm, &request)
            op.requests.push_back(request)
            where += n
            left -= n

    cdef void end_step(self, Operation* op) noexcept nogil:
        cdef const int32_t* step = op.program.data() + op.cursor
        cdef size_t scratch_bytes = 0
        cdef int r = 0
        while r < step[0]:
            r = self.reduce_chunk(op, step + 1, step[0], r, &scratch_bytes)
        if op.scratch != NULL:
            self.pool.put(op.scratch, scratch_bytes)
            op.scratch = NULL
        op.cursor += 1 + step[0] * RECORD
        op.steps_left -= 1
        if op.steps_left > 0:
            self.post_step(op)

    cdef int reduce_chunk(self, Operation* op, const int32_t* records, int n, int r, size_t* at) noexcept nogil:
        """Reduce what record `r` and its successors received into one chunk; returns the record after them."""
        cdef vector[const void*] sources
        cdef int chunk = records[r * RECORD + 2]
        cdef const char* own = self.chunk_value(op, chunk)
        cdef size_t nbytes = self.chunk_bytes(op, chunk)
        cdef bint placed = False
        if records[r * RECORD] != SEND:
            op.written[chunk] = 1
        if records[r * RECORD] != RECV_REDUCE:
            return r + 1
        while r < n and records[r * RECORD] == RECV_REDUCE and records[r * RECORD + 2] == chunk:
            if not placed and records[r * RECORD + 1] > self.rank:
                sources.push_back(own)
                placed = True
            sources.push_back(op.scratch + at[0])
            at[0] += nbytes
            r += 1
        if not placed:
            sources.push_back(own)
        self.combine(op, op.buffer + self.chunk_start(op, chunk), sources, nbytes // op.itemsize)
        return r

    cdef void combine(self, Operation* op, char* into, const vector[const void*]& sources, size_t n) noexcept nogil:
        cdef size_t at = 0
        cdef int64_t count
        if op.spec.op == ADASUM:  # two sources, and one chunk: tensor by tensor
            for count in op.counts:
                kernels.adasum(op.spec.dtype, into + at, <char*>sources[0] + at, <char*>sources[1] + at, count)
                at += count * op.itemsize
        else:
            kernels.combine(op.spec.dtype, op.spec.op, into, <const void**>sources.data(), <int>sources.size(), n,
                            self.factor(op) if self.scales_in_program(op) else 1.0, op.n_active)


cdef void copy(void* dst, const void* src, size_t n) noexcept nogil:
    if dst != src:
        memcpy(dst, src, n)
