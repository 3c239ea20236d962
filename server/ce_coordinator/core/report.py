"""The operator's result of a finished job: parameters, bound, trace and sizes; small clusters are withheld."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ce.declarations.registry import find_model
from ce.job import Job
from ce.protocol.engine.aggregator import Outcome
from ce.protocol.topology.exclusions import JobExclusions
from ce.protocol.topology.topology import Topology
from ce.ring import Reals

#: Stands in `withheld_by` for the coordinator's own min_cluster; no site has this name.
COORDINATOR = "(coordinator.toml)"


def operator_report(
    job: Job,
    topology: Topology,
    exclusions: JobExclusions,
    outcome: Outcome | None,
    exchanges: int,
    n_bytes: int,
    min_clusters: Mapping[str, int],
    left_behind: Sequence[str] = (),
) -> bytes:
    """A JSON object. `n_bytes`: of all arrays that were sent and received. In blind there is no outcome to report.

    `min_clusters`: the fewest objects of a cluster whose numbers are shown, by the site that asks for it; by "", as the
    coordinator is configured. Smaller clusters are listed, but their numbers are withheld (null).
    """
    report = job_facts(job, topology, exclusions, exchanges, n_bytes, left_behind)
    if outcome is not None:
        report |= _outcome(job, topology, outcome, min_clusters)
    return json.dumps(report).encode()


def job_facts(
    job: Job,
    topology: Topology,
    exclusions: JobExclusions,
    exchanges: int,
    n_bytes: int,
    left_behind: Sequence[str],
) -> dict[str, Any]:
    """What the operator is told about a job in every mode."""
    return {
        "job": job.name,
        "model": job.model,
        "privacy": job.privacy,
        "layout": topology.layout,
        "objects": exclusions.objects,
        "objects_in_fit": topology.sizes.objects,
        "excluded": [{"site": site, **asdict(count)} for site, count in exclusions],
        "sites": list(topology.sites),
        "columns": [{"name": c.name, "kind": c.kind, "holders": list(c.holders)} for c in topology.columns],
        "exchanges": exchanges,
        "bytes": n_bytes,
        **({"left_behind": list(left_behind)} if left_behind else {}),
    }


def _outcome(job: Job, topology: Topology, outcome: Outcome, min_clusters: Mapping[str, int]) -> dict[str, Any]:
    path = outcome.paths[outcome.winner]
    assert outcome.sizes is not None
    min_cluster = max(min_clusters.values())
    visible = outcome.sizes >= min_cluster
    report: dict[str, Any] = {
        "lower_bound": path.bounds[-1],
        "bound_path": list(path.bounds),
        "iterations": outcome.iterations,
        "converged": path.converged,
        "sizes": [int(size) if show else None for size, show in zip(outcome.sizes, visible, strict=True)],
        "min_cluster": min_cluster,
        **_withheld(min_clusters, visible),
        "parameters": {name: _visible(outcome.globals[name][0], visible) for name in find_model(job.model).parameters},
        # Only the holder of a column that it does not share knows its parameters. Of categories the coordinator knows
        # the number: their order is that of tokens that only the holders know.
        "beta": {
            column.name: {
                "categories": len(column.categories),
                "rows": _visible(outcome.beta[column.name], visible),
            }
            for column in topology.clusterings
            if column.shared
        },
    }
    if outcome.kappa is not None:
        report["kappa"] = outcome.kappa
    return report


def _withheld(min_clusters: Mapping[str, int], visible: np.ndarray[Any, Any]) -> dict[str, list[str]]:
    """Who asked for what withheld a cluster. Smaller wishes are not compared with sizes: that would tell the sizes."""
    if visible.all():
        return {}
    largest = max(min_clusters.values())
    return {"withheld_by": [site or COORDINATOR for site, least in sorted(min_clusters.items()) if least == largest]}


def _visible(values: Reals, visible: np.ndarray[Any, Any]) -> list[Any]:
    """Values per cluster, null where withheld or not finite; other values as they are."""
    rows = values if len(values) == len(visible) else None
    if rows is None:
        return [_number(value) for value in values.ravel().tolist()]
    return [_numbers(row) if show else None for row, show in zip(rows, visible, strict=True)]


def _numbers(row: Any) -> Any:
    return [_number(value) for value in row.tolist()] if np.ndim(row) else _number(float(row))


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
