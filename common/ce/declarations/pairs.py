"""Pairs, as the rest of ce knows it."""

from __future__ import annotations

from ce.declarations.declaration import ModelDeclaration

DECLARATION = ModelDeclaration(
    name="pairs",
    title="latent classes from tables of pairs of columns",
    steps="",
    estimator="ce.models.pairs:Pairs",
    options=(),
    sealed=True,
    counts_clusters=True,
)
