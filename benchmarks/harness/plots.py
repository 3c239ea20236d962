"""Pictures of a run, as SVG: needs matplotlib (`pip install 'ce[bench]'`); without it there are none."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.measurement import Growth, Result, exponent
from harness.report import quartiles

COLOURS = {"ours": "#2166ac", "peer": "#b2182b", "limit": "#4d4d4d", "before": "#f4a582"}


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """One picture per measurement that has something to show."""
    if find_spec("matplotlib") is None:
        return []
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = []
    for result in results:
        if not result.values:
            continue
        growths = [c for c in result.measurement.claims if isinstance(c, Growth) and not _incomplete(c, result)]
        figure, axes = pyplot.subplots(figsize=(7, 4 if growths else 1 + 0.42 * len(result.values)))
        if growths:
            _growth(axes, result, growths)
        else:
            _bars(axes, result)
        axes.set_title(result.measurement.name)
        path = folder / f"{result.measurement.name.replace(' ', '-').replace(',', '')}.svg"
        figure.savefig(path, bbox_inches="tight")
        pyplot.close(figure)
        drawn.append(path)
    return drawn


def _incomplete(claim: Growth, result: Result) -> bool:
    return any(name not in result.values for name in claim.sizes)


def _bars(axes: Any, result: Result) -> None:
    """Medians, with quartiles; logarithmic where they are far apart."""
    unit = result.measurement.unit
    names = [name for name in result.values if result.measurement.unit_of(name) == unit][::-1]
    medians = [statistics.median(result.values[name]) for name in names]
    spreads = [quartiles(result.values[name]) for name in names]
    errors = [
        [max(median - low, 0.0) for median, (low, _) in zip(medians, spreads, strict=True)],
        [max(high - median, 0.0) for median, (_, high) in zip(medians, spreads, strict=True)],
    ]
    colours = [COLOURS[result.roles[name]] for name in names]
    axes.barh(names, medians, xerr=errors, color=colours, height=0.6, error_kw={"linewidth": 1})
    positive = [median for median in medians if median > 0]
    if positive and max(positive) > 20 * min(positive):
        axes.set_xscale("log")
    axes.set_xlabel(f"{unit}, median and quartiles".lstrip(", "))


def _growth(axes: Any, result: Result, growths: Sequence[Growth]) -> None:
    for growth in growths:
        sizes = list(growth.sizes.values())
        times = [statistics.median(result.values[name]) for name in growth.sizes]
        axes.loglog(sizes, times, "o-", label=f"{growth.what}: exponent {exponent(sizes, times):.2f}")
        axes.loglog(sizes, [times[-1] * n / sizes[-1] for n in sizes], ":", color=COLOURS["limit"], linewidth=1)
    axes.set_xlabel(result.measurement.axis or "size")
    axes.set_ylabel(f"{result.measurement.unit} (dotted: proportional)")
    axes.legend()
