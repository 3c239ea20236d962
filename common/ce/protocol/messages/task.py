"""What home and sites send each other: a task down, an answer up.

A task carries the outcome of the last exchange (globals, beta of shared columns, messages of shared blocks, which
starts take part, which stop, which are taken back), the step to do next, and the list of arrays that the site must
answer with. Steps and their arrays: `ce.protocol.messages.steps`. In blind, arrays keep the width of all starts, and
totals go down as words. How tasks and answers become bytes: `ce.transport`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from ce.protocol.messages.rooms import give_back
from ce.protocol.messages.steps import ArraySpec, Step

#: Bytes that are hashed at once: an array may be a file.
_STRETCH = 2**20
#: Bytes of arrays that are copied to be hashed: pages that so few are on need not be given back.
_FEW = 2**12
#: Rounds of a stage ask for the same arrays: so many lists of asked arrays are remembered as they are hashed and sent.
RECENT_ASKED = 8

Array = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.uint8] | NDArray[np.int32] | NDArray[np.float32]


class NextStep(NamedTuple):
    """The step after a decision, in the clear: the party that adds must know what to wait for."""

    step: Step
    stage: int


@dataclass(frozen=True)
class Task:
    """What a site is asked to do in one round."""

    round: int
    step: Step
    stage: int = 0  # which of the model's stages; a higher number than before begins the next one
    iteration: int = 0  # of the stage, from 1
    starts: tuple[int, ...] = ()  # the starts that take part
    retry: tuple[int, ...] = ()  # of these, the ones whose last step is taken back
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)
    checkpoint: int = 0  # not 0: write a checkpoint of this origin and round after this answer
    resume: int = 0  # not 0: go on from the checkpoint of this origin and round, and answer as then
    stop: tuple[int, ...] = ()  # the starts that took part in the task before and do not take part any more
    asked: Mapping[str, ArraySpec] = field(default_factory=dict)  # the arrays of the answer, by name

    @cached_property
    def hashes(self) -> dict[str, bytes]:
        """BLAKE3 of each array."""
        return {name: array_hash(array) for name, array in self.arrays.items()}

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class Answer:
    """A site's contribution to one round."""

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
        return f"ArrayChunk({self.name!r}, begin={self.begin})"  # never print values


def chunks(answer: Answer) -> Iterator[ArrayChunk]:
    """A whole answer, one chunk per array."""
    for name, array in answer.arrays.items():
        yield ArrayChunk(name, array.shape, answer.fraction_bits[name], 0, array.reshape(-1))


def array_hash(array: Array) -> bytes:
    """BLAKE3 of an array's elements, little-endian and row-major. Of a large exchange, SHA-256 took two fifths."""
    if array.nbytes <= _FEW:
        return blake3(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()).digest()
    content = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    found = blake3()
    for begin in range(0, len(content), _STRETCH):
        end = min(begin + _STRETCH, len(content))
        found.update(content[begin:end].data)
        give_back(content, begin, end)
    return found.digest()


def task_digest(job: bytes, epoch: int, task: Task, hashes: Mapping[str, bytes]) -> bytes:
    """SHA-256 of all that a task says, as lines of text; `job` is the job's digest, `hashes` those of the arrays."""
    starts, retry = _listed(task.starts), _listed(task.retry)
    where = f"{epoch} {task.round} {task.step} {task.stage} {task.iteration}"
    where += f" checkpoint {task.checkpoint}" * (task.checkpoint > 0) + f" resume {task.resume}" * (task.resume > 0)
    lines = ["ce task 2", job.hex(), where, starts, retry, _listed(task.stop)]
    lines += _lines_of_asked(tuple(task.asked.items()))
    for name in sorted(task.arrays):
        array = task.arrays[name]
        kind = f"{array.dtype.kind}4" if array.dtype.itemsize == 4 else array.dtype.kind
        lines.append(f"{name} {kind} {_listed(array.shape)} {hashes[name].hex()}")
    return hashlib.sha256("\n".join(lines).encode()).digest()


@lru_cache(RECENT_ASKED)
def _lines_of_asked(asked: tuple[tuple[str, ArraySpec], ...]) -> tuple[str, ...]:
    lines = []
    for name, spec in sorted(asked):
        width = f" words {spec.word_bits}" * (spec.word_bits != 64)
        lines.append(f"asked {name} {_listed(spec.shape)} {spec.fraction_bits}{width}")
    return tuple(lines)


def digests_of(tasks: Mapping[str, Task], job: bytes, epoch: int) -> dict[str, bytes]:
    """The digest of every site's task in a round. Tasks are often the same object, and most arrays go to several sites:
    each is hashed once."""
    hashed: dict[int, bytes] = {}
    digests: dict[int, bytes] = {}
    for task in tasks.values():
        if id(task) not in digests:
            for array in task.arrays.values():
                if id(array) not in hashed:
                    hashed[id(array)] = array_hash(array)
            hashes = {name: hashed[id(array)] for name, array in task.arrays.items()}
            digests[id(task)] = task_digest(job, epoch, task, hashes)
    return {site: digests[id(task)] for site, task in tasks.items()}


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
