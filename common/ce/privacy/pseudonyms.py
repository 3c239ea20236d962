"""Pseudonyms of objects and tokens of categories, 128 bits each, which hide names from the coordinator.

They are keyed with the job key, which the sites share and the coordinator does not have. An object has the same
pseudonym at all sites, so that the coordinator can align objects without their ids. A site has the key and can compute
the pseudonyms of ids that it guesses: between sites, a pseudonym hides only ids that cannot be guessed.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import checked
from ce.privacy.derivation import joined

SIZE = 16


def pseudonyms(job_key: bytes, ids: Sequence[str] | NDArray[np.str_]) -> NDArray[np.uint8]:
    """(n, 16): HMAC-SHA256(job key, id as UTF-8), cut to 128 bits. Ids are already normalised (stripped, NFC)."""
    names = checked(np.asarray(ids).tolist())
    joined_digests = b"".join(hmac.digest(job_key, id_.encode(), "sha256")[:SIZE] for id_ in names)
    return np.frombuffer(joined_digests, dtype=np.uint8).reshape(-1, SIZE)


def tokens(job_key: bytes, column: str, categories: Iterable[int | str]) -> tuple[str, ...]:
    """Hexadecimal tokens of a column's categories; 1 and "1" have different tokens."""
    named = (joined(b"category", column.encode(), f"{type(c).__name__} {c}".encode()) for c in categories)
    return tuple(hmac.digest(job_key, name, "sha256")[:SIZE].hex() for name in named)
