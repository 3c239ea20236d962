"""`ce simulate`: a job of several sites, each with its own labels, on one machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from ce.cli.options import Options, job_options, precision_option
from ce.cli.report import Consensus, check_outputs, note_early_end, progress_bar, show, summary
from ce.cli.warmup import announce_compilation
from ce.consensus_file import write_consensus
from ce.job import EXACT, PRIVACY, UNITS
from ce.kernels.warmup import warm_up
from ce.simulation import simulate as simulate_job
from ce.splits import split as split_table


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--split", metavar="HOW", help="Split one file: rows:4, columns:4 or blocks:6.")
@click.option(
    "--privacy", type=click.Choice(PRIVACY), help="Who can read the sums of a site. Default: masked; sealed for pairs."
)
@precision_option
@click.option(
    "--local-loops",
    type=int,
    metavar="N",
    help="Passes per iteration over columns that one site holds alone. Default: 10 for bce, else 1. With 1 the result "
    "is that of `ce fit`, whichever site holds what.",
)
@click.option("--epsilon", metavar="E", help="pairs: how much the opened tables may tell; exact: no noise. Default: 2.")
@click.option("--delta", type=float, help="pairs: chance that epsilon does not hold. Default: 1e-6.")
@click.option("--collusion", type=int, help="pairs: so many sites may put together what they know. Default: 1.")
@click.option("--unit", type=click.Choice(UNITS), help="pairs: whose change the noise hides. Default: site_row.")
@click.option("--policy", type=click.Path(path_type=Path), metavar="FILE", help="Rules (policy.toml) of every site.")
@click.option("--transport", type=click.Choice(["inprocess", "grpc"]), default="inprocess", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where to write a consensus file per site.")
@job_options
def simulate(
    files: tuple[Path, ...],
    split: str | None,
    privacy: str | None,
    precision: str,
    local_loops: int | None,
    epsilon: str | None,
    delta: float | None,
    collusion: int | None,
    unit: str | None,
    policy: Path | None,
    transport: str,
    out: Path | None,
    **given: Any,
) -> None:
    """Run a job of several sites: one label file per site, or one file that is split.

    \b
    Examples:
      ce simulate north.csv east.csv south.csv --clusters 5 --out results
      ce simulate labels.csv --split rows:4 --clusters 5 --privacy blind --out results
      ce simulate labels.csv --split blocks:6 --clusters 5 --truth truth.csv --format json
      ce simulate labels.csv --split blocks:6 --model pairs --clusters auto --epsilon 4 --out results
    """
    options = Options(**given)
    if split is not None and not re.fullmatch(r"(rows|columns|blocks):[1-9][0-9]{0,8}", split):
        raise click.UsageError("--split is rows:N, columns:N or blocks:N")
    if split is None:
        tables = options.read_sites(files)
    elif len(files) == 1:
        tables = split_table(options.read(files[0]), split, options.seed)
    else:
        raise click.UsageError("--split takes one file; without it each file is a site")
    noise = {
        "epsilon": _epsilon(epsilon),
        "delta": delta,
        "collusion": collusion,
        "unit": unit,
        "local_loops": local_loops,
    }
    chosen = {key: given for key, given in noise.items() if given is not None}
    job = options.job("simulation", tuple(tables), precision=precision, **chosen)
    truth = options.read_truth()
    written = {} if out is None else {name: out / f"{name}.csv" for name in tables}
    check_outputs(list(written.values()), [*files, options.truth])
    warm_up(announce_compilation)
    with progress_bar(job.sealed) as on_progress:
        result = simulate_job(job, tables, privacy=privacy, policy=policy, transport=transport, on_progress=on_progress)
    for name, path in written.items():
        site = result.sites[name]
        write_consensus(path, site.ids, site.labels, site.memberships, result.classes)
    note_early_end(result)
    show(summary(result, Consensus.of(result, tables), truth), options.format_, list(written.values()))


def _epsilon(given: str | None) -> float | str | None:
    if given is None or given == EXACT:
        return given
    try:
        return float(given)
    except ValueError:
        raise click.UsageError(f"--epsilon is a number, or {EXACT}") from None
