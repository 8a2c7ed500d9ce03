"""One process set: ready bits, the AND exchange, agreed buckets handed to the data plane, completion.

Laws: a lane never waits, so that one thread drives the lanes of all sets, which depend on each other in ways that no
rank knows; it holds the GIL only in the slow path (a new or changed tensor, a stall, the end).  A rank takes part in an
exchange when it has something to say; while it has not, the others sleep in the exchange that they have posted.  A rank
that has joined always has something to say, and offers every bucket.
"""

from libc.stdint cimport int64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from fusionctl cimport _mpi as mpi
from fusionctl._board cimport PEER, USAGE, Slot, get_board, get_trace, now_ns
from fusionctl._data cimport EXCHANGE, NEGOTIATE, QUEUE, SLOW_PATH, DataPlane, Spec
from fusionctl._dtypes cimport itemsize
from fusionctl._mpi cimport Request
from fusionctl._table cimport Table

cdef enum:
    RUNNING = 1
    SETTLED = 2
    BROADCAST = 1
    BARRIER = 2
    DOORBELL = 1           # tag of the message that asks an idle rank to take part
    FIRST_RETRY = 50_000   # ns


cdef class Lane:
    """One rank's part in a process set; the hooks are called on the engine's thread, with the GIL.

    hooks.negotiate(queried), the slow path, and hooks.leave(), when the ranks part, are generators: each yields
    (payload, sizes), is sent the payloads of all ranks in rank order, and runs on all ranks together; `sizes` are the
    lengths of the payloads, None if all are equal.  `leave` returns the message for tensors that are still pending.
    hooks.fatal(error) is called when MPI fails or a hook raises.
    """

    def __init__(self, int lane_id, hooks, Table table, int rank, int size, dict handles, plan, int64_t chunk_limit,
                 int64_t fusion_threshold, double cycle_time, double stall_time):
        """Times in seconds, sizes in bytes; `handles` holds MPI handles as integers, `plan` is a data.Programs."""
        self.id = lane_id
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
        self.data = DataPlane(rank, size, chunk_limit, handles, plan)
        self.joined.assign(size, False)
        self.retry = FIRST_RETRY
        self.board.open(lane_id)

    # -- called by any thread ------------------------------------------------------------------------------------------

    def announce(self):
        """Tell the engine that there is something to announce."""
        self.news = True
        self.board.ring()

    def counters(self) -> dict[str, int]:
        """What this rank has done in this process set."""
        return {
            "exchanges": self.exchanges,
            "exchange_bytes": self.exchange_bytes,
            "slow_paths": self.slow_paths,
            **self.data.counts(),
        }

    # -- called by the hooks, on the engine's thread -------------------------------------------------------------------

    def bind(self, int bit, slots, counts, int collective, int dtype, int op, double prescale, double postscale,
             int root, bint mergeable):
        """Let `bit` stand for a bucket of these slots, of so many elements each."""
        cdef vector[int] ids = slots
        self.table.bind(bit, slots)
        self.board.bunch(ids)
        if self.specs.size() <= <size_t>bit:
            self.specs.resize(bit + 1)
            self.counts.resize(bit + 1)
            self.offered_at.resize(bit + 1)
        self.specs[bit] = Spec(collective, dtype, op, prescale, postscale, root, mergeable)
        self.counts[bit] = counts
        self.fresh = True

    def unbind(self, int bit):
        """Forget the bucket behind `bit`; its pending slots stay pending."""
        cdef vector[int] ids = self.table.members(bit)[0]
        self.board.unbunch(ids)
        self.table.unbind(bit)

    def retire(self):
        """Leave this process set, which all its ranks do now; the job goes on."""
        self.retiring = self.stopping = True

    def set_joined(self, ranks):
        """From now on these ranks, and no others, have no more data."""
        self.joined.assign(self.size, False)
        for rank in ranks:
            self.joined[<int>rank] = True
        self.table.generous = self.joined[self.rank]
        self.fresh = True

    def fail(self, int group, int status, str message):
        """Fail this rank's pending submissions of a group, or its next ones."""
        for slot in self.board.fail_group(group, status, message.encode()):
            self.table.retract(slot)

    def disown_stale(self):
        """Let go of slots that were registered anew; before their new version is announced, so that it is not lost."""
        self.board.take_stale(self.id, self.stale)
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
        return [(slot, (now - self.board.slot(slot).submitted_ns) * 1e-9) for slot in self.board.pending(self.id)]

    # -- the chain -----------------------------------------------------------------------------------------------------

    cdef void drain(self) noexcept nogil:
        if not self.talking:  # what comes meanwhile may be bound once the talk is over
            self.take_submissions()
        if self.next is not None:
            self.next.drain()

    cdef void take_submissions(self) noexcept nogil:
        cdef int code
        self.board.take(self.id, self.stale, self.submitted, self.restated)
        for slot in self.stale:
            self.table.disown(slot)
        for slot in self.submitted:
            code = self.table.mark_ready(slot)
            if code == 1:
                self.fresh = True
            elif code == -1:
                self.unbound.push_back(slot)
        self.changed_groups.insert(self.changed_groups.end(), self.restated.begin(), self.restated.end())

    cdef bint turn(self) noexcept nogil:
        cdef bint moved = self.data.progress()
        if self.left:
            pass
        elif self.talking:
            moved |= self.listen()
        elif not self.parting:
            moved |= self.negotiate()
        elif not self.data.busy():
            self.part()
            moved = True
        if self.next is not None:
            moved |= self.next.turn()
        return moved

    cdef bint is_hot(self, int64_t now) noexcept nogil:
        return (self.data.busy() and now < self.data.patience()) or (self.next is not None and self.next.is_hot(now))

    cdef bint is_waiting(self) noexcept nogil:
        return self.posted or self.talking or self.data.busy() or (self.next is not None and self.next.is_waiting())

    cdef int64_t earliest_retry(self) noexcept nogil:
        cdef int64_t mine = self.retry_at if self.table.has_offer() and not self.left else 0
        cdef int64_t others = self.next.earliest_retry() if self.next is not None else 0
        return max(mine, others) if mine == 0 or others == 0 else min(mine, others)

    cdef void look_around(self, int64_t now) noexcept nogil:
        """Now and then while nothing moves: has a rank asked, and is a tensor stalled here?"""
        cdef bint rung = False
        if self.size > 1 and not self.left:
            self.check(mpi.drain(DOORBELL, self.byte, self.comm, &rung))
            self.queried |= rung
            if self.stall > 0 and now - self.stall_told_at > self.stall and self.oldest() < now - self.stall:
                self.stall_told_at = now
                self.queried = True
                self.ring_doorbells()
        if self.next is not None:
            self.next.look_around(now)

    cdef void stop_all(self) noexcept nogil:
        self.stopping = True
        if self.next is not None:
            self.next.stop_all()

    cdef bint ends(self) noexcept nogil:
        return (self.parting and not self.retiring) or (self.next is not None and self.next.ends())

    cdef bint all_left(self) noexcept nogil:
        return self.left and (self.next is None or self.next.all_left())

    # -- the exchange --------------------------------------------------------------------------------------------------

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
        self.parting = not self.result[0] & RUNNING
        if not self.result[0] & SETTLED:
            self.slow_path()

    cdef void execute(self) noexcept nogil:
        """Hand the agreed buckets to the data plane; neighbours that may merge share one buffer up to the threshold."""
        cdef vector[int] slots
        cdef vector[int64_t] counts
        cdef size_t i = 0
        cdef int bit
        cdef int64_t nbytes, count
        while i < self.agreed.size():
            bit = self.agreed[i]
            slots = self.slots_of(bit)
            counts = self.counts[bit]
            nbytes = self.bucket_bytes(bit)
            if self.trace.on:
                self.trace_agreed(bit)
            i += 1
            while i < self.agreed.size() and self.merges(bit, self.agreed[i], nbytes):
                nbytes += self.bucket_bytes(self.agreed[i])
                for slot in self.slots_of(self.agreed[i]):
                    slots.push_back(slot)
                for count in self.counts[self.agreed[i]]:
                    counts.push_back(count)
                if self.trace.on:
                    self.trace_agreed(self.agreed[i])
                i += 1
            self.start(bit, slots, counts)

    cdef void start(self, int bit, const vector[int]& slots, const vector[int64_t]& counts) noexcept nogil:
        cdef vector[int] mine
        cdef Spec* spec = &self.specs[bit]
        if not self.joined[self.rank]:
            mine = slots
            self.board.begin(mine)
        if spec.collective == BARRIER:
            self.board.complete(mine, 0, string())
        elif spec.collective == BROADCAST and self.joined[spec.root]:
            self.board.complete(mine, USAGE, b"the root of this broadcast has joined: it has no more data to send")
        else:
            self.data.push(spec[0], mine, counts, self.joined, bit)

    cdef bint merges(self, int bit, int other, int64_t nbytes) noexcept nogil:
        cdef Spec* a = &self.specs[bit]
        cdef Spec* b = &self.specs[other]
        return (a.mergeable and b.mergeable and a.collective == b.collective and a.dtype == b.dtype and a.op == b.op
                and a.prescale == b.prescale and a.postscale == b.postscale and a.root == b.root
                and nbytes + self.bucket_bytes(other) <= self.threshold)

    cdef vector[int] slots_of(self, int bit) noexcept nogil:
        return self.table.members(bit)[0]

    cdef int64_t bucket_bytes(self, int bit) noexcept nogil:
        cdef int64_t total = 0
        cdef int64_t count
        for count in self.counts[bit]:
            total += count
        return total * (1 if self.specs[bit].collective == BROADCAST else itemsize(self.specs[bit].dtype))

    # -- what the ranks tell each other --------------------------------------------------------------------------------

    cdef void slow_path(self) noexcept nogil:
        self.talked_since = now_ns()
        self.slow_paths += 1
        with gil:
            self.news = False
            queried, self.queried = self.queried, False
            self.talk = self.hooks.negotiate(queried)
            self.speak(None)

    cdef void part(self) noexcept nogil:
        with gil:
            self.talk = self.hooks.leave()
            self.speak(None)

    cdef bint listen(self) noexcept nogil:
        """True when all ranks have spoken."""
        self.check(mpi.test(&self.gather))
        if not self.gather.done:
            return False
        with gil:
            heard = self.heard
            answer = [
                bytes(heard[self.heard_at[i]:self.heard_at[i] + self.heard_sizes[i]]) for i in range(self.size)
            ]
            self.speak(answer)
        return True

    cdef void speak(self, answer):
        """Go on with the talk, until it waits for the others or ends."""
        self.talking = True
        try:
            payload, sizes = self.talk.send(answer)
            self.post_gather(payload, sizes)
        except StopIteration as end:
            self.talking = False
            self.talk = None
            self.board.ring()
            if self.trace.on:
                self.trace.add(-1, SLOW_PATH, self.talked_since, now_ns(), 0, -1)
            if end.value is not None:
                self.close(end.value)
        except BaseException as error:
            self.talking = False
            self.left = True
            self.hooks.fatal(error)

    cdef void post_gather(self, bytes payload, sizes):
        cdef int i
        cdef char* into
        cdef const char* sent = payload
        self.spoken = payload
        self.heard_sizes = [len(payload)] * self.size if sizes is None else sizes
        self.heard_at.assign(self.size, 0)
        for i in range(1, self.size):
            self.heard_at[i] = self.heard_at[i - 1] + self.heard_sizes[i - 1]
        self.heard = bytearray(max(self.heard_at[self.size - 1] + self.heard_sizes[self.size - 1], 1))
        into = self.heard
        self.check(mpi.iallgatherv(sent, <int>len(payload), into, self.heard_sizes.data(), self.heard_at.data(),
                                   self.byte, self.comm, &self.gather))

    cdef void close(self, message):
        """The ranks have parted: fail what is still pending here."""
        cdef string text = message.encode()
        self.board.close(self.id, PEER, text)
        self.board.complete(self.board.pending(self.id), PEER, text)
        self.left = True

    cdef void check(self, int code) noexcept nogil:
        cdef char[1024] text
        if code != 0:
            mpi.error_text(code, text)
            with gil:
                self.hooks.fatal(RuntimeError(text.decode(errors="replace")))

    # -- stalls --------------------------------------------------------------------------------------------------------

    cdef int64_t oldest(self) noexcept nogil:
        cdef int64_t oldest = now_ns()
        for slot in self.board.pending(self.id):
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

    # -- spans ---------------------------------------------------------------------------------------------------------

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
        if self.joined[self.rank]:
            return
        for i in self.slots_of(bit):
            slot = &self.board.slot(i)
            self.trace.add(i, QUEUE, slot.submitted_ns, offered, slot.count * itemsize(slot.dtype), bit)
            self.trace.add(i, NEGOTIATE, offered, now, slot.count * itemsize(slot.dtype), bit)
