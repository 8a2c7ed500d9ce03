"""The engine thread: ready bits, the AND exchange, agreed buckets handed to the data plane, completion.

Laws: all MPI traffic of fusionctl comes from this thread; it never blocks inside MPI and holds the GIL only in the slow
path (a new or changed tensor, a stall, the end).  A rank takes part in an exchange when it has something to say; while
it has not, the others sleep in the exchange that they have posted.
"""

from libc.stdint cimport int64_t, uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from fusionctl cimport _mpi as mpi
from fusionctl._board cimport PEER, Board, Slot, Trace, get_board, get_trace, now_ns
from fusionctl._data cimport EXCHANGE, NEGOTIATE, QUEUE, SLOW_PATH, DataPlane, Spec
from fusionctl._mpi cimport Handle, Request
from fusionctl._table cimport Table

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int option, unsigned long value)
    int PR_SET_TIMERSLACK

cdef enum:
    RUNNING = 1
    SETTLED = 2
    BARRIER = 2
    DOORBELL = 1           # tag of the message that asks an idle rank to take part
    SPIN = 60_000          # ns without progress before the thread sleeps
    SHORTEST_NAP = 5_000
    LONGEST_NAP = 1_000_000
    SECOND = 1_000_000_000
    FIRST_RETRY = 50_000


cdef class Engine:
    """One rank's engine.  `run` is the body of its thread; the hooks are called there, with the GIL.

    hooks.negotiate(queried), the slow path, on all ranks together; hooks.leave() -> the message for tensors that are
    still pending when the ranks part; hooks.fatal(message) when MPI fails or a hook raises.
    """

    cdef Board* board
    cdef Trace* trace
    cdef readonly Table table
    cdef DataPlane data
    cdef object hooks
    cdef int rank
    cdef int size
    cdef Handle comm
    cdef Handle byte
    cdef Handle word
    cdef Handle band
    cdef int64_t cycle
    cdef int64_t stall
    cdef int64_t look_every
    cdef int64_t threshold
    cdef vector[Spec] specs
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
    cdef bint posted       # an exchange is in flight
    cdef bint gathering    # so is a gather of the slow path
    cdef bint fresh        # the local set changed, or something was agreed: offer at once
    cdef bint news         # something to announce
    cdef bint queried      # a rank asks what everybody waits for
    cdef readonly bint stopping
    cdef bint left
    cdef int64_t posted_at
    cdef int64_t retry
    cdef int64_t retry_at
    cdef int64_t quiet_since
    cdef int64_t probed_at
    cdef int64_t stall_told_at
    cdef int64_t exchanges
    cdef int64_t exchange_bytes
    cdef int64_t slow_paths

    def __init__(self, hooks, Table table, int rank, int size, dict handles, int64_t chunk_limit,
                 int64_t fusion_threshold, double cycle_time, double stall_time, native, half, bint native_scales):
        """Times in seconds, sizes in bytes; `handles` holds MPI handles as integers, see runtime.py."""
        self.hooks = hooks
        self.board = get_board()
        self.trace = get_trace()
        self.table = table
        self.rank = rank
        self.size = size
        self.comm = handles["control"]
        self.byte = handles["byte"]
        self.word = handles["word"]
        self.band = handles["band"]
        self.threshold = fusion_threshold
        self.cycle = <int64_t>(cycle_time * 1e9)
        self.stall = <int64_t>(stall_time * 1e9)
        self.look_every = min(SECOND, max(self.stall // 8, SECOND // 20)) if self.stall > 0 else SECOND
        self.data = DataPlane(rank, size, chunk_limit, handles, native, half, native_scales)
        self.data.board = self.data.rows.board = self.board
        self.data.trace = self.trace
        self.retry = FIRST_RETRY
        self.board.open()

    # -- called by any thread -------------------------------------------------------------------------------------

    def announce(self):
        """Tell the engine that there is something to announce."""
        self.news = True
        self.board.ring()

    def stop(self):
        """Leave at the next exchange; all ranks leave with this one."""
        self.stopping = True
        self.board.ring()

    def counters(self) -> dict[str, int]:
        """What this rank's engine has done since it started."""
        return {
            "exchanges": self.exchanges,
            "exchange_bytes": self.exchange_bytes,
            "slow_paths": self.slow_paths,
            "buckets": self.data.counters.buckets,
            "bytes_reduced": self.data.counters.bytes_reduced,
            "messages_sent": self.data.counters.messages_sent + self.data.rows.messages_sent,
            "bytes_sent": self.data.counters.bytes_sent + self.data.rows.bytes_sent,
        }

    # -- called by the hooks, on the engine thread ------------------------------------------------------------------

    def bind(self, int bit, slots, int collective, int dtype, int op, double prescale, double postscale, int root,
             bint mergeable):
        """Let `bit` stand for a bucket of these slots."""
        cdef vector[int] ids = slots
        self.table.bind(bit, slots)
        self.board.bunch(ids)
        if self.specs.size() <= <size_t>bit:
            self.specs.resize(bit + 1)
            self.offered_at.resize(bit + 1)
        self.specs[bit] = Spec(collective, dtype, op, prescale, postscale, root, mergeable)
        self.fresh = True

    def unbind(self, int bit):
        """Forget the bucket behind `bit`; its pending slots stay pending."""
        cdef vector[int] ids = self.table.members(bit)[0]
        self.board.unbunch(ids)
        self.table.unbind(bit)

    def fail(self, int group, int status, str message):
        """Fail this rank's pending submissions of a group, or its next ones."""
        for slot in self.board.fail_group(group, status, message.encode()):
            self.table.retract(slot)

    def disown_stale(self):
        """Let go of slots that were registered anew; before their new version is announced, so that it is not lost."""
        self.board.take_stale(self.stale)
        for slot in self.stale:
            self.table.disown(slot)

    def take_unbound(self) -> list[int]:
        """Slots that were submitted but belong to no agreed bucket."""
        slots = list(self.unbound)
        self.unbound.clear()
        return slots

    def take_changed(self) -> list[int]:
        """Groups whose members came with other dtypes or shapes than were announced."""
        groups = list(self.changed_groups)
        self.changed_groups.clear()
        return groups

    def silence(self):
        """The ranks have just told each other what they wait for: no question is open, and none due for a while."""
        cdef bint rung = True
        self.stall_told_at = now_ns()
        while rung:
            self.check(mpi.drain(DOORBELL, self.byte, self.comm, &rung))
        self.queried = False

    def signature(self, int slot) -> tuple[int, tuple[int, ...]]:
        """Dtype code and shape that the slot's last submission had."""
        return self.board.slot(slot).dtype, tuple(self.board.slot(slot).shape)

    def pending(self) -> list[tuple[int, float]]:
        """Slots in flight and their ages in seconds."""
        cdef int64_t now = now_ns()
        return [(slot, (now - self.board.slot(slot).submitted_ns) * 1e-9) for slot in self.board.pending()]

    def gather(self, bytes payload, sizes=None) -> list[bytes]:
        """All ranks' payloads in rank order; `sizes` are their lengths, by default all the same."""
        cdef vector[int] counts = [len(payload)] * self.size if sizes is None else sizes
        cdef vector[int] offsets = vector[int](self.size, 0)
        cdef Request request
        for i in range(1, self.size):
            offsets[i] = offsets[i - 1] + counts[i - 1]
        received = bytearray(max(offsets[self.size - 1] + counts[self.size - 1], 1))
        cdef char* into = received
        cdef const char* sent = payload
        cdef int n = len(payload)
        with nogil:
            self.check(mpi.iallgatherv(sent, n, into, counts.data(), offsets.data(), self.byte, self.comm, &request))
            self.await_request(&request)
        return [bytes(received[offsets[i]:offsets[i] + counts[i]]) for i in range(self.size)]

    # -- the thread -------------------------------------------------------------------------------------------------

    def run(self):
        """Body of the engine thread; returns when the ranks have parted."""
        with nogil:
            prctl(PR_SET_TIMERSLACK, 1000)
            while not self.left:
                self.pause(self.turn())

    cdef bint turn(self) noexcept nogil:
        cdef bint moved = self.drain()
        moved |= self.negotiate()
        moved |= self.data.progress()
        return moved

    cdef bint drain(self) noexcept nogil:
        cdef int code
        if not self.board.belled():
            return False
        self.board.take(self.stale, self.submitted, self.restated)
        for slot in self.stale:
            self.table.disown(slot)
        for slot in self.submitted:
            code = self.table.mark_ready(slot)
            if code == 1:
                self.fresh = True
            elif code == -1:
                self.unbound.push_back(slot)
        self.changed_groups.insert(self.changed_groups.end(), self.restated.begin(), self.restated.end())
        return True

    cdef bint negotiate(self) noexcept nogil:
        if self.posted:
            self.check(mpi.test(&self.exchange))
            if not self.exchange.done:
                return False
            self.posted = False
            self.take_result()
            return True
        if not self.has_something_to_say():
            return False
        self.post_exchange()
        return True

    cdef bint unsettled(self) noexcept nogil:
        return self.news or self.queried or not self.unbound.empty() or not self.changed_groups.empty()

    cdef bint has_something_to_say(self) noexcept nogil:
        if self.stopping or self.unsettled():
            return True
        return self.table.has_offer() and (self.fresh or now_ns() >= self.retry_at)

    cdef void post_exchange(self) noexcept nogil:
        cdef int n = self.table.n_words()
        self.offered.resize(n)
        self.result.resize(n)
        self.table.offer(self.offered.data(), not self.stopping, not self.unsettled())
        self.fresh = False
        self.posted = True
        self.posted_at = now_ns()
        self.exchanges += 1
        self.exchange_bytes += 8 * n
        if self.trace.on:
            self.stamp_offers()
        if self.size == 1:  # MPI would answer too, but more slowly
            self.result = self.offered
            self.exchange.done = True
        else:
            self.check(mpi.iallreduce(self.offered.data(), self.result.data(), n, self.word, self.band, self.comm,
                                      &self.exchange))

    cdef void take_result(self) noexcept nogil:
        cdef int64_t now = now_ns()
        if self.trace.on:
            self.trace.add(-1, EXCHANGE, self.posted_at, now, 8 * self.result.size(), -1)
        self.agreed.clear()
        self.table.accept(self.result.data(), self.agreed)
        self.retry = FIRST_RETRY if not self.agreed.empty() else min(2 * self.retry, max(self.cycle, FIRST_RETRY))
        self.retry_at = now + self.retry
        self.fresh |= not self.agreed.empty()
        self.execute()
        if not self.result[0] & SETTLED:
            self.slow_path()
        if not self.result[0] & RUNNING:
            self.leave()

    cdef void execute(self) noexcept nogil:
        """Hand the agreed buckets to the data plane; neighbours that may merge share one buffer up to the threshold."""
        cdef vector[int] slots
        cdef size_t i = 0
        cdef int bit
        cdef int64_t nbytes
        while i < self.agreed.size():
            bit = self.agreed[i]
            slots = self.slots_of(bit)
            nbytes = self.bucket_bytes(bit)
            if self.trace.on:
                self.trace_agreed(bit)
            i += 1
            while i < self.agreed.size() and self.merges(bit, self.agreed[i], nbytes):
                nbytes += self.bucket_bytes(self.agreed[i])
                for slot in self.slots_of(self.agreed[i]):
                    slots.push_back(slot)
                if self.trace.on:
                    self.trace_agreed(self.agreed[i])
                i += 1
            self.board.begin(slots)
            if self.specs[bit].collective == BARRIER:
                self.board.complete(slots, 0, string())
            else:
                self.data.push(self.specs[bit], slots, bit)

    cdef bint merges(self, int bit, int other, int64_t nbytes) noexcept nogil:
        cdef Spec* a = &self.specs[bit]
        cdef Spec* b = &self.specs[other]
        return (a.mergeable and b.mergeable and a.collective == b.collective and a.dtype == b.dtype and a.op == b.op
                and a.prescale == b.prescale and a.postscale == b.postscale and a.root == b.root
                and nbytes + self.bucket_bytes(other) <= self.threshold)

    cdef vector[int] slots_of(self, int bit) noexcept nogil:
        return self.table.members(bit)[0]

    cdef int64_t bucket_bytes(self, int bit) noexcept nogil:
        cdef int64_t nbytes = 0
        for slot in self.slots_of(bit):
            nbytes += self.board.slot(slot).count * self.data.element_size(self.board.slot(slot).dtype)
        return nbytes

    # -- the slow path and the end ------------------------------------------------------------------------------------

    cdef void slow_path(self) noexcept nogil:
        cdef int64_t begun = now_ns()
        self.slow_paths += 1
        with gil:
            try:
                self.news = False
                queried, self.queried = self.queried, False
                self.hooks.negotiate(queried)
            except BaseException as error:
                self.hooks.fatal(error)
        if self.trace.on:
            self.trace.add(-1, SLOW_PATH, begun, now_ns(), 0, -1)

    cdef void leave(self) noexcept nogil:
        cdef string message
        while self.data.busy():
            self.pause(self.data.progress())
        with gil:
            try:
                message = self.hooks.leave().encode()
            except BaseException as error:
                self.hooks.fatal(error)
        self.board.close(PEER, message)
        self.board.complete(self.board.pending(), PEER, message)
        self.left = True

    cdef void check(self, int code) noexcept nogil:
        cdef char[1024] text
        if code != 0:
            mpi.error_text(code, text)
            with gil:
                self.hooks.fatal(RuntimeError(text.decode(errors="replace")))

    cdef void await_request(self, Request* request) noexcept nogil:
        cdef bint moved
        self.gathering = True
        while not request.done:
            moved = self.data.progress()
            self.check(mpi.test(request))
            if not request.done:
                self.pause(moved)
        self.gathering = False

    # -- sleep --------------------------------------------------------------------------------------------------------

    cdef void pause(self, bint moved) noexcept nogil:
        cdef int64_t now = now_ns()
        cdef int64_t quiet
        if moved:
            self.quiet_since = now
            return
        quiet = now - self.quiet_since
        if quiet < SPIN or (self.data.busy() and now < self.data.patience()):
            sched_yield()
        elif self.posted or self.gathering or self.data.busy():
            self.board.doze(max(SHORTEST_NAP, min(quiet // 4, LONGEST_NAP)))
        elif self.table.has_offer():
            self.board.doze(max(SHORTEST_NAP, self.retry_at - now))
        else:
            self.board.doze(self.look_every)
        now = now_ns()
        if now - self.probed_at >= self.look_every:
            self.probed_at = now
            self.look_around(now)

    cdef void look_around(self, int64_t now) noexcept nogil:
        """Now and then while nothing moves: has a rank asked, and is a tensor stalled here?"""
        cdef bint rung = False
        if self.size == 1:
            return
        self.check(mpi.drain(DOORBELL, self.byte, self.comm, &rung))
        self.queried |= rung
        if self.stall > 0 and now - self.stall_told_at > self.stall and self.oldest() < now - self.stall:
            self.stall_told_at = now
            self.queried = True
            self.ring_doorbells()

    cdef int64_t oldest(self) noexcept nogil:
        cdef int64_t oldest = now_ns()
        for slot in self.board.pending():
            oldest = min(oldest, self.board.slot(slot).submitted_ns)
        return oldest

    cdef void ring_doorbells(self) noexcept nogil:
        """Ask the ranks that sleep with nothing to say to take part in the exchange that this one waits in."""
        cdef Request request
        for i in range(self.doorbells.size()):
            self.check(mpi.test(&self.doorbells[i]))
        self.doorbells.clear()
        for peer in range(self.size):
            if peer != self.rank:
                self.check(mpi.isend(NULL, 0, self.byte, peer, DOORBELL, self.comm, &request))
                self.doorbells.push_back(request)

    # -- spans --------------------------------------------------------------------------------------------------------

    cdef void stamp_offers(self) noexcept nogil:
        cdef size_t bit
        for bit in range(self.offered_at.size()):
            if self.offered_at[bit] == 0 and self.offered[(bit + 2) // 64] >> ((bit + 2) % 64) & 1:
                self.offered_at[bit] = self.posted_at

    cdef void trace_agreed(self, int bit) noexcept nogil:
        cdef int64_t now = now_ns()
        cdef int64_t offered = self.offered_at[bit] if self.offered_at[bit] > 0 else now
        cdef Slot* slot
        self.offered_at[bit] = 0
        for i in self.slots_of(bit):
            slot = &self.board.slot(i)
            self.trace.add(i, QUEUE, slot.submitted_ns, offered, slot.count * self.data.element_size(slot.dtype), bit)
            self.trace.add(i, NEGOTIATE, offered, now, slot.count * self.data.element_size(slot.dtype), bit)
