"""Attacks for which a coordinator deviates from the protocol. Each needs a job of its own, which the audit runs.

reset and probe      messages of a shared block are changed: columns of one holder are read (`reset_and_probe`)
left-out members     some holders are told that shared objects are theirs alone (`left_out_members`)
pattern counts       globals and beta of shared columns are changed: label rows are counted (`pattern_counts`)
one site's parameters   one site is sent other beta than its co-holders: its labels are counted (`one_site_parameters`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ce.audit.adversary_views import CoordinatorView, Guesses, Question
from ce.audit.attack_plan import BY_COORDINATOR
from ce.audit.attacks import one_site_parameters, pattern_counts, reset_and_probe
from ce.audit.attacks.crafted_messages import AttackOver
from ce.audit.attacks.histograms import proportional_histograms
from ce.audit.attacks.left_out_members import remaining_members, without_members
from ce.audit.attacks.one_site_parameters import OneSiteParameters
from ce.audit.attacks.pattern_counts import PatternCounts
from ce.audit.attacks.reset_and_probe import ResetAndProbe
from ce.audit.recording import Recording, record
from ce.audit.report import OVERLAP_CHECK, Finding
from ce.audit.scoring import Referee, Truth
from ce.job import Job
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.messages.transport import Transport
from ce.protocol.topology.site_view import ColumnGroup

#: The attacks that are played on the smaller block: those that solve for labels.
_SOLVERS = ("fitting", "alternating")


class ActiveCoordinator:
    """The coordinator of one job in `masked`. In `blind` it sends no messages and no parameters, in `plain` it need
    not deviate."""

    def __init__(
        self,
        job: Job,
        tables: Mapping[str, LabelTable],
        secrets: Mapping[str, bytes],
        plain: Recording,
        policy: Policy,
        referee: Referee,
        truth: Truth,
    ) -> None:
        self._job = job
        self._tables = tables
        self._secrets = secrets
        self._plain = plain
        self._policy = policy
        self._referee = referee
        self._truth = truth

    def play(self, clusterings: Sequence[Question], wanted: Sequence[str]) -> list[Finding]:
        """All of these attacks; `clusterings` are the questions about shared blocks."""
        found: list[Finding] = []
        if "reset and probe" in wanted and clusterings:
            found += self._referee.partitions("coordinator", "reset and probe", "masked", self.probed(clusterings))
        if "left-out members" in wanted and clusterings:
            found += self.left_out(clusterings[0].block)
        if "pattern counts" in wanted:
            found += self._pattern_counts()
        if "one site's parameters" in wanted:
            found += self._one_site()
        return found

    def probed(self, clusterings: Sequence[Question]) -> Guesses:
        """What isolating and probing the objects of the largest block shows."""
        model = self._plain.model
        if not _can_steer(self._plain) or model.k < reset_and_probe.FEWEST_CLUSTERS or self._job.smoothing <= 0:
            return {}
        attackers: list[ResetAndProbe] = []

        def wrap(inner: Transport) -> Transport:
            topology = self._plain.topology
            attackers.append(ResetAndProbe(inner, clusterings[0].block, topology, model, self._job.smoothing))
            return attackers[0]

        self._run(reset_and_probe.MOST_EXCHANGES, wrap)
        return attackers[0].guesses(clusterings)

    def left_out(self, block: int) -> list[Finding]:
        """What the totals of a smaller block show that those of the whole block do not."""
        remaining = remaining_members(self._plain, block, self._policy)
        if not remaining:
            return []
        tables = without_members(self._tables, remaining)
        recording = record(self._job, tables, "masked", self._secrets)
        truth = Truth(recording, tables)
        view = CoordinatorView.of(recording, self._job.seed)
        questions = [q for q in truth.questions() if recording.topology.blocks[q.block].members == remaining]
        guesses: Guesses = {}
        for name in _SOLVERS:
            if name in BY_COORDINATOR and questions:
                for question, guessed in BY_COORDINATOR[name](view, questions).items():
                    guesses[question] = [*guesses.get(question, []), *guessed]
        # The members' result is that of this job: its consensus is the baseline.
        referee = Referee(truth, {"masked": {}})
        return referee.partitions("coordinator", "left-out members", "masked", guesses, OVERLAP_CHECK)

    def _pattern_counts(self) -> list[Finding]:
        model = self._plain.model
        groups = CoordinatorView.of(self._plain, self._job.seed).groups.values()
        if not groups or not _can_steer(self._plain) or model.k < pattern_counts.FEWEST_CLUSTERS:
            return []
        group = max(groups, key=lambda group: len(group.columns))
        attackers: list[PatternCounts] = []

        def wrap(inner: Transport) -> Transport:
            attackers.append(PatternCounts(inner, group, self._plain.topology, model))
            return attackers[0]

        self._run(pattern_counts.MOST_EXCHANGES, wrap)
        rows = attackers[0].rows()
        guesses = self._truth.guessed_from_rows(group, rows)
        return [
            *self._referee.all_rows("pattern counts", "masked", group, rows),
            *self._referee.partitions("coordinator", "pattern counts", "masked", guesses),
        ]

    def _one_site(self) -> list[Finding]:
        """The first site that holds two groups of shared columns."""
        view = CoordinatorView.of(self._plain, self._job.seed)
        for site in self._plain.topology.sites:
            held = [group for group in view.groups.values() if site in group.holders]
            if len(held) > 1 and _can_steer(self._plain) and self._plain.model.k > 1:
                attackers: list[OneSiteParameters] = []
                made = partial(self._isolated, attackers, site, held[0], held[1])
                self._run(len(one_site_parameters.STEPS), made)
                guessed, implied = attackers[0].counts, proportional_histograms(view)
                return self._referee.histograms("coordinator", "one site's parameters", "masked", guessed, implied)
        return []

    def _isolated(
        self, attackers: list[OneSiteParameters], site: str, target: ColumnGroup, lever: ColumnGroup, inner: Transport
    ) -> Transport:
        topology, model = self._plain.topology, self._plain.model
        attackers.append(OneSiteParameters(inner, site, target, lever, topology, model))
        return attackers[-1]

    def _run(self, exchanges: int, wrap: Callable[[Transport], Transport]) -> None:
        """Run the same job with as many exchanges as an attack takes. Steps that can be taken back would disturb it,
        and so would local loops and starts that end; the operator chooses all three."""
        chosen: dict[str, Any] = {"schedule": "newton", "local_loops": 1, "halving": False}
        job = replace(self._job, max_iterations=exchanges, tolerance=0.0, **chosen)
        with suppress(AttackOver):
            record(job, self._tables, "masked", self._secrets, wrap=wrap, first=1, keys_of=self._job)


def _can_steer(plain: Recording) -> bool:
    """Whether the globals decide where private objects go."""
    return plain.model.phases == 1 and plain.model.audit.message == "dirichlet"
