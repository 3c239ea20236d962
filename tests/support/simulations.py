"""Small tables and jobs for the tests of ce.simulate."""

from __future__ import annotations

from typing import Any

import numpy as np

import ce
from ce.labels import LabelTable

#: Most promises hold after any number of iterations.
JOB = ce.Job(clusters=3, restarts=2, max_iterations=12)
N_OBJECTS = 48
COLUMNS = ("c0", "c1", "c2", "c3", "c4", "c5")
CLASSES = ("benign", "malign", "unsure")
SECRETS = {"north": b"n" * 32, "east": b"e" * 32, "south": b"s" * 32}


def labels(seed: int = 0, n: int = N_OBJECTS) -> tuple[np.ndarray, np.ndarray]:
    """(n, 6) noisy clusterings of three groups, and the groups."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    columns = []
    for _ in COLUMNS:
        noise = rng.random(n) < 0.25
        columns.append(np.where(noise, rng.integers(0, 4, n), rng.permutation(4)[:3][truth]))
    return np.column_stack(columns), truth


def votes(truth: np.ndarray, seed: int = 1, wrong: float = 0.2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    heard = np.where(rng.random(len(truth)) < wrong, rng.integers(0, 3, len(truth)), truth)
    return np.array(CLASSES)[heard]


def table(
    cells: Any, rows: Any = slice(None), columns: Any = slice(None), names: tuple[str, ...] = COLUMNS
) -> LabelTable:
    """Some objects and columns of a pooled array; ids are the pooled row numbers."""
    at = np.arange(len(names))[columns]
    own = np.arange(len(cells))[rows]
    return LabelTable.from_arrays(
        np.asarray(cells)[own][:, at],
        ids=[f"o{i}" for i in own],
        columns=[names[j] for j in at],
        classifiers=[names[j] for j in at if names[j].startswith("v")],
    )


def three_sites() -> dict[str, LabelTable]:
    """North and east share objects, all share or hold columns, south has objects of its own."""
    cells, _ = labels()
    return {
        "north": table(cells, slice(0, 30), slice(0, 3)),
        "east": table(cells, slice(10, 30), slice(3, 6)),
        "south": table(cells, slice(30, None)),
    }


def assert_same_bits(a: ce.Simulation, b: ce.Simulation) -> None:
    assert_same_results(a, b)
    assert (a.exchanges, a.bytes_sent) == (b.exchanges, b.bytes_sent)


def assert_same_results(a: ce.Simulation, b: ce.Simulation) -> None:
    assert set(a.sites) == set(b.sites)
    for name, own in a.sites.items():
        other = b.sites[name]
        assert own.ids.tolist() == other.ids.tolist()
        assert own.labels.tolist() == other.labels.tolist()
        assert own.memberships.tobytes() == other.memberships.tobytes()
    assert a.bound_path.tobytes() == b.bound_path.tobytes()
    assert a.lower_bound == b.lower_bound
    assert (a.iterations, a.converged, a.layout, a.kappa) == (b.iterations, b.converged, b.layout, b.kappa)
    assert set(a.parameters) == set(b.parameters)
    for name in a.parameters:
        if name != "beta":
            np.testing.assert_array_equal(a.parameters[name], b.parameters[name])
    assert set(a.parameters["beta"]) == set(b.parameters["beta"])
    for name, beta in a.parameters["beta"].items():
        assert beta.tobytes() == b.parameters["beta"][name].tobytes()
