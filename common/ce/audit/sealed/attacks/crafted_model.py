"""A crafted model: a coordinator that could choose the parameters would make the winner equal to one column.

With one cluster for each label of a column, and all other columns equally likely in every cluster, the score is largest
where the label is: the members of the block, who are opened the winner, would read a foreign column. Sites refit the
tables and refuse such a model; models within the tolerance of the check are played too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ce.audit.sealed.releases import Release
from ce.pair_tables import TableLayout, check_fit
from ce.pair_tables.fit_check import LARGEST_MOVE
from ce.ring import Reals

_SURE = 0.999


#: Of the job.
Clusters = int | Literal["auto"]


@dataclass(frozen=True, eq=False)
class Model:
    weights: Reals
    beta: Reals


def one_column(layout: TableLayout, column: int, clusters: int) -> Model:
    """The winner is the label of one column; labels beyond the number of clusters share them."""
    beta = layout.normalised(np.ones((layout.width, clusters)))
    k = layout.categories[column]
    rows = layout.offsets[column] + np.arange(k)
    beta[rows] = 1.0 - _SURE
    beta[rows, np.arange(k) % clusters] = _SURE
    return Model(np.full(clusters, 1.0 / clusters), layout.normalised(beta))


def nearly_honest(release: Release, column: int, asked: Clusters) -> Model:
    """As far from the honest model towards one column as the check lets pass."""
    aim = one_column(release.layout, column, len(release.weights))
    for part in (1.0, 0.5, 0.25, 0.1):
        most = part * LARGEST_MOVE
        beta = release.beta + np.clip(aim.beta - release.beta, -most, most)
        weights = release.weights + np.clip(aim.weights - release.weights, -most, most)
        model = Model(weights / weights.sum(), release.layout.normalised(np.maximum(beta, 1e-9)))
        if not refused(release, model, asked):
            return model
    return Model(release.weights, release.beta)


def refused(release: Release, model: Model, asked: Clusters) -> bool:
    """Whether sites that know the release would refuse to score with this model."""
    seed = 0
    return check_fit(release.tables, release.layout, release.sd, seed, model.weights, model.beta, asked) is not None
