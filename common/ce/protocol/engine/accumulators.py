"""The totals of one open round: one accumulator per array, added to as pieces of answers arrive.

Memory does not grow with the number of sites, and a round that nobody has answered yet has none. A site whose stream
broke in the middle of an answer repeats it, byte for byte; what was added the first time is not added again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.protocol.messages.task import Answer, ArrayChunk, Step, chunks
from ce.ring import Words


@dataclass(frozen=True)
class Asked:
    """One array that a round asks for."""

    shape: tuple[int, ...]
    fraction_bits: int


@dataclass
class _Contribution:
    """What one site has sent: elements added so far, and elements read since it began (again)."""

    names: Collection[str]
    added: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)


class Accumulators:
    """Accumulators, and how far each site's contribution to them has come.

    `mail` is what is passed on rather than added: for each site the arrays of bytes that it sends, with their sizes.
    """

    def __init__(
        self,
        asked: Mapping[str, Asked],
        by_site: Mapping[str, Collection[str]],
        mail: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self._asked = asked
        self._words: dict[str, Words] = {}
        self._mail = {
            (site, name): np.zeros(size, dtype=np.uint8)
            for site, letters in (mail or {}).items()
            for name, size in letters.items()
        }
        self._open = {site: _Contribution([*names, *(mail or {}).get(site, {})]) for site, names in by_site.items()}

    def __getitem__(self, name: str) -> Words:
        if name not in self._words:
            self._words[name] = np.zeros(self._asked[name].shape, dtype=np.int64)
        return self._words[name]

    def fill(self, totals: Mapping[str, Words]) -> None:
        """Take whole totals from somebody who has added them up."""
        for name, asked in self._asked.items():
            total = totals.get(name)
            if total is None or total.dtype != np.int64 or total.shape != asked.shape:
                raise MessageError(f"{name}: the total is missing, or not words of the expected shape")
        self._words = {name: totals[name] for name in self._asked}
        self._open = {}

    @property
    def mail(self) -> dict[tuple[str, str], NDArray[np.uint8]]:
        """What is to be passed on, by sender and receiver."""
        return {(site, name.removeprefix("box/")): content for (site, name), content in self._mail.items()}

    @property
    def size(self) -> int:
        """Numbers in all accumulators."""
        return sum(math.prod(asked.shape) for asked in self._asked.values())

    @property
    def waiting(self) -> Collection[str]:
        """Sites whose contribution is not complete."""
        return self._open.keys()

    def begin(self, site: str) -> None:
        """A site begins its contribution, or begins it again."""
        self._contribution(site).read.clear()

    def add(self, site: str, chunk: ArrayChunk) -> None:
        """Add one piece. Nothing is added of a piece that is not what was asked for."""
        contribution = self._contribution(site)
        name = chunk.name
        if name not in contribution.names:
            raise MessageError(f"{site}: sends an array that was not asked for")
        if (site, name) in self._mail:
            self._take_mail(site, contribution, chunk)
            return
        asked = self._asked[name]
        if chunk.words.dtype != np.int64 or chunk.shape != asked.shape or chunk.fraction_bits != asked.fraction_bits:
            raise MessageError(f"{site}: {name} does not have the expected type, shape and scale")
        end = chunk.begin + len(chunk.words)
        total = self[name].reshape(-1)
        if chunk.begin != contribution.read.get(name, 0) or end > len(total):
            raise MessageError(f"{site}: {name} does not arrive in order")
        contribution.read[name] = end
        begin = max(chunk.begin, contribution.added.get(name, 0))
        if end > begin:
            words: Any = chunk.words  # checked above
            total[begin:end] += words[begin - chunk.begin :]
            contribution.added[name] = end

    def _take_mail(self, site: str, contribution: _Contribution, chunk: ArrayChunk) -> None:
        room = self._mail[site, chunk.name]
        begin, end = chunk.begin, chunk.begin + len(chunk.words)
        if chunk.words.dtype != np.uint8 or chunk.shape != room.shape or end > len(room):
            raise MessageError(f"{site}: {chunk.name} is not bytes of the expected size")
        if begin != contribution.read.get(chunk.name, 0):
            raise MessageError(f"{site}: {chunk.name} does not arrive in order")
        contribution.read[chunk.name] = end
        room[begin:end] = chunk.words

    def end(self, site: str) -> None:
        """A site's contribution is complete."""
        contribution = self._contribution(site)
        for name in contribution.names:
            room = self._mail.get((site, name))
            size = math.prod(self._asked[name].shape) if room is None else len(room)
            if contribution.read.get(name, -1) != size:
                raise MessageError(f"{site}: {name} is missing or incomplete")
        del self._open[site]

    def _contribution(self, site: str) -> _Contribution:
        if site not in self._open:
            raise MessageError(f"{site}: is not awaited in this round")
        return self._open[site]


class AddingUp(ABC):
    """Whoever has a round open and adds up what sites answer: a home, or a relay that cannot read it."""

    _round: int
    _step: Step | None  # None: the job is over
    _exchanges: int
    _resume: int  # the origin of the state that the sites are to go on from, in a round that was restored
    _totals: Accumulators

    @property
    def round(self) -> int:
        return self._round

    @property
    def exchanges(self) -> int:
        return self._exchanges

    @property
    def resumes(self) -> bool:
        """Whether the open round is one that was restored."""
        return self._resume > 0

    @property
    def opening(self) -> bool:
        """Whether the sites look at the counts: one may still leave objects out."""
        return self._step == "counts"

    @property
    def words(self) -> int:
        """Numbers in the totals of this round."""
        return self._totals.size

    @property
    def waiting(self) -> Collection[str]:
        """Sites that have not answered yet."""
        return self._totals.waiting

    def add(self, site: str, answer: Answer) -> None:
        """Add one site's whole answer to the totals."""
        self.begin(site, answer)
        for chunk in chunks(answer):
            self.add_chunk(site, chunk)
        self.end(site)

    @abstractmethod
    def begin(self, site: str, answer: Answer) -> None:
        """A site begins its answer, or begins it again; its arrays follow as pieces."""

    def add_chunk(self, site: str, chunk: ArrayChunk) -> None:
        self._totals.add(site, chunk)

    def end(self, site: str) -> None:
        self._totals.end(site)
