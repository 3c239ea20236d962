"""One job that is not over: what state it is in, whom it waits for and until when, and what each event leads to.

    submitted -> enrolling -> aligning -> running -> done
                 (any of these) -> failed, cancelled

An *epoch* is one attempt: when a site has lost its memory of the job, or the coordinator has, the next attempt goes on
from the newest state that all have kept, or at the beginning, with the same sites, and ends with the same bits. Only
where the job says on_dropout = "continue" does it go on without a site that stays away, and then at the beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ce.errors import CeError, InputError, JobFailed, LimitReached, MessageError, Refused
from ce.job import Job
from ce.models.registry import model_without_labels
from ce.protocol.engine.aggregator import Progress
from ce.protocol.attempt import Attempt
from ce.service.checkpoints import KEPT as MOST_KEPT
from ce.service.checkpoints import CheckpointId, Checkpoints
from ce.transport.frames import Frame, one_line
from ce_coordinator.core.attempt_rounds import Aligned, AttemptRounds, NextRound, align_all
from ce_coordinator.core.attempt_setup import AttemptSetup
from ce_coordinator.core.checkpoint_schedule import CheckpointSchedule, CheckpointSettings
from ce_coordinator.core.instructions import (
    AWAY,
    Changed,
    Close,
    Compute,
    Instruction,
    Note,
    RemoveCheckpoints,
    SaveJob,
    Send,
    Session,
)
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.records import JobRecord, JobState
from ce_coordinator.core.report import operator_report
from ce_proto.v1 import site_pb2 as pb

#: A site that sends what it should not is cut off and may try again; the job fails when it does so this often.
STRIKES = 3
#: Alignments of one attempt: each leaves out what fell below a minimum in the one before.
MOST_REVISIONS = 20
#: A job that goes on without some of its sites needs at least so many others.
FEWEST_SITES = 2
#: Exchanges per second are counted over this long.
RATE_WINDOW_S = 2.0
#: ... or over so many.
MOST_TICKS = 1000


@dataclass
class Trace:
    """What an operator watches, of the present attempt."""

    iteration: int = 0
    max_iterations: int = 0
    starts_running: int = 0
    bound_path: tuple[float, ...] = ()

    def progress(self, where: Progress) -> None:
        self.iteration, self.max_iterations, self.starts_running = where.iteration, where.max_iter, where.running
        if where.has_bound:
            self.bound_path = (*self.bound_path, where.bound)


@dataclass(frozen=True)
class Setting:
    """What is the same for all jobs of a coordinator."""

    limits: Limits
    min_cluster: int
    keeping: CheckpointSettings
    checkpoints: Checkpoints


class JobRun:
    """A job under way. Every method is an event and returns what is to be done about it."""

    def __init__(self, record: JobRecord, setting: Setting, sessions: Mapping[str, Session]) -> None:
        self.record = record
        self.job = Job.from_definition(record.definition)
        self.trace = Trace()
        self._model, _ = model_without_labels(self.job)
        self._limits = setting.limits
        self._min_cluster = setting.min_cluster
        self._keeping = setting.keeping
        self._checkpoints = setting.checkpoints
        self._schedule = CheckpointSchedule(setting.keeping, record.changed_at)
        self._sessions = sessions  # of all connected sites; the machine's
        self._setup: AttemptSetup | None = None
        self._rounds: AttemptRounds | None = None
        self._since = record.changed_at  # the beginning of what is now waited for
        self._strikes: dict[str, int] = {}
        self._ticks: deque[tuple[float, int]] = deque(maxlen=MOST_TICKS)

    # What is asked of it.

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def roster(self) -> tuple[str, ...]:
        """The sites that take part, by name: all of the job's, except those that it has gone on without."""
        return tuple(sorted(set(self.job.sites) - set(self.record.left_behind)))

    @property
    def awaited(self) -> set[str]:
        if self._rounds is not None:
            return set(self._rounds.awaited)
        return self._setup.awaited if self._setup is not None else set()

    @property
    def deadline(self) -> float:
        """When waiting ends, and the job with it."""
        deadlines = self.job.deadlines
        end = self.record.submitted_at + deadlines.job_s
        if self._waits_for_ever:
            return end
        if self.record.state in ("enrolling", "aligning"):
            end = min(end, self._since + deadlines.enrol_s)
        elif self.record.state == "running":
            end = min(end, self._since + deadlines.round_s)
        return end

    @property
    def _waits_for_ever(self) -> bool:
        """Sites that have once begun are waited for as long as the job says; those that have not, until enrol_s."""
        return self.job.on_dropout == "wait" and (self.record.state == "running" or self.epoch > 1)

    @property
    def rounds(self) -> AttemptRounds | None:
        return self._rounds

    def objects(self, site: str) -> int:
        return self._setup.objects(site) if self._setup is not None else 0

    def exchanges_per_s(self, now: float) -> float:
        # Two are kept however long ago they were: exchanges that take longer than the window have a rate, too.
        while len(self._ticks) > 2 and self._ticks[1][0] < now - RATE_WINDOW_S:
            self._ticks.popleft()
        if len(self._ticks) < 2:
            return 0.0
        (begin, first), (_, last) = self._ticks[0], self._ticks[-1]
        return (last - first) / max(now - begin, 1e-3)

    @property
    def keeping(self) -> bool:
        """Whether a checkpoint was asked for that not all have yet."""
        return self._rounds is not None and self._schedule.pending

    # Events.

    def begin(self, now: float) -> list[Instruction]:
        """Start an attempt: the first, or the next one."""
        epoch = self.epoch + 1
        attempt = Attempt(self.job.name, self.record.definition, epoch, self.roster)
        self._setup = AttemptSetup(attempt, self._model.uses_votes, self._limits)
        self._rounds = None
        self.trace = Trace()
        self._ticks.clear()
        self._schedule = CheckpointSchedule(self._keeping, now)
        self._since = now
        saved = self._save("enrolling", now, epoch=epoch)
        return [*saved, *(self._send(site, [self._setup.offer()]) for site in self._present())]

    def keep_soon(self) -> None:
        """Somebody is about to stop: states are kept as soon as an iteration begins."""
        self._schedule.ask()

    def connected(self, site: str, holds_epoch: int | None, now: float) -> list[Instruction]:
        """A site of the roster has a stream again; `holds_epoch` is what it remembers of this job."""
        if self._setup is None:
            return []
        if holds_epoch != self.epoch and self._setup.has_begun(site):
            if self.epoch >= self._limits.attempts_per_job:
                again = f"{site} has lost its state of this job in attempt {self.epoch:,} (limits.attempts_per_job)"
                return self.fail(LimitReached(f"{again}: see why it does, then submit the job by another name"), now)
            note = Note("warning", "job begins again: a site has lost its state", {"job": self.job.name, "site": site})
            return [note, *self.begin(now)]
        told: Iterable[Frame]
        told = self._setup.told(site) if self._rounds is None else self._rounds.told(site)
        return [self._send(site, told), Changed(self.job.name)]

    def disconnected(self) -> list[Instruction]:
        """A site of the roster has lost its stream: the job waits, unless it says otherwise."""
        return [Changed(self.job.name)]

    def received(self, site: str, fingerprint: str, kind: str, message: Any, now: float) -> list[Instruction]:
        """A frame of this job and epoch."""
        try:
            if kind == "refusal":
                return self._refused(site, message, now)
            return self._handle(site, fingerprint, kind, message, now)
        except MessageError as error:
            return self._strike(site, error, now)
        except CeError as error:
            return self.fail(error, now)

    def computed(self, result: Any, now: float) -> list[Instruction]:
        """The work that a `Compute` asked for is done, or raised an error."""
        if isinstance(result, CeError):
            return self.fail(result, now)
        if isinstance(result, MemoryError):
            sentence = "the coordinator has not enough memory for this job: fewer restarts or clusters need less"
            return self.fail(JobFailed(sentence), now)
        if isinstance(result, BaseException):
            return self.fail(JobFailed("an unexpected error at the coordinator; its log says more"), now)
        if isinstance(result, Aligned):
            assert self._setup is not None
            gathering = self._setup
            self._rounds = AttemptRounds(
                gathering.attempt, result, gathering.signed, gathering.revision, self._checkpoints
            )
            saved = self._save("aligning", now) if self.record.state != "aligning" else []
            return [*saved, *(self._send(site, self._rounds.alignment(site)) for site in self._present())]
        rounds = self._rounds
        assert rounds is not None
        assert isinstance(result, NextRound)
        if not rounds.begin(result):
            assert self._setup is not None
            least = max(self._min_cluster, self._setup.min_cluster)
            report = operator_report(
                self.job,
                rounds.topology,
                rounds.outcome,
                rounds.exchanges,
                rounds.bytes,
                least,
                self.record.left_behind,
            )
            return self._end("done", now, result=report)
        if rounds.iterates and self._setup is not None:
            self._setup.forget_objects()
        self._since = now
        self._schedule.next_round(now, rounds.exchanges, result.kept)
        self._ticks.append((now, rounds.exchanges))
        named = ({"job": self.job.name, "site": site} for site in rounds.diverged)
        diverged = [Note("warning", "a site was told other totals than the first", fields) for fields in named]
        saved = self._save("running", now) if self.record.state != "running" else []
        sends = [self._send(site, rounds.task(site)) for site in self._present() if site in result.tasks]
        return [*diverged, *self._about_state(result), *saved, *sends, Changed(self.job.name)]

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed."""
        if now < self.deadline:
            return []
        deadlines = self.job.deadlines
        in_time = now < self.record.submitted_at + deadlines.job_s
        if in_time and self.job.on_dropout == "continue" and (self.record.state == "running" or self.epoch > 1):
            return self._leave_behind(now)
        waited = _listed(sorted(self.awaited)) or "nobody"
        if now >= self.record.submitted_at + deadlines.job_s:
            reason = f"the job took longer than its deadlines.job_s of {deadlines.job_s:g} s; it waited for {waited}"
        elif self.record.state == "running":
            reason = f"{waited} did not answer within deadlines.round_s, {deadlines.round_s:g} s"
        else:
            reason = f"{waited} did not enrol within deadlines.enrol_s, {deadlines.enrol_s:g} s"
        return self.fail(JobFailed(f"{reason}: see that the sites run, then submit the job again"), now)

    def _leave_behind(self, now: float) -> list[Instruction]:
        """Begin again without the sites that have stayed away. Whether that tells too much is for the others to say."""
        gone = sorted(self.awaited)
        if not gone:  # it is the coordinator that takes so long
            self._since = now
            return []
        rest = [site for site in self.roster if site not in gone]
        if len(rest) < FEWEST_SITES:
            reason = f"{_listed(gone)} stayed away, and {len(rest)} site{'s' * (len(rest) != 1)} cannot go on alone"
            return self.fail(JobFailed(f"{reason}: see that the sites run, then submit the job by another name"), now)
        note = Note("warning", "job goes on without a site", {"job": self.job.name, "site": ", ".join(gone)})
        told = [self._send(site, [left_behind_frame(self.record)]) for site in gone if site in self._sessions]
        self.record = replace(self.record, left_behind=(*self.record.left_behind, *gone))
        begun = self.begin(now)  # whose first instruction saves that
        return [begun[0], note, *told, *begun[1:]]

    def store_failed(self, error: CeError, now: float) -> list[Instruction]:
        """A transition could not be written, and so was not announced. The job fails, for all that are there."""
        self.fail(error, now)
        return [self._send(site, [ended_frame(self.record)]) for site in self._present()]

    def fail(self, error: CeError, now: float) -> list[Instruction]:
        rule = error.rule if isinstance(error, Refused) else ""
        # What is too large for a limit today is too large tomorrow: nothing was unreachable, the job asks for too much.
        code = InputError.exit_code if isinstance(error, LimitReached) else error.exit_code
        return self._end("failed", now, reason=str(error), rule=rule, exit_code=code)

    def cancel(self, operator: str, now: float) -> list[Instruction]:
        return self._end("cancelled", now, reason=f"cancelled by {operator}", exit_code=8)

    # How.

    def _handle(self, site: str, fingerprint: str, kind: str, message: Any, now: float) -> list[Instruction]:
        gathering, rounds, job = self._setup, self._rounds, self.job.name
        if gathering is None:
            raise MessageError(f"{kind}: this job has not begun")
        if rounds is None:
            if kind == "key_share":
                told = gathering.share_key(site, fingerprint, message)
            elif kind == "encrypted_keys":
                told = gathering.relay_keys(site, message)
            elif kind in ("enrolment", "more"):
                told = []
                if kind == "enrolment":
                    due = gathering.enrol(site, message)
                else:
                    due = gathering.enrol_more(site, message.chunks)
                if due and gathering.complete:
                    return [self._alignment_work(gathering), Changed(job)]
            else:
                raise MessageError(f"{kind}: comes before the sites are aligned")
            sends = [self._send(to, [frame]) for to, frame in told if to in self._sessions]
            return [*sends, Changed(job)]
        due = False
        if kind in ("enrolment", "ready") or (kind == "more" and gathering.is_enrolling(site)):
            return self._answered_alignment(gathering, rounds, site, kind, message, now)
        if kind == "answer":
            due = rounds.answer(site, message)
        elif kind == "more":
            due = rounds.more(site, message.chunks)
        elif kind not in ("key_share", "encrypted_keys"):  # these may be repeated after a broken stream
            raise MessageError(f"{kind}: the sites are aligned already")
        return self._all_answered(gathering, rounds, now) if due else []

    def _answered_alignment(
        self, gathering: AttemptSetup, rounds: AttemptRounds, site: str, kind: str, message: Any, now: float
    ) -> list[Instruction]:
        """A site can begin, or leaves something out: then all are aligned anew, once all have answered."""
        if kind == "ready":
            if len(message.checkpoints) > MOST_KEPT:
                raise MessageError("kept: more states than a site keeps")
            due = rounds.ready(
                site, message.revision, (CheckpointId(own.origin, own.round) for own in message.checkpoints)
            )
        else:
            whole = (
                gathering.enrol(site, message) if kind == "enrolment" else gathering.enrol_more(site, message.chunks)
            )
            due = whole and rounds.amend(site)
        return self._all_answered(gathering, rounds, now) if due else [Changed(self.job.name)]

    def _all_answered(self, gathering: AttemptSetup, rounds: AttemptRounds, now: float) -> list[Instruction]:
        if not rounds.amended:
            keep = self._schedule.due(now, rounds.exchanges)
            # Whatever goes to the disk goes there from a thread.
            size = max(rounds.size, AWAY) if keep else rounds.size
            return [Compute(self.job.name, self.epoch, size, rounds.advance(keep))]
        gathering.revision += 1
        if gathering.revision > MOST_REVISIONS:
            raise JobFailed("the sites leave out more and more: their minimums and their objects do not go together")
        return [self._alignment_work(gathering), Changed(self.job.name)]

    def _alignment_work(self, gathering: AttemptSetup) -> Compute:
        model, trace, most, privacy = self._model, self.trace, self._limits.round_bytes, self.job.privacy
        size = sum(len(enrolment.objects) for enrolment in gathering.enrolments.values())
        return Compute(
            self.job.name,
            self.epoch,
            size,
            lambda: align_all(model, gathering.enrolments, trace.progress, most, privacy),
        )

    def _refused(self, site: str, message: pb.Refusal, now: float) -> list[Instruction]:
        rule = one_line(message.rule, 100)
        sentence = one_line(message.sentence)
        code = message.exit_code if message.exit_code in (3, 4, 6, 7) else 7
        note = Note("warning", "site refuses job", {"job": self.job.name, "site": site, "rule": rule})
        return [note, *self._end("failed", now, reason=f"{site}: {sentence}", rule=rule, exit_code=code)]

    def _strike(self, site: str, error: MessageError, now: float) -> list[Instruction]:
        """Cut a site off that sends what it should not: a transient fault is gone when it connects again."""
        self._strikes[site] = self._strikes.get(site, 0) + 1
        sentence = str(error) if str(error).startswith(f"{site}:") else f"{site}: {error}"
        note = Note("warning", "message refused", {"job": self.job.name, "site": site, "reason": str(error)})
        if self._strikes[site] >= STRIKES:
            return [note, *self.fail(MessageError(f"{sentence} ({STRIKES} times)"), now)]
        return [note, Close(self._sessions[site], error)]

    def _about_state(self, result: NextRound) -> list[Instruction]:
        notes: list[Instruction] = []
        if result.resumed is not None:
            assert self._rounds is not None
            self.trace.bound_path = self._rounds.bound_path
            round_ = result.resumed.round
            notes.append(Note("info", "job goes on from a checkpoint", {"job": self.job.name, "round": round_}))
        if result.not_kept:
            fields = {"job": self.job.name, "reason": result.not_kept}
            notes.append(Note("warning", "checkpoint not kept; a restart would begin at an older one", fields))
        return notes

    def _send(self, site: str, frames: Iterable[Frame]) -> Send:
        return Send(self._sessions[site], frames, self.job.name)

    def _present(self) -> list[str]:
        return [site for site in self.roster if site in self._sessions]

    def _save(self, state: JobState, now: float, **changes: Any) -> list[Instruction]:
        self.record = replace(self.record, state=state, changed_at=now, **changes)
        fields = {"job": self.job.name, "state": state, "epoch": self.record.epoch}
        if self.record.reason:
            fields["reason"] = self.record.reason
        level = "warning" if state == "failed" else "info"
        return [SaveJob(self.record), Note(level, f"job {state}", fields), Changed(self.job.name)]  # type: ignore[arg-type]

    def _end(self, state: JobState, now: float, **changes: Any) -> list[Instruction]:
        saved = self._save(state, now, **changes)
        ended = ended_frame(self.record)
        told = [self._send(site, [ended]) for site in self._present()]
        return [*saved, RemoveCheckpoints(self.job.name), *told]


def ended_frame(record: JobRecord) -> pb.CoordinatorFrame:
    """What a site is told about a job that is over."""
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
    """What a site is told about a job that has gone on without it."""
    reason = "the job has gone on without this site, which had stayed away"
    return pb.CoordinatorFrame(
        ended=pb.Ended(job=record.name, epoch=record.epoch, state="cancelled", reason=reason, exit_code=8)
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] if names else ""
