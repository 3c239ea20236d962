"""One attempt at a job at the coordinator: its setup, the letters of the sites, its rounds.

The same parts as at a site (ce_client.attempt): `AttemptSetup` until all sites have enrolled, `LetterRelay` while they
write to each other, `AttemptRounds` from the alignment on; after a later enrolment letters and alignment come again.
This module passes each frame to the part that it belongs to, and says which computation or checkpoint comes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from ce.errors import JobFailed, MessageError
from ce.job import Job
from ce.protocol.attempt import MOST_REVISIONS, Attempt
from ce.protocol.engine.aggregator import Progress
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.keys.handshake import refuse_different_keys
from ce.protocol.topology.topology import refuse_clashing_columns
from ce.service.checkpoint_id import CHECKPOINTS_PER_JOB, CheckpointId
from ce.transport.frames import Frame
from ce_coordinator.core.attempt_rounds import Aligned, AttemptRounds, CheckpointDue, NextRound, Work
from ce_coordinator.core.attempt_setup import AttemptSetup
from ce_coordinator.core.checkpoint_schedule import CheckpointSchedule
from ce_coordinator.core.instructions import (
    Changed,
    Compute,
    Instruction,
    LoadCheckpoint,
    Note,
    SaveCheckpoint,
    Send,
)
from ce_coordinator.core.letter_relay import LetterRelay
from ce_coordinator.core.limits import JobSettings
from ce_coordinator.core.modes.job_mode import JobMode
from ce_coordinator.core.modes.sealed_rounds import SealedRounds
from ce_coordinator.core.site_directory import SiteDirectory
from ce_proto.v1 import site_pb2 as pb

#: Exchanges per second are measured over this many seconds ...
RATE_WINDOW_S = 2.0
#: ... or over this many exchanges.
MOST_EXCHANGE_TIMES = 1000


@dataclass
class Trace:
    """The progress of an attempt, as an operator watches it."""

    iteration: int = 0
    max_iterations: int = 0
    starts_running: int = 0
    bound_path: list[float] = field(default_factory=list)

    def progress(self, where: Progress) -> None:
        self.iteration, self.max_iterations, self.starts_running = where.iteration, where.max_iter, where.running
        if where.has_bound:
            self.bound_path.append(where.bound)


class ExchangeRate:
    """How many exchanges there are per second."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, int]] = deque(maxlen=MOST_EXCHANGE_TIMES)

    def add(self, now: float, exchanges: int) -> None:
        """So many have been finished."""
        self._times.append((now, exchanges))

    def per_s(self, now: float) -> float:
        # The last two stay, however old they are: exchanges that take longer than the window have a rate, too.
        times = self._times
        while len(times) > 2 and times[1][0] < now - RATE_WINDOW_S:
            times.popleft()
        if len(times) < 2:
            return 0.0
        (begin, first), (_, last) = times[0], times[-1]
        return (last - first) / max(now - begin, 1e-3)


class JobAttempt:
    """Every method is an event and returns instructions; MessageError and other errors are the caller's to handle."""

    def __init__(
        self,
        attempt: Attempt,
        job: Job,
        mode: JobMode,
        settings: JobSettings,
        directory: SiteDirectory,
        now: float,
    ) -> None:
        self.trace = Trace()
        self.setup = AttemptSetup(attempt, mode.uses_votes, settings.limits)
        self.letters: LetterRelay | None = None
        self.rounds: AttemptRounds | None = None
        self._attempt, self._job, self._mode = attempt, job, mode
        self._settings, self._directory = settings, directory
        self._schedule = CheckpointSchedule(settings.checkpoint_interval, now)
        self.rate = ExchangeRate()

    # State.

    @property
    def awaited(self) -> set[str]:
        """The sites that have to send something before the attempt can continue."""
        if self.rounds is not None:
            return set(self.rounds.awaited)
        return self.setup.awaited if self.letters is None else self.letters.awaited

    @property
    def all_enrolled(self) -> bool:
        """Whether every site has enrolled: the sites write to each other and are aligned, and rounds follow."""
        return self.letters is not None

    @property
    def checkpoint_pending(self) -> bool:
        """Whether a requested checkpoint is not yet at all sites."""
        return self.rounds is not None and self._with_checkpoints and self._schedule.pending

    @property
    def _with_checkpoints(self) -> bool:
        """False if the job has none, or the software of a site writes none: then no site is asked for one."""
        return self._mode.has_checkpoints and not self._directory.any_lacks(
            pb.FEATURE_CHECKPOINTS, self._attempt.roster
        )

    @property
    def sealed(self) -> SealedRounds | None:
        """The rounds of a sealed job, once its sites are aligned."""
        return self.rounds if isinstance(self.rounds, SealedRounds) else None

    def report(self, left_behind: tuple[str, ...]) -> bytes:
        """The operator's result of a finished attempt."""
        assert self.rounds is not None
        wishes = {**self.setup.min_clusters, "": self._settings.min_cluster}
        return self._mode.report(self.rounds, self.setup.exclusions, wishes, left_behind)

    def participation(self) -> dict[str, str | int | float]:
        """For the log: how many objects of how many took part, and which rules left out others."""
        assert self.rounds is not None
        return self.setup.exclusions.as_fields(self.rounds.topology.sizes.objects)

    # Streams.

    def offer(self) -> list[Instruction]:
        """The job is offered to all sites that are connected."""
        return [self._send(site, [self.setup.offer()]) for site in self._connected]

    def reconnected(self, site: str) -> list[Instruction]:
        """A site has another stream: it is sent what it may have missed."""
        parts = [part for part in (self.letters or self.setup, self.rounds) if part is not None]
        if self.rounds is not None and self.rounds.begun:
            parts = [self.rounds]
        frames = chain.from_iterable(part.frames_after_reconnect(site) for part in parts)
        return [self._send(site, frames), Changed(self._job.name)]

    def received(self, site: str, fingerprint: str, kind: str, message: Any, now: float) -> list[Instruction]:
        """A frame of this attempt."""
        if self.letters is None:
            return self._received_in_setup(site, fingerprint, kind, message)
        if self.rounds is None:
            return self._received_in_letters(self.letters, site, kind, message)
        return self._received_in_rounds(self.letters, self.rounds, site, kind, message, now)

    def go_on_without(self, sealed: SealedRounds, sites: Collection[str], now: float) -> list[Instruction]:
        """A sealed job whose tables are opened goes on without all sites that it waits for."""
        sealed.stop(sites)
        return self._all_answered(sealed, now)

    # Computations and checkpoints.

    def aligned(self, result: Aligned) -> list[Instruction]:
        """The sites are aligned: each is sent what it shares with which others."""
        self.setup.exclusions.aligned(result.topology.sizes.objects)
        rounds = self.rounds = self._mode.rounds(self._attempt, result, self.setup.signed, self.setup.revision)
        self.setup.aligned = True
        return [self._send(site, rounds.alignment(site)) for site in self._connected]

    def request_checkpoint(self) -> None:
        """A process is about to stop."""
        self._schedule.request()

    def checkpoint_due(self, due: CheckpointDue) -> list[Instruction]:
        """The coordinator's own checkpoint is saved before any site is asked for one: an announced one exists."""
        assert self.rounds is not None
        where = (self._job.name, self._attempt.epoch, self.rounds.checkpoint_context)
        return [SaveCheckpoint(*where, due.checkpoint_id, due.snapshot)]

    def checkpoint_saved(self) -> list[Instruction]:
        assert self.rounds is not None
        return [self._compute(self.rounds, self.rounds.make_tasks(with_checkpoint=True))]

    def checkpoint_not_saved(self, reason: str) -> list[Instruction]:
        """The attempt continues without it."""
        assert self.rounds is not None
        event = "checkpoint not saved; after a restart the job would go on from an older one"
        note = Note("warning", event, {"job": self._job.name, "reason": reason})
        return [note, self._compute(self.rounds, self.rounds.make_tasks(with_checkpoint=False))]

    def checkpoint_loaded(self, checkpoint_id: CheckpointId | None, snapshot: Snapshot) -> list[Instruction]:
        """The newest checkpoint that all have; None: the attempt begins at the beginning."""
        assert self.rounds is not None
        return [self._compute(self.rounds, self.rounds.open(checkpoint_id, snapshot))]

    def next_round(self, following: NextRound, now: float) -> list[Instruction] | None:
        """A round begins; its instructions. None: there is none, the job is done."""
        rounds = self.rounds
        assert rounds is not None
        if not rounds.begin(following):
            return None
        if rounds.iterates and self.letters is not None:
            self.setup.forget_objects()
            self.letters.forget()
        self._schedule.round_begun(now, rounds.exchanges, following.with_checkpoint)
        self.rate.add(now, rounds.exchanges)
        if following.resumed_from is not None:
            self.trace.bound_path = list(rounds.bound_path)
        tasks = [self._send(site, frames) for site, frames in rounds.tasks(self._connected)]
        return [*_notes(self._job.name, rounds, following), *tasks, Changed(self._job.name)]

    # How.

    def _received_in_setup(self, site: str, fingerprint: str, kind: str, message: Any) -> list[Instruction]:
        setup, changed = self.setup, Changed(self._job.name)
        match kind:
            case "key_share":
                relayed = setup.share_key(site, fingerprint, message)
            case "encrypted_keys":
                relayed = setup.relay_keys(site, message)
            case "enrolment" | "more":
                if self.setup.receive_enrolment(site, kind, message) and setup.complete:
                    return self._introduce()
                return [changed]
            case _:
                raise MessageError(f"{kind}: comes before the sites are aligned")
        return [*(self._send(to, [frame]) for to, frame in relayed if to in self._directory.sessions), changed]

    def _introduce(self) -> list[Instruction]:
        """Every site is sent what all have enrolled; then they write to each other."""
        setup, self.rounds = self.setup, None
        setup.aligned = False
        refuse_clashing_columns(setup.enrolments)
        refuse_different_keys(self._attempt, {site: setup.signed[site][0] for site in self._attempt.roster})
        lists, rooms = self._mode.lists, self._settings.rooms
        relay = self.letters = LetterRelay(self._attempt, setup.signed, setup.revision, lists, rooms)
        return [*(self._send(site, relay.introduction()) for site in self._connected), Changed(self._job.name)]

    def _received_in_letters(self, relay: LetterRelay, site: str, kind: str, message: Any) -> list[Instruction]:
        complete, changed = False, Changed(self._job.name)
        match kind:
            case "letters":
                complete = relay.receive(site, message)
            case "more" if relay.is_writing(site):
                complete = relay.more(site, message.chunks)
            case "enrolment" | "more":  # may be repeated after a broken stream
                self.setup.receive_enrolment(site, kind, message)
            case "key_share" | "encrypted_keys" | "ready":  # so may these
                return []
            case _:
                raise MessageError(f"{kind}: comes before the sites are aligned")
        if not complete:
            return [changed]
        sent = [self._send(to, relay.letters(to, relay.stage - 1)) for to in self._connected]
        return [*sent, self._align(relay), changed] if relay.complete else [*sent, changed]

    def _received_in_rounds(
        self, relay: LetterRelay, rounds: AttemptRounds, site: str, kind: str, message: Any, now: float
    ) -> list[Instruction]:
        if kind == "answer":  # by far the most frames
            return self._all_answered(rounds, now) if rounds.answer(site, message) else []
        complete, changed = False, [Changed(self._job.name)]
        match kind:
            case "ready":
                self.setup.exclude(site, message)
                complete = rounds.ready(site, message.revision, read_checkpoints(message))
            case "enrolment":
                complete = self.setup.receive_enrolment(site, kind, message) and rounds.amend(site)
            case "more" if self.setup.is_enrolling(site):
                complete = self.setup.receive_enrolment(site, kind, message) and rounds.amend(site)
            case "letters":  # may be repeated after a broken stream
                relay.receive(site, message)
            case "more" if relay.is_writing(site):
                relay.more(site, message.chunks)
            case "more":
                complete, changed = rounds.more(site, message.chunks), []
            case "key_share" | "encrypted_keys":  # may be repeated after a broken stream
                changed = []
            case _:
                raise MessageError(f"{kind}: the sites are aligned already")
        return self._all_answered(rounds, now) if complete else [*changed]

    def _all_answered(self, rounds: AttemptRounds, now: float) -> list[Instruction]:
        """All sites have answered the alignment or the round."""
        if rounds.amended:
            self.setup.revision += 1
            if self.setup.revision > MOST_REVISIONS:
                raise JobFailed(
                    f"after {MOST_REVISIONS} alignments the sites still leave out objects or columns: their policies' "
                    "minimums do not fit their objects"
                )
            return self._introduce()
        rounds.begin_computing()
        if rounds.begun:
            due = self._with_checkpoints and self._schedule.due(now, rounds.exchanges)
            return [replace(self._compute(rounds, rounds.advance(due)), at_once=rounds.advances_at_once)]
        if self._with_checkpoints and rounds.common_checkpoints:
            job, epoch, context = self._job.name, self._attempt.epoch, rounds.checkpoint_context
            return [LoadCheckpoint(job, epoch, context, rounds.common_checkpoints)]
        return [self._compute(rounds, rounds.open())]

    def _align(self, relay: LetterRelay) -> Compute:
        """Who shares what, from all enrolments."""
        enrolments, most_bytes = self.setup.enrolments, self._settings.limits.round_bytes
        given = (self._attempt, enrolments, relay.vocabularies, self.trace.progress, most_bytes)
        size = sum(len(enrolment.objects) for enrolment in enrolments.values())
        return Compute(self._job.name, self._attempt.epoch, size, partial(self._mode.align, *given))

    def _compute(self, rounds: AttemptRounds, work: Work) -> Compute:
        return Compute(self._job.name, self._attempt.epoch, rounds.size, work)

    def _send(self, site: str, frames: Iterable[Frame]) -> Send:
        return Send(self._directory.sessions[site], frames, self._job.name)

    @property
    def _connected(self) -> list[str]:
        return [site for site in self._attempt.roster if site in self._directory.sessions]


def _notes(job: str, rounds: AttemptRounds, following: NextRound) -> list[Instruction]:
    """What the log says when a round begins."""
    notes: list[Instruction] = [
        Note("warning", "a site was sent other totals than the first site", {"job": job, "site": site})
        for site in rounds.diverged
    ]
    if following.resumed_from is not None:
        named: dict[str, str | int | float] = {"job": job, "round": following.resumed_from.round}
        notes.append(Note("info", "job goes on from a checkpoint", named))
    return notes


def read_checkpoints(message: pb.Ready) -> list[CheckpointId]:
    """The checkpoints that a site could resume from."""
    count = len(message.checkpoints)
    if count > CHECKPOINTS_PER_JOB:
        raise MessageError(f"checkpoints: expected at most {CHECKPOINTS_PER_JOB}, got {count:,}")
    return [CheckpointId(entry.origin, entry.round) for entry in message.checkpoints]
