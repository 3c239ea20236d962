"""The mixture model of cluster ensembles."""

from ce.declarations.capacity_facts import Arrays, CapacityFacts
from ce.declarations.declaration import ModelDeclaration

DECLARATION = ModelDeclaration(
    name="mixture",
    title="mixture model",
    steps="ce.models.job_steps:mixture_steps",
    estimator="ce.models.mixture:Mixture",
    options=("restarts", "max_iterations", "tolerance", "smoothing", "halving", "precision"),
    restarts=20,
    smoothing=1.0,
    parameters=("weights",),
    capacity=CapacityFacts(
        globals_sent=(1, 0),
        shares_answered=(1, 2),
        decision=(1, 3),
        shares=3,
        at_home=Arrays(3, 5, 48),
        private=Arrays(3, 5),
        blind=Arrays(7.3, 2),
        checkpoint_at_home=Arrays(2, 2.13),
        checkpoint_at_site=Arrays(2, 2.13),
        working=5,
        largest_term=1024.0,
        phases=2,
    ),
)
