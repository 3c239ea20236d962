"""Every limit, at it and one past it: what fits is taken; what does not is refused by the limit's name, and everybody
else is served as before. `TESTED` says where each is tested, and a key that is missing there fails a test."""

from __future__ import annotations

import json
import re
import shutil
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ce
from ce.errors import CeError, ConfigError, LimitReached, MessageError
from ce.job import LARGEST_FILE, Job
from ce.service import checkpoints
from ce.service.checkpoints import CheckpointFailed, CheckpointFiles, CheckpointId, local_key
from ce.service.snapshot_codec import pack
from ce.testing import FrameByFrame, make_sites, open_site, write_labels
from ce.transport.frames import MOST_HELD, PROTOCOL
from ce_client import config as client
from ce_client.config import ClientSettings
from ce_client.state.job_index import JobEntry, JobIndex
from ce_coordinator.config import CheckpointSettings
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.instructions import Close, SaveSite, Send
from ce_coordinator.core.limits import Limits
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "west")
OBJECTS, COLUMNS, CATEGORIES = 24, 3, 4
CLUSTERS, RESTARTS = 2, 2
#: All objects are everybody's; columns are their holder's.
ROUND_BYTES = 8 * RESTARTS * CLUSTERS * OBJECTS
STATE_BYTES = 8 * RESTARTS * CLUSTERS * (OBJECTS + COLUMNS * CATEGORIES)

HERE = Path(__file__).name
#: Each key: where it is tested, at the limit and past it.
TESTED: Mapping[str, str] = {
    "limits.jobs_at_once": f"{HERE}::test_jobs_at_once_run_and_further_ones_wait",
    "limits.jobs_waiting": f"{HERE}::test_jobs_at_once_run_and_further_ones_wait",
    "limits.sites_per_job": f"{HERE}::test_a_job_of_as_many_sites_as_may_be",
    "limits.attempts_per_job": f"{HERE}::test_a_site_that_forgets_again_and_again_is_waited_for_so_often",
    "limits.attempts_per_site": f"{HERE}::test_one_site_can_make_the_others_begin_again_only_so_often",
    "limits.largest_min_cluster": f"{HERE}::test_a_site_can_withhold_clusters_of_so_many_objects_and_no_more",
    "limits.streams": "test_crowds.py::test_as_many_calls_as_the_limits_say_and_no_more",
    "limits.streams_per_certificate": "test_crowds.py::test_one_certificate_cannot_keep_the_others_out",
    "limits.messages_waiting": "../adversaries/test_hostile_messages.py::"
    "test_a_site_that_never_reads_does_not_fill_the_coordinators_memory",
    "limits.objects_per_site": f"{HERE}::test_a_job_as_large_as_the_coordinator_takes",
    "limits.columns_per_site": f"{HERE}::test_a_job_as_large_as_the_coordinator_takes",
    "limits.categories_per_column": f"{HERE}::test_a_job_as_large_as_the_coordinator_takes",
    "limits.round_bytes": f"{HERE}::test_a_job_as_large_as_the_coordinator_takes",
    "checkpoints.largest": f"{HERE}::test_a_checkpoint_as_large_as_it_may_be",
    "checkpoints.least_free": f"{HERE}::test_a_checkpoint_leaves_room_on_its_disk",
    "checkpoints.every_exchanges": "",  # how often, not how much
    "site: largest_message": f"{HERE}::test_a_message_as_large_as_a_site_takes",
    "site: largest_state": f"{HERE}::test_a_job_as_large_as_a_site_takes",
    "site: largest_checkpoint": f"{HERE}::test_a_checkpoint_as_large_as_it_may_be",
    "site: least_free": f"{HERE}::test_a_checkpoint_leaves_room_on_its_disk",
    "site: limits.jobs_at_once": f"{HERE}::test_as_many_jobs_as_a_site_is_in_at_once",
    "site: limits.jobs_remembered": f"{HERE}::test_as_many_jobs_as_a_site_keeps_notes_of",
    "site: limits.sites_per_job": f"{HERE}::test_a_job_of_as_many_sites_as_a_site_allows",
    "site: limits.attempts_per_job": "../client/test_releases_and_budget.py::"
    "test_attempts_that_open_nothing_are_counted_at_the_site",
    "site: limits.ledger_bytes": f"{HERE}::test_a_ledger_as_large_as_it_may_be",
}


@pytest.mark.promise("Every limit has a test at the limit and beyond it.")
def test_every_limit_of_the_configuration_has_a_test() -> None:
    keys = {f"limits.{own.name}" for own in fields(Limits)}
    keys |= {f"checkpoints.{own.name}" for own in fields(CheckpointSettings) if own.type == "int"}
    keys |= {f"site: limits.{own.name}" for own in fields(client.Limits)}
    keys |= {f"site: {own.name}" for own in fields(ClientSettings) if own.type == "int" and own.name != "threads"}
    assert keys == set(TESTED)
    for where in filter(None, TESTED.values()):
        file, _, name = where.partition("::")
        assert f"def {name}(" in (Path(__file__).parent / file).read_text()


@pytest.mark.parametrize("kind", [Limits, client.Limits])
def test_no_limit_is_nothing(kind: type[Any]) -> None:
    for own in fields(kind):
        kind(**{own.name: 1})
        with pytest.raises(ConfigError, match=rf"limits\.{own.name} is a whole number of at least 1"):
            kind(**{own.name: 0})


@pytest.fixture(name="sites")
def _sites(tmp_path: Path) -> dict[str, ClientSettings]:
    """Three sites with the same objects and three columns of four categories each."""
    paths = {site: tmp_path / f"{site}.csv" for site in SITES}
    ids = [f"o{i}" for i in range(OBJECTS)]
    for seed, (site, path) in enumerate(paths.items()):
        rng = np.random.default_rng(seed)
        columns = np.array([rng.permutation(np.arange(OBJECTS) % CATEGORIES) for _ in range(COLUMNS)]).T
        names = [f"{site}{j}" for j in range(COLUMNS)]
        write_labels(path, ce.LabelTable.from_arrays(columns, ids=ids, columns=names))
    return make_sites(tmp_path, paths)


def job(name: str = "job", **keys: Any) -> ce.Job:
    asked: dict[str, Any] = {"clusters": CLUSTERS, "restarts": RESTARTS, "max_iterations": 2, "privacy": "plain"}
    return ce.Job(name=name, **(asked | {"sites": SITES} | keys))


def sit(sites: Mapping[str, ClientSettings], limits: Limits | None = None) -> FrameByFrame:
    table = FrameByFrame(sites, limits)
    table.connect()
    return table


def run(table: FrameByFrame, name: str = "job", **keys: Any) -> Any:
    """The record of a job that was let run."""
    table.submit(job(name, **keys).definition(), name)
    table.run()
    return table.machine.records[name]


# What an operator asks for.


def test_jobs_at_once_run_and_further_ones_wait(sites: dict[str, ClientSettings]) -> None:
    table = FrameByFrame(sites, Limits(jobs_at_once=2, jobs_waiting=2))
    for name in "abcd":
        table.submit(job(name).definition(), name)
    assert list(table.machine.runs) == ["a", "b"]
    with pytest.raises(LimitReached, match=r"2 jobs are waiting \(limits\.jobs_waiting\)"):
        table.submit(job("e").definition(), "e")
    table.connect()
    table.run()
    assert {record.state for record in table.machine.records.values()} == {"done"}
    assert run(table, "e").state == "done"


def test_a_job_of_as_many_sites_as_may_be(sites: dict[str, ClientSettings]) -> None:
    assert run(sit(sites, Limits(sites_per_job=3))).state == "done"
    table = sit(sites, Limits(sites_per_job=2))
    with pytest.raises(ConfigError, match=r"more than 2 sites \(limits\.sites_per_job\)"):
        table.submit(job("more").definition())
    table.machine.submit(job("fewer", sites=SITES[:2]).definition(), "t", "olga", table.now)


def test_a_definition_as_large_as_may_be() -> None:
    def padded(size: int) -> bytes:
        definition = job().definition()
        return definition + b" " * (size - len(definition))

    assert Job.from_definition(padded(LARGEST_FILE)).name == "job"
    with pytest.raises(ConfigError, match="larger than any job"):
        Job.from_definition(padded(LARGEST_FILE + 1))


def test_a_token_as_long_as_may_be(sites: dict[str, ClientSettings]) -> None:
    table = FrameByFrame(sites)
    table.submit(job().definition(), "t" * 100)
    with pytest.raises(CeError, match="1 to 100 characters"):
        table.submit(job("b").definition(), "t" * 101)


# What a site claims.


@pytest.mark.promise("Every limit has a test at the limit and beyond it.")
@pytest.mark.parametrize(
    ("key", "exact"),
    [
        ("objects_per_site", OBJECTS),
        ("columns_per_site", COLUMNS),
        ("categories_per_column", CATEGORIES),
        ("round_bytes", ROUND_BYTES),
    ],
)
def test_a_job_as_large_as_the_coordinator_takes(sites: dict[str, ClientSettings], key: str, exact: int) -> None:
    assert run(sit(sites, Limits(**{key: exact}))).state == "done"
    table = sit(sites, Limits(**{key: exact - 1}))
    record = run(table, "more")
    assert (record.state, record.exit_code) == ("failed", 3)
    assert f"limits.{key}" in record.reason
    assert table.closed == []  # the sites stay, for other jobs
    assert len(table.machine.connections) == len(SITES)


def test_a_site_that_forgets_again_and_again_is_waited_for_so_often(sites: dict[str, ClientSettings]) -> None:
    """Each time all sites begin again, and write that into their ledgers."""
    table = sit(sites, Limits(attempts_per_job=3))
    table.submit(job().definition())
    for attempt in (1, 2, 3):
        assert table.machine.records["job"].epoch == attempt
        for _ in range(12):
            table.step()
        table.lose_stream("west")
        table.lose_memory("west")
        table.connect("west")
    record = table.machine.records["job"]
    assert (record.state, record.exit_code, record.epoch) == ("failed", 3, 3)
    assert "west has lost its state of this job in attempt 3 (limits.attempts_per_job)" in record.reason
    table.run()
    assert run(table, "another").state == "done"


@pytest.mark.parametrize("forgets", [5, 6])
def test_one_site_can_make_the_others_begin_again_only_so_often(sites: dict[str, ClientSettings], forgets: int) -> None:
    table = sit(sites, Limits(attempts_per_site=5))
    table.submit(job().definition())
    for _ in range(12):
        table.step()
    for _ in range(forgets):
        # It is there again at once, each time as if it had never heard of the job.
        table.lose_stream("west")
        table.lose_memory("west")
        JobIndex(sites["west"].state).forget("job")
        assert table.sites["west"].site_jobs.held() == []
        table.connect("west")
        for _ in range(12):
            table.step()
    record = table.machine.records["job"]
    if forgets == 5:
        table.run()
        assert (table.machine.records["job"].state, record.epoch) == ("done", 6)
        return
    assert (record.state, record.exit_code, record.epoch) == ("failed", 3, 6)
    assert "west has lost its state of this job 6 times (limits.attempts_per_site)" in record.reason


@pytest.mark.promise("One site cannot withhold the whole result from the operator unnoticed.")
@pytest.mark.parametrize("asked", [1000, 1001, 2**32 - 1])
def test_a_site_can_withhold_clusters_of_so_many_objects_and_no_more(
    sites: dict[str, ClientSettings], asked: int
) -> None:
    policy = sites["west"].policy
    policy.write_text(policy.read_text().replace("min_cluster = 1\n", f"min_cluster = {asked}\n"))
    table = sit(sites)
    record = run(table)
    if asked == 1000:
        report = json.loads(table.machine.jobs.result("job"))
        assert (record.state, report["withheld_by"], report["min_cluster"]) == ("done", ["west"], asked)
        assert set(report["sizes"]) == {None}
        return
    assert (record.state, record.exit_code) == ("failed", 3)
    assert record.reason.startswith(f"west asks to withhold clusters of fewer than {asked:,} objects")


def hello_with(held: int) -> pb.Hello:
    hello = pb.Hello(site="west", protocol=PROTOCOL, instance=bytes(16))
    hello.held.extend(pb.Held(job=f"{number}") for number in range(held))
    return hello


@pytest.mark.promise("Every limit has a test at the limit and beyond it.")
def test_a_hello_may_list_as_many_jobs_as_the_limit(sites: dict[str, ClientSettings]) -> None:
    table = sit(sites)
    steps = table.machine.connected(99, "west", "", hello_with(MOST_HELD), table.now)
    assert len([step for step in steps if isinstance(step, Send)]) == 1 + MOST_HELD
    assert len([step for step in steps if isinstance(step, Close)]) == 1


@pytest.mark.promise("Every limit has a test at the limit and beyond it.")
def test_a_hello_that_lists_more_jobs_than_the_limit_is_refused(sites: dict[str, ClientSettings]) -> None:
    table = sit(sites)
    with pytest.raises(MessageError, match="at most 10,000 jobs in held"):
        table.machine.connected(99, "west", "", hello_with(MOST_HELD + 1), table.now)


# What a coordinator asks of a site.


def configured(sites: Mapping[str, ClientSettings], site: str, **changes: Any) -> dict[str, ClientSettings]:
    return {**sites, site: replace(sites[site], **changes)}


def limited(sites: Mapping[str, ClientSettings], site: str, **limits: int) -> dict[str, ClientSettings]:
    return configured(sites, site, limits=client.Limits(**limits))


def refused_by(record: Any, site: str, rule: str) -> bool:
    return (record.state, record.exit_code, record.rule) == ("failed", 6, rule) and record.reason.startswith(f"{site}:")


def test_a_job_as_large_as_a_site_takes(sites: dict[str, ClientSettings]) -> None:
    assert run(sit(configured(sites, "north", largest_state=STATE_BYTES))).state == "done"
    table = sit(configured(sites, "north", largest_state=STATE_BYTES - 1))
    assert refused_by(run(table, "more"), "north", "largest_state")
    assert run(table, "small", restarts=1).state == "done"


@pytest.mark.promise("Every limit has a test at the limit and beyond it.")
def test_a_message_as_large_as_a_site_takes(sites: dict[str, ClientSettings]) -> None:
    # The largest message is the task with messages of all starts, or the rows of the one block.
    def attempt(name: str, most: int) -> Any:
        return run(sit(configured(sites, "north", largest_message=most)), name)

    sizes = range(64, 8192, 8)
    exact = sizes[bisect_left(sizes, True, key=lambda most: attempt(f"to {most}", most).state == "done")]
    record = attempt("past", exact - 8)
    assert (record.state, record.exit_code) == ("failed", 7)
    assert record.reason == "north: parts: the message is larger than allowed (largest_message)"


def test_as_many_jobs_as_a_site_is_in_at_once(sites: dict[str, ClientSettings]) -> None:
    """One more used to cost it its stream, and with it all the others, again and again."""
    table = FrameByFrame(limited(sites, "north", jobs_at_once=2))
    table.connect("north")
    for name in "abc":
        table.submit(job(name).definition(), name)
    table.run()
    assert table.closed == []
    assert sorted(table.sites["north"].site_attempts) == ["a", "b"]
    assert refused_by(table.machine.records["c"], "north", "limits.jobs_at_once")
    assert JobIndex(sites["north"].state).find("c") is None
    table.connect("east", "west")
    table.run()
    assert {table.machine.records[name].state for name in "ab"} == {"done"}
    assert run(table, "d").state == "done"


def test_as_many_jobs_as_a_site_keeps_notes_of(sites: dict[str, ClientSettings]) -> None:
    table = sit(limited(sites, "north", jobs_remembered=2))
    assert [run(table, name).state for name in "ab"] == ["done", "done"]
    before = sorted(sites["north"].state.rglob("*"))
    assert refused_by(run(table, "c"), "north", "limits.jobs_remembered")
    assert sorted(sites["north"].state.rglob("*")) == before
    JobIndex(sites["north"].state).forget("a")
    assert run(table, "d").state == "done"


def test_a_job_of_as_many_sites_as_a_site_allows(sites: dict[str, ClientSettings]) -> None:
    assert run(sit(limited(sites, "north", sites_per_job=3))).state == "done"
    table = sit(limited(sites, "north", sites_per_job=2))
    assert refused_by(run(table, "more"), "north", "limits.sites_per_job")


def test_a_ledger_as_large_as_it_may_be(sites: dict[str, ClientSettings]) -> None:
    table = sit(sites)
    assert run(table).state == "done"
    size = table.sites["north"].ledger.size
    assert size == (sites["north"].state / "ledger.jsonl").stat().st_size
    assert run(sit(limited(sites, "north", ledger_bytes=size + 1)), "to it").state == "done"
    table = sit(limited(sites, "north", ledger_bytes=size + 1))
    grown = table.sites["north"].ledger.size
    assert refused_by(run(table, "past"), "north", "limits.ledger_bytes")
    assert table.sites["north"].ledger.size == grown


def test_what_a_site_lists_in_hello_has_an_end(sites: dict[str, ClientSettings], monkeypatch: Any) -> None:
    """A coordinator that takes offers back without an end could otherwise make its Hello too long for any."""
    monkeypatch.setattr("ce_client.daemon.jobs.MOST_HELD", 5)
    played_site = open_site(sites["north"])
    for number in range(6):
        played_site.site_jobs._job_index.write(JobEntry(f"{number}", "offered", 1))
    assert len(played_site.site_jobs.held()) == 5


@pytest.mark.parametrize(
    "offer",
    [
        pb.Offer(job="x" * 101, epoch=1, definition=b"{}", roster=SITES),
        pb.Offer(job="x" * 2**20, epoch=1, definition=b"{}", roster=SITES),
        pb.Offer(job="job", epoch=1, definition=b"{}", roster=["x" * 2**20]),
        pb.Offer(job="job", epoch=1, definition=b"{}", roster=SITES * 100),
    ],
    ids=["a long name", "a very long name", "a long roster", "many sites"],
)
def test_offers_that_cannot_be_leave_nothing_behind(sites: dict[str, ClientSettings], offer: pb.Offer) -> None:
    played_site = open_site(sites["north"])
    for epoch in (1, 2):
        offer.epoch = epoch
        own = played_site.site_jobs.addressed("offer", offer)
        assert own is not None
        assert not played_site.site_jobs.engaged(own)
        (reply,) = own.receive("offer", offer)
        assert reply.WhichOneof("frame") == "refusal"
        assert len(reply.refusal.sentence) < 200
        played_site.site_jobs.note(own)
    assert [path.name for path in sites["north"].state.rglob("*") if path.is_file()] == ["ledger.jsonl"]
    assert played_site.site_jobs.held() == []


def test_a_flood_of_offers_that_come_to_nothing_leaves_what_the_limit_says(sites: dict[str, ClientSettings]) -> None:
    played_site = open_site(replace(sites["north"], limits=client.Limits(jobs_remembered=20)))
    for number in range(200):
        name = f"job {number}"
        offer = pb.Offer(job=name, epoch=1, definition=job(name).definition(), roster=SITES)
        own = played_site.site_jobs.addressed("offer", offer)
        assert own is not None
        list(own.receive("offer", offer))
        played_site.site_jobs.note(own)
        played_site.site_jobs.ended(pb.Ended(job=name, epoch=1, state="cancelled", reason="again"))
    files = [path for path in sites["north"].state.rglob("*") if path.is_file()]
    assert len(files) <= 1 + 2 * 20
    assert (sites["north"].state / "ledger.jsonl").stat().st_size < 1000
    assert not played_site.site_jobs.site_attempts
    assert not played_site.site_jobs._noted


def test_how_a_job_ended_is_kept_in_a_line(sites: dict[str, ClientSettings]) -> None:
    """Whatever a coordinator says, and however much of it."""
    table = FrameByFrame(sites)
    table.connect("north")
    table.submit(job().definition())
    table.run()
    said = pb.Ended(job="job", epoch=1, state="no such state", reason="\x1b[2J\n" + "x" * 2**20, rule="r" * 2**20)
    site_jobs = table.sites["north"].site_jobs
    site_jobs.ended(said)
    entry = JobIndex(sites["north"].state).entry("job")
    assert (entry.state, entry.over) == ("failed", True)
    assert entry.reason == " [2J " + "x" * 995
    assert entry.rule == "r" * 100
    assert site_jobs.held() == []


def test_a_site_that_comes_and_goes_does_not_keep_the_disk_busy(sites: dict[str, ClientSettings]) -> None:
    table = sit(sites)
    saved = 0
    for _ in range(50):
        session = table.sites["west"].session
        assert session is not None
        steps = table.machine.disconnected(session, "lost", table.now)
        table.connect("west")
        saved += sum(isinstance(step, SaveSite) for step in steps)
    assert saved == 0
    table.now += 60.0
    session = table.sites["west"].session
    assert session is not None
    (record,) = (s.record for s in table.machine.disconnected(session, "lost", table.now) if isinstance(s, SaveSite))
    assert record.last_seen == table.now


# Checkpoints.

STATE = {"exchanges": 3, "numbers": np.arange(1000.0)}
STATE_SIZE = sum(len(chunk) for chunk in pack(STATE))


def test_a_checkpoint_as_large_as_it_may_be(tmp_path: Path) -> None:
    kept = CheckpointFiles(tmp_path, bytes(32), STATE_SIZE)
    kept.save("job", b"c", CheckpointId(1, 1), STATE)
    assert kept.ids("job", b"c") == [CheckpointId(1, 1)]
    with pytest.raises(CheckpointFailed, match=re.escape("(checkpoints.largest; largest_checkpoint at a site)")):
        CheckpointFiles(tmp_path, bytes(32), STATE_SIZE - 1).save("job", b"c", CheckpointId(1, 2), STATE)
    assert kept.ids("job", b"c") == [CheckpointId(1, 1)]


def test_a_checkpoint_leaves_room_on_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: usage._replace(free=STATE_SIZE + 1000))
    CheckpointFiles(tmp_path, bytes(32), 2**20, 1000).save("job", b"c", CheckpointId(1, 1), STATE)
    with pytest.raises(CheckpointFailed, match=re.escape("(checkpoints.least_free; least_free at a site)")):
        CheckpointFiles(tmp_path, bytes(32), 2**20, 1001).save("job", b"c", CheckpointId(1, 2), STATE)
    assert CheckpointFiles(tmp_path, bytes(32), 2**20).ids("job", b"c") == [CheckpointId(1, 1)]


@pytest.mark.parametrize("content", ["", "00", "no key", "00" * 31, "00" * 33])
def test_a_key_of_checkpoints_that_is_none_is_not_used(tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(ValueError, match=r"not a key|hexadecimal"):
        local_key(tmp_path / "key")


def test_a_job_without_checkpoints_is_done_all_the_same(sites: dict[str, ClientSettings]) -> None:
    small = configured(sites, "north", largest_checkpoint=1)
    table = FrameByFrame(small, interval=CheckpointInterval(every_s=0, every_exchanges=1))
    table.connect()
    assert run(table, max_iterations=4).state == "done"
