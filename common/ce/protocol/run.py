"""Run a model over the tables of several sites, on one machine: topology, engine and an in-process transport.

The estimators are this with one site, `ce.simulate` with several. The daemons use the same engine over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ce.errors import InputError
from ce.labels import LabelTable
from ce.protocol.home import Home, Outcome, Progress
from ce.protocol.messages import Answer
from ce.protocol.site import Site
from ce.protocol.starts import Starts
from ce.protocol.topology import Categories, ColumnClaim, Enrolment, Topology, align
from ce.ring import Reals
from ce.steps.model import Model
from ce.transport import InProcess


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
    threads: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Fit `model` to the sites' tables. `given` holds (k, n) object arrays of a start, for a single site."""
    topology, rows = align({site: enrolment(table, model.uses_votes) for site, table in tables.items()})
    if model.uses_votes and not topology.classifiers:
        raise InputError("no classifier: this model needs at least one beside the clusterings")
    sites = {
        name: Site(
            name,
            table,
            topology,
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
    transport = InProcess({name: site.answer for name, site in sites.items()})
    try:
        while tasks := home.tasks():
            for name, answer in transport.exchange({site: task.encode() for site, task in tasks.items()}):
                home.add(name, Answer.decode(answer))
            home.advance()
    finally:
        for site in sites.values():
            site.close()
    return Run(topology, sites, home.outcome, transport.bytes_sent)


def enrolment(table: LabelTable, votes: bool) -> Enrolment:
    """What a site enrols: its objects, and the columns that the model uses."""
    columns = table.columns if votes else table.clusterings
    return Enrolment(
        table.ids,
        tuple(ColumnClaim(column.name, column.kind, column.soft, column.categories) for column in columns),
    )
