"""`ce fit`: the consensus of one label file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ce.cli.options import Options, job_options
from ce.cli.report import Consensus, check_outputs, note_early_end, progress_bar, show, summary
from ce.consensus_file import write_consensus
from ce.simulation import simulate


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
      ce fit labels.parquet --id customer --clusters 8 --format json
    """
    options = Options(**given)
    job = options.job("fit", ("here",))
    tables = {"here": options.read(labels)}
    truth = options.read_truth()
    written = [] if out is None else [out]
    check_outputs(written, [labels, options.truth])
    with progress_bar() as on_progress:
        result = simulate(job, tables, privacy="plain", on_progress=on_progress)
    for path in written:
        site = result.sites["here"]
        write_consensus(path, site.ids, site.labels, site.memberships, result.classes)
    note_early_end(result)
    show(summary(result, Consensus.of(result, tables), truth), options.format_, written)
