"""One job that has not ended: its state, which sites it waits for and until when, and what each event leads to.

    submitted -> enrolling -> aligning -> running -> done
                 (any of these) -> failed, cancelled

An *attempt* is one try at the job; its number is the *epoch*. When a site, or the coordinator, has lost its state of
the job, another attempt begins with the same sites. It resumes from the newest checkpoint that all have, or begins at
the beginning, and ends with the same bits. Only where the job says on_dropout = "continue" does it continue without a
site that does not answer, and then from the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from ce.errors import CeError, InputError, JobFailed, LimitReached, MessageError, Refused
from ce.job import Job
from ce.protocol.attempt import Attempt
from ce.protocol.engine.snapshots import Snapshot
from ce.service.checkpoint_id import CheckpointId
from ce.transport.frames import Frame, one_line
from ce_coordinator.core.attempt import JobAttempt
from ce_coordinator.core.attempt_rounds import Aligned, CheckpointDue, NextRound
from ce_coordinator.core.instructions import (
    Changed,
    Close,
    Instruction,
    Note,
    RemoveCheckpoints,
    SaveJob,
    Send,
)
from ce_coordinator.core.limits import JobSettings, Limits
from ce_coordinator.core.modes.choice import missing_feature, mode_of, unfit_roster
from ce_coordinator.core.modes.dropout import cannot_go_on, listed
from ce_coordinator.core.records import JobRecord, JobState
from ce_coordinator.core.site_directory import SiteDirectory
from ce_proto.v1 import site_pb2 as pb

#: A site that sends a message that it must not send is disconnected and may reconnect; this often, then the job fails.
STRIKES = 3


class JobRun:
    """A job that runs. Every method is an event and returns instructions."""

    def __init__(self, record: JobRecord, settings: JobSettings, directory: SiteDirectory) -> None:
        """`directory`: of all sites; the machine changes it."""
        self.record = record
        self.job = Job.from_definition(record.definition)
        #: The sites that take part, by name: all of the job's, except those that it has left behind.
        self.roster = tuple(sorted(set(self.job.sites) - set(record.left_behind)))
        self.attempt: JobAttempt | None = None
        self._mode = mode_of(self.job, settings.rooms)
        self._opened = False  # sealed: shares of an attempt may have been opened
        self._settings = settings
        self._directory = directory
        self._waits_since = record.changed_at
        self._strikes: dict[str, int] = {}
        self._lost: dict[str, int] = {}  # by site: how often it came without its state of an attempt that had begun

    # State.

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def awaited(self) -> set[str]:
        """The sites that have to send something before the job can continue."""
        return set() if self.attempt is None else self.attempt.awaited

    @property
    def deadline(self) -> float:
        """When the job stops waiting: it then fails, or continues without the awaited sites."""
        deadlines = self.job.deadlines
        end = self.record.submitted_at + deadlines.job_s
        if self._waits_for_ever:
            return end
        if self.record.state in ("enrolling", "aligning"):
            end = min(end, self._waits_since + deadlines.enrol_s)
        elif self.record.state == "running":
            end = min(end, self._waits_since + deadlines.round_s)
        return end

    @property
    def _waits_for_ever(self) -> bool:
        """Sites that have once begun are waited for until job_s if the job says "wait"; others, until enrol_s."""
        return self.job.on_dropout == "wait" and self._has_begun

    @property
    def _has_begun(self) -> bool:
        return self.record.state == "running" or self.epoch > 1

    @property
    def checkpoint_pending(self) -> bool:
        """Whether a requested checkpoint is not yet at all sites."""
        return self.attempt is not None and self.attempt.checkpoint_pending

    @property
    def absent(self) -> frozenset[str]:
        """Sealed: sites that have stayed away since the tables were opened, and that are not waited for any more."""
        sealed = None if self.attempt is None else self.attempt.sealed
        return frozenset() if sealed is None else sealed.absent

    # Events.

    def begin(self, now: float) -> list[Instruction]:
        """Start an attempt: the first, or the next one."""
        if (unfit := unfit_roster(self.job, self._directory, self.roster)) is not None:
            return self.fail(unfit, now)
        epoch = self.epoch + 1
        attempt = Attempt(self.job.name, self.record.definition, epoch, self.roster)
        self.attempt = JobAttempt(attempt, self.job, self._mode, self._settings, self._directory, now)
        self._waits_since = now
        return [*self._save("enrolling", now, epoch=epoch), *self.attempt.offer()]

    def request_checkpoint(self) -> None:
        """Request a checkpoint at the next iteration; a process is shutting down."""
        if self.attempt is not None:
            self.attempt.request_checkpoint()

    def connected(self, site: str, held_epoch: int | None, now: float) -> list[Instruction]:
        """A site of the roster has opened a stream; `held_epoch`: the attempt at this job that it has state of."""
        if self.attempt is None:
            return []
        if (refused := missing_feature(self.job, self._directory, [site])) is not None:
            return self.fail(refused, now)
        if site in self.absent:
            return []  # is told at the end that the job went on without it
        if held_epoch == self.epoch or not self.attempt.setup.has_begun(site):
            return self.attempt.reconnected(site)
        self._lost[site] = self._lost.get(site, 0) + 1
        if (lost := _lost_too_often(site, self._lost[site], self.epoch, self._settings.limits)) is not None:
            return self.fail(lost, now)
        note = Note("warning", "job begins again: a site has lost its state", {"job": self.job.name, "site": site})
        return [note, *self.begin(now)]

    def disconnected(self) -> list[Instruction]:
        """A site of the roster has lost its stream: it is waited for until the deadline."""
        return [Changed(self.job.name)]

    def received(self, site: str, fingerprint: str, kind: str, message: Any, now: float) -> list[Instruction]:
        """A frame of this job and epoch."""
        try:
            if kind == "refusal":
                return self._refused(site, message, now)
            if self.attempt is None:
                raise MessageError(f"{kind}: this job has not begun")
            steps = self.attempt.received(site, fingerprint, kind, message, now)
            if self.attempt.all_enrolled and self.attempt.rounds is None:
                return [*self._enter("aligning", now), *steps]
            return steps
        except MessageError as error:
            return self._strike(site, error, now)
        except CeError as error:
            return self.fail(error, now)

    def computed(self, result: Any, now: float) -> list[Instruction]:
        """The work of a `Compute` has returned a result, or raised the exception that is in its place."""
        assert self.attempt is not None
        match result:
            case Aligned():
                return self.attempt.aligned(result)
            case CheckpointDue():
                return self.attempt.checkpoint_due(result)
            case NextRound():
                return self._next_round(self.attempt, result, now)
            case CeError():
                return self.fail(result, now)
            case MemoryError():
                reason = "the coordinator has not enough memory for this job: fewer restarts or clusters need less"
                return self.fail(JobFailed(reason), now)
            case _:
                return self.fail(JobFailed("an unexpected error at the coordinator; its log says more"), now)

    def checkpoint_saved(self) -> list[Instruction]:
        """The coordinator's checkpoint is on the disk: now the sites are asked for theirs."""
        assert self.attempt is not None
        return self.attempt.checkpoint_saved()

    def checkpoint_not_saved(self, reason: str) -> list[Instruction]:
        """The coordinator's checkpoint could not be written: the job continues without it."""
        assert self.attempt is not None
        return self.attempt.checkpoint_not_saved(reason)

    def checkpoint_loaded(self, checkpoint_id: CheckpointId | None, snapshot: Snapshot) -> list[Instruction]:
        """The newest checkpoint that all have was read; None: there is none."""
        assert self.attempt is not None
        return self.attempt.checkpoint_loaded(checkpoint_id, snapshot)

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed."""
        if now < self.deadline:
            return []
        in_time = now < self.record.submitted_at + self.job.deadlines.job_s
        if in_time and self.job.on_dropout == "continue" and self._has_begun:
            assert self.attempt is not None
            return self._go_on_without(self.attempt, now)
        return self.fail(_late(self.job, self.record.state, listed(sorted(self.awaited)) or "no site", in_time), now)

    def record_not_saved(self, error: CeError, now: float) -> list[Instruction]:
        """A state could not be written, and so was not announced. The job fails; connected sites are told."""
        self.fail(error, now)
        return self._announce_end()

    def fail(self, error: CeError, now: float) -> list[Instruction]:
        rule = error.rule if isinstance(error, Refused) else ""
        # A job that exceeds a limit would exceed it again: the input is at fault, not the connection.
        code = InputError.exit_code if isinstance(error, LimitReached) else error.exit_code
        return self._end("failed", now, reason=str(error), rule=rule, exit_code=code)

    def cancel(self, operator: str, now: float) -> list[Instruction]:
        return self._end("cancelled", now, reason=f"cancelled by {operator}", exit_code=8)

    # How.

    def _next_round(self, attempt: JobAttempt, following: NextRound, now: float) -> list[Instruction]:
        steps = attempt.next_round(following, now)
        if steps is None:
            note = Note("info", "objects of the job", {"job": self.job.name, **attempt.participation()})
            absent = tuple(sorted(self.absent))
            self._leave_behind(absent)
            ended = self._end("done", now, result=attempt.report(self.record.left_behind))
            return [note, *ended, *self._announce(left_behind_frame(self.record), absent)]
        self._waits_since = now
        self._opened |= attempt.sealed is not None and attempt.sealed.opened
        return [*self._enter("running", now), *steps]

    def _go_on_without(self, attempt: JobAttempt, now: float) -> list[Instruction]:
        """Without the sites that did not answer: a sealed job whose tables are opened stops their blocks, any other
        begins again. The policy of each other site says whether it agrees."""
        absent = sorted(self.awaited)
        if not absent:  # the coordinator itself is computing
            self._waits_since = now
            return []
        if (reason := cannot_go_on(absent, self.roster, attempt.sealed, self._opened)) is not None:
            return self.fail(reason, now)
        note = Note("warning", "job goes on without a site", {"job": self.job.name, "site": ", ".join(absent)})
        if attempt.sealed is not None and attempt.sealed.stoppable:
            self._waits_since = now
            return [note, *attempt.go_on_without(attempt.sealed, absent, now)]
        self._leave_behind(absent)
        announced = self._announce(left_behind_frame(self.record), absent)
        saved, *begun = self.begin(now)
        return [saved, note, *announced, *begun]

    def _leave_behind(self, sites: Collection[str]) -> None:
        self.record = replace(self.record, left_behind=(*self.record.left_behind, *sites))
        self.roster = tuple(site for site in self.roster if site not in sites)

    def _refused(self, site: str, message: pb.Refusal, now: float) -> list[Instruction]:
        rule = one_line(message.rule, 100)
        sentence = one_line(message.sentence)
        code = message.exit_code if message.exit_code in (3, 4, 6, 7) else 7
        note = Note("warning", "site refuses job", {"job": self.job.name, "site": site, "rule": rule})
        return [note, *self._end("failed", now, reason=f"{site}: {sentence}", rule=rule, exit_code=code)]

    def _strike(self, site: str, error: MessageError, now: float) -> list[Instruction]:
        """Disconnect a site that sends what it must not send: a transient fault is gone when it reconnects."""
        self._strikes[site] = self._strikes.get(site, 0) + 1
        sentence = str(error) if str(error).startswith(f"{site}:") else f"{site}: {error}"
        note = Note("warning", "message refused", {"job": self.job.name, "site": site, "reason": str(error)})
        if self._strikes[site] >= STRIKES:
            return [note, *self.fail(MessageError(f"{sentence} ({STRIKES} times)"), now)]
        return [note, Close(self._directory.sessions[site], error)]

    def _enter(self, state: JobState, now: float) -> list[Instruction]:
        """Save the state, unless the job is in it already."""
        return [] if self.record.state == state else self._save(state, now)

    def _save(self, state: JobState, now: float, **changes: Any) -> list[Instruction]:
        self.record = replace(self.record, state=state, changed_at=now, **changes)
        fields = {"job": self.job.name, "state": state, "epoch": self.record.epoch}
        if self.record.reason:
            fields["reason"] = self.record.reason
        level = "warning" if state == "failed" else "info"
        return [SaveJob(self.record), Note(level, f"job {state}", fields), Changed(self.job.name)]  # type: ignore[arg-type]

    def _end(self, state: JobState, now: float, **changes: Any) -> list[Instruction]:
        return [*self._save(state, now, **changes), RemoveCheckpoints(self.job.name), *self._announce_end()]

    def _announce_end(self) -> list[Instruction]:
        return self._announce(ended_frame(self.record), self.roster)

    def _announce(self, frame: pb.CoordinatorFrame, sites: Iterable[str]) -> list[Instruction]:
        return [self._send(site, [frame]) for site in sites if site in self._directory.sessions]

    def _send(self, site: str, frames: Iterable[Frame]) -> Send:
        return Send(self._directory.sessions[site], frames, self.job.name)


def _lost_too_often(site: str, times: int, epoch: int, limits: Limits) -> CeError | None:
    """The end of a job whose site came without its state so many times, for the last time in this epoch."""
    if times > limits.attempts_per_site:
        lost = f"{times:,} times (limits.attempts_per_site)"
    elif epoch >= limits.attempts_per_job:
        lost = f"in attempt {epoch:,} (limits.attempts_per_job)"
    else:
        return None
    advice = "find out why, then submit the job under another name"
    return LimitReached(f"{site} has lost its state of this job {lost}: {advice}")


def _late(job: Job, state: JobState, awaited: str, in_time: bool) -> JobFailed:
    """The end of a job that has waited too long; `in_time`: not longer than a job may take."""
    deadlines = job.deadlines
    if not in_time:
        reason = f"the job took longer than its deadlines.job_s of {deadlines.job_s:g} s; it waited for {awaited}"
    elif state == "running":
        reason = f"{awaited} did not answer within deadlines.round_s, {deadlines.round_s:g} s"
    else:
        reason = f"{awaited} did not enrol within deadlines.enrol_s, {deadlines.enrol_s:g} s"
    return JobFailed(f"{reason}: see that the sites run, then submit the job again")


def ended_frame(record: JobRecord) -> pb.CoordinatorFrame:
    """The job has ended."""
    return pb.CoordinatorFrame(
        ended=pb.Ended(
            job=record.name,
            epoch=record.epoch,
            state=record.state,
            reason=record.reason,
            rule=record.rule,
            exit_code=record.exit_code,
        )
    )


def left_behind_frame(record: JobRecord) -> pb.CoordinatorFrame:
    """The job continues without this site."""
    reason = "the job continues without this site, which did not answer in time"
    return pb.CoordinatorFrame(
        ended=pb.Ended(job=record.name, epoch=record.epoch, state="cancelled", reason=reason, exit_code=8)
    )


def not_running_frame(record: JobRecord | None, site: str, job: str, epoch: int) -> pb.CoordinatorFrame:
    """A site asks about a job that it does not, or no longer, take part in; `record` is that of the job, if any."""
    if record is not None and site in Job.from_definition(record.definition).sites:
        if site in record.left_behind:
            return left_behind_frame(record)
        if record.ended:
            return ended_frame(record)
        # The job waits in line: what the site has of it is of an attempt before the coordinator was restarted.
        return pb.CoordinatorFrame(ended=pb.Ended(job=job, epoch=epoch, state="waits", reason="begins again"))
    # A site that is not in a job does not learn that the job exists.
    reason = "the coordinator does not know this job"
    return pb.CoordinatorFrame(ended=pb.Ended(job=job[:100], epoch=epoch, state="cancelled", reason=reason))
