"""A fit that its limit of iterations ended says so, once and usefully, and no other fit does."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ce
from ce.cli.main import cli
from ce.errors import ConvergenceWarning
from ce.models import BC3E, BCE, Mixture

RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 4, (60, 5))
VOTES = RNG.integers(0, 3, (60, 3))
SENTENCE = "stopped after max_iter = 3 iterations before it had converged: raise max_iter, or tol"


@pytest.mark.parametrize(
    ("estimator", "data"),
    [(BCE(3, max_iter=3), (LABELS,)), (Mixture(3, max_iter=3), (LABELS,)), (BC3E(max_iter=3), (LABELS, VOTES))],
    ids=["bce", "mixture", "bc3e"],
)
def test_a_fit_that_max_iter_ends_warns_where_it_was_called(estimator: Any, data: tuple[Any, ...]) -> None:
    with pytest.warns(ConvergenceWarning, match=SENTENCE) as found:
        estimator.set_params(random_state=0).fit(*data)
    assert len(found) == 1
    assert found[0].filename == __file__
    assert not estimator.converged_


def test_bc3e_is_meant_to_stop_at_its_default() -> None:
    fitted = BC3E().fit(LABELS, VOTES)
    assert (fitted.n_iter_, fitted.converged_) == (10, False)
    assert BC3E().get_params()["max_iter"] == 10
    with pytest.warns(ConvergenceWarning, match="max_iter = 11"):
        BC3E(max_iter=11).fit(LABELS, VOTES)


@pytest.mark.parametrize("start", ["votes", "diffused"])
def test_the_last_stage_decides(start: Any) -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter = 3"):
        BC3E(start=start, max_iter=3).fit(LABELS, VOTES)


@pytest.mark.parametrize(
    "asked", [{"tol": 0, "max_iter": 3}, {"max_iter": 0}, {}], ids=["tol 0", "max_iter 0", "enough"]
)
def test_a_fit_that_does_what_was_asked_does_not_warn(asked: dict[str, Any]) -> None:
    Mixture(3, random_state=0, **asked).fit(LABELS)  # in these tests a warning is an error


def test_filters_for_the_warning_of_scikit_learn_catch_it_where_that_is_loaded() -> None:
    theirs = pytest.importorskip("sklearn.exceptions").ConvergenceWarning
    for category in (theirs, ConvergenceWarning):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", category)
            Mixture(3, random_state=0, max_iter=3).fit(LABELS)
        assert found == []


def test_scikit_learn_is_not_imported_for_it() -> None:
    code = (
        "import sys, warnings, ce\n"
        "with warnings.catch_warnings(record=True) as found:\n"
        "    ce.models.Mixture(3, random_state=0, max_iter=1).fit([[0, 1], [1, 0], [2, 2], [0, 2], [1, 1]])\n"
        "print([w.category is ce.errors.ConvergenceWarning for w in found], 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == (
        "[True] False\n"
    )


@pytest.mark.parametrize("format_", ["text", "json"])
@pytest.mark.parametrize("command", ["fit", "simulate"])
def test_a_command_says_it_on_standard_error(command: str, format_: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    rows = (",".join(map(str, [i, *row])) for i, row in enumerate(LABELS.tolist()))
    path.write_text("\n".join(["id,a,b,c,d,e", *rows, ""]))
    arguments = [command, str(path), "--clusters", "3", "--model", "mixture", "--format", format_]
    early = CliRunner().invoke(cli, [*arguments, "--max-iterations", "3"])
    assert early.exit_code == 0
    assert early.stderr == "warning: stopped after 3 iterations before it had converged: raise --max-iterations\n"
    if format_ == "json":
        assert json.loads(early.stdout)["converged"] is False
    assert CliRunner().invoke(cli, arguments).stderr == ""


def test_a_simulation_returns_it() -> None:
    job = ce.Job(model="mixture", clusters=3, max_iterations=3)
    assert not ce.simulate(job, {"here": ce.LabelTable.from_arrays(LABELS)}).converged
