"""Introductions and letters over broken streams: whatever is lost is repeated, and the job ends as it would have."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

import ce
from ce.labels import LabelTable
from ce.testing import FrameByFrame, make_sites
from ce_client.config import ClientSettings
from ce_client.state.attempt_history import AttemptHistory
from ce_client.state.job_index import JobIndex
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "west")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
JOB = ce.Job(name="job", clusters=2, restarts=1, max_iterations=2, privacy="masked", sites=SITES)


@pytest.fixture(scope="module", name="sites")
def _sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClientSettings]:
    rng = np.random.default_rng(1)
    tables = {}
    for at, site in enumerate(SITES):
        cells = np.column_stack([np.where(np.arange(12) % 3 == at, rng.integers(0, 2, 12), -1), rng.integers(0, 2, 12)])
        tables[site] = LabelTable.from_arrays(cells, ids=[f"o{i}" for i in range(12)], columns=["shared", f"own{site}"])
    return make_sites(tmp_path_factory.mktemp("letters"), tables, SECRETS)


def begin(sites: dict[str, ClientSettings]) -> FrameByFrame:
    for settings in sites.values():
        shutil.rmtree(settings.results, ignore_errors=True)
        AttemptHistory(settings.state).forget("job")
        JobIndex(settings.state).forget("job")
    table = FrameByFrame(sites)
    table.connect()
    table.submit(JOB.definition())
    return table


def results(table: FrameByFrame, sites: dict[str, ClientSettings]) -> list[bytes]:
    record = table.machine.records["job"]
    assert (record.state, record.reason, record.epoch) == ("done", "", 1)
    return [Path(sites[site].results / "job" / "consensus.csv").read_bytes() for site in SITES]


def about_letters(table: FrameByFrame) -> bool:
    """Whether an introduction or a letter is on its way."""
    down = {pb.CoordinatorFrame.FromString(f).WhichOneof("frame") for frames in table.down.values() for f in frames}
    up = {pb.SiteFrame.FromString(frame).WhichOneof("frame") for _, frame in table.up}
    return bool((down | up) & {"introduction", "letters"})


@pytest.mark.promise("Lost, repeated and late frames, broken and stalled streams change no bit.")
@pytest.mark.parametrize("site", ["east", "west"])
def test_letters_that_are_lost_are_sent_again(sites: dict[str, ClientSettings], site: str) -> None:
    whole = begin(sites)
    moments, at = [], 0
    while whole.step():
        at += 1
        if about_letters(whole):
            moments.append(at)
    expected = results(whole, sites)
    assert len(moments) > 10
    for moment in moments:
        table = begin(sites)
        for _ in range(moment):
            table.step()
        table.lose_stream(site)
        table.connect(site)
        table.run()
        assert results(table, sites) == expected, moment


def test_a_site_that_writes_nothing_is_waited_for_until_the_deadline(sites: dict[str, ClientSettings]) -> None:
    table = begin(sites)
    while not (table.down["west"] and kind(table) == "introduction"):
        assert table.step()
    table.lose_stream("west")
    table.run()
    record = table.machine.records["job"]
    assert record.state == "aligning"
    assert table.machine.runs["job"].awaited == {"west"}
    table.now += JOB.deadlines.enrol_s + 1
    table.do(table.machine.jobs.tick(table.now))
    record = table.machine.records["job"]
    assert record.state == "failed"
    assert record.reason.startswith("west did not enrol within deadlines.enrol_s")


def kind(table: FrameByFrame) -> str:
    return str(pb.CoordinatorFrame.FromString(table.down["west"][0]).WhichOneof("frame"))
