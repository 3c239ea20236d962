"""Arrays in pieces: named arrays to `ArrayChunks` of at most 1 MiB each, and back.

Decoding trusts nothing: a name, type, shape, offset or length that does not fit is a MessageError that names the field,
never its content. Numbers that are not finite are refused here, once, so that nothing behind has to look for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from ce.errors import MessageError
from ce.protocol.messages.rooms import give_back
from ce.protocol.messages.task import Array, ArrayChunk
from ce.ring import LARGEST_BITS
from ce_proto.v1 import arrays_pb2 as pb

Frame = TypeVar("Frame")

#: Bytes of elements in one frame, at most.
CHUNK = 2**20
#: In a job of many sites frames are smaller, so that the frames that a coordinator holds for all of its streams (each
#: has some on their way, in several copies) take no more than some of these bytes. Smaller ones cost too much time.
ALL_STREAMS, SMALLEST_CHUNK = 2**22, 2**16
#: What gRPC may take for one frame: a chunk, and room for names, tokens and certificates.
LARGEST_FRAME = 4 * CHUNK
#: What the other fields of a message with arrays may take: all of them are in its first frame.
LARGEST_HEADER = LARGEST_FRAME - CHUNK - 2**12
#: What a piece takes in a frame beside its name and its elements, at most.
_AROUND = 64
MOST_DIMENSIONS = 4
_MOST_NAME = 200
_LARGEST_SIZE = 2**40
_TYPES: dict[int, np.dtype[Any]] = {
    pb.ELEMENT_TYPE_INT64: np.dtype("<i8"),
    pb.ELEMENT_TYPE_FLOAT64: np.dtype("<f8"),
    pb.ELEMENT_TYPE_BYTE: np.dtype("u1"),
    pb.ELEMENT_TYPE_INT32: np.dtype("<i4"),
    pb.ELEMENT_TYPE_FLOAT32: np.dtype("<f4"),
}
_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}


def chunk_of(sites: int) -> int:
    """Bytes of elements in one frame of a job of so many sites: a power of two."""
    share: int = 2 ** (ALL_STREAMS // sites).bit_length() // 2
    return min(CHUNK, max(SMALLEST_CHUNK, share))


def to_chunks(
    arrays: Mapping[str, Array], fraction_bits: Mapping[str, int] | None = None, chunk: int | None = None
) -> Iterator[pb.ArrayChunks]:
    """All arrays in order, as frames' worth of pieces; at least one, and the last says so. `chunk`: see `chunk_of`."""

    def next_chunks() -> tuple[pb.ArrayChunks, pb.ArrayChunks]:
        chunks = pb.ArrayChunks()
        return chunks, chunks

    return in_frames(arrays, fraction_bits or {}, next_chunks(), next_chunks, chunk)


def in_frames(
    arrays: Mapping[str, Array],
    fraction_bits: Mapping[str, int],
    first: tuple[Frame, pb.ArrayChunks],
    following: Callable[[], tuple[Frame, pb.ArrayChunks]],
    chunk: int | None = None,
) -> Iterator[Frame]:
    """The same, written where they leave: into the first frame and those that follow it, each given with its chunks. A
    message that is made part of another one is copied."""
    chunk = chunk or CHUNK
    (frame, chunks), room = first, chunk
    for name, array in arrays.items():
        dtype = array.dtype if array.dtype in _NUMBERS else array.dtype.newbyteorder("<")
        kind, bits = _NUMBERS[dtype], fraction_bits.get(name, 0)
        elements = array.astype(dtype, copy=False)
        # Arrays of a few numbers, or of none, take room too: a site may be in very many small blocks.
        around = len(name) + _AROUND
        if room <= 0:
            yield frame
            (frame, chunks), room = following(), chunk
        if array.nbytes <= room:
            data = elements.tobytes()  # row-major whatever the strides are
            give_back(elements, 0, len(data))
            chunks.chunks.add(name=name, type=kind, shape=array.shape, fraction_bits=bits, data=data)
            room -= len(data) + around
            continue
        contiguous = np.ascontiguousarray(elements).reshape(-1)
        flat = contiguous.data.cast("B")
        offset, step = 0, elements.itemsize
        while offset < len(flat):
            if room < step:
                yield frame
                (frame, chunks), room = following(), chunk
            data = bytes(flat[offset : offset + room // step * step])
            give_back(contiguous, offset, offset + len(data))
            chunks.chunks.add(name=name, type=kind, shape=array.shape, fraction_bits=bits, offset=offset, data=data)
            room -= len(data) + around
            offset += len(data)
    chunks.last = True
    yield frame


def chunks_of(chunks: pb.ArrayChunks) -> Iterator[ArrayChunk]:
    """The pieces of one frame, each checked by itself."""
    room = CHUNK
    # Pieces without elements cost time, too: what `to_parts` puts in a frame has this many at most.
    if len(chunks.chunks) > CHUNK // _AROUND + 1:
        raise MessageError("parts: more pieces in one frame than it has room for")
    for part in chunks.chunks:
        # Looked at before it is multiplied: the product of a million sides is a number with millions of digits.
        sides = part.shape
        if len(sides) > MOST_DIMENSIONS:
            raise MessageError("parts: a shape is too long or too large")
        name, shape, data = checked_name(part.name), tuple(sides), part.data
        dtype = _TYPES.get(part.type)
        if dtype is None:
            raise MessageError("parts: an unknown element type")
        size, length, width = math.prod(shape), len(data), dtype.itemsize
        # Also the sides of an array without elements must fit the machine's sizes.
        if (size or math.prod(side or 1 for side in shape)) >= _LARGEST_SIZE:
            raise MessageError("parts: a shape is too long or too large")
        begin, odd = divmod(part.offset, width)
        if odd or length % width:
            raise MessageError("parts: a piece is not whole elements")
        if begin + length // width > size:
            raise MessageError("parts: a piece is longer than its array")
        room -= length
        if room < 0:
            raise MessageError("parts: more than 1 MiB in one frame")
        bits = part.fraction_bits
        if bits > LARGEST_BITS:
            raise MessageError("parts: more than 62 fractional bits")
        yield ArrayChunk(name, shape, bits, begin, np.frombuffer(data, dtype))


@lru_cache(4096)
def checked_name(name: str) -> str:
    """The name of an array, or a MessageError."""
    if not 0 < len(name) <= _MOST_NAME or not name.isprintable() or " " in name:
        raise MessageError("parts: a name is not 1 to 200 characters without spaces")
    return name


class Collector:
    """Puts arrays together out of the frames of one message, into buffers of the announced size."""

    def __init__(self, largest_bytes: int, key: str = "") -> None:
        """`key`: what the limit is called where it is set."""
        self._left = largest_bytes
        self._key = f" ({key})" if key else ""
        self.received: dict[str, Array] = {}  # to the last one only once the message is complete
        self._open: str | None = None
        self._filled = 0
        self._ended = False
        self.fraction_bits: dict[str, int] = {}

    def feed(self, chunks: pb.ArrayChunks) -> bool:
        """Take one frame's pieces. True: the message is complete."""
        if self._ended:
            raise MessageError("parts: the message has ended")
        for chunk in chunks_of(chunks):
            self._take(chunk)
        self._ended = chunks.last
        if self._ended and self._open is not None:
            raise MessageError("parts: the message ends before its arrays do")
        return self._ended

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays, once the message is complete."""
        self.check_finite()
        return self.received

    def check_finite(self) -> None:
        for name, array in self.received.items():
            if array.dtype.kind == "f" and np.count_nonzero(np.isfinite(array)) != array.size:
                raise MessageError(f"{name}: not all numbers are finite")

    def _take(self, chunk: ArrayChunk) -> None:
        name = chunk.name
        if self._open is None:
            if name in self.received:
                raise MessageError("parts: two arrays have the same name")
            # An entry in a dictionary costs something too, also for an array without elements.
            size = math.prod(chunk.shape)
            self._left -= size * chunk.words.dtype.itemsize + 64
            if self._left < 0:
                raise MessageError(f"parts: the message is larger than allowed{self._key}")
            self.fraction_bits[name] = chunk.fraction_bits
            if len(chunk.words) == size and chunk.begin == 0:
                self.received[name] = chunk.words.reshape(chunk.shape).copy()
                return
            self.received[name] = np.empty(chunk.shape, dtype=chunk.words.dtype)
            self._filled = 0
        array: Any = self.received[name] if self._open in (None, name) else None
        if array is None or chunk.begin != self._filled:
            raise MessageError("parts: pieces do not arrive in order")
        known = (array.shape, array.dtype, self.fraction_bits[name])
        if known != (chunk.shape, chunk.words.dtype, chunk.fraction_bits):
            raise MessageError("parts: the pieces of an array disagree on its type, shape or scale")
        self._filled += len(chunk.words)
        array.reshape(-1)[chunk.begin : self._filled] = chunk.words
        self._open = None if self._filled == array.size else name
        if self._open is not None and not len(chunk.words):
            raise MessageError("parts: a piece without elements")
