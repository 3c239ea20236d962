"""Sealed jobs whose parties are killed: one release, charged once, the same bytes, and labels that pooling gives.

Played worlds (`ce.testing`). Planted bugs prove that the checks of sealed jobs detect violations.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.schedules import SITES, Cases, check_sealed, results, same_starts, undisturbed

from ce.job import Deadlines
from ce.privacy.pair_keys import EphemeralKey
from ce.protocol.keys import handshake
from ce.protocol.keys.handshake import Handshake
from ce.protocol.messages.steps import Step
from ce.protocol.sealed import coordinator, site_release
from ce.protocol.sealed import site as sealed_site
from ce.protocol.sealed.channel import Channel
from ce.protocol.sealed.site_input import SiteContext
from ce.protocol.sealed.site_labels import SiteLabels
from ce.protocol.sealed.site_tables import SiteTables
from ce.testing import COORDINATOR, PlayedWorld, Violation
from ce_client.state.job_index import JobIndex
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger, entries
from ce_client.state.releases.database import FILE_NAME as DATABASE
from ce_client.state.releases.job_records import JobRecords

#: In their order; all are repeated in an attempt that takes up opened shares, but those from mask to commit.
BEFORE_OPENING: tuple[Step, ...] = ("meet", "mask", "verify", "commit")
STEPS: tuple[Step, ...] = (*BEFORE_OPENING, "release", "score", "compare", "settle", "prove", "reveal", "finish")
UNTIL_S = 400.0


@pytest.fixture(scope="module", name="cases")
def _cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"))


@contextlib.contextmanager
def played(cases: Cases, epsilon: str = "noise", seed: int = 1, **keys: Any) -> Iterator[PlayedWorld]:
    case = cases.of(epsilon, "pairs", "sealed")
    settings = cases.fresh(case)
    job = dataclasses.replace(case.job, **keys)
    with same_starts(case.job), PlayedWorld(seed, settings, job, fingerprints=cases.fingerprints(case)) as world:
        world.start_all()
        yield world
    cases.done_with(settings)


def run(world: PlayedWorld) -> str:
    world.run(UNTIL_S)
    world.run(world.clock.now + 10.0)
    return world.record.state


def assert_one_release(cases: Cases, world: PlayedWorld) -> None:
    """Done; each site has opened one share and was charged for it once, whatever happened."""
    assert run(world) == "done", world.record.reason
    world.checks.check_ledgers({SITES})
    check_sealed(world, cases.of("noise", "pairs", "sealed").tables)
    assert world.checks.sealed.opened.keys() == set(SITES)
    for site in SITES:
        releases = [line for line in entries(world.settings[site].state / LEDGER) if line["kind"] == "release"]
        assert len({(line["epoch"], line["sha256"]) for line in releases}) == 1
        with sqlite3.connect(world.settings[site].state / DATABASE) as database:
            assert database.execute("SELECT state, over FROM releases").fetchall() == [("opening", 1)]


def kill_at_each(world: PlayedWorld, process: str, steps: tuple[Step, ...], *, sent: bool) -> None:
    """Kill a process at the first of these steps, after its restart at the second, and so on."""
    left = list(steps)
    start = world.start

    def start_and_plan(started: str) -> None:
        start(started)
        if started == process and left:
            world.faults.kill_at_step(process, left.pop(0), sent, dead_for_s=0.05)

    world.start = start_and_plan  # type: ignore[method-assign]
    world.faults.kill_at_step(process, left.pop(0), sent, dead_for_s=0.05)


def killed_at(world: PlayedWorld, process: str) -> list[Step]:
    return [step for event in world.events for step in STEPS if f"{process} is killed at {step}," in event]


@pytest.mark.promise("kill -9 of any process at any moment ends with the same bits.")
@pytest.mark.parametrize(
    ("process", "sent"),
    [
        (COORDINATOR, True),
        ("east", False),
        *(pytest.param(*which, marks=pytest.mark.slow) for which in (("east", True), ("west", True), ("west", False))),
    ],
)
def test_one_release_whoever_is_killed_at_every_step_in_turn(cases: Cases, process: str, sent: bool) -> None:
    """One job, eleven kills."""
    with played(cases) as world:
        kill_at_each(world, process, STEPS, sent=sent)
        assert_one_release(cases, world)
    assert killed_at(world, process) == [*STEPS]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("process", [COORDINATOR, *SITES])
@pytest.mark.parametrize("times", [1, 4])
def test_one_release_whoever_is_killed_at_a_step(cases: Cases, process: str, step: Step, times: int) -> None:
    """Once, or again and again; with exact tables, so that the results are those of an undisturbed run."""
    case = cases.of("exact", "pairs", "sealed")
    for sent in (False, True) if process != COORDINATOR else (True,):
        with played(cases, "exact", seed=times) as world:
            # What comes before the opening does not come again after it.
            kill_at_each(world, process, (step,) * times, sent=sent)
            assert_one_release(cases, world)
            assert results(world.settings) == undisturbed(cases, case)
        assert killed_at(world, process) == [step] * times


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("process", [COORDINATOR, *SITES])
def test_one_release_whoever_is_killed_at_whichever_write(
    cases: Cases, process: str, before: bool, record_property: Any
) -> None:
    """Every write of an undisturbed job, one after the other."""
    case = cases.of("exact", "pairs", "sealed")
    for count in range(1, 1000):
        with played(cases, "exact") as world:
            world.faults.kill_at_write(process, count, before, 0.3)
            assert_one_release(cases, world)
            assert results(world.settings) == undisturbed(cases, case)
        if not any("killed at a write" in event for event in world.events):
            break
    assert count > (1 if process == COORDINATOR else 20)
    record_property("writes", count - 1)


# Disks that are lost.


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
@pytest.mark.parametrize(("step", "state"), [("commit", "done"), ("score", "failed")])
def test_a_site_that_lost_its_disk_ends_the_job_once_shares_are_opened(cases: Cases, step: Step, state: str) -> None:
    """Before, it makes another share; after, nobody makes one: the job fails, and the sites' records say why."""
    with played(cases) as world:
        start = world.start

        def start_empty(process: str) -> None:
            if process == "west" and world.sites["west"] is None:
                world.faults.empty_disk("west")
            start(process)

        world.start = start_empty  # type: ignore[method-assign]
        world.faults.kill_at_step("west", step, sent=True, dead_for_s=0.2)
        assert run(world) == state
        for site in ("east", "north"):
            with sqlite3.connect(world.settings[site].state / DATABASE) as database:
                assert database.execute("SELECT state FROM releases").fetchall() == [("opening",)]
        check_sealed(world, cases.of("noise", "pairs", "sealed").tables)
        assert all(world.checks.sealed.opened_by(site) for site in SITES)
        if state == "failed":
            told = [JobIndex(world.settings[site].state).find("job") for site in SITES]
            assert any("west has lost its share" in entry.reason for entry in told if entry is not None)
            assert "cannot go on" in world.record.reason


# Sites that stay away.


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
@pytest.mark.parametrize(
    ("step", "sent", "state"),
    [
        ("verify", False, "done"),  # begins again with the others
        ("release", False, "failed"),  # the others have opened their shares
        ("compare", True, "done"),  # its blocks are stopped
    ],
)
def test_a_site_that_stays_away_where_the_job_may_go_on(cases: Cases, step: Step, sent: bool, state: str) -> None:
    """Labels of the others are right or, of objects that it holds too, missing; nobody opens a second share."""
    deadlines = Deadlines(round_s=1.0, enrol_s=200.0, job_s=100_000.0)
    with played(cases, on_dropout="continue", deadlines=deadlines) as world:
        world.faults.kill_at_step("west", step, sent, dead_for_s=30.0)
        assert run(world) == state, world.record.reason
        check_sealed(world, cases.of("noise", "pairs", "sealed").tables)
        if state == "failed":
            assert "after shares of the tables may have been opened" in world.record.reason
        else:
            assert world.record.left_behind == ("west",)
            assert results(world.settings).keys() == {"east", "north"}


# Planted bugs.


def expect_violation(
    cases: Cases, match: str, process: str = "east", step: Step = "commit", epsilon: str = "noise"
) -> None:
    """A process is killed when its answer of this step is sent, and the check that this breaks is named."""
    with played(cases, epsilon) as world:
        world.faults.kill_at_step(process, step, sent=True, dead_for_s=0.1)
        with pytest.raises(Violation, match=match):
            run(world)


def lasting(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, draw: int) -> None:
    """In this method the `draw`-th random bytes of east are those of its first attempt."""
    original = getattr(owner, method)
    kept: list[bytes] = []

    def with_bytes_that_last(self: Any, *rest: Any) -> Any:
        context: SiteContext = rest[0] if method == "__init__" else self._context
        entropy, drawn = context.entropy, 0

        def again(size: int) -> bytes:
            nonlocal drawn
            drawn += 1
            if drawn != draw or context.site != "east":
                return entropy(size)
            kept.append(entropy(size))
            return kept[0]

        object.__setattr__(context, "entropy", again)
        try:
            return original(self, *rest)
        finally:
            object.__setattr__(context, "entropy", entropy)

    monkeypatch.setattr(owner, method, with_bytes_that_last)


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
@pytest.mark.parametrize(
    ("owner", "method", "draw", "step", "match"),
    [
        (SiteTables, "__init__", 1, "commit", "the seed of the products: is used twice"),
        (SiteTables, "__init__", 2, "commit", "the seed of the dealer's check: is used twice"),
        (SiteTables, "share", 1, "commit", "the stream of the noise: is used twice"),
        (SiteLabels, "_score", 3, "compare", "a seed of the dealer: is used twice"),
        (SiteLabels, "_score", 1, "compare", "the key of the order of rows: is used twice"),
        (sealed_site._Rounds, "_meet", 1, "verify", "the key of a block: is used twice"),
    ],
)
def test_random_bytes_that_outlive_a_process_are_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, draw: int, step: Step, match: str
) -> None:
    if method == "_meet":
        monkeypatch.setattr(owner, "_context", property(lambda rounds: rounds.context), raising=False)
    lasting(monkeypatch, owner, method, draw)
    expect_violation(cases, match, step=step)


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_a_nonce_that_is_used_twice_is_noticed(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    init = Channel.__init__

    def of_zeros(self: Channel, *rest: Any) -> None:
        init(self, *rest[:-1], bytes)

    monkeypatch.setattr(Channel, "__init__", of_zeros)
    expect_violation(cases, "a key with its nonce: is used twice")


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_rows_that_are_masked_twice_are_noticed(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    masked_rows = SiteTables.masked_rows
    monkeypatch.setattr(SiteTables, "masked_rows", lambda self: [masked_rows(self), masked_rows(self)][1])
    expect_violation(cases, "the mask of rows: is used twice")


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_masks_of_shares_that_are_used_in_two_attempts_are_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that outlive a process, and masks that are not bound to an attempt: either alone would not be enough."""
    keys: dict[str, EphemeralKey] = {}
    init, pair_key = Handshake.__init__, EphemeralKey.pair_key

    def with_a_key_that_lasts(self: Handshake, attempt: Any, site: str, *rest: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handshake, "EphemeralKey", lambda: keys.setdefault(site, EphemeralKey()))
            init(self, attempt, site, *rest)

    monkeypatch.setattr(EphemeralKey, "pair_key", lambda self, public, *context: pair_key(self, public))
    monkeypatch.setattr(Handshake, "__init__", with_a_key_that_lasts)
    monkeypatch.setattr(Channel, "transcript", b"")
    expect_violation(cases, "the mask of a share: is used twice")


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
@pytest.mark.parametrize(
    ("method", "state"),
    [("reserve", "reserved"), ("commit", "committed"), ("settle", "settled"), ("enter", "entered")],
)
def test_what_leaves_before_it_is_recorded_is_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch, method: str, state: str
) -> None:
    monkeypatch.setattr(JobRecords, method, lambda self, *what: None)
    expect_violation(cases, f"not recorded: expected {state}")


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_a_share_that_leaves_before_it_is_charged_is_noticed(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    release = JobRecords.release

    def seems_opening(self: JobRecords) -> Any:
        found = release(self)
        return found and dataclasses.replace(found, state="opening", commitments=dict.fromkeys(SITES, bytes(32)))

    monkeypatch.setattr(JobRecords, "open", lambda self, commitments: None)
    monkeypatch.setattr(JobRecords, "release", seems_opening)
    expect_violation(cases, "not recorded: expected opening", step="finish")


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
@pytest.mark.parametrize(
    ("table", "step", "match"),
    [("releases", "score", "opens two shares of one job"), ("labels", "reveal", "opens the labels of a block twice")],
)
def test_what_is_opened_twice_is_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch, table: str, step: Step, match: str
) -> None:
    """Records that no site has any more when a job is taken up again."""
    init = JobRecords.__init__

    def forget(self: JobRecords, database: Any, *rest: Any) -> None:
        init(self, database, *rest)
        with database.transaction() as opened:
            opened.execute(f"DELETE FROM {table}")

    monkeypatch.setattr(JobRecords, "__init__", forget)
    expect_violation(cases, match, COORDINATOR, step)


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
@pytest.mark.parametrize(("method", "at"), [("open", 0), ("enter", 2)])
def test_what_is_opened_before_all_have_committed_is_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch, method: str, at: int
) -> None:
    original = getattr(JobRecords, method)

    def without_the_others(self: JobRecords, *what: Any) -> None:
        commitments: Mapping[str, bytes] = what[at]
        original(self, *what[:at], dict.fromkeys(commitments, bytes(32)))

    monkeypatch.setattr(JobRecords, method, without_the_others)
    expect_violation(cases, "opens something before .* has committed")


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
@pytest.mark.parametrize(("kind", "match"), [("release", "opens a share"), ("labelling", "opens labels")])
def test_what_is_opened_before_it_is_in_the_ledger_is_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch, kind: str, match: str
) -> None:
    about_release = Ledger.about_release

    def without_one(self: Ledger, written: Any, *rest: Any, **values: Any) -> bytes:
        return b"" if written == kind else about_release(self, written, *rest, **values)

    monkeypatch.setattr(Ledger, "about_release", without_one)
    expect_violation(cases, f"{match} .* not in its ledger")


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_a_model_that_is_replaced_is_noticed(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that forget which model they have accepted, and a coordinator that counts clusters in another order."""
    fit, fits = coordinator.fit_model, list[int]()

    def turned(terms: Any, cells: Any) -> Any:
        fits.append(1)
        found = fit(terms, cells)
        order = slice(None, None, 1 if len(fits) == 1 else -1)
        return dataclasses.replace(found, weights=found.weights[order], beta=found.beta[:, order])

    monkeypatch.setattr(coordinator, "fit_model", turned)
    monkeypatch.setattr(site_release, "check_model", lambda terms, cells, model: None)
    monkeypatch.setattr(JobRecords, "accept_model", lambda self, model: None)
    expect_violation(cases, "accepts another model", COORDINATOR, "compare")


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_wrong_charges_are_noticed(cases: Cases) -> None:
    columns = "job, definition, state, at, rho, objects, labellings"
    with played(cases) as world:
        assert run(world) == "done"
        world.checks.sealed.check_releases()
        path = world.settings["east"].state / DATABASE
        content = path.read_bytes()
        for change, match in (
            ("UPDATE releases SET state = 'committed'", "a reservation of east outlives the job"),
            ("UPDATE releases SET rho = 2 * rho", "charged something else"),
            ("UPDATE releases SET objects = substr(objects, 33)", "charged something else"),
            ("DELETE FROM releases", "1 charges in its ledger, and 0"),
            (f"INSERT INTO releases (digest, {columns}) SELECT 'other', {columns} FROM releases", "charged 2 times"),
        ):
            with contextlib.closing(sqlite3.connect(path)) as database, database:
                database.execute(change)
            with pytest.raises(Violation, match=match):
                world.checks.sealed.check_releases()
            path.write_bytes(content)
        world.checks.sealed.check_releases()
