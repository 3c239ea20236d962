"""The budget of definitions over the whole protocol: which jobs open totals of the same objects once more.

Every policy here says `shared_objects = "totals"`: without it no total of such an object is opened.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import (
    Run,
    run_fixture,  # noqa: F401 (a fixture)
)

import ce
from ce.job import SEALED_KEYS
from ce.testing import FrameByFrame, make_sites, write_labels
from ce_client.state.disclosures import DIRECTORY, Disclosures
from ce_client.state.ledger import FILE_NAME, entries, verify
from ce_client.state.previews import Previews
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "south")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
POLICY = 'shared_objects = "totals"\nmin_foreign_columns = 0\nmax_definitions = 1\nweakest_privacy = "plain"\n'
SHARED, ALONE = 40, 25


def table(site: str, seed: int = 0) -> ce.LabelTable:
    """Objects that all sites hold, and objects that only this one holds; columns of its own."""
    rng = np.random.default_rng([SITES.index(site), seed])
    ids = [f"shared {i}" for i in range(SHARED)] + [f"{site} {i}" for i in range(ALONE)]
    return ce.LabelTable.from_arrays(rng.integers(0, 3, (len(ids), 2)), ids=ids, columns=[f"{site}_1", f"{site}_2"])


@pytest.fixture(name="played")
def _played(tmp_path: Path) -> FrameByFrame:
    files = {site: tmp_path / f"{site}.csv" for site in SITES}
    for site, path in files.items():
        write_labels(path, table(site))
    played = FrameByFrame(make_sites(tmp_path, files, SECRETS, policy=POLICY))
    played.connect()
    return played


def job(name: str, **keys: Any) -> ce.Job:
    return ce.Job(**{"name": name, "clusters": 2, "restarts": 2, "max_iterations": 4, "sites": SITES} | keys)


def submitted(played: FrameByFrame, asked: ce.Job) -> Any:
    played.up_recording.clear()
    played.submit(asked.definition(), asked.name)
    played.run()
    return played.machine.records[asked.name]


def outcome(played: FrameByFrame, asked: ce.Job) -> tuple[str, str]:
    record = submitted(played, asked)
    return record.state, record.rule


def answers(played: FrameByFrame) -> list[pb.Answer]:
    frames = map(pb.SiteFrame.FromString, played.up_recording)
    return [frame.answer for frame in frames if frame.WhichOneof("frame") == "answer"]


def state_of(played: FrameByFrame, site: str = "north") -> Path:
    return played.sites[site].site_files.settings.state


def consensus(played: FrameByFrame, name: str) -> dict[str, bytes]:
    return {
        site: (played.sites[site].site_files.settings.results / name / "consensus.csv").read_bytes() for site in SITES
    }


DONE, REFUSED = ("done", ""), ("failed", "max_definitions")


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_a_second_definition_is_refused_under_any_name_before_anything_was_counted(played: FrameByFrame) -> None:
    assert outcome(played, job("first")) == DONE
    for name, keys in (("second", {"smoothing": 0.02}), ("third", {"restarts": 3}), ("fourth", {"seed": 1})):
        record = submitted(played, job(name, **keys))
        assert (record.state, record.rule) == REFUSED
        assert f"totals of {SHARED} objects" in record.reason
        assert f"ce-client allow-definition {name}" in record.reason
        assert "shared" not in record.reason
        assert not answers(played)
    for site in SITES:
        assert Disclosures(state_of(played, site)).usage() == {1: SHARED}


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_the_same_definition_runs_under_any_name_and_has_the_same_bits(played: FrameByFrame) -> None:
    assert outcome(played, job("first", privacy="plain")) == DONE
    words = sorted(answer.chunks.SerializeToString() for answer in answers(played))
    assert len(words) > 3 * len(SITES)
    for name in ("second", "third"):
        assert outcome(played, job(name, privacy="plain", deadlines={"round_s": 5.0})) == DONE
        assert consensus(played, name) == consensus(played, "first")
        assert sorted(answer.chunks.SerializeToString() for answer in answers(played)) == words
    assert Disclosures(state_of(played)).usage() == {1: SHARED}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("blind", "masked", REFUSED),
        ("masked", "plain", REFUSED),
        ("masked", "blind", DONE),
        ("plain", "masked", DONE),
        ("blind", "blind", DONE),
    ],
)
def test_a_mode_costs_where_it_shows_totals_to_a_new_viewer(
    played: FrameByFrame, first: str, second: str, expected: tuple[str, str]
) -> None:
    assert outcome(played, job("first", privacy=first)) == DONE
    assert outcome(played, job("second", privacy=second)) == expected
    if expected == DONE:
        assert consensus(played, "second") == consensus(played, "first")


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_another_label_file_with_the_same_objects_counts(played: FrameByFrame, tmp_path: Path) -> None:
    assert outcome(played, job("first")) == DONE
    write_labels(tmp_path / "north.csv", table("north", seed=1))
    assert outcome(played, job("second")) == REFUSED


def test_what_a_site_changes_in_how_it_reads_its_labels_counts(tmp_path: Path) -> None:
    settings = make_sites(tmp_path, {site: table(site) for site in SITES}, SECRETS, policy=POLICY)
    undeclared = FrameByFrame(settings)
    undeclared.connect()
    assert outcome(undeclared, job("first")) == DONE
    categories = {column.name: column.categories for column in table("north").columns}
    labels = replace(settings["north"].labels, categories=categories)
    declared = FrameByFrame(settings | {"north": replace(settings["north"], labels=labels)})
    declared.connect()
    assert outcome(declared, job("second")) == DONE, "what is declared changes no total"
    (tmp_path / "north" / "policy.toml").write_text(POLICY + "randomise = 0.25\n")
    assert outcome(declared, job("third")) == REFUSED
    (tmp_path / "north" / "policy.toml").write_text(POLICY)
    assert outcome(declared, job("fourth")) == ("failed", "one randomisation per column")


def test_objects_that_a_site_holds_alone_are_not_counted(tmp_path: Path) -> None:
    tables = {site: table(site).select(np.arange(SHARED, SHARED + ALONE)) for site in SITES}
    played = FrameByFrame(make_sites(tmp_path, tables, SECRETS, policy=POLICY))
    played.connect()
    for at in range(3):
        assert outcome(played, job(f"job {at}", smoothing=0.01 * at)) == DONE
    assert not (state_of(played) / DIRECTORY).exists()
    assert not [line for line in entries(state_of(played) / FILE_NAME) if line["kind"] == "disclosure"]


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_forget_refunds_nothing(played: FrameByFrame, tmp_path: Path, run: Run) -> None:
    assert outcome(played, job("first")) == DONE
    for site in SITES:
        assert run("ce-client", "forget", "first", "--results", "--config", tmp_path / site).code == 0
    assert outcome(played, job("second", smoothing=0.02)) == REFUSED


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_a_daemon_that_is_killed_before_anything_left_has_counted(played: FrameByFrame) -> None:
    """North dies between the count and the frame that would have begun the job there; the job is then cancelled."""
    played.submit(job("first").definition(), "first")
    while not list((state_of(played) / DIRECTORY).glob("*.ids")):
        assert played.step()
    assert not answers(played)
    played.lose_stream("north")
    played.lose_memory("north")
    played.connect("north")
    assert outcome(played, job("second", smoothing=0.02)) == REFUSED
    assert outcome(played, job("third")) == DONE


# What people are told.


def test_the_ledger_and_the_preview_have_the_whole_definition_and_the_budget(played: FrameByFrame) -> None:
    asked = job("first", smoothing=0.5, local_loops=2, precision="single", halving=True)
    assert outcome(played, asked) == DONE
    assert outcome(played, job("second")) == REFUSED
    state = state_of(played)
    lines = {line["kind"]: line for line in entries(state / FILE_NAME) if line.get("job") == "first"}
    assert lines["begin"]["definition"] | {"sites": SITES} == {
        **{key: value for key, value in vars(asked).items() if key not in SEALED_KEYS},
        "deadlines": vars(asked.deadlines),
    }
    disclosed = lines["disclosure"]
    assert (disclosed["mode"], disclosed["objects"]) == ("masked", SHARED)
    path = state / DIRECTORY / f"{disclosed['definition']}.ids"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == disclosed["sha256"]
    assert disclosed["n"] < min(
        line["n"] for line in entries(state / FILE_NAME) if line["kind"] == "contribution" and line["round"]
    )
    assert verify(state / FILE_NAME, played.sites["north"].site_files.certificate).ok
    first, second = (Previews(state).read(name) for name in ("first", "second"))
    assert first is not None
    assert second is not None
    keys = ("smoothing", "local_loops", "precision")
    assert [first.definition[key] for key in keys] == [0.5, 2, "single"]
    assert first.budget is not None
    assert second.budget is not None
    assert (first.budget.objects, first.budget.used, first.budget.after) == (SHARED, 0, 1)
    assert (second.budget.used, second.budget.after, second.budget.over) == (1, 2, SHARED)


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_the_same_job_in_another_precision_is_another_definition(played: FrameByFrame) -> None:
    """Its totals are rounded otherwise: further equations of the same labels."""
    assert outcome(played, job("first")) == DONE
    assert outcome(played, job("second", precision="single")) == REFUSED
    assert outcome(played, job("third")) == DONE


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_a_definition_is_allowed_by_a_person_under_any_name(played: FrameByFrame, tmp_path: Path, run: Run) -> None:
    assert outcome(played, job("first")) == DONE
    assert outcome(played, job("second", smoothing=0.02)) == REFUSED
    north = tmp_path / "north"
    shown = run("ce-client", "preview", "second", "--config", north).out
    assert "smoothing 0.02" in shown
    assert "1 before this job, 2 with it, 1 allowed" in shown
    assert "refused by max_definitions, unless ce-client allow-definition second" in shown
    unasked = run("ce-client", "allow-definition", "second", "--config", north)
    assert unasked.code == 2
    assert "no terminal to ask for confirmation" in unasked.sentence
    assert '"smoothing": 0.02' not in unasked.out
    assert "smoothing 0.02" in unasked.err
    assert f"With this one, {SHARED} objects have totals of 2" in unasked.err
    for site in SITES:
        given = run("ce-client", "allow-definition", "second", "--yes", "--config", tmp_path / site, "--format", "json")
        assert (given.code, given.json["allowed"], given.json["definition"]["smoothing"]) == (0, True, 0.02)
    again = run("ce-client", "allow-definition", "second", "--yes", "--config", north)
    assert "nothing to allow" in again.out
    assert outcome(played, job("another name", smoothing=0.02)) == DONE
    assert outcome(played, job("once more", smoothing=0.02)) == DONE
    assert outcome(played, job("third", smoothing=0.03)) == REFUSED
    lines = [line for line in entries(state_of(played) / FILE_NAME) if line["kind"] == "allow-definition"]
    assert [line["job"] for line in lines] == ["second"]
    told = run("ce-client", "ledger", "show", "another name", "--config", north).out
    assert f"totals of {SHARED} objects that several sites hold are opened, masked" in told
    assert "smoothing 0.02" in told


def test_a_job_that_waits_is_approved_only_after_its_definition_is_allowed(
    played: FrameByFrame, tmp_path: Path, run: Run
) -> None:
    assert outcome(played, job("first")) == DONE
    (tmp_path / "north" / "policy.toml").write_text(POLICY + 'consent = "ask"\n')
    for site in ("east", "south"):
        (tmp_path / site / "policy.toml").write_text(POLICY.replace("max_definitions = 1", "max_definitions = 2"))
    assert submitted(played, job("second", smoothing=0.02)).state == "aligning"
    north = tmp_path / "north"
    early = run("ce-client", "approve", "second", "--config", north)
    assert early.code == 3
    assert "ce-client allow-definition" in early.sentence
    assert run("ce-client", "allow-definition", "second", "--yes", "--config", north).code == 0
    approved = run("ce-client", "approve", "second", "--config", north)
    assert approved.code == 0
    assert "smoothing 0.02" in approved.out
    for frame in played.sites["north"].site_attempts["second"].receive("reconsider", None):
        session = played.sites["north"].session
        assert session is not None
        played.up.append((session, frame.SerializeToString()))
    played.run()
    assert played.machine.records["second"].state == "done"


def test_check_says_how_much_is_used_and_finds_a_file_that_was_taken_away(
    played: FrameByFrame, tmp_path: Path, run: Run
) -> None:
    def definitions() -> dict[str, Any]:
        checked = run("ce-client", "check", "--config", tmp_path / "north", "--format", "json").json["checks"]
        found: dict[str, Any] = next(check for check in checked if check["check"] == "definitions")
        return found

    assert definitions()["sentence"] == "no job has opened totals of objects that other sites hold too"
    assert outcome(played, job("first")) == DONE
    assert definitions()["sentence"] == f"1 of 1 definitions used for {SHARED} objects"
    (path,) = (state_of(played) / DIRECTORY).glob("*.ids")
    shutil.move(path, tmp_path)
    assert not definitions()["ok"]
    assert "1 of the 1 files that the ledger names are missing" in definitions()["sentence"]
    shutil.move(tmp_path / path.name, path)
    assert definitions()["ok"]
