"""A site's rules about totals: what it checks, by itself, before anything that was computed from labels leaves.

Whoever sees a total knows some of it already: a contributor its own part, the home of a shared column that column's
table. What is left must still be a crowd. For each array that would leave:

    min_sites            contributors to the total, counting those with at least `min_objects` objects; where objects of
                         one site only are summed (shares of the globals), those that have so many of them
    min_objects          objects of this site in a shared column or of its own, objects of a shared block
    min_foreign_columns  clusterings in a shared block's total that a viewer neither holds nor knows the table of
    min_classifiers      classifiers in a shared block's votes that a viewer does not hold

Viewers of a shared block are its other members and, in `masked`, the home. Where labels are missing an object has fewer
than its block has columns: the last two rules are checked again, object by object, when the labels and ballots of all
sites have been counted and before anything else leaves. What falls below is left out of the job (objects, a column) or
the job is refused, as the policy says; a total over all sites cannot be left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ce.errors import Refused
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.topology.enrolment import MOST_SHOWN
from ce.protocol.topology.topology import Block, Kind, Rows, SiteView

#: The scope of what leaves of objects that nobody else holds: their part in totals over all objects.
PRIVATE = "private"
#: The viewer that is not a site.
HOME = ""


@dataclass(frozen=True)
class Enrolled:
    """What a site of the job has enrolled, as far as every site may know: how many objects, and which columns."""

    objects: int
    private: int  # of these, the ones that no other site holds
    columns: Mapping[str, Kind]
    labels: Mapping[str, int] = field(default_factory=dict)  # by column: of its objects, those with a label; capped

    def count(self, kind: Kind) -> int:
        return sum(own == kind for own in self.columns.values())


@dataclass(frozen=True)
class RuleCheck:
    """One rule, what it asks for and what was found."""

    rule: str
    required: int
    found: int

    @property
    def satisfied(self) -> bool:
        return self.found >= self.required


@dataclass(frozen=True)
class Findings:
    """All rules that apply to what a site would send, and what falls below them."""

    arrays: dict[str, tuple[RuleCheck, ...]]  # by scope: "global", "private", "block/3", "columns/0"
    objects: tuple[tuple[RuleCheck, NDArray[np.bool_]], ...] = field(
        repr=False
    )  # to be left out: why, which of the table
    columns: tuple[tuple[RuleCheck, str], ...]  # to be left out: why, which
    broken: tuple[tuple[str, RuleCheck], ...]  # which rule, about which scope

    @property
    def clean(self) -> bool:
        return not self.broken


@dataclass(frozen=True)
class Exclusion:
    """What a site leaves out of a job, and why. Never which objects."""

    rule: str
    required: int
    found: int
    objects: int = 0
    columns: tuple[str, ...] = ()


class Rules:
    """One site's rules in one job."""

    def __init__(self, policy: Policy, mode: str, site: str, *, linear: bool = False) -> None:
        """`linear`: the model's object sums can be taken apart, so that no column hides another (`Model.linear`)."""
        self._policy = policy
        self._linear = linear
        self._mode = mode
        self._site = site

    def findings(
        self, view: SiteView, enrolled: Mapping[str, Enrolled], table: LabelTable, rows: Mapping[int, Rows]
    ) -> Findings:
        """Check all that would leave. `rows` are the positions in the table of each block's objects."""
        arrays: dict[str, tuple[RuleCheck, ...]] = {"global": (self._crowd(view.sites, enrolled),)}
        broken = [("global", met) for met in arrays["global"] if not met.satisfied]
        objects: list[tuple[RuleCheck, NDArray[np.bool_]]] = []
        for block in view.blocks.values():
            if block.size:
                scope = f"block/{block.index}" if block.shared else PRIVATE
                about = self._block(block, view, enrolled) if block.shared else self._private(block, enrolled)
                arrays[scope] = met_all = tuple(about)
                if below := [met for met in met_all if not met.satisfied]:
                    objects.append((below[0], _mask(table.n_objects, rows[block.index])))
                    broken += [(scope, met) for met in below]
        columns: list[tuple[RuleCheck, str]] = []
        for group in view.groups.values():
            scope = f"columns/{group.index}"
            by_column = {c.name: self._column(c.name, group.holders, enrolled, table) for c in group.columns}
            arrays[scope] = tuple(
                min(mets, key=lambda met: met.found) for mets in zip(*by_column.values(), strict=True)
            )
            for name, mets in by_column.items():
                if below := [met for met in mets if not met.satisfied]:
                    columns.append((below[0], name))
                    broken += [(scope, met) for met in below]
        for name, met in self._contested(view):
            if not met.satisfied and name not in {gone for _, gone in columns}:
                columns.append((met, name))
                broken.append(("columns", met))
        return Findings(arrays, tuple(objects), tuple(columns), tuple(broken))

    def thin_objects(
        self,
        view: SiteView,
        enrolled: Mapping[str, Enrolled],
        block: int,
        counts: Mapping[str, NDArray[np.float64]],
        own: Mapping[Kind, NDArray[np.bool_]],
    ) -> Iterator[tuple[RuleCheck, NDArray[np.bool_]]]:
        """Of a shared block, the objects with a label of this site that too few others would hide; and by which rule.

        `counts` are "labels", "hidden" (those in columns with one holder) and "ballots" of all sites together, `own`
        says which objects have one of this site. How many of an object's labels a viewer knows is not known; at most
        as many as it knows columns.
        """
        here = view.blocks[block]
        for kind, rule, least in self._about_columns():
            if not enrolled[self._site].count(kind) or (kind == "classifier" and "ballots" not in counts):
                continue
            fewest = np.full(here.size, np.inf)
            for viewer in self._viewers(here.members):
                known = _columns_in(here.members, kind, enrolled) - _unknown_to(viewer, kind, here, enrolled)
                if kind == "classifier":
                    left = counts["ballots"] - known
                else:
                    left = np.maximum(counts["labels"] - known, counts["hidden"] - _held_alone(viewer, enrolled))
                fewest = np.minimum(fewest, np.maximum(left, 0))
            thin = own[kind] & (fewest < least)
            if thin.any():
                yield RuleCheck(rule, least, int(fewest[thin].min())), thin

    def refuse(self, findings: Findings) -> None:
        """Raises Refused, by the rule's name, where the policy or the rule leaves no other way."""
        for scope, met in findings.broken:
            if scope == "global" or self._policy.below_minimum == "refuse":
                raise Refused(met.rule, _sentence(scope, met))

    def _crowd(self, contributors: tuple[str, ...], enrolled: Mapping[str, Enrolled]) -> RuleCheck:
        count = sum(enrolled[site].objects >= self._policy.min_objects for site in contributors)
        return RuleCheck("min_sites", self._policy.min_sites, count)

    def _column(
        self, name: str, holders: tuple[str, ...], enrolled: Mapping[str, Enrolled], table: LabelTable
    ) -> tuple[RuleCheck, RuleCheck]:
        """A shared column: holders with enough labels in it, and this site's own labels."""
        policy = self._policy
        enough = min(policy.min_objects, MOST_SHOWN)
        count = sum(
            enrolled[site].objects >= policy.min_objects and enrolled[site].labels[name] >= enough for site in holders
        )
        labels = int(table.column(name).observed.sum())
        return RuleCheck("min_sites", policy.min_sites, count), RuleCheck("min_objects", policy.min_objects, labels)

    def _contested(self, view: SiteView) -> Iterator[tuple[str, RuleCheck]]:
        """Who has a cell is added up, too, over the members of a block that hold the column."""
        for block in view.blocks.values():
            if block.shared and len(block.members) >= self._policy.min_sites:  # else its objects are left out
                for column in view.contested(block):
                    both = [site for site in block.members if site in column.holders]
                    yield column.name, RuleCheck("min_sites", self._policy.min_sites, len(both))

    def _block(self, block: Block, view: SiteView, enrolled: Mapping[str, Enrolled]) -> Iterator[RuleCheck]:
        policy = self._policy
        yield self._crowd(block.members, enrolled)
        yield RuleCheck("min_objects", policy.min_objects, block.size)
        own = enrolled[self._site]
        for kind, rule, least in self._about_columns():
            if own.count(kind):
                viewers = self._viewers(block.members)
                hiding = min(_unknown_to(viewer, kind, block, enrolled) for viewer in viewers)
                yield RuleCheck(rule, least, 0 if self._linear and kind == "clustering" else hiding)

    def _private(self, block: Block, enrolled: Mapping[str, Enrolled]) -> Iterator[RuleCheck]:
        """Shares of the globals are sums over objects of one site each: of how many sites, and over how many."""
        least = self._policy.min_objects
        yield RuleCheck("min_sites", self._policy.min_sites, sum(own.private >= least for own in enrolled.values()))
        yield RuleCheck("min_objects", least, block.size)

    def _viewers(self, members: tuple[str, ...]) -> list[str]:
        return [site for site in members if site != self._site] + [HOME] * (self._mode == "masked")

    def _about_columns(self) -> tuple[tuple[Kind, str, int], ...]:
        return (
            ("clustering", "min_foreign_columns", self._policy.min_foreign_columns),
            ("classifier", "min_classifiers", self._policy.min_classifiers),
        )


def _columns_in(members: tuple[str, ...], kind: Kind, enrolled: Mapping[str, Enrolled]) -> int:
    return len({name for site in members for name, own in enrolled[site].columns.items() if own == kind})


def _held_alone(viewer: str, enrolled: Mapping[str, Enrolled]) -> int:
    """Clusterings that a viewer and nobody else holds."""
    if viewer == HOME:
        return 0
    others = {name for site, own in enrolled.items() if site != viewer for name in own.columns}
    return sum(kind == "clustering" and name not in others for name, kind in enrolled[viewer].columns.items())


def _unknown_to(viewer: str, kind: Kind, block: Block, enrolled: Mapping[str, Enrolled]) -> int:
    """Columns in a block's total that hide each other from a viewer: not its own, and of tables that it never sees."""
    members = [site for site in block.members if site != viewer]
    names = {name for site in members for name, own in enrolled[site].columns.items() if own == kind}
    if viewer != HOME:
        return len(names - set(enrolled[viewer].columns))
    if kind == "classifier":
        return len(names)  # votes are counted, no table is involved
    return sum(sum(name in other.columns for other in enrolled.values()) == 1 for name in names)


def _sentence(scope: str, met: RuleCheck) -> str:
    what = {
        "min_sites": "sites with enough objects would be in a total",
        "min_objects": "objects would be in a part that this site sends",
        "min_foreign_columns": "clusterings would hide each other in the total of an object that several sites hold",
        "min_classifiers": "classifiers would hide each other in the votes on an object that several sites hold",
    }[met.rule]
    return f"{met.found} {what}; this site asks for {met.required}"


def has_any(table: LabelTable, kind: Kind) -> NDArray[np.bool_]:
    """(n,) which objects have a label of this kind here."""
    found = np.zeros(table.n_objects, dtype=bool)
    for column in table.columns:
        if column.kind == kind:
            found |= column.observed
    return found


def with_thin_objects(
    findings: Findings, n: int, scope: str, rows: Rows, thin: Iterable[tuple[RuleCheck, NDArray[np.bool_]]]
) -> Findings:
    """The same findings, and those about single objects of a block, which are at these rows of a table of n."""
    found = [(met, _mask(n, rows[which])) for met, which in thin]
    broken = (*findings.broken, *((scope, met) for met, _ in found))
    return replace(findings, objects=(*findings.objects, *found), broken=broken)


def left_out(findings: Findings, table: LabelTable) -> tuple[LabelTable, tuple[Exclusion, ...]]:
    """The table without what falls below, and what that was: each object under the first rule that it breaks."""
    left = np.zeros(table.n_objects, dtype=bool)
    objects: dict[str, Exclusion] = {}
    for met, which in findings.objects:
        before = objects.get(met.rule, Exclusion(met.rule, met.required, met.found))
        found = min(before.found, met.found)
        objects[met.rule] = replace(before, found=found, objects=before.objects + int((which & ~left).sum()))
        left |= which
    columns: dict[str, Exclusion] = {}
    for met, name in findings.columns:
        before = columns.get(met.rule, Exclusion(met.rule, met.required, met.found))
        columns[met.rule] = replace(before, found=min(before.found, met.found), columns=(*before.columns, name))
    gone = {name for _, name in findings.columns}
    names = [column.name for column in table.columns if column.name not in gone]
    rest = table.select(~left, names) if left.any() else table.select(columns=names)
    if not rest.n_objects or not rest.columns:
        rule = findings.broken[0][1].rule
        raise Refused(rule, "all objects or all columns of this site would have to be left out of the job")
    return rest, tuple(own for own in (*objects.values(), *columns.values()) if own.objects or own.columns)


def _mask(n: int, rows: Rows) -> NDArray[np.bool_]:
    mask = np.zeros(n, dtype=bool)
    mask[rows] = True
    return mask
