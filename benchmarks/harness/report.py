"""What a run says at its end: JSON lines, a Markdown table of ratios, and what kind of machine it was."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.measurement import KEPT, NOT_KEPT, NOT_MEASURED, Result, Verdict

#: Distributions whose versions decide about numbers.
PACKAGES = ("ce", "numpy", "numba", "scipy", "grpcio", "cryptography", "scikit-learn", "stepmix", "tomotopy")
SCALES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def machine() -> dict[str, Any]:
    """What the numbers depend on, without the machine's name."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "load": [round(one, 2) for one in os.getloadavg()],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    stripped = {key.strip(): value.strip() for key, value in facts.items()}
    vector = [flag for flag in ("avx2", "avx512f") if flag in stripped.get("flags", "").split()]
    return " ".join([stripped.get("model name", ""), *vector]).strip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def amount(value: float, unit: str) -> str:
    """1.5 ms, 14.0 MB, 0.912: as a person reads it."""
    if unit.split(" ")[0] != "s":
        return f"{value:,.3f} {unit}".strip() if abs(value) < 10 else f"{value:,.1f} {unit}".strip()
    size, prefix = next(((size, prefix) for size, prefix in SCALES if abs(value) >= size), SCALES[-1])
    return f"{value / size:.3g} {prefix}{unit}"


def table(results: Sequence[Result], facts: dict[str, Any]) -> str:
    """The report in Markdown: promises first, then each measurement."""
    verdicts = [(result, verdict) for result in results for verdict in result.verdicts]
    lines = ["# Ratios of one run", "", _facts(facts), "", "## Promises", ""]
    lines += ["| | found | promised | |", "| --- | ---: | --- | --- |"]
    lines += [_promise(result, verdict) for result, verdict in verdicts if verdict.promised]
    counts = {state: sum(v.state == state for _, v in verdicts if v.promised) for state in (KEPT, NOT_KEPT)}
    unknown = sum(v.state == NOT_MEASURED for _, v in verdicts if v.promised)
    lines += ["", f"{counts[KEPT]} kept, {counts[NOT_KEPT]} not kept, {unknown} not measured.", "", "## Measurements"]
    for result in results:
        lines += ["", *_measurement(result)]
    return "\n".join(lines) + "\n"


def _facts(facts: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {found}" for name, found in facts["packages"].items())
    load = "".join(f", load {when} {facts[key][0]:g}" for key, when in LOADS.items() if key in facts)
    return (
        f"{facts['processor'] or facts['machine']}, {facts['cores']} cores{load}; Python {facts['python']}, {packages}."
    )


#: The load of the machine, which tells how far to believe a run.
LOADS = {"load": "at the start", "load_at_end": "at the end"}


def _promise(result: Result, verdict: Verdict) -> str:
    found = "-" if verdict.found is None else f"{verdict.found:.3g}"
    why = "" if verdict.found is not None else f" ({_reason(result, verdict)})"
    mark = f"**{verdict.state}**" if verdict.state == NOT_KEPT else verdict.state
    return f"| {result.measurement.name}: {verdict.claim.what} | {found} | {verdict.promised} | {mark}{why} |"


def _reason(result: Result, verdict: Verdict) -> str:
    names = {name.split(": ")[0] for name in verdict.claim.subjects()}
    reasons = [f"{name}: {reason}" for name, reason in result.missing.items() if name in names]
    return "; ".join(reasons) or "no value"


def _measurement(result: Result) -> list[str]:
    measurement = result.measurement
    lines = [f"### {measurement.name}", "", measurement.what, ""]
    lines += ["| | | median | quartiles | turns |", "| --- | --- | ---: | ---: | ---: |"]
    for name, values in result.values.items():
        unit = measurement.unit_of(name)
        low, high = (amount(one, unit) for one in quartiles(values))
        median = amount(statistics.median(values), unit)
        lines.append(f"| {name} | {result.roles[name]} | {median} | {low} to {high} | {len(values)} |")
    lines += [f"| {name} | | not measured | {reason} | |" for name, reason in result.missing.items()]
    plain = [verdict for verdict in result.verdicts if verdict.found is not None]
    if plain:
        lines.append("")
    for verdict in plain:
        promised = f" ({verdict.promised}: {verdict.state})" if verdict.promised else ""
        lines.append(f"- {verdict.claim.what}: {verdict.found:.3g}{promised}")
    return lines


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
