"""ce fit: one consensus from one label file."""

from __future__ import annotations

from pathlib import Path

import click

from ce.cli.options import class_names, format_option, job_of, label_options, model_options, read_labels, read_truth
from ce.cli.report import Consensus, check_outputs, progress_bar, show, summary, write_consensus
from ce.simulation import simulate


@click.command()
@click.argument("labels", type=click.Path(path_type=Path))
@model_options
@label_options
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where to write the consensus file.")
@format_option
def fit(
    labels: Path,
    clusters: int | None,
    model: str,
    classes: tuple[str, ...],
    restarts: int,
    seed: int,
    max_iterations: int,
    posterior: str,
    start: str,
    truth: Path | None,
    id_: str,
    classifiers: tuple[str, ...],
    noise: str,
    out: Path | None,
    format_: str,
) -> None:
    """Find the consensus of one label file: CSV, TSV (gzipped or not) or Parquet.

    \b
    Examples:
      ce fit labels.csv --clusters 5 --out consensus.csv
      ce fit labels.csv --clusters 5 --model mixture --restarts 20 --seed 1
      ce fit votes.csv --model bc3e --classifiers 'clf_*' --out classes.csv
      ce fit labels.parquet --id customer --clusters 8 --format json
    """
    job = job_of(
        name="fit",
        model=model,
        clusters=clusters,
        classes=class_names(classes),
        restarts=restarts,
        seed=seed,
        max_iterations=max_iterations,
        posterior=posterior,
        start=start,
        privacy="plain",
    )
    tables = {"here": read_labels(labels, id_, classifiers, noise)}
    true = read_truth(truth, id_)
    written = [] if out is None else [out]
    check_outputs(written, [labels, truth])
    with progress_bar() as on_progress:
        result = simulate(job, tables, on_progress=on_progress)
    for path in written:
        own = result.sites["here"]
        write_consensus(path, own.ids, own.labels, own.memberships, result.classes)
    show(summary(result, Consensus.of(result, tables), true), format_, written)
