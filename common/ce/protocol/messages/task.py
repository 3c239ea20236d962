"""What home and sites say to each other: a task down, an answer up.

A task carries the outcome of the last exchange (globals, tables of shared columns, messages of shared blocks, which
starts go on) and the step to do next. Steps:

    open      count before anything else: labels of each shared object, those of them in columns with one holder
              ("hidden"), ballots, claims on contested cells, the private objects that have a label
    counts    tells the members the counts of their objects, and asks for nothing: a site may leave out objects with
              too few labels, and then all are aligned anew
    votes     models with votes: what the ballots of each shared object say
    sums      one iteration in one exchange: object sums, column sums, shares of the globals and the bound, and how
              many objects' most likely cluster moved
    objects   two-phase models where a shared block has cells of a shared column: object sums and shares ...
    columns   ... then column sums, from the messages just received
    shares    blind only: shares of blocks that not all sites hold, which their members know after the last exchange
    view      object sums under a flat message: what the clusterings alone say (models with votes)
    finish    the winner's globals and, of shared blocks, memberships and which objects have a label at all; the
              answer is a receipt, with the sizes of the clusters among the private objects

    keys      blind only: keys that the contributors of a total share, sealed for each of them
    decide    blind only, to the first site by name: the totals of the last exchange; it answers what all must do alike

Arrays: block/<b>/<what> (starts, k, n); columns/<g>/<what> (starts, k, categories of the group's columns, side by
side); global/<name> (starts, ...). In blind arrays keep the width of all starts, and totals go down as words; bytes
that one site has sealed for another are sealed/<to> on the way up and sealed/<from> on the way down.
How these become bytes is the transport's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ce.ring import Scale

Step = Literal[
    "open", "sums", "objects", "columns", "clusterings_only", "finish", "keys", "decide", "shares", "votes", "counts"
]
STEPS: tuple[Step, ...] = get_args(Step)
Array = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.uint8]


class NextStep(NamedTuple):
    """The step after a decision, in the clear: whoever adds must know what to wait for."""

    step: Step
    stage: int


@dataclass(frozen=True)
class Task:
    round: int
    step: Step
    stage: int = 0  # which of the model's stages; a higher number than before begins the next one
    iteration: int = 0  # of the stage, from 1
    starts: tuple[int, ...] = ()  # the starts that take part; those that no longer do have stopped
    retry: tuple[int, ...] = ()  # of these, the ones whose last step is taken back
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)
    checkpoint: int = (
        0  # not 0: keep the state after this answer, as of this origin and round (`ce.service.checkpoints`)
    )
    resume: int = 0  # not 0: go on from the state that was kept as of this origin and round, and answer as then

    @cached_property
    def hashes(self) -> dict[str, bytes]:
        """SHA-256 of each array."""
        return {name: array_hash(array) for name, array in self.arrays.items()}


@dataclass(frozen=True)
class Answer:
    round: int
    step: Step
    starts: tuple[int, ...] = ()  # the task's
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)
    fraction_bits: Mapping[str, int] = field(default_factory=dict)  # of each array
    next_step: NextStep | None = None  # blind, "decide": what the first site by name says comes next
    state: bytes = b""  # blind: a digest of what all sites should have in common by now
    ledger: bytes = b""  # the head of the sender's disclosure ledger, this answer included


class ArrayChunk(NamedTuple):
    """A stretch of one array of an answer: `words` from position `begin` of the flattened array on."""

    name: str
    shape: tuple[int, ...]
    fraction_bits: int
    begin: int
    words: Array

    def __repr__(self) -> str:
        return f"Piece({self.name!r}, begin={self.begin})"  # sums are nobody's business


def chunks(answer: Answer) -> Iterator[ArrayChunk]:
    """A whole answer, one piece per array."""
    for name, array in answer.arrays.items():
        yield ArrayChunk(name, array.shape, answer.fraction_bits[name], 0, array.reshape(-1))


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
    where += f" checkpoint {task.checkpoint}" * (task.checkpoint > 0) + f" resume {task.resume}" * (task.resume > 0)
    lines = ["ce task 1", job.hex(), where, starts, retry]
    for name in sorted(task.arrays):
        array = task.arrays[name]
        lines.append(f"{name} {array.dtype.kind} {_listed(array.shape)} {hashes[name].hex()}")
    return hashlib.sha256("\n".join(lines).encode()).digest()


def digests_of(tasks: Mapping[str, Task], job: bytes, epoch: int) -> dict[str, bytes]:
    """The digest of every site's task in a round. Most arrays go to several sites, and are hashed once."""
    hashed: dict[int, bytes] = {}
    digests: dict[tuple[tuple[str, int], ...], bytes] = {}
    found = {}
    for site, task in tasks.items():
        which = tuple((name, id(array)) for name, array in task.arrays.items())
        if which not in digests:
            for array in task.arrays.values():
                if id(array) not in hashed:
                    hashed[id(array)] = array_hash(array)
            hashes = {name: hashed[at] for name, at in which}
            digests[which] = task_digest(job, epoch, task, hashes)
        found[site] = digests[which]
    return found


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
