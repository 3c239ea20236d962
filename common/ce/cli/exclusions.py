"""What rules have left out of a job, as one line for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def not_in_the_fit(objects: int, in_fit: int, excluded: Iterable[Mapping[str, Any]]) -> str:
    """How many objects of how many are not in the fit, and what each rule leaves out where; empty if nothing is.

    `excluded`: of each site and rule the numbers of objects, columns and labels. An object that several sites leave out
    is in each of their numbers.
    """
    by_rule: dict[str, list[str]] = {}
    for entry in excluded:
        kinds = (("objects", "object"), ("columns", "column"), ("labels", "label"))
        counts = [f"{entry[key]:,} {one}{'s' * (entry[key] != 1)}" for key, one in kinds if entry.get(key)]
        by_rule.setdefault(entry["rule"], []).append(f"{' and '.join(counts) or 'nothing'} at {entry['site']}")
    if not by_rule and objects == in_fit:
        return ""
    rules = "; ".join(f"{rule}: {', '.join(places)}" for rule, places in by_rule.items())
    if objects == in_fit:
        return f"all {objects:,} are in the fit; left out are single columns or labels ({rules})"
    return f"{objects - in_fit:,} of {objects:,} are not in the fit" + (f" ({rules})" if rules else "")
