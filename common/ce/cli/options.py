"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ce.errors import ConfigError, InputError, UnknownColumn
from ce.job import MODELS, Job
from ce.labels import LabelTable

Command = TypeVar("Command", bound=Callable[..., Any])


def label_options(command: Command) -> Command:
    """How label files are read."""
    for option in reversed(
        (
            click.option("--id", "id_", default="id", show_default=True, metavar="NAME", help="The id column."),
            click.option(
                "--classifiers",
                multiple=True,
                metavar="GLOB",
                help="Columns that are classifiers, beside those named clf:NAME. May be repeated.",
            ),
            click.option(
                "--noise",
                type=click.Choice(["missing", "keep"]),
                default="missing",
                show_default=True,
                help="What a negative integer label means: no label, or a cluster of its own.",
            ),
        )
    ):
        command = option(command)
    return command


def model_options(command: Command) -> Command:
    """What is fitted."""
    for option in reversed(
        (
            click.option("--clusters", type=int, metavar="K", help="Consensus clusters (bce, mixture)."),
            click.option("--model", type=click.Choice(MODELS), default="bce", show_default=True),
            click.option(
                "--class",
                "classes",
                multiple=True,
                metavar="NAME",
                help="bc3e: a class name; repeat for each. Default: all that the classifiers use.",
            ),
            click.option("--restarts", type=int, default=5, show_default=True, help="Starts; the best wins."),
            click.option(
                "--seed",
                type=click.IntRange(min=0),
                default=0,
                show_default=True,
                metavar="S",
                help="Equal seeds, equal bits.",
            ),
            click.option("--max-iterations", type=int, default=0, help="Default: 300, or 10 for bc3e."),
            click.option("--posterior", type=click.Choice(["joint", "factorised"]), default="joint", help="bc3e."),
            click.option("--start", type=click.Choice(["votes", "diffused"]), default="votes", help="bc3e."),
            click.option(
                "--truth",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="id and true label, to score the consensus with; used for nothing else.",
            ),
        )
    ):
        command = option(command)
    return command


def format_option(command: Command) -> Command:
    return click.option(
        "--format",
        "format_",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Tables for people, or JSON for scripts.",
    )(command)


def read_labels(path: Path, id_: str, classifiers: tuple[str, ...], noise: str) -> LabelTable:
    return LabelTable.from_file(path, id=id_, classifiers=classifiers, noise="keep" if noise == "keep" else "missing")


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


def read_truth(path: Path | None, id_: str) -> LabelTable | None:
    return None if path is None else read_labelling(path, id_, None, "call the true one label")


def class_names(names: tuple[str, ...]) -> tuple[int, ...] | tuple[str, ...] | None:
    """--class as the label files spell them: integers if all are."""
    if not names:
        return None
    try:
        return tuple(int(name) for name in names)
    except ValueError:
        return names


def job_of(**keys: Any) -> Job:
    """The job that the options describe; what a job refuses is here a wrong use of the command."""
    try:
        return Job(**keys)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
