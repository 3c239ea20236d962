"""Tasks and answers as frames of the wire contract (proto/ce_proto/v1/site.proto), and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from ce.errors import MessageError
from ce.protocol.messages import Answer, Step, Task, array_hash, task_digest
from ce.transport.parts import Collector, to_parts
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

#: Version of the protocol; both ends say theirs when a stream begins.
PROTOCOL = 1

_STEPS: dict[Step, pb.Step] = {
    "open": pb.STEP_OPEN,
    "sums": pb.STEP_SUMS,
    "objects": pb.STEP_OBJECTS,
    "columns": pb.STEP_COLUMNS,
    "view": pb.STEP_VIEW,
    "finish": pb.STEP_FINISH,
}
_STEP_NAMES: dict[int, Step] = {int(number): step for step, number in _STEPS.items()}


def task_frames(job: str, epoch: int, task: Task, digest: bytes) -> Iterator[pb.CoordinatorFrame]:
    """A task as it goes down the stream; made one frame at a time, as fast as the stream takes them."""
    header = pb.Task(
        job=job,
        epoch=epoch,
        round=task.round,
        step=_STEPS[task.step],
        stage=task.stage,
        iteration=task.iteration,
        starts=task.starts,
        retry=task.retry,
        digest=digest,
    )
    for at, parts in enumerate(to_parts(task.arrays)):
        if at == 0:
            header.parts.CopyFrom(parts)
            yield pb.CoordinatorFrame(task=header)
        else:
            yield pb.CoordinatorFrame(more=pb.More(job=job, epoch=epoch, parts=parts))


def answer_frames(job: str, epoch: int, answer: Answer, digest: bytes) -> Iterator[pb.SiteFrame]:
    """An answer as it goes up; `digest` is that of the task."""
    header = pb.Answer(
        job=job,
        epoch=epoch,
        round=answer.round,
        step=_STEPS[answer.step],
        starts=answer.starts,
        task_digest=digest,
    )
    for at, parts in enumerate(to_parts(answer.arrays, answer.fraction_bits)):
        if at == 0:
            header.parts.CopyFrom(parts)
            yield pb.SiteFrame(answer=header)
        else:
            yield pb.SiteFrame(more=pb.More(job=job, epoch=epoch, parts=parts))


def task_header(message: pb.Task) -> Task:
    """A task without its arrays."""
    starts, retry = _starts(message.starts, "starts"), _starts(message.retry, "retry")
    if not set(retry) <= set(starts):
        raise MessageError("retry: names a start that does not take part")
    return Task(message.round, _step(message.step), message.stage, message.iteration, starts, retry)


def answer_header(message: pb.Answer) -> Answer:
    """An answer without its arrays."""
    return Answer(message.round, _step(message.step), _starts(message.starts, "starts"))


class TaskReader:
    """Puts one task together out of its frames."""

    def __init__(self, message: pb.Task, job_digest: bytes, largest_bytes: int) -> None:
        self.digest = message.digest
        self._header = task_header(message)
        self._epoch = message.epoch
        self._job_digest = job_digest
        self._collector = Collector(largest_bytes)

    @property
    def round(self) -> int:
        return self._header.round

    def feed(self, parts: arrays_pb2.Parts) -> Task | None:
        """The task, once it is complete and is what its digest says."""
        if not self._collector.feed(parts):
            return None
        h = self._header
        task = Task(h.round, h.step, h.stage, h.iteration, h.starts, h.retry, self._collector.arrays)
        hashes = {name: array_hash(array) for name, array in task.arrays.items()}
        if task_digest(self._job_digest, self._epoch, task, hashes) != self.digest:
            raise MessageError("digest: is not that of the task")
        return task


class AnswerReader:
    """Puts one whole answer together out of its frames."""

    def __init__(self, message: pb.Answer, largest_bytes: int) -> None:
        self._header = answer_header(message)
        self._collector = Collector(largest_bytes)

    def feed(self, parts: arrays_pb2.Parts) -> Answer | None:
        if not self._collector.feed(parts):
            return None
        h = self._header
        return Answer(h.round, h.step, h.starts, self._collector.arrays, self._collector.fraction_bits)


def _starts(numbers: Iterable[int], field: str) -> tuple[int, ...]:
    starts = tuple(numbers)
    if any(a >= b for a, b in pairwise(starts)):
        raise MessageError(f"{field}: not in increasing order")
    return starts


def _step(number: int) -> Step:
    step = _STEP_NAMES.get(number)
    if step is None:
        raise MessageError("step: unknown")
    return step
