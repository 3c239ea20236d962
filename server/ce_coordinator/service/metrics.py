"""What the coordinator counts. The conductor tells it what it carries out; the brain knows nothing of it.

Nothing here names a site or a job: how many, and how long.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import NamedTuple, get_args

from ce.job import MODELS, PRIVACY
from ce.rules import RULES
from ce.service.metrics import OTHER, MetricsRegistry, known_rule
from ce_coordinator.core.attempt_rounds import AttemptRounds, NextRound
from ce_coordinator.core.machine import Machine
from ce_coordinator.core.records import JobRecord, JobState

PREFIX = "ce_coordinator"
#: What a job does in each state, unless it computes.
PHASES: dict[JobState, str] = {"enrolling": "enrolling", "aligning": "aligning", "running": "waiting"}
COMPUTING = "computing"


class _Job(NamedTuple):
    """A job under way: what kind it is, what it does, and since when."""

    model: str
    privacy: str
    state: JobState
    epoch: int
    phase: str
    since: float


class CoordinatorMetrics:
    """The coordinator's instruments."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        made = self.registry = MetricsRegistry(PREFIX)
        kind = ("model", "privacy")
        self.jobs = made.gauge("jobs", "Jobs that the coordinator knows, by their state.", "state")
        self.jobs_waiting = made.gauge("jobs_waiting", "Jobs that wait in line until others have ended.")
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
            "and computing at the coordinator.",
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
            "checkpoints", "Checkpoints of jobs, by whether they were kept: kept, not_kept.", "state"
        )
        self.resumed = made.counter("resumed", "Attempts that went on from a checkpoint.")
        self.sites_known = made.gauge("sites_known", "Sites that have a certificate or have connected.")
        self.sites_connected = made.gauge("sites_connected", "Sites that are connected.")
        self.sites_awaited = made.gauge("sites_awaited", "Sites, connected or not, that a job waits for.")
        self.connections = made.counter("connections", "Streams that sites have opened, and that were let in.")
        self.reconnects = made.counter("reconnects", "Those of sites that had been connected before.")
        self.streams_refused = made.counter("streams_refused", "Streams of sites that were refused or cut off.")
        self.bytes = made.counter(
            "bytes", "Bytes of messages, of sites and of operators, without what TLS and HTTP/2 add.", "direction"
        )
        self.frames_waiting = made.gauge("frames_waiting", "Entries in the queues of what waits to go to sites.")
        self.computations = made.gauge("computations", "Large computations under way, or waiting for a thread.")
        self.store_failures = made.counter("store_failures", "Records of jobs that the disk did not take.")
        # Series that begin at nought: an alert on their growth must not miss the first.
        for state in ("kept", "not_kept"):
            self.checkpoints.labels(state)
        for rule in (*RULES, OTHER):
            self.refusals.labels(rule)
        for one in product(MODELS, PRIVACY):
            self.attempts.labels(*one)
            self.exchanges.labels(*one)
            for ended in ("done", "failed", "cancelled"):
                self.jobs_ended.labels(ended, *one)
        self.received, self.sent = (self.bytes.labels(direction).inc for direction in ("in", "out"))
        self._clock = clock
        self._under_way: dict[str, _Job] = {}
        self._counted: dict[str, tuple[AttemptRounds, int]] = {}  # exchanges of the rounds that a job is in
        self._seen: set[str] = set()

    def show(self, machine: Machine, waiting: Callable[[], tuple[int, int]]) -> None:
        """From now on gauges show this machine; `waiting`: frames in queues, and large computations."""

        def look() -> None:
            states = Counter(record.state for record in machine.records.values())
            for state in get_args(JobState):
                self.jobs.labels(state).set(states[state])
            self.jobs_waiting.set(sum(not r.ended for r in machine.records.values()) - len(machine.runs))
            self.sites_known.set(len(machine.sites))
            self.sites_connected.set(len(machine.connections))
            self.sites_awaited.set(len(set().union(*(run.awaited for run in machine.runs.values()))))
            frames, computations = waiting()
            self.frames_waiting.set(frames)
            self.computations.set(computations)
            for name, job in self._under_way.items():
                self._enter(name, job.phase)

        self.registry.before_each_scrape(look)

    def connected(self, site: str) -> None:
        self.connections.inc()
        if site in self._seen:
            self.reconnects.inc()
        self._seen.add(site)

    def computing(self, job: str) -> None:
        """The work of a `Compute` begins, or waits for a thread."""
        self._enter(job, COMPUTING)

    def computed(self, machine: Machine, job: str, epoch: int, result: object) -> None:
        """The work of a `Compute` is done; before the machine is told."""
        known, run = self._under_way.get(job), machine.runs.get(job)
        if known is None or run is None or run.epoch != epoch:
            return
        self._enter(job, PHASES.get(known.state, known.phase))
        if not isinstance(result, NextRound) or run.rounds is None:
            return
        rounds, exchanges = run.rounds, run.rounds.exchanges
        former, counted = self._counted.get(job, (None, 0))
        if former is rounds:  # its first result is that of no exchange
            self.exchanges.labels(known.model, known.privacy).inc(max(exchanges - counted, 0))
        self._counted[job] = (rounds, exchanges)
        if result.kept or result.not_kept:
            self.checkpoints.labels("kept" if result.kept else "not_kept").inc()
        if result.resumed is not None:
            self.resumed.inc()

    def saved(self, record: JobRecord) -> None:
        """A job has changed its state."""
        known = self._under_way.get(record.name)
        if known is not None:
            self._enter(record.name, known.phase)
            model, privacy = known.model, known.privacy
        else:
            definition = json.loads(record.definition)
            model, privacy = definition["model"], definition["privacy"]
        if record.ended:
            self._under_way.pop(record.name, None)
            self._counted.pop(record.name, None)
            self.jobs_ended.labels(record.state, model, privacy).inc()
            if record.rule:
                self.refusals.labels(known_rule(record.rule)).inc()
            return
        if record.state == "enrolling" and (known is None or known.epoch != record.epoch):
            self.attempts.labels(model, privacy).inc()
        if (phase := PHASES.get(record.state)) is not None:
            self._under_way[record.name] = _Job(model, privacy, record.state, record.epoch, phase, self._clock())

    def _enter(self, job: str, phase: str) -> None:
        """What a job did until now is over; it may go on with the same."""
        known, now = self._under_way.get(job), self._clock()
        if known is not None:
            self.phase_seconds.labels(known.phase, known.model, known.privacy).inc(now - known.since)
            self._under_way[job] = known._replace(phase=phase, since=now)
