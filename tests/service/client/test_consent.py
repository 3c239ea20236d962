"""Consent with real processes: a daemon that waits, a person who looks and approves, a job that goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.processes import Deployment

import ce
from ce_client.cli.main import cli

SITES = ("east", "north", "south")


@pytest.mark.promise("A job waits for consent where the policy asks for it, and consent holds for that job only.")
def test_a_waiting_job_goes_on_when_somebody_approves(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, SITES)
    for at, site in enumerate(SITES):
        cells = np.random.default_rng(at).integers(0, 3, (40, 4))
        table = ce.LabelTable.from_arrays(
            cells, ids=[f"o{i}" for i in range(40)], columns=[f"{site}{j}" for j in range(4)]
        )
        deployment.write_labels(site, table)
    north = tmp_path / "north"
    (north / "policy.toml").write_text('consent = "ask"\nrandomise = 0.1\nshared_objects = "totals"\n')
    with (north / "client.toml").open("a") as file:
        file.write("[labels.categories]\n" + "".join(f"north{j} = [0, 1, 2]\n" for j in range(4)))
    with deployment:
        deployment.submit(ce.Job(name="job", clusters=3, restarts=1, max_iterations=5, sites=SITES))
        deployment.processes["north"].wait_for("job waits for approval", job="job")
        shown = json.loads(_said("preview", "job", "--config", str(north), "--format", "json"))
        assert shown["waits_for_consent"]
        assert {array["name"] for array in shown["arrays"]} >= {"block/0/sums", "global/bound"}
        each = math.log(1 + 3 * 0.9 / 0.1)
        assert shown["epsilon"] == pytest.approx({f"north{j}": each for j in range(4)})
        assert shown["epsilon_row"] == pytest.approx(4 * each)
        _said("approve", "job", "--config", str(north))
        assert deployment.wait("job").state == "done"
        deployment.processes["north"].wait_for("job over", state="done")
        verified = json.loads(_said("ledger", "verify", "--config", str(north), "--format", "json"))
        assert verified["signed_ends"] == 1
        assert verified["contributions"] > 5


def _said(*arguments: str) -> str:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
