"""Checks what a site of a sealed job is told about the columns that it does not hold.

The coordinator says which columns there are (`SiteView.other_columns`); what their holders have signed says it too. Of
a shared column only its holders know how many categories they have agreed on: there the number has an upper limit, and
all sites bind their messages to the numbers that they were told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ce.errors import MessageError
from ce.protocol.topology.enrolment import ColumnSummary, EnrolmentSummary
from ce.protocol.topology.site_view import TopologyColumn
from ce.protocol.topology.vocabularies import Enough

#: Categories of all columns together: tables with more cells than the square of it fit nowhere.
MOST_CATEGORIES = 1 << 20


def checked_other_columns(
    columns: Sequence[TopologyColumn],
    category_counts: Sequence[int],
    held: Sequence[TopologyColumn],
    summaries: Mapping[str, EnrolmentSummary],
    categories: int,
) -> tuple[TopologyColumn, ...]:
    """The columns that a site does not hold, their categories numbered.

    `columns`, `category_counts`: as the coordinator has sent them. `held`: the site's own columns, checked.
    `summaries`: what all sites have signed, in order of name. `categories`: of all columns of the job (`Sizes`).
    Raises MessageError.
    """
    signed: dict[str, dict[str, ColumnSummary]] = {}
    for site, summary in summaries.items():
        for entry in summary.columns:
            signed.setdefault(entry.name, {})[site] = entry
    number_of = {name: number for number, name in enumerate(sorted(signed))}
    if any(column.index != number_of.get(column.name) for column in (*held, *columns)):
        raise MessageError("alignment: columns are not numbered in the order of their names")
    expected = [name for name in number_of if name not in {column.name for column in held}]
    if [column.name for column in columns] != expected:
        raise MessageError("alignment: other_columns are not the columns that this site does not hold, by number")
    most = {name: _most_categories(summaries, by_site) for name, by_site in signed.items()}
    for column, count in zip(columns, category_counts, strict=True):
        by_site = signed[column.name]
        if column.holders != tuple(by_site) or {column.kind} != {claim.kind for claim in by_site.values()}:
            raise MessageError("alignment: holders or kind of another column are not what its holders have enrolled")
        least = 0 if len(by_site) > 1 else most[column.name]
        if not least <= count <= most[column.name]:
            raise MessageError("alignment: another column has a number of categories that its holders cannot have")
    own = sum(len(column.categories) for column in held if column.kind == "clustering")
    if own + sum(category_counts) != categories or categories > MOST_CATEGORIES:
        raise MessageError(
            f"alignment: expected categories of all columns to add up to sizes.categories, at most {MOST_CATEGORIES:,}"
        )
    return tuple(
        replace(column, categories=tuple(range(count))) for column, count in zip(columns, category_counts, strict=True)
    )


def _most_categories(summaries: Mapping[str, EnrolmentSummary], by_site: Mapping[str, ColumnSummary]) -> int:
    """Each category that takes part counts at so many holders; of a column with one holder all take part."""
    listed = sum(entry.categories for entry in by_site.values())
    if len(by_site) == 1:
        return listed
    return listed // Enough.of(summaries[site].wishes for site in by_site).holders
