"""The Bayesian cluster ensemble."""

from ce.declarations.capacity_facts import Arrays, CapacityFacts
from ce.declarations.declaration import ModelDeclaration

DECLARATION = ModelDeclaration(
    name="bce",
    title="Bayesian cluster ensemble",
    steps="ce.models.job_steps:bce_steps",
    estimator="ce.models.bce:BCE",
    options=(
        "restarts",
        "max_iterations",
        "tolerance",
        "smoothing",
        "schedule",
        "local_loops",
        "halving",
        "precision",
    ),
    # Sites compute more, and need half as many exchanges. Estimators on one machine have nothing to save.
    local_loops=10,
    parameters=("alpha",),
    capacity=CapacityFacts(
        globals_sent=(1, 1),
        shares_answered=(3, 4),
        decision=(2, 7),
        shares=5,
        at_home=Arrays(7, 5, 48),
        private=Arrays(7, 5),
        blind=Arrays(11, 2),
        checkpoint_at_home=Arrays(4, 2.13),
        checkpoint_at_site=Arrays(5, 2.13),
        working=8,
    ),
)
