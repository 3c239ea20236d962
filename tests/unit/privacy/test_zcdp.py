"""Epsilon of rho, sensitivities of pair tables by brute force, and the noise that a release needs."""

from __future__ import annotations

from itertools import combinations, product
from math import inf, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ce.errors import InputError
from ce.privacy.zcdp import LEAST_SITE_SD, Unit, epsilon_of, noise_of, rho_of, squared_sensitivity

Layout = dict[str, tuple[str, ...]]
DELTA = 1e-6


@pytest.mark.parametrize(("epsilon", "rho"), [(1, 0.0244), (2, 0.0882), (4, 0.3111)])
def test_rho_of_the_usual_epsilons(epsilon: float, rho: float) -> None:
    assert round(rho_of(epsilon, DELTA), 4) == rho


@given(st.floats(1e-4, 20), st.sampled_from([1e-9, 1e-6, 1e-2]))
@settings(max_examples=20, deadline=None)
def test_epsilon_is_the_least_over_all_orders(rho: float, delta: float) -> None:
    orders = 1 + np.geomspace(1e-4, 1 / delta, 200_000)
    bounds = orders * rho + np.log1p(-1 / orders) - (log(delta) + np.log(orders)) / (orders - 1)
    found = epsilon_of(rho, delta)
    assert found <= max(0.0, bounds.min()) + 1e-12
    assert found == pytest.approx(max(0.0, bounds.min()), rel=1e-5)
    assert found <= rho + 2 * sqrt(rho * log(1 / delta))


@given(st.floats(0.01, 30), st.sampled_from([1e-9, 1e-6, 1e-2]))
@settings(max_examples=20, deadline=None)
def test_rho_of_is_the_inverse_and_never_more(epsilon: float, delta: float) -> None:
    rho = rho_of(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon
    assert epsilon_of(rho * (1 + 1e-9), delta) > epsilon * (1 - 1e-6)


def test_ends_and_other_numbers() -> None:
    assert epsilon_of(0, DELTA) == 0
    assert epsilon_of(inf, DELTA) == inf
    for rho, delta in ((-1, DELTA), (1, 0), (1, 1)):
        with pytest.raises(InputError):
            epsilon_of(rho, delta)
    for epsilon in (0, -1, inf, float("nan")):
        with pytest.raises(InputError):
            rho_of(epsilon, DELTA)


def test_an_accountant_agrees() -> None:
    accounting = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    for rho in (0.0244, 0.0882, 0.3111):
        accountant = rdp.RdpAccountant(orders=[1 + at / 20 for at in range(1, 4000)])
        accountant.compose(accounting.ZCDpEvent(rho))
        assert epsilon_of(rho, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)


def tables_of_all_objects(layout: Layout, categories: int) -> tuple[list[tuple[str, str]], NDArray, NDArray]:
    """Cells (site, column); all label rows of one object, -1 missing; and the pair tables that each adds."""
    cells = [(site, column) for column, sites in sorted(layout.items()) for site in sites]
    rows = np.array(list(product(range(-1, categories), repeat=len(cells))))
    hot = (rows[:, :, None] == np.arange(categories)).astype(np.int64)
    totals = {
        column: sum(hot[:, at] for at, cell in enumerate(cells) if cell[1] == column) for column in sorted(layout)
    }
    tables = [
        (totals[first][:, :, None] * totals[second][:, None, :]).reshape(len(rows), -1)
        for first, second in combinations(sorted(layout), 2)
    ]
    return cells, rows, np.hstack(tables)


def largest_change(layout: Layout, categories: int, unit: Unit, site: str | None = None) -> int:
    """The largest squared distance of the tables of two objects that differ in one unit."""
    cells, rows, tables = tables_of_all_objects(layout, categories)
    if unit == "label":
        units = [[at] for at in range(len(cells))]
    elif unit == "object":
        units = [list(range(len(cells)))]
    else:
        units = [[at for at, cell in enumerate(cells) if cell[0] == site]]
    squares = (tables**2).sum(axis=1)
    largest = 0
    for changed in units:
        rest = np.delete(rows, changed, axis=1)
        _, group = np.unique(rest, axis=0, return_inverse=True) if rest.shape[1] else (None, np.zeros(len(rows), int))
        order = np.argsort(group, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            inner = tables[members] @ tables[members].T
            distances = squares[members][:, None] + squares[members][None] - 2 * inner
            largest = max(largest, int(distances.max()))
    return largest


def layouts(columns: int, sites: str) -> list[Layout]:
    subsets = [held for size in range(1, len(sites) + 1) for held in combinations(sites, size)]
    return [dict(zip("ijkl", held, strict=False)) for held in product(subsets, repeat=columns)]


def check_by_brute_force(layout: Layout, categories: int) -> list[bool]:
    """Whether the bounds are reached; never are they passed."""
    reached = []
    for unit, site in (("label", None), ("object", None), *(("site_row", site) for site in "abc")):
        if unit == "site_row" and not any(site in held for held in layout.values()):
            assert squared_sensitivity(layout, "site_row", site) == 0
            continue
        found = largest_change(layout, categories, unit, site)
        bound = squared_sensitivity(layout, unit, site)
        assert found <= bound
        reached.append(found == bound)
    return reached


@pytest.mark.parametrize(
    "layout", [*layouts(2, "ab"), {"i": "a", "j": "ab", "k": "b"}, {"i": "ab", "j": "ab", "k": "a"}]
)
def test_sensitivities_by_brute_force(layout: Layout) -> None:
    reached = check_by_brute_force(layout, 2)
    if len(layout) == 2:
        assert all(reached)


@pytest.mark.slow
def test_sensitivities_by_brute_force_of_all_small_layouts() -> None:
    """All two columns at three sites and three columns at two sites; without shared columns the bounds are reached."""
    for layout in [*layouts(2, "abc"), *layouts(3, "ab")]:
        reached = check_by_brute_force(layout, 2)
        if len(layout) == 2 or all(len(held) == 1 for held in layout.values()):
            assert all(reached)
    check_by_brute_force({"i": ("a", "b"), "j": ("a", "b"), "k": ("a",)}, 3)
    check_by_brute_force({"i": ("a",), "j": ("a",), "k": ("a", "b"), "l": ("b",)}, 2)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_sensitivities_without_shared_columns(own: int, foreign: int, more: int) -> None:
    layout: Layout = {f"a{at}": ("a",) for at in range(own)}
    layout |= {f"b{at}": ("b",) for at in range(foreign)} | {f"c{at}": ("c",) for at in range(more)}
    columns = len(layout)
    expected = 2 * (own * (columns - own) + own * (own - 1) // 2)
    assert squared_sensitivity(layout, "site_row", "a") == expected
    assert squared_sensitivity(layout, "label") == 2 * (columns - 1)
    assert squared_sensitivity(layout, "object") == columns * (columns - 1)


def four_columns_each(sites: int = 5) -> Layout:
    return {f"{site}{at}": (site,) for site in "abcdefghij"[:sites] for at in range(4)}


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 54), (2, 28), (4, 15)])
def test_sigma_of_twenty_columns_at_five_sites(epsilon: float, sigma: int) -> None:
    layout = four_columns_each()
    noise = noise_of(layout, "abcde", epsilon=epsilon, delta=DELTA, unit="site_row", collusion=1)
    assert abs(noise.sigma - sigma) < 0.6
    assert noise.opened_sd == pytest.approx(noise.sigma * sqrt(5 / 4))
    assert float(noise.site_variance) == pytest.approx(noise.sigma**2 / 4)
    for rho in noise.rho_of_site.values():
        assert epsilon * 0.999 < epsilon_of(rho, DELTA) <= epsilon


def test_a_job_that_hides_labels_costs_a_site_row_more() -> None:
    noise = noise_of(four_columns_each(), "abcde", epsilon=2, delta=DELTA, unit="label", collusion=1)
    assert epsilon_of(noise.rho_of_site["a"], DELTA) == pytest.approx(4.1, abs=0.15)
    wide = noise_of(four_columns_each(), "abcde", epsilon=2, delta=DELTA, unit="object", collusion=1)
    assert wide.sigma > noise.sigma
    assert epsilon_of(wide.rho_of_site["a"], DELTA) < 2


@given(
    st.dictionaries(st.sampled_from("ijklmn"), st.sets(st.sampled_from("abcd"), min_size=1), min_size=1),
    st.floats(0.05, 50),
    st.sampled_from(["site_row", "label", "object"]),
    st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_noise_is_enough_for_the_stated_epsilon(
    layout: dict[str, set[str]], epsilon: float, unit: Unit, collusion: int
) -> None:
    noise = noise_of(layout, "abcd", epsilon=epsilon, delta=DELTA, unit=unit, collusion=collusion)
    assert float(noise.site_variance) >= LEAST_SITE_SD**2
    assert noise.sigma**2 == pytest.approx(float(noise.site_variance) * (4 - collusion))
    assert noise.opened_sd**2 == pytest.approx(4 * float(noise.site_variance))
    sites: list[str | None] = list("abcd") if unit == "site_row" else [None]
    for site in sites:
        rho = squared_sensitivity(layout, unit, site) / (2 * noise.sigma**2)
        assert epsilon_of(rho, DELTA) <= epsilon * (1 + 1e-9)
    for site in "abcd":
        own = squared_sensitivity(layout, "site_row", site)
        assert noise.rho_of_site[site] == pytest.approx(own / (2 * noise.sigma**2))


def test_numbers_that_make_no_noise_are_refused() -> None:
    layout: Layout = {"i": ("a",), "j": ("b",)}
    for collusion in (-1, 2):
        with pytest.raises(InputError, match="collusion"):
            noise_of(layout, "ab", epsilon=1, delta=DELTA, unit="site_row", collusion=collusion)
    with pytest.raises(InputError, match="got b"):
        noise_of(layout, "a", epsilon=1, delta=DELTA, unit="site_row", collusion=0)
    with pytest.raises(InputError, match="unit"):
        squared_sensitivity(layout, "row")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="site"):
        squared_sensitivity(layout, "site_row")
