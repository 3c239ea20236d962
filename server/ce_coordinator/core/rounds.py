"""The second half of an attempt: alignment down, then one round after another, sums added as their pieces arrive."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ce.errors import InputError, LimitReached, MessageError
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.handshake import Attempt
from ce.protocol.home import Home, Outcome, Progress
from ce.protocol.messages import Task, array_hash, task_digest
from ce.protocol.topology import Enrolment, Rows, Topology, align
from ce.steps.model import Model, fits_the_ring
from ce.transport.parts import CHUNK, LARGEST_HEADER, pieces_of, to_parts
from ce.transport.wire import answer_header, task_frames
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

_KIND_NUMBERS = {"clustering": pb.COLUMN_KIND_CLUSTERING, "classifier": pb.COLUMN_KIND_CLASSIFIER}


@dataclass(frozen=True)
class Aligned:
    """The outcome of alignment."""

    topology: Topology
    rows: dict[str, dict[int, Rows]] = field(repr=False)
    home: Home = field(repr=False)


@dataclass(frozen=True)
class NextRound:
    """The tasks of a round; none when the job is done."""

    tasks: Mapping[str, Task] = field(repr=False)
    digests: Mapping[str, bytes]


def align_all(
    model: Model,
    enrolments: Mapping[str, Enrolment],
    on_progress: Callable[[Progress], None],
    most_bytes: int,
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
    return Aligned(topology, rows, Home(topology, model, on_progress))


def _largest_header(topology: Topology) -> int:
    """Bytes of the largest alignment without its rows, rather too many than too few."""
    header = dict.fromkeys(topology.sites, 0)
    for block in topology.blocks:
        for site in block.members:
            header[site] += 32 + sum(len(member) + 2 for member in block.members)
    for column in topology.columns:
        names = len(column.name.encode()) + sum(len(holder) + 2 for holder in column.holders)
        for site in column.holders:
            header[site] += 32 + names + (TOKEN_SIZE + 2) * len(column.categories)
    return max(header.values())


class Rounds:
    """Rounds of one attempt, at their home."""

    def __init__(self, attempt: Attempt, aligned: Aligned) -> None:
        self.attempt = attempt
        self.topology = aligned.topology
        self.bytes = 0
        self._home = aligned.home
        self._rows = aligned.rows
        self._ready: set[str] = set()
        self._round: NextRound | None = None
        self._frames: dict[bytes, list[pb.CoordinatorFrame]] = {}  # of small tasks, by digest
        self._job_digest = attempt.job_digest
        self._computing = False
        #: Sites in the middle of an answer: whether it counts, or is a repetition that nobody needs.
        self._answering: dict[str, bool] = {}

    @property
    def awaited(self) -> Collection[str]:
        if self._computing:
            return ()
        if self._round is None:
            return set(self.attempt.roster) - self._ready
        return set(self._home.waiting)

    @property
    def exchanges(self) -> int:
        return max(self._home.round - 1, 0)

    @property
    def size(self) -> int:
        """Numbers in the totals of the open round."""
        return self._home.words

    @property
    def outcome(self) -> Outcome:
        return self._home.outcome

    def told(self, site: str) -> Iterator[pb.CoordinatorFrame]:
        """What a site should have been told by now and may have missed, when it connects again."""
        self._answering.pop(site, None)
        if self._round is None:
            return self.alignment(site)
        return self.task(site) if site in self.awaited else iter(())

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
        )
        arrays = {f"rows/{block}": rows.astype(np.int64) for block, rows in self._rows[site].items()}
        for at, parts in enumerate(to_parts(arrays)):
            if at == 0:
                header.parts.CopyFrom(parts)
                yield pb.CoordinatorFrame(alignment=header)
            else:
                yield pb.CoordinatorFrame(more=pb.More(job=a.job, epoch=a.epoch, parts=parts))

    def ready(self, site: str) -> bool:
        """A site can begin. True: all can, and `advance` is due."""
        if self._round is not None or site in self._ready:
            return False  # repeated after a broken stream
        self._ready.add(site)
        return len(self._ready) == len(self.attempt.roster)

    def task(self, site: str) -> Iterator[pb.CoordinatorFrame]:
        assert self._round is not None
        task, digest = self._round.tasks[site], self._round.digests[site]
        size = sum(array.nbytes for array in task.arrays.values())
        self.bytes += size
        frames = task_frames(self.attempt.job, self.attempt.epoch, task, digest)
        if size > CHUNK:
            return frames  # made as the stream takes them
        if digest not in self._frames:
            self._frames[digest] = list(frames)
        return iter(self._frames[digest])

    def answer(self, site: str, message: pb.Answer) -> bool:
        """A site's answer, or its beginning. True: the round is complete, and `advance` is due."""
        header = answer_header(message)
        current = self._home.round
        if self._round is None or header.round > current:
            raise MessageError("round: has not begun")
        counts = header.round == current and site in self.awaited
        if counts:
            if message.task_digest != self._round.digests[site]:
                raise MessageError("task_digest: not that of the task")
            self._home.begin(site, header)
        self._answering[site] = counts
        return self.more(site, message.parts)

    def more(self, site: str, parts: arrays_pb2.Parts) -> bool:
        """More of a site's answer; the same return value."""
        counts = self._answering.get(site)
        if counts is None:
            raise MessageError("more: no answer is under way")
        for piece in pieces_of(parts):
            if counts:
                self._home.add_piece(site, piece)
                self.bytes += piece.words.nbytes
        if not parts.last:
            return False
        del self._answering[site]
        if not counts:
            return False
        self._home.end(site)
        return not self._home.waiting

    def advance(self) -> Callable[[], NextRound]:
        """The work that leads to the next round; its result goes to `begin`."""
        self._computing = True
        first = self._round is None

        def work() -> NextRound:
            if not first:
                self._home.advance()
            tasks = self._home.tasks()
            hashes: dict[str, bytes] = {}
            for task in tasks.values():
                hashes.update({n: array_hash(array) for n, array in task.arrays.items() if n not in hashes})
            job, epoch = self._job_digest, self.attempt.epoch
            # Tasks of a round differ only in which arrays they have; often they do not differ at all.
            alike = {tuple(task.arrays): task for task in tasks.values()}
            digests = {names: task_digest(job, epoch, task, hashes) for names, task in alike.items()}
            return NextRound(tasks, {site: digests[tuple(task.arrays)] for site, task in tasks.items()})

        return work

    def begin(self, following: NextRound) -> bool:
        """Take up the next round. False: there is none, the job is done."""
        self._computing = False
        self._round = following
        self._frames.clear()
        return bool(following.tasks)

    def report(self) -> dict[str, Any]:
        """Sizes for the status of a job."""
        return {"layout": self.topology.layout, "objects": self.topology.sizes.objects}
