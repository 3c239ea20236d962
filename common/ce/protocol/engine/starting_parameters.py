"""Where the starting tables of the columns come from.

A table's rows are uniform over the simplex: normalised exponentials of 64-bit words that SHAKE-256 expands out of a
key, the start's number, the column's name and the category: the same on every machine and for every layout,
whichever site knows which categories, in any order.

On one machine the key is the seed, and a category stands for the first object, by id, that has it: to rename the
clusters of a column changes nothing. In a distributed job starts are secret: against a known start the first total
decodes to labels. A column with one holder is drawn from that site's own secret, a shared one from the sites' job key;
a category stands for its name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ce.kernels.special import over_clusters
from ce.labels import LabelTable
from ce.privacy.derivation import derive, joined
from ce.protocol.topology.site_view import TopologyColumn
from ce.ring import Reals


class Starts(Protocol):
    """Gives a column's starting tables (starts, k, categories)."""

    def beta(self, column: TopologyColumn, starts: int, k: int) -> Reals: ...


@dataclass(frozen=True)
class SeededStarts:
    """Starts of one machine: public, reproducible from a seed."""

    seed: int
    # column -> category -> object: ids and labels, so never shown
    first: Mapping[str, Mapping[int | str, str]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, seed: int, beta: Iterable[LabelTable]) -> SeededStarts:
        """For these label tables together, in any layout."""
        first: dict[str, dict[int | str, str]] = {}
        for table in beta:
            order = np.argsort(table.ids)
            for column in table.clusterings:
                known = first.setdefault(column.name, {})
                # Assigned backwards, so that the first one stays; missing labels (-1) go to the last place.
                at = np.full(len(column.categories) + 1, -1, dtype=np.intp)
                at[column.likeliest[order[::-1]]] = order[::-1]
                for code, row in enumerate(at[:-1].tolist()):
                    if row >= 0:
                        category = column.categories[code]
                        first_id = str(table.ids[row])
                        known[category] = min(first_id, known.get(category, first_id))
        return cls(seed, first)

    def beta(self, column: TopologyColumn, starts: int, k: int) -> Reals:
        first = self.first.get(column.name, {})
        names = [first.get(category, _name(category)) for category in column.categories]
        return draw(f"seed {self.seed}".encode(), column.name, names, (starts, k))


@dataclass(frozen=True)
class SecretStarts:
    """Starts of a site in a distributed job."""

    site_key: bytes = field(repr=False)
    job_key: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes, job_key: bytes, disclosure_digest: bytes) -> SecretStarts:
        """From a site's own secret and the key that the sites of the job share; `Job.disclosure_digest`."""
        return cls(derive(secret, b"ce start of a column with one holder", disclosure_digest), job_key)

    def beta(self, column: TopologyColumn, starts: int, k: int) -> Reals:
        key = self.job_key if column.shared else self.site_key
        return draw(key, column.name, [_name(category) for category in column.categories], (starts, k))


@dataclass(frozen=True)
class GivenStarts:
    """Tables that a user gives, on one machine."""

    by_column: Mapping[str, Reals]

    def beta(self, column: TopologyColumn, starts: int, k: int) -> Reals:
        return self.by_column[column.name]


def object_weights(tokens: NDArray[Any], starts: int, k: int) -> Reals:
    """(starts, k, objects) where each shared object of a distributed job begins: uniform over the simplex, drawn from
    its pseudonym, which home and members know. Were all to begin at the same point, the first totals would be sums of
    one vector per label, which can be taken apart again whatever the tables are (`ce audit`, "unmixing").

    AES-256 of pseudonym XOR start and number, two words a block: a fixed key, for nothing here is secret.
    """
    blocks = np.frombuffer(np.ascontiguousarray(tokens).tobytes(), dtype="<u8").reshape(-1, 2)
    per_start = -(-k // 2)
    cipher = Cipher(algorithms.AES256(hashlib.sha256(b"ce object weights 1").digest()), modes.ECB())
    weights = np.empty((starts, k, len(blocks)))
    for start in range(starts):
        counters = np.arange(start * per_start, (start + 1) * per_start, dtype=np.uint64)
        inputs = np.empty((len(blocks), per_start, 2), dtype="<u8")
        inputs[:, :, 0] = blocks[:, :1]
        inputs[:, :, 1] = blocks[:, 1:] ^ counters
        words = np.frombuffer(cipher.encryptor().update(inputs.tobytes()), dtype="<u8")
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        exponential = -np.log(uniform.reshape(len(blocks), 2 * per_start)[:, :k].T)
        weights[start] = exponential / over_clusters(exponential[None])[0]
    return weights


def job_key(first_secret: bytes, disclosure_digest: bytes) -> bytes:
    """The key that the sites of a job share: made by the first site by name, from its own secret.

    It follows from `Job.disclosure_digest`, not from the job's name: the same job under another name shows nothing new.
    """
    return derive(first_secret, b"ce job key", disclosure_digest)


def draw(key: bytes, column: str, names: Sequence[str], shape: tuple[int, int]) -> Reals:
    """Dirichlet(1, ..., 1) rows: (starts, k, one for each of `names`), `shape` being (starts, k)."""
    starts, k = shape
    beta = np.empty((starts, k, len(names)))
    for start in range(starts):
        for r, name in enumerate(names):
            material = joined(b"ce start", key, str(start).encode(), column.encode(), name.encode())
            words = np.frombuffer(hashlib.shake_256(material).digest(8 * k), dtype="<u8")
            beta[start, :, r] = -np.log(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
        for h in range(k):
            # fsum rounds once, so the order of the categories does not matter.
            beta[start, h] /= math.fsum(beta[start, h])
    return beta


def _name(category: int | str) -> str:
    """The same text for the same category; 1 and "1" are two."""
    return f"{type(category).__name__} {category}"
