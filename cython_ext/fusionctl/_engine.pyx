"""The engine's thread: it drives the lanes of all process sets in turn, and decides how to sleep.

Laws: all MPI traffic of fusionctl comes from this thread, and it never blocks inside MPI, where a wait may spin.
"""

from libc.stdint cimport int64_t

from fusionctl._board cimport Board, get_board, now_ns
from fusionctl._lane cimport Lane

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int option, unsigned long value)
    int PR_SET_TIMERSLACK

cdef enum:
    SPIN = 60_000          # ns without progress before the thread sleeps
    SHORTEST_NAP = 5_000
    LONGEST_NAP = 1_000_000
    SECOND = 1_000_000_000


cdef class Engine:
    """One rank's engine: `run` is the body of its thread.  The first lane is that of all ranks; it leaves first."""

    cdef Board* board
    cdef Lane first
    cdef int64_t look_every
    cdef int64_t quiet_since
    cdef int64_t looked_at

    def __init__(self, Lane first, double stall_time):
        """`stall_time` in seconds, 0 for never."""
        self.board = get_board()
        self.first = first
        self.look_every = SECOND
        if stall_time > 0:
            self.look_every = min(SECOND, max(<int64_t>(stall_time * 1e9) // 8, SECOND // 20))

    def add(self, Lane lane):
        """Drive this lane too; on the engine's thread, in a hook."""
        lane.next = self.first.next
        self.first.next = lane

    def remove(self, Lane lane):
        """Forget a lane that its ranks have left; on the engine's thread, in a hook."""
        cdef Lane before = self.first
        while before.next is not lane:
            before = before.next
        before.next = lane.next

    def stop(self):
        """Leave at the next exchange; all ranks leave with this one."""
        self.first.stop_all()
        self.board.ring()

    def run(self):
        """Body of the engine's thread; returns when the ranks have parted."""
        cdef bint moved
        with nogil:
            prctl(PR_SET_TIMERSLACK, 1000)
            while not self.first.all_left():
                if self.board.take_bell():
                    self.first.drain()
                moved = self.first.turn()
                if self.first.ends():
                    self.first.stop_all()
                self.pause(moved)

    cdef void pause(self, bint moved) noexcept nogil:
        cdef int64_t now = now_ns()
        cdef int64_t quiet, retry
        if moved:
            self.quiet_since = now
            return
        quiet = now - self.quiet_since
        retry = self.first.earliest_retry()
        if quiet < SPIN or self.first.is_hot(now):
            sched_yield()
        elif self.first.is_waiting():
            self.board.doze(max(SHORTEST_NAP, min(quiet // 4, LONGEST_NAP)))
        elif retry > 0:
            self.board.doze(max(SHORTEST_NAP, retry - now))
        else:
            self.board.doze(self.look_every)
        now = now_ns()
        if now - self.looked_at >= self.look_every:
            self.looked_at = now
            self.first.look_around(now)
