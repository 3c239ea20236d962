"""Run a model over the tables of several sites, on one machine: topology, engine and a transport between them.

The estimators are this with one site, `ce.simulate` with several. The daemons use the same engine over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Aggregator, Outcome, Progress, add_answer
from ce.protocol.engine.site import Counts, OnCounts, Site
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.local_alignment import LocalAlignment, align_tables, clean, local_pair_keys
from ce.protocol.messages.task import Answer, Task
from ce.protocol.messages.transport import InMemory, Transport
from ce.protocol.minimums import Exclusion, Findings, SiteMinimums
from ce.protocol.modes.aggregators import aggregator_for
from ce.protocol.modes.contributor import Contributor, contributor
from ce.protocol.topology.enrolment import with_tokens
from ce.protocol.topology.site_view import Categories
from ce.protocol.topology.topology import Topology, block_pseudonyms
from ce.protocol.topology.vocabularies import Wishes
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
    participating: dict[str, NDArray[np.bool_]] = field(default_factory=dict, repr=False)  # by site: of its objects
    excluded: dict[str, tuple[Exclusion, ...]] = field(default_factory=dict)  # what rules left out, by site

    def beta(self) -> dict[str, Reals]:
        """Every clustering's (k, categories) parameters, from its first holder."""
        return {column.name: self.sites[column.holders[0]].beta(column.index) for column in self.topology.clusterings}


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
    minimums = {
        site: SiteMinimums(policy, privacy, site, tables[site], linear=model.linear, job_key=job_key)
        for site, policy in (policies or {}).items()
    }
    while True:
        enrolled = {site: minimums[site].table if minimums else table for site, table in tables.items()}
        wishes = {site: minimums[site].wishes if minimums else Wishes() for site in tables}
        aligned = align_tables(model.uses_votes, enrolled, wishes, job_key)
        if not clean(minimums, {site: rules.check(*aligned.of(site)) for site, rules in minimums.items()}):
            continue
        participating = {site: minimums[site].participating if minimums else table for site, table in tables.items()}
        counted: dict[str, Findings] = {}
        attempt = _Attempt(model, participating, starts, aligned, classes, given, job_key, privacy, threads)
        attempt.prepare({site: partial(_check_counts, counted, site, rules) for site, rules in minimums.items()})
        finished = attempt.play(on_progress, transport_to, partial(clean, minimums, counted))
        if finished is not None:
            taking_part = {site: _in(table, participating[site]) for site, table in tables.items()}
            excluded = {site: rules.excluded for site, rules in minimums.items() if rules.excluded}
            return replace(finished, participating=taking_part, excluded=excluded)


def _in(table: LabelTable, participating: LabelTable) -> NDArray[np.bool_]:
    """Which objects of a table take part."""
    if participating is table:  # no rule leaves anything out, and ids need not be compared
        return np.ones(table.n_objects, dtype=np.bool_)
    return np.isin(table.ids, participating.ids)


def _check_counts(counted: dict[str, Findings], site: str, minimums: SiteMinimums, counts: Counts) -> None:
    counted[site] = minimums.check_counts(counts)


class _Attempt:
    """One run of the engine over aligned tables."""

    def __init__(
        self,
        model: Model,
        tables: Mapping[str, LabelTable],
        starts: Mapping[str, Starts],
        aligned: LocalAlignment,
        classes: Categories,
        given: Mapping[str, Reals] | None,
        job_key: bytes | None,
        privacy: str,
        threads: int,
    ) -> None:
        if model.uses_votes and not aligned.topology.classifiers:
            raise InputError("no classifier: this model needs at least one beside the clusterings")
        self._model, self._starts, self._aligned = model, starts, aligned
        self._tables = tables if job_key is None else {s: with_tokens(t, job_key) for s, t in tables.items()}
        self._classes, self._given, self._threads = classes, given, threads
        self._job_key, self._privacy = job_key, privacy
        self._sites: dict[str, Site] = {}

    def prepare(self, on_counts: Mapping[str, OnCounts]) -> None:
        topology, rows = self._aligned.topology, self._aligned.rows
        for name, table in sorted(self._tables.items()):
            self._sites[name] = Site(
                name,
                table,
                topology.view(name),
                rows[name],
                self._model,
                self._starts[name],
                classes=self._classes,
                given=self._given,
                threads=self._threads,
                on_counts=on_counts.get(name),
            )

    def play(
        self,
        on_progress: Callable[[Progress], None] | None,
        transport_to: TransportTo | None,
        counts_are_clean: Callable[[], bool],
    ) -> Run | None:
        """None: a site leaves objects out once labels have been counted, and all must be aligned anew."""
        topology = self._aligned.topology
        ends = self._contributors()
        aggregator = self._aggregator(on_progress)
        handlers = {name: end.answer for name, end in ends.items()}
        try:
            with nullcontext(InMemory(handlers)) if transport_to is None else transport_to(handlers) as transport:
                while aggregator.open_round is not None:
                    opening = aggregator.open_round.opening
                    for name, answer in transport.exchange(aggregator.tasks()):
                        add_answer(aggregator, name, answer)
                    if opening and not counts_are_clean():
                        return None
                    aggregator.advance()
        finally:
            for site in self._sites.values():
                site.close()
        outcome = aggregator.result or ends[topology.sites[0]].outcome
        assert outcome is not None
        return Run(topology, self._sites, outcome, aggregator.exchanges, transport.bytes_sent)

    def _contributors(self) -> dict[str, Contributor]:
        topology, rows, enrolments = self._aligned.topology, self._aligned.rows, self._aligned.enrolments
        attempt = Attempt("local", b"", 1, topology.sites)
        pair_keys = local_pair_keys(attempt) if self._privacy != "plain" else {name: {} for name in self._sites}
        return {
            name: contributor(
                self._privacy,
                attempt,
                site,
                topology.view(name),
                self._model,
                enrolments[name].objects,
                rows[name],
                pair_keys[name],
            )
            for name, site in self._sites.items()
        }

    def _aggregator(self, on_progress: Callable[[Progress], None] | None) -> Aggregator:
        topology = self._aligned.topology
        known = None
        if self._job_key is not None:
            known = block_pseudonyms(topology, self._aligned.enrolments, self._aligned.rows)
        return aggregator_for(self._privacy, topology.whole(), self._model, on_progress, known)
