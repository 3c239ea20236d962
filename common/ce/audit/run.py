"""`ce.audit.audit`: run a job with a recorder, play every attack on the recording, and score the guesses.

The job is run in every mode, with secret starts as daemons have them. What a site computes itself, and what it reads in
`blind`, is taken from the run with plain sums, whose words are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

import numpy as np

from ce.audit.active_coordinator import ActiveCoordinator
from ce.audit.adversary_views import CoordinatorView, CuriousSiteView, Guesses, HolderView, Question
from ce.audit.attack_plan import ATTACKS, play_coordinator, play_holder, play_site
from ce.audit.attacks.alternation import alternate, alternate_as_site
from ce.audit.attacks.crafted_messages import (
    CraftedMessages,
    flat_messages,
    one_hot_messages,
    one_hot_rounds,
    read_flat,
    read_one_hot,
)
from ce.audit.attacks.equal_rows import paper_rows
from ce.audit.attacks.histograms import proportional_histograms
from ce.audit.attacks.known_beta_decode import decode_starts
from ce.audit.attacks.linear_unmix import linear_rounds
from ce.audit.attacks.repeated_jobs import repeat, repeat_as_site
from ce.audit.attacks.roster_differences import RosterView, differences, histogram_differences
from ce.audit.attacks.smoothing_choice import smoothed_job
from ce.audit.attacks.unanimous_votes import unanimous_votes
from ce.audit.minimum_rules import broken_rules
from ce.audit.recording import Recording, record, secrets_of
from ce.audit.report import LATTICE, ONE_ROSTER, REFERENCE, SECRET_STARTS, Audit, Finding
from ce.audit.scoring import Referee, Truth
from ce.audit.sealed.plan import SEALED_ATTACKS
from ce.audit.sealed.run import audit_sealed, broken_rule
from ce.audit.sealed.superseded import SUPERSEDED
from ce.errors import ConfigError, InputError
from ce.job import MODES_OF_TOTALS, Job
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.messages.array_names import EVERYTHING
from ce.protocol.messages.transport import Transport
from ce.protocol.topology.enrolment import enrol
from ce.protocol.topology.topology import align

#: Jobs with more objects are sampled.
MOST_OBJECTS = 1500
#: This many of the shared blocks are attacked, the largest ones.
_MOST_BLOCKS = 3
#: Most jobs over the same labels that are played, if sites allow so many.
_MOST_JOBS = 6
#: Their smoothing is near that of the job, or near this if it has none.
_SMOOTHING = 0.01
#: The largest number of iterations of a job with an active coordinator.
_ACTIVE_ROUNDS = 40

Tables = Mapping[str, LabelTable]
OnProgress = Callable[[str], None]


def audit(
    job: Job,
    tables: Mapping[str, LabelTable],
    *,
    modes: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    secrets: Mapping[str, bytes] | None = None,
    policy: Policy | None = None,
    max_objects: int = MOST_OBJECTS,
    on_progress: OnProgress | None = None,
) -> Audit:
    """Audit `job` over the sites' tables. `modes` None: all that open totals, or that of a sealed job.

    `attacks`: names of `ATTACKS`, or of `SEALED_ATTACKS` if the job is sealed; all if None.

    `policy` is that of every site: what its rules forbid is ruled out, and what it allows an operator to choose (number
    of jobs, smoothing, restarts) the attacks choose. None: the default rules of sites that take part with objects that
    other sites hold too (`shared_objects = "totals"`). Where a policy excludes these, they are not in the job.

    Starts are drawn from `secrets` {site: bytes}. Without them the audit derives secrets from the job's seed, so that
    the same audit gives the same findings.
    """
    modes = _modes(job, modes)
    wanted = _wanted(attacks, SEALED_ATTACKS if job.sealed else ATTACKS)
    complete = {site: LabelTable.from_arrays(table) for site, table in tables.items()}
    if len(complete) < 2:
        raise InputError("an audit needs at least two sites: a single site sends nothing to others")
    policy = Policy(shared_objects="sealed" if job.sealed else "totals") if policy is None else policy
    # What a policy says about totals is nothing to a sealed job, which opens none.
    with_shared = policy.shared_objects == "totals" or (job.sealed and policy.shared_objects == "sealed")
    taking_part = complete if with_shared else held_alone(complete)
    tables = _sample(taking_part, max_objects, job.seed)
    report = on_progress or (lambda text: None)
    if job.sealed:
        return _sealed(job, tables, wanted, policy, report, (complete, taking_part))
    # Words and messages of single precision are roundings of these: they tell nobody more.
    job = replace(job, precision="double")
    secrets = secrets_of(job, tables) if secrets is None else secrets
    report("running the job with plain sums")
    plain = record(job, tables, "plain", secrets)
    truth = Truth(plain, tables)
    questions = _chosen(truth.questions(), plain)
    broken = {mode: broken_rules(plain, tables, mode, policy, job) for mode in modes}
    auditor = _Auditor(job, tables, secrets, plain, truth, questions, Referee(truth, broken), wanted, report, policy)
    findings: list[Finding] = []
    for mode in modes:
        findings += auditor.audit(mode)
    if "the paper's rows" in wanted:
        findings += auditor.reference(modes[0])
    objects = {site: table.n_objects for site, table in tables.items()}
    return Audit(
        job=job,
        layout=plain.topology.layout,
        sites=objects,
        objects=_count(tables),
        of_objects=_count(taking_part),
        excluded_objects=_count(complete) - _count(taking_part),
        modes=tuple(modes),
        findings=tuple(findings),
        broken_rules=broken.get("masked", {}),
        not_played=_not_played(plain, questions),
    )


def _sealed(
    job: Job,
    tables: Tables,
    wanted: Sequence[str],
    policy: Policy,
    report: OnProgress,
    before: tuple[Tables, Tables],
) -> Audit:
    """The audit of a sealed job. `before`: all tables, and those without excluded objects, before sampling."""
    complete, taking_part = before
    rule = broken_rule(job, policy, tables)
    return Audit(
        job=job,
        layout=align({site: enrol(table, False) for site, table in tables.items()})[0].layout,
        sites={site: table.n_objects for site, table in tables.items()},
        objects=_count(tables),
        of_objects=_count(taking_part),
        excluded_objects=_count(complete) - _count(taking_part),
        modes=(job.privacy,),
        findings=tuple(audit_sealed(job, tables, wanted=wanted, policy=policy, on_progress=report)),
        broken_rules={} if rule is None else {EVERYTHING: (rule,)},
        superseded=SUPERSEDED,
    )


class _Auditor:
    """The attacks on one job, mode by mode."""

    def __init__(
        self,
        job: Job,
        tables: Tables,
        secrets: Mapping[str, bytes],
        plain: Recording,
        truth: Truth,
        questions: Sequence[Question],
        referee: Referee,
        wanted: Sequence[str],
        on_progress: OnProgress,
        policy: Policy,
    ) -> None:
        self._policy = policy
        self._job = job
        self._tables = tables
        self._secrets = secrets
        self._plain = plain
        self._truth = truth
        self._questions = questions
        self._clusterings = [q for q in questions if not truth.is_classifier(q)]
        self._referee = referee
        self._wanted = wanted
        self._on_progress = on_progress
        self._active = ActiveCoordinator(job, tables, secrets, plain, policy, referee, truth)

    def audit(self, mode: str) -> list[Finding]:
        self._on_progress(f"running the job with {mode} sums")
        recording = self._plain if mode == "plain" else record(self._job, self._tables, mode, self._secrets)
        self._on_progress(f"attacks of the coordinator, {mode}")
        view = CoordinatorView.of(recording, self._job.seed)
        found = play_coordinator(view, self._questions, self._referee, self._wanted, self._truth)
        found += self._public_starts(mode)
        found += self._two_rosters(mode, view)
        found += self._crafted(mode)
        found += self._repeated(mode)
        found += self._smoothing(mode)
        if mode == "masked":
            self._on_progress("attacks of a coordinator that deviates, masked")
            found += self._active.play(self._clusterings, self._wanted)
        # Sites are sent the same in plain as in masked.
        if mode != "plain":
            for site in recording.topology.sites:
                self._on_progress(f"attacks of site {site}, {mode}")
                found += self._by_site(recording, site)
        return found

    def reference(self, mode: str) -> list[Finding]:
        """What the rows of the paper's own protocol for columns would show to the party that collects them."""
        guesses: Guesses = {}
        for question in self._clusterings:
            beta = self._plain.final_beta[self._truth.name(question)]
            guesses[question] = [paper_rows(beta, self._truth.job_codes(question))]
        return self._referee.partitions("coordinator", "the paper's rows", mode, guesses, REFERENCE)

    def _by_site(self, recording: Recording, site: str) -> list[Finding]:
        found: list[Finding] = []
        for block in {q.block for q in self._questions}:
            if site in recording.topology.blocks[block].members:
                view = CuriousSiteView.of(recording, self._plain, site, self._tables[site], block)
                found += play_site(view, self._questions, self._referee, self._wanted, self._truth)
        baseline = proportional_histograms(CoordinatorView.of(self._plain, self._job.seed))
        if recording.mode == "blind" and "unanimous votes" in self._wanted:
            found += self._votes_read_by(site)
        holder = HolderView.of(self._plain, site)
        return found + play_holder(holder, recording.mode, baseline, self._referee, self._wanted)

    def _votes_read_by(self, site: str) -> list[Finding]:
        """In `blind` the members of a block read the totals of its votes."""
        view = CoordinatorView.of(self._plain, self._job.seed)
        blocks = sorted({q.block for q in self._questions if self._truth.is_classifier(q)})
        mine = [block for block in blocks if site in self._plain.topology.blocks[block].members]
        named = {block: unanimous_votes(view, block, without=site) for block in mine}
        known = {block: guess for block, guess in named.items() if guess is not None}
        return self._referee.votes(f"site {site}", "unanimous votes", "blind", known)

    def _public_starts(self, mode: str) -> list[Finding]:
        if "decode, public starts" not in self._wanted or not self._clusterings:
            return []
        recording = record(replace(self._job, max_iterations=1), self._tables, mode, None)
        view = CoordinatorView.of(recording, self._job.seed, public_starts=True)
        guesses = decode_starts(view, self._clusterings)
        # The objects of this job are in another order, because without a job key there are no pseudonyms.
        referee = self._referee.for_truth(Truth(recording, self._tables))
        return referee.partitions("coordinator", "decode, public starts", mode, guesses, SECRET_STARTS)

    def _two_rosters(self, mode: str, view: CoordinatorView) -> list[Finding]:
        if "two rosters" not in self._wanted or len(self._tables) < 3:
            return []
        missing = max(self._tables)
        rest = {site: table for site, table in self._tables.items() if site != missing}
        short = replace(self._job, sites=tuple(rest), max_iterations=1)
        # The job goes on without a site: its definition, and so its keys, stay the same.
        recording = record(short, rest, mode, self._secrets, keys_of=self._job)
        without = CoordinatorView.of(recording, self._job.seed)
        rosters = RosterView(view, without, missing)
        found = self._referee.partitions(
            "coordinator", "two rosters", mode, differences(rosters, self._clusterings), ONE_ROSTER
        )
        if not found:
            counts = histogram_differences(rosters)
            found = self._referee.histograms(
                "coordinator", "two rosters", mode, counts, proportional_histograms(view), ONE_ROSTER
            )
        return found

    def _repeated(self, mode: str) -> list[Finding]:
        """As many jobs as the policy allows over the same labels, as the coordinator and as one member."""
        jobs = min(self._policy.max_definitions, _MOST_JOBS)
        if "repeated jobs" not in self._wanted or mode == "plain" or not self._clusterings or jobs < 2:
            return []
        self._on_progress(f"running {jobs} jobs over the same labels, {mode}")
        others = [self._other_job(number) for number in range(1, jobs)]
        plain = [self._plain, *(record(job, self._tables, "plain", self._secrets) for job in others)]
        seen = [record(job, self._tables, mode, self._secrets) for job in (self._job, *others)]
        views = [CoordinatorView.of(recording, self._job.seed) for recording in seen]
        found = self._referee.partitions("coordinator", "repeated jobs", mode, repeat(views, self._clusterings))
        block = self._clusterings[0].block
        site = seen[0].topology.blocks[block].members[0]
        own = [CuriousSiteView.of(a, b, site, self._tables[site], block) for a, b in zip(seen, plain, strict=True)]
        foreign = [q for q in self._clusterings if q.block == block and q.holder != site]
        return found + self._referee.partitions(f"site {site}", "repeated jobs", mode, repeat_as_site(own, foreign))

    def _other_job(self, number: int) -> Job:
        """The same job under another name, and with another smoothing."""
        used = max(self._job.smoothing, _SMOOTHING)
        smoothing = used * (1.0 + number / 10.0)
        if smoothing > self._policy.max_smoothing:
            smoothing = used * (1.0 - number / 10.0)
        return replace(self._job, name=f"{self._job.name} {number}", smoothing=smoothing)

    def _smoothing(self, mode: str) -> list[Finding]:
        """A job with the largest smoothing that the policy allows, as the coordinator and as one member."""
        if "smoothing" not in self._wanted or mode == "plain" or not self._clusterings or self._plain.model.phases == 2:
            return []
        self._on_progress(f"running the job with the largest smoothing, {mode}")
        block = self._clusterings[0].block
        asked = [q for q in self._clusterings if q.block == block]
        job = smoothed_job(self._job, self._plain.model, self._policy, asked)
        recording = record(job, self._tables, mode, self._secrets)
        # Another job has other pseudonyms, and its objects are in another order.
        truth = Truth(recording, self._tables)
        referee = self._referee.for_truth(truth)
        view = CoordinatorView.of(recording, job.seed)
        found = referee.partitions("coordinator", "smoothing", mode, alternate(view, asked))
        site = recording.topology.blocks[block].members[0]
        plain = record(job, self._tables, "plain", self._secrets)
        own = CuriousSiteView.of(recording, plain, site, self._tables[site], block)
        foreign = [q for q in asked if q.holder != site]
        return found + referee.partitions(f"site {site}", "smoothing", mode, alternate_as_site(own, foreign))

    def _crafted(self, mode: str) -> list[Finding]:
        """An active coordinator changes messages. In `blind` it sends none, in `plain` it gains nothing by it, and the
        object sums of two-phase models do not depend on messages."""
        model = self._plain.model
        if "crafted messages" not in self._wanted or mode != "masked" or not self._clusterings or model.phases != 1:
            return []
        block = self._clusterings[0].block
        asked = [q for q in self._clusterings if q.block == block]
        topology = self._plain.topology
        shared = all(topology.columns[q.column].shared for q in asked)
        rounds = _ACTIVE_ROUNDS if shared else _flat_rounds(asked, model.n_starts, model.k)
        if shared:
            rounds = min(rounds, one_hot_rounds(model.n_starts, model.k, topology.blocks[block].size))
        craft = partial(one_hot_messages, block=block) if shared else flat_messages
        job = replace(self._job, max_iterations=rounds, tolerance=0.0)

        def wrap(inner: Transport) -> Transport:
            return CraftedMessages(inner, craft)

        recording = record(job, self._tables, mode, self._secrets, wrap=wrap, first=rounds + 3, keys_of=self._job)
        read = read_one_hot if shared else read_flat
        guesses = read(CoordinatorView.of(recording, job.seed), asked)
        return self._referee.partitions("coordinator", "crafted messages", mode, guesses)


def _not_played(plain: Recording, questions: Sequence[Question]) -> tuple[str, ...]:
    """Attacks that are known to work but are not part of the audit: lattice reduction, where totals are linear in the
    labels and so a hidden subset sum problem."""
    view = CoordinatorView.of(plain, 0)
    if any(linear_rounds(view, block) for block in {question.block for question in questions}):
        return (LATTICE,)
    return ()


def _flat_rounds(questions: Sequence[Question], starts: int, k: int) -> int:
    """Iterations until the totals have more dimensions than the labels, missing ones included."""
    dimensions = sum(question.groups for question in questions)
    return min(_ACTIVE_ROUNDS, 2 + dimensions // max(starts * (k - 1), 1))


def _modes(job: Job, modes: Sequence[str] | None) -> tuple[str, ...]:
    """Modes to audit: a sealed job has one, and others have all that open totals."""
    known = (job.privacy,) if job.sealed else MODES_OF_TOTALS
    for mode in modes or ():
        if mode not in known:
            raise ConfigError(f"unknown mode {mode!r}: modes are among {', '.join(known)}")
    return known if modes is None else tuple(modes)


def _wanted(attacks: Sequence[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    for name in attacks or ():
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the attacks are {', '.join(known)}"
            raise ConfigError(f"unknown attack {name!r}; {hint}")
    return known if attacks is None else tuple(attacks)


def _sample(tables: Tables, most: int, seed: int) -> dict[str, LabelTable]:
    """At most `most` objects, the same ones at every site that has them."""
    ids = np.unique(np.concatenate([table.ids for table in tables.values()]))
    if len(ids) <= most:
        return dict(tables)
    chosen = np.random.default_rng(seed).choice(ids, most, replace=False)
    return {site: table.select(np.isin(table.ids, chosen)) for site, table in tables.items()}


def held_alone(tables: Tables) -> dict[str, LabelTable]:
    """The tables without objects that several sites hold."""
    ids, holders = np.unique(np.concatenate([table.ids for table in tables.values()]), return_counts=True)
    shared = ids[holders > 1]
    return {site: table.select(~np.isin(table.ids, shared)) for site, table in tables.items()}


def _chosen(questions: Sequence[Question], plain: Recording) -> list[Question]:
    """The questions about the largest blocks."""
    sizes = {q.block: plain.topology.blocks[q.block].size for q in questions}
    largest = sorted(sizes, key=lambda block: (-sizes[block], block))[:_MOST_BLOCKS]
    return [q for q in questions if q.block in largest]


def _count(tables: Tables) -> int:
    return len(np.unique(np.concatenate([table.ids for table in tables.values()])))
