"""How much noise a release of pair tables needs, and what it costs: zero-concentrated differential privacy.

Which site holds which object is public; neighbours differ in labels. h_j is the number of sites that enrol column j: a
cell of a shared column can have a label at each of them. Each unordered pair of columns is released once. A release
with noise of variance sigma^2 costs rho = Delta^2 / (2 sigma^2), Delta^2 the largest squared change of all tables; rho
adds up over releases. Every site of the roster adds noise of variance sigma^2 / (S - t): if t sites subtract theirs,
sigma^2 is left. Sums of discrete Gaussians are close enough to a discrete Gaussian if each has sd 3 at least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, inf, log, log1p, sqrt
from typing import Literal, get_args

from ce.errors import InputError

Unit = Literal["site_row", "label", "object"]
#: Column to the sites of the roster that enrol it.
Holders = Mapping[str, Collection[str]]

LEAST_SITE_SD = 3
#: A site's variance is rounded up to a multiple of 1 / this number, so that all machines compute the same.
_VARIANCE_STEPS = 256


@dataclass(frozen=True)
class Noise:
    """The noise of a release.

    sigma          sd of what is left if the colluding sites subtract their part: what epsilon is stated for
    site_variance  variance of what each site adds to each cell
    opened_sd      sd of the noise in each opened cell
    rho_of_site    what the release costs each site, per row of an object
    """

    sigma: float
    site_variance: Fraction
    opened_sd: float
    rho_of_site: Mapping[str, float]


def epsilon_of(rho: float, delta: float) -> float:
    """The smallest epsilon so that rho-zCDP implies (epsilon, delta)-DP, by the conversion of Canonne, Kamath, Steinke:
    the least of a rho + ln(1 - 1/a) - (ln delta + ln a) / (a - 1) over a > 1."""
    _check_delta(delta)
    if rho < 0:
        raise InputError(f"rho: expected at least 0, got {rho}")
    if rho in (0, inf):
        return rho
    order = 1 + _best_order_above_1(rho, delta)
    return max(0.0, order * rho + log1p(-1 / order) - (log(delta) + log(order)) / (order - 1))


@lru_cache(256)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho with epsilon_of(rho, delta) <= epsilon."""
    _check_delta(delta)
    if not 0 < epsilon < inf:
        raise InputError(f"epsilon: expected above 0, got {epsilon}")
    low, high = 0.0, epsilon
    while epsilon_of(high, delta) <= epsilon:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if epsilon_of(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def squared_sensitivity(holders: Holders, unit: Unit, site: str | None = None) -> int:
    """The largest squared change of all pair tables together, if one unit changes: a site's row of an object, one
    label, or all labels of an object. `site` is needed for a site's row. Missing labels only make it smaller."""
    counts = {column: len(set(sites)) for column, sites in holders.items()}
    if unit == "site_row":
        if site is None:
            raise InputError("sensitivity of a site's row: expected a site, got none")
        own = {column for column, sites in holders.items() if site in sites}
        return _site_row(counts, own)
    squares = sum(count**2 for count in counts.values())
    if unit == "label":
        return max((2 * (squares - count**2) for count in counts.values()), default=0)
    if unit == "object":
        return squares**2 - sum(count**4 for count in counts.values())
    raise InputError(f"unit: expected {' or '.join(get_args(Unit))}, got {unit!r}")


def noise_of(
    holders: Holders, sites: Collection[str], *, epsilon: float, delta: float, unit: Unit, collusion: int
) -> Noise:
    """The noise that a release needs for its stated epsilon, and what it costs each site of the roster."""
    roster = sorted(set(sites))
    if not 0 <= collusion < len(roster):
        raise InputError(
            f"collusion: expected at least 0 and fewer than the {len(roster)} sites of the roster, got {collusion}"
        )
    unknown = {site for held in holders.values() for site in held} - set(roster)
    if unknown:
        raise InputError(f"holders of columns: expected sites of the roster, got {', '.join(sorted(unknown))}")
    rows = {site: squared_sensitivity(holders, "site_row", site) for site in roster}
    largest = max(rows.values()) if unit == "site_row" else squared_sensitivity(holders, unit)
    needed = Fraction(largest) / (2 * Fraction(rho_of(epsilon, delta))) / (len(roster) - collusion)
    variance = Fraction(max(ceil(needed * _VARIANCE_STEPS), LEAST_SITE_SD**2 * _VARIANCE_STEPS), _VARIANCE_STEPS)
    left = float(variance * (len(roster) - collusion))
    return Noise(
        sigma=sqrt(left),
        site_variance=variance,
        opened_sd=sqrt(variance * len(roster)),
        rho_of_site={site: square / (2 * left) for site, square in rows.items()},
    )


def _site_row(counts: Mapping[str, int], own: Collection[str]) -> int:
    """sum over i in s, j not in s of 2 h_j^2, and over pairs in s of the largest change of their table."""
    foreign = sum(2 * count**2 for column, count in counts.items() if column not in own)
    total = len(own) * foreign
    sizes = Counter(counts[column] for column in own)
    for first, many in sizes.items():
        total += many * (many - 1) // 2 * _pair(first, first)
        total += sum(many * others * _pair(first, second) for second, others in sizes.items() if second > first)
    return total


def _pair(first: int, second: int) -> int:
    """One site changes its labels of an object in two of its columns: one of them, or both. The other holders' labels
    can all agree with what the site had, or with what it has now."""
    both = (first + second - 1) ** 2 + (first - 1) ** 2 + (second - 1) ** 2 + 1
    return max(2 * first**2, 2 * second**2, both)


def _best_order_above_1(rho: float, delta: float) -> float:
    """a - 1 at the least: the derivative, rho + ln(a delta) / (a - 1)^2, changes sign once."""
    low, high = 0.0, 1 / delta - 1
    while low < (middle := (low + high) / 2) < high:
        if rho * middle**2 + log(delta) + log1p(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError(f"delta: expected between 0 and 1, got {delta}")
