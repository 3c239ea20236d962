"""Sites in the same process, for `ce.simulate` and tests: no socket, but the same encoded frames as over a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self

from ce.protocol.messages.task import Answer, Task, digests_of
from ce.transport.frames import AnswerReader, TaskReader, answer_frames, task_frames
from ce_proto.v1 import site_pb2 as pb

#: What a local job is called in its frames; no party reads it.
JOB = "local"
EPOCH = 1
#: On one machine only memory limits a message.
UNLIMITED = 2**62

Handler = Callable[[Task], Answer]


class InProcess:
    """Calls each site's handler directly."""

    def __init__(self, sites: Mapping[str, Handler]) -> None:
        self._sites = {name: Endpoint(handler) for name, handler in sites.items()}
        self.bytes_sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        for site, frames in encoded(tasks).items():
            gather = Gather()
            for frame in frames:
                self.bytes_sent += len(frame)
                for reply in self._sites[site].receive(frame):
                    self.bytes_sent += len(reply)
                    if (answer := gather.receive(reply)) is not None:
                        yield site, answer


def encoded(tasks: Mapping[str, Task]) -> dict[str, Iterator[bytes]]:
    """Every site's task as serialised frames."""
    digests = digests_of(tasks, b"", EPOCH)
    return {
        site: (frame.SerializeToString() for frame in task_frames(JOB, EPOCH, task, digests[site]))
        for site, task in tasks.items()
    }


class Endpoint:
    """A site's end: frames of tasks in, frames of answers out."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._reader: TaskReader | None = None

    def receive(self, frame: bytes) -> Iterator[bytes]:
        message = pb.CoordinatorFrame.FromString(frame)
        if message.WhichOneof("frame") == "task":
            self._reader = TaskReader(message.task, b"", UNLIMITED)
            task = self._reader.feed(message.task.chunks)
        else:
            assert self._reader is not None
            task = self._reader.feed(message.more.chunks)
        if task is not None:
            assert self._reader is not None
            for reply in answer_frames(JOB, EPOCH, self._handler(task), self._reader.digest):
                yield reply.SerializeToString()


class Gather:
    """The home's end: frames of one answer in, the answer out."""

    def __init__(self) -> None:
        self._reader: AnswerReader | None = None

    def receive(self, frame: bytes) -> Answer | None:
        message = pb.SiteFrame.FromString(frame)
        if message.WhichOneof("frame") == "answer":
            self._reader = AnswerReader(message.answer, UNLIMITED)
            return self._reader.feed(message.answer.chunks)
        assert self._reader is not None
        return self._reader.feed(message.more.chunks)
