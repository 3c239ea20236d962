"""What the sites of a job have left out of it by their rules, in numbers: for the operator. Never which objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ce.errors import MessageError

#: Of what a site leaves out and `Enrolment.excluded` does not list.
NOT_NAMED = "not named by the site"


@dataclass(frozen=True)
class ExclusionCount:
    """What one site has left out by one rule."""

    rule: str
    objects: int = 0
    columns: int = 0
    labels: int = 0  # single labels of objects and columns that do take part


class JobExclusions:
    """What the sites of one attempt have left out, and how many objects there were before."""

    def __init__(self) -> None:
        self.objects = 0  # different objects of all sites before any was left out; 0: not known yet
        self._first: dict[str, tuple[int, int]] = {}  # by site: objects and columns of its first enrolment
        self._counts: dict[str, tuple[ExclusionCount, ...]] = {}
        self._aligned: dict[str, tuple[ExclusionCount, ...]] = {}  # those of the alignment that is in use

    def enrolled(self, site: str, objects: int, columns: int, counts: Iterable[ExclusionCount]) -> None:
        """A site has enrolled so many objects and columns, and left out the rest.

        Raises MessageError if it names more objects or columns than it has left out, or more labels than there can be.
        """
        counts = tuple(counts)
        first_objects, first_columns = self._first.setdefault(site, (objects, columns))
        objects_unnamed = first_objects - objects - sum(count.objects for count in counts)
        columns_unnamed = first_columns - columns - sum(count.columns for count in counts)
        labels = sum(count.labels for count in counts)
        if objects_unnamed < 0 or columns_unnamed < 0 or labels > first_objects * first_columns:
            raise MessageError("excluded: expected no more than the site has left out since its first enrolment")
        if objects_unnamed or columns_unnamed:
            counts += (ExclusionCount(NOT_NAMED, objects_unnamed, columns_unnamed),)
        self._counts[site] = counts

    def ready(self, site: str, objects: int, columns: int, counts: Iterable[ExclusionCount]) -> None:
        """A site accepts the alignment, and has left out labels of categories that take no part, too."""
        self.enrolled(site, objects, columns, counts)
        self._aligned[site] = self._counts[site]

    def aligned(self, objects: int) -> None:
        """What was enrolled is aligned, and has so many different objects."""
        self.objects = self.objects or objects
        self._aligned = dict(self._counts)

    def as_fields(self, objects_in_fit: int) -> dict[str, str | int | float]:
        """For a log: how many objects of how many took part, and which rules left out others."""
        found: dict[str, str | int | float] = {"objects": self.objects, "objects_in_fit": objects_in_fit}
        rules = dict.fromkeys(count.rule for _, count in self)
        return found | ({"rules": ", ".join(rules)} if rules else {})

    def __iter__(self) -> Iterator[tuple[str, ExclusionCount]]:
        """Site and exclusion, in order of the sites' names, of the last alignment."""
        return ((site, count) for site in sorted(self._aligned) for count in self._aligned[site])
