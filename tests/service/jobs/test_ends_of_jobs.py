"""When a site has results: once the job is done, never of a job that failed, and never twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ce
from ce.protocol.engine import site as engine
from ce.ring import Words
from ce.testing import FrameByFrame, make_sites
from ce.testing.sites import PlayedSite
from ce_client.config import ClientSettings
from ce_client.state.job_index import JobIndex
from ce_client.state.results import CONSENSUS, REPORT
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north")


def job(privacy: str = "plain", name: str = "job") -> ce.Job:
    return ce.Job(name=name, clusters=2, sites=SITES, restarts=1, max_iterations=2, privacy=privacy)


@pytest.fixture(name="sites")
def _sites(tmp_path: Path) -> dict[str, ClientSettings]:
    rng = np.random.default_rng(0)
    tables = {}
    for site in SITES:
        ids = [*(f"{site}{i}" for i in range(10)), *(f"both{i}" for i in range(5))]
        tables[site] = ce.LabelTable.from_arrays(rng.integers(0, 2, (15, 2)), ids=ids, columns=[f"{site}a", f"{site}b"])
    return make_sites(tmp_path, tables)


@pytest.fixture(name="open_to_all")
def _open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def files(settings: ClientSettings) -> dict[str, bytes]:
    """Everything in a result directory."""
    found = settings.results.rglob("*")
    return {str(path.relative_to(settings.results)): path.read_bytes() for path in found if path.is_file()}


def run(table: FrameByFrame, asked: ce.Job) -> Any:
    table.connect()
    table.submit(asked.definition(), asked.name)
    table.run()
    return table.machine.records[asked.name]


def finish(table: FrameByFrame, asked: ce.Job) -> None:
    """Go on until both sites have answered the last task, and the coordinator has not heard of it."""
    table.connect()
    table.submit(asked.definition(), asked.name)
    while not all(has_finished(played) for played in table.sites.values()):
        assert table.step()


def has_finished(played: PlayedSite) -> bool:
    return "job" in played.site_attempts and played.site_attempts["job"].finished


@pytest.mark.promise("A job that is over at a site is not run again, and its results stay as they are.")
@pytest.mark.parametrize("privacy", ["plain", "masked", "blind"])
def test_a_finished_job_that_is_offered_again_is_refused(sites: dict[str, ClientSettings], privacy: str) -> None:
    assert run(FrameByFrame(sites), job(privacy)).state == "done"
    before = {site: files(settings) for site, settings in sites.items()}
    assert set(before["east"]) == {f"job/{CONSENSUS}", f"job/{REPORT}"}
    # A coordinator that has forgotten the job, or says so, begins at epoch 1 again.
    record = run(FrameByFrame(sites), job(privacy))
    assert (record.state, record.rule, record.exit_code) == ("failed", "finished job", 6)
    assert {site: files(settings) for site, settings in sites.items()} == before
    assert JobIndex(sites["east"].state).entry("job").state == "done"


@pytest.mark.promise("Results of a job that failed are not on any disk.")
@pytest.mark.parametrize("missing", [3, -3])
def test_sizes_that_are_not_those_of_all_objects_fail_the_job_and_leave_no_results(
    sites: dict[str, ClientSettings], monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    honest, lies = engine.cluster_sizes, []

    def lie(*arguments: Any) -> Words:
        sizes = honest(*arguments)
        if not lies:
            lies.append(True)
            sizes[np.argmax(sizes)] -= missing
        return sizes

    monkeypatch.setattr(engine, "cluster_sizes", lie)
    record = run(FrameByFrame(sites), job())
    assert (record.state, record.exit_code) == ("failed", 7)
    assert "sum_h size_h = objects with a label" in record.reason
    # From a total nobody can tell who lied.
    assert "one of east, north, or the coordinator, sent false numbers" in record.reason
    assert [files(settings) for settings in sites.values()] == [{}, {}]


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("done", [True, False])
def test_a_site_that_did_not_hear_the_end_learns_of_it_with_the_next_stream(
    sites: dict[str, ClientSettings], done: bool, forgets: bool
) -> None:
    table = FrameByFrame(sites)
    finish(table, job())
    if not done:
        table.do(table.machine.jobs.cancel("job", "olga", table.now))
    while table.up:
        table.deliver_up()
    assert table.machine.records["job"].state == ("done" if done else "cancelled")
    table.lose_stream("north")
    table.run()
    assert (f"job/{CONSENSUS}" in files(sites["east"])) == done
    assert not (sites["north"].results / "job").exists()
    if forgets:
        table.lose_memory("north")
    table.connect("north")
    table.run()
    assert set(files(sites["north"])) == ({f"job/{CONSENSUS}", f"job/{REPORT}"} if done else set())


def test_results_of_an_attempt_that_was_not_the_last_are_not_published(sites: dict[str, ClientSettings]) -> None:
    table = FrameByFrame(sites)
    finish(table, job())
    table.sites["north"].site_jobs.ended(pb.Ended(job="job", epoch=2, state="done"))
    assert not (sites["north"].results / "job").exists()


def test_results_that_could_not_be_published_are_published_by_the_next_daemon(sites: dict[str, ClientSettings]) -> None:
    table = FrameByFrame(sites)
    finish(table, job())
    in_the_way = sites["north"].results / "job"
    in_the_way.symlink_to(sites["north"].results)
    table.run()
    assert table.machine.records["job"].state == "done"
    in_the_way.unlink()
    table.lose_memory("north")
    assert set(files(sites["north"])) == {f"job/{CONSENSUS}", f"job/{REPORT}"}


@pytest.mark.promise("What a site writes is its user's alone to read.")
@pytest.mark.usefixtures("open_to_all")
def test_only_the_daemons_user_can_read_what_a_site_writes(sites: dict[str, ClientSettings]) -> None:
    table = FrameByFrame(sites)
    finish(table, job())
    check_modes(sites["north"])
    table.run()
    assert (sites["north"].results / "job" / CONSENSUS).exists()
    check_modes(sites["north"])


def check_modes(settings: ClientSettings) -> None:
    for root in (settings.results, settings.state):
        for path in (root, *root.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
