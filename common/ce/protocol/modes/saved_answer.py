"""An answer that is written into a checkpoint with the state after it, so that another attempt can give it again."""

from __future__ import annotations

from collections.abc import Callable

from ce.errors import MessageError
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import Arrays, ArraySpec, check_asked
from ce.protocol.messages.task import Answer, Task


def saved_answer(task: Task, answer: Answer) -> Snapshot:
    """The sums of an answer, without masks, and which task they belong to."""
    return {"task": _identity(task), "arrays": dict(answer.arrays), "bits": dict(answer.fraction_bits)}


def answer_again(task: Task, snapshot: Snapshot, sent_as: Callable[[Arrays], Arrays] = dict) -> Answer:
    """The same answer. Only to the task that it was saved for. `sent_as`: what these arrays become when they are
    sent, which is what the task asks for."""
    if _identity(task) != snapshot["task"]:
        raise MessageError("resume: expected the task whose answer is in the checkpoint, got another one")
    arrays, bits = snapshot["arrays"], snapshot["bits"]
    specs = {ArrayName(name): ArraySpec.of(array, bits[name]) for name, array in arrays.items()}
    check_asked(task.asked, sent_as(specs))
    return Answer(task.round, task.step, task.starts, arrays, bits)


def _identity(task: Task) -> list[object]:
    where: list[object] = [task.round, task.step, task.stage, task.iteration]
    return [*where, list(task.starts), list(task.retry), list(task.stop)]
