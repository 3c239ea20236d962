"""Where new objects belong, given the fitted parameters of BCE: cell and object steps with tables and alpha held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.errors import LabelError
from ce.labels import Column, LabelTable
from ce.models.base import HERE
from ce.protocol.engine.starting_parameters import GivenStarts
from ce.protocol.local_run import run
from ce.ring import Reals, Scale, Words
from ce.steps.bce import BCESteps

_MAX_ITER = 200
_TOL = 1e-9


class _Held(BCESteps):
    """BCE whose beta never changes: every row of every new table is zero, which stands for "unchanged"."""

    def column(self, sums: Words, scale: Scale) -> Reals:
        return np.zeros(sums.shape)


def infer(
    table: LabelTable,
    names: Sequence[str],
    categories: Sequence[NDArray[Any]],
    beta: Sequence[Reals],
    alpha: Reals,
) -> tuple[Reals, NDArray[np.bool_], float]:
    """gamma (n, k) of new objects, which have no label, and the bound per label (without prior)."""
    found = tuple(column.name for column in table.clusterings)
    if found != tuple(names):
        raise LabelError(f"expected the columns of the fit, {', '.join(names)}; found {', '.join(found)}")
    columns = [c.recode(tuple(seen.tolist())) for c, seen in zip(table.clusterings, categories, strict=True)]
    for column, b in zip(columns, beta, strict=True):
        _refuse_impossible(column, b)
    known = LabelTable(table.ids, tuple(columns), table.source)
    labels = sum(int(column.observed.sum()) for column in known.clusterings)
    if labels == 0:
        return np.tile(alpha, (known.n_objects, 1)), np.ones(known.n_objects, dtype=bool), 0.0
    steps = _Held(
        len(alpha),
        1,
        max_iter=_MAX_ITER,
        tol=_TOL,
        smoothing=0.0,
        alpha=alpha,
        learn_alpha=False,
        hold_iter=0,
        halving=False,
        schedule="newton",
        local_loops=1,
    )
    starts = GivenStarts({name: b[None] for name, b in zip(names, beta, strict=True)})
    result = run(steps, {HERE: known}, {HERE: starts})
    unlabelled = result.sites[HERE].unlabelled
    gamma = result.sites[HERE].object_state("gamma")
    gamma[unlabelled] = alpha
    return gamma, unlabelled, result.outcome.paths[0].bounds[-1] / labels


def _refuse_impossible(column: Column, beta: Reals) -> None:
    """Without smoothing, a category that the fitted objects never had cannot be produced by any cluster."""
    chance = np.append(beta.max(axis=0, initial=0.0), 1.0)
    if column.codes is not None:
        impossible = chance[column.codes] == 0.0
    else:
        assert column.probabilities is not None
        impossible = (np.nan_to_num(column.probabilities) * (chance[:-1] == 0.0)).any(axis=1)
    if impossible.any():
        raise LabelError(
            "a label that no cluster of this fit can have: fit with smoothing",
            row=int(impossible.argmax()),
            column=column.name,
        )
