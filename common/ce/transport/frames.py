"""Tasks and answers as frames of the wire contract (proto/ce_proto/v1/site.proto), and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

from ce.errors import MessageError
from ce.protocol.messages.steps import ArraySpec, Step
from ce.protocol.messages.task import RECENT_ASKED, Answer, Array, NextStep, Task, task_digest
from ce.ring import LARGEST_BITS
from ce.transport.array_chunks import MOST_DIMENSIONS, Collector, checked_name, in_frames
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

#: Bytes of an answer's digest of state, and of the head of its sender's ledger.
STATE_SIZE, HEAD_SIZE = 16, 32
#: Version of the protocol; both ends say theirs when a stream begins.
PROTOCOL = 4
#: The key of client.toml that says how large a message to a site may be.
LARGEST_MESSAGE = "largest_message"
#: Jobs that a Hello may list.
MOST_HELD = 10_000

_STEPS: dict[Step, pb.Step] = {
    "open": pb.STEP_OPEN,
    "sums": pb.STEP_SUMS,
    "objects": pb.STEP_OBJECTS,
    "columns": pb.STEP_COLUMNS,
    "clusterings_only": pb.STEP_CLUSTERINGS_ONLY,
    "finish": pb.STEP_FINISH,
    "keys": pb.STEP_KEYS,
    "decide": pb.STEP_DECIDE,
    "shares": pb.STEP_SHARES,
    "votes": pb.STEP_VOTES,
    "counts": pb.STEP_COUNTS,
    "meet": pb.STEP_MEET,
    "mask": pb.STEP_MASK,
    "verify": pb.STEP_VERIFY,
    "commit": pb.STEP_COMMIT,
    "release": pb.STEP_RELEASE,
    "score": pb.STEP_SCORE,
    "compare": pb.STEP_COMPARE,
    "settle": pb.STEP_SETTLE,
    "prove": pb.STEP_PROVE,
    "reveal": pb.STEP_REVEAL,
}
_STEP_NAMES: dict[int, Step] = {int(number): step for step, number in _STEPS.items()}


@dataclass(frozen=True)
class Encoded:
    """A frame for a site as it goes over the wire: encoded once for all who are sent the same."""

    wire: bytes = field(repr=False)

    def SerializeToString(self) -> bytes:
        """As of a message."""
        return self.wire


#: What a stream down to a site takes.
Frame = pb.CoordinatorFrame | Encoded


def task_frames(
    job: str, epoch: int, task: Task, digest: bytes, chunk: int | None = None
) -> Iterator[pb.CoordinatorFrame]:
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
        checkpoint=task.checkpoint,
        resume=task.resume,
        digest=digest,
        stop=task.stop,
    )
    first = pb.CoordinatorFrame(task=header)
    first.task.MergeFromString(_encoded_asked(tuple(task.asked.items())))

    def following() -> tuple[pb.CoordinatorFrame, arrays_pb2.ArrayChunks]:
        frame = pb.CoordinatorFrame(more=pb.More(job=job, epoch=epoch))
        return frame, frame.more.chunks

    yield from in_frames(task.arrays, {}, (first, first.task.chunks), following, chunk)


def answer_frames(
    job: str, epoch: int, answer: Answer, digest: bytes, chunk: int | None = None
) -> Iterator[pb.SiteFrame]:
    """An answer as it goes up; `digest` is that of the task."""
    header = pb.Answer(
        job=job,
        epoch=epoch,
        round=answer.round,
        step=_STEPS[answer.step],
        starts=answer.starts,
        task_digest=digest,
        state=answer.state,
        ledger_head=answer.ledger,
    )
    if answer.next_step is not None:
        header.next_step.step = _STEPS[answer.next_step.step]
        header.next_step.stage = answer.next_step.stage
    first = pb.SiteFrame(answer=header)

    def following() -> tuple[pb.SiteFrame, arrays_pb2.ArrayChunks]:
        frame = pb.SiteFrame(more=pb.More(job=job, epoch=epoch))
        return frame, frame.more.chunks

    yield from in_frames(answer.arrays, answer.fraction_bits, (first, first.answer.chunks), following, chunk)


class AskedReader:
    """Reads which arrays tasks ask for. Those of most rounds are those of the round before, and are read once."""

    def __init__(self) -> None:
        self._message = pb.Task()  # the last one
        self._asked: dict[str, ArraySpec] = {}

    def read(self, message: pb.Task) -> dict[str, ArraySpec]:
        """By name. Nobody changes it."""
        if message.asked != self._message.asked:
            asked = dict(_read_asked(array) for array in message.asked)
            if len(asked) < len(message.asked):
                raise MessageError("asked: two arrays have the same name")
            self._message, self._asked = pb.Task(asked=message.asked), asked
        return self._asked


def task_header(message: pb.Task, asked: AskedReader | None = None, arrays: Mapping[str, Array] | None = None) -> Task:
    """A task without its arrays; or with these, which are still being received."""
    starts, retry = _starts(message.starts, "starts"), _starts(message.retry, "retry")
    stop = _starts(message.stop, "stop")
    if retry and not set(retry) <= set(starts):
        raise MessageError("retry: names a start that does not take part")
    if message.checkpoint and message.resume:
        raise MessageError("resume: a task cannot both resume and ask for a checkpoint")
    where = (message.round, _step(message.step), message.stage, message.iteration)
    received = {} if arrays is None else arrays
    expected = (asked or AskedReader()).read(message)
    return Task(*where, starts, retry, received, message.checkpoint, message.resume, stop, expected)


@lru_cache(RECENT_ASKED)
def _encoded_asked(asked: tuple[tuple[str, ArraySpec], ...]) -> bytes:
    """A task with nothing but the list of the arrays that it asks for."""
    task = pb.Task()
    for name, (shape, fraction_bits, word_bits) in sorted(asked):
        task.asked.add(name=name, shape=shape, fraction_bits=fraction_bits, word_bits=word_bits % 64)
    return task.SerializeToString()


def _read_asked(message: pb.AskedArray) -> tuple[str, ArraySpec]:
    if len(message.shape) > MOST_DIMENSIONS or message.fraction_bits > LARGEST_BITS:
        raise MessageError(f"asked: expected at most {MOST_DIMENSIONS} sides and {LARGEST_BITS} fraction bits")
    name, word_bits = checked_name(message.name), message.word_bits or 64
    if word_bits not in (32, 64):
        raise MessageError(f"asked: {name}: expected words of 32 or 64 bits, got {word_bits}")
    return name, ArraySpec(tuple(message.shape), message.fraction_bits, word_bits)


def answer_header(message: pb.Answer) -> Answer:
    """An answer without its arrays."""
    next_step = None
    if message.HasField("next_step"):
        next_step = NextStep(_step(message.next_step.step), message.next_step.stage)
    if len(message.state) not in (0, STATE_SIZE) or len(message.ledger_head) not in (0, HEAD_SIZE):
        raise MessageError("answer: state is 16 bytes, ledger_head 32, or they are empty")
    return Answer(
        message.round,
        _step(message.step),
        _starts(message.starts, "starts"),
        next_step=next_step,
        state=message.state,
        ledger=message.ledger_head,
    )


class TaskReader:
    """Puts one task together out of its frames."""

    def __init__(
        self, message: pb.Task, job_digest: bytes, largest_bytes: int, asked: AskedReader | None = None
    ) -> None:
        """`asked` is that of all tasks of the job."""
        self.digest = message.digest
        self._epoch = message.epoch
        self._job_digest = job_digest
        self._collector = Collector(largest_bytes, LARGEST_MESSAGE)
        self._task = task_header(message, asked, self._collector.received)

    def feed(self, chunks: arrays_pb2.ArrayChunks) -> Task | None:
        """The task, once it is complete and is what its digest says."""
        if not self._collector.feed(chunks):
            return None
        self._collector.check_finite()
        if task_digest(self._job_digest, self._epoch, self._task, self._task.hashes) != self.digest:
            raise MessageError("digest: is not that of the task")
        return self._task


class AnswerReader:
    """Puts one whole answer together out of its frames."""

    def __init__(self, message: pb.Answer, largest_bytes: int) -> None:
        self._header = answer_header(message)
        self._collector = Collector(largest_bytes)

    def feed(self, chunks: arrays_pb2.ArrayChunks) -> Answer | None:
        if not self._collector.feed(chunks):
            return None
        return replace(self._header, arrays=self._collector.arrays, fraction_bits=self._collector.fraction_bits)


def one_line(sentence: str, most: int = 1000) -> str:
    """What another party says, as it may be shown to a person, logged or stored."""
    return "".join(c if c.isprintable() else " " for c in sentence[:most])


def _starts(numbers: Iterable[int], field: str) -> tuple[int, ...]:
    starts = tuple(numbers)
    if len(starts) > 1 and any(a >= b for a, b in pairwise(starts)):
        raise MessageError(f"{field}: not in increasing order")
    return starts


def _step(number: int) -> Step:
    step = _STEP_NAMES.get(number)
    if step is None:
        raise MessageError("step: unknown")
    return step
