"""One default fit of BCE, in a process of its own: runs in any version's environment, on its public interface.

    python whole_fit.py planted|like_k_means OBJECTS

Prints JSON: wall and CPU seconds of `fit`, and how much memory the process had at most, in MB.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

COLUMNS, K = 20, 7


def main() -> None:
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    from harness import labels

    import ce

    kind, n = sys.argv[1], int(sys.argv[2])
    codes = labels.planted(n, COLUMNS, K)[1] if kind == "planted" else labels.like_k_means(n, COLUMNS, K)
    model = ce.models.BCE(random_state=0)
    warnings.simplefilter("ignore")
    ce.models.BCE(random_state=0, max_iter=1).fit(codes[:100])  # loads, or compiles, what a first call has to
    begin, before = time.perf_counter(), time.process_time()
    model.fit(codes)
    print(
        json.dumps(
            {
                "wall": time.perf_counter() - begin,
                "CPU": time.process_time() - before,
                "MB": _peak_megabytes(),
                "iterations": model.n_iter_,
            }
        )
    )


def _peak_megabytes() -> float:
    """Not of `getrusage`, which goes on with the peak of the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
