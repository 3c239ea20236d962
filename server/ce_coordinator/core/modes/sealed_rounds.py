"""The rounds of a sealed attempt: boxes are passed on that nobody here can read, and nothing is kept after a round.

Beside what `AttemptRounds` does: each site is told all columns of the job, operators see the phase, and from `score` on
blocks can be stopped: where a member stays away, the objects of its blocks end without a label, and the others finish.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from ce.pair_tables import PairFit
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Aggregator
from ce.protocol.sealed.terms import Terms
from ce.transport.alignment_codec import alignment_frames
from ce_coordinator.core.attempt_rounds import Aligned, AttemptRounds
from ce_coordinator.core.modes.job_mode import Signed
from ce_proto.v1 import site_pb2 as pb


class SealedAggregator(Aggregator, Protocol):
    """What passes on the boxes of a sealed job: `ce.protocol.sealed.coordinator.SealedCoordinator`."""

    @property
    def phase(self) -> str:
        """Where the job stands."""

    @property
    def terms(self) -> Terms: ...

    @property
    def n_clusters(self) -> int:
        """Of the model that the sites were sent; 0 before the tables are opened."""

    @property
    def fit(self) -> PairFit | None:
        """Its fit; None also where the sites have kept a model of an earlier attempt."""

    @property
    def opened(self) -> bool:
        """Whether a site may have opened its share: then no site takes part with fewer others any more."""

    @property
    def stoppable(self) -> bool:
        """Whether the tables are opened, and each block goes on by itself."""

    @property
    def stopped(self) -> Collection[int]:
        """The blocks that were stopped."""

    def stop(self, sites: Collection[str]) -> None:
        """Go on without these sites: their shared blocks are stopped, and none of them is awaited any more."""


class SealedRounds(AttemptRounds):
    """The rounds of one sealed attempt at the coordinator, under one alignment."""

    def __init__(
        self, attempt: Attempt, aligned: Aligned, signed: Signed, revision: int, aggregator: SealedAggregator
    ) -> None:
        """`aggregator`: that of `aligned`."""
        super().__init__(attempt, aligned, signed, revision)
        self._sealed = aggregator
        #: Sites that have stayed away since the tables were opened.
        self.absent: frozenset[str] = frozenset()

    @property
    def phase(self) -> str:
        """Empty before the first round."""
        return self._sealed.phase if self.begun else ""

    @property
    def terms(self) -> Terms:
        return self._sealed.terms

    @property
    def n_clusters(self) -> int:
        return self._sealed.n_clusters

    @property
    def fit(self) -> PairFit | None:
        return self._sealed.fit

    @property
    def opened(self) -> bool:
        return self.begun and self._sealed.opened

    @property
    def stoppable(self) -> bool:
        return self.begun and self._sealed.stoppable

    @property
    def unlabelled(self) -> int:
        """Objects of blocks that were stopped."""
        return sum(block.size for block in self.topology.blocks if block.index in self._sealed.stopped)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should know; names sites, never objects."""
        found = [self.terms.noise_warning] if self.begun and self.terms.noise_warning else []
        if self.absent:
            found.append(f"{', '.join(sorted(self.absent))} did not answer in time: the job goes on without")
        if self.unlabelled:
            found.append(f"{self.unlabelled:,} objects that several sites hold end without a label")
        return tuple(found)

    @property
    def size(self) -> int:
        """Words of the masked rows and cells of the tables: what the coordinator computes with between two rounds."""
        widths, blocks = self.terms.widths, self.topology.blocks
        rows = sum(block.size * sum(widths[site] for site in block.members) for block in blocks if block.shared)
        return rows + self.terms.layout.n_cells

    @property
    def iterates(self) -> bool:
        """From the first round on: no site can leave out objects or columns any more."""
        return True

    @property
    def awaited(self) -> Collection[str]:
        return set(super().awaited) - self.absent

    def alignment(self, site: str) -> Iterator[pb.CoordinatorFrame]:
        view = self.topology.sealed_view(site)
        return alignment_frames(self.attempt, view, self._rows[site], self._private, self.revision)

    def stop(self, sites: Collection[str]) -> None:
        """Sites stay away: the round goes on without them."""
        self._sealed.stop(sites)
        self.absent |= frozenset(sites)
