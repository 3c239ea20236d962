"""How a list of byte strings becomes one unambiguous byte string, and how keys are derived from keys."""

from __future__ import annotations

import hmac

from ce.errors import MessageError


def joined(*parts: bytes) -> bytes:
    """The parts, each after its length in 8 bytes, big-endian, so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def split(content: bytes) -> list[bytes]:
    """The parts that were `joined`. Raises MessageError for other bytes."""
    parts, at = [], 0
    while at < len(content):
        end = at + 8 + int.from_bytes(content[at : at + 8], "big")
        if len(content) < max(at + 8, end):
            raise MessageError("expected parts, each after its length")
        parts.append(content[at + 8 : end])
        at = end
    return parts


def number(value: int) -> bytes:
    """A whole number as a part of `joined`: 8 bytes, big-endian."""
    return value.to_bytes(8, "big")


def derive(secret: bytes, *info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) with an empty salt, one block of 32 bytes; info is `joined`."""
    return expand(extract(secret), *info)


def extract(secret: bytes) -> bytes:
    """The first half of `derive`, for a secret from which many keys are derived."""
    return hmac.digest(bytes(32), secret, "sha256")


def expand(extracted: bytes, *info: bytes) -> bytes:
    """The second half of `derive`."""
    return hmac.digest(extracted, joined(*info) + b"\x01", "sha256")
