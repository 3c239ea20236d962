"""The second half of a sealed job at the coordinator: which rounds there are from `score` on, and who sends how much.

score      a fresh seed of every site for the dealer; of each block's first member the key of its rows, in boxes
compare    five rounds of each level of the tournament; the dealer's corrections go to the last member of each block
settle     commitments to the shares of the winners
prove      the dummy rows
reveal     the real rows; then, in a second round, a digest of the labels
finish     the others' digests

All blocks advance together: they have the same candidates, and so the same levels. All but the seeds is encrypted for
the members of a block. Every size follows from the numbers of rows and of clusters; a site reads the same sizes here
(`broadcast`). A block whose members have opened winners in an earlier attempt is taken up again at `settle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from ce.errors import MessageError
from ce.privacy.argmax_dealer import level_corrections
from ce.privacy.score_words import DUMMY_ROWS
from ce.privacy.secure_argmax import argmax_rounds, level_comparisons
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.sealed.channel import OVERHEAD, Bytes, as_array, received
from ce.protocol.sealed.site_argmax import DUMMIES_SIZE, HASH_SIZE, real_size

SEED_SIZE = 32
ROUNDS_OF_A_LEVEL = 5
#: What a site says of each of its shared blocks at `score`: compares anew, sends again what it sent, or gives it up.
FRESH, AGAIN, LOST = 0, 1, 2
SEED, BLOCKS = "argmax", "blocks"

LabelStep = Literal["score", "compare", "settle", "prove", "reveal", "finish"]
Specs = dict[ArrayName, ArraySpec]


@dataclass(frozen=True)
class LabelBlock:
    """A shared block, as coordinator and members know it."""

    index: int
    members: tuple[str, ...]
    rows: int
    digest: bytes = field(repr=False)

    @property
    def total(self) -> int:
        """Rows of the argmax."""
        return self.rows + DUMMY_ROWS

    def levels(self, candidates: int) -> tuple[int, ...]:
        """Comparisons of each level."""
        return level_comparisons(self.total, candidates)


@dataclass(frozen=True)
class Broadcast:
    """What each member of a block sends the others in a round: its name, and the bytes before encryption."""

    what: str
    size: int


def broadcast(block: LabelBlock, step: LabelStep, number: int, candidates: int) -> Broadcast:
    """Of round `number` of a step, from 0. Raises MessageError where the step has no such round."""
    kinds = {
        "settle": (Broadcast("commitment", HASH_SIZE),),
        "prove": (Broadcast("dummies", DUMMIES_SIZE),),
        "reveal": (Broadcast("winners", real_size(block.rows)), Broadcast("digest", HASH_SIZE)),
    }
    if step == "compare":
        rounds = argmax_rounds(block.total, candidates)
        found = (Broadcast("opening", rounds[number].size),) if number < len(rounds) else ()
        number = 0
    else:
        found = kinds.get(step, ())
    if number >= len(found):
        raise MessageError(f"{step}: expected no further round, got another")
    return found[number]


def keys_between(blocks: Iterable[LabelBlock], first: str, peer: str) -> list[LabelBlock]:
    """The blocks whose keys `first` sends to `peer`."""
    return [block for block in blocks if block.members[0] == first and peer in block.members]


def score_specs(blocks: Sequence[LabelBlock], site: str) -> Specs:
    """What a site answers to `score`. The number of its blocks and of its peers is all that it depends on."""
    mine = [block for block in blocks if site in block.members]
    if not mine:
        return {}
    specs = {
        ArrayName.to_dealer(SEED): ArraySpec((SEED_SIZE,)),
        ArrayName.of_broadcast(BLOCKS, site): ArraySpec((len(mine),)),
    }
    for peer in sorted({member for block in mine for member in block.members} - {site}):
        if sent := keys_between(mine, site, peer):
            specs[ArrayName.of_box(peer)] = ArraySpec((OVERHEAD + SEED_SIZE * len(sent),))
    return specs


class ArgmaxDealer(Protocol):
    """The dealer's part in the argmax: it has the seeds of all members, and never sees an opening."""

    def take(self, site: str, seed: bytes) -> None:
        """A site's fresh seed."""

    def corrections(self, block: LabelBlock, level: int, candidates: int) -> bytes:
        """What the last member of a block needs in a level."""

    def forget(self) -> None:
        """The last level was dealt: the seeds are not needed any more."""


class LocalArgmaxDealer:
    """The dealer, in the process of the coordinator."""

    def __init__(self) -> None:
        self._seeds: dict[str, bytes] = {}

    def take(self, site: str, seed: bytes) -> None:
        if seed in self._seeds.values():
            raise MessageError(f"{site}: expected a fresh seed, got that of another site")
        self._seeds[site] = seed

    def corrections(self, block: LabelBlock, level: int, candidates: int) -> bytes:
        seeds = [self._seeds[member] for member in block.members]
        return b"".join(level_corrections(seeds, block.digest, level, block.levels(candidates)[level]))

    def forget(self) -> None:
        self._seeds.clear()


class LabelRounds:
    """Rounds from `score` to `finish`: what each site is asked for, and what its task brings."""

    def __init__(self, sites: Sequence[str], blocks: Iterable[LabelBlock], clusters: int, dealer: ArgmaxDealer) -> None:
        self._sites = tuple(sites)
        self._all = tuple(blocks)
        self._running = {block.index: block for block in self._all}
        self._fresh: set[int] = set()
        self._candidates = clusters + 1
        self._dealer = dealer
        #: The step of the open round, and which of its rounds it is; None: over.
        self.step: LabelStep | None = "score"
        self.number = 0
        self.expected: dict[str, Specs] = {site: score_specs(self._all, site) for site in self._sites}
        self.arrays: dict[str, dict[ArrayName, Bytes]] = {site: {} for site in self._sites}

    @property
    def levels(self) -> int:
        return len(level_comparisons(1, self._candidates))

    @property
    def running(self) -> tuple[int, ...]:
        """The blocks that have not ended."""
        return tuple(self._running)

    def stop(self, blocks: Iterable[int]) -> None:
        """Leave out blocks of which a member stays away: their objects end without a label. Others finish.

        Between rounds, or while one is open: whoever waits for its answers waits for less from now on.
        """
        for index in blocks:
            self._running.pop(index, None)
            self._fresh.discard(index)
        if self.step not in ("score", None):
            self.expected = self._specs()

    def receive(self, answers: Mapping[str, Mapping[str, Bytes]]) -> None:
        """The answers of all sites to the open round, by site: go on to the next one."""
        sent: dict[tuple[str, ArrayName], Bytes] = {}
        for site, specs in self.expected.items():
            for name, spec in specs.items():
                content = received(answers.get(site, {}), name, spec.shape[0])
                sent[site, name] = as_array(content)
        if self.step == "score":
            self._begin(sent)
        self._go_on()
        self.expected = self._specs()
        self.arrays = {site: self._brought(site, sent) for site in self._sites}

    # How.

    def _begin(self, sent: Mapping[tuple[str, ArrayName], Bytes]) -> None:
        said: dict[int, set[int]] = {index: set() for index in self._running}
        for site in self._sites:
            mine = [block for block in self._all if site in block.members]
            if mine:
                self._dealer.take(site, sent[site, ArrayName.to_dealer(SEED)].tobytes())
                states = sent[site, ArrayName.of_broadcast(BLOCKS, site)]
                for block, state in zip(mine, states.tolist(), strict=True):
                    said.get(block.index, set()).add(state)
        for index, states in said.items():
            if states == {FRESH}:
                self._fresh.add(index)
            elif states != {AGAIN}:
                # Lost by a member; or the members disagree, and could not go on with each other.
                del self._running[index]

    def _go_on(self) -> None:
        """The step after the present one."""
        rounds = ROUNDS_OF_A_LEVEL * self.levels
        if self.step == "score":
            self.step = "compare" if self._fresh else "settle"
        elif (self.step == "compare" and self.number + 1 < rounds) or (self.step == "reveal" and self.number == 0):
            self.number += 1
            return
        else:
            after: dict[LabelStep, LabelStep | None] = {
                "compare": "settle", "settle": "prove", "prove": "reveal", "reveal": "finish", "finish": None,
            }  # fmt: skip
            assert self.step is not None
            self.step = after[self.step]
        self.number = 0
        if self.step == "settle":
            self._dealer.forget()
        if self.step is not None and not self._running and self.step != "finish":
            self.step = "finish"
        # Blocks may have been stopped that were the last to compare.

    def _specs(self) -> dict[str, Specs]:
        specs: dict[str, Specs] = {site: {} for site in self._sites}
        if self.step is None or self.step == "finish":
            return specs
        for block in self._answering():
            kind = broadcast(block, self.step, self.number, self._candidates)
            for member in block.members:
                name = ArrayName.of_members(block.index, kind.what, member)
                specs[member][name] = ArraySpec((OVERHEAD + kind.size,))
        return specs

    def _answering(self) -> list[LabelBlock]:
        """The blocks whose members send something in the open round."""
        return [b for b in self._running.values() if self.step != "compare" or b.index in self._fresh]

    def _brought(self, site: str, sent: Mapping[tuple[str, ArrayName], Bytes]) -> dict[ArrayName, Bytes]:
        """What the next task of a site brings: of the others' messages those that are for it, and corrections."""
        arrays: dict[ArrayName, Bytes] = {}
        for (sender, name), content in sent.items():
            if name.kind == "box" and name.what == site:
                arrays[ArrayName.of_box(sender)] = content
            elif name.kind == "members" and sender != site and name.number in self._running:
                if site in self._running[name.number].members:
                    arrays[name] = content
        if self.step == "compare" and self.number % ROUNDS_OF_A_LEVEL == 0:
            level = self.number // ROUNDS_OF_A_LEVEL
            for block in self._answering():
                if block.members[-1] == site:
                    corrections = self._dealer.corrections(block, level, self._candidates)
                    arrays[ArrayName.of_corrections(block.index, level)] = np.frombuffer(corrections, dtype=np.uint8)
        return arrays
