"""Randomised labels at real daemons: declared categories, one randomisation per column, and what is recorded."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.commands import (
    Ended,
    Run,
    run_fixture,  # noqa: F401 (a fixture)
)
from support.processes import Deployment

import ce
from ce.errors import InputError, Refused
from ce.labels.randomised import Randomisation
from ce.testing import PERMISSIVE, make_sites
from ce_client.cli.main import cli
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger
from ce_client.state.randomisations import Randomisations, draws_of

SITES = ("east", "north", "south")
SECRET = b"s" * 32


def _job(name: str) -> ce.Job:
    return ce.Job(name=name, clusters=2, restarts=1, max_iterations=3, sites=SITES)


def _restart(deployment: Deployment, declared: str, policy: str) -> None:
    """North with another declaration and policy."""
    north = deployment.directory / "north"
    (north / "policy.toml").write_text(PERMISSIVE + policy)
    configuration = (north / "client.toml").read_text().partition("categories")[0]
    (north / "client.toml").write_text(configuration + (f"categories = {declared}\n" if declared else ""))
    deployment.processes["north"].stop(signal.SIGTERM)
    deployment.start("north").wait_for("connected")


def _said(*arguments: str) -> str:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.promise("Randomised labels are epsilon-private, by label and by row, whatever leaves the site.")
def test_daemons_randomise_over_declared_categories_and_draw_a_column_once(tmp_path: Path) -> None:
    north = ("--config", str(tmp_path / "north"))
    with Deployment(tmp_path, SITES) as deployment:
        for at, site in enumerate(SITES):
            cells = np.random.default_rng(at).integers(0, 2, (30, 2))
            ids = [f"{site}{i}" for i in range(30)]
            deployment.write_labels(site, ce.LabelTable.from_arrays(cells, ids=ids, columns=["a", "b"]))

        _restart(deployment, "", "randomise = 0.5\n")
        refused = deployment.run(_job("undeclared"))
        assert (refused.state, refused.rule) == ("failed", "declared categories")
        assert "'a'" not in refused.reason, "the operator is not told of columns"
        deployment.processes["north"].wait_for(
            "job refused", message="the categories of column 'a', 'b' are not declared"
        )

        _restart(deployment, "{ a = [0, 1], b = [0, 1, 2] }", "randomise = 0.5\n")
        assert deployment.run(_job("declared")).state == "done"
        preview = json.loads(_said("preview", "declared", *north, "--format", "json"))
        a, b = math.log(3), math.log(4)
        assert preview["epsilon"] == pytest.approx({"a": a, "b": b})
        assert preview["epsilon_row"] == pytest.approx(a + b)
        lines = json.loads(_said("ledger", "show", "declared", *north, "--format", "json"))
        assert "column b: 3 categories" in lines[1]["notes"], "all that are declared, though no label uses one"

        _restart(deployment, "{ a = [0, 1, 2], b = [0, 1, 2] }", "randomise = 0.5\n")
        refused = deployment.run(_job("changed"))
        assert (refused.state, refused.rule) == ("failed", "one randomisation per column")
        assert "'a'" not in refused.reason
        assert "declared" not in refused.reason, "nor of other jobs"
        deployment.processes["north"].wait_for(
            "job refused", message="column 'a' were randomised in another way in job"
        )

        allowed = json.loads(_said("allow-redraw", "a", "b", "--yes", *north, "--format", "json"))
        assert allowed["columns"] == ["a"]
        assert deployment.run(_job("allowed")).state == "done"
        lines = json.loads(_said("ledger", "show", "allowed", *north, "--format", "json"))
        (begun,) = [line for line in lines if line["kind"] == "begin"]
        (redrawn,) = [line for line in lines if line["kind"] == "allow-redraw"]
        assert begun["epsilon"] == pytest.approx({"a": a + math.log(4), "b": b}) == allowed["epsilon"]
        assert begun["epsilon_row"] == pytest.approx(a + math.log(4) + b) == allowed["epsilon_row"]
        assert (redrawn["column"], redrawn["epsilon"]) == ("a", begun["epsilon"]["a"])
        shown = _said("ledger", "show", "allowed", *north)
        assert "labels of column a are drawn again, as allowed" in " ".join(shown.split())
        assert json.loads(_said("ledger", "verify", *north, "--format", "json"))["ok"]


def test_allow_redraw_warns_asks_and_adds_the_epsilons_that_check_then_shows(run: Run, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("id,a,b\n" + "".join(f"object{i},{i % 2},{i % 2}\n" for i in range(30)))
    make_sites(tmp_path, {"north": labels, "south": labels}, {"north": SECRET})
    north = tmp_path / "north"
    (north / "policy.toml").write_text(PERMISSIVE + "randomise = 0.5\nrandomise_columns = 1\n")
    configuration = (north / "client.toml").read_text()

    def declared(categories: str) -> dict[str, object]:
        (north / "client.toml").write_text(f"{configuration}[labels.categories]\na = {categories}\nb = [0, 1]\n")
        checked = run("ce-client", "check", "--config", north, "--format", "json").json
        return next(check for check in checked["checks"] if check["check"] == "randomise")

    def allow(*words: str) -> Ended:
        return run("ce-client", "allow-redraw", *words, "--config", north)

    first = Randomisation(0.5, {"a": (0, 1), "b": (0, 1)}, 1)
    assert declared("[0, 1]")["sentence"] == (
        "each label is replaced with probability 0.5; of each object 1 of 2 columns take part: epsilon 1.10 (a), 1.10 "
        "(b) per label; 1.10 per row, all labels of an object"
    )
    assert "nothing to allow" in allow("a").out
    with Ledger(north / "state" / LEDGER, "north") as ledger:
        Randomisations(north / "state").remember(draws_of(first, "ab", SECRET), "demo", ledger)
    changed = declared("[0, 1, 2]")
    assert (changed["ok"], changed["exit_code"]) == (False, Refused.exit_code)
    assert "column 'a' were randomised in another way in job 'demo'" in str(changed["sentence"])
    assert allow("a").code == 2, "nobody to ask"
    assert allow("c", "--yes").code == InputError.exit_code
    assert not declared("[0, 1, 2]")["ok"]
    done = allow("a", "--yes")
    assert done.code == 0
    assert "the epsilon of a label goes from 1.10 to 2.48" in done.err
    assert "the epsilon of an object's row goes from 1.10 to 2.48" in done.err
    assert str(declared("[0, 1, 2]")["sentence"]).endswith(
        "epsilon 2.48 (a), 1.10 (b) per label; 2.48 per row, all labels of an object"
    )
    (north / "policy.toml").write_text(PERMISSIVE)
    assert "randomised in another way" in str(declared("[0, 1, 2]")["sentence"]), "nor may labels be sent as they are"
