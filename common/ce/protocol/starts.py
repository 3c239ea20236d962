"""Where the starting tables of the columns come from.

A table's rows are uniform over the simplex, from 64-bit words that SHAKE-256 expands out of a key, the start's number
and the column's name: the same on every machine, for every layout and in any order of drawing.

On one machine the key is the seed. In a distributed job starts are secret: against a known start the first total
decodes to labels. A column with one holder is drawn from that site's own secret, a shared one from the sites' job key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ce.ring import Reals


class Starts(Protocol):
    """Gives a column's starting tables (starts, k, categories)."""

    def tables(self, column: str, shared: bool, shape: tuple[int, int, int]) -> Reals: ...


@dataclass(frozen=True)
class SeededStarts:
    """Starts of one machine: public, reproducible from a seed."""

    seed: int

    def tables(self, column: str, shared: bool, shape: tuple[int, int, int]) -> Reals:
        return draw(f"seed {self.seed}".encode(), column, shape)


@dataclass(frozen=True)
class SecretStarts:
    """Starts of a site in a distributed job."""

    own_key: bytes
    job_key: bytes

    @classmethod
    def of(cls, secret: bytes, first_secret: bytes, job: str) -> SecretStarts:
        """From a site's own secret and that of the first site by name, which makes the job key."""
        return cls(
            derive(secret, b"ce start of a column with one holder", job.encode()),
            derive(first_secret, b"ce job key", job.encode()),
        )

    def tables(self, column: str, shared: bool, shape: tuple[int, int, int]) -> Reals:
        return draw(self.job_key if shared else self.own_key, column, shape)


@dataclass(frozen=True)
class GivenStarts:
    """Tables that a user gives, on one machine."""

    by_column: Mapping[str, Reals]

    def tables(self, column: str, shared: bool, shape: tuple[int, int, int]) -> Reals:
        return self.by_column[column]


def derive(secret: bytes, *info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) with an empty salt, one block; the parts of info are length-prefixed."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, _joined(*info) + b"\x01", "sha256")


def draw(key: bytes, column: str, shape: tuple[int, int, int]) -> Reals:
    """Dirichlet(1, ..., 1) rows: normalised exponentials of uniform words."""
    starts, k, categories = shape
    tables = np.empty(shape)
    for start in range(starts):
        material = _joined(b"ce start", key, str(start).encode(), column.encode())
        stream = hashlib.shake_256(material).digest(8 * k * categories)
        words = np.frombuffer(stream, dtype="<u8").reshape(k, categories)
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        exponential = -np.log(uniform)
        tables[start] = exponential / exponential.sum(axis=1, keepdims=True)
    return tables


def _joined(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
