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
    return len(_encode(bytes(starts), _shapes(like, starts), {}))


def encode_decision(decisions: StartDecisions, running: Sequence[int], starts: int) -> bytes:
    """`running`: the starts that the decisions are about, of so many `starts`."""
    status = bytearray(starts)
    for position, start in enumerate(running):
        status[start] = GOES_BACK if decisions.retry[position] else GOES_ON
        if decisions.stop[position]:
            status[start] = CONVERGED if decisions.converged[position] else STOPPED
            if decisions.dropped[position]:
                status[start] = DROPPED
    arrays = {_BOUND: decisions.bound, **decisions.globals}
    whole = {}
    for name, values in arrays.items():
        whole[name] = np.zeros((starts, *values.shape[1:]))
        whole[name][list(running)] = values
    return _encode(bytes(status), {name: array.shape for name, array in whole.items()}, whole)


def decode_decision(content: bytes, running: Sequence[int], starts: int, like: State) -> StartDecisions:
    """The decisions again; `like` are globals of the same names and shapes. MessageError when it is not one of them."""
    expected = _shapes(like, starts)
    if len(content) != len(_encode(bytes(starts), expected, {})):
        raise MessageError("decision: expected another number of bytes for the globals of this model")
    status, arrays = np.frombuffer(content[:starts], np.uint8), {}
    at = starts
    for name, shape in sorted(expected.items()):
        header = _header(name, shape)
        if content[at : at + len(header)] != header:
            raise MessageError("decision: expected other names or shapes of globals")
        at += len(header)
        count = int(np.prod(shape))
        values = np.frombuffer(content, "<f8", count, at).reshape(shape)
        arrays[name] = np.ascontiguousarray(values[list(running)], dtype=np.float64)
        at += 8 * count
    mine, others = status[list(running)], np.delete(status, list(running))
    if ((mine < GOES_ON) | (mine > DROPPED)).any() or others.any():
        raise MessageError("decision: expected one for each start that runs, and for no other")
    bound = arrays.pop(_BOUND)
    return StartDecisions(bound, arrays, mine == GOES_BACK, mine == CONVERGED, mine == STOPPED, mine == DROPPED)


def _shapes(like: Mapping[str, Reals], starts: int) -> dict[str, tuple[int, ...]]:
    return {_BOUND: (starts,), **{name: (starts, *values.shape[1:]) for name, values in like.items()}}


def _encode(status: bytes, shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Reals]) -> bytes:
    parts = [status]
    for name, shape in sorted(shapes.items()):
        array = arrays.get(name)
        elements = bytes(8 * int(np.prod(shape))) if array is None else array.astype("<f8").tobytes()
        parts += [_header(name, shape), elements]
    return b"".join(parts)


def _header(name: str, shape: tuple[int, ...]) -> bytes:
    text = name.encode()
    sides = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<I", len(text)) + text + sides
