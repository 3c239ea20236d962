"""Under the default policy, which excludes objects that several sites hold, no attack of the audit gains more than 0.05
by any single column over the published result, whoever plays it; and the same tests say LEAKS where shared objects are
in totals, so that they can fail.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ensembles import Tables, digits, noisy, partly_shared, wine

from ce import Job, LabelTable
from ce.audit import ATTACKS, Audit, audit
from ce.audit.report import COUNTED, LEAKS, MARGIN, REFERENCE
from ce.policy import Policy

EXAMPLES = Path(__file__).parents[2] / "examples"
EXCLUDE, TOTALS = Policy(shared_objects="exclude"), Policy(shared_objects="totals")
SITES = ("east", "north", "south", "west")
#: Columns, labels and sites; two more columns are held by all sites.
LAYOUTS = {"5x3": (5, 3, 5), "8x3": (8, 3, 4), "8x4": (8, 4, 4), "12x4": (12, 4, 4)}
CLUSTERS = {"wine": 3, "digits": 10, "examples": 5}
GRID = [*CLUSTERS, *(f"{layout}, {n}" for layout in LAYOUTS for n in (300, 1000))]
IN_SHORT = "5x3, 300"


def tables_of(name: str) -> Tables:
    if name == "examples":
        return {site: LabelTable.from_csv(EXAMPLES / f"{site}.csv") for site in SITES}
    if name == "wine":
        labels = wine([3, 4, 5] * 4 + [3, 4])
        return partly_shared(labels[:, :-2], labels[:, -2:], 4, 78)
    if name == "digits":
        labels = digits([10] * 10)
        return partly_shared(labels[:, :-2], labels[:, -2:], 4, 100)
    layout, n = name.split(", ")
    columns, width, sites = LAYOUTS[layout]
    labels = noisy(columns * width, int(n), columns + 2, 3, width, 0.3)
    return partly_shared(labels[:, :-2], labels[:, -2:], sites, int(n) // 2)


def audited(name: str, policy: Policy, attacks: tuple[str, ...] = ATTACKS, iterations: int = 60) -> Audit:
    job = Job(clusters=CLUSTERS.get(name, 3), max_iterations=iterations)
    return audit(job, tables_of(name), modes=("masked", "blind"), attacks=attacks, policy=policy)


def assert_no_column_gains(found: Audit) -> None:
    for finding in found.findings:
        if finding.measure == "ari" and finding.verdict != REFERENCE:
            assert finding.gain <= MARGIN, finding
    assert found.leaks == ()


@pytest.mark.promise("Under the default policy no attack of the audit gains more than 0.05 on any column.")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == IN_SHORT else [pytest.mark.slow]) for name in GRID]
)
def test_no_attack_gains_by_any_column(name: str) -> None:
    found = audited(name, EXCLUDE, iterations=20 if name == IN_SHORT else 60)
    # Something takes part, and something is counted.
    assert found.excluded_objects > 50
    assert found.objects > 90
    assert found.broken_rules == {}
    by_attack = {(f.attack, f.measure): f for f in found.findings if f.mode == "masked"}
    assert by_attack["pattern counts", "rows"].verdict == COUNTED
    assert by_attack["pattern counts", "rows"].recovered > 0.7
    assert ("pattern counts", "ari") in by_attack
    assert {f.view for f in found.findings} >= {"coordinator", *(f"site {site}" for site in found.sites)}
    assert_no_column_gains(found)


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == IN_SHORT else [pytest.mark.slow]) for name in GRID]
)
def test_the_same_objects_in_totals_leak(name: str) -> None:
    found = audited(name, TOTALS, ("fitting", "reset and probe"), 30)
    assert found.excluded_objects == 0
    assert found.broken_rules == {}
    assert LEAKS in {finding.verdict for finding in found.findings}
    with pytest.raises(AssertionError):
        assert_no_column_gains(found)
