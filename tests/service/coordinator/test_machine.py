"""The coordinator's brain, with a clock that the test holds: what it accepts, whom it waits for, and how jobs end."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ce
from ce.errors import (
    AlreadyExists,
    CeError,
    ConfigError,
    InputError,
    LimitReached,
    MessageError,
    NotAllowed,
    NotDone,
    UnknownJob,
    VersionMismatch,
)
from ce.job import MODES_OF_TOTALS
from ce.testing import FrameByFrame, make_sites, write_labels
from ce.transport import array_chunks
from ce.transport.frames import PROTOCOL
from ce_client.state.attempt_history import AttemptHistory
from ce_client.state.job_index import JobIndex
from ce_coordinator.core.attempt import JobAttempt
from ce_coordinator.core.attempt_rounds import AttemptRounds, _SharedFrames
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.instructions import Close, SaveJob, Send
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.machine import Machine
from ce_coordinator.service.job_status import job_status
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "west")
FINGERPRINT = "SHA256:" + "0" * 64


def job(name: str = "job", **keys: object) -> ce.Job:
    asked = {"clusters": 2, "sites": SITES, "restarts": 1, "max_iterations": 5, "privacy": "plain"} | keys
    return ce.Job(name=name, **asked)  # type: ignore[arg-type]


@pytest.fixture(name="sit")
def _sit(tmp_path: Path) -> Callable[..., FrameByFrame]:
    """A table with three sites; nobody has connected."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 30)
    paths = {}
    for at, site in enumerate(SITES):
        paths[site] = tmp_path / f"{site}.csv"
        columns = np.column_stack([truth, 1 - truth, rng.integers(0, 2, 30)])
        names = [f"{site}{j}" for j in range(3)]
        rows = slice(5 * at, 30)
        write_labels(
            paths[site], ce.LabelTable.from_arrays(columns[rows], ids=[f"o{i}" for i in range(30)][rows], columns=names)
        )
    settings = make_sites(tmp_path, paths)
    return lambda limits=None, interval=None: FrameByFrame(settings, limits, interval)


@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
def test_a_job_goes_through_its_states_and_each_is_saved_before_it_is_told(
    sit: Callable[..., FrameByFrame], privacy: str
) -> None:
    table = sit()
    table.connect()
    saved: list[str] = []
    do = table.do

    def watch(steps: list[object]) -> None:
        told = False
        for step in steps:
            told |= isinstance(step, Send)
            if isinstance(step, SaveJob):
                assert not told, "a site was told before the state was saved"
                saved.append(step.record.state)
        do(steps)  # type: ignore[arg-type]

    table.do = watch  # type: ignore[method-assign, assignment]
    table.submit(job(privacy=privacy).definition())
    table.run()
    assert saved == ["enrolling", "aligning", "running", "done"]
    assert table.store.job("job") == table.machine.records["job"]


@pytest.mark.parametrize(
    ("keys", "error", "sentence"),
    [
        ({"sites": ("east", "nroth")}, InputError, "site 'nroth' is not known here; did you mean north?"),
        ({"sites": ()}, ConfigError, "sites is missing"),
        ({"sites": ("East",)}, ConfigError, "cannot be a name"),
        ({"model": "bc3e", "clusters": None}, ConfigError, "names its classes"),
    ],
)
def test_what_cannot_be_a_job_is_refused_at_once(
    sit: Callable[..., FrameByFrame], keys: dict[str, object], error: type[CeError], sentence: str
) -> None:
    table = sit()
    with pytest.raises(error, match=sentence):
        table.submit(job(**keys).definition())
    assert table.machine.records == {}


@pytest.mark.parametrize("definition", [b"", b"[]", b"{", b'{"clusters": 2, "clutsers": 3}', b"\xff", b'{"name": 3}'])
def test_what_is_no_definition_is_refused(sit: Callable[..., FrameByFrame], definition: bytes) -> None:
    with pytest.raises(ConfigError):
        sit().submit(definition)


def test_the_same_token_and_job_are_one_job(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.submit(job().definition(), "token")
    table.submit(job().definition(), "token")
    assert list(table.machine.records) == ["job"]
    with pytest.raises(AlreadyExists, match="token"):
        table.submit(job("other").definition(), "token")
    with pytest.raises(AlreadyExists, match="another name"):
        table.submit(job().definition(), "another")
    with pytest.raises(InputError, match="token"):
        table.submit(job("other").definition(), "")


def test_jobs_wait_in_line_and_the_line_has_an_end(sit: Callable[..., FrameByFrame]) -> None:
    table = sit(Limits(jobs_at_once=1, jobs_waiting=2))
    for name in ("first", "second", "third"):
        table.submit(job(name).definition(), name)
    assert [record.state for record in table.machine.records.values()] == ["enrolling", "submitted", "submitted"]
    with pytest.raises(LimitReached, match="jobs_waiting"):
        table.submit(job("fourth").definition(), "fourth")
    table.do(table.machine.jobs.cancel("second", "olga", table.now))
    assert table.machine.records["second"].state == "cancelled"
    table.connect()
    table.run()
    assert [table.machine.records[name].state for name in ("first", "third")] == ["done", "done"]


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
def test_who_does_not_enrol_in_time_is_named(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.connect("east")
    table.submit(job(deadlines={"enrol_s": 60.0}).definition())
    table.run()
    assert table.machine.next_deadline == table.now + 60.0
    table.now += 59.9
    table.do(table.machine.jobs.tick(table.now))
    assert table.machine.records["job"].state == "enrolling"
    table.now += 0.2
    table.do(table.machine.jobs.tick(table.now))
    record = table.machine.records["job"]
    assert (record.state, record.exit_code) == ("failed", 7)
    assert record.reason.startswith("north and west did not enrol within deadlines.enrol_s, 60 s")
    assert table.machine.next_deadline is None


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
@pytest.mark.parametrize(("on_dropout", "state"), [("fail", "failed"), ("wait", "running")])
def test_a_round_without_an_answer_ends_as_the_job_says(
    sit: Callable[..., FrameByFrame], on_dropout: str, state: str
) -> None:
    table = sit()
    table.connect()
    table.submit(job(on_dropout=on_dropout, deadlines={"round_s": 10.0, "job_s": 100.0}).definition())
    while table.machine.records["job"].state != "running":
        table.step()
    table.lose_stream("west")
    table.run()
    table.now += 10.5
    table.do(table.machine.jobs.tick(table.now))
    assert table.machine.records["job"].state == state
    if state == "failed":
        assert "west did not answer within deadlines.round_s" in table.machine.records["job"].reason
        return
    status = job_status(table.machine, "job", table.now)
    assert [site.site for site in status.sites if site.awaited] == ["west"]
    table.connect("west")
    table.run()
    assert table.machine.records["job"].state == "done"


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
def test_no_job_outlives_its_deadline(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.connect("east", "north")
    table.submit(job(deadlines={"job_s": 30.0}).definition())
    table.run()
    table.now += 31
    table.do(table.machine.jobs.tick(table.now))
    assert "longer than its deadlines.job_s of 30 s; it waited for west" in table.machine.records["job"].reason


def test_a_restarted_coordinator_goes_on_where_its_store_says(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.connect()
    table.submit(job("over").definition(), "over")
    table.run()
    table.submit(job("open").definition(), "open")
    for _ in range(12):
        table.step()
    machine = Machine("table", "test", Limits(), 1, table.store.jobs(), table.store.sites())
    machine.know(dict.fromkeys(SITES, FINGERPRINT))
    steps = machine.jobs.start(2000.0)
    assert [step.record.epoch for step in steps if isinstance(step, SaveJob)] == [2]
    table.machine = machine
    table.do(steps)
    table.up.clear()
    table.connect()
    table.run()
    assert {name: record.state for name, record in machine.records.items()} == {"over": "done", "open": "done"}
    assert machine.records["open"].epoch == 2


def test_a_refusal_names_site_and_rule_and_reaches_everybody(sit: Callable[..., FrameByFrame], tmp_path: Path) -> None:
    table = sit()
    (tmp_path / "north" / "policy.toml").write_text('weakest_privacy = "masked"\nmin_sites = 1\n')
    table.connect()
    table.submit(job().definition())
    table.run()
    record = table.machine.records["job"]
    assert (record.state, record.rule, record.exit_code) == ("failed", "weakest_privacy", 6)
    assert record.reason.startswith('north: the job\'s sums are "plain"')
    assert all(not played_site.site_attempts for played_site in table.sites.values()), "a site was not told"


def test_cancelling_tells_everybody_and_twice_is_once(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.connect()
    table.submit(job().definition())
    for _ in range(10):
        table.step()
    table.do(table.machine.jobs.cancel("job", "olga", table.now))
    table.run()
    record = table.machine.records["job"]
    assert (record.state, record.reason, record.exit_code) == ("cancelled", "cancelled by olga", 8)
    assert table.machine.jobs.cancel("job", "otto", table.now) == []
    assert all(not played_site.site_attempts for played_site in table.sites.values())


def test_questions_about_jobs_that_are_not(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.submit(job("customers").definition())
    with pytest.raises(UnknownJob, match="did you mean customers"):
        table.machine.jobs.record("custmers")
    with pytest.raises(NotDone, match="enrolling"):
        table.machine.jobs.result("customers")


def test_a_hello_must_be_the_certificates(sit: Callable[..., FrameByFrame]) -> None:
    machine = sit().machine
    hello = pb.Hello(site="east", protocol=PROTOCOL, instance=bytes(16))
    with pytest.raises(NotAllowed, match="site north"):
        machine.connected(1, "north", FINGERPRINT, hello, 0.0)
    with pytest.raises(VersionMismatch, match="version 7 of the protocol, this coordinator version 4"):
        machine.connected(1, "east", FINGERPRINT, pb.Hello(site="east", protocol=7, instance=bytes(16)), 0.0)
    assert machine.connections == {}


def test_the_newest_stream_of_a_site_counts(sit: Callable[..., FrameByFrame]) -> None:
    machine = sit().machine
    hello = pb.Hello(site="east", protocol=PROTOCOL, instance=bytes(16))
    machine.connected(1, "east", FINGERPRINT, hello, 0.0)
    steps = machine.connected(2, "east", FINGERPRINT, hello, 1.0)
    assert [step.session for step in steps if isinstance(step, Close)] == [1]
    assert machine.disconnected(1, "late", 2.0) == []
    assert machine.connections["east"].session == 2
    machine.disconnected(2, "gone", 3.0)
    assert machine.sites["east"].last_seen == 3.0
    assert machine.connections == {}


def test_small_clusters_are_withheld_from_the_operator(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.connect()

    def report(name: str) -> dict[str, list[object]]:
        table.submit(job(name, max_iterations=100, restarts=3).definition(), name)
        table.run()
        found: dict[str, list[object]] = json.loads(table.machine.jobs.result(name))
        return found

    small, large = sorted(report("all")["sizes"])  # type: ignore[type-var]
    assert small != large
    table.machine.jobs._settings = replace(table.machine.jobs._settings, min_cluster=large)  # type: ignore[arg-type]
    some = report("some")
    assert sorted(map(str, some["sizes"])) == sorted(["None", str(large)])
    withheld = some["sizes"].index(None)
    assert [value is None for value in some["parameters"]["alpha"]] == [at == withheld for at in (0, 1)]  # type: ignore[call-overload]


@pytest.mark.promise("plain, masked and blind give the same bits.")
def test_the_operator_of_a_blind_job_hears_of_no_result_and_the_sites_get_the_same_bits(
    sit: Callable[..., FrameByFrame], tmp_path: Path
) -> None:
    table = sit()
    table.connect()
    reports, results = {}, {}
    for privacy in MODES_OF_TOTALS:
        table.submit(job("same", privacy=privacy).definition(), privacy)
        table.run()
        reports[privacy] = json.loads(table.machine.jobs.result("same"))
        results[privacy] = [(tmp_path / site / "results" / "same" / "consensus.csv").read_bytes() for site in SITES]
        table.machine.jobs.forget("same")
        for site in SITES:
            # Starts follow from the job's name, which stands for one job only.
            shutil.rmtree(tmp_path / site / "results")
            AttemptHistory(tmp_path / site / "state").forget("same")
            JobIndex(tmp_path / site / "state").forget("same")
    assert results["plain"] == results["masked"] == results["blind"]
    assert reports["masked"] == reports["plain"] | {"privacy": "masked"}
    of_the_job = ("job", "model", "privacy", "layout", "objects", "objects_in_fit", "excluded", "sites", "columns")
    assert tuple(reports["blind"]) == (*of_the_job, "exchanges", "bytes")
    assert {"bound_path", "parameters", "beta", "sizes"} <= set(reports["masked"])
    # Opening, counts, iterations, and the bound of what they ended with; blind: keys, shares and decisions, too.
    assert reports["masked"]["exchanges"] == reports["masked"]["iterations"] + 3
    assert reports["blind"]["exchanges"] > reports["masked"]["exchanges"]


@pytest.mark.promise("A site that misbehaves harms its own jobs only.")
def test_a_defect_ends_the_job_that_meets_it_and_nothing_else(
    sit: Callable[..., FrameByFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sit()
    table.connect()
    tasks = AttemptRounds.tasks

    def broken(rounds: AttemptRounds, sites: list[str]) -> object:
        if rounds.attempt.job == "unlucky":
            raise KeyError("secret")
        return tasks(rounds, sites)

    monkeypatch.setattr(AttemptRounds, "tasks", broken)
    for name in ("unlucky", "lucky"):
        table.submit(job(name).definition(), name)
    table.run()
    assert {name: record.state for name, record in table.machine.records.items()} == {
        "unlucky": "failed",
        "lucky": "done",
    }
    assert "unexpected error" in table.machine.records["unlucky"].reason
    note = next(note for note in table.notes if note.event == "unexpected error")
    assert note.fields["error"] == "KeyError"
    assert "secret" not in str(note)


def iterating(table: FrameByFrame) -> tuple[JobAttempt, AttemptRounds]:
    """Go on until iterations begin."""
    while True:
        attempt = table.machine.runs["job"].attempt
        if attempt is not None and attempt.rounds is not None and attempt.rounds.iterates:
            return attempt, attempt.rounds
        assert table.step()


@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
def test_pseudonyms_are_forgotten_when_iterations_begin(sit: Callable[..., FrameByFrame], privacy: str) -> None:
    table = sit()
    table.connect()
    table.submit(job(privacy=privacy).definition())
    attempt, rounds = iterating(table)
    assert [attempt.setup.objects(site) for site in SITES] == [30, 25, 20]
    assert not rounds._rows
    assert not any(len(enrolment.objects) for enrolment in attempt.setup.enrolments.values())
    table.lose_stream("north")
    table.connect("north")
    table.run()
    assert table.machine.records["job"].state == "done"


def test_frames_of_a_task_are_made_once_for_all_streams_and_kept_until_the_last_has_taken_them(
    sit: Callable[..., FrameByFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sit()
    table.connect()
    table.submit(job().definition())
    _, rounds = iterating(table)
    monkeypatch.setattr(array_chunks, "CHUNK", 16)  # so that a task has several frames
    (_, shared), (_, again) = rounds.tasks(["west", "west"])
    assert again is shared
    fast, slow = iter(shared), iter(shared)
    ahead = [weakref.ref(next(fast)) for _ in range(3)]
    assert all(alive() is not None for alive in ahead)
    for alive in ahead[:2]:
        assert next(slow) is alive()
    assert next(slow) is ahead[2]()
    assert [alive() is None for alive in ahead] == [True, True, False]
    rest = list(fast)
    assert len(rest) > 2
    assert list(slow) == rest
    last = weakref.ref(rest[-1])
    del rest
    assert last() is None


def test_a_frame_that_cannot_be_made_ends_every_stream_at_the_same_frame() -> None:
    def failing() -> Iterator[pb.CoordinatorFrame]:
        yield pb.CoordinatorFrame()
        raise MemoryError

    shared = _SharedFrames(failing(), 3)
    for stream in [iter(shared) for _ in range(3)]:
        next(stream)
        with pytest.raises(MemoryError):
            next(stream)


def hello_of(site: str, *lacks: pb.Feature) -> pb.Hello:
    return pb.Hello(site=site, protocol=PROTOCOL, instance=bytes(16), lacks=lacks)


def test_a_blind_job_fails_before_anybody_enrols_if_the_software_of_a_site_leaves_blind_out(
    sit: Callable[..., FrameByFrame],
) -> None:
    table = sit()
    table.connect()
    table.machine.directory.lacks["east"] = frozenset({pb.FEATURE_BLIND})
    table.submit(job(privacy="blind").definition())
    record = table.store.job("job")
    assert record is not None
    assert (record.state, record.rule) == ("failed", "feature of a site")
    assert "east takes no part in blind jobs" in record.reason
    sent = [pb.CoordinatorFrame.FromString(frame) for frames in table.down.values() for frame in frames]
    assert not any(frame.WhichOneof("frame") == "offer" for frame in sent)


def test_a_job_in_single_precision_fails_before_anybody_enrols_if_the_software_of_a_site_leaves_it_out(
    sit: Callable[..., FrameByFrame],
) -> None:
    table = sit()
    table.connect()
    table.machine.directory.lacks["east"] = frozenset({pb.FEATURE_SINGLE})
    table.submit(job(precision="single").definition())
    record = table.store.job("job")
    assert record is not None
    assert (record.state, record.rule) == ("failed", "feature of a site")
    assert "east takes no part in single-precision jobs: submit the job with precision" in record.reason
    sent = [pb.CoordinatorFrame.FromString(frame) for frames in table.down.values() for frame in frames]
    assert not any(frame.WhichOneof("frame") == "offer" for frame in sent)


def test_a_job_in_double_precision_runs_with_a_site_that_leaves_single_out(sit: Callable[..., FrameByFrame]) -> None:
    table = sit()
    table.connect()
    table.machine.directory.lacks["east"] = frozenset({pb.FEATURE_SINGLE})
    table.submit(job().definition())
    while table.step():
        pass
    record = table.store.job("job")
    assert record is not None
    assert record.state == "done"


def test_a_blind_job_that_waits_for_a_site_fails_when_that_connects_and_leaves_blind_out(
    sit: Callable[..., FrameByFrame],
) -> None:
    table = sit()
    table.connect("north", "west")
    table.submit(job(privacy="blind").definition())
    steps = table.machine.connected(99, "east", FINGERPRINT, hello_of("east", pb.FEATURE_BLIND), table.now)
    [record] = [step.record for step in steps if isinstance(step, SaveJob)]
    assert (record.state, record.rule) == ("failed", "feature of a site")


@pytest.mark.parametrize("lacks", [(), (pb.FEATURE_CHECKPOINTS,)])
def test_no_site_is_asked_for_a_checkpoint_if_the_software_of_one_writes_none(
    sit: Callable[..., FrameByFrame], lacks: tuple[pb.Feature, ...]
) -> None:
    table = sit(interval=CheckpointInterval(every_s=0, every_exchanges=1))
    table.connect()
    table.machine.directory.lacks["west"] = frozenset(map(int, lacks))
    table.submit(job().definition())
    asked = []
    while table.step():
        for frames in table.down.values():
            tasks = (pb.CoordinatorFrame.FromString(frame) for frame in frames)
            asked += [frame.task.checkpoint for frame in tasks if frame.WhichOneof("frame") == "task"]
    record = table.store.job("job")
    assert record is not None
    assert record.state == "done"
    assert any(asked) == (not lacks)


def test_a_feature_that_nobody_knows_is_refused(sit: Callable[..., FrameByFrame]) -> None:
    for number in (0, 99):
        hello = hello_of("east", number)  # type: ignore[arg-type]
        with pytest.raises(MessageError, match="lacks: expected features from 1 to 5"):
            sit().machine.connected(1, "east", FINGERPRINT, hello, 0.0)
