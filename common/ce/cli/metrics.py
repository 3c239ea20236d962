"""`ce metrics`: how much two labelings agree."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from ce import metrics as measures
from ce.cli.options import format_option, read_labelling
from ce.errors import InputError

_MEASURES = {
    "ari": measures.ari,
    "nmi": measures.nmi,
    "ami": measures.ami,
    "rand_index": measures.rand_index,
    "micro_precision": measures.micro_precision,
    "purity": measures.purity,
    "pair_f": measures.pair_f,
    "f1_nbce": measures.f1_nbce,
    "vi": measures.vi,
    "nvi1": measures.nvi1,
    "nvi2": measures.nvi2,
}


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--id", "id_", default="id", show_default=True, metavar="NAME", help="The id column of both files.")
@click.option("--column-a", metavar="NAME", help="The label column of A; default: label, or the only one.")
@click.option("--column-b", metavar="NAME", help="The label column of B; default: label, or the only one.")
@format_option
def metrics(a: Path, b: Path, id_: str, column_a: str | None, column_b: str | None, format_: str) -> None:
    """Compare two labelings of the same objects, matched by id: consensus files or label files.

    For asymmetric measures (micro_precision, f1_nbce) A is the truth.

    \b
    Examples:
      ce metrics truth.csv consensus.csv
      ce metrics labels.csv consensus.csv --column-a kmeans --format json
    """
    table_a = read_labelling(a, id_, column_a, "say --column-a")
    table_b = read_labelling(b, id_, column_b, "say --column-b")
    common, rows_a, rows_b = np.intersect1d(table_a.ids, table_b.ids, return_indices=True)
    if not len(common):
        raise InputError(f"{a} and {b} have no id in common")
    codes_a, codes_b = table_a.columns[0].likeliest[rows_a], table_b.columns[0].likeliest[rows_b]
    both = int(((codes_a >= 0) & (codes_b >= 0)).sum())
    scores = {name: float(measure(codes_a, codes_b)) for name, measure in _MEASURES.items()}
    if format_ == "json":
        click.echo(json.dumps({"objects": both, **scores}, indent=2))
        return
    table = Table(title=f"{both:,} objects", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, score in scores.items():
        table.add_row(name, f"{score:.4f}")
    Console().print(table)
