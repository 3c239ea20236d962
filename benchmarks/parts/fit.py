"""A whole fit of BCE with its defaults, in a process of its own, and the same of the version before.

The version before is measured where `--before PYTHON` names the python of its environment. CPU time is that of one
process, so that it says the same on a busy machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from harness.measurement import Level, Measurement, Ratio, Subject
from harness.options import Options

SCRIPT = Path(__file__).resolve().parent.parent / "peers" / "whole_fit.py"
UNITS = {"MB": "MB", "iterations": ""}
KINDS = {
    "planted": "rows all different, 30 % of labels wrong",
    "like_k_means": "labels as k-means gives them: most rows are equal, and what takes long is to find that out",
}
#: Of the CPU time of the version before.
PROMISES = {"planted": 1 / 6, "like_k_means": None}
LARGE, SECONDS = 1_000_000, 10


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    n = 100_000
    here = Path(sys.executable)
    missing = {} if options.before else {"before": "no --before PYTHON was given"}
    yield [
        *(
            Measurement(
                name=f"default fit, {kind.replace('_', ' ')}",
                what=f"BCE().fit of {n:,} x 20, {what}.",
                unit="s",
                units=UNITS,
                subjects=(
                    Subject("this version", partial(_fit, here, kind, n)),
                    Subject("before", partial(_fit, options.before or here, kind, n), "before"),
                ),
                claims=(
                    Ratio("CPU, of the version before", most=PROMISES[kind], of="this version: CPU", to="before: CPU"),
                    Ratio("iterations, of the version before", of="this version: iterations", to="before: iterations"),
                ),
                missing=missing,
                turns=options.turns(1, 3),
                warm_up=0,
            )
            for kind, what in KINDS.items()
        ),
        Measurement(
            name="large default fit",
            what=f"BCE().fit of {LARGE:,} x 20, {KINDS['like_k_means']}.",
            unit="s",
            units=UNITS,
            subjects=(Subject("this version", partial(_fit, here, "like_k_means", LARGE)),),
            claims=(Level("seconds of wall time", most=SECONDS, of="this version: wall"),),
            turns=options.turns(1, 3),
            warm_up=0,
        ),
    ]


def _fit(python: Path, kind: str, n: int) -> dict[str, float]:
    done = subprocess.run(
        [str(python), str(SCRIPT), kind, str(n)], stdout=subprocess.PIPE, check=True, timeout=3600, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found
