"""Argmax of scores that the members of a block share additively: nothing is opened but the winner's index.

A tournament over the candidates of every row, modulo 2^32, all rows at once. In each level, of candidates A and B with
x = A - B, for random numbers r = sum of r_s of which each member knows its part:

    difference      c = x + r is opened
    and_1 .. and_3  the borrow of c - r, from 4-bit digits: the dealer shares thermometers T = 2^digit(r) - 1; at a
                    public digit v, T[v] says v < digit and T[v-1] xor T[v] says v = digit (T[-1] = 1). A tree of 11
                    one-bit products combines them: lt = lt_high xor (eq_high and lt_low), eq = eq_high and eq_low.
    choice          the bit [x < 0] xor b is opened for a random bit b; with shares of b and b r the larger of A and B
                    follows as A - [x < 0] x, without another product

Every member draws all its random numbers from its own seed; the dealer (`argmax_dealer`) knows the seeds and sends the
last member alone what makes the shares fit. A word is 32 score + (K - 1 - index): ties go to the lowest index, and the
winner is opened as shares modulo 32. All messages have sizes that follow from rows and candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.errors import InputError, MessageError
from ce.privacy.derivation import number
from ce.privacy.ring_words import stream_of

Words = NDArray[np.uint32]
Bits = NDArray[np.uint8]
Thermometers = NDArray[np.uint16]
Step = Literal["difference", "and_1", "and_2", "and_3", "choice"]

MOST_MEMBERS = 63
MOST_CANDIDATES = 32
#: The winner's index is opened modulo this number.
WINNER_MODULUS = 32
#: Digits of a word: seven of 4 bits, the highest of 3; bit 31 is apart, in the highest bit of the last thermometer.
DIGITS, DIGIT_BITS, TOP_BIT = 8, 4, 31
#: One-bit products of each of the three rounds: 8 digits to 4, to 2, to 1. The lowest needs no `equal`.
PRODUCTS = {"and_1": 7, "and_2": 3, "and_3": 1}
ALL_PRODUCTS = sum(PRODUCTS.values())
STEPS: tuple[Step, ...] = ("difference", "and_1", "and_2", "and_3", "choice")
#: Comparisons whose random numbers are one stream; a multiple of 8, so that stretches of bits begin at a byte.
STRETCH = 2**16


@dataclass(frozen=True)
class ArgmaxRound:
    """One exchange among the members: `size` bytes from each of them to all others."""

    level: int
    step: Step
    comparisons: int
    size: int


@dataclass(frozen=True)
class Randomness:
    """A member's random numbers for some comparisons. Bits are packed, eight comparisons to a byte.

    mask              r, additive
    thermometers      T of every digit of r, xor; the highest bit of the last is bit 31 of r
    left, right, both a, b and a and b of the one-bit products, xor
    bit               b of the choice, xor
    bit_word          b as an additive share
    masked_word       b r, additive
    """

    mask: Words
    thermometers: Thermometers
    left: Bits
    right: Bits
    both: Bits
    bit: Bits
    bit_word: Words
    masked_word: Words


@dataclass(frozen=True)
class Corrections:
    """What the last member adds to its random numbers, so that those of all members fit."""

    thermometers: Thermometers
    both: Bits
    bit_word: Words
    masked_word: Words

    def to_bytes(self) -> bytes:
        return b"".join(getattr(self, field.name).tobytes() for field in fields(self))

    @classmethod
    def from_bytes(cls, data: bytes, comparisons: int) -> Corrections:
        """Of a message whose size was checked."""
        ends = np.cumsum([2 * DIGITS * comparisons, ALL_PRODUCTS * _packed(comparisons), 4 * comparisons])
        thermometers, both, bit_word, masked_word = (
            data[begin:end] for begin, end in zip((0, *ends), (*ends, len(data)), strict=True)
        )
        return cls(
            np.frombuffer(thermometers, "<u2").reshape(DIGITS, comparisons),
            np.frombuffer(both, np.uint8).reshape(ALL_PRODUCTS, -1),
            np.frombuffer(bit_word, "<u4"),
            np.frombuffer(masked_word, "<u4"),
        )


def level_comparisons(rows: int, candidates: int) -> tuple[int, ...]:
    """Comparisons of each level of the tournament."""
    _check_sizes(rows, candidates)
    found = []
    while candidates > 1:
        found.append(candidates // 2 * rows)
        candidates -= candidates // 2
    return tuple(found)


def argmax_rounds(rows: int, candidates: int) -> tuple[ArgmaxRound, ...]:
    """All rounds, in order, with the size of each member's message."""
    return tuple(
        ArgmaxRound(level, step, comparisons, _message_size(step, comparisons))
        for level, comparisons in enumerate(level_comparisons(rows, candidates))
        for step in STEPS
    )


def corrections_size(comparisons: int) -> int:
    """Bytes that the dealer sends the last member for a level."""
    return (2 * DIGITS + 8) * comparisons + ALL_PRODUCTS * _packed(comparisons)


def stretches(comparisons: int) -> Iterator[tuple[int, int]]:
    """Number and size of the stretches of a level; each has streams and corrections of its own."""
    for at, begin in enumerate(range(0, comparisons, STRETCH)):
        check_cancelled()
        yield at, min(STRETCH, comparisons - begin)


def drawn(seed: bytes, context: bytes, level: int, stretch: int, comparisons: int) -> Randomness:
    """The random numbers that a member draws for one stretch of a level; the dealer draws the same."""
    stream = stream_of(seed, b"ce argmax 1", context, number(level), number(stretch))
    packed = _packed(comparisons)
    return Randomness(
        mask=stream.words(comparisons, np.uint32),
        thermometers=stream.words((DIGITS, comparisons), np.uint16),
        left=stream.words((ALL_PRODUCTS, packed), np.uint8),
        right=stream.words((ALL_PRODUCTS, packed), np.uint8),
        both=stream.words((ALL_PRODUCTS, packed), np.uint8),
        bit=stream.words(packed, np.uint8),
        bit_word=stream.words(comparisons, np.uint32),
        masked_word=stream.words(comparisons, np.uint32),
    )


class Member:
    """One member's part in the argmax of one block: a message out and the others' messages in, round after round.

    position  of this member among the members by name, from 0
    seed      32 fresh bytes, known to this member and the dealer
    context   the block's digest
    words     (candidates, rows): this member's addends of the scores of all rows, modulo 2^32
    """

    def __init__(self, position: int, members: int, seed: bytes, context: bytes, words: Words) -> None:
        if not (2 <= members <= MOST_MEMBERS and 0 <= position < members):
            raise InputError(f"members: expected 2 to {MOST_MEMBERS} and a position among them, got {members}")
        self.rounds = argmax_rounds(words.shape[1], len(words))
        self.round = 0
        self.is_first, self.is_last = position == 0, position == members - 1
        self._others = members - 1
        self._seed, self._context = seed, context
        self._words = words
        self._corrections: dict[int, bytes] = {}
        self._begin_level()

    @property
    def finished(self) -> bool:
        return self.round == len(self.rounds)

    @property
    def needs_corrections(self) -> int | None:
        """The level whose corrections the last member needs before this round ends."""
        if not self.is_last or self.finished or self._level.corrected:
            return None
        level = self.rounds[self.round].level
        return None if level in self._corrections else level

    @property
    def share(self) -> NDArray[np.uint8]:
        """This member's share modulo 32 of K - 1 - winner, for all rows."""
        if not self.finished:
            raise MessageError(f"winners: expected after {len(self.rounds)} rounds, got after {self.round}")
        share: NDArray[np.uint8] = (self._words[0] % np.uint32(WINNER_MODULUS)).astype(np.uint8)
        return share

    def correct(self, level: int, data: bytes) -> None:
        """The dealer's corrections of a level, for the last member."""
        sizes = {of.level: corrections_size(of.comparisons) for of in self.rounds}
        begun = self._level.corrected or self.finished
        current = self.rounds[min(self.round, len(self.rounds) - 1)].level
        late = level < current or (level == current and begun)
        if not self.is_last or level not in sizes or level in self._corrections or late:
            raise MessageError(f"corrections: expected once for each level, by the last member, got level {level}")
        if len(data) != sizes[level]:
            raise MessageError(f"corrections of level {level}: expected {sizes[level]} bytes, got {len(data)}")
        self._corrections[level] = data

    def outgoing(self) -> bytes:
        """The message of this round, for all other members."""
        if self.finished:
            raise MessageError(f"argmax: expected {len(self.rounds)} rounds, got another")
        return self._level.message.tobytes()

    def incoming(self, others: Sequence[bytes]) -> None:
        """The messages of all other members in this round; then the next round begins."""
        if self.finished:
            raise MessageError(f"argmax: expected {len(self.rounds)} rounds, got another")
        now = self.rounds[self.round]
        if len(others) != self._others:
            raise MessageError(f"argmax: expected messages of {self._others} other members, got {len(others)}")
        for data in others:
            if len(data) != now.size:
                raise MessageError(f"argmax, {now.step}: expected {now.size} bytes, got {len(data)}")
        check_cancelled()
        if self.needs_corrections is not None:
            raise MessageError(f"argmax: expected the corrections of level {now.level} before its first messages")
        level = self._level
        if now.step == "difference":
            if self.is_last:
                level.correct(self._corrections.pop(now.level))
            level.compare(_sum(level.message, others))
        elif now.step == "choice":
            self._words = np.concatenate((level.larger(_xor(level.message, others)), level.unpaired))
        else:
            level.multiply(_xor(level.message, others))
        self.round += 1
        if now.step == "choice" and not self.finished:
            self._begin_level()

    def _begin_level(self) -> None:
        now = self.rounds[self.round]
        parts = [
            drawn(self._seed, self._context, now.level, stretch, size) for stretch, size in stretches(now.comparisons)
        ]
        self._level = _Level(self._words, _joined(parts), self.is_first)


class _Level:
    """One level of the tournament at one member: `message` is what is sent next."""

    def __init__(self, words: Words, random: Randomness, is_first: bool) -> None:
        pairs = len(words) // 2
        self.unpaired = words[2 * pairs :]
        self._left = words[:pairs]
        self._random = random
        self._is_first = is_first
        self.corrected = False
        difference = (words[:pairs] - words[pairs : 2 * pairs]).reshape(-1)
        self.message: NDArray[np.uint32] | Bits = difference + random.mask

    def correct(self, data: bytes) -> None:
        """The last member's random numbers, with the dealer's corrections."""
        random = self._random
        found, at = [], 0
        for _, size in stretches(len(random.mask)):
            end = at + corrections_size(size)
            found.append(Corrections.from_bytes(data[at:end], size))
            at = end
        self._random = Randomness(
            mask=random.mask,
            thermometers=random.thermometers ^ np.concatenate([part.thermometers for part in found], axis=1),
            left=random.left,
            right=random.right,
            both=random.both ^ np.concatenate([part.both for part in found], axis=1),
            bit=random.bit,
            bit_word=random.bit_word + np.concatenate([part.bit_word for part in found]),
            masked_word=random.masked_word + np.concatenate([part.masked_word for part in found]),
        )

    def compare(self, opened: Words) -> None:
        """With c opened: shares of `less` and `equal` for every digit, from the lowest."""
        self.corrected = True
        self._opened = opened
        self._nodes = []
        for digit, thermometer in enumerate(self._random.thermometers):
            bits = DIGIT_BITS if digit < DIGITS - 1 else DIGIT_BITS - 1
            value = (opened >> np.uint32(DIGIT_BITS * digit)) & np.uint32((1 << bits) - 1)
            # The bit below the thermometer is T[-1] = 1, at one member. Bit 15 is lost: no digit is above 15.
            shifted = (thermometer << np.uint16(1)) | np.uint16(self._is_first)
            at = shifted >> value.astype(np.uint16)
            above = at >> np.uint16(1)
            self._nodes.append((_pack(above), _pack(at ^ above)))
        top = self._random.thermometers[-1] >> np.uint16(15)
        if self._is_first:
            top = top ^ (opened >> np.uint32(TOP_BIT)).astype(np.uint16)
        self._top = _pack(top)
        self._multiplied = 0
        self._ask_products()

    def multiply(self, opened: Bits) -> None:
        """With the masked factors opened: half as many digits, each of twice the length."""
        both = opened.reshape(2, -1, len(self._top))
        at = slice(self._multiplied, self._multiplied + both.shape[1])
        random = self._random
        products = random.both[at] ^ (both[0] & random.right[at]) ^ (both[1] & random.left[at])
        if self._is_first:
            products = products ^ (both[0] & both[1])
        self._multiplied = at.stop
        results = iter(products)
        self._nodes = [
            (self._nodes[high][0] ^ next(results), next(results) if high > 1 else self._nodes[high][1])
            for high in range(1, len(self._nodes), 2)
        ]
        if len(self._nodes) > 1:
            self._ask_products()
        else:
            self.message = self._top ^ self._nodes[0][0] ^ random.bit

    def larger(self, opened: Bits) -> Words:
        """With the masked bit e = [x < 0] xor b opened: the share of A - [x < 0] x for every pair."""
        random = self._random
        flipped = np.unpackbits(opened, count=len(random.mask)).astype(bool)
        difference = self._opened * random.bit_word - random.masked_word  # b x = b c - b r
        own = -random.mask if not self._is_first else self._opened - random.mask  # x = c - r
        chosen = np.where(flipped, own - difference, difference)  # [x < 0] x, as [x < 0] = e xor b
        return self._left - chosen.reshape(self._left.shape)

    def _ask_products(self) -> None:
        """`equal` of every higher digit times `less` and `equal` of its lower neighbour; the lowest is never equal."""
        left, right = [], []
        for low in range(0, len(self._nodes), 2):
            (less, equal), (_, equal_high) = self._nodes[low], self._nodes[low + 1]
            left.append(equal_high)
            right.append(less)
            if low:
                left.append(equal_high)
                right.append(equal)
        at = slice(self._multiplied, self._multiplied + len(left))
        self.message = np.stack((np.stack(left) ^ self._random.left[at], np.stack(right) ^ self._random.right[at]))


def winners(shares: Sequence[NDArray[np.uint8]], candidates: int) -> NDArray[np.int32]:
    """The winning index of every row, from the shares of all members; -1 where it is no candidate.

    That is no error: whether there is one depends on the scores, if somebody has spoiled the comparisons.
    """
    total = np.zeros(len(shares[0]), dtype=np.uint32)
    for share in shares:
        if share.shape != total.shape:
            raise MessageError(f"winners: expected shares of {len(total)} rows, got {share.size}")
        total += share
    found = candidates - 1 - (total % WINNER_MODULUS).astype(np.int32)
    return np.maximum(found, -1).astype(np.int32)


def share_from(data: bytes, rows: int) -> NDArray[np.uint8]:
    """A share of the winners, from its bytes."""
    share = np.frombuffer(data, dtype=np.uint8)
    if len(share) != rows or (share >= WINNER_MODULUS).any():
        raise MessageError(f"winners: expected {rows} numbers below {WINNER_MODULUS}, got {len(share)} bytes")
    return share


def _check_sizes(rows: int, candidates: int) -> None:
    if rows < 1 or not 2 <= candidates <= MOST_CANDIDATES:
        raise InputError(
            f"argmax: expected at least 1 row and 2 to {MOST_CANDIDATES} candidates, got {rows} and {candidates}"
        )


def _message_size(step: Step, comparisons: int) -> int:
    if step == "difference":
        return 4 * comparisons
    if step == "choice":
        return _packed(comparisons)
    return 2 * PRODUCTS[step] * _packed(comparisons)


def _packed(comparisons: int) -> int:
    """Bytes of one bit of each comparison."""
    return -(-comparisons // 8)


def _pack(bits: Thermometers) -> Bits:
    return np.packbits((bits & np.uint16(1)).astype(np.uint8))


def _joined(parts: Sequence[Randomness]) -> Randomness:
    return Randomness(
        **{
            field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=-1)
            for field in fields(Randomness)
        }
    )


def _sum(own: NDArray[np.uint32] | Bits, others: Sequence[bytes]) -> Words:
    total = own.astype(np.uint32)
    for data in others:
        total += np.frombuffer(data, dtype="<u4")
    return total


def _xor(own: NDArray[np.uint32] | Bits, others: Sequence[bytes]) -> Bits:
    total = own.astype(np.uint8).reshape(-1)
    for data in others:
        total ^= np.frombuffer(data, dtype=np.uint8)
    return total
