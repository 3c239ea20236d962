"""The classes of a model on which classifiers vote: as they are given, or as the classifiers use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ce.errors import InputError
from ce.labels import LabelTable
from ce.protocol.topology.site_view import Categories


def classes_of(given: Categories | None, tables: Sequence[LabelTable]) -> Categories:
    """The classes in order: as given, or all that the classifiers of these tables use, sorted."""
    used: set[Any] = set()
    for table in tables:
        for column in table.classifiers:
            used.update(column.categories)
    if not used and not any(table.classifiers for table in tables):
        raise InputError(
            "no classifier: give its votes as classifications; in a file, as columns clf:NAME or --classifiers GLOB"
        )
    classes = given
    if classes is None:
        if len({type(name) for name in used}) > 1:
            raise InputError("classifiers use integers and text as classes: write them in one way")
        classes = tuple(sorted(used))
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise InputError("at least two different classes are needed")
    if any(isinstance(name, int) and name < 0 for name in classes):
        raise InputError("classes are not negative: -1 means that nothing is known of an object")
    unknown = len(used - set(classes))
    if unknown:
        raise InputError(f"classifiers use {unknown} class names that are not among the {len(classes)} given")
    return classes
