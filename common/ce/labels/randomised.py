"""Randomised response: labels are replaced at random before a job, so that none is certain whatever leaks afterwards.

With probability p a label is replaced by one drawn from the declared categories of its column, all equally likely, the
true one among them. So the true label of k is released with probability 1 - p + p/k and any other one with p/k: the
epsilon of a label is the logarithm of their ratio, ln(1 + k(1 - p)/p). The labels of an object in several columns are
drawn apart, and their epsilons add to the epsilon of the object's row. If only c columns of each object take part, the
row's epsilon is the sum of the c largest. Which labels are missing is not protected.

The draw follows from the site's secret, the column, its declared categories, p, the object and the label. So the same
labels are replaced in the same way in every job, whatever other objects and columns there are: an observer of several
jobs cannot average the noise away. A label that changes is drawn anew, as is a column whose declaration or probability
changes: a further disclosure, and epsilons add. Which columns of an object take part follows from the secret, the
object and the names of the declared columns, and never from labels.

A label's draw is AES-256-ECB, under a key of the column, of a 128-bit name of the object XOR the label's code. The
first word of the result says whether the label is replaced, the second word by which category. Of an object take part
the columns with the smallest first words of AES-256-ECB of the object's name, under a key of the column's name.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ce.errors import InputError, LabelError, Refused
from ce.labels.declared import with_declared
from ce.labels.label_table import LabelTable
from ce.labels.names import listed
from ce.labels.table import Categories, Column

#: The rule that a column without declared categories breaks.
RULE = "declared categories"
_PURPOSE = b"ce randomised response 1"
_BLOCK = 16
#: Hex digits of a version.
_VERSION_DIGITS = 32


@dataclass(frozen=True)
class Randomisation:
    """How the labels of one site are randomised, in every job."""

    p: float  # the probability that a label is replaced; 0: labels stay as they are
    categories: Mapping[str, Categories] = field(repr=False)  # declared, by column
    sampled: int = 0  # how many of the declared columns of each object take part; 0: all

    def __post_init__(self) -> None:
        _check_probability(self.p)
        if self.sampled < 0:
            raise InputError(f"randomise_columns: expected a number of at least 0, got {self.sampled}")

    @property
    def samples(self) -> bool:
        """True if some declared columns of an object take no part."""
        return 0 < self.sampled < len(self.categories)

    def refuse_undeclared(self, columns: Iterable[Column]) -> None:
        """Raises Refused if labels are randomised and one of these columns is not declared."""
        missing = [column.name for column in columns if column.name not in self.categories]
        if self.p and missing:
            raise Refused(
                RULE,
                f"labels are randomised here, and the categories of column {listed(missing)} are not declared: list "
                "all that a label may be under [labels.categories] in client.toml, then restart the daemon",
            )

    def epsilons(self, columns: Iterable[str]) -> dict[str, float]:
        """Epsilon of one label, by column; empty if labels stay as they are."""
        return {name: epsilon(self.p, len(self.categories[name])) for name in columns} if self.p else {}

    def row_epsilon(self, epsilons: Iterable[float]) -> float:
        """Epsilon of an object's row at this site, given the epsilons of the columns that take part."""
        return sum(sorted(epsilons, reverse=True)[: self.sampled or None])

    def draw_version(self, column: str, secret: bytes) -> str:
        """What the draws of a column follow from, as a keyed digest; empty if labels stay as they are."""
        return _version(_column_key(column, self.categories[column], self.p, secret)) if self.p else ""

    def sampling_version(self, secret: bytes) -> str:
        """What the choice of columns follows from, as a keyed digest; empty if all take part."""
        if not self.p or not self.samples:
            return ""
        named = _joined([str(self.sampled), *sorted(self.categories)])
        return _version(hmac.digest(secret, _PURPOSE + b" sampled columns" + named, "sha256"))


def randomise(table: LabelTable, how: Randomisation, secret: bytes) -> LabelTable:
    """The table in the declared categories, each label replaced with probability p. What is missing stays missing.

    Of each object at most `how.sampled` labels are left. Raises Refused if a column is not declared, LabelError if a
    label is not among the declared categories.
    """
    if how.p == 0:
        return table
    _refuse_soft(table)
    how.refuse_undeclared(table.columns)
    declared = with_declared(table, how.categories)
    names = _object_names(table.ids, hmac.digest(secret, _PURPOSE + b" objects", "sha256"))
    taking_part = _sampled_columns(names, how, secret) if how.samples else {}
    return replace(
        declared,
        columns=tuple(
            _randomised(column, how.p, secret, names, taking_part.get(column.name)) for column in declared.columns
        ),
    )


def epsilon(p: float, categories: int) -> float:
    """The epsilon of one label: seeing it changes the odds of the true label by at most a factor e^epsilon.

    ln(1 + k(1 - p)/p): the probability of the true label, 1 - p + p/k, against that of any other, p/k. Infinite if p is
    0.
    """
    _check_probability(p)
    if p == 0:
        return math.inf
    if categories < 1:
        return 0.0  # a column without labels reveals nothing
    return math.log1p(categories * (1 - p) / p)


def _check_probability(p: float) -> None:
    if not 0 <= p < 1:
        raise InputError(f"randomise: expected a number of at least 0 and below 1, got {p:g}")


def _refuse_soft(table: LabelTable) -> None:
    for column in table.columns:
        if column.soft:
            raise LabelError(
                "soft labels cannot be randomised: give the most likely category instead of probabilities, leave the "
                "column out, or set randomise = 0 in policy.toml",
                source=table.source,
                column=column.name,
            )


def _object_names(ids: NDArray[np.str_], key: bytes) -> NDArray[np.uint64]:
    """(n, 2): a 128-bit name of each object, for all columns. Keyed BLAKE2 takes a third of the time of HMAC-SHA256."""
    blake = hashlib.blake2b
    names = b"".join([blake(id_.encode(), key=key, digest_size=_BLOCK).digest() for id_ in ids.tolist()])
    return np.frombuffer(names, dtype="<u8").reshape(-1, 2)


def _sampled_columns(names: NDArray[np.uint64], how: Randomisation, secret: bytes) -> dict[str, NDArray[np.bool_]]:
    """(n,) by declared column: True where the column is one of those of the object that take part."""
    candidates = sorted(how.categories)
    keys = [hmac.digest(secret, _PURPOSE + b" sample" + _joined([name]), "sha256") for name in candidates]
    order = np.argsort([_drawn(key, names)[:, 0] for key in keys], axis=0, kind="stable")
    taking_part = np.zeros(order.shape, dtype=np.bool_)
    np.put_along_axis(taking_part, order[: how.sampled], True, axis=0)
    return dict(zip(candidates, taking_part, strict=True))


def _randomised(
    column: Column, p: float, secret: bytes, names: NDArray[np.uint64], taking_part: NDArray[np.bool_] | None
) -> Column:
    assert column.codes is not None
    sent = column.codes >= 0 if taking_part is None else (column.codes >= 0) & taking_part
    codes = column.codes[sent]
    blocks = names[sent]
    blocks[:, 1] ^= codes.astype(np.uint64)
    drawn = _drawn(_column_key(column.name, column.categories, p, secret), blocks)
    replaced = drawn[:, 0] < np.uint64(p * 2.0**64)
    # Low categories are more likely than high ones, by less than 2^-40.
    others = (drawn[:, 1] % np.uint64(max(len(column.categories), 1))).astype(np.int32)
    result = np.full_like(column.codes, -1)
    result[sent] = np.where(replaced, others, codes)
    return replace(column, codes=result)


def _drawn(key: bytes, blocks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(n, 2) two words for each block of two words: AES-256 under the key."""
    encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    return np.frombuffer(encryptor.update(blocks.tobytes()), dtype="<u8").reshape(-1, 2)


def _column_key(column: str, categories: Categories, p: float, secret: bytes) -> bytes:
    """A key for the column's name, its categories and p."""
    named = _joined([column, *(f"{type(category).__name__} {category}" for category in categories)])
    return hmac.digest(secret, _PURPOSE + b" column" + struct.pack(">d", p) + named, "sha256")


def _joined(parts: Iterable[str]) -> bytes:
    """Each part follows its length, so that no two lists of parts give the same bytes."""
    return b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)


def _version(key: bytes) -> str:
    return hashlib.sha256(_PURPOSE + b" version" + key).hexdigest()[:_VERSION_DIGITS]
