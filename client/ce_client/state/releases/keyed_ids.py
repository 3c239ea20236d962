"""Objects, and objects with their labels, under a key of the site: equal where they are equal, and nothing else.

What sealed jobs have cost is counted for each object, over all label files: by HMAC of its id. An object is labelled
together with other sites once for each row of labels that this site has of it: by HMAC of its id and of that row, so
that another file, another order of columns or another name of the file changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import checked
from ce.labels import LabelTable
from ce.privacy.derivation import derive, joined

SIZE = 16
#: Bytes of a label in a row: enough to tell all labels of a site apart.
_LABEL_BYTES = 16

Ids = NDArray[np.void]


@dataclass(frozen=True)
class KeyedObjects:
    """The objects of a table, in its order."""

    key_check: bytes = field(repr=False)  # tells ids of this secret from those of another one
    objects: Ids = field(repr=False)  # (n,)
    labellings: Ids = field(repr=False)  # (n,)


def keyed_objects(secret: bytes, table: LabelTable) -> KeyedObjects:
    """`table`: all labels of these objects, whatever takes part in a job."""
    object_key, row_key = (derive(secret, b"ce released objects", what) for what in (b"object", b"label row"))
    ids = [str(id_).encode() for id_ in table.ids.tolist()]
    objects = b"".join(hmac.digest(object_key, id_, "sha256")[:SIZE] for id_ in checked(ids))
    labellings = b"".join(
        hmac.digest(row_key, joined(id_, row), "sha256")[:SIZE]
        for id_, row in zip(checked(ids), _rows(table), strict=True)
    )
    check = derive(secret, b"ce released objects", b"which key")[:SIZE]
    return KeyedObjects(check, ids_of(objects), ids_of(labellings))


def ids_of(content: bytes) -> Ids:
    """Ids as they are stored, side by side."""
    return np.frombuffer(content, dtype=f"V{SIZE}")


def stored(ids: Ids) -> bytes:
    """Ids as they are stored: sorted, each once."""
    return np.unique(ids).tobytes()


def among(ids: Ids, others: Ids) -> NDArray[np.bool_]:
    """(n,) whether each of `ids` is among `others`, which are sorted."""
    if not len(others):
        return np.zeros(len(ids), dtype=bool)
    at = np.minimum(np.searchsorted(others, ids), len(others) - 1)
    found: NDArray[np.bool_] = others[at] == ids
    return found


def _rows(table: LabelTable) -> list[bytes]:
    """Of each object, its labels in order of the columns' names; a missing label leaves no trace."""
    columns = sorted(table.clusterings, key=lambda column: column.name)
    labels = np.zeros((table.n_objects, len(columns)), dtype=f"V{_LABEL_BYTES}")
    observed = np.zeros(labels.shape, dtype=bool)
    for at, column in enumerate(columns):
        known = [
            hashlib.sha256(joined(column.name.encode(), str(category).encode())).digest()[:_LABEL_BYTES]
            for category in column.categories
        ]
        observed[:, at] = column.observed
        if known:
            by_code = np.frombuffer(b"".join(known), dtype=labels.dtype)
            labels[:, at] = by_code[np.maximum(column.likeliest, 0)]
    return [row[has].tobytes() for row, has in zip(labels, observed, strict=True)]
