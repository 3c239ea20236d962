"""What sealed jobs cost a site, over the whole protocol and at its commands: counted, printed, refused, allowed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import (
    Run,
    run_fixture,  # noqa: F401 (a fixture)
)

import ce
from ce.testing import FrameByFrame, make_sites, write_labels
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import entries, verify
from ce_client.state.previews import Previews
from ce_client.state.releases.database import FILE_NAME
from ce_client.state.releases.store import Releases
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "south")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
SHARED, ALONE = 60, 25
DELTA = 1e-6


def table(site: str) -> ce.LabelTable:
    """Objects that all sites hold, and objects that only this one holds; four columns of its own."""
    rng = np.random.default_rng(SITES.index(site))
    ids = [f"shared {i}" for i in range(SHARED)] + [f"{site} {i}" for i in range(ALONE)]
    truth = np.arange(len(ids)) % 2
    cells = np.where(rng.random((len(ids), 4)) < 0.1, 1 - truth[:, None], truth[:, None])
    return ce.LabelTable.from_arrays(cells, ids=ids, columns=[f"{site}_{i}" for i in range(4)])


def played_in(directory: Path, policy: str = "") -> FrameByFrame:
    files = {site: directory / f"{site}.csv" for site in SITES}
    for site, path in files.items():
        write_labels(path, table(site))
    played = FrameByFrame(make_sites(directory, files, SECRETS, policy=policy))
    played.connect()
    return played


def job(name: str, **keys: Any) -> ce.Job:
    return ce.Job(**{"name": name, "model": "pairs", "clusters": 2, "sites": SITES, "epsilon": 1.5} | keys)


def submitted(played: FrameByFrame, asked: ce.Job) -> Any:
    played.up_recording.clear()
    played.submit(asked.definition(), asked.name)
    played.run()
    return played.machine.records[asked.name]


def outcome(played: FrameByFrame, asked: ce.Job) -> tuple[str, str]:
    record = submitted(played, asked)
    return record.state, record.rule


def settings_of(played: FrameByFrame, site: str = "north") -> Any:
    return played.sites[site].site_files.settings


def steps_sent(played: FrameByFrame) -> set[int]:
    frames = map(pb.SiteFrame.FromString, played.up_recording)
    return {frame.answer.step for frame in frames if frame.WhichOneof("frame") == "answer"}


def test_a_sealed_job_is_done_charged_once_and_in_the_ledger(tmp_path: Path) -> None:
    played = played_in(tmp_path)
    record = submitted(played, job("first"))
    assert (record.state, record.reason) == ("done", "")
    for site in SITES:
        settings = settings_of(played, site)
        found = Releases(settings.state).budget(DELTA)
        assert [round(epsilon or 0, 3) for epsilon in found.spent] == pytest.approx([1.5], abs=0.05)
        assert list(found.spent.values()) == [SHARED + ALONE]
        assert found.labelled == SHARED
        lines = [line["kind"] for line in entries(settings.state / LEDGER)]
        for kind in ("charge", "release", "model", "labelling"):
            assert lines.count(kind) == 1
        assert verify(settings.state / LEDGER, played.sites[site].site_files.certificate).ok
        report = json.loads((settings.results / "first" / "report.json").read_text())
        assert (report["clusters"], report["epsilon"], report["delta"]) == (2, 1.5, DELTA)
        assert (report["objects"], report["objects_in_fit"], report["blocks_without_labels"]) == (85, 85, 0)
        assert report["noise_sd"] > 0
        labels = (settings.results / "first" / "consensus.csv").read_text().splitlines()
        assert len(labels) == 1 + SHARED + ALONE
        shared = [line for line in labels if line.startswith("shared")]
        # Of shared objects the label alone is known.
        assert all(line.split(",")[2:] == ["", "", ""] for line in shared)
    preview = Previews(settings_of(played).state).read("first")
    assert preview is not None
    assert preview.release is not None
    assert (preview.release.cost.objects, preview.release.cost.shared) == (SHARED + ALONE, SHARED)
    assert (preview.release.tables, preview.release.cells) == (66, 66 * 4)


def test_a_second_job_is_refused_by_name_before_anything_leaves_until_it_is_allowed(run: Run, tmp_path: Path) -> None:
    played = played_in(tmp_path)
    assert outcome(played, job("first")) == ("done", "")
    north = settings_of(played)
    before = Releases(north.state).budget(DELTA)
    assert outcome(played, job("second", seed=1)) == ("failed", "max_epsilon")
    assert steps_sent(played) == set()
    assert outcome(played, job("third", epsilon=0.1)) == ("failed", "one labelling")
    assert steps_sent(played) == set()
    after = Releases(north.state).budget(DELTA)
    assert (after.spent, after.reserved, after.labelled) == (before.spent, before.reserved, before.labelled)
    config = north.state.parent
    shown = run("ce-client", "preview", "second", "--config", config)
    assert 'refused by "max_epsilon", unless ce-client allow-release second' in shown.out
    asked = run("ce-client", "allow-release", "second", "--config", config)
    assert asked.code == 2
    assert "give --yes" in asked.err
    for site in SITES:
        allowed = run(
            "ce-client", "allow-release", "second", "--yes", "--config", settings_of(played, site).state.parent,
            "--format", "json",
        )  # fmt: skip
        assert (allowed.code, allowed.json["allowed"]) == (0, True)
        assert "warning: epsilon of this site's labels of one object goes from 1.5" in allowed.err
        assert "labelled before with the same labels" in allowed.err
    assert run("ce-client", "allow-release", "second", "--yes", "--config", config).out.endswith("nothing to allow\n")
    assert outcome(played, job("again", seed=1)) == ("done", "")
    assert [line["kind"] for line in entries(north.state / LEDGER)].count("allow-release") == 1
    # One release was allowed, and is used.
    assert outcome(played, job("once more", seed=1)) == ("failed", "max_epsilon")
    told = run("ce-client", "budget", "--config", config, "--format", "json").json
    assert [entry["job"] for entry in told["jobs"]] == ["first", "again"]
    assert (told["unit"], told["max_epsilon"]) == ("site_row", 2.0)
    assert told["spent"][0]["epsilon"] > 2.0
    assert told["spent"][0]["left"] == 0.0


def test_a_job_that_waits_for_consent_says_what_it_releases(run: Run, tmp_path: Path) -> None:
    played = played_in(tmp_path, 'consent = "ask"\n')
    played.submit(job("first").definition(), "first")
    played.run()
    north = settings_of(played)
    config = north.state.parent
    shown = run("ce-client", "preview", "first", "--config", config).out
    assert "66 tables of pairs of columns, 264 cells, are opened to all sites and the coordinator, once" in shown
    assert "with noise of standard deviation" in shown
    assert "85 objects: 0 before this job, 1." in shown
    assert "of 60 objects that other sites hold too: one label each" in shown
    assert steps_sent(played) == set()
    assert not (north.state / FILE_NAME).exists() or Releases(north.state).budget(DELTA).jobs == ()


# Commands.


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> Path:
    return settings_of(played_in(tmp_path)).state.parent


def test_a_site_without_sealed_jobs_has_spent_nothing(run: Run, config: Path) -> None:
    told = run("ce-client", "budget", "--config", config)
    assert (told.code, told.out) == (0, "no sealed job has opened anything of this site\n")
    told = run("ce-client", "budget", "--config", config, "--format", "json")
    assert told.json == {
        "unit": "site_row", "max_epsilon": 2.0, "delta": DELTA, "spent": [], "with_reservations": [], "labelled": 0,
        "jobs": [],
    }  # fmt: skip
    assert not list(config.rglob(FILE_NAME))


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("budget", "--format", "xml"), 2, "Invalid value for '--format'"),
        (("budget", "first"), 2, "unexpected extra argument"),
        (("allow-release",), 2, "Missing argument 'JOB'"),
        (("allow-release", "unheard of"), 3, "unheard of"),
        (("allow-release", "../../etc/passwd", "--yes"), 3, "no job"),
        (("allow-release", "", "--yes"), 3, "no job"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(
    run: Run, config: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    told = run("ce-client", *arguments, "--config", config)
    assert told.code == code
    assert sentence in told.err
    assert "Traceback" not in told.err


def test_a_damaged_file_is_an_error_of_every_command_that_needs_it(run: Run, config: Path) -> None:
    state = config / "state"
    (state / FILE_NAME).write_bytes(b"SQLite format 3\0 and then something else")
    told = run("ce-client", "budget", "--config", config)
    assert told.code == 4
    assert "restore it from a backup" in told.err
