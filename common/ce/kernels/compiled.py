"""All compiled kernels. Import this module through `ce.kernels.backend` only: numba is optional."""

from ce.kernels.cells import LANES
from ce.kernels.compiled_cells import count_sums, lookup_sums, posterior_sums
from ce.kernels.compiled_gaussian import gaussian_sweeps
from ce.kernels.compiled_gibbs import bce_sweep
from ce.kernels.compiled_objects import (
    digamma,
    dirichlet_posterior,
    encoded_total,
    exp,
    likeliest,
    log,
    log_beta,
    responsibilities,
    trigamma,
)

__all__ = [
    "LANES",
    "bce_sweep",
    "count_sums",
    "digamma",
    "dirichlet_posterior",
    "encoded_total",
    "exp",
    "gaussian_sweeps",
    "likeliest",
    "log",
    "log_beta",
    "lookup_sums",
    "posterior_sums",
    "responsibilities",
    "trigamma",
]
