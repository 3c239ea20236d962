"""How much of a foreign column was recovered from sealed jobs, and how much a site has anyway.

The only module of this package that compares guesses with labels. The baseline of a column is the best of: the
published labels, the attacker's own columns, and predictions of the column from own labels, published labels and opened
tables that treat objects alike (`ce.audit.sealed.attacks.predictions`). The audit picks the best for each column, which
an attacker could not. Attacks that weigh evidence against a prior are told how the best one goes together with the
column, so that they begin where the baseline ends; what this tells them is then part of their baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ce.audit.adversary_views import Guess
from ce.audit.partitions import Groups
from ce.audit.report import Score
from ce.audit.scoring import agreement
from ce.audit.sealed.attacks.predictions import implied
from ce.audit.sealed.pooled_labels import PooledLabels
from ce.audit.sealed.site_knowledge import SiteKnowledge, Target
from ce.ring import Reals


@dataclass(frozen=True, eq=False)
class Baseline:
    """What a site has of one column without an attack."""

    codes: Groups  # (objects of the site,) the labels; -1: not asked
    value: float
    prior: Reals  # (objects of the site, labels) how the labels go together with the best prediction
    value_of_prior: float

    @classmethod
    @lru_cache(maxsize=512)
    def of(cls, labels: PooledLabels, known: SiteKnowledge, target: Target) -> Baseline:
        codes = labels.codes[target.holder][labels.held[known.site]][:, target.column].astype(np.intp)
        codes[~target.objects] = -1
        guesses = implied(known, target)
        values = [agreement(codes, guess) for guess in guesses]
        best = guesses[int(np.argmax(values))]
        together = np.full((int(best.max()) + 2, target.groups), 0.5)
        labelled = codes >= 0
        np.add.at(together, (best[labelled], codes[labelled]), 1.0)
        chances = together / together.sum(axis=1, keepdims=True)
        value = max(max(values), 0.0)
        told = agreement(codes, chances.argmax(axis=1)[best].astype(np.intp))
        return cls(codes, value, chances[best], max(value, told))

    def score(self, guess: Guess) -> Score:
        """Of an attack that has the attacker's knowledge only."""
        return Score(agreement(self.codes, guess), self.value)

    def score_from_prior(self, guess: Guess) -> Score:
        """Of an attack that was told the prior."""
        return Score(agreement(self.codes, guess), self.value_of_prior)
