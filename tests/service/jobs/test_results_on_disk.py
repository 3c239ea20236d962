"""Where a site writes its results: never through a link, never elsewhere, and for a spreadsheet only if asked."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ce
from ce.consensus_file import as_it_is, as_text
from ce.errors import ConfigError
from ce.identity.names import check_name
from ce.testing import FrameByFrame, make_sites, open_site
from ce_client.config import ClientSettings
from ce_client.state.files import name_of
from ce_client.state.job_index import JobEntry, JobIndex
from ce_client.state.results import CONSENSUS, REPORT, Results
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north")
FORMULA = '=HYPERLINK("http://x","y")'
IDS = [FORMULA, "+1", "-1", "@SUM(1)", "a\tb", "=1", "plain", 'quote"d', "comma,d", "ö"]


def job(name: str = "job", **keys: Any) -> ce.Job:
    asked: dict[str, Any] = {"clusters": 2, "sites": SITES, "restarts": 1, "max_iterations": 2, "privacy": "plain"}
    return ce.Job(name=name, **(asked | keys))


@pytest.fixture(name="sites")
def _sites(tmp_path: Path) -> dict[str, ClientSettings]:
    paths = {site: tmp_path / f"{site}.csv" for site in SITES}
    for site, path in paths.items():
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["id", f"{site}a", f"{site}b", f"clf:{site}"])
            rows.writerows([own, at % 2, at % 3, FORMULA if at % 2 else "other"] for at, own in enumerate(IDS))
    return make_sites(tmp_path, paths)


def run(table: FrameByFrame, asked: ce.Job) -> Any:
    table.connect()
    table.submit(asked.definition(), asked.name)
    table.run()
    return table.machine.records[asked.name]


@pytest.fixture(name="precious")
def _precious(tmp_path: Path) -> Path:
    """What somebody would like the daemon to write over."""
    directory = tmp_path / "precious"
    directory.mkdir()
    for name in (CONSENSUS, REPORT, "keys"):
        (directory / name).write_text("precious\n")
    return directory


def untouched(precious: Path) -> bool:
    return {path.name: path.read_text() for path in precious.iterdir()} == dict.fromkeys(
        (CONSENSUS, REPORT, "keys"), "precious\n"
    )


PLANTED: dict[str, Callable[[Path, Path], Any]] = {
    "a link to a directory": lambda at, precious: at.symlink_to(precious),
    "a link to a file": lambda at, precious: at.symlink_to(precious / "keys"),
    "a link to nothing": lambda at, precious: at.symlink_to(precious / "not there"),
    "a link to itself": lambda at, _: at.symlink_to(at),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_link_in_place_of_results_is_refused_before_anything_is_computed(
    sites: dict[str, ClientSettings], precious: Path, plant: Callable[[Path, Path], Any]
) -> None:
    results = sites["north"].results
    results.mkdir()
    plant(results / "job", precious)
    table = FrameByFrame(sites)
    record = run(table, job())
    assert (record.state, record.exit_code) == ("failed", 4)
    refused = JobIndex(sites["north"].state).entry("job").reason
    assert refused == f"{results / 'job'}: is a symbolic link, and results are not written through links: remove it"
    assert untouched(precious)
    (results / "job").unlink()
    assert run(table, job("another")).state == "done"


def test_a_link_that_is_planted_while_a_job_runs_is_not_followed(
    sites: dict[str, ClientSettings], precious: Path
) -> None:
    table = FrameByFrame(sites)
    table.connect()
    table.submit(job().definition())
    for _ in range(25):
        table.step()
    (sites["north"].results / "job").symlink_to(precious)
    table.run()
    record = table.machine.records["job"]
    assert (record.state, record.exit_code) == ("failed", 7)
    assert record.reason == "north: this site cannot write its results: see its log, make room or set permissions"
    assert untouched(precious)


def test_links_inside_former_results_are_removed_and_not_followed(
    sites: dict[str, ClientSettings], precious: Path
) -> None:
    table = FrameByFrame(sites)
    assert run(table, job()).state == "done"
    own = sites["north"].results / "job"
    (own / CONSENSUS).unlink()
    (own / CONSENSUS).symlink_to(precious / "keys")
    (own / "more").symlink_to(precious)
    # The same job once more, as when the coordinator did not hear that it was done.
    again = (np.array(["a"]), np.array([0]), np.array([[1.0]]), ())
    Results(sites["north"].results).write(job(), *again, report={"epoch": 2})
    assert Results(sites["north"].results).publish("job", 2) == own
    assert untouched(precious)
    assert sorted(path.name for path in own.iterdir()) == [CONSENSUS, REPORT]
    assert not (own / CONSENSUS).is_symlink()


@pytest.mark.parametrize("kind", ["pipe", "endless", "deep", "link"])
def test_a_report_that_is_none_keeps_nobody_waiting(
    sites: dict[str, ClientSettings], precious: Path, kind: str
) -> None:
    own = sites["north"].results / "job"
    own.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(own / REPORT)
    elif kind == "endless":
        (own / REPORT).symlink_to("/dev/zero")
    elif kind == "link":
        (own / REPORT).symlink_to(precious / "keys")
    else:
        (own / REPORT).write_text("[" * 100_000)
    record = run(FrameByFrame(sites), job())
    assert (record.state, record.rule) == ("failed", "results of another job")
    assert untouched(precious)


def test_the_journal_is_not_written_through_a_link_and_is_its_owners_alone(
    sites: dict[str, ClientSettings], precious: Path
) -> None:
    state = sites["north"].state
    state.mkdir()
    for name in (f"{name_of('job')}.json", f"{name_of('job')}.part"):
        (state / name).symlink_to(precious / "keys")
    JobIndex(state).write(JobEntry("job", "offered", 1))
    assert untouched(precious)
    assert JobIndex(state).entry("job").state == "offered"
    assert (state / f"{name_of('job')}.json").stat().st_mode & 0o777 == 0o600


NOT_NAMES = ["", ".", "..", "../x", "x/../y", "/etc/passwd", "a\\b", "a\0b", "a\nb", "-rf", "~", "a/b", ".hidden", " a"]


@pytest.mark.parametrize("name", NOT_NAMES)
def test_a_name_that_leads_elsewhere_is_nobodys(sites: dict[str, ClientSettings], name: str) -> None:
    with pytest.raises(ConfigError):
        check_name(name)
    if name != "~":  # a directory of that name is one like any other
        with pytest.raises(ConfigError):
            job(name)
    # A coordinator may offer it all the same.
    played_site = open_site(sites["north"])
    before = sorted(path for path in sites["north"].state.parent.rglob("*") if "state" not in path.parts)
    definition = job("job").definition().replace(b'"name":"job"', b'"name":' + json.dumps(name).encode())
    for offered in (definition, job("job").definition()):
        own = played_site.site_jobs.addressed("offer", pb.Offer(job=name, epoch=1, definition=offered, roster=SITES))
        assert own is not None
        (reply,) = own.receive("offer", own)
        assert reply.WhichOneof("frame") == ("key_share" if name == "~" and offered is definition else "refusal")
        played_site.site_jobs.note(own)
        played_site.site_jobs.ended(pb.Ended(job=name, epoch=1, state="failed"))
    after = sorted(path for path in sites["north"].state.parent.rglob("*") if "state" not in path.parts)
    assert [path for path in after if path not in before] in ([], [sites["north"].results])


# Spreadsheets.


@pytest.mark.parametrize("safe", [False, True])
def test_ids_and_labels_come_back_byte_for_byte_unless_a_spreadsheet_is_to_read_them(
    sites: dict[str, ClientSettings], safe: bool
) -> None:
    chosen = {site: replace(own, for_spreadsheets=safe) for site, own in sites.items()}
    asked = job(model="bc3e", clusters=None, classes=(FORMULA, "other"))
    assert run(FrameByFrame(chosen), asked).state == "done"
    with (sites["north"].results / "job" / CONSENSUS).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header[3:] == [f"p:{FORMULA}", "p:other"]
    dangerous = ("=", "+", "-", "@", "\t", "\r")
    if safe:
        assert [row[0] for row in rows] == [f"'{own}" if own.strip(" ")[0] in dangerous else own for own in IDS]
        assert {row[1] for row in rows} == {f"'{FORMULA}", "other"}
        assert not any(cell.startswith(dangerous) for row in (header, *rows) for cell in row)
    else:
        assert [row[0] for row in rows] == IDS
        assert {row[1] for row in rows} == {FORMULA, "other"}


def test_numbers_are_no_formulas() -> None:
    assert [as_text(value) for value in (-1, 0, "a=1", "", "'")] == [-1, 0, "a=1", "", "'"]
    assert as_it_is(FORMULA) == FORMULA


def test_a_result_directory_that_is_a_link_is_the_administrators_choice(
    sites: dict[str, ClientSettings], tmp_path: Path
) -> None:
    (tmp_path / "large disk").mkdir()
    sites["north"].results.symlink_to(tmp_path / "large disk")
    assert run(FrameByFrame(sites), job()).state == "done"
    assert (tmp_path / "large disk" / "job" / CONSENSUS).exists()
