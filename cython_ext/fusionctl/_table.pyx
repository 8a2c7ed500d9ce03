"""The compiled fast path of the control plane: which buckets are complete here, and which are so everywhere.

Laws: nothing here communicates, sleeps or knows the time; bit order is a function of agreed history only, never of local
timing.  Python decides what a bit stands for; after that `mark_ready`, `offer` and `accept` need no Python.
"""

from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector

cdef enum:
    RUNNING = 1
    SETTLED = 2
    STATUS_BITS = 2
    WORD_BITS = 64


cdef class Table:
    """Slots, the buckets they make up, and the bits that stand for these; bit numbers are equal on all ranks."""

    def bind(self, int bit, slots):
        """Let `bit` stand for a bucket of these slots; those that are ready already count at once."""
        cdef vector[int] members = slots
        if bit < 0 or members.empty():
            raise ValueError(f"bit {bit} can not stand for slots {list(slots)}")
        while self.entries.size() <= <size_t>bit:
            self.entries.push_back(Entry(False, 0, 0, 0))
            self.buckets.push_back(vector[int]())
        if self.entries[bit].bound:
            raise ValueError(f"bit {bit} is bound already")
        self.buckets[bit] = members
        self.entries[bit] = Entry(True, 0, self.tick, 0)
        for slot in members:
            self.grow(slot)
            self.bits[slot] = bit
            self.entries[bit].missing += not self.ready[slot]
        self.complete += self.entries[bit].missing == 0

    def unbind(self, int bit):
        """Forget what `bit` stands for; its slots stay ready where they are, and belong to no bucket."""
        self.complete -= self.entry(bit).missing == 0
        for slot in self.buckets[bit]:
            self.bits[slot] = -1
        self.entries[bit].bound = False
        self.buckets[bit].clear()

    def last_used(self, int bit) -> int:
        """Tick of agreed history at which the bucket was last executed, or else bound."""
        return self.entry(bit).last_used

    def executions(self, int bit) -> int:
        """How often the bucket was executed since it was bound."""
        return self.entry(bit).executions

    def is_ready(self, int slot) -> bool:
        """Whether the slot is ready here and not yet agreed."""
        self.grow(slot)
        return self.ready[slot] != 0

    def set_ready(self, int slot) -> int:
        """`mark_ready`, for the tests of the protocol."""
        return self.mark_ready(slot)

    def withdraw(self, int slot):
        """`retract`, for the hooks of the engine and the tests of the protocol."""
        self.retract(slot)

    def offered(self, bint running, bint settled) -> list[int]:
        """`offer`, for the tests of the protocol: the words as integers."""
        cdef vector[uint64_t] words = vector[uint64_t](self.n_words())
        self.offer(words.data(), running, settled)
        return list(words)

    def accepted(self, words) -> list[int]:
        """`accept`, for the tests of the protocol: the agreed bits."""
        cdef vector[uint64_t] result = words
        cdef vector[int] agreed
        if <int>result.size() != self.n_words():
            raise ValueError(f"{result.size()} words were exchanged where {self.n_words()} were expected")
        self.accept(result.data(), agreed)
        return list(agreed)

    cdef int mark_ready(self, int slot) noexcept nogil:
        cdef int bit
        self.grow(slot)
        if self.ready[slot]:
            return -2
        self.ready[slot] = 1
        bit = self.bits[slot]
        if bit < 0:
            return -1
        self.entries[bit].missing -= 1
        self.complete += self.entries[bit].missing == 0
        return self.entries[bit].missing == 0

    cdef void retract(self, int slot) noexcept nogil:
        cdef int bit
        self.grow(slot)
        bit = self.bits[slot]
        if self.ready[slot] and bit >= 0:
            self.complete -= self.entries[bit].missing == 0
            self.entries[bit].missing += 1
        self.ready[slot] = 0

    cdef int n_words(self) noexcept nogil:
        cdef int bits = <int>self.entries.size()
        while bits > 0 and not self.entries[bits - 1].bound:
            bits -= 1
        return (STATUS_BITS + bits + WORD_BITS - 1) // WORD_BITS

    cdef void offer(self, uint64_t* words, bint running, bint settled) noexcept nogil:
        cdef size_t bit
        cdef int w
        for w in range(self.n_words()):
            words[w] = 0
        words[0] = (RUNNING if running else 0) | (SETTLED if settled else 0)
        for bit in range(self.entries.size()):
            if self.entries[bit].bound and self.entries[bit].missing == 0:
                words[(bit + STATUS_BITS) // WORD_BITS] |= <uint64_t>1 << ((bit + STATUS_BITS) % WORD_BITS)

    cdef bint has_offer(self) noexcept nogil:
        return self.complete > 0

    cdef void accept(self, const uint64_t* words, vector[int]& agreed) noexcept nogil:
        cdef size_t bit
        cdef bint any_agreed = False
        for bit in range(self.entries.size()):
            if not self.entries[bit].bound or not words[(bit + STATUS_BITS) // WORD_BITS] >> (
                (bit + STATUS_BITS) % WORD_BITS
            ) & 1:
                continue
            any_agreed = True
            agreed.push_back(<int>bit)
            for slot in self.buckets[bit]:
                self.ready[slot] = 0
            self.complete -= 1
            self.entries[bit].missing = <int>self.buckets[bit].size()
            self.entries[bit].last_used = self.tick + 1
            self.entries[bit].executions += 1
        self.tick += any_agreed

    cdef const vector[int]* members(self, int bit) noexcept nogil:
        return &self.buckets[bit]

    cdef void grow(self, int slot) noexcept nogil:
        if self.bits.size() <= <size_t>slot:
            self.bits.resize(slot + 1, -1)
            self.ready.resize(slot + 1, 0)

    cdef Entry* entry(self, int bit) except NULL:
        if bit < 0 or <size_t>bit >= self.entries.size() or not self.entries[bit].bound:
            raise ValueError(f"bit {bit} stands for nothing")
        return &self.entries[bit]
