"""Exchanges, bytes and quality of column-distributed jobs over totals, against the version before.

`schedules.py` beside `run.py` measures one version. The version before is the environment that `--before PYTHON` names,
or the lines in `baselines/`, which the last released version has written: exchanges, bytes and quality do not depend on
the machine, and only cases with the same labels are compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import schedules
from harness.measurement import Level, Measurement, Subject
from harness.options import Options

HERE = Path(__file__).resolve().parent.parent
BASELINE = HERE / "baselines" / "schedules.jsonl"
#: Subjects' names do not contain a colon and a space.
SUBJECT = "this version against the one before"


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    def compare() -> dict[str, float]:
        before = BASELINE
        if options.before is not None:
            before = _run(options, options.before, "before")
        pairs = schedules.pairs_of(_lines(before), _lines(_run(options, Path(sys.executable), "after")))
        if not pairs:
            raise RuntimeError("no case has the same labels: another version of scikit-learn or numpy?")
        return {verdict.what: verdict.found for verdict in schedules.verdicts(pairs)} | {"cases": len(pairs)}

    yield [
        Measurement(
            name="schedules",
            what="Jobs over totals of four sites with five columns each, with the defaults, in plain: data sets "
            "(k-means, Gaussian mixtures, random subspaces) and planted ensembles. Losses are before minus after. "
            f"The lines of each case are in schedules-after.jsonl; `{Path(schedules.__file__).name} compare` has more.",
            unit="",
            subjects=(Subject(SUBJECT, compare),),
            claims=tuple(
                Level(what, most=limit, of=f"{SUBJECT}: {what}") for what, limit in schedules.PROMISES.items()
            ),
            turns=1,
            warm_up=0,
        )
    ]


def _run(options: Options, python: Path, when: str) -> Path:
    out = options.out / f"schedules-{when}.jsonl"
    data = ["--data", str(options.data)] if options.data else []
    seeds = str(options.turns(1, 2))
    command = [str(python), str(HERE / "schedules.py"), "run", "--out", str(out), "--seeds", seeds, *data]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return out


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
