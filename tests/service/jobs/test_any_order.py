"""The coordinator's brain under everything that can happen to it, in any order: sites that connect, leave, forget and
lie, operators who submit and cancel, time that passes. Nothing unexpected comes out, what is over is forgotten, and an
honest job still gets done."""

from __future__ import annotations

import gc
import tempfile
import weakref
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.hostile_frames import SITES, WITHOUT, Scene, Trouble, cause, job_of
from support.mutations import damaged

from ce.errors import CeError
from ce.job import Job
from ce_client.state.attempt_history import AttemptHistory
from ce_client.state.job_index import JobIndex
from ce_coordinator.core.limits import Limits
from ce_proto.v1 import site_pb2 as pb

#: Jobs that are submitted, by name; the honest one comes last.
JOBS = {
    **{f"any{at}": job_of(f"any{at}", *SITES, on_dropout=how) for at, how in enumerate(("wait", "fail", "continue"))},
    **{f"pair-{site}": job_of(f"pair-{site}", *own.sites) for site, own in WITHOUT.items()},
}
HONEST = job_of("honest", *SITES)
LIMITS = Limits(jobs_at_once=2, jobs_waiting=2, attempts_per_job=20)
SEEDS = st.integers(0, 2**32 - 1)


@cache
def scene() -> Scene:
    return Scene.set_up(Path(tempfile.mkdtemp()))


class AnyOrder(RuleBasedStateMachine):
    """Whatever the rules below do, what the invariants say holds."""

    @initialize(seed=SEEDS)
    def sit_down(self, seed: int) -> None:
        # The sites must know nothing of the jobs of these names that they were in before.
        for site in SITES:
            for name in (*JOBS, HONEST.name):
                for memory in (AttemptHistory, JobIndex):
                    memory(scene().sites[site].state).forget(name)
        self.table = scene().begin(Random(seed), limits=LIMITS)
        self.runs: list[weakref.ref[Any]] = []

    @rule(name=st.sampled_from(sorted(JOBS)))
    def submit(self, name: str) -> None:
        try:
            self.table.submit(JOBS[name].definition(), name)
        except CeError:
            return
        self.runs += [weakref.ref(run) for run in self.table.machine.runs.values()]

    @rule(seed=SEEDS, token=st.text(max_size=3))
    def submit_damage(self, seed: int, token: str) -> None:
        rng = Random(seed)
        data = bytearray(JOBS["any0"].definition())
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = Job.from_definition(bytes(data))
            if found.name in JOBS:  # still a job, but not the one of that name
                return
            self.table.submit(bytes(data), token)
            self.table.do(self.table.machine.jobs.cancel(found.name, "olga", self.table.now))
        except CeError:
            return

    @rule(name=st.sampled_from([*sorted(JOBS), "nobody's"]))
    def cancel(self, name: str) -> None:
        try:
            self.table.do(self.table.machine.jobs.cancel(name, "olga", self.table.now))
        except CeError:
            assert name not in self.table.machine.records

    @rule(steps=st.integers(1, 40))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            self.table.step()

    @rule(seconds=st.sampled_from([1.0, 100.0, 700.0, 4000.0]))
    def wait(self, seconds: float) -> None:
        self.table.now += seconds
        self.table.do(self.table.machine.jobs.tick(self.table.now))

    @rule(site=st.sampled_from(SITES), what=st.sampled_from(["lose", "forget", "connect", "hello"]), seed=SEEDS)
    def come_and_go(self, site: str, what: str, seed: int) -> None:
        cause(scene(), self.table, site, Trouble(0, what, seed))

    @rule(site=st.sampled_from(SITES), what=st.sampled_from(["frame", "repeat", "corrupt"]), seed=SEEDS)
    def lie(self, site: str, what: str, seed: int) -> None:
        cause(scene(), self.table, site, Trouble(0, what, seed))

    @precondition(lambda self: self.table.machine.runs)
    @rule(site=st.sampled_from(SITES), seed=SEEDS)
    def lie_about_a_job(self, site: str, seed: int) -> None:
        """A frame of another moment, with the name and the epoch of a job that runs."""
        rng = Random(seed)
        frame: Any = pb.SiteFrame.FromString(rng.choice(scene().frames[site]).SerializeToString())
        if rng.random() < 0.5:
            frame = damaged(frame, rng)
        kind = frame and frame.WhichOneof("frame")
        if kind in (None, "hello", "goodbye", "leaving"):
            return
        run = rng.choice(list(self.table.machine.runs.values()))
        message = getattr(frame, kind)
        message.job, message.epoch = run.job.name, max(run.epoch + rng.choice([0, 0, 0, -1, 1]), 0)
        self.table.send(site, frame)

    @rule(site=st.sampled_from(SITES))
    def leave(self, site: str) -> None:
        self.table.send(site, pb.SiteFrame(leaving=pb.Leaving()))

    @invariant()
    def nothing_unexpected(self) -> None:
        if not hasattr(self, "table"):
            return
        table, machine = self.table, self.table.machine
        assert [note for note in table.notes if note.event == "unexpected error"] == []
        assert len(machine.runs) <= LIMITS.jobs_at_once
        assert len(machine.jobs.line) <= LIMITS.jobs_waiting
        assert {name for name, own in machine.records.items() if not own.ended} == {
            *machine.runs,
            *(record.name for record in machine.jobs.line),
        }
        assert {c.session for c in machine.connections.values()} == set(machine.directory.by_session)
        assert machine.directory.sessions == {site: c.session for site, c in machine.connections.items()}
        for run in machine.runs.values():
            assert run.awaited <= set(run.roster)
            assert run.deadline < float("inf")
            assert run.epoch <= LIMITS.attempts_per_job
        for name, record in machine.records.items():
            assert table.store.job(name) == record

    def teardown(self) -> None:
        """Everybody behaves again."""
        if not hasattr(self, "table"):
            return
        table, machine = self.table, self.table.machine
        table.corrupting.clear()
        for site in SITES:
            table.lose(site)
        table.global_step()
        for name in [own.name for own in machine.records.values() if not own.ended]:
            table.do(machine.jobs.cancel(name, "olga", table.now))
        table.global_step()
        table.submit(HONEST.definition(), HONEST.name)
        table.global_step()
        record = machine.records[HONEST.name]
        assert (record.state, record.reason) == ("done", "")
        # What is over leaves nothing behind but its record.
        assert (machine.runs, list(machine.jobs.line), table.work) == ({}, [], [])
        assert table.checkpoints._saved == {}
        for played_site in table.sites.values():
            assert played_site.site_attempts == {}
            assert played_site.site_jobs._noted == {}
        gc.collect()
        assert [run for run in self.runs if run() is not None] == []


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=8, stateful_step_count=30, deadline=None, derandomize=True)
