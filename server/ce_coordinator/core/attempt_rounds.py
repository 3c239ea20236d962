"""The second half of an attempt, as in ce_client.attempt.rounds: the alignment, then one round after another.

Answers are added to the totals as their pieces arrive. Checkpoints are written and read elsewhere: this module says
which one is due (`CheckpointDue`), and goes on when it is told what came of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np

from ce.errors import InputError, LimitReached, MessageError
from ce.privacy.derivation import joined
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.engine.home import Home, Outcome, Progress
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.keys.handshake import Attempt, Summary, enrolment_digest
from ce.protocol.messages.task import Task, digests_of
from ce.protocol.modes.blind_coordinator import BlindCoordinator
from ce.protocol.topology.topology import Enrolment, Rows, Topology, align, block_pseudonyms
from ce.service.checkpoint_id import CheckpointId
from ce.steps.model import Model, fits_the_ring
from ce.transport.array_chunks import CHUNK, LARGEST_HEADER, chunks_of, to_chunks
from ce.transport.frames import Encoded, Frame, answer_header, task_frames
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

_WRITTEN = {None: pb.CATEGORY_KIND_UNSPECIFIED, "integers": pb.CATEGORY_KIND_INTEGER, "text": pb.CATEGORY_KIND_TEXT}
_KIND_NUMBERS = {"clustering": pb.COLUMN_KIND_CLUSTERING, "classifier": pb.COLUMN_KIND_CLASSIFIER}


@dataclass(frozen=True)
class Aligned:
    """The outcome of alignment."""

    topology: Topology
    rows: dict[str, dict[int, Rows]] = field(repr=False)
    home: Home | BlindCoordinator = field(repr=False)


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


def align_all(
    model: Model,
    enrolments: Mapping[str, Enrolment],
    on_progress: Callable[[Progress], None],
    most_bytes: int,
    privacy: str,
) -> Aligned:
    """Who shares what, and the engine that goes on from there."""
    topology, rows = align(enrolments)
    if model.uses_votes and not topology.classifiers:
        raise InputError("no classifier: no site has a column of votes, which this model needs beside the clusterings")
    objects = topology.sizes.objects
    if model.k > objects:
        raise InputError(f"{model.k:,} consensus clusters or classes for {objects:,} objects: ask for fewer")
    if not fits_the_ring(model, topology.sizes):
        raise LimitReached("sums over so many objects and columns do not fit in 64 bits: split the job")
    shared = sum(block.size for block in topology.blocks if block.shared)
    cells = sum(len(column.categories) for column in topology.clusterings if column.shared)
    needed = 8 * model.n_starts * model.k * (shared + cells)
    if needed > most_bytes:
        raise LimitReached(
            f"one round of this job would take {needed / 1e9:,.1f} GB at the coordinator, whose limits.round_bytes is "
            f"{most_bytes / 1e9:,.1f} GB: fewer restarts or clusters need less"
        )
    if _largest_header(topology) > LARGEST_HEADER:
        raise LimitReached(
            "what one site would have to be told about the columns and objects that it shares does not fit in a "
            "message: fewer categories, or fewer different groups of sites that share objects, need less"
        )
    known = block_pseudonyms(topology, enrolments, rows)
    home = (BlindCoordinator if privacy == "blind" else Home)(topology.whole(), model, on_progress, pseudonyms=known)
    return Aligned(topology, rows, home)


def _largest_header(topology: Topology) -> int:
    """Bytes of the largest alignment without its rows, rather too many than too few."""
    enrolments = sum((64 + len(c.name.encode())) * len(c.holders) for c in topology.columns) + 256 * len(topology.sites)
    header = dict.fromkeys(topology.sites, enrolments)
    for block in topology.blocks:
        for site in block.members:
            header[site] += 32 + sum(len(member) + 2 for member in block.members)
    for column in topology.columns:
        names = len(column.name.encode()) + sum(len(holder) + 2 for holder in column.holders)
        for site in column.holders:
            header[site] += 32 + names + (TOKEN_SIZE + 2) * len(column.categories)
    return max(header.values())


def _shown(site: str, summary: Summary, signature: bytes, private: int) -> pb.EnrolmentSummary:
    columns = [
        pb.ColumnSummary(
            name=own.name,
            kind=_KIND_NUMBERS[own.kind],
            soft=own.soft,
            categories_are=_WRITTEN[own.written],
            categories=own.categories,
            categories_digest=own.categories_digest,
            labels=own.labels,
        )
        for own in summary.columns
    ]
    return pb.EnrolmentSummary(
        site=site,
        objects=summary.objects,
        columns=columns,
        pseudonym_digest=summary.pseudonym_digest,
        signature=signature,
        revision=summary.revision,
        private_objects=private,
    )


class _Frames(list[Encoded]):
    """The frames of a task that several sites are sent; a list that can be referred to weakly."""


#: What the coordinator computes between two rounds; the result goes to `begin`, or is a checkpoint to be saved.
Work = Callable[[], NextRound | CheckpointDue]


class AttemptRounds:
    """The rounds of one attempt at the coordinator, under one alignment."""

    def __init__(
        self,
        attempt: Attempt,
        aligned: Aligned,
        signed: Mapping[str, tuple[Summary, bytes]],
        revision: int,
    ) -> None:
        self.attempt = attempt
        self.revision = revision
        self.topology = aligned.topology
        self.bytes = 0
        self.exchanges_resumed = 0  # finished in earlier attempts
        self._home = aligned.home
        self._rows = aligned.rows
        self._signed = dict(signed)
        self._private = {b.members[0]: b.size for b in aligned.topology.blocks if not b.shared}
        private = {site: self._private.get(site, 0) for site in attempt.roster}
        enrolled = enrolment_digest({site: signed[site][0] for site in attempt.roster}, private)
        #: A digest of everything that a checkpoint of this attempt is valid for.
        self.checkpoint_context = hashlib.sha256(joined(attempt.job_digest, enrolled)).digest()
        self._origin = attempt.epoch
        self._site_checkpoints: dict[str, set[CheckpointId]] = {}  # by site: those that it could resume from
        self._ready: set[str] = set()
        self._amended: set[str] = set()
        self._round: NextRound | None = None
        self._computing = False  # between the last answer of a round and the tasks of the next
        #: Encoded frames of small tasks, by digest: they exist while some stream is sending them.
        self._frames: WeakValueDictionary[bytes, _Frames] = WeakValueDictionary()
        #: Sites in the middle of an answer: whether it counts, or repeats one that was added already.
        self._answering: dict[str, bool] = {}

    @property
    def awaited(self) -> Collection[str]:
        if self._computing:
            return ()
        if self._round is None:
            return set(self.attempt.roster) - self._ready - self._amended
        return set(self._home.waiting) - self._amended

    @property
    def exchanges(self) -> int:
        return max(self._home.round - 1, 0)

    @property
    def iterates(self) -> bool:
        """Whether the opening is over: no site can leave out objects or columns any more."""
        return self._home.begins_iteration

    @property
    def size(self) -> int:
        """Numbers in the totals of the open round."""
        return self._home.words

    @property
    def outcome(self) -> Outcome | None:
        """None in blind: only the sites know."""
        return None if isinstance(self._home, BlindCoordinator) else self._home.outcome

    @property
    def bound_path(self) -> tuple[float, ...]:
        """The best bound after each iteration so far; empty in blind."""
        return () if isinstance(self._home, BlindCoordinator) else self._home.bound_path

    @property
    def diverged(self) -> tuple[str, ...]:
        """Blind: sites whose state differs from that of the first site: they were sent other totals."""
        return self._home.diverged if isinstance(self._home, BlindCoordinator) else ()

    def frames_after_reconnect(self, site: str) -> Iterator[Frame]:
        """What this site may have missed while it had no stream: the alignment or the task that it has not answered."""
        self._answering.pop(site, None)
        if self._round is None:
            return self.alignment(site)
        return self.task(site) if site in self._round.tasks and site in self.awaited else iter(())

    def alignment(self, site: str) -> Iterator[pb.CoordinatorFrame]:
        view, a = self.topology.view(site), self.attempt
        header = pb.Alignment(
            job=a.job,
            epoch=a.epoch,
            sizes=pb.Sizes(
                objects=view.sizes.objects,
                clusterings=view.sizes.clusterings,
                classifiers=view.sizes.classifiers,
                categories=view.sizes.categories,
            ),
            blocks=[pb.BlockView(index=b.index, members=b.members, size=b.size) for b in view.blocks.values()],
            columns=[
                pb.ColumnView(
                    index=c.index,
                    name=c.name,
                    kind=_KIND_NUMBERS[c.kind],
                    holders=c.holders,
                    categories=[bytes.fromhex(str(token)) for token in c.categories],
                )
                for c in view.columns
            ],
            revision=self.revision,
            enrolments=[_shown(s, *self._signed[s], self._private.get(s, 0)) for s in a.roster],
            needs_two_exchanges=view.needs_two_exchanges,
            shared_by_all=view.shared_by_all,
        )
        arrays = {f"rows/{block}": rows.astype(np.int64) for block, rows in self._rows[site].items()}
        for at, chunks in enumerate(to_chunks(arrays)):
            if at == 0:
                header.chunks.CopyFrom(chunks)
                yield pb.CoordinatorFrame(alignment=header)
            else:
                yield pb.CoordinatorFrame(more=pb.More(job=a.job, epoch=a.epoch, chunks=chunks))

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
        if self._round is not None and not self._home.opening:
            raise MessageError("enrolment: the rounds have begun")
        self._amended.add(site)
        return not self.awaited

    def task(self, site: str) -> Iterator[Frame]:
        assert self._round is not None
        task, digest = self._round.tasks[site], self._round.digests[site]
        size = sum(array.nbytes for array in task.arrays.values())
        self.bytes += size
        frames = task_frames(self.attempt.job, self.attempt.epoch, task, digest)
        # Encoded as the stream takes them: while a large task waits in a queue, only its arrays are in memory.
        return frames if size > CHUNK else self._encoded(frames, digest)

    def _encoded(self, frames: Iterator[pb.CoordinatorFrame], digest: bytes) -> Iterator[Frame]:
        """Encoded once for all streams that send the same task at the same time."""
        known = self._frames.get(digest)
        if known is None:
            known = self._frames[digest] = _Frames(Encoded(frame.SerializeToString()) for frame in frames)
        yield from known

    def answer(self, site: str, message: pb.Answer) -> bool:
        """A site's answer, or its beginning. True: the round is complete, and `advance` is due."""
        header = answer_header(message)
        current = self._home.round
        if self._round is None or header.round > current:
            raise MessageError(f"round: expected at most {current}, got {header.round}")
        counts = header.round == current and site in self.awaited
        if counts:
            if message.task_digest != self._round.digests[site]:
                raise MessageError("task_digest: not that of the task")
            self._home.begin(site, header)
        self._answering[site] = counts
        return self.more(site, message.chunks)

    def more(self, site: str, chunks: arrays_pb2.ArrayChunks) -> bool:
        """The next chunks of a site's answer. True: the round is complete, and `advance` is due."""
        counts = self._answering.get(site)
        if counts is None:
            raise MessageError("more: no answer is under way")
        for chunk in chunks_of(chunks):
            if counts:
                self._home.add_chunk(site, chunk)
                self.bytes += chunk.words.nbytes
        if not chunks.last:
            return False
        del self._answering[site]
        if not counts:
            return False
        self._home.end(site)
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
        """All sites have answered: none is awaited until `begin`."""
        self._computing = True

    def open(self, checkpoint_id: CheckpointId | None = None, snapshot: Snapshot | None = None) -> Work:
        """The first round: from the beginning, or from a checkpoint that every site has."""

        def work() -> NextRound:
            if checkpoint_id is not None and snapshot is not None:
                self._home.restore(snapshot, checkpoint_id.origin)
                self._origin = checkpoint_id.origin
                self.exchanges_resumed = snapshot["exchanges"]
            return self._next_round(resumed_from=checkpoint_id)

        return work

    def advance(self, checkpoint_due: bool) -> Work:
        """The round that follows, all sites having answered. `checkpoint_due`: or, if a snapshot can be taken of it,
        that snapshot; when it is saved, or cannot be, `make_tasks` follows."""

        def work() -> NextRound | CheckpointDue:
            self._home.advance()
            if checkpoint_due and self._home.begins_iteration and not self._home.resumes:
                return CheckpointDue(CheckpointId(self._origin, self._home.round), self._home.snapshot())
            return self._next_round()

        return work

    def make_tasks(self, with_checkpoint: bool) -> Work:
        """The tasks of the open round; `with_checkpoint`: the coordinator has saved its checkpoint of it, and the sites
        are asked to save theirs."""
        return lambda: self._next_round(with_checkpoint=with_checkpoint)

    def _next_round(self, with_checkpoint: bool = False, resumed_from: CheckpointId | None = None) -> NextRound:
        tasks = self._home.tasks(self._origin if with_checkpoint else 0)
        digests = digests_of(tasks, self.attempt.job_digest, self.attempt.epoch)
        return NextRound(tasks, digests, self.exchanges, with_checkpoint, resumed_from)

    def begin(self, following: NextRound) -> bool:
        """Take up the next round. False: there is none, the job is done."""
        self._computing = False
        self._round = following
        if self.iterates:
            self._rows = {}
        return bool(following.tasks)
