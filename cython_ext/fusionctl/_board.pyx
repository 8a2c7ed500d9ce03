"""The process's slots, waiters and spans: what `board.h` keeps, for Python and for the other compiled modules."""

from libc.stdint cimport int64_t
from libcpp.vector cimport vector

from cpython.exc cimport PyErr_CheckSignals

cdef extern from *:
    """
    // Process-wide, since traced functions hold slot numbers for as long as the process lives; never destroyed, since
    // threads of TensorFlow outlive the interpreter.
    static fusionctl::Board& the_board = *new fusionctl::Board;
    static fusionctl::Trace& the_trace = *new fusionctl::Trace;
    static fusionctl::Inbox& the_inbox = *new fusionctl::Inbox;
    """
    Board the_board
    Trace the_trace
    Inbox the_inbox


cdef Board* get_board() noexcept nogil:
    return &the_board


cdef Trace* get_trace() noexcept nogil:
    return &the_trace


cdef int engine_submit(int slot, int dtype, int ndim, const int64_t* shape, const void* src, void* dst,
                       void* owner_src, void* owner_dst) noexcept nogil:
    return the_board.submit(slot, dtype, ndim, shape, src, dst, owner_src, owner_dst)


cdef const char* engine_error() noexcept nogil:
    return Board.error()


cdef int engine_wait(const int* slots, int n, wait_done callback, void* arg) noexcept nogil:
    return the_board.wait(slots, n, callback, arg)


cdef void engine_set_release(release_fn fn) noexcept nogil:
    the_board.set_release(fn)


def add_group(bint held) -> int:
    """Number of a new group; a held one has shapes that only its submissions tell."""
    return the_board.add_group(held)


def add_slot(int group, str name, int dtype, tuple shape) -> int:
    """Slot of a new tensor."""
    return the_board.add_slot(group, name.encode(), dtype, shape)


def restate(int slot, int dtype, tuple shape):
    """Change the dtype and shape that the next submission of a slot is expected to have."""
    the_board.restate(slot, dtype, shape)


def busy(int slot) -> bool:
    """Whether a submission of this slot is still in flight."""
    return the_board.busy(slot)


def submit(int slot, int dtype, tuple shape, size_t src, size_t dst) -> tuple[int, str]:
    """Hand memory at two addresses to the engine; the caller keeps it alive.  Status and message."""
    cdef vector[int64_t] dims = shape
    cdef int status = the_board.submit(
        slot, dtype, <int>dims.size(), dims.data(), <const void*>src, <void*>dst, NULL, NULL
    )
    return status, "" if status == 0 else Board.error().decode()


def wait(slots) -> tuple[int, str]:
    """Sleep until these slots are done; status and message of the first that failed.  Signals are handled meanwhile."""
    cdef vector[int] ids = slots
    cdef Latch* latch = new Latch()  # stays behind when a signal raises, since the engine will open it yet
    cdef bint done = False
    the_board.wait(ids.data(), <int>ids.size(), Latch.open, latch)
    while not done:
        with nogil:
            done = latch.wait(200_000_000)
        if not done:
            PyErr_CheckSignals()
    status, message = latch.status, latch.message.decode()
    del latch
    return status, message


def wait_later(slots, int64_t token):
    """Let `next_outcome` tell when these slots are done."""
    cdef vector[int] ids = slots
    the_board.wait(ids.data(), <int>ids.size(), Inbox.put, the_inbox.entry(token))


def next_outcome(int64_t timeout_ns) -> tuple[int, int, str] | None:
    """Token, status and message of a call given to `wait_later`, or None when the time is up."""
    cdef Outcome outcome
    cdef bint found
    with nogil:
        found = the_inbox.take(outcome, timeout_ns)
    return (outcome.token, outcome.status, outcome.message.decode()) if found else None


def set_tracing(bint on):
    """Record spans from now on, or stop."""
    the_trace.on = on


def take_spans() -> bytes:
    """The spans recorded since the last call, as the bytes of `timeline`'s span records."""
    cdef vector[Span] spans
    with nogil:
        the_trace.take(spans)
    return (<char*>spans.data())[:spans.size() * sizeof(Span)]
