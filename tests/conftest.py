"""For all tests: one thread per process for linear algebra.

Workers run side by side as it is; libraries that start a thread per core beside them only take turns.
"""

import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
