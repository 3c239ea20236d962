"""Which rules of a policy a job breaks. Daemons would not run it, so what an attack finds there is ruled out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ce.audit.recording import Recording
from ce.errors import Refused
from ce.job import Job
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.messages.array_names import EVERYTHING
from ce.protocol.minimums import Rules
from ce.protocol.topology.enrolment import enrol, with_private_objects

BrokenRules = dict[str, tuple[str, ...]]


def broken_rules(
    recording: Recording, tables: Mapping[str, LabelTable], mode: str, policy: Policy, job: Job
) -> BrokenRules:
    """By scope (the job, a block, a group of columns): the names of the rules that some site would enforce."""
    names = {column.name for column in recording.topology.columns}
    private = {block.members[0]: block.size for block in recording.topology.blocks if not block.shared}
    used = {
        site: table.select(columns=[c.name for c in table.columns if c.name in names]) for site, table in tables.items()
    }
    summaries = {site: enrol(table, votes=True).summary() for site, table in used.items()}
    enrolled = with_private_objects(summaries, {site: private.get(site, 0) for site in tables})
    found: dict[str, dict[str, None]] = {}
    # Most policies refuse plain altogether. Here the other rules are of interest: those of masked.
    judged = "masked" if mode == "plain" else mode
    try:
        replace(policy, coordinators=()).check(replace(job, sites=tuple(tables), privacy=judged), "")
    except Refused as refused:
        found[EVERYTHING] = {refused.rule: None}
    for site, table in tables.items():
        findings = Rules(policy, judged, site, linear=recording.model.linear).findings(
            recording.topology.view(site), enrolled, table, recording.rows[site]
        )
        for scope, check in findings.broken:
            found.setdefault(scope, {})[check.rule] = None
    return {scope: tuple(rules) for scope, rules in found.items()}


def broken_in(broken: BrokenRules, scope: str) -> tuple[str, ...]:
    """The rules because of which an array of this scope would not be sent."""
    return (*broken.get(EVERYTHING, ()), *broken.get(scope, ()))
