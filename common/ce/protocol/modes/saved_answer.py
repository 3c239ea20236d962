"""An answer that is kept with the state after it, so that it can be given again in another attempt at the job."""

from __future__ import annotations

from ce.errors import MessageError
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.messages.task import Answer, Task


def saved_answer(task: Task, answer: Answer) -> Snapshot:
    """The sums of an answer, without masks, and which task they belong to."""
    return {"task": _which(task), "arrays": dict(answer.arrays), "bits": dict(answer.fraction_bits)}


def answer_again(task: Task, kept: Snapshot) -> Answer:
    """The same answer. Only to the task that it was kept for."""
    if _which(task) != kept["task"]:
        raise MessageError("resume: another task than the one whose answer was kept")
    return Answer(task.round, task.step, task.starts, kept["arrays"], kept["bits"])


def _which(task: Task) -> list[object]:
    return [task.round, task.step, task.stage, task.iteration, list(task.starts), list(task.retry)]
