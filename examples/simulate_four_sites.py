"""Four organisations on one machine: `python examples/simulate_four_sites.py`.

Each engine sees its own table only; what they tell each other are sums. However the labels are split, by customers, by
clusterings or both, and whatever the mode, the result has the same bits as one on all labels together.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ce
from ce.splits import split

HERE = Path(__file__).parent
SITES = ("north", "east", "south", "west")


def by_id(result: ce.Simulation) -> dict[str, np.ndarray]:
    """The memberships of every customer, wherever it was found."""
    return {own: row for site in result.sites.values() for own, row in zip(site.ids, site.memberships, strict=True)}


def main() -> dict[str, bool]:
    job = ce.Job(clusters=5, restarts=1, seed=0, max_iterations=8, local_loops=1)
    same = {}

    # One table, which is cut in three ways.
    pooled = ce.LabelTable.from_csv(HERE / "north.csv")
    whole = by_id(ce.simulate(job, {"everybody": pooled}))
    for how in ("rows:4", "columns:3", "blocks:4"):
        result = ce.simulate(job, split(pooled, how))
        found = by_id(result)
        same[result.layout] = all(np.array_equal(found[own], row) for own, row in whole.items())
        print(f"{how:10} layout {result.layout:10} the same bits: {same[result.layout]}")

    # Four tables of four organisations, in the three modes.
    tables = {site: ce.LabelTable.from_csv(HERE / f"{site}.csv") for site in SITES}
    plain = by_id(ce.simulate(job, tables, privacy="plain"))
    for mode in ("masked", "blind"):
        result = ce.simulate(job, tables, privacy=mode)
        found = by_id(result)
        same[mode] = all(np.array_equal(found[own], row) for own, row in plain.items())
        print(f"{mode:10} {result.exchanges} exchanges, {result.bytes_sent / 1e6:.1f} MB, the same bits: {same[mode]}")
    return same


if __name__ == "__main__":
    main()
