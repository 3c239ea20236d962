"""What a sealed job costs, against a masked column-distributed BCE job on the same labels, in the same run.

Five site processes; 10,000 objects that all sites hold, four columns at each with seven categories each (140 in all).
Wall time is from the submission to the end, set-up included. MB are all that the sites send and are sent, letters
included, as the coordinator counts them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from harness.labels import by_columns, planted
from harness.measurement import Level, Measurement, Ratio, Subject
from harness.options import Options
from harness.processes import deployed, whole_job
from support.processes import Deployment

import ce

SITES = ("east", "middle", "north", "south", "west")
OBJECTS, COLUMNS_PER_SITE, CLUSTERS = 10_000, 4, 7
MODELS = {"sealed": {"model": "pairs"}, "masked": {"model": "bce", "privacy": "masked"}}


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    truth, codes = planted(OBJECTS, COLUMNS_PER_SITE * len(SITES), CLUSTERS, wrong=0.2)
    with deployed(by_columns(codes, SITES), metrics=True) as deployment:

        def run(name: str) -> dict[str, float]:
            before, begin = _megabytes(deployment), time.perf_counter()
            job = whole_job(deployment, clusters=CLUSTERS, **MODELS[name])
            seconds = time.perf_counter() - begin
            sent = _megabytes(deployment) - before
            ids, labels, _ = deployment.consensus(SITES[0], job.name)
            found = dict(zip(ids, labels, strict=True))
            ari = ce.metrics.ari(truth, [found[f"o{i}"] for i in range(OBJECTS)])
            return {"wall": seconds, "MB": sent, "ARI": ari}

        yield [
            Measurement(
                name="sealed job",
                what=f"{len(SITES)} site processes, {OBJECTS:,} objects, {COLUMNS_PER_SITE * len(SITES)} columns, "
                f"k = {CLUSTERS}: a sealed job, and a masked BCE job with the defaults. ARI is with the planted truth.",
                unit="s",
                units={"MB": "MB", "ARI": ""},
                subjects=tuple(Subject(name, partial(run, name)) for name in MODELS),
                claims=(
                    Ratio("wall time, of the masked job", most=0.2, of="sealed: wall", to="masked: wall"),
                    Ratio("bytes, of the masked job", most=0.1, of="sealed: MB", to="masked: MB"),
                    Level("ARI of the sealed job", of="sealed: ARI"),
                    Level("ARI of the masked job", of="masked: ARI"),
                ),
                turns=options.turns(1, 3),
                warm_up=0,
            )
        ]


def _megabytes(deployment: Deployment) -> float:
    """Over all streams, both ways."""
    found = deployment.scrape("hub").items()
    return sum(value for name, value in found if name.startswith("ce_coordinator_bytes_total")) / 1e6
