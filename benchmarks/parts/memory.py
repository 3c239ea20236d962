"""The coordinator's memory: 50 site processes that send 8 MB each in every exchange, above what it takes idle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

from harness.labels import by_columns, planted
from harness.measurement import Level, Measurement, Subject
from harness.options import Options
from harness.processes import deployed, peak_memory, whole_job
from support.processes import FORKED

SITES = tuple(f"s{at:02d}" for at in range(50))
#: 8 bytes for each start, cluster and object: 8 MB. Few objects, which fifty sites align in less time.
STARTS, CLUSTERS, OBJECTS = 100, 5, 2_000
MODES = ("plain", "masked")
PROMISE_MB = 100


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    _, codes = planted(OBJECTS, len(SITES), CLUSTERS, wrong=0.2)
    tables = by_columns(codes, SITES)

    def above_idle(privacy: str) -> float:
        """Megabytes, of a coordinator of its own for each mode: a peak stays."""
        with mock.patch.dict(os.environ, {FORKED: "1"}), deployed(tables) as deployment:
            hub = deployment.processes["hub"].pid
            idle = peak_memory(hub)
            whole_job(deployment, clusters=CLUSTERS, restarts=STARTS, max_iterations=3, tolerance=0.0, privacy=privacy)
            return (peak_memory(hub) - idle) / 1e6

    yield [
        Measurement(
            name="coordinator's memory",
            what=f"Most memory of the coordinator above what it takes idle with all connected: {len(SITES)} sites, "
            f"{8 * STARTS * CLUSTERS * OBJECTS / 1e6:.0f} MB from and to each in an exchange.",
            unit="MB",
            subjects=tuple(Subject(privacy, partial(above_idle, privacy)) for privacy in MODES),
            claims=tuple(Level(f"above idle, {privacy}", most=PROMISE_MB, of=privacy) for privacy in MODES),
            turns=1,
            warm_up=0,
        )
    ]
