"""What the coordinator counts. The runner passes in each event, instruction and record; the core knows nothing of it.

Metrics only observe: nothing here decides anything or calls the machine. No metric names a site or a job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import get_args

from prometheus_client import Counter

from ce.declarations.registry import find_model
from ce.job import MODELS, PRIVACY
from ce.rules import RULES
from ce.service.metrics import OTHER, MetricsRegistry, known_rule
from ce_coordinator.core.attempt_rounds import Aligned, NextRound
from ce_coordinator.core.events import CheckpointNotSaved, CheckpointSaved, Computed, Event, SiteConnected
from ce_coordinator.core.instructions import Compute, Instruction, LoadCheckpoint, SaveCheckpoint
from ce_coordinator.core.machine import Census
from ce_coordinator.core.records import JobRecord, JobState

PREFIX = "ce_coordinator"
#: What a job does in each state, unless the coordinator computes or works on a checkpoint.
PHASES: dict[JobState, str] = {"enrolling": "enrolling", "aligning": "aligning", "running": "waiting"}
COMPUTING = "computing"
#: Instructions for a thread.
_WORK = (Compute, SaveCheckpoint, LoadCheckpoint)


def job_kinds() -> list[tuple[str, str]]:
    """Models and modes that a job can have together."""
    pairs = product(MODELS, PRIVACY)
    return [(model, privacy) for model, privacy in pairs if find_model(model).sealed == (privacy == "sealed")]


@dataclass
class _Job:
    """A running job: its kind, its attempt, what it does and since when."""

    model: str
    privacy: str
    state: JobState
    epoch: int
    phase: str
    since: float
    exchanges: int | None  # of the present alignment, as far as they were counted; None before its first round


class Tally:
    """A sum that many small numbers are added to: its counter, which costs more each time, is only told of it when
    somebody scrapes."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._new: float = 0

    def add(self, amount: float) -> None:
        self._new += amount

    def count(self) -> None:
        """Tell the counter."""
        self._counter.inc(self._new)
        self._new = 0


class _Gauges:
    """What is looked at when somebody scrapes."""

    def __init__(self, made: MetricsRegistry) -> None:
        self._jobs = made.gauge("jobs", "Jobs that the coordinator knows, by their state.", "state")
        self._jobs_waiting = made.gauge("jobs_waiting", "Jobs that wait in line until other jobs have ended.")
        self._sites_known = made.gauge("sites_known", "Sites that have a certificate or have connected.")
        self._sites_connected = made.gauge("sites_connected", "Sites that are connected.")
        self._sites_awaited = made.gauge("sites_awaited", "Sites, connected or not, that a job waits for.")
        self._frames_waiting = made.gauge("frames_waiting", "Entries in the queues of frames for sites.")
        self._computations = made.gauge(
            "computations", "Large computations and checkpoints that a thread works on, or that wait for one."
        )

    def set(self, now: Census, frames: int, computations: int) -> None:
        """`frames` in queues, and `computations` that threads work on or that wait for one."""
        for state in get_args(JobState):
            self._jobs.labels(state).set(now.jobs.get(state, 0))
        self._jobs_waiting.set(now.jobs_in_line)
        self._sites_known.set(now.sites_known)
        self._sites_connected.set(now.sites_connected)
        self._sites_awaited.set(now.sites_awaited)
        self._frames_waiting.set(frames)
        self._computations.set(computations)


class CoordinatorMetrics:
    """The coordinator's instruments."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        made = self.registry = MetricsRegistry(PREFIX)
        self._gauges = _Gauges(made)
        kind = ("model", "privacy")
        self.jobs_ended = made.counter("jobs_ended", "Jobs that ended, by how.", "state", *kind)
        self.attempts = made.counter("attempts", "Attempts at jobs (epochs) that began.", *kind)
        self.exchanges = made.counter(
            "exchanges",
            "Rounds of jobs that all sites have answered, but for the one that brings the results.",
            *kind,
        )
        self.phase_seconds = made.counter(
            "phase_seconds",
            "Seconds that jobs spent enrolling, aligning (until all sites are ready), waiting for answers of sites, "
            "and computing or writing a checkpoint at the coordinator.",
            "phase",
            *kind,
        )
        self.refusals = made.counter(
            "refusals",
            "Jobs that failed because a site, or the coordinator, refused them by a rule; other: one that this version "
            "does not know.",
            "rule",
        )
        self.checkpoints = made.counter(
            "checkpoints", "Checkpoints of jobs, by whether they could be written: saved, failed.", "state"
        )
        self.resumed = made.counter("resumed", "Attempts that went on from a checkpoint.")
        self.connections = made.counter("connections", "Streams that sites have opened, and that were let in.")
        self.reconnects = made.counter("reconnects", "Those of sites that had been connected before.")
        self.streams_refused = made.counter("streams_refused", "Streams of sites that were refused or cut off.")
        self.bytes = made.counter(
            "bytes", "Bytes of messages, of sites and of operators, without what TLS and HTTP/2 add.", "direction"
        )
        self.store_failures = made.counter("store_failures", "Records of jobs that could not be written.")
        # Series that begin at zero: an alert on their growth must not miss the first.
        for state in ("saved", "failed"):
            self.checkpoints.labels(state)
        for rule in (*RULES, OTHER):
            self.refusals.labels(rule)
        for one in job_kinds():
            self.attempts.labels(*one)
            self.exchanges.labels(*one)
            for ended in ("done", "failed", "cancelled"):
                self.jobs_ended.labels(ended, *one)
        directions = ("in", "out")
        #: By direction, or by phase, model and mode.
        self._tallies: dict[tuple[str, ...], Tally] = {
            (direction,): Tally(self.bytes.labels(direction)) for direction in directions
        }
        self.received, self.sent = (self._tallies[direction,].add for direction in directions)
        made.before_each_scrape(self._count_tallies)
        self._clock = clock
        self._running: dict[str, _Job] = {}
        self._seen: set[str] = set()

    def show(self, census: Callable[[], Census], waiting: Callable[[], tuple[int, int]]) -> None:
        """From now on gauges show these numbers; `waiting`: frames in queues, and work for threads."""

        def look() -> None:
            self._gauges.set(census(), *waiting())
            for name, job in self._running.items():
                self._enter(name, job.phase)
            self._count_tallies()

        self.registry.before_each_scrape(look)

    def _count_tallies(self) -> None:
        for tally in self._tallies.values():
            tally.count()

    def happened(self, event: Event) -> None:
        """The machine has accepted an event; its instructions are not yet carried out."""
        match event:
            case SiteConnected(site=site):
                self.connections.inc()
                if site in self._seen:
                    self.reconnects.inc()
                self._seen.add(site)
            case Computed(job, epoch, result):
                self._computed(job, epoch, result)
            case CheckpointSaved():
                self.checkpoints.labels("saved").inc()
            case CheckpointNotSaved():
                self.checkpoints.labels("failed").inc()

    def carried_out(self, instruction: Instruction) -> None:
        """An instruction is being carried out, or waits for a thread."""
        if isinstance(instruction, _WORK):
            self._enter(instruction.job, COMPUTING)

    def _computed(self, name: str, epoch: int, result: object) -> None:
        job = self._running.get(name)
        if job is None or job.epoch != epoch:
            return
        self._enter(name, PHASES.get(job.state, job.phase))
        if isinstance(result, Aligned):
            job.exchanges = None
        elif isinstance(result, NextRound):
            if job.exchanges is not None:  # the first round of an alignment follows no exchange
                self.exchanges.labels(job.model, job.privacy).inc(max(result.exchanges - job.exchanges, 0))
            job.exchanges = result.exchanges
            if result.resumed_from is not None:
                self.resumed.inc()

    def saved(self, record: JobRecord) -> None:
        """A job has changed its state."""
        job = self._running.get(record.name)
        if job is not None:
            self._enter(record.name, job.phase)
            model, privacy = job.model, job.privacy
        else:
            definition = json.loads(record.definition)
            model, privacy = definition["model"], definition["privacy"]
        if record.ended:
            self._running.pop(record.name, None)
            self.jobs_ended.labels(record.state, model, privacy).inc()
            if record.rule:
                self.refusals.labels(known_rule(record.rule)).inc()
            return
        same_attempt = job is not None and job.epoch == record.epoch
        if record.state == "enrolling" and not same_attempt:
            self.attempts.labels(model, privacy).inc()
        if (phase := PHASES.get(record.state)) is not None:
            exchanges = job.exchanges if job is not None and same_attempt else None
            entry = _Job(model, privacy, record.state, record.epoch, phase, self._clock(), exchanges)
            self._running[record.name] = entry

    def not_saved(self, record: JobRecord) -> None:
        """A job has changed its state, and its record could not be written."""
        self.store_failures.inc()
        self.saved(record)

    def _enter(self, name: str, phase: str) -> None:
        """A job's phase ends now; the next one may be the same."""
        job, now = self._running.get(name), self._clock()
        if job is not None:
            spent = (job.phase, job.model, job.privacy)
            if spent not in self._tallies:
                self._tallies[spent] = Tally(self.phase_seconds.labels(*spent))
            self._tallies[spent].add(now - job.since)
            job.phase, job.since = phase, now
