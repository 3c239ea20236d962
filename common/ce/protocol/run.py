"""Run a model over the tables of several sites, on one machine: topology, engine and a transport between them.

The estimators are this with one site, `ce.simulate` with several. The daemons use the same engine over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ce.errors import InputError
from ce.labels import LabelTable
from ce.protocol.enrolling import enrolment, with_tokens
from ce.protocol.exchange import InMemory, Transport
from ce.protocol.home import Home, Outcome, Progress
from ce.protocol.messages import Answer, Task
from ce.protocol.site import Site
from ce.protocol.starts import Starts
from ce.protocol.topology import Categories, Topology, align
from ce.ring import Reals
from ce.steps.model import Model

TransportTo = Callable[[Mapping[str, Callable[[Task], Answer]]], AbstractContextManager[Transport]]


@dataclass(frozen=True)
class Run:
    """A finished job: each site with its results, and what the home knows."""

    topology: Topology
    sites: dict[str, Site]
    outcome: Outcome
    bytes_sent: int

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
    threads: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    transport_to: TransportTo | None = None,
) -> Run:
    """Fit `model` to the sites' tables. `given` holds (k, n) object arrays of a start, for a single site.

    With a `job_key` objects and categories go by pseudonyms and tokens, as in a job over a network. `transport_to`
    makes the transport, given what answers for each site; without it tasks are handed over as they are.
    """
    topology, rows = align({site: enrolment(table, model.uses_votes, job_key) for site, table in tables.items()})
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
    home = Home(topology, model, on_progress)
    handlers = {name: site.answer for name, site in sites.items()}
    try:
        with nullcontext(InMemory(handlers)) if transport_to is None else transport_to(handlers) as transport:
            while tasks := home.tasks():
                for name, answer in transport.exchange(tasks):
                    home.add(name, answer)
                home.advance()
    finally:
        for site in sites.values():
            site.close()
    return Run(topology, sites, home.outcome, transport.bytes_sent)
