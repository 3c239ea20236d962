"""`ce fit`: the consensus of one label file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from ce.cli.options import Options, job_options
from ce.cli.report import Consensus, check_outputs, note_early_end, progress_bar, show, summary
from ce.cli.warmup import announce_compilation
from ce.consensus_file import write_consensus
from ce.declarations.registry import BUILT_IN, find_model
from ce.errors import ConvergenceWarning
from ce.job import Job
from ce.kernels.warmup import warm_up
from ce.labels import LabelTable
from ce.protocol.engine.aggregator import Progress
from ce.simulation import Excluded, Simulation, SiteResult, simulate

#: The one site of a fit.
HERE = "here"


_SEALED = tuple(model.name for model in BUILT_IN if model.sealed)


@click.command()
@click.argument("labels", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to write the consensus file.")
@job_options
def fit(labels: Path, out: Path | None, **given: Any) -> None:
    """Find the consensus of one label file: CSV, TSV (gzipped or not) or Parquet.

    \b
    Examples:
      ce fit labels.csv --clusters 5 --out consensus.csv
      ce fit labels.csv --clusters 5 --model mixture --restarts 20 --seed 1
      ce fit votes.csv --model bc3e --classifiers 'clf_*' --out classes.csv
      ce fit labels.csv --model pairs --clusters auto --out consensus.csv
      ce fit labels.parquet --id customer --clusters 8 --format json
    """
    options = Options(**given)
    # Here is nobody else who could put together what they know.
    # On one machine there are no exchanges to save: passes over the cells are all that costs time.
    job = options.job("fit", (HERE,), local_loops=1, **({"collusion": 0} if options.model in _SEALED else {}))
    tables = {HERE: options.read(labels)}
    truth = options.read_truth()
    written = [] if out is None else [out]
    check_outputs(written, [labels, options.truth])
    warm_up(announce_compilation)
    with progress_bar() as on_progress:
        if find_model(job.model).sealed:
            result = _by_its_estimator(job, tables[HERE], on_progress)
        else:
            result = simulate(job, tables, privacy="plain", on_progress=on_progress)
    for path in written:
        site = result.sites[HERE]
        write_consensus(path, site.ids, site.labels, site.memberships, result.classes)
    note_early_end(result)
    show(summary(result, Consensus.of(result, tables), truth), options.format_, written)


def _by_its_estimator(job: Job, table: LabelTable, on_progress: Callable[[Progress], None] | None) -> Simulation:
    """The consensus of a model that no engine runs: one file needs neither masks nor noise."""
    estimator = find_model(job.model).load_estimator()(
        job.clusters, max_iter=job.max_iterations, random_state=job.seed, progress=on_progress or False
    )
    with warnings.catch_warnings():
        # `note_early_end` says it in a line that names the option.
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(table)
    unlabelled = int((estimator.labels_ == -1).sum())
    excluded = [Excluded(HERE, "objects without a label", objects=unlabelled)] if unlabelled else []
    if table.classifiers:
        names = tuple(column.name for column in table.classifiers)
        excluded.append(Excluded(HERE, "classifiers in a model without classes", columns=names))
    return Simulation(
        job=job,
        sites={HERE: SiteResult(table.ids, estimator.labels_, estimator.memberships_)},
        parameters={"weights": estimator.weights_, "eigenvalues": estimator.eigenvalues_},
        bound_path=np.array([estimator.log_composite_]),
        lower_bound=estimator.log_composite_,
        iterations=estimator.n_iter_,
        converged=estimator.converged_,
        exchanges=0,
        bytes_sent=0,
        layout="one",
        privacy="plain",
        excluded=tuple(excluded),
        objects=table.n_objects,
        objects_in_fit=table.n_objects,
        classes=(),
        kappa=None,
    )
