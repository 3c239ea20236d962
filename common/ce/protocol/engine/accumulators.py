"""The totals of one open round: one accumulator per array, added to as chunks of answers arrive.

Memory does not grow with the number of sites, and a round that no site has answered yet takes none. What is only passed
on goes to a room (`ce.protocol.messages.rooms`), which may be a file: only what its sender has encrypted, anything else
stays in memory. A site whose stream broke in the middle of an answer repeats it, byte for byte; what was added the
first time is not added again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ce.errors import MessageError
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.rooms import Bytes, MemoryRoom, Room, Rooms
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.messages.task import ArrayChunk
from ce.ring import SentWords, Words, word_type


@dataclass
class _Contribution:
    """What one site has sent: elements added so far, and elements read since it began (again)."""

    names: Collection[str]
    added: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Box:
    """A stretch of a room: the bytes of one array of one site."""

    room: Room
    begin: int
    size: int

    def write(self, begin: int, content: Bytes) -> None:
        self.room.write(self.begin + begin, content)

    @cached_property
    def content(self) -> Bytes:
        return self.room.content[self.begin : self.begin + self.size]


class Accumulators:
    """Accumulators, and how far each site's contribution to them has come.

    `boxes` are passed on rather than added: for each site the arrays of bytes that it sends to other sites.
    """

    def __init__(
        self,
        expected: Mapping[ArrayName, ArraySpec],
        by_site: Mapping[str, Collection[str]],
        boxes: Mapping[str, Mapping[ArrayName, ArraySpec]] | None = None,
        rooms: Rooms = MemoryRoom,
    ) -> None:
        """`by_site`: the names of what each site contributes. Raises JobFailed where there is no room for the boxes."""
        self._expected: dict[str, ArraySpec] = dict(expected.items())
        self._sizes: dict[str, int] = {name: math.prod(spec.shape) for name, spec in expected.items()}
        self._words: dict[str, SentWords] = {}
        self._boxes = _placed(boxes, rooms) if boxes else {}
        self._open = {site: _Contribution(names) for site, names in by_site.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._expected

    def __getitem__(self, name: str) -> Words:
        """A total, for steps. That of 32-bit words is a signed number below 2^31, as its scale says."""
        return self.as_sent(name).astype(np.int64, copy=False)

    def as_sent(self, name: str) -> SentWords:
        """A total in words of the width in which they are sent: added modulo 2 to the power of that."""
        if name not in self._words:
            spec = self._expected[name]
            self._words[name] = np.zeros(spec.shape, dtype=word_type(spec.word_bits))
        return self._words[name]

    def fill(self, totals: Mapping[str, SentWords]) -> None:
        """Take whole totals from another party that has added them up."""
        for name, spec in self._expected.items():
            total = totals.get(name)
            if total is None or total.dtype != word_type(spec.word_bits) or total.shape != spec.shape:
                raise MessageError(f"{name}: the total is missing, or not words of {spec}")
        self._words = {name: totals[name] for name in self._expected}
        self._open = {}

    @property
    def boxes(self) -> dict[tuple[str, str], Bytes]:
        """What is to be passed on, by sender and receiver."""
        return {(site, ArrayName(name).what): box.content for (site, name), box in self._boxes.items()}

    @property
    def received(self) -> dict[tuple[str, ArrayName], Bytes]:
        """The same by sender and name."""
        return {(site, ArrayName(name)): box.content for (site, name), box in self._boxes.items()}

    @property
    def size(self) -> int:
        """Numbers in all accumulators."""
        return sum(self._sizes.values())

    @property
    def waiting(self) -> Collection[str]:
        """Sites whose contribution is not complete."""
        return self._open.keys()

    def leave_out(self, sites: Collection[str]) -> None:
        """Wait for these sites no longer. Their boxes are not passed on, not even those that have come."""
        self._open = {site: contribution for site, contribution in self._open.items() if site not in sites}
        self._boxes = {(site, name): box for (site, name), box in self._boxes.items() if site not in sites}

    def begin(self, site: str) -> None:
        """A site begins its contribution, or begins it again."""
        self._contribution(site).read.clear()

    def add(self, site: str, chunk: ArrayChunk) -> None:
        """Add one chunk. Nothing is added of a chunk that is not what was asked for."""
        contribution = self._contribution(site)
        name, words, begin = chunk.name, chunk.words, chunk.begin
        if name not in contribution.names:
            raise MessageError(f"{site}: sends an array that was not asked for")
        if (site, name) in self._boxes:
            self._take_box(site, contribution, chunk)
            return
        spec = self._expected[name]
        kind = word_type(spec.word_bits)
        if words.dtype != kind or chunk.shape != spec.shape or chunk.fraction_bits != spec.fraction_bits:
            got = ArraySpec(chunk.shape, chunk.fraction_bits, 32 if words.dtype == np.int32 else 64)
            raise MessageError(f"{site}: {name}: expected words, {spec}; got {words.dtype.name}, {got}")
        end = begin + len(words)
        total: Any = self.as_sent(name).reshape(-1)
        if begin != contribution.read.get(name, 0) or end > len(total):
            raise MessageError(f"{site}: {name} does not arrive in order")
        contribution.read[name] = end
        added = contribution.added.get(name, 0)
        if end > added:
            fresh: Any = words if begin >= added else words[added - begin :]  # the kind of words was checked above
            stretch = total[end - len(fresh) : end]
            np.add(stretch, fresh, out=stretch)
            contribution.added[name] = end

    def _take_box(self, site: str, contribution: _Contribution, chunk: ArrayChunk) -> None:
        box = self._boxes[site, chunk.name]
        begin, end = chunk.begin, chunk.begin + len(chunk.words)
        if chunk.words.dtype != np.uint8 or chunk.shape != (box.size,) or end > box.size:
            raise MessageError(f"{site}: {chunk.name}: expected {box.size:,} bytes, got shape {chunk.shape}")
        if begin != contribution.read.get(chunk.name, 0):
            raise MessageError(f"{site}: {chunk.name} does not arrive in order")
        contribution.read[chunk.name] = end
        words: Any = chunk.words  # checked above
        box.write(begin, words)

    def end(self, site: str) -> None:
        """A site's contribution is complete."""
        contribution = self._contribution(site)
        for name in contribution.names:
            size = self._boxes[site, name].size if (site, name) in self._boxes else self._sizes[name]
            if contribution.read.get(name, -1) != size:
                raise MessageError(f"{site}: {name} is missing or incomplete")
        del self._open[site]

    def _contribution(self, site: str) -> _Contribution:
        if site not in self._open:
            raise MessageError(f"{site}: is not awaited in this round")
        return self._open[site]


def _placed(boxes: Mapping[str, Mapping[ArrayName, ArraySpec]], rooms: Rooms) -> dict[tuple[str, str], _Box]:
    """Where each box goes: those that are encrypted together to one room, any other to memory."""
    sizes = {(site, name): math.prod(spec.shape) for site, sent in boxes.items() for name, spec in sent.items()}
    placed = {}
    room, at = rooms(sum(size for (_, name), size in sizes.items() if name.encrypted)), 0
    for (site, name), size in sizes.items():
        if name.encrypted:
            placed[site, str(name)] = _Box(room, at, size)
            at += size
        else:
            placed[site, str(name)] = _Box(MemoryRoom(size), 0, size)
    return placed
