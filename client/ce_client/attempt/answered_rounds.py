"""A round is answered once: the same task again gets the same answer, whatever else comes in its place is refused."""

from __future__ import annotations

from ce.errors import MessageError
from ce.protocol.messages.task import Answer, Task


class AnsweredRounds:
    """The last round that was answered."""

    def __init__(self) -> None:
        self.last: Answer | None = None
        self._round = 0
        self._digest = b""  # of its task

    def repeated(self, task: Task, digest: bytes) -> Answer | None:
        """The answer to a round that was answered; None for a new round. Raises MessageError for another task."""
        if self.last is None or task.round > self._round:
            return None
        if (task.round, digest) != (self._round, self._digest):
            raise MessageError(
                "task: of a round that was answered, and not the same: "
                f"expected a round after {self._round}, got {task.round}"
            )
        return self.last

    def add(self, task: Task, digest: bytes, answer: Answer) -> None:
        self._round, self._digest, self.last = task.round, digest, answer
