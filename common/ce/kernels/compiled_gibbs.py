"""The sweeps of `ce.kernels.gibbs`, compiled. They release the interpreter's lock, so that chains run in threads."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numba

from ce.kernels import gibbs
from ce.kernels.machine_code import stored

_known: dict[str, Any] = {"bce_weights": numba.njit(inline="always", error_model="numpy")(gibbs.bce_weights)}

with stored() as compiled:
    bce_sweep = compiled(FunctionType(gibbs.bce_sweep.__code__, {**vars(gibbs), **_known}, "bce_sweep"))
