"""Scores of objects: ln pi_h plus the ln beta_h of the labels, as numbers, and as whole numbers of a sealed job.

The largest score wins, the first cluster on ties. Both forms have the same floors, so that an object gets the same
cluster from either, except where two scores are nearly equal. Whole numbers have `score_unit` units in a nat and five
low bits free, in which a sealed job carries the index of a cluster.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.pair_tables.count_pairs import Labels, checked_columns, one_hot_stretches
from ce.pair_tables.layout import Reals, TableLayout

#: Smallest chance of a label, whose logarithm is -9.21, and logarithm of the smallest weight.
LEAST_CHANCE, LEAST_LOG_WEIGHT = 1e-4, -30.0
#: The low bits of a word, which carry an index.
_INDEX_WORDS = 32


def log_scores(labels: Labels, layout: TableLayout, weights: Reals, beta: Reals) -> Reals:
    """(n, k) scores of objects; a soft label counts in proportion. Without a label: the log weights."""
    chances = log_chances(beta)
    scores = np.empty((len(checked_columns(labels, layout)[0]), len(weights)))
    for where, rows in one_hot_stretches(labels, layout):
        scores[where] = rows @ chances
    scores += log_weights(weights)
    return scores


def log_chances(beta: Reals) -> Reals:
    """(D, k) ln beta, floored."""
    logs: Reals = np.log(np.maximum(beta, LEAST_CHANCE))
    return logs


def log_weights(weights: Reals) -> Reals:
    """(k,) ln pi, floored."""
    logs: Reals = np.log(np.maximum(weights, math.exp(LEAST_LOG_WEIGHT)))
    return logs


def score_unit(labels: int) -> int:
    """f, the units in a nat: with it no score of an object with so many labels at most passes 2^20 units.

    `labels` counts the labels that an object can have, a column once for each site that enrols it.
    """
    if labels < 1:
        raise InputError("score_unit: an object can have at least one label")
    unit = math.floor(2**20 / (9.22 * labels + 30.0))
    if unit < 1:
        raise InputError(f"score_unit: scores of {labels:,} labels an object do not fit into 20 bits")
    return unit


def cell_words(beta: Reals, unit: int) -> NDArray[np.int64]:
    """(D, k) what each label adds to the score of each cluster, in 32nds of a unit."""
    words: NDArray[np.int64] = np.rint(unit * log_chances(beta)).astype(np.int64)
    return _INDEX_WORDS * words


def weight_words(weights: Reals, unit: int) -> NDArray[np.int64]:
    """(k,) what the weight of each cluster adds to its score, in 32nds of a unit."""
    words: NDArray[np.int64] = np.rint(unit * log_weights(weights)).astype(np.int64)
    return _INDEX_WORDS * words
