"""What the operator gets to see of a finished job: parameters, bound, trace and sizes; nothing of small clusters."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ce.declarations.registry import find_model
from ce.job import Job
from ce.protocol.engine.aggregator import Outcome
from ce.protocol.topology.topology import Topology
from ce.ring import Reals


def operator_report(
    job: Job,
    topology: Topology,
    outcome: Outcome | None,
    exchanges: int,
    n_bytes: int,
    min_cluster: int,
    left_behind: Sequence[str] = (),
) -> bytes:
    """A JSON object; `n_bytes` of arrays came and went. Without an outcome, as in blind, it says nothing of it.

    Clusters with fewer than `min_cluster` objects are there, but their numbers are withheld (null).
    """
    report: dict[str, Any] = {
        "job": job.name,
        "model": job.model,
        "privacy": job.privacy,
        "layout": topology.layout,
        "objects": topology.sizes.objects,
        "sites": list(topology.sites),
        "columns": [{"name": c.name, "kind": c.kind, "holders": list(c.holders)} for c in topology.columns],
        "exchanges": exchanges,
        "bytes": n_bytes,
        **({"left_behind": list(left_behind)} if left_behind else {}),
    }
    if outcome is not None:
        report |= _outcome(job, topology, outcome, min_cluster)
    return json.dumps(report).encode()


def _outcome(job: Job, topology: Topology, outcome: Outcome, min_cluster: int) -> dict[str, Any]:
    path = outcome.paths[outcome.winner]
    assert outcome.sizes is not None
    shown = outcome.sizes >= min_cluster
    report: dict[str, Any] = {
        "lower_bound": path.bounds[-1],
        "bound_path": list(path.bounds),
        "iterations": outcome.iterations,
        "converged": path.converged,
        "sizes": [int(size) if visible else None for size, visible in zip(outcome.sizes, shown, strict=True)],
        "min_cluster": min_cluster,
        "parameters": {name: _visible(outcome.globals[name][0], shown) for name in find_model(job.model).parameters},
        # Columns with one holder are known to their holder only. Categories go by their tokens.
        "tables": {
            column.name: {
                "categories": [str(token) for token in column.categories],
                "rows": _visible(outcome.tables[column.name], shown),
            }
            for column in topology.clusterings
            if column.shared
        },
    }
    if outcome.kappa is not None:
        report["kappa"] = outcome.kappa
    return report


def _visible(values: Reals, shown: np.ndarray[Any, Any]) -> list[Any]:
    """Per cluster, null where it is withheld or not known; a value that is not per cluster as it is."""
    rows = values if len(values) == len(shown) else None
    if rows is None:
        return [_number(value) for value in values.ravel().tolist()]
    return [_numbers(row) if visible else None for row, visible in zip(rows, shown, strict=True)]


def _numbers(row: Any) -> Any:
    return [_number(value) for value in row.tolist()] if np.ndim(row) else _number(float(row))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
