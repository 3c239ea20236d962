"""What home and sites say to each other: a task down, an answer up.

A task carries the outcome of the last exchange (globals, tables of shared columns, messages of shared blocks, which
starts go on) and the step to do next. Steps:

    open      add up what is known before the first iteration: labels and votes per shared object, claims on contested
              cells, the number of private objects that have a label
    sums      one iteration in one exchange: object sums, column sums, shares of the globals and the bound, and how
              many objects' most likely cluster moved
    objects   two-phase models where a shared block has cells of a shared column: object sums and shares ...
    columns   ... then column sums, from the messages just received
    view      object sums under a flat message: what the clusterings alone say (models with votes)
    finish    the winner's globals and, of shared blocks, memberships and which objects have a label at all; the
              answer is but a receipt

Arrays: block/<b>/<what> (starts, k, n), column/<c>/<what> (starts, k, categories), global/<name> (starts, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

from ce.errors import MessageError
from ce.transport.frames import Array, pack, unpack

Step = Literal["open", "sums", "objects", "columns", "view", "finish"]
STEPS: tuple[Step, ...] = get_args(Step)


@dataclass(frozen=True)
class Task:
    round: int
    step: Step
    stage: int = 0  # which of the model's stages; a higher number than before begins the next one
    iteration: int = 0  # of the stage, from 1
    starts: tuple[int, ...] = ()  # the starts that take part; those that no longer do have stopped
    retry: tuple[int, ...] = ()  # of these, the ones whose last step is taken back
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def encode(self) -> bytes:
        header = {
            "round": self.round,
            "step": self.step,
            "stage": self.stage,
            "iteration": self.iteration,
            "starts": list(self.starts),
            "retry": list(self.retry),
        }
        return pack(header, self.arrays)

    @classmethod
    def decode(cls, message: bytes) -> Task:
        header, arrays = unpack(message)
        starts = _numbers(header, "starts")
        retry = _numbers(header, "retry")
        if not set(retry) <= set(starts):
            raise MessageError("retry: names a start that does not take part")
        return cls(
            round=_number(header, "round"),
            step=_step(header),
            stage=_number(header, "stage"),
            iteration=_number(header, "iteration"),
            starts=starts,
            retry=retry,
            arrays=arrays,
        )


@dataclass(frozen=True)
class Answer:
    round: int
    step: Step
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def encode(self) -> bytes:
        return pack({"round": self.round, "step": self.step}, self.arrays)

    @classmethod
    def decode(cls, message: bytes) -> Answer:
        header, arrays = unpack(message)
        return cls(_number(header, "round"), _step(header), arrays)


def _number(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name)
    if type(value) is not int or not 0 <= value < 2**53:
        raise MessageError(f"{name}: not a whole number")
    return value


def _numbers(header: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = header.get(name)
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 2**31 for v in values):
        raise MessageError(f"{name}: not a list of start numbers")
    if any(a >= b for a, b in pairwise(values)):
        raise MessageError(f"{name}: not in increasing order")
    return tuple(values)


def _step(header: Mapping[str, Any]) -> Step:
    for step in STEPS:
        if header.get("step") == step:
            return step
    raise MessageError("step: unknown")
