"""The second half of a sealed job at the coordinator: which rounds there are from `score` on, and who sends how much.

score      a fresh seed of every site for the dealer; of each block's first member the key of its rows, in boxes
compare    five rounds of each level of the tournament; the dealer's corrections go to the last member of each block
settle     commitments to the shares of the winners
prove      the dummy rows
reveal     the real rows; then, in a second round, a digest of the labels
finish     the others' digests

All blocks advance together: they have the same candidates, and so the same levels. All but the seeds is encrypted for
the members of a block. Every size follows from the numbers of rows and of clusters; a site reads the same sizes here.
A block whose members have opened winners in an earlier attempt is taken up again at `settle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, get_args

from ce.errors import MessageError
from ce.privacy.score_words import DUMMY_ROWS
from ce.privacy.secure_argmax import argmax_rounds, corrections_size, level_comparisons
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.rooms import MemoryRoom, Rooms
from ce.protocol.messages.steps import Arrays, ArraySpec, Step
from ce.protocol.sealed.channel import OVERHEAD, Bytes
from ce.protocol.sealed.dealer import Dealer
from ce.protocol.sealed.schedule import ARGMAX_SEED
from ce.protocol.sealed.site_argmax import DUMMIES_SIZE, HASH_SIZE, real_size
from ce.protocol.sealed.terms import Terms
from ce.protocol.topology.site_view import Block

LabelStep = Literal["score", "compare", "settle", "prove", "reveal", "finish"]
STEPS: tuple[LabelStep, ...] = get_args(LabelStep)
SEED_SIZE = 32
ROUNDS_OF_A_LEVEL = 5
#: What a site says of each of its shared blocks at `score`: it compares, sends again what it sent, or gives it up.
FRESH, AGAIN, LOST = 0, 1, 2
BLOCKS = "blocks"


@dataclass(frozen=True)
class LabelBlock:
    """A shared block, as coordinator and members know it."""

    index: int
    members: tuple[str, ...]
    rows: int
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, block: Block, digest: bytes) -> LabelBlock:
        return cls(block.index, block.members, block.size, digest)

    @property
    def total(self) -> int:
        """Rows of the argmax."""
        return self.rows + DUMMY_ROWS


@dataclass(frozen=True)
class Broadcast:
    """What each member of a block sends the others in one round: what it is, and the bytes before encryption."""

    what: str
    size: int

    def name(self, block: LabelBlock, sender: str) -> ArrayName:
        return ArrayName.of_members(block.index, self.what, sender)

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec((OVERHEAD + self.size,))


_argmax_rounds = lru_cache(1024)(argmax_rounds)


def rounds_of(step: LabelStep, candidates: int) -> int:
    """How many rounds a step has."""
    if step == "compare":
        return ROUNDS_OF_A_LEVEL * len(level_comparisons(1, candidates))
    return 2 if step == "reveal" else 1


def broadcast(block: LabelBlock, step: LabelStep, number: int, candidates: int) -> Broadcast:
    """Of round `number` of a step, from 0. Raises MessageError where the step has no such round."""
    if number >= rounds_of(step, candidates):
        raise MessageError(f"{step}: expected {rounds_of(step, candidates)} rounds, got another")
    match step:
        case "compare":
            return Broadcast("opening", _argmax_rounds(block.total, candidates)[number].size)
        case "settle":
            return Broadcast("commitment", HASH_SIZE)
        case "prove":
            return Broadcast("dummies", DUMMIES_SIZE)
        case "reveal":
            return Broadcast("digest", HASH_SIZE) if number else _winners(block)
        case _:
            raise MessageError(f"{step}: the members of a block send nothing")


def _winners(block: LabelBlock) -> Broadcast:
    return Broadcast("winners", real_size(block.rows))


def winners_array(block: Block, site: str) -> ArrayName:
    """The array in which a member opens its share of a block's labels, for whom lists arrays before they are sent."""
    members = LabelBlock.of(block, b"")
    return _winners(members).name(members, site)


def blocks_of(blocks: Iterable[LabelBlock], site: str) -> list[LabelBlock]:
    return [block for block in blocks if site in block.members]


def keys_between(blocks: Iterable[LabelBlock], first: str, peer: str) -> list[LabelBlock]:
    """The blocks whose keys `first` draws and sends to `peer`, in order."""
    return [block for block in blocks if block.members[0] == first and peer in block.members]


def score_arrays(blocks: Sequence[LabelBlock], site: str) -> Arrays:
    """What a site answers to `score`: it depends on the members of its blocks alone."""
    mine = blocks_of(blocks, site)
    if not mine:
        return {}
    arrays = {
        ArrayName.to_dealer(ARGMAX_SEED): ArraySpec((SEED_SIZE,)),
        ArrayName.of_broadcast(BLOCKS, site): ArraySpec((len(mine),)),
    }
    for peer in sorted({member for block in mine for member in block.members} - {site}):
        if sent := keys_between(mine, site, peer):
            arrays[ArrayName.of_box(peer)] = ArraySpec((OVERHEAD + SEED_SIZE * len(sent),))
    return arrays


class LabelRounds:
    """Rounds from `score` to `finish`: what each site is asked for, and what its task brings."""

    def __init__(
        self,
        terms: Terms,
        blocks: Mapping[int, tuple[Block, bytes]],
        dealer: Dealer,
        n_clusters: int,
        rooms: Rooms = MemoryRoom,
    ) -> None:
        """`blocks`: all shared blocks of the job, with their digests. `rooms`: for what the dealer sends."""
        self._sites = terms.sites
        self._blocks = [LabelBlock.of(block, digest) for block, digest in blocks.values()]
        self._candidates = n_clusters + 1
        self._dealer = dealer
        self._rooms = rooms
        self._running = {block.index: block for block in self._blocks}
        self._corrections: dict[
            int, Iterator[tuple[int, Iterable[bytes]]]
        ] = {}  # by block that compares: level by level
        self._step: LabelStep = "score"
        self._number = 0  # of the open round among those of its step

    @property
    def running(self) -> tuple[int, ...]:
        """The blocks that have not ended without labels."""
        return tuple(self._running)

    def stop(self, blocks: Iterable[int]) -> None:
        """Leave out blocks of which a member stays away: their objects end without a label, others finish.

        Also while a round is open: whoever waits for its answers waits for what `expected` says now.
        """
        for index in blocks:
            self._running.pop(index, None)
            self._corrections.pop(index, None)

    def expected(self, step: Step) -> dict[str, Arrays]:
        """What each site answers in the round that is about to open, or is open."""
        self._require(step)
        if step == "score":
            return {site: score_arrays(self._blocks, site) for site in self._sites}
        arrays: dict[str, Arrays] = {site: {} for site in self._sites}
        for block in self._answering():
            sent = broadcast(block, self._step, self._number, self._candidates)
            for member in block.members:
                arrays[member][sent.name(block, member)] = sent.spec
        return arrays

    def after(
        self, step: Step, received: Mapping[tuple[str, ArrayName], Bytes]
    ) -> tuple[LabelStep, dict[str, dict[ArrayName, Bytes]]]:
        """All have answered: the next step, and what its tasks bring to each site. `received`: by sender and name."""
        self._require(step)
        if step == "score":
            self._begin(received)
        self._go_on()
        brought = {site: self._brought(site, received) for site in self._sites}
        if self._step == "compare" and self._number % ROUNDS_OF_A_LEVEL == 0:
            self._deal(brought)
        return self._step, brought

    # How.

    def _require(self, step: Step) -> None:
        if step != self._step:
            raise MessageError(f"step: expected {self._step}, got {step}")

    def _begin(self, received: Mapping[tuple[str, ArrayName], Bytes]) -> None:
        """Which blocks compare, which are taken up again, and which end: as all their members say."""
        said: dict[int, set[int]] = {index: set() for index in self._running}
        for site in self._sites:
            mine = blocks_of(self._blocks, site)
            states = received.get((site, ArrayName.of_broadcast(BLOCKS, site)))
            told = [LOST] * len(mine) if states is None else states.tolist()  # of a site that stays away: nothing
            for block, state in zip(mine, told, strict=True):
                if block.index in said:
                    said[block.index].add(state)
        for index, plans in said.items():
            block = self._running[index]
            if plans == {FRESH}:
                seeds = [received[member, ArrayName.to_dealer(ARGMAX_SEED)].tobytes() for member in block.members]
                self._corrections[index] = self._dealer.corrections(block.digest, seeds, block.total, self._candidates)
            elif plans != {AGAIN}:  # lost by a member; members that disagree could not read each other either
                del self._running[index]

    def _go_on(self) -> None:
        """The next round: of this step, or of the next one that a block takes part in."""
        if not self._running:
            self._step, self._number = "finish", 0
            return
        last = self._number + 1 >= rounds_of(self._step, self._candidates)
        if not last and (self._step != "compare" or self._corrections):
            self._number += 1
            return
        self._step, self._number = STEPS[STEPS.index(self._step) + 1], 0
        if self._step == "compare" and not self._corrections:
            self._step = "settle"

    def _members(self, block: int) -> tuple[str, ...]:
        """The members of a block that goes on."""
        return self._running[block].members if block in self._running else ()

    def _answering(self) -> list[LabelBlock]:
        """The blocks whose members send something in the open round."""
        if self._step == "finish":
            return []
        return [b for b in self._running.values() if self._step != "compare" or b.index in self._corrections]

    def _brought(self, site: str, received: Mapping[tuple[str, ArrayName], Bytes]) -> dict[ArrayName, Bytes]:
        """Of the others' messages those that are for this site."""
        arrays: dict[ArrayName, Bytes] = {}
        for (sender, name), content in received.items():
            if name.kind == "box" and name.what == site:
                arrays[ArrayName.of_box(sender)] = content
            elif name.kind == "members" and sender != site and site in self._members(name.number):
                arrays[name] = content
        return arrays

    def _deal(self, brought: Mapping[str, dict[ArrayName, Bytes]]) -> None:
        """A level begins: its corrections, of each block for the last member, part by part to one room for all."""
        level = self._number // ROUNDS_OF_A_LEVEL
        sizes = {
            block.index: corrections_size(level_comparisons(block.total, self._candidates)[level])
            for block in self._answering()
        }
        room, end = self._rooms(sum(sizes.values())), 0
        for index, size in sizes.items():
            begin, at, end = end, end, end + size
            _, parts = next(self._corrections[index])
            for part in parts:
                room.write(at, part)
                at += len(part)
            last = self._running[index].members[-1]
            brought[last][ArrayName.of_corrections(index, level)] = room.content[begin:end]
