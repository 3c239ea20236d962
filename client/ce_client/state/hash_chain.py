"""Lines of JSON, each chained to all lines before it: head = SHA-256(head before || the line without its hash).

A line is canonical JSON (sorted keys, no spaces, ASCII) with its head, in hex, as the last key `hash`. So the chain
covers every byte of the file.
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
_HASH_BYTES = 76  # the length of what that matches


class BrokenLine(Exception):
    """A line that does not continue the chain; the message says why."""


#: JSON with sorted keys, without spaces, in ASCII: the same text for the same value.
canonical_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(line: Mapping[str, Any]) -> bytes:
    """A line as JSON, without its hash."""
    return canonical_text(line).encode()


def chained(before: bytes, body: bytes) -> bytes:
    """The head after a line; `before` is the head before it, `body` the line without its hash."""
    return hashlib.sha256(before + body).digest()


def with_hash(body: bytes, head: bytes) -> bytes:
    """A line as it is written to the file."""
    return body[:-1] + b',"hash":"' + head.hex().encode() + b'"}\n'


def split(raw: bytes) -> tuple[bytes, str] | None:
    """A line without its hash, and its hash; None if the line does not end with one."""
    found = _HASH.fullmatch(raw[-_HASH_BYTES:])
    return None if found is None else (raw[:-_HASH_BYTES] + b"}", found[1].decode())


def check_line(raw: bytes, before: bytes) -> tuple[bytes, dict[str, Any]]:
    """The head after a line, and the line. Raises BrokenLine unless it continues the chain, byte for byte."""
    if not raw.endswith(b"\n"):
        raise BrokenLine(
            "is incomplete: the daemon was killed while it wrote it (then it is cut off at the next start), or it was "
            "cut"
        )
    parts = split(raw)
    if parts is None:
        raise BrokenLine("does not end with a hash")
    body, written = parts
    head = chained(before, body)
    if head.hex() != written:
        raise BrokenLine("this line, or one before it, is not as it was written")
    try:
        line = json.loads(body)
        is_canonical = isinstance(line, dict) and canonical(line) == body
    except (ValueError, RecursionError):
        is_canonical = False
    if not is_canonical or not isinstance(line.get("n"), int) or not isinstance(line.get("kind"), str):
        raise BrokenLine("is not a line of a ledger")
    return head, line


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that may be growing; an incomplete last line has no line end."""
    try:
        with path.open("rb") as file:
            yield from _up_to(file, _settled_size(file))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _settled_size(file: BinaryIO) -> int:
    """The size at the end of a line, if a daemon that is writing completes one within 10 looks."""
    for _ in range(10):
        size = os.fstat(file.fileno()).st_size
        if size == 0 or os.pread(file.fileno(), 1, size - 1) == b"\n":
            break
    return size


def _up_to(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (line := file.readline(size)):
        size -= len(line)
        yield line
