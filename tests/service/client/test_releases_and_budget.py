"""What sealed jobs cost a site, over the whole protocol and at its commands: counted, printed, refused, allowed."""

from __future__ import annotations

import contextlib
import hashlib
import json
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
from ce.protocol.sealed.site_tables import SiteTables
from ce.testing import FrameByFrame, make_sites, open_site, write_labels
from ce_client.attempt.refusal import CANNOT_GO_ON
from ce_client.cli.budget import left_words
from ce_client.config import ClientSettings
from ce_client.state.job_index import JobIndex
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import entries, verify
from ce_client.state.previews import Previews
from ce_client.state.releases.database import FILE_NAME
from ce_client.state.releases.job_records import JobRecords
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


def test_a_sealed_job_is_done_charged_once_and_in_the_ledger(run: Run, tmp_path: Path) -> None:
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
    # What the preview names is what is sent, under the same names.
    contributions = [line for line in entries(settings_of(played).state / LEDGER) if line["kind"] == "contribution"]
    previewed = {array.name for array in preview.arrays}
    assert len(previewed) == 3
    assert previewed <= {name for line in contributions for name in line["arrays"]}
    config = settings_of(played).state.parent
    assert "pairs, sealed\n" in run("ce-client", "show", "first", "--config", config).out.replace(" \n", "\n")


@pytest.mark.parametrize("labels", [11, 13, 60])
def test_no_count_of_labels_leaves_a_site_before_noise_is_in_it(tmp_path: Path, labels: int) -> None:
    """A column that all sites hold, of which north has so many labels, and one of a category that nobody else has."""
    played = played_in(tmp_path, policy="min_objects = 12\nmin_foreign_columns = 0\n")
    for site in SITES:
        own = table(site)
        common = np.where(np.arange(own.n_objects) < (labels if site == "north" else SHARED), own.columns[0].codes, -1)
        if site == "north":
            common[0] = 2
        column = replace(own.columns[0], name="common", categories=(0, 1, 2), codes=common.astype(np.int32))
        write_labels(settings_of(played, site).labels.file, replace(own, columns=(*own.columns, column)))
    record = submitted(played, job("first"))
    assert (record.state, record.reason) == ("done", "")
    frames = [pb.SiteFrame.FromString(frame) for frame in played.up_recording]
    enrolments = [frame.enrolment for frame in frames if frame.WhichOneof("frame") == "enrolment"]
    excluded = [one for frame in frames for one in (*frame.enrolment.excluded, *frame.ready.excluded)]
    assert {column.labels for one in enrolments for column in one.columns} <= {0, 100}
    assert any(column.labels == 0 for one in enrolments for column in one.columns) == (labels < 12)
    assert not any(one.labels for one in excluded)
    # The site's own people are told.
    report = json.loads((settings_of(played).results / "first" / "report.json").read_text())
    told = {one["rule"]: (one["columns"], one["labels"]) for one in report["excluded"]}
    assert told == ({"min_sites": (["common"], 0)} if labels < 12 else {"rare categories": ([], 1)})


def test_a_job_whose_tournament_does_not_fit_in_memory_is_refused_before_anything_leaves(tmp_path: Path) -> None:
    """Its masked rows and tables would fit: 17 kB; the comparisons of 60 objects and 256 dummy rows take 45 kB."""
    played = played_in(tmp_path)
    config = settings_of(played).state.parent / "client.toml"
    config.write_text("largest_state = 40_000\n" + config.read_text())
    played.sites["north"].ledger.close()
    session = played.sites["north"].session
    played.sites["north"] = open_site(ClientSettings.read(config))
    played.sites["north"].session = session
    assert outcome(played, job("first")) == ("failed", "largest_state")
    assert steps_sent(played) == set()


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
    shown = run("ce-client", "budget", "--config", config).out
    assert ", nothing left: 85 objects" in shown
    assert "60 objects, together with other sites that hold them; 60 of them more than once" in " ".join(shown.split())
    assert (told["unit"], told["max_epsilon"]) == ("site_row", 2.0)
    assert told["spent"][0]["epsilon"] > 2.0
    assert told["spent"][0]["left"] == 0.0


@pytest.mark.parametrize(
    ("left", "words"), [(None, ""), (0.0, ", nothing left"), (7.9e-06, ", nothing left"), (0.496, ", 0.50 left")]
)
def test_what_is_left_is_said_with_two_decimals(left: float | None, words: str) -> None:
    assert left_words(left) == words


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


def test_after_masked_words_have_left_every_failure_is_told_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = played_in(tmp_path)

    def fails(*_: Any) -> None:
        raise ce.errors.Refused("max_epsilon", "something that follows from labels")

    monkeypatch.setattr(JobRecords, "commit", fails)
    record = submitted(played, job("first"))
    assert (record.state, record.rule) == ("failed", "")
    assert "this site cannot go on; its log says why" in record.reason
    monkeypatch.undo()
    # At the first step with masked words the budget is reserved, once more: that is refused by name.
    monkeypatch.setattr(JobRecords, "reserve", fails)
    assert outcome(played, job("second")) == ("failed", "max_epsilon")
    # Neither job has opened anything.
    assert Releases(settings_of(played).state).budget(DELTA).jobs == ()


class Killed(BaseException):
    """The process of a daemon ends."""


def test_how_an_earlier_attempt_failed_is_not_told_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """North finds the dealer's words wrong, and is killed before it can say that it cannot go on."""
    played, told, check = played_in(tmp_path), JobRecords.fail, SiteTables.check_dealer

    def wrong(self: SiteTables, task: Any) -> None:
        if self._context.site == "north":
            raise ce.errors.BrokenTotals("dealt words", "products")
        check(self, task)

    def killed(self: JobRecords, *arguments: Any) -> None:
        told(self, *arguments)
        raise Killed

    monkeypatch.setattr(SiteTables, "check_dealer", wrong)
    monkeypatch.setattr(JobRecords, "fail", killed)
    with pytest.raises(Killed):
        submitted(played, job("first"))
    played.lose_stream("north")
    played.lose_memory("north")
    played.connect("north")
    played.run()
    record = played.machine.records["first"]
    assert (record.state, record.reason) == ("failed", f"north: {CANNOT_GO_ON}")
    entry = JobIndex(settings_of(played).state).find("first")
    assert entry is not None
    assert "dealer's words were wrong in an earlier attempt" in entry.reason


# A site that is killed.


def killed_after(directory: Path, frames: int) -> tuple[FrameByFrame, bool]:
    """A job in which north's daemon is killed after so many frames, and started again; whether it went on so far."""
    played = played_in(directory)
    played.submit(job("first").definition(), "first")
    going = all(played.step() for _ in range(frames))
    played.lose_stream("north")
    played.lose_memory("north")
    played.connect("north")
    played.run()
    return played, going


def check_one_release(played: FrameByFrame) -> None:
    """The job is done, each site was charged once and has opened one share, and labels of all of them agree."""
    record = played.machine.records["first"]
    assert (record.state, record.reason) == ("done", "")
    shares: dict[str, set[str]] = {}
    labels = set()
    for site in SITES:
        settings = settings_of(played, site)
        found = Releases(settings.state).budget(DELTA)
        assert list(found.spent.values()) == [SHARED + ALONE]
        assert (len(found.jobs), found.labelled) == (1, SHARED)
        lines = list(entries(settings.state / LEDGER))
        for kind in ("charge", "release", "model", "labelling"):
            # A process that was killed after a line may write it once more: it says the same.
            told = {json.dumps({k: v for k, v in line.items() if k not in ("n", "time_s", "hash")}, sort_keys=True)
                    for line in lines if line["kind"] == kind}  # fmt: skip
            assert len(told) == 1, (site, kind)
        shares[site] = {
            array["blake3"] for line in lines if line["kind"] == "contribution"
            for name, array in line["arrays"].items() if name == f"all/share/{site}"
        }  # fmt: skip
        written = (settings.results / "first" / "consensus.csv").read_text().splitlines()
        labels.add(tuple(line.split(",")[1] for line in written if line.startswith("shared")))
    assert {site: len(sent) for site, sent in shares.items()} == dict.fromkeys(SITES, 1)
    assert len(labels) == 1


@pytest.mark.parametrize("frames", [75, 150])
def test_a_daemon_that_is_killed_during_a_sealed_job_opens_the_same_bytes_and_is_charged_once(
    tmp_path: Path, frames: int
) -> None:
    played, going = killed_after(tmp_path, frames)
    assert going
    check_one_release(played)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_daemon_may_be_killed_after_any_frame_of_a_sealed_job(tmp_path: Path) -> None:
    frames, going = 30, True
    while going:
        (tmp_path / str(frames)).mkdir()
        played, going = killed_after(tmp_path / str(frames), frames)
        check_one_release(played)
        frames += 1
    assert frames > 150


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
        "labelled_more_than_once": 0, "jobs": [],
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


def test_a_database_that_lacks_what_the_ledger_has_charged_is_found(run: Run, tmp_path: Path) -> None:
    played = played_in(tmp_path)
    assert outcome(played, job("first")) == ("done", "")
    state = settings_of(played).state

    def budget() -> dict[str, Any]:
        checks = run("ce-client", "check", "--config", state.parent, "--format", "json").json["checks"]
        return next(check for check in checks if check["check"] == "budget")

    assert budget()["sentence"].startswith("epsilon 1.")
    assert budget()["sentence"].endswith("of 2 spent at most; ce-client budget says more")
    files = [settings_of(played, site).state / FILE_NAME for site in SITES]
    saved = {path: path.read_bytes() for path in files}
    for path in files:
        path.unlink()
    assert "lacks 1 of the 1 releases that the ledger has charged" in budget()["sentence"]
    assert not budget()["ok"]
    # The daemon finds it too, the one that runs and the one that is started: objects are not charged twice.
    assert outcome(played, job("second", seed=1)) == ("failed", "counted releases")
    for site in SITES:
        played.lose_memory(site)
    assert outcome(played, job("third", seed=1)) == ("failed", "counted releases")
    assert steps_sent(played) == set()
    assert Releases(state).budget(DELTA).jobs == ()
    for path, content in saved.items():
        path.write_bytes(content)
    assert outcome(played, job("fourth", seed=1)) == ("failed", "max_epsilon")


def test_attempts_that_open_nothing_are_counted_at_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that begins a job again and again, each time after masked words have left."""
    played = played_in(tmp_path)
    for site in SITES:
        config = settings_of(played, site).state.parent / "client.toml"
        config.write_text(config.read_text() + "\n[limits]\nattempts_per_job = 3\n")
    monkeypatch.setattr(JobRecords, "commit", lambda *_: (_ for _ in ()).throw(Killed()))
    played.submit(job("first").definition(), "first")
    for _ in range(4):
        with contextlib.suppress(Killed):
            played.run()
        if played.machine.records["first"].state == "failed":
            break
        for site in SITES:
            played.lose_stream(site)
            played.sites[site].ledger.close()
            played.sites[site] = open_site(ClientSettings.read(settings_of(played, site).state.parent / "client.toml"))
            played.connect(site)
    record = played.machine.records["first"]
    assert (record.state, record.rule) == ("failed", "limits.attempts_per_job")
    assert "left this site in 3 attempts" in record.reason


def test_a_damaged_file_is_an_error_of_every_command_that_needs_it(run: Run, config: Path) -> None:
    state = config / "state"
    (state / FILE_NAME).write_bytes(b"SQLite format 3\0 and then something else")
    told = run("ce-client", "budget", "--config", config)
    assert told.code == 4
    assert "restore it from a backup" in told.err
