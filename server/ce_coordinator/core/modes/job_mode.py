"""What an attempt asks of the mode of its job: `over_totals` and `sealed` are the two that there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Progress
from ce.protocol.keys.letters import ObjectLists
from ce.protocol.topology.enrolment import Enrolment, EnrolmentSummary
from ce.protocol.topology.exclusions import JobExclusions
from ce.protocol.topology.site_view import Categories
from ce_coordinator.core.attempt_rounds import Aligned, AttemptRounds

#: By site: what it has enrolled, with its signature.
Signed = Mapping[str, tuple[EnrolmentSummary, bytes]]


class JobMode(Protocol):
    """How the sites of a job are aligned, what their rounds are, and what the operator is told at the end."""

    @property
    def uses_votes(self) -> bool:
        """Whether sites may enrol classifiers."""

    @property
    def has_checkpoints(self) -> bool:
        """Whether an attempt can resume where an earlier one was: otherwise no site is asked for a checkpoint."""

    @property
    def lists(self) -> ObjectLists:
        """Which objects the letters of the sites compare."""

    def align(
        self,
        attempt: Attempt,
        enrolments: Mapping[str, Enrolment],
        vocabularies: Mapping[str, Categories],
        on_progress: Callable[[Progress], None],
        most_bytes: int,
    ) -> Aligned:
        """Who shares what, and what goes on from there. Runs off the event loop; raises what ends the job."""

    def rounds(self, attempt: Attempt, aligned: Aligned, signed: Signed, revision: int) -> AttemptRounds:
        """The rounds under one alignment."""

    def report(
        self,
        rounds: AttemptRounds,
        exclusions: JobExclusions,
        min_clusters: Mapping[str, int],
        left_behind: Sequence[str],
    ) -> bytes:
        """The operator's result, as JSON. `min_clusters`: see `ce_coordinator.core.report`."""
