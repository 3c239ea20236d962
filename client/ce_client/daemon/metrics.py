"""What a site's daemon counts. Nothing here names a job, an object, a column or a site: how many, and how long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ce.rules import RULES
from ce.service.metrics import NONE, OTHER, MetricsRegistry, known_rule
from ce_client.attempt.attempt import SiteAttempt
from ce_proto.v1 import site_pb2 as pb

PREFIX = "ce_client"
#: Of jobs that this daemon is in, and how those that it was in have ended.
STATES = ("offered", "asks", "running", "refused")
ENDS = ("done", "failed", "cancelled")


class SiteMetrics:
    """A site's instruments. May be used by several threads."""

    def __init__(self) -> None:
        made = self.registry = MetricsRegistry(PREFIX)
        self.connected = made.gauge("connected", "1: this site is connected to its coordinator; 0: it is not.")
        self.connections = made.counter("connections", "Times that the coordinator has let this site in.")
        self.reconnects = made.counter("reconnects", "Those after the first.")
        self.jobs = made.gauge(
            "jobs",
            "Jobs that this site is in, by their state here: offered, asks (waits for approval), running, refused "
            "(until the coordinator says that it is over).",
            "state",
        )
        self.jobs_ended = made.counter("jobs_ended", "Jobs that ended, by what the coordinator said.", "state")
        self.attempts = made.counter("attempts", "Attempts at jobs (epochs) that were offered.")
        self.rounds = made.counter("rounds", "Rounds that this site has answered; one that is repeated counts once.")
        self.computing_seconds = made.counter("computing_seconds", "Seconds of work on messages of jobs.")
        self.refusals = made.counter(
            "refusals",
            "Attempts that this site has refused, by the rule; none: because of an error and not by a rule.",
            "rule",
        )
        self.checkpoints = made.counter(
            "checkpoints", "Checkpoints of jobs, by whether they were kept: kept, not_kept.", "state"
        )
        self.bytes = made.counter(
            "bytes", "Bytes of messages to and from the coordinator, without what TLS and HTTP/2 add.", "direction"
        )
        # Series that begin at nought: an alert on their growth must not miss the first.
        self.kept, self.not_kept = (self.checkpoints.labels(state) for state in ("kept", "not_kept"))
        for state in ENDS:
            self.jobs_ended.labels(state)
        for rule in (*RULES, OTHER, NONE):
            self.refusals.labels(rule)
        self.received, self.sent = (self.bytes.labels(direction).inc for direction in ("in", "out"))

    def show(self, states: Callable[[], list[str]]) -> None:
        """From now on gauges show these jobs."""

        def look() -> None:
            counted = Counter(states())
            for state in STATES:
                self.jobs.labels(state).set(counted[state])

        self.registry.before_each_scrape(look)

    def welcomed(self, before: bool) -> None:
        """The site is connected; `before`: not for the first time."""
        self.connected.set(1)
        self.connections.inc()
        if before:
            self.reconnects.inc()

    def ended(self, state: str) -> None:
        """The coordinator says that a job is over, or, in another word than those, that it is not."""
        if state in ENDS:
            self.jobs_ended.labels(state).inc()

    def receive(self, site_attempt: SiteAttempt, kind: str, message: Any) -> Iterator[pb.SiteFrame]:
        """Let a participant work on a message, and count what comes of it."""
        begin = time.perf_counter()
        rounds, kept, not_kept = site_attempt.rounds_answered, site_attempt.checkpoint_round, site_attempt.not_kept
        refused = site_attempt.refusal is not None
        frames = site_attempt.receive(kind, message)
        self.computing_seconds.inc(time.perf_counter() - begin)
        if kind != "offer":  # which brings back what was answered in earlier attempts
            self.rounds.inc(site_attempt.rounds_answered - rounds)
        if site_attempt.checkpoint_round > kept:
            self.kept.inc()
        self.not_kept.inc(site_attempt.not_kept - not_kept)
        if site_attempt.refusal is not None and not refused:
            self.refusals.labels(known_rule(getattr(site_attempt.refusal, "rule", ""))).inc()
        return frames
