"""Classifiers and clusterings together: `python examples/classify_with_bc3e.py`.

Each organisation has a classifier of its own that is often wrong, and clusterings that know nothing of classes but put
alike customers together. BC3E lets the clusterings correct the votes; kappa_ says whether they follow the classes at
all, and so whether to believe them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ce

HERE = Path(__file__).parent / "votes"
SITES = ("north", "east", "south", "west")


def right_of(table: ce.LabelTable) -> dict[str, str]:
    """Id to class, of a table with one column."""
    (column,) = table.columns
    return {own: column.categories[code] for own, code in zip(table.ids, column.likeliest, strict=True)}


def main() -> dict[str, float]:
    truth = right_of(ce.LabelTable.from_csv(HERE / "truth.csv"))

    # On one machine: north's classifier and north's three clusterings. Columns named clf:... are classifiers.
    north = ce.LabelTable.from_csv(HERE / "north.csv")
    right = np.array([truth[own] for own in north.ids])
    (classifier,) = north.classifiers
    votes = np.array(classifier.categories)[classifier.likeliest]
    alone = ce.models.BC3E().fit(north)

    # With the others: their votes and their clusterings, which north never sees.
    tables = {site: ce.LabelTable.from_csv(HERE / f"{site}.csv") for site in SITES}
    together = ce.simulate(ce.Job(model="bc3e", classes=("low", "middle", "high")), tables)

    shares = {
        "votes": float(np.mean(votes == right)),
        "alone": float(np.mean(alone.labels_ == right)),
        "together": float(np.mean(together.sites["north"].labels == right)),
    }
    print(f"north's classifier is right about {shares['votes']:.0%} of its customers")
    print(f"with north's own clusterings: {shares['alone']:.0%}; kappa {alone.kappa_:.2f}")
    print(f"with everybody's votes and clusterings: {shares['together']:.0%}; kappa {together.kappa:.2f}")
    return shares | {"kappa": alone.kappa_}


if __name__ == "__main__":
    main()
