"""ce simulate: a job over several sites, each with its own labels, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from ce.cli.options import class_names, format_option, job_of, label_options, model_options, read_labels, read_truth
from ce.cli.report import Consensus, check_outputs, progress_bar, show, summary, write_consensus
from ce.errors import InputError, UnknownColumn
from ce.job import PRIVACY
from ce.labels import LabelTable
from ce.simulation import simulate as simulate_job
from ce.splits import split as split_table


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--split", metavar="HOW", help="Split one file: rows:4, columns:4 or blocks:6.")
@click.option("--privacy", type=click.Choice(PRIVACY), help="How sums travel; this version simulates plain sums.")
@click.option("--transport", type=click.Choice(["inprocess", "grpc"]), default="inprocess", show_default=True)
@model_options
@label_options
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="One consensus file per site goes here.")
@format_option
def simulate(
    files: tuple[Path, ...],
    split: str | None,
    privacy: str | None,
    transport: str,
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
    """Run a job over several sites: one file each, named by the file, or one file split.

    \b
    Examples:
      ce simulate north.csv east.csv south.csv --clusters 5 --out results
      ce simulate labels.csv --split rows:4 --clusters 5 --out results
      ce simulate labels.csv --split blocks:6 --clusters 5 --truth truth.csv --format json
    """
    tables = _tables(files, split, seed, id_, classifiers, noise)
    true = read_truth(truth, id_)
    written = {} if out is None else {name: out / f"{name}.csv" for name in tables}
    check_outputs(list(written.values()), [*files, truth])
    job = job_of(
        name="simulation",
        model=model,
        clusters=clusters,
        classes=class_names(classes),
        sites=tuple(tables),
        restarts=restarts,
        seed=seed,
        max_iterations=max_iterations,
        posterior=posterior,
        start=start,
    )
    with progress_bar() as on_progress:
        result = simulate_job(job, tables, privacy=privacy, transport=transport, on_progress=on_progress)
    for name, path in written.items():
        site = result.sites[name]
        write_consensus(path, site.ids, site.labels, site.memberships, result.classes)
    show(summary(result, Consensus.of(result, tables), true), format_, list(written.values()))


def _tables(
    files: tuple[Path, ...],
    split: str | None,
    seed: int,
    id_: str,
    classifiers: tuple[str, ...],
    noise: str,
) -> dict[str, LabelTable]:
    if split is not None:
        if len(files) != 1:
            raise click.UsageError("--split takes one file; without it each file is a site")
        return split_table(read_labels(files[0], id_, classifiers, noise), split, seed)
    tables: dict[str, LabelTable] = {}
    unused = set(classifiers)
    for path in files:
        name = path.name.lstrip(".").split(".")[0]
        if name in tables:
            raise InputError(f"two files would be site {name!r}: sites are named by their files; rename one")
        # Not every site has classifiers: a pattern must match somewhere, not everywhere.
        patterns = list(classifiers)
        while name not in tables:
            try:
                tables[name] = read_labels(path, id_, tuple(patterns), noise)
            except UnknownColumn as error:
                if error.column not in patterns:
                    raise
                patterns.remove(error.column)
        unused -= set(patterns)
    if unused:
        raise InputError(f"no file has a classifier that matches {', '.join(sorted(unused))}")
    return tables
