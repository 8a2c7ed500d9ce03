"""The compiled fast path: the bucket of each slot, the bit of each bucket, and which buckets are complete here.

Laws: nothing here communicates, sleeps, reads a clock or starts a thread; bindings, and so the order of bits, are a
function of agreed history only, never of local timing.  One thread uses a table.

Words of an exchange: bit 0 is RUNNING, bit 1 SETTLED, bit 2 + b says that bucket b is complete here; all others are 0.
Every bit states something positive, so the AND over the ranks says what holds on all of them: a bucket that survives is
complete everywhere, a status bit that does not survive is missed by somebody.  A rank that has nothing to say about a
bucket offers 0, which can only delay it.
"""

cimport cython
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

cdef extern from *:
    int count_trailing_zeros "__builtin_ctzll"(uint64_t word) noexcept nogil

cdef enum:
    RUNNING = 1
    SETTLED = 2
    N_STATUS = 2
    WORD = 64


@cython.final
cdef class Table:
    """Slots, buckets and bits of one rank.

    Slots are this rank's own small numbers; bits and the buckets behind them are agreed.  With `one_shot` a bucket is
    agreed once: its slots are disowned then.
    """

    # -- binding: Python decides, alike on all ranks --------------------------------------------------------------

    def bind(self, int bit, slots):
        """Let `bit` stand for a bucket of these slots; those that are ready already count at once.

        ValueError when the bit is bound, a slot is bound, or there is no slot.
        """
        cdef vector[int] bucket = slots
        self.check(bit, slots)
        if <size_t>bit >= self.slots_of.size():
            self.slots_of.resize(bit + 1)
            self.ready_in.resize(bit + 1)
            self.used.resize(bit + 1)
            self.agreements.resize(bit + 1)
            self.complete.resize((bit + N_STATUS) // WORD + 1)
            self.bound.resize((bit + N_STATUS) // WORD + 1)
        self.slots_of[bit] = bucket
        self.bound[(bit + N_STATUS) // WORD] |= <uint64_t>1 << ((bit + N_STATUS) % WORD)
        self.used[bit] = self.tick
        self.agreements[bit] = 0
        self.n_bits = max(self.n_bits, bit + 1)
        for slot in bucket:
            self.bit_of[slot] = bit
            if self.ready[slot]:
                self.n_loose -= 1
                self.count(bit)

    def unbind(self, int bit):
        """Forget the bucket behind `bit`: its slots become unbound and keep their ready marks."""
        for slot in self.slots_of[bit]:
            self.disown(slot)
            self.bit_of[slot] = -1
            self.disowned[slot] = False
        self.slots_of[bit].clear()
        self.bound[(bit + N_STATUS) // WORD] &= ~(<uint64_t>1 << ((bit + N_STATUS) % WORD))
        while self.n_bits > 0 and self.slots_of[self.n_bits - 1].empty():
            self.n_bits -= 1

    def last_used(self, int bit) -> int:
        """The exchange in which the bucket was last agreed, or after which it was bound; counted from 1."""
        return self.used[bit]

    def executions(self, int bit) -> int:
        """How often the bucket was agreed since it was bound."""
        return self.agreements[bit]

    cdef int check(self, int bit, slots) except -1:
        if bit < 0 or self.slots(bit):
            raise ValueError(f"bit {bit} is negative or bound already")
        if len(slots) == 0 or len(set(slots)) < len(slots):
            raise ValueError(f"a bucket needs slots, each of them once, not {list(slots)}")
        for slot in slots:
            if slot < 0:
                raise ValueError(f"slot {slot} is negative")
            self.grow(slot)
            if self.bit_of[<int>slot] >= 0:
                raise ValueError(f"slot {slot} is bound to bit {self.bit_of[<int>slot]} already")
        return 0

    # -- the fast path ----------------------------------------------------------------------------------------------

    cpdef int mark_ready(self, int slot) noexcept nogil:
        cdef int bit
        self.grow(slot)
        if self.ready[slot]:
            return -2
        self.ready[slot] = True
        bit = self.bit_of[slot]
        if bit < 0 or self.disowned[slot]:
            self.n_loose += 1
            return -1
        self.count(bit)
        return self.ready_in[bit] == <int>self.slots_of[bit].size()

    cpdef void retract(self, int slot) noexcept nogil:
        if not self.is_ready(slot):
            return
        self.ready[slot] = False
        if self.is_bound(slot):
            self.uncount(self.bit_of[slot])
        else:
            self.n_loose -= 1

    cpdef void disown(self, int slot) noexcept nogil:
        if not self.is_bound(slot):
            return
        if self.ready[slot]:
            self.uncount(self.bit_of[slot])
            self.n_loose += 1
        self.disowned[slot] = True

    cpdef bint is_ready(self, int slot) noexcept nogil:
        self.grow(slot)
        return self.ready[slot]

    cpdef bint is_bound(self, int slot) noexcept nogil:
        self.grow(slot)
        return self.bit_of[slot] >= 0 and not self.disowned[slot]

    cpdef int n_words(self) noexcept nogil:
        return (self.n_bits + N_STATUS + WORD - 1) // WORD

    cpdef bint has_offer(self) noexcept nogil:
        return self.n_complete > 0 or self.n_loose > 0 or self.generous

    cdef void offer(self, uint64_t* words, bint running, bint settled) noexcept nogil:
        cdef size_t n = self.n_words()
        cdef size_t i
        for i in range(n):
            words[i] = 0
            if i < self.complete.size():
                words[i] = self.bound[i] if self.generous else self.complete[i]
        words[0] |= (RUNNING if running else 0) | (SETTLED if settled else 0)

    cdef void accept(self, const uint64_t* words, vector[int]& agreed) noexcept nogil:
        cdef int n = self.n_words()
        cdef int i, bit
        cdef uint64_t word
        self.tick += 1
        for i in range(n):
            word = words[i] & ~<uint64_t>(RUNNING | SETTLED) if i == 0 else words[i]
            while word != 0:
                bit = WORD * i + count_trailing_zeros(word) - N_STATUS
                word &= word - 1
                self.agree(bit)
                agreed.push_back(bit)

    cdef const vector[int]* members(self, int bit) noexcept nogil:
        return &self.slots_of[bit]

    cdef void agree(self, int bit) noexcept nogil:
        # A slot may have been disowned while its offer was on its way: what was offered still counts.
        for slot in self.slots_of[bit]:
            self.retract(slot)
            if self.one_shot:
                self.disowned[slot] = True
        self.used[bit] = self.tick
        self.agreements[bit] += 1

    cdef void grow(self, int slot) noexcept nogil:
        cdef size_t n = slot + 1
        if n > self.bit_of.size():
            n = max(n, 2 * self.bit_of.size())
            self.bit_of.resize(n, -1)
            self.ready.resize(n)
            self.disowned.resize(n)

    cdef void count(self, int bit) noexcept nogil:
        self.ready_in[bit] += 1
        if self.ready_in[bit] == <int>self.slots_of[bit].size():
            self.complete[(bit + N_STATUS) // WORD] |= <uint64_t>1 << ((bit + N_STATUS) % WORD)
            self.n_complete += 1

    cdef void uncount(self, int bit) noexcept nogil:
        if self.ready_in[bit] == <int>self.slots_of[bit].size():
            self.complete[(bit + N_STATUS) // WORD] &= ~(<uint64_t>1 << ((bit + N_STATUS) % WORD))
            self.n_complete -= 1
        self.ready_in[bit] -= 1

    # -- the same for Python ------------------------------------------------------------------------------------------

    def slots(self, int bit) -> list[int]:
        """Slots of the bucket behind `bit`, in bucket order; empty when the bit is free."""
        return list(self.slots_of[bit]) if 0 <= bit < <int>self.slots_of.size() else []

    def words(self, bint running, bint settled) -> list[int]:
        """What `offer` writes."""
        cdef vector[uint64_t] out
        out.resize(self.n_words())
        self.offer(out.data(), running, settled)
        return list(out)

    def take(self, words) -> list[int]:
        """The bits that `accept` appends."""
        cdef vector[uint64_t] result = words
        cdef vector[int] agreed
        if <int>result.size() != self.n_words():
            raise ValueError(f"an exchange of {self.n_words()} words brought {result.size()}")
        self.accept(result.data(), agreed)
        return list(agreed)
