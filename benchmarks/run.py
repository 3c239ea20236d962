"""Run the benchmarks: `make bench` in some minutes, `make bench-full` everything.

    python benchmarks/run.py --only engine --only masks
    python benchmarks/run.py --full --before OTHER/.venv/bin/python --data FOLDER

Writes JSON lines (one file per part), report.md and pictures to --out. Exit code 1 with --strict when a promise is not
kept; else 0, because a shared machine may be too busy to tell.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib import import_module
from pathlib import Path

from harness.measurement import NOT_KEPT, Result, play
from harness.options import Options
from harness.plots import draw
from harness.report import machine, table, write_lines

#: Read when numpy and others are first imported, which the parts do: nothing takes more threads than it is said to.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

#: In this order; those of the second group only in a full run, or when they are named.
PARTS = ("engine", "masks", "exchange", "throughput", "sealed", "schedules", "fit")
FULL_PARTS = ("randomised", "memory", "frameworks")


def main() -> None:
    asked = arguments()
    options = Options(full=asked.full, out=asked.out, before=asked.before, data=asked.data, no_install=asked.no_install)
    options.out.mkdir(parents=True, exist_ok=True)
    facts, results = machine(), []
    begin = time.monotonic()
    for name in asked.only or (PARTS + (FULL_PARTS if asked.full else ())):
        print(f"-- {name}, after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        results += run_part(name, options, facts)
    facts["load_at_end"] = machine()["load"]
    text = table(results, facts)
    (options.out / "report.md").write_text(text, encoding="utf-8")
    print(text)
    pictures = draw(results, options.out)
    print(f"{time.monotonic() - begin:.0f} s; results, report.md and {len(pictures)} pictures in {options.out}")
    if not pictures:
        print("no pictures: they need matplotlib (pip install 'ce[bench]')")
    not_kept = any(verdict.state == NOT_KEPT for result in results for verdict in result.verdicts)
    sys.exit(1 if asked.strict and not_kept else 0)


def run_part(name: str, options: Options, facts: dict[str, object]) -> list[Result]:
    """Play the part's measurements, and write them as soon as they are there."""
    results = []
    with import_module(f"parts.{name}").part(options) as measurements:
        for measurement in measurements:
            print(f"   {measurement.name}", file=sys.stderr, flush=True)
            results.append(play(measurement))
            lines = [{"run": {**facts, "full": options.full}}, *(result.line() for result in results)]
            write_lines(options.out / f"{name}.jsonl", lines)
    return results


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more turns, larger sizes, and all parts")
    parser.add_argument("--only", action="append", choices=PARTS + FULL_PARTS, help="only this part; may be repeated")
    parser.add_argument("--before", type=Path, metavar="PYTHON", help="the python of another version's environment")
    parser.add_argument("--data", type=Path, help="folder of CSV files, last column `class`, for the schedules")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where results go")
    parser.add_argument("--no-install", action="store_true", help="do not install other frameworks")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a promise is not kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
