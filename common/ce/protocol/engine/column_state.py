"""Column parameters (beta) and column sums: of shared columns at the home, and of all columns of a site at the site.

beta of a column is (starts, k, categories). A row of zeros in new parameters means: this row is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.engine.invariants import check_column_sums
from ce.protocol.engine.snapshots import Snapshot, by_number, numbered
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Array
from ce.protocol.topology.site_view import SiteView, TopologyColumn
from ce.ring import Reals, Scale, Words
from ce.steps.model import Model, Sizes, with_unchanged_rows

Positions = NDArray[np.intp]


class SharedColumns:
    """The column step of shared columns, at their home."""

    def __init__(self, view: SiteView) -> None:
        self._groups = view.groups
        self._columns = [column for group in self._groups.values() for column in group.columns]
        self._sums: dict[int, Words] = {}  # by group, of the last exchange that asked for them
        self._beta: dict[int, Reals] = {}  # by column, of the starts that run
        self._stopped: dict[int, dict[int, Reals]] = {}  # by start, then by column

    def begin(self, n_starts: int, k: int) -> None:
        """A stage begins. Starting parameters are the sites' secret: a row is unknown until it is first computed."""
        self._stopped = {}
        self._beta = {c.index: np.full((n_starts, k, len(c.categories)), np.nan) for c in self._columns}

    def receive(self, totals: Accumulators, sizes: Sizes, scale: Scale) -> None:
        for index in self._groups:
            name = ArrayName.of_columns(index, "sums")
            if name in totals:
                check_column_sums(totals[name], sizes, scale, self._groups[index].holders)
                self._sums[index] = totals[name]

    def stop(self, position: int, start: int) -> None:
        self._stopped[start] = {index: beta[position] for index, beta in self._beta.items()}

    def select(self, surviving: Positions) -> None:
        self._beta = {index: beta[surviving] for index, beta in self._beta.items()}

    def update(
        self, model: Model, scale: Scale, surviving: Positions | None = None, retry: NDArray[np.bool_] | None = None
    ) -> dict[str, Array]:
        """New parameters from the last sums, by array name. All rows of a start that goes back are zeros: unchanged."""
        sent: dict[str, Array] = {}
        for group in self._groups.values():
            sums = self._sums[group.index]
            sums = sums if surviving is None else sums[surviving]
            beta = model.columns(sums, group.widths, scale)
            if retry is not None:
                beta[retry] = 0.0
            complete = bool(beta.all())
            for index, where in group.slices.items():
                new = beta[..., where]
                self._beta[index] = new if complete else with_unchanged_rows(new, self._beta[index])
            sent[ArrayName.of_columns(group.index, "beta")] = beta
        return sent

    def result(self, start: int) -> dict[str, Reals]:
        """(k, categories) of every shared column, by name, of a start that has stopped."""
        return {column.name: self._stopped[start][column.index] for column in self._columns}

    def snapshot(self) -> Snapshot:
        stopped = {str(start): numbered(beta) for start, beta in self._stopped.items()}
        return {"beta": numbered(self._beta), "stopped": stopped}

    def restore(self, snapshot: Snapshot) -> None:
        self._beta = by_number(snapshot["beta"])
        self._stopped = {start: by_number(beta) for start, beta in by_number(snapshot["stopped"]).items()}


@dataclass
class ColumnParameters:
    """One clustering at a site, for the starts that run: beta as it entered the iteration, and after local loops."""

    column: TopologyColumn
    entering: Reals
    current: Reals
    sums: Words
    stopped: dict[int, Reals] = field(default_factory=dict)

    def select(self, surviving: Positions) -> None:
        self.entering, self.current = self.entering[surviving], self.current[surviving]
        self.sums = self.sums[surviving]

    def adopt(self, new: Reals) -> None:
        self.entering = self.current = new

    def snapshot(self) -> Snapshot:
        stopped = numbered(self.stopped)
        return {"entering": self.entering, "current": self.current, "sums": self.sums, "stopped": stopped}


class SiteColumns:
    """The clusterings that a site holds, shared or not."""

    def __init__(self, site: str, view: SiteView) -> None:
        self._site = site
        self._groups = view.groups
        self._place = {c: (group.index, where) for group in self._groups.values() for c, where in group.slices.items()}
        self.clusterings: list[TopologyColumn] = list(view.clusterings)
        #: Whether this site is the only holder of a column: passes within an iteration change nothing else.
        self.any_alone = any(not column.shared for column in self.clusterings)
        self._parameters: dict[int, ColumnParameters] = {}

    def begin(self, model: Model, starts: Starts) -> None:
        """A stage begins with parameters that are drawn."""
        self._parameters = {}
        for column in self.clusterings:
            beta = model.start_beta(starts.beta(column, model.n_starts, model.k))
            sums = np.zeros(beta.shape, dtype=np.int64)
            self._parameters[column.index] = ColumnParameters(column, beta, beta, sums)

    @property
    def beta(self) -> dict[int, Reals]:
        """The present parameters, by column."""
        return {index: column.current for index, column in self._parameters.items()}

    @property
    def sums(self) -> dict[int, Words]:
        """By column; passes over the cells add into them."""
        return {index: column.sums for index, column in self._parameters.items()}

    @property
    def first_held(self) -> list[Reals]:
        """Parameters of the columns of which this site is the first holder: it adds their prior to the bound."""
        return [c.current for c in self._parameters.values() if c.column.holders[0] == self._site]

    def clear_sums(self) -> None:
        for column in self._parameters.values():
            column.sums = np.zeros(column.current.shape, dtype=np.int64)

    def group_sums(self) -> dict[ArrayName, Array]:
        """Sums of the shared columns, by array name."""
        return {
            ArrayName.of_columns(group.index, "sums"): np.concatenate(
                [self._parameters[column.index].sums for column in group.columns], axis=-1
            )
            for group in self._groups.values()
        }

    def update_alone(self, model: Model, scale: Scale) -> None:
        """The column step of columns with one holder, within an iteration."""
        for column in self._parameters.values():
            if not column.column.shared:
                column.current = with_unchanged_rows(model.column(column.sums, scale), column.current)

    def adopt(self, received: Mapping[int, Reals], model: Model, scale: Scale, retry: NDArray[np.bool_] | None) -> None:
        """The column step: from the parameters of each group that the home sent, or from this site's own sums."""
        complete = {index: np.count_nonzero(beta) == beta.size for index, beta in received.items()}
        for index, column in self._parameters.items():
            if column.column.shared:
                group, where = self._place[index]
                new = received[group][..., where]
                new = new if complete[group] else with_unchanged_rows(new, column.current)
            else:
                new = with_unchanged_rows(model.column(column.sums, scale), column.current)
            column.adopt(new if retry is None else np.where(retry[:, None, None], column.entering, new))

    def stop(self, position: int, start: int) -> None:
        for column in self._parameters.values():
            column.stopped[start] = column.current[position]

    def select(self, surviving: Positions) -> None:
        for column in self._parameters.values():
            column.select(surviving)

    def take_winner(self, start: int) -> None:
        """Go on with the final parameters of one start."""
        for column in self._parameters.values():
            column.adopt(column.stopped[start][None])

    def result(self, column: int, start: int) -> Reals:
        """(k, categories) of a column, of a start that has stopped."""
        return self._parameters[column].stopped[start]

    def snapshot(self) -> Snapshot:
        return {str(index): column.snapshot() for index, column in self._parameters.items()}

    def restore(self, snapshot: Snapshot) -> None:
        columns = {column.index: column for column in self.clusterings}
        for index, values in by_number(snapshot).items():
            self._parameters[index] = ColumnParameters(
                columns[index], values["entering"], values["current"], values["sums"], by_number(values["stopped"])
            )
