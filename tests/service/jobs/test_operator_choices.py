"""What an operator chooses, at real daemons: how many different jobs, and with which parameters.

An operator who sees totals of the same labels in many jobs, or with a smoothing that makes them linear in the labels,
can solve them for the labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import (
    Run,
    run_fixture,  # noqa: F401 (a fixture)
)
from support.processes import Deployment

import ce
from ce_client.state.disclosures import Disclosures

SITES = ("east", "north", "south")
OBJECTS = 60
#: The default policy, for sites that open totals of the objects that they share.
POLICY = 'shared_objects = "totals"\nmin_foreign_columns = 2\n'


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("deployment")
    with Deployment(directory, SITES) as deployment:
        rng = np.random.default_rng(3)
        truth = rng.integers(0, 3, OBJECTS)
        for site in SITES:
            cells = np.where(rng.random((OBJECTS, 2)) < 0.2, rng.integers(0, 3, (OBJECTS, 2)), truth[:, None])
            ids = [f"object {i}" for i in range(OBJECTS)]
            table = ce.LabelTable.from_arrays(cells, ids=ids, columns=[f"{site}_1", f"{site}_2"])
            deployment.write_labels(site, table)
            (directory / site / "policy.toml").write_text(POLICY)
        yield deployment


def job(name: str, **keys: Any) -> ce.Job:
    return ce.Job(**{"name": name, "clusters": 3, "restarts": 2, "max_iterations": 5, "sites": SITES} | keys)


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_jobs_that_differ_in_name_and_smoothing_are_refused_from_the_second_on(
    deployment: Deployment, run: Run
) -> None:
    assert deployment.run(job("first")).state == "done"
    for at in range(2, 4):
        status = deployment.run(job(f"job {at}", smoothing=0.01 * at))
        assert (status.state, status.rule) == ("failed", "max_definitions")
        assert f"totals of {OBJECTS} objects" in status.reason
    assert deployment.run(job("the same")).state == "done"
    for site in SITES:
        first, same = (deployment.consensus(site, name) for name in ("first", "the same"))
        assert first[:2] == same[:2]
        np.testing.assert_array_equal(first[2], same[2])
        home = deployment.directory / site
        assert Disclosures(home / "state").usage() == {1: OBJECTS}
        assert run("ce-client", "allow-definition", "job 2", "--yes", "--config", home).code == 0
    assert deployment.run(job("allowed", smoothing=0.02)).state == "done"
    assert deployment.run(job("not this", smoothing=0.03)).rule == "max_definitions"


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
@pytest.mark.parametrize(
    ("rule", "keys"),
    [
        ("max_smoothing", {"smoothing": 100}),
        ("max_restarts", {"restarts": 21}),
        ("max_local_loops", {"local_loops": 1_000_000}),
        ("max_clusters", {"clusters": 101}),
    ],
)
def test_what_an_operator_may_not_ask_for_is_refused_by_its_name(
    deployment: Deployment, rule: str, keys: dict[str, Any]
) -> None:
    status = deployment.run(job(rule, **keys))
    ((key, asked),) = keys.items()
    assert (status.state, status.rule) == ("failed", rule)
    assert f"the job asks for {asked:,g} {key}" in status.reason
    for site in SITES:
        assert not (Path(deployment.directory) / site / "results" / rule).exists()
