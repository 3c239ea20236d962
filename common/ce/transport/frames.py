"""The bytes of a message: a header of plain values, then named arrays as raw little-endian words.

    magic "CEF1" | header length, 4 bytes | header, JSON | arrays, back to back in the header's order

Decoding trusts nothing: a length, name, type or shape that does not fit is a MessageError that names the field, and
never its content. Numbers that are not finite are refused here, once, so that nothing behind has to look for them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.errors import MessageError

Array = NDArray[np.int64] | NDArray[np.float64]

_MAGIC = b"CEF1"
_PREFIX = struct.Struct("<4sI")
_TYPES = {"i8": np.dtype("<i8"), "f8": np.dtype("<f8")}
_MOST_HEADER_BYTES = 16 * 2**20
_MOST_DIMENSIONS = 4


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Encode a message. `header` holds JSON values under any names but "arrays"."""
    described = []
    chunks: list[bytes] = []
    for name, array in arrays.items():
        kind = "f8" if array.dtype == np.float64 else "i8"
        described.append([name, kind, list(array.shape)])
        chunks.append(np.ascontiguousarray(array, dtype=_TYPES[kind]).tobytes())
    text = json.dumps({**header, "arrays": described}, separators=(",", ":")).encode()
    return b"".join((_PREFIX.pack(_MAGIC, len(text)), text, *chunks))


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Decode a message into its header and its arrays."""
    if len(message) < _PREFIX.size:
        raise MessageError("message: shorter than its prefix")
    magic, length = _PREFIX.unpack_from(message)
    if magic != _MAGIC:
        raise MessageError("message: not a ce message of this version")
    if length > min(_MOST_HEADER_BYTES, len(message) - _PREFIX.size):
        raise MessageError("header: longer than the message or than allowed")
    begin = _PREFIX.size + length
    try:
        header = json.loads(message[_PREFIX.size : begin])
    except (ValueError, RecursionError) as error:
        raise MessageError("header: not JSON") from error
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), list):
        raise MessageError("header: does not list its arrays")
    arrays: dict[str, Array] = {}
    for entry in header.pop("arrays"):
        name, dtype, shape = _checked(entry)
        if name in arrays:
            raise MessageError("arrays: two have the same name")
        size = math.prod(shape) * dtype.itemsize
        if size > len(message) - begin:
            raise MessageError("arrays: the message ends before its arrays do")
        array = np.frombuffer(message, dtype, math.prod(shape), begin).reshape(shape)
        if dtype.kind == "f" and not np.isfinite(array).all():
            raise MessageError(f"{name}: not all numbers are finite")
        arrays[name] = array
        begin += size
    if begin != len(message):
        raise MessageError("arrays: bytes are left over")
    return header, arrays


def _checked(entry: object) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    if not isinstance(entry, list) or len(entry) != 3:
        raise MessageError("arrays: an entry is not [name, type, shape]")
    name, kind, shape = entry
    if not isinstance(name, str) or len(name) > 200:
        raise MessageError("arrays: a name is not a short string")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise MessageError("arrays: a type is neither i8 nor f8")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise MessageError("arrays: a shape is not a short list")
    if not all(type(side) is int and 0 <= side < 2**40 for side in shape):
        raise MessageError("arrays: a shape is not made of sizes")
    return name, _TYPES[kind], tuple(shape)
