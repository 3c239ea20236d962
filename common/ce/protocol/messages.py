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
              answer is a receipt, with the sizes of the clusters among the private objects

Arrays: block/<b>/<what> (starts, k, n); columns/<g>/<what> (starts, k, categories of the group's columns, side by
side); global/<name> (starts, ...).
How these become bytes is the transport's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ce.ring import Scale

Step = Literal["open", "sums", "objects", "columns", "view", "finish"]
STEPS: tuple[Step, ...] = get_args(Step)
Array = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.uint8]


@dataclass(frozen=True)
class Task:
    round: int
    step: Step
    stage: int = 0  # which of the model's stages; a higher number than before begins the next one
    iteration: int = 0  # of the stage, from 1
    starts: tuple[int, ...] = ()  # the starts that take part; those that no longer do have stopped
    retry: tuple[int, ...] = ()  # of these, the ones whose last step is taken back
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Answer:
    round: int
    step: Step
    starts: tuple[int, ...] = ()  # the task's
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)
    fraction_bits: Mapping[str, int] = field(default_factory=dict)  # of each array


class Piece(NamedTuple):
    """A stretch of one array of an answer: `words` from position `begin` of the flattened array on."""

    name: str
    shape: tuple[int, ...]
    fraction_bits: int
    begin: int
    words: Array

    def __repr__(self) -> str:
        return f"Piece({self.name!r}, begin={self.begin})"  # sums are nobody's business


def pieces(answer: Answer) -> Iterator[Piece]:
    """A whole answer, one piece per array."""
    for name, array in answer.arrays.items():
        yield Piece(name, array.shape, answer.fraction_bits[name], 0, array.reshape(-1))


def fraction_bits(name: str, scales: Mapping[str, Scale]) -> int:
    """The fixed point of a summed array, by its name; counts have none."""
    group, *_, what = name.split("/")
    if what == "sums":
        what = "objects" if group == "block" else "columns"
    elif (group, what) == ("global", "objects"):
        return 0  # a count, unlike the sums of blocks that go by the same scale's name
    return scales[what].bits if what in scales else 0


def array_hash(array: Array) -> bytes:
    """SHA-256 of an array's elements, little-endian and row-major."""
    return hashlib.sha256(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data).digest()


def task_digest(job: bytes, epoch: int, task: Task, hashes: Mapping[str, bytes]) -> bytes:
    """SHA-256 of all that a task says, as lines of text; `job` is the job's digest, `hashes` those of the arrays."""
    starts, retry = _listed(task.starts), _listed(task.retry)
    where = f"{epoch} {task.round} {task.step} {task.stage} {task.iteration}"
    lines = ["ce task 1", job.hex(), where, starts, retry]
    for name in sorted(task.arrays):
        array = task.arrays[name]
        lines.append(f"{name} {array.dtype.kind} {_listed(array.shape)} {hashes[name].hex()}")
    return hashlib.sha256("\n".join(lines).encode()).digest()


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
