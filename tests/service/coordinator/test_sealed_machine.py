"""Sealed jobs in the coordinator's brain, with real sites, frame by frame, and a clock that the test holds."""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ce
from ce.testing import FrameByFrame, make_sites, write_labels
from ce.testing.sites import PERMISSIVE
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.instructions import SaveJob
from ce_coordinator.core.limits import JobSettings, Limits
from ce_coordinator.service.job_status import job_status
from ce_coordinator.store import relay_files
from ce_coordinator.store.relay_files import RelayFiles
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "west")
#: Who holds the objects whose names begin so: 30 of each.
HOLDERS = {"a": SITES, "b": ("east", "north"), "c": ("north", "west"), "d": ("east",), "e": ("west",)}


def job(name: str = "job", **keys: Any) -> ce.Job:
    asked: dict[str, Any] = {"model": "pairs", "clusters": 2, "sites": SITES, "epsilon": 50.0}
    return ce.Job(name=name, **asked | keys)


@pytest.fixture(name="sit")
def _sit(tmp_path: Path) -> Callable[..., FrameByFrame]:
    """A table with three sites; nobody has connected."""
    rng = np.random.default_rng(0)
    truth = {f"{kind}{i}": int(rng.integers(0, 2)) for kind in HOLDERS for i in range(30)}
    paths = {}
    for site in SITES:
        paths[site] = tmp_path / f"{site}.csv"
        ids = [name for name in truth if site in HOLDERS[name[0]]]
        cells = np.array([[truth[name], 1 - truth[name], truth[name]] for name in ids])
        write_labels(paths[site], ce.LabelTable.from_arrays(cells, ids=ids, columns=[f"{site}{j}" for j in range(3)]))
    settings = make_sites(tmp_path, paths, policy=f"{PERMISSIVE}leave_behind = true\n")
    return lambda limits=None: FrameByFrame(settings, limits)


def steps(quick: pb.Step, slow: Sequence[pb.Step]) -> pytest.MarkDecorator:
    """A test in one step, and, where there is time, in others."""
    named = {step: pb.Step.Name(step).removeprefix("STEP_").lower() for step in (quick, *slow)}
    marked = [pytest.param(step, id=named[step], marks=pytest.mark.slow) for step in slow]
    return pytest.mark.parametrize("step", [pytest.param(quick, id=named[quick]), *marked])


def until(table: FrameByFrame, step: pb.Step, site: str = "west") -> None:
    """Deliver frames until a task of this step is on its way to a site."""
    while True:
        for frame in table.down[site]:
            if pb.CoordinatorFrame.FromString(frame).task.step == step:
                return
        assert table.step(), "no such task"


def without_west(table: FrameByFrame, step: pb.Step, **keys: Any) -> ce.Job:
    """A job whose west is gone when this task comes; the others have answered it."""
    asked = job(deadlines={"round_s": 60.0, "job_s": 1000.0}, **keys)
    table.connect()
    table.submit(asked.definition())
    until(table, step)
    table.lose_stream("west")
    table.run()
    assert table.machine.runs["job"].awaited == {"west"}
    return asked


def wait(table: FrameByFrame, seconds: float) -> None:
    table.now += seconds
    table.do(table.machine.jobs.tick(table.now))


def labels(table: FrameByFrame, site: str) -> dict[str, str]:
    path = table.sites[site].settings.results / "job" / "consensus.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["label"] for row in csv.DictReader(file)}


def ended(table: FrameByFrame) -> tuple[str, str]:
    record = table.machine.records["job"]
    return record.state, record.reason


@pytest.mark.parametrize("clusters", [pytest.param(2, marks=pytest.mark.slow), "auto"])
def test_a_sealed_job_goes_through_its_states_and_phases(sit: Callable[..., FrameByFrame], clusters: Any) -> None:
    table = sit()
    table.connect()
    saved: list[str] = []
    do = table.do

    def watch(steps: list[object]) -> None:
        saved.extend(step.record.state for step in steps if isinstance(step, SaveJob))
        do(steps)  # type: ignore[arg-type]

    table.do = watch  # type: ignore[method-assign, assignment]
    table.submit(job(clusters=clusters).definition())
    phases = [""]
    while table.step():
        status = job_status(table.machine, "job", table.now)
        if status.phase != phases[-1]:
            phases.append(status.phase)
    assert saved == ["enrolling", "aligning", "running", "done"]
    assert phases == ["", "seeding", "products", "opening", "scoring", ""]
    report = json.loads(table.machine.jobs.result("job"))
    assert (report["clusters"], report["epsilon"], report["unlabelled"], report["sizes"]) == (2, 50.0, 0, None)
    assert report["noise_sd"] > 0
    assert sum(report["weights"]) == pytest.approx(1)
    found = {site: labels(table, site) for site in SITES}
    assert len({found[site]["a0"] for site in SITES}) == 1
    assert all(label for by_object in found.values() for label in by_object.values())


@pytest.mark.slow
def test_nobody_is_asked_for_a_checkpoint_and_letters_have_no_objects(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.connect()
    table.submit(job().definition())
    until(table, pb.STEP_COMPARE)
    table.do(table.machine.drain())
    assert not table.machine.checkpoints_pending
    table.run()
    assert ended(table) == ("done", "")
    frames = [pb.SiteFrame.FromString(frame) for frame in table.up_recording]
    letters = [frame.letters for frame in frames if frame.WhichOneof("frame") == "letters"]
    assert len(letters) == 6
    assert all(len(chunk.data) < 100 for letter in letters for chunk in letter.chunks.chunks)


def test_a_sealed_job_fails_before_anybody_enrols_if_the_software_of_a_site_leaves_it_out(
    sit: Callable[..., FrameByFrame],
) -> None:
    table = sit()
    table.connect()
    table.machine.directory.lacks["east"] = frozenset({pb.FEATURE_SEALED})
    table.submit(job().definition())
    record = table.machine.records["job"]
    assert (record.state, record.rule) == ("failed", "feature of a site")
    assert "east takes no part in sealed jobs: submit the job without the site" in record.reason
    table.submit(ce.Job(name="other", clusters=2, sites=SITES).definition(), "another")
    assert table.machine.records["other"].state == "enrolling"


@steps(pb.STEP_COMPARE, slow=(pb.STEP_SCORE, pb.STEP_SETTLE, pb.STEP_PROVE, pb.STEP_REVEAL))
def test_once_the_tables_are_opened_a_job_goes_on_without_a_site(
    sit: Callable[..., FrameByFrame], step: pb.Step
) -> None:
    """What west shares with others ends without a label; all else has one, and west is told."""
    table = sit()
    without_west(table, step, on_dropout="continue")
    wait(table, 61)
    status = job_status(table.machine, "job", table.now)
    assert list(status.left_behind) == ["west"]
    assert "west did not answer in time" in " ".join(status.warnings)
    table.connect("west")  # comes back too late, with the state of this attempt
    table.run()
    record = table.machine.records["job"]
    assert (record.state, record.epoch, record.left_behind) == ("done", 1, ("west",))
    for site in ("east", "north"):
        assert all(bool(label) == ("west" not in HOLDERS[name[0]]) for name, label in labels(table, site).items())
    report = json.loads(table.machine.jobs.result("job"))
    assert (report["unlabelled"], report["left_behind"]) == (60, ["west"])
    assert "60 objects that several sites hold end without a label" in report["warnings"]
    assert not table.sites["west"].site_attempts
    assert not (table.sites["west"].settings.results / "job" / "consensus.csv").exists()


@pytest.mark.slow
def test_in_the_last_round_a_site_that_stays_away_costs_nothing(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    without_west(table, pb.STEP_FINISH, on_dropout="continue")
    wait(table, 61)
    table.run()
    assert ended(table) == ("done", "")
    assert all(labels(table, "north").values())
    assert json.loads(table.machine.jobs.result("job"))["unlabelled"] == 0


@steps(pb.STEP_SCORE, slow=(pb.STEP_MASK,))
def test_a_job_that_waits_waits_to_its_end(sit: Callable[..., FrameByFrame], step: pb.Step) -> None:
    table = sit()
    without_west(table, step)
    wait(table, 500)
    assert table.machine.records["job"].state == "running"
    table.connect("west")
    table.run()
    assert ended(table) == ("done", "")
    assert all(labels(table, "west").values())
    assert table.machine.records["job"].epoch == 1


@pytest.mark.slow
def test_a_job_that_waits_for_too_long_fails(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    without_west(table, pb.STEP_SCORE)
    wait(table, 1001)
    state, reason = ended(table)
    assert state == "failed"
    assert "took longer than its deadlines.job_s of 1000 s; it waited for west" in reason


@steps(pb.STEP_COMPARE, slow=(pb.STEP_VERIFY,))
def test_a_job_that_fails_without_a_site_fails(sit: Callable[..., FrameByFrame], step: pb.Step) -> None:
    table = sit()
    without_west(table, step, on_dropout="fail")
    wait(table, 61)
    state, reason = ended(table)
    assert state == "failed"
    assert "west did not answer within deadlines.round_s, 60 s" in reason


@steps(pb.STEP_COMMIT, slow=(pb.STEP_MEET,))
def test_before_a_share_is_opened_a_job_begins_again_without_a_site(
    sit: Callable[..., FrameByFrame], step: pb.Step
) -> None:
    table = sit()
    without_west(table, step, on_dropout="continue")
    wait(table, 61)
    table.run()
    record = table.machine.records["job"]
    assert (record.state, record.epoch, record.left_behind) == ("done", 2, ("west",))
    assert all(labels(table, "north").values())


def test_between_the_first_share_and_the_tables_a_job_needs_all_its_sites(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    without_west(table, pb.STEP_RELEASE, on_dropout="continue")
    wait(table, 61)
    state, reason = ended(table)
    assert state == "failed"
    assert "west stayed away after shares of the tables may have been opened" in reason
    assert "submit the job under another name" in reason


@pytest.mark.slow
def test_so_it_does_in_a_later_attempt(sit: Callable[..., FrameByFrame]) -> None:
    """Shares of the first attempt were opened; in the second west is gone before it begins."""
    table = sit()
    table.connect()
    table.submit(job(deadlines={"enrol_s": 60.0, "round_s": 60.0, "job_s": 1000.0}, on_dropout="continue").definition())
    until(table, pb.STEP_SCORE)
    table.lose_stream("west")
    table.lose_memory("east")
    table.connect("east")
    table.run()
    assert table.machine.runs["job"].epoch == 2
    wait(table, 61)
    state, reason = ended(table)
    assert state == "failed"
    assert "west stayed away after shares of the tables may have been opened" in reason


@steps(pb.STEP_SCORE, slow=(pb.STEP_MEET, pb.STEP_COMMIT, pb.STEP_RELEASE, pb.STEP_SETTLE, pb.STEP_REVEAL))
def test_a_site_that_has_lost_its_memory_costs_another_attempt(sit: Callable[..., FrameByFrame], step: pb.Step) -> None:
    table = sit()
    table.connect()
    table.submit(job().definition())
    until(table, step)
    table.lose_stream("west")
    table.lose_memory("west")
    table.connect("west")
    table.run()
    record = table.machine.records["job"]
    assert (record.state, record.reason, record.epoch) == ("done", "", 2)
    assert all(labels(table, "west").values())


def test_noise_of_too_few_sites_is_none(sit: Callable[..., FrameByFrame]) -> None:
    """Two of three may collude; of the two that are left, one."""
    table = sit()
    without_west(table, pb.STEP_MASK, on_dropout="continue", collusion=2)
    wait(table, 61)
    state, reason = ended(table)
    assert state == "failed"
    assert reason.startswith("collusion is at most 1 in a job of 2 sites, got 2")


def test_jobs_that_are_too_large_are_refused_before_the_first_round(sit: Callable[..., FrameByFrame]) -> None:
    table = sit(Limits(round_bytes=1000))
    table.connect()
    table.submit(job().definition())
    table.run()
    state, reason = ended(table)
    assert state == "failed"
    assert "limits.round_bytes" in reason
    assert "fewer categories or shared objects need less" in reason


@pytest.mark.promise("A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.")
def test_a_disk_without_room_for_what_is_passed_on_fails_the_job(
    sit: Callable[..., FrameByFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of an answer; when there is room again, the next job runs."""
    monkeypatch.setattr(relay_files, "SMALLEST_FILE", 1)
    table, full = sit(), [True]
    written = os.pwrite

    def write(*arguments: Any) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(*arguments)

    monkeypatch.setattr(os, "pwrite", write)
    settings = JobSettings(Limits(), 1, CheckpointInterval(), RelayFiles(tmp_path))
    monkeypatch.setattr(table.machine.jobs, "_settings", settings)
    table.connect()
    table.submit(job().definition())
    table.run()
    state, reason = ended(table)
    assert state == "failed"
    assert "bytes on the coordinator's disk, beside its store, and they cannot be written (No space left" in reason
    full[0] = False
    table.submit(job(name="again").definition(), "another token")
    table.run()
    assert table.machine.records["again"].state == "done"


def test_every_strange_answer_of_a_site_costs_it_its_stream(sit: Callable[..., FrameByFrame]) -> None:
    """Whatever a site sends in place of its answer: it is disconnected, and the job goes on when it comes again."""
    table = sit()
    table.connect()
    table.submit(job().definition())
    until(table, pb.STEP_COMMIT)
    table.deliver_down("west")
    session, frame = table.up.pop()
    answer = pb.SiteFrame.FromString(frame)
    assert answer.WhichOneof("frame") == "answer"
    answer.answer.chunks.chunks[0].data += b"x"
    table.up.append((session, answer.SerializeToString()))
    table.run()
    assert [site for site, _ in table.closed] == ["west"]
    table.connect("west")
    table.run()
    assert ended(table) == ("done", "")
