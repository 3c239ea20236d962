"""`ce.testing`: the examples of docs/testing.md run, and faults do what they say."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ce
from ce.testing import COORDINATOR, FakeClock, FrameByFrame, PlayedWorld, Violation, make_sites, random_faults
from ce_client.config import ClientSettings
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import entries
from ce_coordinator.core.instructions import SaveJob

ROOT = Path(__file__).parents[3]
SITES = ("east", "north", "west")
JOB = ce.Job(name="job", clusters=2, sites=SITES, restarts=1, max_iterations=6, tolerance=0.0)
SECRETS = {site: site.encode().ljust(32, b".") for site in SITES}


@pytest.fixture(name="tables")
def _tables() -> dict[str, ce.LabelTable]:
    rng = np.random.default_rng(5)
    truth = rng.integers(0, 2, 24)
    noise = {site: np.where(rng.random((24, 2)) < 0.1, 1 - truth[:, None], truth[:, None]) for site in SITES}
    ids = [f"o{i}" for i in range(24)]
    return {
        site: ce.LabelTable.from_arrays(cells, ids=ids, columns=[f"{site}{j}" for j in range(2)])
        for site, cells in noise.items()
    }


@pytest.fixture(name="sites")
def _sites(tmp_path: Path, tables: dict[str, ce.LabelTable]) -> dict[str, ClientSettings]:
    return make_sites(tmp_path, tables, SECRETS)


def test_the_examples_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    python = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(encoding="utf-8"))
    assert len(python) == 2
    for block in python:
        exec(block, names)
    assert names["state"] == names["outcome"] == "done"
    assert names["consensus"].startswith("id,label,confidence,p0")
    assert names["frames"] > 3 * JOB.max_iterations
    assert names["world"].attempts > 1
    assert any("north is killed" in event for event in names["world"].events)


def test_it_needs_no_test_framework() -> None:
    code = "import ce.testing, sys; assert not {'pytest', '_pytest', 'hypothesis'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.promise("Every transport gives the same bits: in process, gRPC, real daemons.")
def test_a_played_job_has_the_results_of_a_simulation(
    sites: dict[str, ClientSettings], tables: dict[str, ce.LabelTable]
) -> None:
    played = FrameByFrame(sites)
    played.connect()
    played.submit(JOB.definition())
    played.run()
    record = played.store.job(JOB.name)
    assert record is not None
    assert record.state == "done"
    simulated = ce.simulate(JOB, tables, secrets=SECRETS)
    for site, settings in sites.items():
        lines = (settings.results / "job" / "consensus.csv").read_text().splitlines()[1:]
        memberships = np.array([[float(p) for p in line.split(",")[3:]] for line in lines])
        np.testing.assert_array_equal(memberships, simulated.sites[site].memberships)


def run(world: PlayedWorld) -> str:
    world.start_all()
    world.run(400.0)
    world.checks.check_ledgers({SITES})
    return world.record.state


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("process", [COORDINATOR, "north"])
def test_a_process_can_be_killed_at_a_write(sites: dict[str, ClientSettings], process: str, before: bool) -> None:
    with PlayedWorld(1, sites, JOB) as world:
        world.faults.kill_at_write(process, 2, before, 0.3)
        assert run(world) == "done"
    assert sum(f"{process} is killed at a write" in event for event in world.events) == 1


def test_equal_seeds_play_equal_worlds(tmp_path: Path, tables: dict[str, ce.LabelTable]) -> None:
    def play(at: str) -> tuple[list[str], float]:
        (tmp_path / at).mkdir()
        with PlayedWorld(3, make_sites(tmp_path / at, tables, SECRETS), JOB) as world:
            assert random_faults(world, random.Random(8), 0.5) >= 1
            assert run(world) == "done"
        return world.events, world.clock.now

    first, second = play("first"), play("second")
    assert first == second
    assert first[0]


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_a_broken_promise_stops_the_world(sites: dict[str, ClientSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that announces before it saves."""
    do = PlayedWorld.do

    def announce_first(self: PlayedWorld, steps: Any) -> None:
        steps = sorted(steps, key=lambda step: isinstance(step, SaveJob))
        do(self, [step for step in steps if not isinstance(step, SaveJob)])
        do(self, [step for step in steps if isinstance(step, SaveJob)])

    monkeypatch.setattr(PlayedWorld, "do", announce_first)
    with PlayedWorld(1, sites, JOB) as world, pytest.raises(Violation, match="not saved"):
        run(world)


@pytest.mark.parametrize(("process", "sent"), [(COORDINATOR, True), ("north", False), ("north", True)])
def test_a_process_can_be_killed_at_a_step(sites: dict[str, ClientSettings], process: str, sent: bool) -> None:
    with PlayedWorld(1, sites, JOB) as world:
        world.faults.kill_at_step(process, "finish", sent, 0.3)
        assert run(world) == "done"
    assert sum(f"{process} is killed at finish" in event for event in world.events) == 1
    assert world.attempts == 2


def test_a_site_that_loses_its_disk_begins_with_an_empty_one(sites: dict[str, ClientSettings]) -> None:
    with PlayedWorld(1, sites, JOB) as world:
        world.clock.at(0.2, lambda: world.faults.lose_disk("north", dead_for_s=0.3))
        assert run(world) == "done"
    assert world.attempts == 2
    assert {line["epoch"] for line in entries(sites["north"].state / LEDGER) if line["kind"] == "begin"} == {2}
    assert {line["epoch"] for line in entries(sites["west"].state / LEDGER) if line["kind"] == "begin"} == {1, 2}


def test_nothing_stays_patched(sites: dict[str, ClientSettings]) -> None:
    import os

    from ce.privacy import masks
    from ce.privacy.dealt_products import SiteProducts
    from ce.protocol.sealed.channel import Channel
    from ce.protocol.sealed.site import SealedSite
    from ce_client.state.ledger import Ledger
    from ce_client.state.releases.database import ReleaseDatabase

    def patched() -> tuple[Any, ...]:
        sealed = (SealedSite.__init__, SealedSite.answer, Channel.to_block, Channel._encrypt, SiteProducts.__init__)
        database = (ReleaseDatabase.transaction, ReleaseDatabase.connection_class)
        return (os.fsync, masks.Keystream, masks.Masks.mask, Ledger._append, *sealed, *database)

    before = patched()
    with PlayedWorld(1, sites, JOB):
        assert not any(now is then for now, then in zip(patched(), before, strict=True))
    assert patched() == before


def test_events_happen_in_order_and_not_after_their_process_has_ended() -> None:
    clock = FakeClock(("north",))
    seen: list[tuple[str, float]] = []
    for delay, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        clock.at(delay, lambda name=name: seen.append((name, clock.now)))  # type: ignore[misc]
    clock.at(3.0, lambda: seen.append(("never", clock.now)), "north")
    clock.at(2.5, lambda: clock.end_process("north"))
    clock.at(9.0, lambda: seen.append(("too late", clock.now)))
    clock.run(8.0)
    assert seen == [("first", 1.0), ("second", 1.0), ("late", 2.0)]
    assert not clock.at_rest


def test_a_world_that_never_rests_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ce.testing.clock.MAX_EVENTS", 10)
    clock = FakeClock()

    def again() -> None:
        clock.at(1.0, again)

    again()
    with pytest.raises(RuntimeError, match="still planned"):
        clock.run(100.0)
