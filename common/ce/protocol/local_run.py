"""Run a model over the tables of several sites, on one machine: topology, engine and a transport between them.

The estimators are this with one site, `ce.simulate` with several. The daemons use the same engine over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.labels import LabelTable
from ce.policy import Policy
from ce.privacy.pair_keys import EphemeralKey
from ce.protocol.engine.home import Home, Outcome, Progress
from ce.protocol.engine.site import Site
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.keys.handshake import Attempt
from ce.protocol.messages.task import Answer, Task
from ce.protocol.messages.transport import InMemory, Transport
from ce.protocol.minimums import Enrolled, Exclusion, Findings, Rules, has_any, left_out, with_thin_objects
from ce.protocol.modes.blind_coordinator import BlindCoordinator
from ce.protocol.modes.blind_site import BlindSite
from ce.protocol.modes.contributor import member
from ce.protocol.topology.enrolment import enrolment, with_tokens
from ce.protocol.topology.topology import Categories, Kind, Rows, SiteView, Topology, align, block_pseudonyms
from ce.ring import Reals
from ce.steps.model import Model

TransportTo = Callable[[Mapping[str, Callable[[Task], Answer]]], AbstractContextManager[Transport]]


@dataclass(frozen=True)
class Run:
    """A finished job: each site with its results, and what the home knows."""

    topology: Topology
    sites: dict[str, Site]
    outcome: Outcome
    exchanges: int
    bytes_sent: int
    kept: dict[str, NDArray[np.bool_]] = field(default_factory=dict, repr=False)  # per site: the objects that took part
    excluded: dict[str, tuple[Exclusion, ...]] = field(default_factory=dict)  # what rules left out, by site

    def tables(self) -> dict[str, Reals]:
        """Every clustering's (k, categories) table, from its first holder."""
        return {column.name: self.sites[column.holders[0]].table(column.index) for column in self.topology.clusterings}


def run(
    model: Model,
    tables: Mapping[str, LabelTable],
    starts: Mapping[str, Starts],
    *,
    classes: Categories = (),
    given: Mapping[str, Reals] | None = None,
    job_key: bytes | None = None,
    privacy: str = "plain",
    policies: Mapping[str, Policy] | None = None,
    threads: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    transport_to: TransportTo | None = None,
) -> Run:
    """Fit `model` to the sites' tables. `given` holds (k, n) object arrays of a start, for a single site.

    With a `job_key` objects and categories go by pseudonyms and tokens, as in a job over a network. In `privacy`
    "masked" and "blind" sums are masked as there, with keys made on the spot. `transport_to` makes the transport,
    given what answers for each site; without it tasks are handed over as they are.
    """
    whole = tables
    tables, excluded = _by_the_rules(model, tables, job_key, privacy, policies or {})
    enrolments = {site: enrolment(table, model.uses_votes, job_key) for site, table in tables.items()}
    topology, rows = align(enrolments)
    if job_key is not None:
        tables = {site: with_tokens(table, job_key) for site, table in tables.items()}
    if model.uses_votes and not topology.classifiers:
        raise InputError("no classifier: this model needs at least one beside the clusterings")
    sites = {
        name: Site(
            name,
            table,
            topology.view(name),
            rows[name],
            model,
            starts[name],
            classes=classes,
            given=given,
            threads=threads,
        )
        for name, table in sorted(tables.items())
    }
    attempt = Attempt("local", b"", 1, topology.sites)
    pair_keys = _pair_keys(attempt) if privacy != "plain" else {name: {} for name in sites}
    members = {
        name: member(
            privacy,
            attempt,
            site,
            topology.view(name),
            model,
            enrolments[name].objects,
            rows[name],
            pair_keys[name],
        )
        for name, site in sites.items()
    }
    known = None if job_key is None else block_pseudonyms(topology, enrolments, rows)
    home = (BlindCoordinator if privacy == "blind" else Home)(topology.whole(), model, on_progress, pseudonyms=known)
    handlers = {name: own.answer for name, own in members.items()}
    try:
        with nullcontext(InMemory(handlers)) if transport_to is None else transport_to(handlers) as transport:
            while tasks := home.tasks():
                for name, answer in transport.exchange(tasks):
                    home.add(name, answer)
                home.advance()
    finally:
        for site in sites.values():
            site.close()
    if isinstance(home, Home):
        outcome = home.outcome
    else:
        first = members[topology.sites[0]]
        assert isinstance(first, BlindSite)
        outcome = first.home.outcome
    kept = {name: np.isin(table.ids, tables[name].ids) for name, table in whole.items()}
    return Run(topology, sites, outcome, home.exchanges, transport.bytes_sent, kept, excluded)


def _by_the_rules(
    model: Model, tables: Mapping[str, LabelTable], job_key: bytes | None, privacy: str, policies: Mapping[str, Policy]
) -> tuple[Mapping[str, LabelTable], dict[str, tuple[Exclusion, ...]]]:
    """Leave out what falls below a site's minimums; what is left may fall below others, until nothing does."""
    excluded: dict[str, tuple[Exclusion, ...]] = {}
    tables = dict(tables)
    while policies:
        enrolments = {site: enrolment(table, model.uses_votes, job_key) for site, table in tables.items()}
        topology, rows = align(enrolments)
        private = {block.members[0]: block.size for block in topology.blocks if not block.shared}
        enrolled = {
            site: Enrolled(
                len(own.objects),
                private.get(site, 0),
                {claim.name: claim.kind for claim in own.columns},
                {claim.name: claim.labels for claim in own.columns},
            )
            for site, own in enrolments.items()
        }
        rules = {site: Rules(policies[site], privacy, site, linear=model.linear) for site in tables}
        found = {s: rules[s].findings(topology.view(s), enrolled, tables[s], rows[s]) for s in tables}
        if all(findings.clean for findings in found.values()):  # as over a network: only then labels are counted
            counts = _counts(tables)
            for site, table in tables.items():
                here = (rules[site], topology.view(site), enrolled, table, rows[site])
                found[site] = _with_counts(found[site], *here, counts)
        if all(findings.clean for findings in found.values()):
            break
        for site, findings in found.items():
            if not findings.clean:
                rules[site].refuse(findings)
                tables[site], more = left_out(findings, tables[site])
                excluded[site] = (*excluded.get(site, ()), *more)
    return tables, excluded


def _counts(tables: Mapping[str, LabelTable]) -> dict[str, dict[str, int]]:
    """How many labels, labels in columns with one holder, and ballots each object has at all sites together."""
    holders: dict[str, int] = {}
    for table in tables.values():
        for column in table.columns:
            holders[column.name] = holders.get(column.name, 0) + 1
    counts: dict[str, dict[str, int]] = {"labels": {}, "hidden": {}, "ballots": {}}
    for table in tables.values():
        for column in table.columns:
            names = (
                ["ballots"]
                if column.kind == "classifier"
                else ["labels", *(["hidden"] if holders[column.name] == 1 else [])]
            )
            for name in names:
                for own in table.ids[column.observed].tolist():
                    counts[name][own] = counts[name].get(own, 0) + 1
    return counts


def _with_counts(
    findings: Findings,
    rules: Rules,
    view: SiteView,
    enrolled: Mapping[str, Enrolled],
    table: LabelTable,
    rows: Mapping[int, Rows],
    counts: Mapping[str, Mapping[str, int]],
) -> Findings:
    labelled: dict[Kind, NDArray[np.bool_]] = {k: has_any(table, k) for k in ("clustering", "classifier")}
    for index, block in view.blocks.items():
        if block.shared:
            ids = table.ids[rows[index]].tolist()
            here = {what: np.array([float(known.get(i, 0)) for i in ids]) for what, known in counts.items()}
            own = {kind: has[rows[index]] for kind, has in labelled.items()}
            thin = rules.thin_objects(view, enrolled, index, here, own)
            findings = with_thin_objects(findings, table.n_objects, f"block/{index}", rows[index], thin)
    return findings


def _pair_keys(attempt: Attempt) -> dict[str, dict[str, bytes]]:
    """Keys of every pair of sites: real ones, but nobody needs to show on one machine whose they are."""
    keys = {site: EphemeralKey() for site in attempt.roster}
    return {
        site: {peer: own.pair_key(other.public, *attempt.context) for peer, other in keys.items() if peer != site}
        for site, own in keys.items()
    }
