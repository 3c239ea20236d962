"""How many sites, how many jobs at once, and what the coordinator's memory does: `make scale`.

50 sites in one job, and 20 jobs at the same time over 8 sites; each should finish, and the coordinator's memory stay
below what it was before any job, plus the totals of one round of each job, plus 4 MB for each site. And a job whose
arrays outweigh everything else: there the formula of docs/capacity.md stands in place of the totals.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.processes import Deployment

import ce
from ce.capacity import Size, coordinator_memory

PER_SITE = 4e6
STARTS, CLUSTERS, COLUMNS = 3, 4, 2


def peak(deployment: Deployment) -> float:
    """Bytes of memory that the coordinator has had at most."""
    lines = Path(f"/proc/{deployment.processes['hub'].pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def by_columns(deployment: Deployment, sites: list[str], objects: int, columns: int) -> None:
    """The same objects at all sites: totals as large as they get."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, CLUSTERS, objects)
    ids = [f"o{i}" for i in range(objects)]
    for site in sites:
        wrong = rng.random((objects, columns)) < 0.2
        cells = np.where(wrong, rng.integers(0, CLUSTERS, (objects, columns)), truth[:, None])
        names = [f"{site}_{j}" for j in range(columns)]
        deployment.write_labels(site, ce.LabelTable.from_arrays(cells, ids=ids, columns=names))


def totals_of(jobs: int, objects: int) -> float:
    return jobs * 8.0 * STARTS * CLUSTERS * objects


def planned(sites: int, objects: int) -> float:
    return coordinator_memory(Size(sites, objects, objects, COLUMNS, 0, CLUSTERS, CLUSTERS, STARTS))


def measure(sites: int, jobs: int, objects: int, iterations: int, needed: float) -> bool:
    """`needed`: bytes that the jobs may take beside 4 MB for each site."""
    names = [f"s{at:02d}" for at in range(sites)]
    with tempfile.TemporaryDirectory() as directory, closing(Deployment(Path(directory), names)) as deployment:
        for name in ("hub", *names):
            deployment.start(name)
        for name in names:
            deployment.processes[name].wait_for("connected", 300.0)
        by_columns(deployment, names, objects, COLUMNS)
        before = peak(deployment)
        begin = time.monotonic()
        asked = [
            ce.Job(
                name=f"job-{at}",
                clusters=CLUSTERS,
                sites=tuple(names),
                restarts=STARTS,
                max_iterations=iterations,
                tolerance=0.0,
                privacy=("masked", "blind", "plain")[at % 3],
            )
            for at in range(jobs)
        ]
        for job in asked:
            deployment.submit(job)
        states: list[str] = []
        waits = [
            threading.Thread(target=lambda job=job: states.append(deployment.wait(job.name, 900.0).state))  # type: ignore[misc]
            for job in asked
        ]
        for wait in waits:
            wait.start()
        for wait in waits:
            wait.join()
        seconds = time.monotonic() - begin
        grown = peak(deployment) - before
        allowed = needed + PER_SITE * sites
        fine = states == ["done"] * jobs and grown <= allowed
        memory = f"the coordinator had {before / 1e6:.0f} MB and grew by {grown / 1e6:.0f} MB"
        print(
            f"{sites} sites, {jobs} job{'s' * (jobs > 1)} at once, {objects:,} shared objects: {states.count('done')} "
            f"done in {seconds:.1f} s; {memory} ({allowed / 1e6:.0f} MB allowed)   "
            f"{'kept' if fine else 'NOT kept'}",
            flush=True,
        )
    return fine


def main() -> None:
    found = [
        measure(50, 1, 2_000, 30, totals_of(1, 2_000)),
        measure(8, 20, 2_000, 30, totals_of(20, 2_000)),
        measure(8, 1, 100_000, 10, planned(8, 100_000)),
    ]
    sys.exit(0 if all(found) else 1)


if __name__ == "__main__":
    main()
