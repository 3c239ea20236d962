"""Latent classes from tables of pairs of columns: the model of sealed jobs."""

from ce.declarations.declaration import ModelDeclaration

DECLARATION = ModelDeclaration(
    name="pairs",
    title="latent classes from tables of pairs of columns",
    steps="",
    estimator="ce.models.pairs:Pairs",
    options=(),
    # Iterations in tables, without an exchange: so many are never needed, and cost seconds.
    max_iterations=2_000,
    sealed=True,
    counts_clusters=True,
    most_clusters=31,
)
