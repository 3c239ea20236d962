"""Random schedules of faults, from a seed, and one job that is run under them."""

from __future__ import annotations

import contextlib
import csv
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

import ce
from ce.labels import Column
from ce.protocol.engine.starting_parameters import job_key
from ce.protocol.sealed.terms import Terms
from ce.protocol.topology.enrolment import with_tokens
from ce.testing import COORDINATOR, PERMISSIVE, PlayedWorld, Violation, fingerprints_of, make_sites, random_faults
from ce_client.config import ClientSettings
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from support.problems import TOPOLOGIES, deal, problem
from support.sealed_jobs import pooled_cells, pooled_labels

SITES = ("east", "north", "west")
#: Faults happen while the job would be under way, undisturbed: less than a second.
BUSY_S = 0.8
#: So many sealed jobs have a site that loses its disk.
LOST_DISKS = 0.1
#: After the last fault everything is over within this.
PATIENCE_S = 400.0
#: A checkpoint at every iteration, or hardly any.
EAGER, LAZY = CheckpointInterval(every_s=0.0, every_exchanges=1), CheckpointInterval(every_s=0.15, every_exchanges=2)


@dataclass(frozen=True)
class Case:
    """Sites with labels, a job, and its results when nothing goes wrong."""

    sites: dict[str, ClientSettings]
    tables: dict[str, ce.LabelTable]
    job: ce.Job
    expected: dict[str, bytes]  # by site: consensus.csv
    without: dict[str, dict[str, bytes]]  # by site that is left behind: the same


@dataclass
class Outcome:
    state: str
    reason: str
    attempts: int
    resumed: int
    faults: int
    left_behind: tuple[str, ...]


class Cases:
    """Made once, run under many schedules."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[tuple[str, str, str], Case] = {}
        self._fingerprints: dict[str, dict[str, str]] = {}
        self._numbers = 0

    def of(self, layout: str, model: str, privacy: str) -> Case:
        key = (layout, model, privacy)
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def fingerprints(self, case: Case) -> dict[str, str]:
        key = str(case.sites["east"].key)
        if key not in self._fingerprints:
            self._fingerprints[key] = fingerprints_of(case.sites)
        return self._fingerprints[key]

    def _make(self, layout: str, model: str, privacy: str) -> Case:
        if model == "pairs":
            return self._make_sealed(layout)
        example = problem(3, k=2, clusterings=5, classifiers=3 if model == "bc3e" else 0, missing=0.1, n=36)
        owner = TOPOLOGIES[layout](example.table, 3, np.random.default_rng(1))
        tables = dict(zip(SITES, deal(example.table, owner).values(), strict=True))
        directory = self._directory / f"{layout}-{model}-{privacy}"
        directory.mkdir()
        settings = make_sites(directory, tables, policy=PERMISSIVE + "leave_behind = true\n")
        asked = {"classes": example.classes} if model == "bc3e" else {"clusters": 2}
        job = ce.Job(
            name="job",
            model=model,
            sites=SITES,
            restarts=1 if model == "bc3e" else 2,
            max_iterations=12,
            tolerance=0.0,
            privacy=privacy,
            **asked,  # type: ignore[arg-type]
        )
        return Case(settings, tables, job, {}, {})

    def _make_sealed(self, epsilon: str) -> Case:
        """With the default noise, which differs in each run; or without, so that runs can be compared."""
        tables = sealed_tables()
        directory = self._directory / f"pairs-{epsilon}"
        directory.mkdir()
        settings = make_sites(directory, tables, policy=PERMISSIVE + "leave_behind = true\n")
        return Case(settings, tables, sealed_job(epsilon), {}, {})

    def fresh(self, case: Case) -> dict[str, ClientSettings]:
        """The same sites, with nothing on their disks but what they were set up with."""
        self._numbers += 1
        to = self._directory / f"run{self._numbers}"
        for site, settings in case.sites.items():
            shutil.copytree(settings.key.parent, to / site, ignore=shutil.ignore_patterns("state", "results"))
        return {site: ClientSettings.read(to / site / "client.toml") for site in case.sites}

    def done_with(self, settings: Mapping[str, ClientSettings]) -> None:
        shutil.rmtree(next(iter(settings.values())).key.parent.parent, ignore_errors=True)


def sealed_job(epsilon: str, name: str = "job") -> ce.Job:
    return ce.Job(
        name=name, model="pairs", clusters=2, sites=SITES, **({"epsilon": "exact"} if epsilon == "exact" else {})
    )


def sealed_tables() -> dict[str, ce.LabelTable]:
    """Two groups, columns of two categories. Objects of all sites, of east and north, and of one site each; one column
    that two sites hold. As many objects as exact tables need."""
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 2, 60)
    number = np.arange(60)
    held = {"east": number < 54, "north": (number < 50) | (number >= 57), "west": (number < 45) | (number == 55)}
    tables = {}
    for site, columns in (("east", "ab"), ("north", "bc"), ("west", "de")):
        cells = np.where(rng.random((60, 2)) < 0.15, 1 - truth[:, None], truth[:, None])
        cells[rng.random((60, 2)) < 0.1] = -1
        order = rng.permutation(np.flatnonzero(held[site]))
        coded = [
            Column(name, "clustering", (0, 1), cells[order, at].astype(np.int32), None)
            for at, name in enumerate(columns)
        ]
        tables[site] = ce.LabelTable(np.array([f"o{i:02}" for i in order]), tuple(coded))
    return tables


def results(settings: Mapping[str, ClientSettings]) -> dict[str, bytes]:
    paths = {site: client.results / "job" / "consensus.csv" for site, client in settings.items()}
    return {site: path.read_bytes() for site, path in paths.items() if path.exists()}


def undisturbed(cases: Cases, case: Case, without: str | None = None) -> dict[str, bytes]:
    """The results of a job when nothing goes wrong; or when one site is not in its roster."""
    known = case.expected if without is None else case.without.setdefault(without, {})
    if not known:
        settings = cases.fresh(case)
        sites = {site: client for site, client in settings.items() if site != without}
        job = case.job if without is None else ce.Job(**{**_keys(case.job), "sites": tuple(sites)})
        with PlayedWorld(0, sites, job, LAZY, cases.fingerprints(case)) as world:
            world.start_all()
            world.run(100.0)
            assert world.record.state == "done", world.record.reason
        known.update(results(sites))
        cases.done_with(settings)
    return known


def _keys(job: ce.Job) -> dict[str, object]:
    return {**vars(job), "deadlines": vars(job.deadlines)}


def play(cases: Cases, seed: int, layout: str, model: str, privacy: str) -> Outcome:
    """One job under one schedule. Raises Violation, with what happened, when it is not as it should be."""
    case = cases.of(layout, model, privacy)
    with same_starts(case.job):
        return _play(cases, case, seed, f"{layout}, {model}, {privacy}")


@contextlib.contextmanager
def same_starts(job: ce.Job) -> Iterator[None]:
    """So that results can be compared, for jobs of fewer sites and with another on_dropout."""
    with (
        patch.object(ce.Job, "disclosure_digest", job.disclosure_digest),
        patch.object(Terms, "fit_seed", lambda terms, cells: 0),
    ):
        yield


def _play(cases: Cases, case: Case, seed: int, kind: str) -> Outcome:
    settings = cases.fresh(case)
    plan = random.Random(f"plan {seed}")
    dropout = plan.choice(("wait", "wait", "wait", "fail", "continue"))
    # Deadlines that hardly ever pass, except where a site is to be given up.
    round_s = 60.0 if dropout == "wait" else plan.choice((1.0, 5.0))
    deadlines = {"enrol_s": 200.0, "round_s": round_s, "job_s": 100_000.0}
    job = ce.Job(**{**_keys(case.job), "on_dropout": dropout, "deadlines": deadlines})  # type: ignore[arg-type]
    with PlayedWorld(seed, settings, job, plan.choice((EAGER, LAZY)), cases.fingerprints(case)) as world:
        world.network.duplicates = plan.choice((0.0, 0.0, 0.1))
        for process in (COORDINATOR, *SITES):
            world.clock.at(world.random.uniform(0.0, 0.05), lambda process=process: world.start(process))  # type: ignore[misc]
        faults = random_faults(world, plan, BUSY_S)
        if case.job.privacy == "sealed" and plan.random() < LOST_DISKS:
            site, away = plan.choice(SITES), plan.choice((0.02, 0.3, 1.0))
            # Later than most faults: by then shares may have been opened.
            world.clock.at(plan.uniform(0.2, 4 * BUSY_S), lambda: world.faults.lose_disk(site, away))
            faults += 1
        try:
            world.run(PATIENCE_S)
            world.run(world.clock.now + 10.0)  # every site hears of the end
            outcome = _judge(world, cases, case)
        except (Exception, Violation) as error:
            events = "\n  ".join(world.events)
            where = f"seed {seed}, {kind}, on_dropout {dropout}"
            raise Violation(f"{where}: {type(error).__name__}: {error}\n  {events}") from error
    cases.done_with(settings)
    return Outcome(outcome[0], outcome[1], world.attempts, world.resumed, faults, world.record.left_behind)


def _judge(world: PlayedWorld, cases: Cases, case: Case) -> tuple[str, str]:
    record = world.record
    if not record.ended:
        raise Violation(f"the job is {record.state} after {world.clock.now:.0f} s: it hangs")
    rosters = {SITES}
    if record.left_behind:
        rosters.add(tuple(sorted(set(SITES) - set(record.left_behind))))
        rosters |= {tuple(sorted(set(SITES) - {site})) for site in record.left_behind}
    world.checks.check_ledgers(rosters)
    if case.job.privacy == "sealed":
        check_sealed(world, case.tables)
    if record.state == "done":
        comparable = case.job.epsilon == "exact" and not record.left_behind and not world.checks.lost_disks
        if case.job.privacy != "sealed" or comparable:
            _check_equal(world, cases, case)
        if world.checkpoints.all_ids(world.job.name):
            raise Violation("checkpoints outlive the job")
    else:
        _check_declared(world)
    return record.state, record.reason


def _check_equal(world: PlayedWorld, cases: Cases, case: Case) -> None:
    """The results are those of an undisturbed run."""
    found = results(world.settings)
    gone = next(iter(world.record.left_behind), None)
    if gone is not None:
        found.pop(gone, None)  # what it has is of an attempt that it was in
    if found != undisturbed(cases, case, gone):
        raise Violation("the results are not those of an undisturbed run")


def check_sealed(world: PlayedWorld, tables: Mapping[str, ce.LabelTable]) -> None:
    """Released and charged once; and where the job is done, labels are what pooling gives with the one model.

    Of objects that are also held by a site that stayed away there may be none: its blocks were stopped."""
    world.checks.sealed.check_releases()
    if world.record.state != "done":
        return
    opened = next(iter(world.checks.sealed.opened.values()))
    roster, gone = opened.terms.sites, set(world.record.left_behind)
    secret = bytes.fromhex((world.settings[roster[0]].key.parent / "secret").read_text())
    key = job_key(secret, world.job.disclosure_digest)
    taking_part = {site: with_tokens(tables[site], key) for site in roster}  # the tables are in order of tokens
    if opened.terms.noise is None and not np.array_equal(opened.cells, pooled_cells(taking_part, opened.terms)):
        raise Violation("the opened tables are not those of all labels")
    expected = pooled_labels(taking_part, opened.terms, opened.model)
    of_absent = {str(id_) for site in gone & set(roster) for id_ in tables[site].ids}
    for site in set(roster) - gone:
        path = world.settings[site].results / world.job.name / "consensus.csv"
        if site in world.checks.lost_disks and not path.exists():  # lost when the job was done
            continue
        with path.open(newline="", encoding="utf-8") as file:
            labels = {row["id"]: row["label"] for row in csv.DictReader(file)}
        if labels.keys() != set(tables[site].ids.tolist()):
            raise Violation(f"{site} has labels of other objects than its own")
        for id_, label in labels.items():
            pooled = "" if expected[id_] < 0 else str(expected[id_])
            if label != pooled and not (id_ in of_absent and label == ""):
                raise Violation(f"{site} has another label of an object than pooling gives")


def _check_declared(world: PlayedWorld) -> None:
    """A job may fail only where it says so, and why."""
    reason = world.record.reason
    declared: tuple[str, ...] = {
        "wait": (),
        "fail": ("did not answer within deadlines.round_s", "did not enrol within deadlines.enrol_s"),
        "continue": ("cannot go on alone", "no site has a column of votes"),
    }[world.job.on_dropout]
    if world.job.privacy == "sealed" and world.job.on_dropout == "continue":
        # A site stays away between the first share and the tables, which need all shares.
        declared += ("after shares of the tables may have been opened", "were opened in an earlier attempt")
    if world.checks.lost_disks:
        # The shares of the others were opened. What a site says then is not for others: its own records have it.
        declared += ("this site cannot go on; its log says why", "were opened in an earlier attempt")
    if world.record.state != "failed" or not any(sentence in reason for sentence in declared):
        raise Violation(f"the job is {world.record.state}: {reason}")
