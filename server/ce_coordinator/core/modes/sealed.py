"""Sealed jobs: pair tables with noise, then labels; the coordinator adds up shares, fits, and passes on the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from ce.errors import InputError, LimitReached
from ce.job import Job
from ce.pair_tables import MOST_CLUSTERS
from ce.privacy.secure_argmax import MOST_MEMBERS
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Progress
from ce.protocol.keys.letters import ObjectLists, object_lists
from ce.protocol.messages.rooms import MemoryRoom, Rooms
from ce.protocol.modes.mask_context import object_digests
from ce.protocol.sealed.coordinator import SealedCoordinator
from ce.protocol.topology.enrolment import Enrolment
from ce.protocol.topology.exclusions import JobExclusions
from ce.protocol.topology.site_view import Categories
from ce.protocol.topology.topology import Topology, align
from ce.sealed_capacity import SealedShape, round_bytes
from ce.transport.alignment_codec import sealed_largest_header
from ce_coordinator.core.attempt_rounds import Aligned, AttemptRounds
from ce_coordinator.core.modes.job_mode import Signed
from ce_coordinator.core.modes.round_limits import refuse_large_headers, refuse_large_rounds
from ce_coordinator.core.modes.sealed_report import sealed_report
from ce_coordinator.core.modes.sealed_rounds import SealedAggregator, SealedRounds


class Sealed:
    """A job of a sealed model."""

    uses_votes = False
    #: Sites keep what must not be made twice; what the coordinator knows it gets from them.
    has_checkpoints = False

    def __init__(self, job: Job, rooms: Rooms = MemoryRoom) -> None:
        self._job = job
        self._rooms = rooms

    @property
    def lists(self) -> ObjectLists:
        return object_lists(self._job)

    def align(
        self,
        attempt: Attempt,
        enrolments: Mapping[str, Enrolment],
        vocabularies: Mapping[str, Categories],
        on_progress: Callable[[Progress], None],
        most_bytes: int,
    ) -> Aligned:
        topology, rows = align(enrolments, vocabularies)
        _refuse(self._job, topology)
        objects: dict[int, bytes] = {}
        for block in topology.blocks:
            site = block.members[0]
            objects |= object_digests(enrolments[site].objects, {block.index: rows[site][block.index]})
        whole = topology.whole()
        aggregator = SealedCoordinator(self._job, attempt.job_digest, whole, objects, on_progress, rooms=self._rooms)
        clusters = self._job.clusters if isinstance(self._job.clusters, int) else MOST_CLUSTERS
        shape = SealedShape.of(aggregator.terms, topology.blocks, clusters)
        refuse_large_rounds(round_bytes(shape), most_bytes, "fewer categories or shared objects need less")
        return Aligned(topology, rows, aggregator)

    def rounds(self, attempt: Attempt, aligned: Aligned, signed: Signed, revision: int) -> AttemptRounds:
        return SealedRounds(attempt, aligned, signed, revision, cast("SealedAggregator", aligned.aggregator))

    def report(
        self,
        rounds: AttemptRounds,
        exclusions: JobExclusions,
        min_clusters: Mapping[str, int],
        left_behind: Sequence[str],
    ) -> bytes:
        """There are no sizes to withhold."""
        assert isinstance(rounds, SealedRounds)
        return sealed_report(self._job, rounds, exclusions, left_behind)


def _refuse(job: Job, topology: Topology) -> None:
    objects, clusters = topology.sizes.objects, job.clusters
    if isinstance(clusters, int) and clusters > objects:
        raise InputError(f"{clusters:,} consensus clusters for {objects:,} objects: ask for fewer")
    refuse_large_headers(sealed_largest_header(topology))
    most = max(len(block.members) for block in topology.blocks)
    if most > MOST_MEMBERS:
        raise LimitReached(
            f"some objects are held by {most} sites; a sealed job labels objects of at most {MOST_MEMBERS} sites: name "
            "fewer sites"
        )
