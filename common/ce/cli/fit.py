"""`ce fit`: the consensus of one label file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from ce.cli.options import Options, job_options
from ce.cli.report import Consensus, check_outputs, note_early_end, progress_bar, show, summary, with_chains
from ce.cli.warmup import announce_compilation
from ce.consensus_file import write_consensus
from ce.declarations.registry import BUILT_IN, find_model
from ce.errors import ConvergenceWarning
from ce.job import Job
from ce.kernels.warmup import warm_up
from ce.labels import LabelTable
from ce.models import BCE
from ce.protocol.engine.aggregator import Progress
from ce.simulation import Excluded, Simulation, SiteResult, simulate

#: The one site of a fit.
HERE = "here"


_SEALED = tuple(model.name for model in BUILT_IN if model.sealed)


@click.command()
@click.argument("labels", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to write the consensus file.")
@click.option(
    "--inference",
    type=click.Choice(["vb", "gibbs"]),
    default="vb",
    show_default=True,
    help="bce: gibbs draws from the posterior, by chains (--restarts) of --max-iterations sweeps; Ctrl-C ends it with "
    "the draws that there are.",
)
@job_options
def fit(labels: Path, out: Path | None, inference: str, **given: Any) -> None:
    """Find the consensus of one label file: CSV, TSV (gzipped or not) or Parquet.

    \b
    Examples:
      ce fit labels.csv --clusters 5 --out consensus.csv
      ce fit labels.csv --clusters 5 --model mixture --restarts 20 --seed 1
      ce fit labels.csv --clusters 5 --inference gibbs --out consensus.csv
      ce fit votes.csv --model bc3e --classifiers 'clf_*' --out classes.csv
      ce fit labels.csv --model pairs --clusters auto --out consensus.csv
      ce fit labels.parquet --id customer --clusters 8 --format json
    """
    options = Options(**given)
    if inference == "gibbs" and options.model != BCE.declaration.name:
        raise click.UsageError("--inference gibbs is for --model bce")
    if inference == "gibbs" and options.max_iterations == 0:
        raise click.UsageError("--inference gibbs needs --max-iterations of at least 1")
    # Here is nobody else who could put together what they know.
    # On one machine there are no exchanges to save: passes over the cells are all that costs time.
    job = options.job("fit", (HERE,), local_loops=1, **({"collusion": 0} if options.model in _SEALED else {}))
    tables = {HERE: options.read(labels)}
    truth = options.read_truth()
    written = [] if out is None else [out]
    check_outputs(written, [labels, options.truth])
    warm_up(announce_compilation)
    sampled: BCE | None = None
    with progress_bar() as on_progress:
        if inference == "gibbs":
            result, sampled = _by_sampling(job, tables[HERE], on_progress)
        elif find_model(job.model).sealed:
            result = _by_its_estimator(job, tables[HERE], on_progress)
        else:
            result = simulate(job, tables, privacy="plain", on_progress=on_progress)
    for path in written:
        site = result.sites[HERE]
        write_consensus(path, site.ids, site.labels, site.memberships, result.classes)
    report = summary(result, Consensus.of(result, tables), truth)
    if sampled is None:
        note_early_end(result)
    else:
        report = with_chains(report, sampled)
    show(report, options.format_, written)


def _by_sampling(job: Job, table: LabelTable, on_progress: Callable[[Any], None] | None) -> tuple[Simulation, BCE]:
    """BCE by Gibbs sampling."""
    assert isinstance(job.clusters, int)
    estimator = BCE(
        job.clusters,
        inference="gibbs",
        n_init=job.restarts,
        max_iter=job.max_iterations,
        random_state=job.seed,
        n_threads=job.restarts,
        progress=on_progress or False,
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        estimator.fit(table)
    for one in told:
        click.echo(f"warning: {str(one.message).replace('max_iter', '--max-iterations')}", err=True)
    mean = float(estimator.log_joint_[estimator.chains_used_].mean())
    return _result(job, table, estimator, {"alpha": estimator.alpha_}, mean), estimator


def _by_its_estimator(job: Job, table: LabelTable, on_progress: Callable[[Progress], None] | None) -> Simulation:
    """The consensus of a model that no engine runs: one file needs neither masks nor noise."""
    estimator = find_model(job.model).load_estimator()(
        job.clusters, max_iter=job.max_iterations, random_state=job.seed, progress=on_progress or False
    )
    with warnings.catch_warnings():
        # `note_early_end` says it in a line that names the option.
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(table)
    parameters = {"weights": estimator.weights_, "eigenvalues": estimator.eigenvalues_}
    return _result(job, table, estimator, parameters, estimator.log_composite_)


def _result(job: Job, table: LabelTable, estimator: Any, parameters: dict[str, Any], objective: float) -> Simulation:
    """What an estimator has found, as the result of a job at one site."""
    unlabelled = int((estimator.labels_ == -1).sum())
    excluded = [Excluded(HERE, "objects without a label", objects=unlabelled)] if unlabelled else []
    if table.classifiers:
        names = tuple(column.name for column in table.classifiers)
        excluded.append(Excluded(HERE, "classifiers in a model without classes", columns=names))
    return Simulation(
        job=job,
        sites={HERE: SiteResult(table.ids, estimator.labels_, estimator.memberships_)},
        parameters=parameters,
        bound_path=np.array([objective]),
        lower_bound=objective,
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
