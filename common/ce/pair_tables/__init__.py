"""Pair tables: how often label a of one column meets label b of another, and the latent class model that fits them.

    layout = TableLayout(("c1", "c2", "c3"), (4, 4, 3))
    tables = pair_tables(codes, layout)              # (D, D), or the opened total of several sites, with noise
    fit = fit_pairs(tables, layout, "auto")          # weights and beta: what objects are scored with

Called by `ce.models` (the estimator `Pairs`, and a start of others) and by sealed jobs, whose sites refit what they are
sent (`check_fit`). Equal inputs give equal bits on one machine; nothing here reads a global random state.
"""

from ce.pair_tables.count_pairs import pair_tables
from ce.pair_tables.fit import MOST_CLUSTERS, SEALED_TOLERANCE, PairFit, fit_pairs
from ce.pair_tables.fit_check import check_fit
from ce.pair_tables.layout import MOST_WIDTH, TableLayout
from ce.pair_tables.residuals import Residuals, clusters_above_edge
from ce.pair_tables.scores import cell_words, log_scores, score_unit, weight_words

__all__ = [
    "MOST_CLUSTERS",
    "MOST_WIDTH",
    "SEALED_TOLERANCE",
    "PairFit",
    "Residuals",
    "TableLayout",
    "cell_words",
    "check_fit",
    "clusters_above_edge",
    "fit_pairs",
    "log_scores",
    "pair_tables",
    "score_unit",
    "weight_words",
]
