"""The result of a job: the label of each object, and the consensus file that a site or an analyst gets.

A label is the most likely cluster, or the name of the most likely class. Daemons take labels from here, so that they
import no estimator.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import checked
from ce.errors import InputError
from ce.protocol.topology.site_view import Categories
from ce.ring import Reals

#: A spreadsheet interprets a cell that begins with one of these as a formula.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def consensus_labels(memberships: Reals, classes: Categories, unlabelled: NDArray[np.bool_]) -> NDArray[Any]:
    """The label of each object: the name of a class where the job has classes, else the number of a cluster."""
    if classes:
        return class_labels(memberships, classes, unlabelled)
    return hard_labels(memberships, unlabelled)


def hard_labels(memberships: Reals, unlabelled: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The most likely cluster of each object, ties to the lowest; -1 for objects without a label."""
    labels: NDArray[np.intp] = memberships.argmax(axis=1)
    labels[unlabelled] = -1
    return labels


def class_labels(memberships: Reals, classes: Categories, unlabelled: NDArray[np.bool_]) -> NDArray[Any]:
    """The most likely class of each object, ties to the lowest; -1 or "" for objects without a label."""
    labels: NDArray[Any] = np.array(classes)[memberships.argmax(axis=1)]
    labels[unlabelled] = "" if labels.dtype.kind == "U" else -1
    return labels


def as_it_is(value: Any) -> Any:
    """The value unchanged, byte for byte as in the label file, so that a script can look it up."""
    return value


def as_text(value: Any) -> Any:
    """The value with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULAS) else value


def _number(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def write_consensus(
    path: Path,
    ids: NDArray[np.str_],
    labels: NDArray[Any],
    memberships: Reals,
    classes: Categories,
    excluded: NDArray[np.bool_] | None = None,
    cell: Callable[[Any], Any] = as_it_is,
) -> None:
    """Write id, label, confidence and one probability per cluster (p0, ...) or class (p:NAME), atomically.

    If a rule excluded objects from the job, the file has one more column, `excluded`: 1 for an excluded object, whose
    label was computed from this site's labels alone, else 0. `cell` converts ids and labels before they are written.
    Where memberships are not known (NaN: objects of a sealed job that several sites hold), these fields are empty.
    """
    header = [f"p:{name}" for name in classes] or [f"p{h}" for h in range(memberships.shape[1])]
    marks = [] if excluded is None else excluded.astype(int).tolist()
    confidence = memberships.max(axis=1)
    unlabelled = (labels == "") if labels.dtype.kind == "U" else (labels == -1)
    partial = path.with_name(f".{uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["id", "label", "confidence", *header, *(["excluded"] if marks else [])])
            for i, object_id in enumerate(checked(ids)):
                label = "" if unlabelled[i] else cell(labels[i])
                writer.writerow(
                    [
                        cell(object_id),
                        label,
                        *map(_number, (float(confidence[i]), *memberships[i].tolist())),
                        *marks[i : i + 1],
                    ]
                )
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        # Also after an interrupt. The directory may not exist, or may be a file.
        with suppress(OSError):
            partial.unlink()
