"""What the first site of a blind job has decided, as bytes for the other sites.

One byte for each start of the stage:

    0  does not run        1  goes on        2  goes back: its last step is taken back
    3  stops: converged    4  stops: at the iteration limit, or because the model says so
    5  stops: dropped, because other starts are better

then named arrays of doubles, in order of name: the bound and the globals that follow, each as

    length of the name (uint32)  name (UTF-8)  number of sides (uint32)  sides (uint64 each)  elements (float64)

Integers and doubles are little-endian, arrays row-major. Their first side counts all starts of the stage, with zeros
for those that do not run: the length does not tell the coordinator, which passes it on, how many still do.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from ce.errors import MessageError
from ce.protocol.engine.start_selection import StartDecisions
from ce.ring import Reals
from ce.steps.model import State

NOT_RUNNING, GOES_ON, GOES_BACK, CONVERGED, STOPPED, DROPPED = range(6)
_BOUND = "bound"


def encoded_size(like: Mapping[str, Reals], starts: int) -> int:
    """Bytes of an encoded decision with globals like these, of so many starts."""
    shapes = _shapes(like, starts)
    return starts + sum(len(_header(name, shape)) + 8 * math.prod(shape) for name, shape in shapes.items())


def encode_decision(decisions: StartDecisions, running: Sequence[int], starts: int) -> bytes:
    """`running`: the starts that the decisions are about, of so many `starts`."""
    status = bytearray(starts)
    for position, start in enumerate(running):
        status[start] = GOES_BACK if decisions.retry[position] else GOES_ON
        if decisions.stop[position]:
            status[start] = CONVERGED if decisions.converged[position] else STOPPED
            if decisions.dropped[position]:
                status[start] = DROPPED
    parts = [bytes(status)]
    for name, values in sorted({_BOUND: decisions.bound, **decisions.globals}.items()):
        whole = np.zeros((starts, *values.shape[1:]), dtype="<f8")
        whole[list(running)] = values
        parts += [_header(name, whole.shape), whole.tobytes()]
    return b"".join(parts)


def decode_decision(content: bytes, running: Sequence[int], starts: int, like: State) -> StartDecisions:
    """The decisions again; `like` are globals of the same names and shapes. MessageError when it is not one of them."""
    if len(content) != encoded_size(like, starts):
        raise MessageError("decision: expected another number of bytes for the globals of this model")
    status, runs, arrays = np.frombuffer(content[:starts], np.uint8), list(running), {}
    at = starts
    for name, shape in sorted(_shapes(like, starts).items()):
        header = _header(name, shape)
        if content[at : at + len(header)] != header:
            raise MessageError("decision: expected other names or shapes of globals")
        at += len(header)
        count = math.prod(shape)
        values = np.frombuffer(content, "<f8", count, at).reshape(shape)
        arrays[name] = np.ascontiguousarray(values[runs], dtype=np.float64)
        at += 8 * count
    mine = status[runs]
    if ((mine < GOES_ON) | (mine > DROPPED)).any() or np.count_nonzero(status) != len(mine):
        raise MessageError("decision: expected one for each start that runs, and for no other")
    bound = arrays.pop(_BOUND)
    return StartDecisions(bound, arrays, mine == GOES_BACK, mine == CONVERGED, mine == STOPPED, mine == DROPPED)


def _shapes(like: Mapping[str, Reals], starts: int) -> dict[str, tuple[int, ...]]:
    return {_BOUND: (starts,), **{name: (starts, *values.shape[1:]) for name, values in like.items()}}


def _header(name: str, shape: tuple[int, ...]) -> bytes:
    text = name.encode()
    sides = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<I", len(text)) + text + sides
