"""A disk without room: a job that cannot be written down fails with a sentence, one whose state cannot be kept goes on,
nothing leaves a site that is not in its ledger, and all is well again when there is room."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import Deployment
from support.run_coordinator import Disk, RunnerFrameByFrame

import ce
from ce.errors import JobFailed
from ce.service.checkpoints import CheckpointFiles
from ce.testing import FrameByFrame, make_sites, write_labels
from ce_client.config import ClientSettings
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import entries, verify
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.machine import Machine
from ce_coordinator.service import runner as runner
from ce_proto.v1 import operator_pb2 as operator_pb
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north")
CANNOT = "the coordinator could not write down where this job stands: its disk may be full"


def job(name: str = "first", **keys: Any) -> ce.Job:
    asked: dict[str, Any] = {"clusters": 2, "sites": SITES, "restarts": 1, "max_iterations": 3, "privacy": "plain"}
    return ce.Job(name=name, **(asked | keys))


@pytest.fixture(name="sites")
def _sites(tmp_path: Path) -> dict[str, ClientSettings]:
    rng = np.random.default_rng(0)
    paths = {site: tmp_path / f"{site}.csv" for site in SITES}
    for site, path in paths.items():
        columns = rng.integers(0, 2, (30, 3))
        names = [f"{site}{j}" for j in range(3)]
        write_labels(path, ce.LabelTable.from_arrays(columns, ids=[f"o{i}" for i in range(30)], columns=names))
    return make_sites(tmp_path, paths)


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 60))


def states(table: RunnerFrameByFrame, site: str) -> list[str]:
    return [entry.state for entry in table.sites[site].site_jobs._job_index.entries()]


@pytest.fixture(name="soon")
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that the disk did not take are tried again at once."""
    monkeypatch.setattr(runner, "RETRY_S", 0.01)


async def until(table: RunnerFrameByFrame, there: Callable[[], bool]) -> None:
    """The conductor's own timer tries again; each of its ticks is looked at."""
    assert table.runner is not None
    ticked = asyncio.Event()
    tick = table.runner._tick

    def told() -> None:
        tick()
        ticked.set()

    table.runner._tick = told  # type: ignore[method-assign]
    table.runner._timer_at = math.inf
    table.runner._set_timer()
    while not there():
        await ticked.wait()
        ticked.clear()
        table.fetch()
        await table.rest()


def test_a_job_that_cannot_be_recorded_was_never_submitted(sites: dict[str, ClientSettings]) -> None:
    async def scene() -> None:
        store = Disk()
        table = RunnerFrameByFrame(sites, store)
        table.connect()
        store.full_for = {"submitted", "enrolling"}
        with pytest.raises(JobFailed, match="SQLITE_FULL"):
            table.submit(job().definition())
        assert (table.machine.records, table.machine.runs) == ({}, {})
        await table.rest()
        assert states(table, "north") == []
        store.full_for = set()
        table.submit(job().definition())
        await table.rest()
        assert store.job("first").state == "done"  # type: ignore[union-attr]

    play(scene)


def test_a_submission_writes_one_record(sites: dict[str, ClientSettings]) -> None:
    """A job that begins at once is written as enrolling, one that waits in line as submitted; a repeated submission is
    not written."""

    async def scene() -> None:
        store = Disk()
        table = RunnerFrameByFrame(sites, store, Limits(jobs_at_once=1))
        for name in ("first", "second", "first"):
            table.submit(job(name).definition(), name)
        assert store.saved == [("first", "enrolling"), ("second", "submitted")]
        table.connect()
        await table.rest()
        states = ("enrolling", "aligning", "running", "done")
        for name, before in (("first", []), ("second", ["submitted"])):
            assert [state for job, state in store.saved if job == name] == [*before, *states]

    play(scene)


@pytest.mark.promise("A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.")
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("state", ["aligning", "running"])
def test_a_job_whose_state_cannot_be_written_fails_and_is_written_down_later(
    sites: dict[str, ClientSettings], state: str
) -> None:
    async def scene() -> None:
        store = Disk()
        table = RunnerFrameByFrame(sites, store)
        table.connect()
        store.full_for = {state, "failed"}
        table.submit(job().definition())
        await table.rest()
        record = table.machine.records["first"]
        assert (record.state, record.reason, record.exit_code) == ("failed", CANNOT, 7)
        assert not table.machine.runs
        assert table.closed == []  # the sites are still connected, and have heard
        assert states(table, "north") == ["failed"]
        assert store.job("first").state != "failed"  # type: ignore[union-attr]
        assert ("first", state) not in store.saved
        store.full_for = set()
        await until(table, lambda: store.saved[-1] == ("first", "failed"))
        assert Machine("table", "test", Limits(), 1, store.jobs()).jobs.start(0.0) != []
        assert not Machine("table", "test", Limits(), 1, store.jobs()).runs
        table.submit(job("second").definition(), "another")
        await table.rest()
        assert store.job("second").state == "done"  # type: ignore[union-attr]

    play(scene)


@pytest.mark.usefixtures("soon")
def test_that_a_job_is_done_is_announced_when_it_is_written(sites: dict[str, ClientSettings]) -> None:
    async def scene() -> None:
        store = Disk()
        table = RunnerFrameByFrame(sites, store)
        table.connect()
        store.full_for = {"done"}
        table.submit(job().definition())
        await table.rest()
        assert store.job("first").state == "running"  # type: ignore[union-attr]
        assert states(table, "north") == ["running"]
        assert "first" in table.sites["north"].site_attempts
        store.full_for = set()
        await until(table, lambda: store.saved[-1] == ("first", "done"))
        await table.rest()
        assert states(table, "north") == ["done"]
        assert table.sites["north"].site_attempts == {}

    play(scene)


@pytest.mark.usefixtures("soon")
def test_jobs_in_line_wait_until_the_store_works_again(sites: dict[str, ClientSettings]) -> None:
    """They used to be begun without being written down, one after the other."""

    async def scene() -> None:
        store = Disk()
        table = RunnerFrameByFrame(sites, store, Limits(jobs_at_once=1))
        table.connect("east")
        for name in ("first", "second", "third"):
            table.submit(job(name).definition(), name)
        await table.rest()
        assert list(table.machine.runs) == ["first"]
        store.full_for = {"enrolling", "aligning", "running", "failed"}
        table.connect("north")
        await table.rest()
        assert table.machine.records["first"].state == "failed"
        assert [table.machine.records[name].state for name in ("second", "third")] == ["submitted"] * 2
        assert not table.machine.runs
        told = [pb.CoordinatorFrame.FromString(frame) for frame in table.down["north"]]
        assert not [frame for frame in told if frame.WhichOneof("frame") == "offer"]
        store.full_for = set()
        await until(table, lambda: store.saved[-1] == ("third", "done"))
        assert {name: store.job(name).state for name in ("first", "second", "third")} == {  # type: ignore[union-attr]
            "first": "failed",
            "second": "done",
            "third": "done",
        }

    play(scene)


@pytest.mark.usefixtures("soon")
def test_a_job_that_cannot_leave_the_line_fails_and_the_next_one_waits(sites: dict[str, ClientSettings]) -> None:
    async def scene() -> None:
        store = Disk()
        table = RunnerFrameByFrame(sites, store, Limits(jobs_at_once=1))
        table.connect()
        for name in ("first", "second", "third"):
            table.submit(job(name).definition(), name)
        store.full_for = {"enrolling", "failed"}
        await table.rest()
        ended = {name: record.state for name, record in table.machine.records.items()}
        assert ended == {"first": "done", "second": "failed", "third": "submitted"}
        store.full_for = set()
        await until(table, lambda: store.saved[-1] == ("third", "done"))
        assert ("second", "failed") in store.saved

    play(scene)


def test_what_could_not_be_written_is_tried_once_more_before_the_coordinator_stops(
    sites: dict[str, ClientSettings],
) -> None:
    async def scene() -> None:
        store = Disk()
        table = RunnerFrameByFrame(sites, store)
        table.connect()
        store.full_for = {"running", "failed"}
        table.submit(job().definition())
        await table.rest()
        store.full_for = set()
        assert table.runner is not None
        await table.runner.stop(JobFailed("the end"))
        assert store.saved[-1] == ("first", "failed")

    play(scene)


# A site's disk.


class SmallDisk:
    """A directory below which nothing more can be written while it is full; what is there can be read and removed."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._directory = str(directory.resolve())
        for name in ("open", "write", "mkdir"):
            monkeypatch.setattr(os, name, self._guarded(name, getattr(os, name)))

    def _guarded(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def do(what: Any, *more: Any, **keys: Any) -> Any:
            writes = name != "open" or more[0] & os.O_CREAT
            if self.full and writes and self._is_here(what):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(what, *more, **keys)

        return do

    def _is_here(self, what: Any) -> bool:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.path.abspath(what)  # noqa: PTH100, PTH115
        return path.startswith(self._directory)


def until_told(table: FrameByFrame, site: str, kind: str, step: int = 0) -> None:
    """Go on until the next message of that kind is about to reach the site."""
    while True:
        if table.down[site]:
            frame = pb.CoordinatorFrame.FromString(table.down[site][0])
            if frame.WhichOneof("frame") == kind and (not step or frame.task.step == step):
                return
        assert table.step()


SENTENCES = {
    # When there is no room, by what reaches the site: its exit code, and what the others hear.
    ("offer", 0): (4, "north: the configuration of this site cannot be used; its log says why"),
    ("encrypted_key", 0): (
        7,
        "north: the ledger of this site cannot be written (No space left on device): nothing is sent",
    ),
    ("alignment", 0): (4, "north: the configuration of this site cannot be used; its log says why"),
    ("task", pb.STEP_OPEN): (7, "north: the ledger of this site cannot be written"),
    ("task", pb.STEP_SUMS): (7, "north: the ledger of this site cannot be written"),
    ("task", pb.STEP_FINISH): (7, "north: the ledger of this site cannot be written"),
}


@pytest.mark.promise("A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.")
@pytest.mark.parametrize(("moment", "said"), SENTENCES.items(), ids=str)
def test_a_site_without_room_refuses_and_takes_part_again_when_there_is(
    sites: dict[str, ClientSettings],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    moment: tuple[str, int],
    said: tuple[int, str],
) -> None:
    table = FrameByFrame(sites)
    table.connect()
    table.submit(job().definition())
    until_told(table, "north", *moment)
    disk = SmallDisk(sites["north"].state, monkeypatch)
    disk.full = True
    table.run()
    record = table.machine.records["first"]
    assert (record.state, record.exit_code) == ("failed", said[0])
    assert record.reason.startswith(said[1])
    assert "make room" in caplog.text  # its own people are told what to do
    assert table.closed == []
    disk.full = False
    table.submit(job("second").definition(), "another")
    table.run()
    assert table.machine.records["second"].state == "done"
    # All that was sent is in a ledger, and ledgers are whole.
    heads = set()
    for site, played_site in table.sites.items():
        played_site.site_jobs.stopped()
        ledger = sites[site].state / LEDGER
        assert verify(ledger, played_site.site_files.certificate).head
        heads |= {line["hash"] for line in entries(ledger)}
    sent = [pb.SiteFrame.FromString(frame) for frame in table.up_recording]
    answers = [frame.answer for frame in sent if frame.WhichOneof("frame") == "answer"]
    assert answers
    assert all(answer.ledger_head.hex() in heads for answer in answers)


def test_results_that_the_disk_has_no_room_for_fail_the_job_and_leave_nothing_behind(
    sites: dict[str, ClientSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = FrameByFrame(sites)
    table.connect()
    table.submit(job().definition())
    until_told(table, "north", "task", pb.STEP_FINISH)
    disk = SmallDisk(sites["north"].results, monkeypatch)
    disk.full = True
    table.run()
    record = table.machine.records["first"]
    assert (record.state, record.exit_code) == ("failed", 7)
    assert record.reason == "north: this site cannot write its results: see its log, make room or set permissions"
    assert list(sites["north"].results.iterdir()) == []
    table.submit(job("second").definition(), "second")
    table.run()
    assert table.machine.records["second"].reason.startswith("north: the configuration of this site cannot be used")
    disk.full = False
    table.submit(job("third").definition(), "third")
    table.run()
    assert table.machine.records["third"].state == "done"


@pytest.mark.promise("A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.")
@pytest.mark.parametrize("whose", ["the coordinator's", "a site's"])
def test_a_job_goes_on_without_checkpoints_that_the_disk_has_no_room_for(
    sites: dict[str, ClientSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    async def scene() -> None:
        kept = CheckpointFiles(tmp_path / "kept", bytes(32), 2**20)
        table = RunnerFrameByFrame(sites, Disk(), None, CheckpointInterval(every_s=0, every_exchanges=1), kept)
        table.connect()
        checkpoints = {"the coordinator's": tmp_path / "kept", "a site's": sites["north"].state / "checkpoints"}
        disk = SmallDisk(checkpoints[whose], monkeypatch)
        disk.full = True
        table.submit(job(max_iterations=4).definition())
        await table.rest()
        assert table.machine.records["first"].state == "done"
        disk.full = False
        table.submit(job("second", max_iterations=4).definition(), "second")
        await table.rest()
        assert table.machine.records["second"].state == "done"

    play(scene)


# Real disks and real daemons.


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    """One that can be filled without harm; only an administrator can make it."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)


def fill(disk: Path) -> Path:
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return ballast


@pytest.fixture(name="deployment")
def _deployment(tmp_path: Path, small_disk: Path) -> Iterator[Deployment]:
    """Daemons whose coordinator has its store on the small disk; one job is done."""
    where = f'store = "{small_disk}/store.sqlite"\n[checkpoints]\ndirectory = "{small_disk}/checkpoints"\n'
    with Deployment(tmp_path / "deployment", SITES, configuration=where) as deployment:
        for at, site in enumerate(SITES):
            columns = np.random.default_rng(at).integers(0, 2, (20, 2))
            names = [f"{site}{j}" for j in range(2)]
            table = ce.LabelTable.from_arrays(columns, ids=[f"o{i}" for i in range(20)], columns=names)
            deployment.write_labels(site, table)
        assert deployment.run(job()).state == "done"
        yield deployment
        assert deployment.processes["hub"].alive
        assert deployment.run(job("with room")).state == "done"
        assert deployment.ask(lambda stub, timeout: stub.GetJob(operator_pb.GetJobRequest(job="first"))).state == "done"


@pytest.mark.promise("A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.")
def test_a_job_is_refused_when_the_coordinators_disk_is_full(deployment: Deployment, small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(JobFailed, match="SQLITE_FULL"):
        deployment.run(job("without room"))
    ballast.unlink()


@pytest.mark.promise("A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.")
def test_a_job_that_waits_fails_when_the_coordinators_disk_is_full(deployment: Deployment, small_disk: Path) -> None:
    assert deployment.processes[SITES[-1]].stop() == 0
    deployment.submit(job("without room"))
    ballast = fill(small_disk)
    deployment.start(SITES[-1])
    status = deployment.wait("without room")
    assert (status.state, status.reason) == ("failed", CANNOT)
    ballast.unlink()
    deployment.processes["hub"].wait_for("store works again")
