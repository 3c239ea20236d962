"""The entries of a site's jobs: what version 0.1.0 wrote is read, and a damaged file is named in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from ce_client.state.files import name_of
from ce_client.state.job_index import JobEntry, JobIndex

#: As version 0.1.0 wrote it.
BEFORE = {
    "job": "demo",
    "state": "asks",
    "epoch": 1,
    "model": "bce",
    "privacy": "masked",
    "sites": ["east", "north"],
    "coordinator": "hub",
    "since_s": 5.5,
    "reason": "waits for ce-client approve or decline",
    "rule": "",
    "rounds": 0,
}


def written(state: Path, content: str, job: str = "demo") -> Path:
    state.mkdir(exist_ok=True)
    path = state / f"{name_of(job)}.json"
    path.write_text(content)
    return path


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    entry = JobEntry("demo", "awaiting_consent", 2, "bce", "masked", ("east", "north"), "hub", reason="waits", rounds=3)
    JobIndex(tmp_path).write(entry)
    (found,) = JobIndex(tmp_path).entries()
    assert found.since_s > 0
    assert found == JobIndex(tmp_path).find("demo") == JobIndex(tmp_path).entry("demo")
    assert found == JobEntry(**{**vars(entry), "since_s": found.since_s})


def test_the_former_state_asks_is_read_as_awaiting_consent(tmp_path: Path) -> None:
    written(tmp_path, json.dumps(BEFORE))
    (found,) = JobIndex(tmp_path).entries()
    assert found == JobEntry(**{**BEFORE, "state": "awaiting_consent", "sites": ("east", "north")})  # type: ignore[arg-type]
    assert not found.over


def test_keys_of_a_later_version_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, json.dumps({**BEFORE, "colour": "green"}))
    found = JobIndex(tmp_path).find("demo")
    assert found is not None
    assert found.coordinator == "hub"
    assert not caplog.records


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"job": "demo"',
        *(
            json.dumps({**BEFORE, **wrong})
            for wrong in (
                {"job": 3},
                {"since_s": "now"},
                {"state": None},
                {"sites": 7},
                {"rounds": []},
            )
        ),
    ],
)
def test_a_damaged_entry_is_skipped_and_named_in_the_log_once(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    JobIndex(tmp_path).write(JobEntry("sound", "done", 1))
    path = written(tmp_path, content)
    index = JobIndex(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert [entry.job for entry in index.entries()] == ["sound"]
            assert index.find("demo") is None
    (record,) = caplog.records
    assert record.message == "entry of a job skipped"
    assert record.ce_fields["file"] == str(path)  # type: ignore[attr-defined]
    assert record.ce_fields["problem"] == "is damaged"  # type: ignore[attr-defined]
    assert index.count() == 2, "damaged ones count for the limit"


def test_no_entry_is_no_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert JobIndex(tmp_path / "nowhere").entries() == []
    assert JobIndex(tmp_path).find("demo") is None
    assert not caplog.records
