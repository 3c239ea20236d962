"""The consensus file: what a site, or an analyst, gets out of a job."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.protocol.topology import Categories
from ce.ring import Reals


def write_consensus(
    path: Path, ids: NDArray[np.str_], labels: NDArray[Any], memberships: Reals, classes: Categories
) -> None:
    """id, label, confidence and one probability per cluster (p0, ...) or class (p:NAME); atomically."""
    header = [f"p:{name}" for name in classes] or [f"p{h}" for h in range(memberships.shape[1])]
    confidence = memberships.max(axis=1)
    unlabelled = (labels == "") if labels.dtype.kind == "U" else (labels == -1)
    partial = path.with_name(f".{uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["id", "label", "confidence", *header])
            for i, own in enumerate(ids):
                label = "" if unlabelled[i] else labels[i]
                writer.writerow([own, label, repr(float(confidence[i])), *map(repr, memberships[i].tolist())])
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        # Also when interrupted. The folder may not exist, or not be one.
        with suppress(OSError):
            partial.unlink()
