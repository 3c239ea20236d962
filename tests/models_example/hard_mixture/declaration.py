"""All that ce reads before it computes. It imports no numerical library."""

from ce.declarations import ModelDeclaration

DECLARATION = ModelDeclaration(
    name="hard_mixture",
    title="mixture model with one cluster per object",
    steps="hard_mixture.steps:steps_of_job",
    estimator="hard_mixture.estimator:HardMixture",
    options=("restarts", "max_iterations", "tolerance", "smoothing"),
    parameters=("weights",),
)
