"""Which default rules a layout breaks: what an attack finds there, no job of daemons would have shown."""

from __future__ import annotations

from collections.abc import Mapping

from ce.audit.recording import Recording
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.minimums import Enrolled, Rules

Broken = dict[str, tuple[str, ...]]


def broken_rules(recording: Recording, tables: Mapping[str, LabelTable], mode: str) -> Broken:
    """By scope ("global", "block/3", "columns/0"): the names of the rules that some site would enforce."""
    names = {column.name for column in recording.topology.columns}
    private = {block.members[0]: block.size for block in recording.topology.blocks if not block.shared}
    enrolled = {
        site: Enrolled(
            table.n_objects,
            private.get(site, 0),
            {c.name: c.kind for c in table.columns if c.name in names},
            {c.name: int(c.observed.sum()) for c in table.columns if c.name in names},
        )
        for site, table in tables.items()
    }
    found: dict[str, dict[str, None]] = {}
    # A mode of its own is no question here: plain is what it says it is.
    judged = "masked" if mode == "plain" else mode
    for site, table in tables.items():
        findings = Rules(Policy(), judged, site, linear=recording.model.linear).findings(
            recording.topology.view(site), enrolled, table, recording.rows[site]
        )
        for scope, met in findings.broken:
            found.setdefault(scope, {})[met.rule] = None
    return {scope: tuple(rules) for scope, rules in found.items()}


def about(broken: Broken, scope: str) -> tuple[str, ...]:
    """The rules that keep an array of this scope from being sent."""
    return (*broken.get("global", ()), *broken.get(scope, ()))
