"""What a sealed job costs, against a masked column-distributed BCE job on the same labels, in the same run.

Five site processes over mutual TLS on the loopback interface: 10,000 objects that all sites hold, four columns at each
site with seven categories each (140 in all), seven clusters. The promise: at most a fifth of the wall time and a tenth
of the bytes. Wall time is from the submission to the end, set-up included; bytes are all that the sites send and are
sent, letters included.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.processes import Deployment

import ce

SITES = ("east", "middle", "north", "south", "west")
OBJECTS, COLUMNS, CLUSTERS = 10_000, 4, 7
WRONG = 0.2
TIME_PROMISE, BYTES_PROMISE = 1 / 5, 1 / 10


def main() -> None:
    truth, tables = _labels(np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as directory, Deployment(Path(directory), SITES, metrics=True) as deployment:
        for site, table in tables.items():
            deployment.write_labels(site, table)
        deadlines = {"enrol_s": 600.0, "round_s": 600.0, "job_s": 1800.0}
        common: dict[str, Any] = {"clusters": CLUSTERS, "sites": SITES, "deadlines": deadlines}
        sealed = _measured(deployment, ce.Job(name="sealed", model="pairs", **common))
        masked = _measured(deployment, ce.Job(name="masked", model="bce", privacy="masked", **common))
        for name in ("sealed", "masked"):
            ids, labels, _ = deployment.consensus(SITES[0], name)
            found = dict(zip(ids, labels, strict=True))
            labels = [found[f"o{i}"] for i in range(OBJECTS)]
            print(f"  {name}: ARI with the truth {ce.metrics.ari(truth, labels):.3f}")
    print(
        f"{len(SITES)} site processes, {OBJECTS:,} shared objects, {len(SITES) * COLUMNS} columns, {CLUSTERS} clusters"
    )
    for what, unit, promise, left, right in (
        ("wall time", "s", TIME_PROMISE, sealed[0], masked[0]),
        ("bytes", "MB", BYTES_PROMISE, sealed[1] / 1e6, masked[1] / 1e6),
    ):
        verdict = "kept" if left <= promise * right else "NOT kept"
        print(
            f"  {what:<10} sealed {left:9.1f} {unit:<2}   masked {right:9.1f} {unit:<2}   ratio 1/{right / left:.0f}"
            f"   at most 1/{1 / promise:.0f}: {verdict}"
        )


def _labels(rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], dict[str, ce.LabelTable]]:
    truth = rng.integers(0, CLUSTERS, OBJECTS)
    ids = [f"o{i}" for i in range(OBJECTS)]
    tables = {}
    for site in SITES:
        cells = np.column_stack([rng.permutation(CLUSTERS)[truth] for _ in range(COLUMNS)])
        wrong = rng.random(cells.shape) < WRONG
        cells[wrong] = rng.integers(0, CLUSTERS, int(wrong.sum()))
        names = [f"{site}{at}" for at in range(COLUMNS)]
        tables[site] = ce.LabelTable.from_arrays(cells, ids=ids, columns=names)
    return truth, tables


def _measured(deployment: Deployment, job: ce.Job) -> tuple[float, float]:
    """Seconds from submission to end, and bytes over all streams, both ways, as the coordinator counts them."""
    before = _bytes(deployment)
    begin = time.perf_counter()
    status = deployment.run(job, patience_s=1800.0)
    seconds = time.perf_counter() - begin
    assert status.state == "done", status.reason
    return seconds, _bytes(deployment) - before


def _bytes(deployment: Deployment) -> float:
    return sum(
        value for name, value in deployment.scrape("hub").items() if name.startswith("ce_coordinator_bytes_total")
    )


if __name__ == "__main__":
    main()
