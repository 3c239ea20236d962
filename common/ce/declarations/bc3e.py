"""BC3E: classifiers and clusterings together."""

from ce.declarations.capacity_facts import Arrays, CapacityFacts
from ce.declarations.declaration import ModelDeclaration

DECLARATION = ModelDeclaration(
    name="bc3e",
    title="classifiers and clusterings together",
    steps="ce.models.job_steps:bc3e_steps",
    estimator="ce.models.bc3e:BC3E",
    outcome="classes",
    options=("max_iterations", "tolerance", "smoothing", "local_loops", "posterior", "start", "precision"),
    # Run long, with soft votes, sigma² can collapse: ten iterations are where it is meant to stop.
    max_iterations=10,
    meant_to_stop=True,
    parameters=("mu", "sigma2", "delta2"),
    scalars=("delta2",),
    unanalysed_starts=("diffused",),
    capacity=CapacityFacts(
        globals_sent=(3, 3),
        shares_answered=(2, 3),
        decision=(3, 6),
        shares=5,
        at_home=Arrays(13, 4, 24),
        private=Arrays(13, 2),
        blind=Arrays(16.5, 2, 12),
        checkpoint_at_home=Arrays(6, 2.13),
        checkpoint_at_site=Arrays(7, 2.13),
        working=31,
    ),
)
