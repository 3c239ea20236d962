"""Arrays in pieces: named arrays to `Parts` of at most 1 MiB each, and back.

Decoding trusts nothing: a name, type, shape, offset or length that does not fit is a MessageError that names the field,
never its content. Numbers that are not finite are refused here, once, so that nothing behind has to look for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ce.errors import MessageError
from ce.protocol.messages import Array, Piece
from ce_proto.v1 import arrays_pb2 as pb

#: Bytes of elements in one frame.
CHUNK = 2**20
#: What gRPC may take for one frame: a chunk, and room for names, tokens and certificates.
LARGEST_FRAME = 4 * CHUNK
_MOST_DIMENSIONS = 4
_MOST_NAME = 200
_TYPES = {
    pb.ELEMENT_TYPE_INT64: np.dtype("<i8"),
    pb.ELEMENT_TYPE_FLOAT64: np.dtype("<f8"),
    pb.ELEMENT_TYPE_BYTE: np.dtype("u1"),
}
_NUMBERS = {"i": pb.ELEMENT_TYPE_INT64, "f": pb.ELEMENT_TYPE_FLOAT64, "u": pb.ELEMENT_TYPE_BYTE}


def to_parts(arrays: Mapping[str, Array], fraction_bits: Mapping[str, int] | None = None) -> Iterator[pb.Parts]:
    """All arrays in order, as frames' worth of pieces; at least one, and the last says so."""
    parts, room = pb.Parts(), CHUNK
    for name, array in arrays.items():
        kind = _NUMBERS[array.dtype.kind]
        size = _TYPES[kind].itemsize
        # bytes() of it is row-major whatever the strides were.
        flat = memoryview(np.ascontiguousarray(array, dtype=_TYPES[kind]).reshape(-1)).cast("B") if array.size else b""
        offset = 0
        while True:
            end = min(offset + room // size * size, len(flat))
            parts.parts.add(
                name=name,
                type=kind,
                shape=array.shape,
                fraction_bits=(fraction_bits or {}).get(name, 0),
                offset=offset,
                data=bytes(flat[offset:end]),
            )
            room -= end - offset
            offset = end
            if offset == len(flat):
                break
            yield parts
            parts, room = pb.Parts(), CHUNK
    parts.last = True
    yield parts


def pieces_of(parts: pb.Parts) -> Iterator[Piece]:
    """The pieces of one frame, each checked by itself."""
    room = CHUNK
    for part in parts.parts:
        name = part.name
        if not 0 < len(name) <= _MOST_NAME:
            raise MessageError("parts: a name is not 1 to 200 characters")
        dtype = _TYPES.get(part.type)
        if dtype is None:
            raise MessageError("parts: an unknown element type")
        shape = tuple(part.shape)
        if len(shape) > _MOST_DIMENSIONS or math.prod(shape) >= 2**40 or any(side >= 2**40 for side in shape):
            raise MessageError("parts: a shape is too long or too large")
        if part.fraction_bits > 62:
            raise MessageError("parts: more than 62 fractional bits")
        data = part.data
        if part.offset % dtype.itemsize or len(data) % dtype.itemsize:
            raise MessageError("parts: a piece is not whole elements")
        begin = part.offset // dtype.itemsize
        if begin + len(data) // dtype.itemsize > math.prod(shape):
            raise MessageError("parts: a piece is longer than its array")
        room -= len(data)
        if room < 0:
            raise MessageError("parts: more than 1 MiB in one frame")
        yield Piece(name, shape, part.fraction_bits, begin, np.frombuffer(data, dtype))


class Collector:
    """Puts arrays together out of the frames of one message, into buffers of the announced size."""

    def __init__(self, largest_bytes: int) -> None:
        self._left = largest_bytes
        self._arrays: dict[str, Array] = {}
        self._open: str | None = None
        self._filled = 0
        self._ended = False
        self.fraction_bits: dict[str, int] = {}

    def feed(self, parts: pb.Parts) -> bool:
        """Take one frame's pieces. True: the message is complete."""
        if self._ended:
            raise MessageError("parts: the message has ended")
        for piece in pieces_of(parts):
            self._take(piece)
        self._ended = parts.last
        if self._ended and self._open is not None:
            raise MessageError("parts: the message ends before its arrays do")
        return self._ended

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays, once the message is complete."""
        for name, array in self._arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise MessageError(f"{name}: not all numbers are finite")
        return self._arrays

    def _take(self, piece: Piece) -> None:
        name = piece.name
        if self._open is None:
            if name in self._arrays:
                raise MessageError("parts: two arrays have the same name")
            # An entry in a dictionary costs something too, also for an array without elements.
            self._left -= math.prod(piece.shape) * piece.words.dtype.itemsize + 64
            if self._left < 0:
                raise MessageError("parts: the message is larger than allowed")
            self._arrays[name] = np.empty(piece.shape, dtype=piece.words.dtype)
            self.fraction_bits[name] = piece.fraction_bits
            self._filled = 0
        array: Any = self._arrays[name] if self._open in (None, name) else None
        if array is None or piece.begin != self._filled:
            raise MessageError("parts: pieces do not arrive in order")
        if array.shape != piece.shape or array.dtype != piece.words.dtype:
            raise MessageError("parts: the pieces of an array disagree on its type or shape")
        self._filled += len(piece.words)
        array.reshape(-1)[piece.begin : self._filled] = piece.words
        self._open = None if self._filled == array.size else name
        if self._open is not None and not len(piece.words):
            raise MessageError("parts: a piece without elements")
