"""For all tests: one thread per process for linear algebra, since workers run side by side as it is and threads would
only take turns; numpy's kernels, since every daemon would load the compiled ones, which have tests of their own that
prove that both give the same bits (tests/unit/kernels); and daemons that are forked from a process that has imported
what they import, where the system can.
"""

import os
import sys

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("CE_KERNELS", "numpy")
if sys.platform == "linux" and hasattr(os, "pidfd_open"):
    os.environ.setdefault("CE_TEST_DAEMONS_FORKED", "1")
