"""What the fitted model says of objects that took no part in a job: the object step alone, with everything else held.

A site does this by itself, with the final globals and the final tables of the columns that it holds: for objects that
a rule left out of the job.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ce.labels import LabelTable
from ce.protocol.engine.cell_passes import CellPasses
from ce.protocol.engine.object_state import ObjectState
from ce.protocol.engine.site import Site
from ce.protocol.topology.site_view import Block, Categories, SiteView, TopologyColumn
from ce.protocol.topology.topology import Rows
from ce.protocol.topology.vocabularies import restricted
from ce.ring import Reals, Scale, decode
from ce.steps.model import Model, Opening, Sizes, State

#: Passes over the labels; an object that is alone with fixed tables settles in a few.
PASSES = 50


def score(
    model: Model,
    table: LabelTable,
    fitted: Mapping[str, tuple[Categories, Reals]],
    globals_: State,
    sizes: Sizes,
    classes: Categories,
) -> tuple[Reals, NDArray[np.bool_]]:
    """(n, k) memberships, and which objects have no label that counts.

    `fitted` holds the categories and the (k, categories) table of each column that was fitted; columns that were not
    are left out, and so are labels of categories that no fitted object had.
    """
    model = copy.copy(model)
    model.n_starts = 1
    known = _known(table, fitted, model.uses_votes)
    columns = tuple(
        TopologyColumn(at, c.name, c.kind, fitted[c.name][0] if c.kind == "clustering" else (), ("here",))
        for at, c in enumerate(known.columns)
    )
    n = known.n_objects
    view = SiteView(("here",), sizes, {0: Block(0, ("here",), n)}, columns, False, True)
    holdings = CellPasses(known, view, {0: np.arange(n)}, model, classes=classes, given={}, threads=1)
    memberships = np.tile(model.prior_memberships(globals_)[0], (n, 1))
    segment = holdings.private
    unlabelled = np.ones(n, dtype=bool)
    unlabelled[segment.rows] = False
    if segment.width:
        scales = model.scales(sizes)
        votes = scales.get("votes", Scale.counting())
        labels = holdings.label_counts(segment).astype(np.float64)
        objects = ObjectState(Opening(labels, decode(holdings.votes(segment, model.k, votes), votes)), segment.weights)
        objects.begin(model, scales, globals_, None)
        tables = {c.index: fitted[c.name][1][None] for c in view.clusterings}
        for _ in range(PASSES):
            if model.phases == 1:
                sums = {index: np.zeros(t.shape, dtype=np.int64) for index, t in tables.items()}
                new, _ = holdings.pass_once(model, scales, segment, objects.message, tables, sums)
                objects.receive(new, globals_)
                objects.update(np.arange(1), np.zeros(1, dtype=bool), globals_)
            else:
                objects.receive(holdings.first_pass(model, scales, segment, tables, 1), globals_)
        memberships[segment.rows] = model.memberships(objects.state)[0].T[segment.inverse]
    holdings.close()
    return memberships, unlabelled


def whole_memberships(
    site: Site, table: LabelTable, participating: Rows, classes: Categories
) -> tuple[Reals, NDArray[np.bool_]]:
    """Memberships of all objects of a site, and which have no label, after a job in which some rows of its table took
    part, in this order."""
    fitted_rows = np.zeros(table.n_objects, dtype=bool)
    fitted_rows[participating] = True
    memberships = np.empty((table.n_objects, site.model.k))
    unlabelled = np.zeros(table.n_objects, dtype=bool)
    memberships[participating], unlabelled[participating] = site.memberships(), site.unlabelled
    if not fitted_rows.all():
        fitted = {column.name: (column.categories, site.beta(column.index)) for column in site.columns}
        rest = table.select(~fitted_rows)
        memberships[~fitted_rows], unlabelled[~fitted_rows] = score(
            site.model, rest, fitted, site.globals, site.sizes, classes
        )
    return memberships, unlabelled


def _known(table: LabelTable, fitted: Mapping[str, tuple[Categories, Reals]], votes: bool) -> LabelTable:
    """The columns that a fitted model knows, without labels of categories that it does not know."""
    columns = [restricted(c, c.categories, fitted[c.name][0]) for c in table.clusterings if c.name in fitted]
    return replace(table, columns=(*columns, *(table.classifiers if votes else ())))
