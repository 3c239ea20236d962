"""All compiled kernels. Import this module through `ce.kernels.backend` only: numba is optional."""

from types import FunctionType
from typing import Any

import numba

from ce.kernels import gibbs
from ce.kernels.cells import LANES
from ce.kernels.compiled_cells import count_sums, lookup_sums, posterior_sums
from ce.kernels.compiled_gaussian import gaussian_sweeps
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
from ce.kernels.machine_code import stored

# Sweeps are compiled as they are written for Python, with what they call.
_called: dict[str, Any] = {"bce_weights": numba.njit(inline="always", error_model="numpy")(gibbs.bce_weights)}
with stored() as _compiled:
    bce_sweep = _compiled(FunctionType(gibbs.bce_sweep.__code__, {**vars(gibbs), **_called}, "bce_sweep"))

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
