"""Randomised response: labels are replaced at random before a job, so that none is certain whatever leaks afterwards.

With probability p a label is replaced by one drawn from all categories of its column, which may be the same one. The
draw follows from the site's secret, the object, the column and the label. So the same labels are replaced in the same
way in every job, whatever the order of rows and columns: an observer of several jobs cannot average the noise away. A
label that changes is drawn anew. If the categories of a column change, all its labels are drawn anew; if p changes, all
labels are. If only some were drawn anew, labels that stay the same would be recognised as true. Each new draw is a
further disclosure, and epsilons add.

A label's draw is AES-256-ECB, under a key of the column, of a 128-bit name of the object XOR the label's code. The
first word of the result says whether the label is replaced, the second word by which category.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from dataclasses import replace

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ce.errors import InputError, LabelError
from ce.labels.label_table import LabelTable
from ce.labels.table import Column

_PURPOSE = b"ce randomised response 1"
_BLOCK = 16


def randomise(table: LabelTable, p: float, secret: bytes) -> LabelTable:
    """The table with each label, of clusterings and classifiers, replaced with probability p. Missing stays missing."""
    _check_probability(p)
    if p == 0:
        return table
    _refuse_soft(table)
    names = _object_names(table.ids, hmac.digest(secret, _PURPOSE + b" objects", "sha256"))
    return replace(table, columns=tuple(_randomised(column, p, secret, names) for column in table.columns))


def epsilon(p: float, categories: int) -> float:
    """The epsilon of one label: seeing it changes the odds of the true label by at most a factor e^epsilon.

    ln((1 - p + p/k) / (p/k)): the probability of the true label against that of any other. Infinite if p is 0.
    """
    _check_probability(p)
    if p == 0:
        return math.inf
    if categories < 1:
        return 0.0  # a column without labels reveals nothing
    other = p / categories
    return math.log((1 - p + other) / other)


def epsilons(table: LabelTable, p: float) -> dict[str, float]:
    """Epsilon by column; empty if p is 0. Raises InputError if a column cannot be randomised."""
    if p == 0:
        return {}
    _refuse_soft(table)
    return {column.name: epsilon(p, len(column.categories)) for column in table.columns}


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


def _randomised(column: Column, p: float, secret: bytes, names: NDArray[np.uint64]) -> Column:
    assert column.codes is not None
    observed = np.flatnonzero(column.codes >= 0)
    codes = column.codes[observed]
    blocks = names[observed]
    blocks[:, 1] ^= codes.astype(np.uint64)
    encryptor = Cipher(algorithms.AES256(_column_key(column, p, secret)), modes.ECB()).encryptor()
    drawn = np.frombuffer(encryptor.update(blocks.tobytes()), dtype="<u8").reshape(-1, 2)
    replaced = drawn[:, 0] < np.uint64(p * 2.0**64)
    # Low categories are more likely than high ones, by less than 2^-40.
    others = (drawn[:, 1] % np.uint64(max(len(column.categories), 1))).astype(np.int32)
    result = column.codes.copy()
    result[observed] = np.where(replaced, others, codes)
    return replace(column, codes=result)


def _column_key(column: Column, p: float, secret: bytes) -> bytes:
    """A key for the column's name, its categories and p. Each part follows its length, so that no two lists of parts
    give the same bytes."""
    parts = [column.name, *(f"{type(category).__name__} {category}" for category in column.categories)]
    named = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)
    return hmac.digest(secret, _PURPOSE + b" column" + struct.pack(">d", p) + named, "sha256")
