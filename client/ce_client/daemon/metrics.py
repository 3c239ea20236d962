"""The metrics of a site's daemon: how many, and how long. No metric names a job, an object, a column or a site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ce.rules import RULES
from ce.service.metrics import NONE, OTHER, MetricsRegistry, known_rule
from ce_client.state.job_index import AWAITING_CONSENT

PREFIX = "ce_client"
#: States of jobs that this daemon is in.
STATES = ("offered", AWAITING_CONSENT, "running", "refused")
#: States in which jobs end.
ENDS = ("done", "failed", "cancelled")


class MessageOutcome(NamedTuple):
    """What came of one message to an attempt."""

    seconds: float
    rounds: int  # answered, 0 or 1
    saved_checkpoints: int
    failed_checkpoints: int
    refused_by: str | None  # None: not refused by this message; "": because of an error and not by a rule


class SiteMetrics:
    """A site's instruments. Several threads may use them."""

    def __init__(self) -> None:
        registry = self.registry = MetricsRegistry(PREFIX)
        self.connected = registry.gauge("connected", "1: this site is connected to its coordinator; 0: it is not.")
        self.connections = registry.counter("connections", "Times that the coordinator has accepted this site.")
        self.reconnects = registry.counter("reconnects", "Those after the first.")
        self.jobs = registry.gauge(
            "jobs",
            f"Jobs that this site is in, by their state here: offered, {AWAITING_CONSENT} (ce-client approve or "
            "decline), running, refused (until the coordinator ends it).",
            "state",
        )
        self.jobs_ended = registry.counter("jobs_ended", "Jobs that ended, by the coordinator's word for it.", "state")
        self.attempts = registry.counter("attempts", "Attempts at jobs (epochs) that were offered.")
        self.rounds = registry.counter(
            "rounds", "Rounds that this site has answered; one that is repeated counts once."
        )
        self.computing_seconds = registry.counter("computing_seconds", "Seconds of work on messages of jobs.")
        self.refusals = registry.counter(
            "refusals",
            "Attempts that this site has refused, by the rule; none: because of an error and not by a rule.",
            "rule",
        )
        self.checkpoints = registry.counter(
            "checkpoints", "Checkpoints of jobs, by whether they could be written: saved, failed.", "state"
        )
        self.bytes = registry.counter(
            "bytes", "Bytes of messages to and from the coordinator, without what TLS and HTTP/2 add.", "direction"
        )
        # Series that begin at 0: an alert on their growth must not miss the first event.
        self._saved, self._failed = (self.checkpoints.labels(state) for state in ("saved", "failed"))
        for state in ENDS:
            self.jobs_ended.labels(state)
        for rule in (*RULES, OTHER, NONE):
            self.refusals.labels(rule)
        self.received, self.sent = (self.bytes.labels(direction).inc for direction in ("in", "out"))

    def show_jobs(self, states: Callable[[], list[str]]) -> None:
        """Set the gauge of jobs from these states before each scrape."""

        def count() -> None:
            counted = Counter(states())
            for state in STATES:
                self.jobs.labels(state).set(counted[state])

        self.registry.before_each_scrape(count)

    def welcomed(self, before: bool) -> None:
        """The site is connected; `before`: not for the first time."""
        self.connected.set(1)
        self.connections.inc()
        if before:
            self.reconnects.inc()

    def ended(self, state: str) -> None:
        """The coordinator says in which state a job ended; other words mean that it will be offered again."""
        if state in ENDS:
            self.jobs_ended.labels(state).inc()

    def processed(self, outcome: MessageOutcome) -> None:
        """A message of a job was processed."""
        self.computing_seconds.inc(outcome.seconds)
        self.rounds.inc(outcome.rounds)
        if outcome.saved_checkpoints or outcome.failed_checkpoints:
            self._saved.inc(outcome.saved_checkpoints)
            self._failed.inc(outcome.failed_checkpoints)
        if outcome.refused_by is not None:
            self.refusals.labels(known_rule(outcome.refused_by)).inc()
