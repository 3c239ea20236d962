"""Snapshots as bytes: plain values (numbers, texts, bytes, arrays, None, lists and dictionaries of those) and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_LENGTH = 8


def pack(snapshot: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """As bytes, in pieces; arrays as they are in memory."""
    arrays: list[Any] = []
    tree = _tree(snapshot, arrays)
    header = json.dumps({"tree": tree, "arrays": [[array.dtype.str, array.shape] for array in arrays]}).encode()
    yield len(header).to_bytes(_LENGTH, "big") + header
    for array in arrays:
        yield memoryview(array.reshape(-1)).cast("B")


def unpack(content: bytearray) -> dict[str, Any]:
    """The snapshot again; its arrays are parts of `content`. ValueError when it is not one."""
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "big")
    header = json.loads(content[_LENGTH:end])
    arrays = []
    for dtype, shape in header["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content, dtype, count, end).reshape(shape))
        end += arrays[-1].nbytes
    if end != len(content):
        raise ValueError("of another length")
    return _value(header["tree"], arrays)  # type: ignore[no-any-return]


def _tree(value: Any, arrays: list[Any]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value).reshape(value.shape))
        return {"array": len(arrays) - 1}
    if isinstance(value, Mapping):
        return {"of": {key: _tree(item, arrays) for key, item in value.items()}}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list | tuple):
        return [_tree(item, arrays) for item in value]
    return value


def _value(tree: Any, arrays: list[Any]) -> Any:
    if isinstance(tree, list):
        return [_value(item, arrays) for item in tree]
    if isinstance(tree, dict):
        if "array" in tree:
            return arrays[tree["array"]]
        if "bytes" in tree:
            return bytes.fromhex(tree["bytes"])
        return {key: _value(item, arrays) for key, item in tree["of"].items()}
    return tree
