"""Label files: CSV and TSV, gzipped or not, and Parquet with the same columns.

`LabelTable.from_csv` and `from_parquet` call this. The header says what a column is:

    id               the objects' ids (or the column that the caller names)
    NAME             a clustering; a classifier if the caller's patterns match NAME
    clf:NAME         a classifier
    clf:NAME=CLASS   one class of the soft classifier NAME: a probability per object
    soft:NAME=CAT    one category of the soft clustering NAME

Rows in errors are the lines that an editor shows. A Parquet file has no lines; its rows are numbered as in the CSV file
of the same table, in which the header is row 1.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from ce.errors import LabelError, UnknownColumn
from ce.labels.arrays import series_values
from ce.labels.names import clean_text, factorise, listed, matching, refuse_repeated, refuse_unknown_noise
from ce.labels.table import Column, FilePath, Kind, LabelData, Noise
from ce.labels.values import (
    INFINITE,
    Origin,
    Reading,
    array_column,
    hard_column,
    object_ids,
    read_decimal,
    read_value,
    refuse_containers,
)

MISSING = {"", "NA", "NaN", "nan", "null"}
# Python's int() and float() also accept 1_000, inf and the digits of every script: here those are names.
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
INFINITE_NUMBER = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
SHORT_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
SOFT_NAME = re.compile(r"(clf|soft):([^=]*)=(.*)", re.DOTALL)
# Probabilities may be written with three digits: 0.333 three times is accepted, whatever the rounding of the sum.
SUM_TOLERANCE = 1e-3 + 1e-9


def read_csv(
    path: FilePath, id: str, classifiers: Iterable[str], wanted: Iterable[str] | None, noise: Noise
) -> LabelData:
    source = os.fspath(path)
    refuse_unknown_noise(noise)
    text = read_text(Path(path), source)
    name = source.lower().removesuffix(".gz")
    tabs = name.endswith(".tsv") or (not name.endswith(".csv") and "\t" in text.lstrip("\r\n").partition("\n")[0])
    header, records, lines = parse_csv(text, "\t" if tabs else ",", source)
    columns = [[record[at] for record in records] for at in range(len(header))]
    return table_from_columns(header, columns, Origin(source, lines), id, classifiers, wanted, noise)


def read_text(path: Path, source: str) -> str:
    """The text of a file. Raises LabelError if it is not a complete UTF-8 text."""
    data = read_bytes(path, source)
    if source.lower().endswith(".gz"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            raise LabelError("not a complete gzip file: compress it again", source=source) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        raise LabelError("not UTF-8 text: save the file as UTF-8", source=source, row=row) from None
    if "\0" in text:
        row = text.count("\n", 0, text.index("\0")) + 1
        raise LabelError("a NUL character: save the file as UTF-8 text", source=source, row=row)
    if not text.strip():
        raise LabelError("the file is empty: expected a header and one row per object", source=source)
    return text


def read_bytes(path: Path, source: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise LabelError("no such file", source=source) from None
    except IsADirectoryError:
        raise LabelError("a directory: expected a file", source=source) from None
    except PermissionError:
        raise LabelError("no permission to read this file", source=source) from None
    except OSError as error:
        raise LabelError(f"cannot be read: {error.strerror}", source=source) from None


def parse_csv(text: str, delimiter: str, source: str) -> tuple[list[str], list[list[str]], list[int]]:
    """The header, the records, and the line on which each record starts."""
    header: list[str] = []
    records: list[list[str]] = []
    lines: list[int] = []
    # strict: otherwise a quote that is never closed would turn the rest of the file into one field.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for record in reader:
            if not header:
                header = record
            elif len(record) == len(header):
                records.append(record)
                lines.append(line)
            elif record:
                problem = f"{len(record)} fields, expected {len(header)} as in the header"
                raise LabelError(problem, source=source, row=line)
            line = reader.line_num + 1
    except csv.Error:
        problem = f"not {'tab' if delimiter == chr(9) else 'comma'}-separated text: check the quotation marks"
        raise LabelError(problem, source=source, row=line) from None
    return header, records, lines


def read_parquet(
    path: FilePath, id: str, classifiers: Iterable[str], wanted: Iterable[str] | None, noise: Noise
) -> LabelData:
    source = os.fspath(path)
    refuse_unknown_noise(noise)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise LabelError("Parquet needs pyarrow: pip install 'ce[parquet]'", source=source) from None
    data = read_bytes(Path(path), source)
    try:
        table = pyarrow.parquet.ParquetFile(io.BytesIO(data)).read()
        columns = [series_values(column) for column in table.columns]
    except (pyarrow.ArrowException, OSError):
        raise LabelError("not a complete Parquet file: write it again", source=source) from None
    except UnicodeDecodeError:
        raise LabelError("a text column is not UTF-8: write it again as UTF-8", source=source) from None
    return table_from_columns(
        table.column_names,
        columns,
        Origin(source, range(2, table.num_rows + 2)),
        id,
        classifiers,
        wanted,
        noise,
    )


@dataclass(frozen=True)
class Planned:
    """A column of the table, and the fields of the file that it is read from: several if it is soft."""

    name: str
    kind: Kind
    fields: list[int] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)  # one per field; empty if hard


def table_from_columns(
    header: Sequence[str],
    columns: Sequence[Any],
    origin: Origin,
    id: str,
    classifiers: Iterable[str],
    wanted: Iterable[str] | None,
    noise: Noise,
) -> LabelData:
    """A table from the fields of a file of any kind."""
    names = [clean_text(name) for name in header]
    id_at = find_id(names, clean_text(id), origin.source)
    planned = chosen(plan_columns(names, id_at, classifiers, origin.source), wanted, origin.source)
    if not origin.rows:
        raise LabelError("no rows below the header: expected one per object", source=origin.source)
    ids = object_ids(columns[id_at], origin, names[id_at])
    made = tuple(
        soft_column(plan, names, columns, origin)
        if plan.classes
        else file_column(plan, columns[plan.fields[0]], origin, noise)
        for plan in planned
    )
    for column in made:
        if not column.observed.any():
            problem = "no label in this column: remove the column, or check how it was written"
            raise LabelError(problem, source=origin.source, column=column.name)
    return LabelData(ids, made, origin.source)


def chosen(plans: list[Planned], wanted: Iterable[str] | None, source: str) -> list[Planned]:
    """The columns that the caller names, in that order; all of them if `wanted` is None."""
    if wanted is None:
        return plans
    by_name = {plan.name: plan for plan in plans}
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in by_name:
            problem = f"unknown column; the columns are {listed(by_name)}"
            raise UnknownColumn(problem, source=source, column=name)
    return [by_name[name] for name in names]


def find_id(names: Sequence[str], id: str, source: str) -> int:
    """The index of the id column. Checked first: without an id column the first line may not be a header.

    The error does not name the fields that were found: in a file without a header they are an id and labels.
    """
    if id in names:
        return names.index(id)
    raise LabelError(
        f"no column of this name among the {len(names)} of the first line, which must be the header. "
        "Add the header if it is missing, check the separator of the fields, or name the id column: --id NAME",
        source=source,
        column=id,
    )


def plan_columns(names: Sequence[str], id_at: int, patterns: Iterable[str], source: str) -> list[Planned]:
    """What the header says about every column except the ids."""
    for at, name in enumerate(names):
        soft = SOFT_NAME.fullmatch(name)
        if not name or name == "clf:" or (soft and not (soft[2].strip() and soft[3].strip())):
            problem = f"field {at + 1} of the header has an empty name: name it (pandas: write with index=False)"
            raise LabelError(problem, source=source)
        if soft and soft[3].strip() in MISSING:
            problem = "a class of this name would be read as missing: rename it"
            raise LabelError(problem, source=source, column=name)
        if name.startswith("__index_level_"):
            problem = "an index of pandas, not labels: write the file with index=False"
            raise LabelError(problem, source=source, column=name)
    refuse_repeated(names, source)
    if len(names) == 1:
        raise LabelError("no label columns: expected one per clustering or classifier", source=source)

    plans: dict[str, Planned] = {}
    order: list[Planned] = []
    for at, name in enumerate(names):
        if at == id_at:
            continue
        soft = SOFT_NAME.fullmatch(name)
        kind: Kind = "classifier" if name.startswith("clf:") else "clustering"
        if soft:
            # One column per group, even if other fields are between its fields.
            group = f"{soft[1]}:{soft[2].strip()}="
            if group not in plans:
                plans[group] = Planned(soft[2].strip(), kind)
                order.append(plans[group])
            plans[group].fields.append(at)
            plans[group].classes.append(soft[3].strip())
        else:
            order.append(Planned(name.removeprefix("clf:").strip(), kind, [at]))
    refuse_repeated([plan.name for plan in order], source)
    voting = matching([plan.name for plan in order], patterns, source)
    return [
        Planned(plan.name, "classifier" if plan.name in voting else plan.kind, plan.fields, plan.classes)
        for plan in order
    ]


def read_token(token: str) -> Reading:
    """The label that a text in a label file stands for."""
    text = clean_text(token)
    if text in MISSING:
        return Reading(None)
    if SHORT_INTEGER.fullmatch(text):
        return Reading(text, whole=int(text))
    if INFINITE_NUMBER.fullmatch(text):
        return Reading(text, problem=INFINITE)
    if NUMBER.fullmatch(text):
        try:
            return read_decimal(Decimal(text), text)
        except ArithmeticError:  # an exponent that not even Decimal holds
            return Reading(text)
    return Reading(text)


def read_cell(cell: object) -> Reading:
    return read_token(cell) if isinstance(cell, str) else read_value(cell)


def file_column(plan: Planned, cells: Any, origin: Origin, noise: Noise) -> Column:
    # Text in a Parquet file is read as in a CSV file; other types are read as in an array.
    if not isinstance(cells, np.ndarray) and any(isinstance(cell, str) for cell in cells):
        return hard_column(plan.name, plan.kind, cells, read_cell, origin, noise)
    return array_column(plan.name, plan.kind, cells, origin, noise)


def read_share(cell: object) -> float:
    """A probability; NaN if it is missing, -1 if the cell is not a probability."""
    if isinstance(cell, str):
        text = clean_text(cell)
        if text in MISSING:
            return float("nan")
        share = float(text) if NUMBER.fullmatch(text) else -1.0
    elif cell is None or isinstance(cell, int | float | Decimal):
        share = float("nan") if cell is None else float(cell)
    else:
        return -1.0
    return -1.0 if share < 0 or share == float("inf") else share


def without_category(field: str) -> str:
    """A field's name as it may appear in an error: without the category of a clustering, which is a label. Classes of
    classifiers are not secret."""
    return field.partition("=")[0] if field.startswith("soft:") else field


def soft_column(plan: Planned, names: Sequence[str], columns: Sequence[Any], origin: Origin) -> Column:
    """Rows of probabilities, each summing to 1 or completely missing; classes in sorted order."""
    shares = np.empty((len(origin.rows), len(plan.fields)))
    for k, at in enumerate(plan.fields):
        cells = columns[at].tolist() if isinstance(columns[at], np.ndarray) else columns[at]
        refuse_containers(cells, origin, without_category(names[at]))
        distinct, inverse = factorise(cells)
        shares[:, k] = np.array([read_share(cell) for cell in distinct])[inverse]
        if np.any(shares[:, k] < 0):
            problem = "not a probability: expected a number of 0 or more"
            raise origin.error(problem, int(np.argmax(shares[:, k] < 0)), without_category(names[at]))
    missing = np.isnan(shares)
    partly = missing.any(axis=1) & ~missing.all(axis=1)
    if partly.any():
        row = int(np.argmax(partly))
        problem = "missing, while other classes of the row have a probability: fill in all or none"
        raise origin.error(problem, row, without_category(names[plan.fields[int(np.argmax(missing[row]))]]))
    total = shares.sum(axis=1)
    off = np.abs(total - 1) > SUM_TOLERANCE
    if off.any():
        raise origin.error("the probabilities of a row must sum to 1", int(np.argmax(off)), plan.name)

    integers = all(SHORT_INTEGER.fullmatch(name) for name in plan.classes)
    classes: list[Any] = [int(name) for name in plan.classes] if integers else plan.classes
    if len(set(classes)) < len(classes):
        raise LabelError("two fields give the same class: remove one", source=origin.source, column=plan.name)
    order = sorted(range(len(classes)), key=classes.__getitem__)
    probabilities = (shares / total[:, np.newaxis])[:, order]
    return Column(plan.name, plan.kind, tuple(classes[k] for k in order), None, probabilities)
