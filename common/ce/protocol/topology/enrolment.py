"""What a site says it holds, made from its label table: with ids and categories on one machine, and with pseudonyms and
tokens, which only holders of the job key can make, where others listen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from ce.labels import Column, LabelTable
from ce.privacy.pseudonyms import pseudonyms, tokens
from ce.protocol.topology.topology import Categories, ColumnClaim, Enrolment

#: A column with more labels than this is enrolled as one with so many: enough for any minimum, and says no more.
MOST_SHOWN = 100


def enrolment(table: LabelTable, votes: bool, job_key: bytes | None = None) -> Enrolment:
    """A table's objects, and the columns that the model uses (classifiers where it takes `votes`)."""
    columns = table.columns if votes else table.clusterings
    if job_key is None:
        return Enrolment(table.ids, tuple(_claim(column, column.categories) for column in columns))
    objects = pseudonyms(job_key, table.ids).view("V16").reshape(-1)
    # The classes of classifiers are the job's, so that nobody needs to hear them again.
    # Sorted: the order in which a site writes its categories would line them up with those of another job.
    shown: dict[str, Categories] = {
        column.name: tuple(sorted(map(str, column.categories))) for column in with_tokens(table, job_key).clusterings
    }
    return Enrolment(objects, tuple(_claim(column, shown.get(column.name, ())) for column in columns))


def by_pseudonym(table: LabelTable, job_key: bytes) -> LabelTable:
    """The same table, its objects in the order of their pseudonyms."""
    tokens = pseudonyms(job_key, table.ids).view("V16").reshape(-1)
    return table.select(np.argsort(tokens, kind="stable"))


def with_tokens(table: LabelTable, job_key: bytes) -> LabelTable:
    """The same labels, with tokens for the categories of clusterings. Classes are the job's, so they stay."""
    return replace(
        table,
        columns=tuple(
            replace(column, categories=tokens(job_key, column.name, column.categories))
            if column.kind == "clustering"
            else column
            for column in table.columns
        ),
    )


def _claim(column: Column, shown: Categories) -> ColumnClaim:
    labels = min(int(column.observed.sum()), MOST_SHOWN)
    return ColumnClaim(column.name, column.kind, column.soft, shown, _written(column), labels)


def _written(column: Column) -> Literal["integers", "text"] | None:
    if not column.categories:
        return None
    return "integers" if isinstance(column.categories[0], int) else "text"
