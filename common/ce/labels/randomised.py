"""Randomised response: labels of which nobody can be sure, whatever leaks afterwards.

With probability p a label is replaced by one drawn from all categories of its column, which may be the same one. What
is drawn follows from the site's secret, the object, the column and the label: the same labels are replaced in the same
way in every job, for looking again and again must not average the noise away. It does not depend on the order of rows
and columns. A label that changes is drawn anew, and so is a column whose categories change, or everything when p does:
had only some cells been drawn anew, those that stayed would be seen to be true. Each new draw is a disclosure of its
own, and epsilons add.

A cell's draw: AES-256-ECB, under a key of the column, of a 128-bit name of the object XOR the label's code. The first
word says whether the label is replaced, the second by what.
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
from ce.labels.table import Column, LabelTable

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
    """How far one look can shift anybody's belief about a label: its odds change by at most a factor e^epsilon.

    ln((1 - p + p/k) / (p/k)): the likeliest answer, the true label, against any other. Infinite without noise.
    """
    _check_probability(p)
    if p == 0:
        return math.inf
    if categories < 1:
        return 0.0  # a column without labels says nothing
    other = p / categories
    return math.log((1 - p + other) / other)


def epsilons(table: LabelTable, p: float) -> dict[str, float]:
    """Of each column; none where labels are not randomised. Raises InputError where they cannot be."""
    if p == 0:
        return {}
    _refuse_soft(table)
    return {column.name: epsilon(p, len(column.categories)) for column in table.columns}


def _check_probability(p: float) -> None:
    if not 0 <= p < 1:
        raise InputError("randomise is a number from 0 to below 1: at 1 no label would be left")


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
    """(n, 2): 128 bits that stand for an object in all columns. Keyed BLAKE2 costs a third of HMAC-SHA256."""
    blake = hashlib.blake2b
    names = b"".join([blake(own.encode(), key=key, digest_size=_BLOCK).digest() for own in ids.tolist()])
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
    # The remainder prefers low categories by less than 2^-40.
    others = (drawn[:, 1] % np.uint64(max(len(column.categories), 1))).astype(np.int32)
    result = column.codes.copy()
    result[observed] = np.where(replaced, others, codes)
    return replace(column, codes=result)


def _column_key(column: Column, p: float, secret: bytes) -> bytes:
    """A key of the column's name, its categories and p; each part after its length, so that no two lists are one."""
    parts = [column.name, *(f"{type(category).__name__} {category}" for category in column.categories)]
    named = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)
    return hmac.digest(secret, _PURPOSE + b" column" + struct.pack(">d", p) + named, "sha256")
