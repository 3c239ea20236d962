"""Jobs in which totals over the sites are added up here: plain, masked and blind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ce.errors import InputError, LimitReached
from ce.job import Job
from ce.models.registry import model_without_labels
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Progress
from ce.protocol.keys.letters import ObjectLists, object_lists
from ce.protocol.modes.aggregators import aggregator_for
from ce.protocol.topology.enrolment import Enrolment
from ce.protocol.topology.exclusions import JobExclusions
from ce.protocol.topology.site_view import Categories
from ce.protocol.topology.topology import align, block_pseudonyms
from ce.steps.model import Model, fits_the_ring
from ce.transport.alignment_codec import largest_header
from ce_coordinator.core.attempt_rounds import Aligned, AttemptRounds
from ce_coordinator.core.modes.job_mode import Signed
from ce_coordinator.core.modes.round_limits import refuse_large_headers, refuse_large_rounds
from ce_coordinator.core.report import operator_report


class OverTotals:
    """A job of a model with steps."""

    has_checkpoints = True

    def __init__(self, job: Job) -> None:
        """Raises ConfigError where the model cannot run between daemons."""
        self._job = job
        self._model, _ = model_without_labels(job)

    @property
    def uses_votes(self) -> bool:
        return self._model.uses_votes

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
        return align_all(self._model, enrolments, vocabularies, on_progress, most_bytes, self._job.privacy)

    def rounds(self, attempt: Attempt, aligned: Aligned, signed: Signed, revision: int) -> AttemptRounds:
        return AttemptRounds(attempt, aligned, signed, revision)

    def report(
        self,
        rounds: AttemptRounds,
        exclusions: JobExclusions,
        min_clusters: Mapping[str, int],
        left_behind: Sequence[str],
    ) -> bytes:
        facts = (rounds.topology, exclusions, rounds.outcome, rounds.exchanges, rounds.bytes)
        return operator_report(self._job, *facts, min_clusters, left_behind)


def align_all(
    model: Model,
    enrolments: Mapping[str, Enrolment],
    vocabularies: Mapping[str, Categories],
    on_progress: Callable[[Progress], None],
    most_bytes: int,
    privacy: str,
) -> Aligned:
    """Who shares what, and the engine that goes on from there. `vocabularies`: of shared clusterings."""
    topology, rows = align(enrolments, vocabularies)
    if model.uses_votes and not topology.classifiers:
        raise InputError("no classifier: no site has a column of votes, which this model needs beside the clusterings")
    objects = topology.sizes.objects
    if model.k > objects:
        raise InputError(f"{model.k:,} consensus clusters or classes for {objects:,} objects: ask for fewer")
    if not fits_the_ring(model, topology.sizes):
        raise LimitReached("sums over so many objects and columns do not fit in 64 bits: split the job")
    shared = sum(block.size for block in topology.blocks if block.shared)
    cells = sum(len(column.categories) for column in topology.clusterings if column.shared)
    needed = 8 * model.n_starts * model.k * (shared + cells)
    refuse_large_rounds(needed, most_bytes, "fewer restarts or clusters need less")
    refuse_large_headers(largest_header(topology))
    known = block_pseudonyms(topology, enrolments, rows)
    return Aligned(topology, rows, aggregator_for(privacy, topology.whole(), model, on_progress, known))
