"""A site's rules about totals: what it checks, by itself, before anything that was computed from labels leaves.

A party that sees a total knows some of it already: a contributor its own part, the home of a shared column the beta of
that column. What is left must still be a crowd. For each array that would leave:

    min_sites            contributors to the total, counting those with at least `min_objects` objects; where objects of
                         one site only are summed (shares of the globals), those that have so many of them
    min_objects          objects of this site in a shared column or held by it alone, objects of a shared block
    min_foreign_columns  clusterings in a shared block's total that a viewer neither holds nor knows the beta of
    min_classifiers      classifiers in a shared block's votes that a viewer does not hold
    shared_objects       whether objects that other sites hold too take part: in totals, in sealed jobs, in no job
    one set of holders   all shared clusterings of this site have the same holders; in `masked`
    rare categories      categories of a shared column that enough holders have enough labels of: labels of the others
                         are missing in the job (`ce.protocol.topology.vocabularies`); a column without any is left out

Viewers of a shared block are its other members and, in `masked`, the home. Where labels are missing an object has fewer
than its block has columns: the last two rules are checked again, object by object, when the labels and ballots of all
sites have been counted and before anything else leaves. What falls below is left out of the job (objects, a column) or
the job is refused, as the policy says; a total over all sites cannot be left out. Objects that other sites hold too are
left out before any other rule is checked, unless the policy opens their totals: then the other rules apply to them.
A sealed job opens no total of a column or an object. What leaves are tables of pairs of columns with the noise of all
sites in them, and the winner of each shared object, which the members of its block see. So of these rules there remain
min_sites over the roster, those about categories, and, because each member of a block knows its own score of an object
and everybody all parameters, min_foreign_columns in the winner of each shared block: of a block of two the other member
sees what this site's columns alone decide. Nothing is counted object by object; where this site has fewer labels of an
object than that, it scores the object as unlabelled. Further rules of sealed jobs:

    members of a block   at most 63
    exact tables         without noise: categories (less one of each column) of every site, times 20, are at most the
                         objects of the job, and for another holder of this site's objects those that both hold

`SiteMinimums` is used by the daemon and by the simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ce.declarations.registry import sealed_name
from ce.errors import Refused
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.messages.array_names import COLUMNS, EVERYTHING, Scope
from ce.protocol.topology.enrolment import MOST_SHOWN, EnrolmentSummary
from ce.protocol.topology.exclusions import ExclusionCount
from ce.protocol.topology.site_view import Block, Kind, SiteView, TopologyColumn
from ce.protocol.topology.topology import Rows
from ce.protocol.topology.vocabularies import Wishes, names_of, restricted

#: The scope of what leaves of objects that no other site holds: their part in totals over all objects.
PRIVATE = Scope("private")
#: The viewer that is not a site.
HOME = ""
#: The rule by which objects that other sites hold too are left out.
SHARED_OBJECTS = "shared_objects"
_HELD_ALONE = (
    'objects that the sites hold alone; or, at the sites, shared_objects = "totals" in policy.toml opens totals of '
    "shared objects, from which labels can be read (docs/threat-model.md)"
)
#: What to do without them, by what the policy says.
_WITHOUT_SHARED = {
    "sealed": f'use a sealed job (model = "{sealed_name()}"), in which they take part, or {_HELD_ALONE}',
    "exclude": f"use {_HELD_ALONE}",
}
#: The rule by which all shared columns of a site have the same holders.
ONE_SET_OF_HOLDERS = "one set of holders"
#: The rule about categories of shared columns that too few sites have.
RARE_CATEGORIES = "rare categories"
#: The rule about categories and objects of sealed jobs without noise.
EXACT_TABLES = "exact tables"
#: At rank/objects of 0.3 foreign labels follow from exact tables; this leaves a factor of 6.
_OBJECTS_PER_CATEGORY = 20
#: The rule about the size of a block in sealed jobs, whose words have room for so many shares.
MEMBERS = "members of a block"
MOST_MEMBERS = 63


@dataclass(frozen=True)
class RuleCheck:
    """One rule, what it requires and what was found."""

    rule: str
    required: int
    found: int

    @property
    def satisfied(self) -> bool:
        return self.found >= self.required


@dataclass(frozen=True)
class Findings:
    """All rules that apply to what a site would send, and what falls below them."""

    arrays: dict[str, tuple[RuleCheck, ...]]  # by scope; PRIVATE: objects that this site alone holds
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
    labels: int = 0  # of categories that take no part; their objects and columns do


def exclusion_counts(excluded: Iterable[Exclusion]) -> tuple[ExclusionCount, ...]:
    """In numbers, each rule once."""
    counts: dict[str, ExclusionCount] = {}
    for one in excluded:
        before = counts.get(one.rule, ExclusionCount(one.rule))
        counts[one.rule] = ExclusionCount(
            one.rule,
            before.objects + one.objects,
            before.columns + len(one.columns),
            before.labels + one.labels,
        )
    return tuple(counts.values())


class Rules:
    """One site's rules in one job."""

    def __init__(self, policy: Policy, mode: str, site: str, *, linear: bool = False, exact: bool = False) -> None:
        """`linear`: the model's object sums can be taken apart, so that no column hides another (`Model.linear`).
        `exact`: the tables of a sealed job have no noise."""
        self._policy = policy
        self._linear = linear
        self._exact = exact
        self._mode = mode
        self._site = site

    def findings(
        self, view: SiteView, enrolled: Mapping[str, EnrolmentSummary], table: LabelTable, rows: Mapping[int, Rows]
    ) -> Findings:
        """Check all that would leave. `rows` are the positions in the table of each block's objects.

        While there are shared objects to leave out, only they are: which objects and columns fall below a minimum
        depends on what all sites leave out, and is known after the next alignment.
        """
        everything = (self._crowd(view.sites, enrolled), *self._exact_tables(view, enrolled))
        arrays: dict[str, tuple[RuleCheck, ...]] = {EVERYTHING: everything}
        broken: list[tuple[str, RuleCheck]] = [
            (EVERYTHING, check) for check in arrays[EVERYTHING] if not check.satisfied
        ]
        if self._excludes_shared and any(b.shared and b.size for b in view.blocks.values()):
            return self._without_shared(view, table, rows, arrays, broken)
        objects: list[tuple[RuleCheck, NDArray[np.bool_]]] = []
        for block in view.blocks.values():
            if block.size:
                scope = Scope.of_block(block.index) if block.shared else PRIVATE
                arrays[scope] = checks = tuple(self._of_objects(block, view, enrolled))
                if below := [check for check in checks if not check.satisfied]:
                    objects.append((below[0], _mask(table.n_objects, rows[block.index])))
                    broken += [(scope, check) for check in below]
        columns: list[tuple[RuleCheck, str]] = []
        for group in view.groups.values():
            scope = Scope.of_columns(group.index)
            by_column = {c.name: self._column(c, enrolled, table) for c in group.columns}
            arrays[scope] = tuple(
                min(checks, key=lambda check: check.found) for checks in zip(*by_column.values(), strict=True)
            )
            for name, checks in by_column.items():
                if below := [check for check in checks if not check.satisfied]:
                    columns.append((below[0], name))
                    broken += [(scope, check) for check in below]
        for name, check in () if self._sealed else (*self._contested(view), *self._other_holders(view)):
            if not check.satisfied and name not in {gone for _, gone in columns}:
                columns.append((check, name))
                broken.append((COLUMNS, check))
        return Findings(arrays, tuple(objects), tuple(columns), tuple(broken))

    @property
    def _sealed(self) -> bool:
        return self._mode == "sealed"

    @property
    def _excludes_shared(self) -> bool:
        """Whether objects that other sites hold too take no part in this job."""
        return self._policy.shared_objects not in ("totals", *(("sealed",) if self._sealed else ()))

    def _without_shared(
        self,
        view: SiteView,
        table: LabelTable,
        rows: Mapping[int, Rows],
        arrays: Mapping[str, tuple[RuleCheck, ...]],
        broken: Iterable[tuple[str, RuleCheck]],
    ) -> Findings:
        """All shared objects are left out. One site that holds an object alone is required, and there is none."""
        check = RuleCheck(SHARED_OBJECTS, 1, 0)
        shared = [block.index for block in view.blocks.values() if block.shared and block.size]
        scopes = [Scope.of_block(index) for index in shared]
        return Findings(
            {**arrays, **dict.fromkeys(scopes, (check,))},
            tuple((check, _mask(table.n_objects, rows[index])) for index in shared),
            (),
            (*broken, *((scope, check) for scope in scopes)),
        )

    def thin_objects(
        self,
        view: SiteView,
        enrolled: Mapping[str, EnrolmentSummary],
        block: int,
        counts: Mapping[str, NDArray[np.float64]],
        labelled: Mapping[Kind, NDArray[np.bool_]],
    ) -> Iterator[tuple[RuleCheck, NDArray[np.bool_]]]:
        """Of a shared block, the objects with a label of this site that too few others would hide; and by which rule.

        `counts` are "labels", "hidden" (those in columns with one holder) and "ballots" of all sites together,
        `labelled` says which objects have one of this site. How many of an object's labels a viewer knows is not known;
        it is at most the number of columns that it knows.
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
            thin = labelled[kind] & (fewest < least)
            if thin.any():
                yield RuleCheck(rule, least, int(fewest[thin].min())), thin

    def refuse(self, findings: Findings) -> None:
        """Raises Refused, by the rule's name, where the policy or the rule leaves no other way."""
        for scope, check in findings.broken:
            if scope == EVERYTHING or (self._policy.below_minimum == "refuse" and check.rule != SHARED_OBJECTS):
                raise Refused(check.rule, _sentence(check, self._mode))

    def _crowd(self, contributors: tuple[str, ...], enrolled: Mapping[str, EnrolmentSummary]) -> RuleCheck:
        count = sum(enrolled[site].objects >= self._policy.min_objects for site in contributors)
        return RuleCheck("min_sites", self._policy.min_sites, count)

    def _column(
        self, column: TopologyColumn, enrolled: Mapping[str, EnrolmentSummary], table: LabelTable
    ) -> tuple[RuleCheck, ...]:
        """A shared column: holders with enough labels in it, this site's own labels, categories that take part."""
        policy, name, holders = self._policy, column.name, column.holders
        enough = min(policy.min_objects, MOST_SHOWN)
        count = sum(
            enrolled[site].objects >= policy.min_objects and enrolled[site].labels(name) >= enough for site in holders
        )
        labels = int(table.column(name).observed.sum())
        # Where a holder is about to leave the column out itself, the others may agree on more without it.
        stay = all(_stays(enrolled[site], name, len(holders)) for site in holders)
        return (
            RuleCheck("min_sites", policy.min_sites, count),
            RuleCheck("min_objects", policy.min_objects, labels if column.categories else policy.min_objects),
            RuleCheck(RARE_CATEGORIES, 1 if stay else 0, len(column.categories)),
        )

    def refuse_missing_labels(self, labels: int) -> None:
        """Raises Refused if labels would be missing in the job, and the policy does not leave anything out."""
        if labels and self._policy.below_minimum == "refuse":
            raise Refused(RARE_CATEGORIES, _sentence(RuleCheck(RARE_CATEGORIES, 1, 0), self._mode))

    def _contested(self, view: SiteView) -> Iterator[tuple[str, RuleCheck]]:
        """Who has a cell is added up, too, over the members of a block that hold the column."""
        for block in view.blocks.values():
            if block.shared and len(block.members) >= self._policy.min_sites:  # else its objects are left out
                for column in view.contested(block):
                    both = [site for site in block.members if site in column.holders]
                    yield column.name, RuleCheck("min_sites", self._policy.min_sites, len(both))

    def _other_holders(self, view: SiteView) -> Iterator[tuple[str, RuleCheck]]:
        """Shared columns with other holders than most: where the coordinator sends parameters, those of one group of
        columns would tell this site apart from its co-holders in the sums of another group."""
        groups = list(view.groups.values())
        if self._mode != "masked" or self._policy.shared_objects == "totals" or len(groups) < 2:
            return
        chosen = max(groups, key=lambda group: (len(group.holders), len(group.columns), -group.index))
        for group in groups:
            if group is not chosen:
                yield from ((column.name, RuleCheck(ONE_SET_OF_HOLDERS, 1, 0)) for column in group.columns)

    def _of_objects(
        self, block: Block, view: SiteView, enrolled: Mapping[str, EnrolmentSummary]
    ) -> Iterator[RuleCheck]:
        """All that is checked of a block's objects."""
        if self._sealed:
            return self._sealed_block(block, view, enrolled) if block.shared else iter(())
        return self._block(block, view, enrolled) if block.shared else self._private(block, enrolled)

    def _sealed_block(
        self, block: Block, view: SiteView, enrolled: Mapping[str, EnrolmentSummary]
    ) -> Iterator[RuleCheck]:
        """A shared block of a sealed job: what the winners tell each other member about this site's labels."""
        viewers = self._viewers(block.members)
        hiding = min(_unknown_to(viewer, "clustering", block, enrolled) for viewer in viewers)
        yield RuleCheck("min_foreign_columns", self._policy.min_foreign_columns, hiding)
        yield RuleCheck(MEMBERS, 1, int(len(block.members) <= MOST_MEMBERS))
        for viewer in viewers if self._exact else ():
            common = sum(other.size for other in view.blocks.values() if viewer in other.members)
            yield RuleCheck(EXACT_TABLES, _OBJECTS_PER_CATEGORY * _rank(enrolled[viewer]), common)

    def _exact_tables(self, view: SiteView, enrolled: Mapping[str, EnrolmentSummary]) -> Iterator[RuleCheck]:
        if self._exact:
            rank = max(_rank(enrolled[site]) for site in view.sites)
            yield RuleCheck(EXACT_TABLES, _OBJECTS_PER_CATEGORY * rank, view.sizes.objects)

    def _block(self, block: Block, view: SiteView, enrolled: Mapping[str, EnrolmentSummary]) -> Iterator[RuleCheck]:
        policy = self._policy
        yield self._crowd(block.members, enrolled)
        yield RuleCheck("min_objects", policy.min_objects, block.size)
        for kind, rule, least in self._about_columns():
            if enrolled[self._site].count(kind):
                viewers = self._viewers(block.members)
                hiding = min(_unknown_to(viewer, kind, block, enrolled) for viewer in viewers)
                yield RuleCheck(rule, least, 0 if self._linear and kind == "clustering" else hiding)

    def _private(self, block: Block, enrolled: Mapping[str, EnrolmentSummary]) -> Iterator[RuleCheck]:
        """Shares of the globals are sums over objects of one site each: of how many sites, and over how many."""
        least = self._policy.min_objects
        yield RuleCheck(
            "min_sites", self._policy.min_sites, sum(site.private_objects >= least for site in enrolled.values())
        )
        yield RuleCheck("min_objects", least, block.size)

    def _viewers(self, members: tuple[str, ...]) -> list[str]:
        return [site for site in members if site != self._site] + [HOME] * (self._mode == "masked")

    def _about_columns(self) -> tuple[tuple[Kind, str, int], ...]:
        return (
            ("clustering", "min_foreign_columns", self._policy.min_foreign_columns),
            ("classifier", "min_classifiers", self._policy.min_classifiers),
        )


def _rank(summary: EnrolmentSummary) -> int:
    """How many independent columns of 0 and 1 the labels of a site have, at most, beside that of all ones."""
    return sum(column.categories - 1 for column in summary.columns if column.kind == "clustering" and column.categories)


def _columns_in(members: tuple[str, ...], kind: Kind, enrolled: Mapping[str, EnrolmentSummary]) -> int:
    return len({name for site in members for name, found in enrolled[site].kinds.items() if found == kind})


def _held_alone(viewer: str, enrolled: Mapping[str, EnrolmentSummary]) -> int:
    """Clusterings that a viewer and no other site holds."""
    if viewer == HOME:
        return 0
    others = {name for site, summary in enrolled.items() if site != viewer for name in summary.kinds}
    return sum(kind == "clustering" and name not in others for name, kind in enrolled[viewer].kinds.items())


def _unknown_to(viewer: str, kind: Kind, block: Block, enrolled: Mapping[str, EnrolmentSummary]) -> int:
    """Columns in a block's total that hide each other from a viewer: not held by it, and of beta that it never sees."""
    members = [site for site in block.members if site != viewer]
    names = {name for site in members for name, found in enrolled[site].kinds.items() if found == kind}
    if viewer != HOME:
        return len(names - set(enrolled[viewer].kinds))
    if kind == "classifier":
        return len(names)  # votes are counted, no table is involved
    return sum(sum(name in other.kinds for other in enrolled.values()) == 1 for name in names)


def _stays(summary: EnrolmentSummary, column: str, holders: int) -> bool:
    """Whether a holder's own minimums let it stay in a column, as far as its enrolment shows."""
    enough = min(summary.wishes.min_objects, MOST_SHOWN)
    return summary.wishes.min_sites <= holders and summary.labels(column) >= enough


def _sentence(check: RuleCheck, mode: str) -> str:
    what = {
        "min_sites": "sites with enough objects would be in a total",
        "min_objects": "objects would be in a part that this site sends",
        "min_foreign_columns": "clusterings would hide each other in the total of an object that several sites hold",
        "min_classifiers": "classifiers would hide each other in the votes on an object that several sites hold",
        ONE_SET_OF_HOLDERS: "columns with other holders than most would tell this site apart in the sums of the others",
        RARE_CATEGORIES: "categories of a column that several sites hold have enough labels at enough of them",
        EXACT_TABLES: "objects would be in exact tables of two sites with many categories",
        MEMBERS: f"more than {MOST_MEMBERS} sites hold the same objects",
    }[check.rule]
    if mode == "sealed":
        what = {
            "min_sites": "sites with enough objects would be in the tables",
            "min_foreign_columns": "clusterings would decide an object's label beside those of a site that sees it",
        }.get(check.rule, what)
    if check.rule in (ONE_SET_OF_HOLDERS, MEMBERS):
        return what
    return f"{check.found} {what}; this site requires {check.required}"


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
    found = [(check, _mask(n, rows[which])) for check, which in thin]
    broken = (*findings.broken, *((scope, check) for check, _ in found))
    return replace(findings, objects=(*findings.objects, *found), broken=broken)


def left_out(findings: Findings, table: LabelTable, shared_objects: str) -> tuple[LabelTable, tuple[Exclusion, ...]]:
    """The table without what falls below, and what that was: each object under the first rule that it breaks.

    `shared_objects`: what the policy says about them."""
    left = np.zeros(table.n_objects, dtype=bool)
    objects: dict[str, Exclusion] = {}
    for check, which in findings.objects:
        before = objects.get(check.rule, Exclusion(check.rule, check.required, check.found))
        found = min(before.found, check.found)
        objects[check.rule] = replace(before, found=found, objects=before.objects + int((which & ~left).sum()))
        left |= which
    columns: dict[str, Exclusion] = {}
    for check, name in findings.columns:
        before = columns.get(check.rule, Exclusion(check.rule, check.required, check.found))
        columns[check.rule] = replace(before, found=min(before.found, check.found), columns=(*before.columns, name))
    gone = {name for _, name in findings.columns}
    names = [column.name for column in table.columns if column.name not in gone]
    rest = table.select(~left, names) if left.any() else table.select(columns=names)
    if not rest.n_objects or not rest.columns:
        rule = findings.broken[0][1].rule
        if rule == SHARED_OBJECTS:
            sentence = "other sites hold every object of this site too, and it leaves such objects out"
            raise Refused(rule, f"{sentence}: {_WITHOUT_SHARED[shared_objects]}")
        raise Refused(rule, "all objects or all columns of this site would have to be left out of the job")
    return rest, tuple(e for e in (*objects.values(), *columns.values()) if e.objects or e.columns)


def _mask(n: int, rows: Rows) -> NDArray[np.bool_]:
    mask = np.zeros(n, dtype=bool)
    mask[rows] = True
    return mask


class SiteMinimums:
    """Leaves objects and columns of one site out of one job until every rule holds.

    `table` is what the site enrols. Each alignment is checked (`check`): `participating` are the labels that take part
    under it, in the categories that the holders of each column have agreed on. When it breaks no rule and labels have
    been counted, the counts are (`check_counts`); whenever findings are not clean, `leave_out` makes the table smaller,
    the site enrols again, and all are aligned anew. `excluded`: what was left out and why.
    """

    def __init__(
        self,
        policy: Policy,
        mode: str,
        site: str,
        table: LabelTable,
        *,
        linear: bool = False,
        exact: bool = False,
        job_key: bytes | None = None,
    ) -> None:
        """`linear`, `exact`: see `Rules`. `job_key`: with it, categories go by tokens between the sites."""
        self.table = table
        self.participating = table
        self.wishes = Wishes.of(policy.min_sites, policy.min_objects)
        self._left_out: tuple[Exclusion, ...] = ()
        self._job_key = job_key
        self._shared_objects = policy.shared_objects
        self._rules = Rules(policy, mode, site, linear=linear, exact=exact)
        self._aligned: tuple[SiteView, Mapping[str, EnrolmentSummary], Mapping[int, Rows], Findings] | None = None

    @property
    def excluded(self) -> tuple[Exclusion, ...]:
        """What has been left out, and why; under the last alignment also labels of rare categories."""
        missing = _labels(self.table) - _labels(self.participating)
        rare = (Exclusion(RARE_CATEGORIES, 1, 0, labels=missing),) if missing else ()
        return (*self._left_out, *rare)

    def check(self, view: SiteView, enrolled: Mapping[str, EnrolmentSummary], rows: Mapping[int, Rows]) -> Findings:
        """All that would leave under an alignment. Raises Refused where the policy leaves no other way."""
        self.participating = self._in_vocabularies(view)
        self._rules.refuse_missing_labels(_labels(self.table) - _labels(self.participating))
        findings = self._rules.findings(view, enrolled, self.participating, rows)
        self._aligned = (view, enrolled, rows, findings)
        return findings

    def _in_vocabularies(self, view: SiteView) -> LabelTable:
        """The table, without labels of categories that take no part."""
        vocabularies = {column.name: column.categories for column in view.clusterings if column.shared}
        columns = tuple(
            restricted(column, names_of(column, self._job_key), vocabularies[column.name])
            if column.kind == "clustering" and column.name in vocabularies
            else column
            for column in self.table.columns
        )
        return replace(self.table, columns=columns)

    def check_counts(self, counts: Mapping[int, Mapping[str, NDArray[np.float64]]]) -> Findings:
        """Object by object, by block, before anything but counts has left."""
        assert self._aligned is not None
        view, enrolled, rows, findings = self._aligned
        labelled: dict[Kind, NDArray[np.bool_]] = {
            kind: has_any(self.participating, kind) for kind in ("clustering", "classifier")
        }
        for block, counted in counts.items():
            here = {kind: has[rows[block]] for kind, has in labelled.items()}
            thin = self._rules.thin_objects(view, enrolled, block, counted, here)
            scope = Scope.of_block(block)
            findings = with_thin_objects(findings, self.table.n_objects, scope, rows[block], thin)
        return findings

    def leave_out(self, findings: Findings) -> None:
        """Raises Refused where the policy or the rule leaves no other way."""
        try:
            self._rules.refuse(findings)
            self.table, more = left_out(findings, self.table, self._shared_objects)
        except Refused as refused:
            shared = sum(exclusion.objects for exclusion in self.excluded if exclusion.rule == SHARED_OBJECTS)
            if not shared:
                raise
            sentence = str(refused).removesuffix(f" (rule: {refused.rule})")
            why = f"{shared:,} objects that other sites hold too were left out before, by the rule {SHARED_OBJECTS}"
            raise Refused(refused.rule, f"{sentence}; {why}: {_WITHOUT_SHARED[self._shared_objects]}") from refused
        self.participating = self.table
        self._left_out = (*self._left_out, *more)
        self._aligned = None


def _labels(table: LabelTable) -> int:
    """Labels of all clusterings of a table."""
    return sum(int(column.observed.sum()) for column in table.clusterings)
