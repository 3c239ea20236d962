"""The second half of an attempt, as in ce_client.attempt.rounds: the alignment, then one round after another.

Answers are added to the totals as their chunks arrive. Checkpoints are written and read elsewhere: this module says
which one is due (`CheckpointDue`), and goes on when that is saved, or cannot be.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count

from ce.errors import MessageError
from ce.privacy.derivation import joined
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Aggregator, OpenRound, Outcome, open_totals
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.messages.task import Task, digests_of
from ce.protocol.topology.enrolment import EnrolmentSummary, enrolment_digest
from ce.protocol.topology.topology import Rows, Topology
from ce.service.checkpoint_id import CheckpointId
from ce.transport.alignment_codec import alignment_frames
from ce.transport.array_chunks import chunk_of, chunks_of
from ce.transport.frames import Encoded, Frame, answer_header, task_frames
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb


@dataclass(frozen=True)
class Aligned:
    """The outcome of alignment."""

    topology: Topology
    rows: dict[str, dict[int, Rows]] = field(repr=False)
    aggregator: Aggregator = field(repr=False)


@dataclass(frozen=True)
class CheckpointDue:
    """A round is ready, and a checkpoint is to be saved before its tasks are made."""

    checkpoint_id: CheckpointId
    snapshot: Snapshot = field(repr=False)


@dataclass(frozen=True)
class NextRound:
    """The tasks of a round; none when the job is done."""

    tasks: Mapping[str, Task] = field(repr=False)
    digests: Mapping[str, bytes]
    exchanges: int  # that are finished, of earlier attempts, too, if this one resumes from them
    with_checkpoint: bool = False  # saved at the coordinator; the sites are asked to save theirs in this round
    resumed_from: CheckpointId | None = None


@dataclass
class _SharedFrame:
    """A frame, and how many streams have not taken it yet."""

    frame: Encoded
    streams: int


class _SharedFrames:
    """The frames of a task, for all streams that it goes down: each is made and encoded when the first stream takes it,
    and gone when the last has taken it. While a large task waits in queues, only its arrays are in memory; where a
    stream does not read, what it has not taken, encoded once."""

    def __init__(self, frames: Iterator[pb.CoordinatorFrame], streams: int) -> None:
        self._frames = frames
        self._streams = streams
        self._made: dict[int, _SharedFrame] = {}  # by position
        self._failure: Exception | None = None  # which ends every stream at the same frame

    def __iter__(self) -> Iterator[Frame]:
        """For one of the streams."""
        for position in count():
            if position not in self._made:
                if self._failure is not None:
                    raise self._failure
                try:
                    frame = next(self._frames, None)
                except Exception as error:
                    self._failure = error
                    raise
                if frame is None:
                    return
                self._made[position] = _SharedFrame(Encoded(frame.SerializeToString()), self._streams)
            shared = self._made[position]
            shared.streams -= 1
            if not shared.streams:
                del self._made[position]
            yield shared.frame


#: What the coordinator computes between two rounds; the result goes to `begin`, or is a checkpoint to be saved.
Work = Callable[[], NextRound | CheckpointDue]


class AttemptRounds:
    """The rounds of one attempt at the coordinator, under one alignment."""

    def __init__(
        self,
        attempt: Attempt,
        aligned: Aligned,
        signed: Mapping[str, tuple[EnrolmentSummary, bytes]],
        revision: int,
    ) -> None:
        self.attempt = attempt
        self.revision = revision
        self.topology = aligned.topology
        self.bytes = 0
        self.exchanges_resumed = 0  # finished in earlier attempts
        self._aggregator = aligned.aggregator
        self._rows = aligned.rows
        alone = {block.members[0]: block.size for block in aligned.topology.blocks if not block.shared}
        self._private = {site: alone.get(site, 0) for site in attempt.roster}
        enrolled = enrolment_digest({site: signed[site][0] for site in attempt.roster}, self._private)
        #: A digest of everything that a checkpoint of this attempt is valid for.
        self.checkpoint_context = hashlib.sha256(joined(attempt.job_digest, enrolled)).digest()
        self._origin = attempt.epoch
        self._site_checkpoints: dict[str, set[CheckpointId]] = {}  # by site: those that it could resume from
        self._ready: set[str] = set()
        self._amended: set[str] = set()
        self._round: NextRound | None = None
        self._computing = False  # between the last answer of a round and the tasks of the next
        #: Sites in the middle of an answer: whether it counts, or repeats one that was added already.
        self._answering: dict[str, bool] = {}

    @property
    def awaited(self) -> Collection[str]:
        if self._computing:
            return ()
        if self._round is None:
            return set(self.attempt.roster) - self._ready - self._amended
        waiting = self._open.waiting
        return set(waiting) - self._amended if self._amended else waiting

    @property
    def exchanges(self) -> int:
        return max(self._aggregator.rounds - 1, 0)

    @property
    def iterates(self) -> bool:
        """Whether the opening is over: no site can leave out objects or columns any more."""
        return self._aggregator.begins_iteration

    @property
    def size(self) -> int:
        """Numbers in the totals of the open round."""
        round_ = self._aggregator.open_round
        return 0 if round_ is None else round_.accumulators.size

    @property
    def advances_at_once(self) -> bool:
        """Whether `advance` does a fixed number of operations with each of these numbers."""
        return self._aggregator.advances_at_once

    @property
    def outcome(self) -> Outcome | None:
        """None in blind: only the sites know."""
        return self._aggregator.result

    @property
    def bound_path(self) -> tuple[float, ...]:
        """The best bound after each iteration so far; empty in blind."""
        return self._aggregator.bound_path

    @property
    def diverged(self) -> tuple[str, ...]:
        """Blind: sites whose state differs from that of the first site: they were sent other totals."""
        return self._aggregator.diverged

    @property
    def _open(self) -> OpenRound:
        assert self._aggregator.open_round is not None
        return self._aggregator.open_round

    def frames_after_reconnect(self, site: str) -> Iterable[Frame]:
        """What this site may have missed while it had no stream: the alignment or the task that it has not answered."""
        self._answering.pop(site, None)
        if self._round is None:
            return self.alignment(site)
        owed = self.tasks([site]) if site in self.awaited else ()
        return chain.from_iterable(frames for _, frames in owed)

    def alignment(self, site: str) -> Iterator[pb.CoordinatorFrame]:
        view = self.topology.view(site)
        return alignment_frames(self.attempt, view, self._rows[site], self._private, self.revision)

    @property
    def amended(self) -> bool:
        """Whether a site has left out objects or columns, so that the sites must be aligned again."""
        return bool(self._amended)

    def ready(self, site: str, revision: int, checkpoints: Iterable[CheckpointId]) -> bool:
        """A site can begin, and has these checkpoints of the job. True: all have answered the alignment."""
        if self._round is not None or site in self._ready or revision < self.revision:
            return False  # repeated after a broken stream
        if revision > self.revision:
            raise MessageError(f"revision: expected at most {self.revision}, got {revision}")
        self._ready.add(site)
        self._site_checkpoints[site] = set(checkpoints)
        return not self.awaited

    def amend(self, site: str) -> bool:
        """A site has answered the alignment, or the first counts, with an enrolment that leaves out objects or columns.
        True: all have answered."""
        if self._computing:  # aligning the sites again would discard what is being computed for this alignment
            raise MessageError("enrolment: all sites have answered this round already")
        if self._round is not None and not self._open.opening:
            raise MessageError("enrolment: the rounds have begun")
        self._amended.add(site)
        return not self.awaited

    def tasks(self, sites: Iterable[str]) -> Iterator[tuple[str, Iterable[Frame]]]:
        """The frames of the task of each of these sites that has one."""
        assert self._round is not None
        tasks, digests = self._round.tasks, self._round.digests
        owed = [site for site in sites if site in tasks]
        streams = Counter(digests[site] for site in owed)
        shared: dict[bytes, _SharedFrames] = {}
        chunk = chunk_of(len(self.attempt.roster))
        for site in owed:
            task, digest = tasks[site], digests[site]
            self.bytes += task.nbytes
            if digest not in shared:
                frames = task_frames(self.attempt.job, self.attempt.epoch, task, digest, chunk)
                shared[digest] = _SharedFrames(frames, streams[digest])
            yield site, shared[digest]

    def answer(self, site: str, message: pb.Answer) -> bool:
        """A site's answer, or its beginning. True: the round is complete, and `advance` is due."""
        header = answer_header(message)
        current = self._aggregator.rounds
        if self._round is None or header.round > current:
            raise MessageError(f"round: expected at most {current}, got {header.round}")
        counts = header.round == current and site in self.awaited
        if counts:
            if message.task_digest != self._round.digests[site]:
                raise MessageError("task_digest: not that of the task")
            self._aggregator.begin(site, header)
        self._answering[site] = counts
        return self.more(site, message.chunks)

    def more(self, site: str, chunks: arrays_pb2.ArrayChunks) -> bool:
        """The next chunks of a site's answer. True: the round is complete, and `advance` is due."""
        counts = self._answering.get(site)
        if counts is None:
            raise MessageError("more: no answer is under way")
        totals = open_totals(self._aggregator) if counts else None
        for chunk in chunks_of(chunks):
            if totals is not None:
                totals.add(site, chunk)
                self.bytes += chunk.words.nbytes
        if not chunks.last:
            return False
        del self._answering[site]
        if totals is None:
            return False
        totals.end(site)
        return not self.awaited

    @property
    def begun(self) -> bool:
        """Whether the first task was sent."""
        return self._round is not None

    @property
    def common_checkpoints(self) -> tuple[CheckpointId, ...]:
        """Those that every site has, newest first: the attempt resumes from the first that the coordinator has, too."""
        common = set.intersection(*(self._site_checkpoints.get(site, set()) for site in self.attempt.roster))
        return tuple(sorted(common, reverse=True))

    # The coordinator's computation between two rounds. `open`, `advance` and `make_tasks` return work for a `Compute`.

    def begin_computing(self) -> None:
        """All sites have answered: none is awaited until `begin`, and nobody needs the tasks any more."""
        self._computing = True
        if self._round is not None:
            self._round = replace(self._round, tasks={})

    def open(self, checkpoint_id: CheckpointId | None = None, snapshot: Snapshot | None = None) -> Work:
        """The first round: from the beginning, or from a checkpoint that every site has."""

        def work() -> NextRound:
            if checkpoint_id is not None and snapshot is not None:
                self._aggregator.restore(snapshot, checkpoint_id.origin)
                self._origin = checkpoint_id.origin
                self.exchanges_resumed = snapshot["exchanges"]
            return self._next_round(resumed_from=checkpoint_id)

        return work

    def advance(self, checkpoint_due: bool) -> Work:
        """The round that follows, all sites having answered. `checkpoint_due`: or, if a snapshot can be taken of it,
        that snapshot; when it is saved, or cannot be, `make_tasks` follows."""

        def work() -> NextRound | CheckpointDue:
            self._aggregator.advance()
            if checkpoint_due and self._aggregator.begins_iteration and not self._open.resume:
                checkpoint_id = CheckpointId(self._origin, self._aggregator.rounds)
                return CheckpointDue(checkpoint_id, self._aggregator.snapshot())
            return self._next_round()

        return work

    def make_tasks(self, with_checkpoint: bool) -> Work:
        """The tasks of the open round; `with_checkpoint`: the coordinator has saved its checkpoint of it, and the sites
        are asked to save theirs."""
        return lambda: self._next_round(with_checkpoint=with_checkpoint)

    def _next_round(self, with_checkpoint: bool = False, resumed_from: CheckpointId | None = None) -> NextRound:
        tasks = self._aggregator.tasks(self._origin if with_checkpoint else 0)
        digests = digests_of(tasks, self.attempt.job_digest, self.attempt.epoch)
        return NextRound(tasks, digests, self.exchanges, with_checkpoint, resumed_from)

    def begin(self, following: NextRound) -> bool:
        """Take up the next round. False: there is none, the job is done."""
        self._computing = False
        self._round = following
        if self.iterates:
            self._rows = {}
        return bool(following.tasks)
