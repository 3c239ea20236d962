"""One site's part in one attempt at a job: messages in, frames out. No socket, no clock; a message may take minutes.

Every message may be sent again after a broken stream, and is then answered as before. Any error ends the attempt here
with one `Refusal`; every later message is answered by the same one. Once masked words have left, that says nothing
about the error (`refusal`). The phases: `setup`, `admission`, `rounds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from ce.cancellation import ComputationCancelled
from ce.errors import CeError, JobFailed, MessageError
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Array, Task
from ce.transport.array_chunks import Collector, chunk_of
from ce.transport.enrolment_codec import exclusion_messages
from ce.transport.frames import LARGEST_MESSAGE, AskedReader, TaskReader, answer_frames
from ce_client.attempt.admission import Admission, TooFewLabels
from ce_client.attempt.recorder import AttemptRecorder
from ce_client.attempt.refusal import refusal_frame, uniform_refusal_frame
from ce_client.attempt.rounds import SiteRounds, results_of
from ce_client.attempt.sealed_rounds import SealedRounds
from ce_client.attempt.setup import AttemptSetup, PreparedAttempt, check_offer
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.ledger import Ledger
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

Frames = Iterator[pb.SiteFrame]


class SiteAttempt:
    """The site's side of an attempt, made from an Offer. Each phase is None until it begins."""

    def __init__(self, offer: pb.Offer, coordinator: str, site_files: SiteFiles, ledger: Ledger) -> None:
        self.attempt = Attempt(offer.job, bytes(offer.definition), offer.epoch, tuple(offer.roster))
        self.refusal: CeError | None = None
        self._masked_words_left = False  # in this attempt, or in the one whose checkpoint it goes on from
        self._coordinator = coordinator
        self._site_files = site_files
        self._ledger = ledger
        self._recorder: AttemptRecorder | None = None
        self._setup: AttemptSetup | None = None
        self._admission: Admission | None = None
        self._rounds: SiteRounds | SealedRounds | None = None
        self._reader: tuple[pb.Letters | pb.Alignment, Collector] | None = None  # of what is not complete yet
        self._task_reader: TaskReader | None = None
        self._asked = AskedReader()

    @property
    def job(self) -> str:
        return self.attempt.job

    @property
    def epoch(self) -> int:
        return self.attempt.epoch

    @property
    def rounds_answered(self) -> int:
        """Rounds of this job that this site has answered, over all attempts."""
        return 0 if self._recorder is None else self._recorder.rounds_answered

    @property
    def waits_for_consent(self) -> bool:
        """True while the job waits for `ce-client approve` or `decline`."""
        return self._admission is not None and self._admission.waits_for_consent

    @property
    def under_way(self) -> bool:
        """True while rounds are being answered of which a checkpoint can be saved."""
        rounds = self._rounds
        return rounds is not None and rounds.saves_checkpoints and rounds.committed and not rounds.finished

    @property
    def finished(self) -> bool:
        """True once the results are on the disk."""
        return self._rounds is not None and self._rounds.finished

    @property
    def participation(self) -> dict[str, str | int]:
        """How many objects of this site take part, of how many, and the rules that left out others; {}: not known."""
        return {} if self._rounds is None else self._rounds.participation

    @property
    def checkpoint_round(self) -> int:
        """The last round with a checkpoint; 0: none in this attempt."""
        return 0 if self._rounds is None else self._rounds.checkpoint_round

    @property
    def failed_checkpoints(self) -> int:
        """Checkpoints of this attempt that could not be saved."""
        return 0 if self._rounds is None else self._rounds.failed_checkpoints

    def receive(self, kind: str, message: Any) -> Frames:
        """Handle one message. The work is done when this returns; frames are made as they are taken.

        Raises ComputationCancelled if the attempt has ended meanwhile: then it must not be used any more.
        """
        if self.refusal is None:
            try:
                return self._handle(kind, message)
            except ComputationCancelled:
                raise
            except CeError as error:
                self.refusal = error
            except MemoryError:
                self.refusal = JobFailed("not enough memory for this job here: fewer restarts or clusters need less")
            except Exception as error:
                self.refusal = JobFailed("an unexpected error at this site; its log says more")
                self.refusal.__cause__ = error
            self.close()
        if self._masked_words_left:
            return iter((uniform_refusal_frame(self.attempt),))
        return iter((refusal_frame(self.attempt, self.refusal),))

    def disconnected(self) -> None:
        """The stream has ended. A message that was received in part will be sent again from its beginning."""
        self._reader = None
        self._task_reader = None

    def close(self) -> None:
        """Free the threads of the computation."""
        if self._rounds is not None:
            self._rounds.close()

    def ended(self, state: str) -> None:
        """The attempt is over: write the history, and sign the ledger."""
        if self._recorder is not None:
            self._recorder.end(state, self.refusal)

    def _handle(self, kind: str, message: Any) -> Frames:
        match kind:
            case "disconnected":
                self.disconnected()
                return iter(())
            case "offer":
                return self._take_offer()
            case "peers":
                return self._take_peers(message)
            case "encrypted_key":
                return self._enrol(self._begun_setup().open_key(message))
            case "introduction":
                return self._introduce(message)
            case "letters" | "alignment":
                collector = Collector(self._site_files.settings.largest_message, LARGEST_MESSAGE)
                self._reader = (message, collector)
                return self._read(*self._reader, message.chunks)
            case "reconsider":
                return self._admit(self._admission) if self._admission and self.waits_for_consent else iter(())
            case "task":
                largest = self._site_files.settings.largest_message
                self._task_reader = TaskReader(message, self.attempt.job_digest, largest, self._asked)
                return self._read_task(self._task_reader, message.chunks)
            case "more" if self._reader is not None:
                return self._read(*self._reader, message.chunks)
            case "more" if self._task_reader is not None:
                return self._read_task(self._task_reader, message.chunks)
            case _:
                raise MessageError(f"message: expected {self._expected}, got {kind}, in job {self.job}")

    @property
    def _expected(self) -> str:
        """The messages that belong to the current phase."""
        if self._setup is None:
            return "offer"
        if self._admission is None:
            return "peers or encrypted_key"
        return "introduction, letters or alignment" if self._rounds is None else "task"

    # Setup.

    def _take_offer(self) -> Frames:
        if self._setup is None:
            results = results_of(self._site_files.settings)
            offered = check_offer(self.attempt, self._coordinator, self._site_files, results)
            self._recorder = AttemptRecorder(offered, self._site_files, self._ledger)
            self._setup = AttemptSetup(offered, self._site_files)
        return iter((self._setup.key_share(),))

    def _take_peers(self, message: pb.Peers) -> Frames:
        setup = self._begun_setup()
        prepared = setup.meet(message)
        if prepared is None:
            return iter(())
        return chain((setup.encrypted_keys(prepared),), self._enrol(prepared))

    def _begun_setup(self) -> AttemptSetup:
        if self._setup is None:
            raise MessageError("keys: come before the offer")
        return self._setup

    # Admission.

    def _enrol(self, prepared: PreparedAttempt) -> Frames:
        if self._admission is None:
            assert self._recorder is not None
            self._admission = Admission(prepared, self._site_files, self._recorder)
        return self._admission.enrolment_frames()

    def _introduce(self, message: pb.Introduction) -> Frames:
        admission = self._enrolled_admission("introduction")
        begun = self._rounds is not None and self._rounds.committed
        again = message.revision == admission.revision
        frames = admission.introduce(message, begun=begun)
        if not again:  # of the alignment that it replaces counts have left at most
            self._end_rounds()
        return frames

    def _read(self, message: pb.Letters | pb.Alignment, collector: Collector, chunks: arrays_pb2.ArrayChunks) -> Frames:
        if not collector.feed(chunks):
            return iter(())
        self._reader = None
        if isinstance(message, pb.Letters):
            return self._enrolled_admission("letters").take_letters(message, collector.arrays)
        return self._align(message, collector.arrays)

    def _enrolled_admission(self, kind: str) -> Admission:
        if self._admission is None:
            raise MessageError(f"{kind}: comes before the enrolment")
        return self._admission

    def _align(self, message: pb.Alignment, arrays: dict[str, Array]) -> Frames:
        admission = self._enrolled_admission("alignment")
        if admission.is_answered(message):
            if admission.has_excluded:
                return admission.enrolment_frames()
            return iter(()) if self._rounds is None else self._ready(admission, self._rounds)
        checked = admission.check(message, arrays)
        return self._admit(admission) if checked.findings.clean else admission.exclude(checked.findings)

    def _admit(self, admission: Admission) -> Frames:
        admitted = admission.admit()
        if admitted is None:
            return iter(())
        assert self._recorder is not None
        rounds = SiteRounds if admitted.release is None else SealedRounds
        self._rounds = rounds(admitted, self._site_files, self._recorder)
        # How an earlier attempt ended is told as it was then: like every other failure.
        self._masked_words_left |= admitted.release is not None and admitted.release.begun
        return self._ready(admission, self._rounds)

    def _ready(self, admission: Admission, rounds: SiteRounds | SealedRounds) -> Frames:
        checkpoints = [pb.Checkpoint(origin=known.origin, round=known.round) for known in rounds.checkpoint_ids]
        ready = pb.Ready(job=self.job, epoch=self.epoch, revision=admission.revision, checkpoints=checkpoints)
        ready.excluded.extend(exclusion_messages(admission.exclusion_counts))
        return iter((pb.SiteFrame(ready=ready),))

    # Rounds.

    def _read_task(self, reader: TaskReader, chunks: arrays_pb2.ArrayChunks) -> Frames:
        task = reader.feed(chunks)
        if task is None:
            return iter(())
        self._task_reader = None
        return self._answer(task, reader.digest)

    def _answer(self, task: Task, digest: bytes) -> Frames:
        admission, rounds = self._admission, self._rounds
        if admission is None or (rounds is None and not admission.has_excluded):
            raise MessageError(f"task: comes before the alignment, in round {task.round}")
        if rounds is None:
            return admission.enrolment_frames()  # again, after a broken stream
        privacy = self._begun_setup().privacy
        masks, sealed = privacy not in ("plain", "sealed"), privacy == "sealed"
        self._masked_words_left |= (masks and task.resume > 0) or (sealed and task.step not in ("meet", "mask"))
        try:
            answer = rounds.answer(task, digest)
        except TooFewLabels as found:
            self._end_rounds()
            return admission.exclude(found.findings)
        self._masked_words_left |= masks and any(ArrayName(name).kind != "box" for name in answer.arrays)
        self._masked_words_left |= sealed and task.step != "meet"  # a budget that is spent is named, at `mask`
        return answer_frames(self.job, self.epoch, answer, digest, chunk_of(len(self.attempt.roster)))

    def _end_rounds(self) -> None:
        """The alignment of these rounds is replaced; they have answered counts at most."""
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = None
