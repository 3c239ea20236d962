"""Random schedules of faults, from a seed, and one job that is run under them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ce
from ce_client.config import ClientSettings
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from support.problems import TOPOLOGIES, deal, problem
from support.processes import write_labels
from support.tabletop import PERMISSIVE, make_sites
from support.world import HUB, Violation, Watch, World, fingerprints_of

SITES = ("east", "north", "west")
FAULTS = ("crash", "crash", "at a write", "at a write", "both", "all", "cut", "cut", "stall", "jump", "leave", "drain")
#: Faults happen while the job would be under way, undisturbed: less than a second.
BUSY_S = 0.8
#: After the last fault everything is over within this.
PATIENCE_S = 400.0
#: A checkpoint in every iteration, or in hardly any.
EAGER, LAZY = CheckpointInterval(every_s=0.0, every_exchanges=1), CheckpointInterval(every_s=0.15, every_exchanges=2)


@dataclass(frozen=True)
class Case:
    """Sites with labels, a job, and what comes of it when nothing goes wrong."""

    sites: dict[str, ClientSettings]
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
        example = problem(3, k=2, clusterings=5, classifiers=3 if model == "bc3e" else 0, missing=0.1, n=36)
        owner = TOPOLOGIES[layout](example.table, 3, np.random.default_rng(1))
        tables = dict(zip(SITES, deal(example.table, owner).values(), strict=True))
        directory = self._directory / f"{layout}-{model}-{privacy}"
        directory.mkdir()
        paths = {}
        for site, table in tables.items():
            paths[site] = directory / f"{site}.csv"
            write_labels(paths[site], table)
        settings = make_sites(directory, paths, policy=PERMISSIVE + "leave_behind = true\n")
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
        return Case(settings, job, {}, {})

    def fresh(self, case: Case) -> dict[str, ClientSettings]:
        """The same sites, with nothing on their disks but what they were set up with."""
        self._numbers += 1
        to = self._directory / f"run{self._numbers}"
        for site, settings in case.sites.items():
            shutil.copytree(settings.key.parent, to / site, ignore=shutil.ignore_patterns("state", "results"))
        return {site: ClientSettings.read(to / site / "client.toml") for site in case.sites}

    def done_with(self, settings: Mapping[str, ClientSettings]) -> None:
        shutil.rmtree(next(iter(settings.values())).key.parent.parent, ignore_errors=True)


def results(settings: Mapping[str, ClientSettings]) -> dict[str, bytes]:
    paths = {site: own.results / "job" / "consensus.csv" for site, own in settings.items()}
    return {site: path.read_bytes() for site, path in paths.items() if path.exists()}


def undisturbed(cases: Cases, case: Case, without: str | None = None) -> dict[str, bytes]:
    """What comes of a job when nothing goes wrong; or when one site is not in it at all."""
    known = case.expected if without is None else case.without.setdefault(without, {})
    if not known:
        settings = cases.fresh(case)
        sites = {site: own for site, own in settings.items() if site != without}
        job = case.job if without is None else ce.Job(**{**_keys(case.job), "sites": tuple(sites)})
        with pytest.MonkeyPatch.context() as patch:
            world = World(0, sites, job.definition(), Watch(cases.fingerprints(case), patch), LAZY)
            for process in (HUB, *sites):
                world.start(process)
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
    expected = undisturbed(cases, case)
    settings = cases.fresh(case)
    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(cases.fingerprints(case), patch)
        plan = random.Random(f"plan {seed}")
        dropout = plan.choice(("wait", "wait", "wait", "fail", "continue"))
        # Deadlines that hardly ever pass, except where somebody is to be given up.
        round_s = 60.0 if dropout == "wait" else plan.choice((1.0, 5.0))
        deadlines = {"enrol_s": 200.0, "round_s": round_s, "job_s": 100_000.0}
        job = ce.Job(**{**_keys(case.job), "on_dropout": dropout, "deadlines": deadlines})  # type: ignore[arg-type]
        world = World(seed, settings, job.definition(), watch, plan.choice((EAGER, LAZY)))
        world.duplicates = plan.choice((0.0, 0.0, 0.1))
        for process in (HUB, *SITES):
            world.at(world.random.uniform(0.0, 0.05), lambda process=process: world.start(process))  # type: ignore[misc]
        faults = _faults(world, plan)
        try:
            world.run(PATIENCE_S)
            world.global_step(10.0)
            outcome = _judge(world, expected, cases, case)
        except (Exception, Violation) as error:
            enrolment_digest = "\n  ".join(world.happened)
            where = f"seed {seed}, {layout}, {model}, {privacy}, on_dropout {dropout}"
            raise Violation(f"{where}: {type(error).__name__}: {error}\n  {enrolment_digest}") from error
    cases.done_with(settings)
    return Outcome(outcome[0], outcome[1], world.attempts, world.resumed, faults, world.record.left_behind)


def _faults(world: World, plan: random.Random) -> int:
    count = plan.randint(1, 6)
    for _ in range(count):
        when = plan.uniform(0.0, BUSY_S)
        site = plan.choice(SITES)
        process = plan.choice((HUB, site))
        away = plan.choice((0.02, 0.3, 1.0, 8.0))
        kind = plan.choice(
            (
                "crash",
                "crash",
                "at a write",
                "at a write",
                "both",
                "all",
                "cut",
                "cut",
                "stall",
                "jump",
                "leave",
                "drain",
            )
        )
        match kind:
            case "crash":
                world.at(when, lambda p=process, a=away: world.crash(p, a))  # type: ignore[misc]
            case "at a write":
                which = (plan.randint(1, 12), plan.random() < 0.5, away)
                world.at(when, lambda p=process, w=which: world.kill_at_write(p, *w))  # type: ignore[misc]
            case "both":
                world.at(when, lambda s=site, a=away: (world.crash(HUB, a), world.crash(s, a)))  # type: ignore[misc, func-returns-value]
            case "all":
                world.at(when, lambda a=away: [world.crash(p, a) for p in (HUB, *SITES)])  # type: ignore[misc, func-returns-value]
            case "cut":
                how = plan.choice(("up", "down", "both", "nothing"))
                world.at(when, lambda s=site, h=how: world.cut(s, h))  # type: ignore[misc]
            case "stall":
                seconds = plan.choice((0.2, 1.0, 4.0, 12.0))
                world.at(when, lambda s=site, t=seconds: world.stall(s, t))  # type: ignore[misc]
            case "jump":
                seconds = plan.choice((-5000.0, -3.0, 30.0))
                world.at(when, lambda t=seconds: world.jump(t))  # type: ignore[misc]
            case "leave":
                world.at(when, lambda s=site: world.leave(s))  # type: ignore[misc]
            case "drain":
                world.at(when, world.drain)
    return count


def _judge(world: World, expected: dict[str, bytes], cases: Cases, case: Case) -> tuple[str, str]:
    record = world.record
    if not record.ended:
        raise Violation(f"the job is {record.state} after {world.now:.0f} s: it hangs")
    rosters = {SITES}
    if record.left_behind:
        rosters.add(tuple(sorted(set(SITES) - set(record.left_behind))))
        rosters |= {tuple(sorted(set(SITES) - {site})) for site in record.left_behind}
    world.watch.check_ledgers(rosters)
    found = results(world.settings)
    if record.state == "done":
        if record.left_behind:
            [gone] = record.left_behind
            expected = undisturbed(cases, case, gone)
            found.pop(gone, None)  # what it has is of an attempt that it was in
        if found != expected:
            raise Violation("the results are not those of an undisturbed run")
        if any(world.checkpoints.all_ids(world.job)):
            raise Violation("checkpoints outlive the job")
    else:
        _check_declared(world)
    return record.state, record.reason


def _check_declared(world: World) -> None:
    """A job may fail only where it says so, and why."""
    definition = ce.Job.from_definition(world.definition)
    reason = world.record.reason
    declared = {
        "wait": (),
        "fail": ("did not answer within deadlines.round_s", "did not enrol within deadlines.enrol_s"),
        "continue": ("cannot go on alone", "no site has a column of votes"),
    }[definition.on_dropout]
    if world.record.state != "failed" or not any(sentence in reason for sentence in declared):
        raise Violation(f"the job is {world.record.state}: {reason}")
