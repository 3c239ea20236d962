"""Names that only the sites can read: objects become pseudonyms, categories tokens, both 128 bits.

Keyed with the job key, which the sites share and the coordinator does not have. The same object at two sites has the
same pseudonym, and so the coordinator can align what it cannot name. A site that holds the key can try out ids that it
guesses: between sites a pseudonym hides nothing but what nobody would guess.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ce.privacy.derivation import joined

SIZE = 16


def pseudonyms(job_key: bytes, ids: Sequence[str] | NDArray[np.str_]) -> NDArray[np.uint8]:
    """(n, 16): HMAC-SHA256(job key, id as UTF-8), cut to 128 bits. Ids are already normalised (stripped, NFC)."""
    joined_digests = b"".join(hmac.digest(job_key, own.encode(), "sha256")[:SIZE] for own in np.asarray(ids).tolist())
    return np.frombuffer(joined_digests, dtype=np.uint8).reshape(-1, SIZE)


def tokens(job_key: bytes, column: str, categories: Iterable[int | str]) -> tuple[str, ...]:
    """Hexadecimal tokens of a column's categories; 1 and "1" are two."""
    named = (joined(b"category", column.encode(), f"{type(c).__name__} {c}".encode()) for c in categories)
    return tuple(hmac.digest(job_key, name, "sha256")[:SIZE].hex() for name in named)
