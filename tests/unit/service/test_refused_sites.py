"""A site that is refused knocks less and less often, and the coordinator's log does not fill up with it."""

from __future__ import annotations

import logging

import pytest

from ce.errors import CeError, NotAllowed, Unreachable, VersionMismatch
from ce.service.logs import _FIELDS
from ce_client.daemon.back_off import LONGEST_PAUSE_S, LONGEST_REFUSED_S, BackOff
from ce_coordinator.service.site_service import LOGGED, MOST_REASONS, REPEAT_REASON_S, RefusalLog


def knocks(errors: list[CeError]) -> list[float]:
    back_off = BackOff()
    return [back_off.failed(error) for error in errors]


@pytest.mark.parametrize("error", [NotAllowed("denied"), VersionMismatch("another version")])
def test_a_refused_site_waits_twice_as_long_each_time_up_to_a_minute(
    error: CeError, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="ce_client"):
        pauses = knocks([error] * 12)
    for pause, longest in zip(pauses, (1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 64, 64), strict=True):
        assert 0.7 * longest <= pause <= longest
    assert sum(pauses) > 5 * 60
    assert [record.message for record in caplog.records] == ["not connected; trying again"] * 12


def test_a_coordinator_that_is_away_is_tried_every_second() -> None:
    pauses = knocks([Unreachable("away")] * 100)
    assert max(pauses) <= LONGEST_PAUSE_S
    assert min(pauses[10:]) >= 0.7 * LONGEST_PAUSE_S


def test_a_site_that_was_let_in_begins_with_short_pauses_again() -> None:
    back_off = BackOff()
    for _ in range(10):
        last = back_off.failed(NotAllowed("denied"))
    assert last >= 0.7 * LONGEST_REFUSED_S
    back_off.connected()
    assert back_off.failed(NotAllowed("denied")) <= 1.0
    assert back_off.failed(Unreachable("away")) <= 0.2


def test_a_reason_is_logged_some_times_a_minute_and_counted_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = RefusalLog(lambda: now)
    with caplog.at_level(logging.WARNING):
        for second in range(150):
            now = float(second)
            refusals.refused("ipv4:1.2.3.4:5", "PERMISSION_DENIED", "the key of site ghost is on the deny list")
        refusals.refused("ipv4:1.2.3.4:5", "PERMISSION_DENIED", "the key of site other is on the deny list")
    not_logged = [vars(record)[_FIELDS].get("not_logged", 0) for record in caplog.records]
    # Three minutes have begun; one other reason.
    assert len(not_logged) == 3 * LOGGED + 1
    assert [count for count in not_logged if count] == [REPEAT_REASON_S - LOGGED] * 2


def test_reasons_take_little_memory() -> None:
    refusals = RefusalLog(lambda: 0.0)
    for number in range(2 * MOST_REASONS):
        refusals.refused("peer", "PERMISSION_DENIED", f"reason {number}")
    assert len(refusals._seen) == MOST_REASONS
