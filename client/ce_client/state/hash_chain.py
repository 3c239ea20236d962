"""Lines of JSON, each chained to all before it: head = SHA-256(head before || the line without its hash).

A line is canonical JSON (sorted keys, no spaces, ASCII) with its head, in hex, as the last key `hash`. So every byte of
a file is covered, also those that mean nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ce.errors import InputError

#: The head before the first line.
NO_LINES = bytes(32)

_HASH = re.compile(rb',"hash":"([0-9a-f]{64})"\}\n')
_HASH_BYTES = 76  # of what that matches


class Broken(Exception):
    """A line that is not as it was written; says how."""


def canonical(line: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII: the same bytes for the same line."""
    return json.dumps(line, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def chained(before: bytes, body: bytes) -> bytes:
    """The head after a line: `body` is the line without its hash."""
    return hashlib.sha256(before + body).digest()


def joined(body: bytes, head: bytes) -> bytes:
    """A line as it stands in the file."""
    return body[:-1] + b',"hash":"' + head.hex().encode() + b'"}\n'


def split(raw: bytes) -> tuple[bytes, str] | None:
    """A line without its hash, and its hash; None when it does not end as a line does."""
    found = _HASH.fullmatch(raw[-_HASH_BYTES:])
    return None if found is None else (raw[:-_HASH_BYTES] + b"}", found[1].decode())


def checked(raw: bytes, before: bytes) -> tuple[bytes, dict[str, Any]]:
    """The head after a line, and the line; Broken unless it continues the chain, byte for byte."""
    if not raw.endswith(b"\n"):
        raise Broken("is incomplete: the daemon was killed in it (then it is cut off at the next start), or it was cut")
    parts = split(raw)
    if parts is None:
        raise Broken("does not end with a hash")
    body, written = parts
    head = chained(before, body)
    if head.hex() != written:
        raise Broken("this line, or one before it, is not as it was written")
    try:
        line = json.loads(body)
        json_is_ours = isinstance(line, dict) and canonical(line) == body
    except (ValueError, RecursionError):
        json_is_ours = False
    if not json_is_ours or not isinstance(line.get("n"), int) or not isinstance(line.get("kind"), str):
        raise Broken("is not a line of a ledger")
    return head, line


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that may grow meanwhile; the last one lacks its end when it is not whole."""
    try:
        with path.open("rb") as file:
            yield from _up_to(file, _settled_size(file))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _settled_size(file: BinaryIO) -> int:
    """A daemon may be writing: a line that is not complete is looked at once more."""
    for _ in range(10):
        size = os.fstat(file.fileno()).st_size
        if size == 0 or os.pread(file.fileno(), 1, size - 1) == b"\n":
            break
    return size


def _up_to(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (line := file.readline(size)):
        size -= len(line)
        yield line
