"""The process's slots, waiters and spans: what `board.h` keeps, for Python and for the other compiled modules."""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libcpp.vector cimport vector

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals

from fusionctl._dtypes cimport tensor_bytes

cdef extern from *:
    """
    // Process-wide, since traced functions hold slot numbers for as long as the process lives; never destroyed, since
    // threads of TensorFlow outlive the interpreter.
    static fusionctl::Board& the_board = *new fusionctl::Board;
    static fusionctl::Trace& the_trace = *new fusionctl::Trace;
    static fusionctl::Inbox& the_inbox = *new fusionctl::Inbox;
    static fusionctl::Allocator* the_allocator = new fusionctl::Allocator{nullptr, nullptr};
    """
    Board the_board
    Trace the_trace
    Inbox the_inbox
    Allocator* the_allocator


cdef Board* get_board() noexcept nogil:
    return &the_board


cdef Trace* get_trace() noexcept nogil:
    return &the_trace


cdef int engine_submit(int slot, int dtype, int ndim, const int64_t* shape, const void* src, void* dst,
                       void* owner_src, void* owner_dst) noexcept nogil:
    return the_board.submit(slot, dtype, ndim, shape, src, dst, owner_src, owner_dst)


cdef int engine_submit_rows(int slot, int dtype, int ndim, const int64_t* shape, const void* src, void* owner,
                            const Allocator* allocator, const vector[int64_t]& splits) noexcept nogil:
    return the_board.submit(slot, dtype, ndim, shape, src, NULL, owner, NULL, allocator, splits)


cdef const char* engine_error() noexcept nogil:
    return Board.error()


cdef int engine_wait(const int* slots, int n, wait_done callback, void* arg) noexcept nogil:
    return the_board.wait(slots, n, callback, arg)


cdef void engine_set_release(release_fn fn) noexcept nogil:
    the_board.set_release(fn)


def add_group(int lane, bint held) -> int:
    """Number of a new group of a process set; a held one has shapes that only its submissions tell."""
    return the_board.add_group(lane, held)


def add_slot(int group, str name, int dtype, tuple shape, int peers=0) -> int:
    """Slot of a new tensor; `peers` ranks share the rows of an all-to-all."""
    return the_board.add_slot(group, name.encode(), dtype, shape, peers)


def restate(int slot, int dtype, tuple shape):
    """Change the dtype and shape that the next submission of a slot is expected to have."""
    the_board.restate(slot, dtype, shape)


def hold(int group):
    """Queue nothing of a group from now on before all its members are here, as its shapes may be others."""
    the_board.hold(group)


def busy(int slot) -> bool:
    """Whether a submission of this slot is still in flight."""
    return the_board.busy(slot)


def submit(int slot, int dtype, tuple shape, size_t src, size_t dst, tuple splits=()) -> tuple[int, str]:
    """Hand memory at two addresses to the engine; the caller keeps it alive.  Status and message.

    With a `dst` of 0 the engine allocates the result; `splits` are an all-to-all's rows for each rank.
    """
    cdef vector[int64_t] dims = shape
    cdef int status = the_board.submit(
        slot, dtype, <int>dims.size(), dims.data(), <const void*>src, <void*>dst, NULL, NULL,
        the_allocator if dst == 0 else NULL, splits
    )
    return status, "" if status == 0 else Board.error().decode()


cdef void* allocate(int dtype, int ndim, const int64_t* shape, void** data) noexcept nogil:
    data[0] = malloc(max(tensor_bytes(dtype, ndim, shape), <size_t>1))
    return data[0]


cdef class Memory:
    """A result that the engine allocated: its bytes, its `shape`, and the `rows` that came from each rank."""

    cdef Result result
    cdef size_t nbytes

    @staticmethod
    cdef Memory take(Result& result):
        cdef Memory memory = Memory()
        memory.result = result
        result.handle = NULL
        memory.nbytes = tensor_bytes(
            memory.result.dtype, <int>memory.result.shape.size(), memory.result.shape.data()
        )
        return memory

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.result.shape)

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(self.result.rows)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.result.data, self.nbytes, 0, flags)

    def __dealloc__(self):
        self.result.discard()


cdef list take_results(Results& results):
    return [Memory.take(results[i]) for i in range(results.size()) if results[i].handle != NULL]


def wait(slots) -> tuple[int, str, list[Memory]]:
    """Sleep until these slots are done; status and message of the first that failed, and what the engine allocated.

    Signals are handled meanwhile.
    """
    cdef vector[int] ids = slots
    cdef Latch* latch = new Latch()  # stays behind when a signal raises, since the engine will open it yet
    cdef bint done = False
    the_board.wait(ids.data(), <int>ids.size(), Latch.open, latch)
    while not done:
        with nogil:
            done = latch.wait(200_000_000)
        if not done:
            PyErr_CheckSignals()
    outcome = latch.status, latch.message.decode(), take_results(latch.results)
    del latch
    return outcome


def wait_later(slots, int64_t token):
    """Let `next_outcome` tell when these slots are done."""
    cdef vector[int] ids = slots
    the_board.wait(ids.data(), <int>ids.size(), Inbox.put, the_inbox.entry(token))


def next_outcome(int64_t timeout_ns) -> tuple[int, int, str, list[Memory]] | None:
    """Token and outcome, as of `wait`, of a call given to `wait_later`, or None when the time is up."""
    cdef Outcome outcome
    cdef bint found
    with nogil:
        found = the_inbox.take(outcome, timeout_ns)
    if not found:
        return None
    return outcome.token, outcome.status, outcome.message.decode(), take_results(outcome.results)


def set_tracing(bint on):
    """Record spans from now on, or stop."""
    the_trace.on = on


def take_spans() -> bytes:
    """The spans recorded since the last call, as the bytes of `timeline`'s span records."""
    cdef vector[Span] spans
    with nogil:
        the_trace.take(spans)
    return (<char*>spans.data())[:spans.size() * sizeof(Span)]


the_allocator.allocate = allocate
the_allocator.release = free
