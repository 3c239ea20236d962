"""Options that `ce fit`, `ce simulate` and `ce audit` share: how label files are read, and which model is fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from ce.cli.output import format_option as format_option
from ce.declarations.registry import BUILT_IN, DEFAULT, model_names
from ce.errors import ConfigError, InputError, UnknownColumn
from ce.job import PRECISIONS, Job
from ce.labels import LabelTable, Noise

#: As many clusters as the labels show.
AUTO = "auto"

Command = TypeVar("Command", bound=Callable[..., Any])

precision_option = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="double",
    show_default=True,
    help="Of the exchanges: single takes half the bytes for shared objects.",
)


def _taking(outcome: str) -> str:
    """The built-in models with this outcome, for a help text."""
    return ", ".join(model.name for model in BUILT_IN if model.outcome == outcome)


def _clusters(value: Any) -> int | str:
    """A number of clusters, or "auto"; which models take "auto" is for the job to say."""
    if value == AUTO:
        return AUTO
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a whole number nor {AUTO}.") from None


_COUNTING = ", ".join(model.name for model in BUILT_IN if model.counts_clusters)
_OPTIONS = (
    click.option(
        "--clusters",
        type=_clusters,
        metavar="K",
        help=f"Consensus clusters ({_taking('clusters')}); {AUTO}: as many as stand out ({_COUNTING}).",
    ),
    click.option(
        "--model",
        type=click.Choice(model_names()),
        default=DEFAULT,
        show_default=True,
        help="; ".join(f"{model.name}: {model.title}" for model in BUILT_IN) + ".",
    ),
    click.option(
        "--class",
        "classes",
        multiple=True,
        metavar="NAME",
        help="bc3e: a class name; repeat it for each class. Default: all classes that the classifiers use.",
    ),
    click.option(
        "--restarts", type=int, help="Number of starts; the best one is used. Default: 5, 20 for mixture, 1 for bc3e."
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="S",
        help="Seed of the random starts; the same seed gives the same bits.",
    ),
    click.option(
        "--max-iterations", type=int, help="Default: as the model declares it; 300, 10 for bc3e, or 2000 for pairs."
    ),
    click.option(
        "--posterior",
        type=click.Choice(["joint", "factorised"]),
        default="joint",
        show_default=True,
        help="bc3e: factorised is the paper's, in which the clusterings have less influence.",
    ),
    click.option(
        "--start",
        type=click.Choice(["votes", "diffused"]),
        default="votes",
        show_default=True,
        help="bc3e: start from the votes, or from the votes diffused over the clusterings.",
    ),
    click.option(
        "--truth",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File with ids and true labels; used only to score the consensus.",
    ),
    click.option("--id", "id_", default="id", show_default=True, metavar="NAME", help="The id column."),
    click.option(
        "--classifiers",
        multiple=True,
        metavar="GLOB",
        help="Columns that are classifiers, in addition to those named clf:NAME. May be repeated.",
    ),
    click.option(
        "--noise",
        type=click.Choice(["missing", "keep"]),
        default="missing",
        show_default=True,
        help="A negative integer label means no label, or is kept as a label.",
    ),
    format_option,
)


def job_options(command: Command) -> Command:
    """Give a command the options of `Options`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Options:
    """The shared options as the user gave them."""

    clusters: int | Literal["auto"] | None
    model: str
    classes: tuple[str, ...]
    restarts: int | None
    seed: int
    max_iterations: int | None
    posterior: str
    start: str
    truth: Path | None
    id_: str
    classifiers: tuple[str, ...]
    noise: Noise
    format_: str

    def job(self, name: str, sites: tuple[str, ...], **also: Any) -> Job:
        """The job that the options describe, and further keys. Values that a job refuses are usage errors."""
        given = {"restarts": self.restarts, "max_iterations": self.max_iterations}
        also |= {key: value for key, value in given.items() if value is not None}
        try:
            return Job(
                name=name,
                sites=sites,
                model=self.model,
                clusters=self.clusters,
                classes=_class_names(self.classes),
                seed=self.seed,
                posterior=self.posterior,
                start=self.start,
                **also,
            )
        except ConfigError as error:
            raise click.UsageError(str(error)) from error

    def read(self, path: Path) -> LabelTable:
        """The label table of one file; every classifier pattern must match a column."""
        return LabelTable.from_file(path, id=self.id_, classifiers=self.classifiers, noise=self.noise)

    def read_sites(self, paths: tuple[Path, ...]) -> dict[str, LabelTable]:
        """One label table per file; sites are named by their files. Each classifier pattern must match a column of at
        least one file."""
        tables: dict[str, LabelTable] = {}
        unused = set(self.classifiers)
        for path in paths:
            name = path.name.lstrip(".").split(".")[0]
            if name in tables:
                raise InputError(f"two files would be site {name!r}: sites are named by their files; rename one")
            patterns = list(self.classifiers)
            while name not in tables:
                try:
                    tables[name] = LabelTable.from_file(path, id=self.id_, classifiers=patterns, noise=self.noise)
                except UnknownColumn as error:
                    if error.column not in patterns:
                        raise
                    patterns.remove(error.column)
            unused -= set(patterns)
        if unused:
            raise InputError(f"no file has a classifier that matches {', '.join(sorted(unused))}")
        return tables

    def read_truth(self) -> LabelTable | None:
        """The true labels, if --truth was given."""
        return None if self.truth is None else read_labelling(self.truth, self.id_, None, "call the true one label")


def read_labelling(path: Path, id_: str, column: str | None, remedy: str) -> LabelTable:
    """A table with one column: the named one, the `label` of a consensus file, or the only one."""
    try:
        return LabelTable.from_file(path, id=id_, columns=(column or "label",), noise="keep")
    except UnknownColumn:
        if column is not None:
            raise
    table = LabelTable.from_file(path, id=id_, noise="keep")
    if len(table.columns) > 1:
        names = ", ".join(column.name for column in table.columns)
        raise InputError(f"{path}: which column? {remedy}; the columns are {names}")
    return table


def _class_names(names: tuple[str, ...]) -> tuple[int, ...] | tuple[str, ...] | None:
    """Class names as label files have them: integers if all are integers."""
    if not names:
        return None
    try:
        return tuple(int(name) for name in names)
    except ValueError:
        return names
