"""The consensus file: what a site, or an analyst, gets out of a job."""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.protocol.topology.site_view import Categories
from ce.ring import Reals

#: With these a spreadsheet takes a cell for a formula.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_it_is(value: Any) -> Any:
    """Byte for byte as in the label file: what a script looks up."""
    return value


def as_text(value: Any) -> Any:
    """With an apostrophe before what a spreadsheet would take for a formula, and run."""
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULAS) else value


def write_consensus(
    path: Path,
    ids: NDArray[np.str_],
    labels: NDArray[Any],
    memberships: Reals,
    classes: Categories,
    excluded: NDArray[np.bool_] | None = None,
    cell: Callable[[Any], Any] = as_it_is,
) -> None:
    """id, label, confidence and one probability per cluster (p0, ...) or class (p:NAME); atomically.

    Where a rule left objects out of the job there is one more column, `excluded`: 1 for those, which were scored from
    this site's labels alone, else 0. `cell` says how ids and labels are written.
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
            for i, own in enumerate(ids):
                label = "" if unlabelled[i] else cell(labels[i])
                writer.writerow(
                    [
                        cell(own),
                        label,
                        repr(float(confidence[i])),
                        *map(repr, memberships[i].tolist()),
                        *marks[i : i + 1],
                    ]
                )
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        # Also when interrupted. The folder may not exist, or not be one.
        with suppress(OSError):
            partial.unlink()
