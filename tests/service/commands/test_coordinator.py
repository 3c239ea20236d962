"""ce-coordinator as an operator types it: what every command writes, prints and ends with."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.commands import (
    COORDINATOR,
    Run,
    check_examples,
    every_command,
    finished,
    read_until,
    run_fixture,  # noqa: F401 (a fixture)
    started,
    write_job,
)
from support.processes import PATIENCE_S, Deployment, free_port

import ce
from ce.cli.entry import run_async
from ce.cli.output import ago, size, span
from ce.identity.certificates import fingerprint, identity_of, read_certificate
from ce.identity.keys import make_key
from ce.identity.names import Identity
from ce.identity.requests import make_csr
from ce.service.settings import reference
from ce_coordinator.cli import picture
from ce_coordinator.cli.main import cli
from ce_coordinator.cli.watch import FIRST_INTERVAL_S, Lines, ended_as
from ce_coordinator.config import ENV_PREFIX, CoordinatorSettings, Log, Operator
from ce_coordinator.core.limits import Limits
from ce_proto.v1 import operator_pb2 as pb

COMMANDS = (
    "init",
    "sign",
    "check",
    "renew",
    "serve",
    "drain",
    "submit",
    "list",
    "show",
    "watch",
    "cancel",
    "result",
    "sites",
    "completion",
)
SITES = ("east", "north", "south")
#: Has a certificate, and a daemon only where a test starts it.
LATE = "late"


def write_labels(path: Path, site: str, n: int = 40) -> None:
    rows = [f"object{i},{i % 2},{i % 3}" for i in range(n)]
    path.write_text("\n".join([f"id,{site}_1,{site}_2", *rows]) + "\n")


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("deployment"), [*SITES, LATE])
    for site in deployment.sites:
        write_labels(deployment.directory / f"{site}.csv", site)
    deployment.allow(*SITES)
    deployment.allow(*SITES, LATE)
    try:
        for name in ("hub", *SITES):
            deployment.start(name)
        for site in SITES:
            deployment.processes[site].wait_for("connected")
        yield deployment
    finally:
        deployment.close()


@pytest.fixture(name="ask")
def _ask(run: Run, deployment: Deployment) -> Run:
    """A command of the operator, about the deployment."""
    return lambda command, *arguments: run("ce-coordinator", command, *arguments, "--config", deployment.hub)


@pytest.fixture(name="hub")
def _hub(run: Run, tmp_path: Path) -> Path:
    """A directory as `init` makes it; nothing runs there."""
    made = run("ce-coordinator", "init", tmp_path / "hub", "--listen", f"127.0.0.1:{free_port()}")
    assert made.code == 0
    return tmp_path / "hub"


# What all commands have.


def test_every_command_has_help_with_examples_that_can_be_typed() -> None:
    assert {name for name, _ in every_command(cli)} == set(COMMANDS)
    assert check_examples(cli, "ce-coordinator") >= 2 * len(COMMANDS)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=["", *COMMANDS])
def test_help_says_how_to_use_it(run: Run, command: list[str]) -> None:
    for option in ("--help", "-h"):
        shown = run("ce-coordinator", *command, option)
        assert (shown.code, shown.err) == (0, "")
        assert shown.out.startswith(f"Usage: ce-coordinator {' '.join(command)}".rstrip())
        assert "Examples:" in shown.out
        assert not re.search(r"\w\.\.\.$", shown.out.split("Options:")[-1], re.M), "a description is cut off"


def test_the_commands_are_listed_in_the_order_in_which_they_are_needed(run: Run) -> None:
    shown = run("ce-coordinator", "--help").out
    places = [shown.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert re.search(r"Exit codes:\n +0 ok +2 usage +3 bad input\n +4 .* +5 .* +6 .*\n +7 .* +8 .* +130", shown)


def test_version_and_completion(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("ce-coordinator", "--version").out == f"ce-coordinator, version {ce.__version__}\n"
    for shell in ("bash", "zsh", "fish"):
        script = run("ce-coordinator", "completion", shell)
        assert script.code == 0
        assert "_CE_COORDINATOR_COMPLETE" in script.out
    monkeypatch.setenv("_CE_COORDINATOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ce-coordinator s")
    monkeypatch.setenv("COMP_CWORD", "1")
    offered = run("ce-coordinator").out.split()
    assert sorted(word.removeprefix("plain,") for word in offered) == ["serve", "show", "sign", "sites", "submit"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["submitt"], "No such command 'submitt'. Did you mean 'submit'?"),
        (["list", "--confg", "x"], "No such option '--confg'. Did you mean '--config'?"),
        (["show"], "Missing argument 'JOB'."),
        (["result", "demo"], "Missing option '--out'."),
        (["sign", "a.csr", "--days", "0"], "0 is not in the range"),
        (["sign", "a.csr", "--as", "coordinator/hub"], "--as is site/NAME or operator/NAME"),
        (["serve", "--log-level", "loud"], "'loud' is not one of"),
    ],
)
def test_a_wrong_use_is_said_in_a_sentence_and_as_json(run: Run, arguments: list[str], sentence: str) -> None:
    wrong = run("ce-coordinator", *arguments)
    assert wrong.code == 2
    assert sentence in wrong.sentence
    as_json = run("ce-coordinator", *arguments, "--format", "json")
    assert as_json.code == 2
    assert sentence in as_json.sentence
    assert as_json.err.startswith("{")
    assert as_json.out == ""


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("init", "completion")])
def test_every_command_says_as_json_that_there_is_no_configuration(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "north.csr").write_bytes(make_csr(make_key(), Identity("site", "north")))
    job = write_job(tmp_path / "job.toml", sites=SITES)
    given: dict[str, list[object]] = {
        "submit": [job],
        "sign": [tmp_path / "north.csr"],
        "result": ["demo", "--out", tmp_path],
        "renew": ["operator"],
    }
    words = given.get(command, ["demo"] if command in ("show", "watch", "cancel") else [])
    ended = run("ce-coordinator", command, *words, "--config", tmp_path / "nowhere", "--format=json")
    assert ended.code == 4
    said = ended.json["checks"][0]["sentence"] if command == "check" else ended.sentence
    assert said.endswith("there is no configuration: run `ce-coordinator init DIR` once, then give --config DIR")


# Set up.


def test_init_makes_what_serve_needs(run: Run, hub: Path) -> None:
    assert {path.name for path in hub.iterdir()} == {
        *("authority", "coordinator.toml"),
        *("coordinator.key", "coordinator.pem", "operator.key", "operator.pem"),
    }
    assert stat.S_IMODE(hub.stat().st_mode) == 0o700
    for key in (hub / "coordinator.key", hub / "operator.key", hub / "authority" / "ca.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert identity_of(read_certificate(hub / "coordinator.pem")) == Identity("coordinator", "coordinator")
    assert identity_of(read_certificate(hub / "operator.pem")) == Identity("operator", "operator")
    checked = run("ce-coordinator", "check", "--config", hub)
    assert (checked.code, checked.err) == (0, "")
    assert "none yet (ce-coordinator sign)" in checked.out
    assert not (hub / "coordinator.sqlite").exists(), "a check makes nothing"


def test_the_file_that_init_writes_has_every_key_and_means_the_defaults(run: Run, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    assert (
        run("ce-coordinator", "init", hub, "--listen", "0.0.0.0:9000", "--name", "hub", "--operator", "olga").code == 0
    )
    text = (hub / "coordinator.toml").read_text()
    read = CoordinatorSettings.read(hub / "coordinator.toml")
    expected = CoordinatorSettings(listen="0.0.0.0:9000", operator=Operator(address="localhost:9000"))
    for table in ("", "operator", "checkpoints", "limits", "log"):
        ours, theirs = (getattr(s, table) if table else s for s in (read, expected))
        for key, value in vars(theirs).items():
            found = getattr(ours, key)
            if isinstance(value, Path):
                assert found == hub / value
            elif key not in ("operator", "checkpoints", "limits", "log"):
                assert found == value
    # And again with every key as if somebody had removed the "# " before it.
    uncommented = re.sub(r"(?m)^# (\w+ = .*)$", r"\1", text)
    written = tomllib.loads(uncommented)
    for row in reference(CoordinatorSettings, ENV_PREFIX):
        table, _, key = row.key.rpartition(".")
        assert key in (written[table] if table else written), row.key
        assert row.comment.split()[0] in text
    (hub / "coordinator.toml").write_text(uncommented)
    assert CoordinatorSettings.read(hub / "coordinator.toml") == read
    assert (read.limits, read.log) == (Limits(), Log())
    assert identity_of(read_certificate(hub / "coordinator.pem")).name == "hub"
    assert identity_of(read_certificate(hub / "operator.pem")).name == "olga"


@pytest.mark.parametrize(
    ("listen", "dialled"),
    [
        ("0.0.0.0:9000", "localhost:9000"),
        ("[::]:9000", "localhost:9000"),
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("10.1.2.3:9000", "10.1.2.3:9000"),
        ("[::1]:9000", "[::1]:9000"),
    ],
)
def test_the_operator_dials_where_the_coordinator_listens(run: Run, tmp_path: Path, listen: str, dialled: str) -> None:
    made = run("ce-coordinator", "init", tmp_path / "hub", "--listen", listen, "--format", "json")
    assert made.json["directory"] == str(tmp_path / "hub")
    assert CoordinatorSettings.read(tmp_path / "hub" / "coordinator.toml").operator.address == dialled


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "here"], "--listen is host:port"),
        (["--listen", "localhost:0"], "--listen is host:port"),
        (["--listen", "localhost:70000"], "--listen is host:port"),
        (["--listen", "::1:8443"], "--listen is host:port"),
        (["--listen", "local host:8443"], "--listen is host:port"),
        (["--name", "The Hub"], "cannot be a name"),
        (["--operator", "../olga"], "cannot be a name"),
    ],
)
def test_an_init_that_is_refused_leaves_nothing_behind(
    run: Run, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    refused = run("ce-coordinator", "init", tmp_path / "hub", *arguments)
    assert refused.code == 4
    assert sentence in refused.sentence
    assert list(tmp_path.iterdir()) == []


def test_init_never_overwrites(run: Run, hub: Path) -> None:
    before = {path: path.read_bytes() for path in hub.rglob("*") if path.is_file()}
    again = run("ce-coordinator", "init", hub)
    assert (again.code, again.sentence) == (4, f"{hub} has a coordinator already: choose another directory")
    (hub / "coordinator.toml").rename(hub / "kept.toml")
    again = run("ce-coordinator", "init", hub)
    assert again.code == 4
    assert "ca.pem exists already and is never overwritten" in again.sentence
    assert all(
        (path if path.exists() else hub / "kept.toml").read_bytes() == content for path, content in before.items()
    )


def test_the_environment_goes_before_the_file(hub: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file = hub / "coordinator.toml"
    for row in reference(CoordinatorSettings, ENV_PREFIX):
        value = {
            "listen": "localhost:1",
            "operator.address": "there:2",
            "metrics": "127.0.0.1:0",
            "log.level": "error",
            "log.format": "json",
        }.get(row.key, "7" if row.type in ("a whole number", "a number") else "elsewhere")
        with monkeypatch.context() as patched:
            patched.setenv(row.variable, value)
            table, _, key = row.key.rpartition(".")
            read = CoordinatorSettings.read(file)
            assert str(getattr(getattr(read, table) if table else read, key)).removesuffix(".0").endswith(value), (
                row.key
            )
    monkeypatch.setenv("CE_COORDINATOR_CONFIG", str(hub))
    assert run("ce-coordinator", "check").code == 0
    monkeypatch.setenv("CE_COORDINATOR_LIMITS_JOBS_AT_ONC", "7")
    refused = run("ce-coordinator", "list")
    assert refused.code == 4
    assert refused.sentence.endswith(
        "CE_COORDINATOR_LIMITS_JOBS_AT_ONC; did you mean CE_COORDINATOR_LIMITS_JOBS_AT_ONCE?"
    )


def test_sign_writes_what_a_site_needs_and_refuses_what_it_was_not_told(run: Run, hub: Path, tmp_path: Path) -> None:
    request, other = tmp_path / "north.csr", tmp_path / "other.csr"
    for path in (request, other):
        path.write_bytes(make_csr(make_key(), Identity("site", "north")))
    issued = hub / "authority" / "issued" / "site-north.pem"

    shown = run("ce-coordinator", "sign", request, "--show", "--format", "json")
    assert shown.json["identity"] == "ce://site/north"
    assert "asks for a certificate of site north" in run("ce-coordinator", "sign", request, "--show").out
    told = shown.json["fingerprint"]
    wrong = run("ce-coordinator", "sign", other, "--fingerprint", told, "--config", hub, "--out", tmp_path / "out")
    assert wrong.code == 4
    assert "the fingerprint of the request's key is not" in wrong.sentence
    assert not issued.exists()

    for _ in range(2):  # to sign again what is signed is no harm
        signed = run(
            "ce-coordinator", "sign", request, "--fingerprint", told, "--config", hub, "--out", tmp_path / "out"
        )
        assert signed.code == 0
        assert "send both to north" in signed.out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"north.pem", "ca.pem"}
    assert (tmp_path / "out" / "north.pem").read_bytes() == issued.read_bytes()

    taken = run("ce-coordinator", "sign", other, "--config", hub, "--out", tmp_path / "out")
    assert taken.code == 4
    assert "--replace" in taken.sentence
    replaced = run(
        *("ce-coordinator", "sign", other, "--replace", "--config", hub, "--out", tmp_path / "out", "--format", "json")
    )
    assert replaced.json["fingerprint"] != told
    assert replaced.json["written"] == [str(tmp_path / "out" / "north.pem"), str(tmp_path / "out" / "ca.pem")]
    assert "1 signed: north" in run("ce-coordinator", "check", "--config", hub).out


def test_an_operator_is_signed_only_by_name(run: Run, hub: Path, tmp_path: Path) -> None:
    request = tmp_path / "olga.csr"
    request.write_bytes(make_csr(make_key(), Identity("operator", "olga")))
    refused = run("ce-coordinator", "sign", request, "--config", hub)
    assert refused.code == 4
    assert "not for a site" in refused.sentence
    out = tmp_path / "out"
    assert run("ce-coordinator", "sign", request, "--as", "operator/olga", "--config", hub, "--out", out).code == 0
    assert identity_of(read_certificate(out / "olga.pem")) == Identity("operator", "olga")


def test_check_says_what_is_not_as_it_should_be(run: Run, hub: Path, tmp_path: Path) -> None:
    (hub / "operator.pem").unlink()
    (hub / "denied.txt").mkdir()
    checked = run("ce-coordinator", "check", "--config", hub, "--format", "json")
    assert checked.code == 4
    told = {check["check"]: check for check in checked.json["checks"]}
    assert [name for name, check in told.items() if not check["ok"]] == ["operator", "denied"]
    assert "operator.pem does not exist" in told["operator"]["sentence"]
    assert told["denied"]["exit_code"] == 4
    as_text = run("ce-coordinator", "check", "--config", hub)
    assert as_text.code == 4
    assert re.search(r"(?m)^to do  operator +.*operator.pem does not exist", as_text.out)
    assert re.search(r"(?m)^ok     store", as_text.out)


def test_check_names_the_certificates_that_end_soon(run: Run, hub: Path, tmp_path: Path) -> None:
    request = tmp_path / "north.csr"
    request.write_bytes(make_csr(make_key(), Identity("site", "north")))
    assert run("ce-coordinator", "sign", request, "--days", 10, "--config", hub, "--out", tmp_path).code == 0
    checked = run("ce-coordinator", "check", "--config", hub)
    assert checked.code == 4
    assert re.search(
        r"to do  expiry +certificates expire soon: that of site north in 9 days; sign new ones, or renew your own",
        checked.out,
    )


@pytest.mark.parametrize("whose", ["coordinator", "operator"])
def test_renew_keeps_the_name_and_the_key_unless_a_new_one_is_asked_for(run: Run, hub: Path, whose: str) -> None:
    before = read_certificate(hub / f"{whose}.pem")
    renewed = run("ce-coordinator", "renew", whose, "--days", 20, "--config", hub, "--format", "json").json
    same = read_certificate(hub / f"{whose}.pem")
    assert same.serial_number != before.serial_number
    assert (identity_of(same), fingerprint(same)) == (identity_of(before), fingerprint(before))
    assert renewed["fingerprint"] == fingerprint(before)
    checked = run("ce-coordinator", "check", "--config", hub)
    assert re.search(rf"to do  expiry +certificates expire soon: that of {whose} \w+ in 19 days", checked.out)

    mode = (hub / f"{whose}.key").stat().st_mode
    assert "with a new key" in run("ce-coordinator", "renew", whose, "--new-key", "--config", hub).out
    other = read_certificate(hub / f"{whose}.pem")
    assert identity_of(other) == identity_of(before)
    assert fingerprint(other) != fingerprint(before)
    assert (hub / f"{whose}.key").stat().st_mode == mode
    assert run("ce-coordinator", "check", "--config", hub).code == 0


def test_renew_makes_a_key_that_was_lost_and_changes_nothing_when_it_cannot_sign(run: Run, hub: Path) -> None:
    (hub / "operator.key").unlink()
    assert run("ce-coordinator", "renew", "operator", "--config", hub).code == 4
    assert run("ce-coordinator", "renew", "operator", "--new-key", "--config", hub).code == 0
    assert run("ce-coordinator", "check", "--config", hub).code == 0
    (hub / "authority" / "ca.key").rename(hub / "ca.key")
    before = {path: path.read_bytes() for path in hub.glob("operator.*")}
    refused = run("ce-coordinator", "renew", "operator", "--new-key", "--config", hub)
    assert refused.code == 4
    assert "ca.key does not exist" in refused.sentence
    assert {path: path.read_bytes() for path in hub.glob("operator.*")} == before


# Jobs.


def test_a_job_from_submission_to_its_result(ask: Run, deployment: Deployment, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", name="Kunden März", sites=SITES, max_iterations=30)
    submitted = ask("submit", job)
    assert submitted.code == 0
    assert submitted.out.endswith(f"follow it with: ce-coordinator watch 'Kunden März' --config {deployment.hub}\n")
    watched = ask("watch", "Kunden März")
    assert watched.code == 0
    *_, last, then = watched.out.splitlines()
    assert re.fullmatch(
        r"Kunden März: done, iteration \d+, bound -[\d.]+, exchanges \d+, [\d.]+ [kM]?B, took \d+ s", last
    )
    assert then.startswith("fetch the result with: ce-coordinator result 'Kunden März' --out DIR")

    status = ask("show", "Kunden März", "--format", "json").json
    assert (status["state"], status["model"], status["privacy"], status["operator"]) == ("done", "bce", "plain", "olga")
    assert [site["site"] for site in status["sites"]] == sorted(SITES)
    assert (status["layout"], status["objects"]) == ("column", 40)
    assert status["bytes"] > 10_000
    assert status["exchanges"] > 3
    shown = ask("show", "Kunden März").out
    assert re.search(rf"exchanges +{status['exchanges']}, {re.escape(size(status['bytes']))}\n", shown)
    assert re.search(r"took +\d+ s\n", shown)
    assert re.search(r"east +yes +", shown)

    fetched = ask("result", "Kunden März", "--out", tmp_path / "results")
    assert fetched.code == 0
    report = json.loads((tmp_path / "results" / "Kunden März.json").read_text())
    assert report["bytes"] == status["bytes"]
    assert f"after {report['iterations']} iterations; sizes {', '.join(map(str, report['sizes']))}" in fetched.out
    as_json = ask("result", "Kunden März", "--out", tmp_path / "results", "--format", "json").json
    assert as_json == {"written": str(tmp_path / "results" / "Kunden März.json"), "result": report}

    listed = ask("list", "--format", "json").json
    assert "Kunden März" in [entry["job"] for entry in listed]
    assert all(entry["bound_path"] == [] for entry in listed)
    assert re.search(r"Kunden März +done +bce +east, north, south +iteration \d+ +\d{4}-", ask("list").out)
    cancelled = ask("cancel", "Kunden März")
    assert (cancelled.code, cancelled.out) == (0, "job Kunden März is done: there was nothing left to cancel\n")


def test_submit_and_watch_with_json_is_one_status_a_line(ask: Run, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", name="json", sites=SITES, max_iterations=5)
    watched = ask("submit", job, "--watch", "--format", "json")
    assert (watched.code, watched.err) == (0, "")
    assert {line["job"] for line in watched.lines} == {"json"}
    assert watched.lines[-1]["state"] == "done"
    assert all(type(line["bytes"]) is int and type(line["objects"]) is int for line in watched.lines)


def test_sites_are_listed_with_who_is_connected(ask: Run, deployment: Deployment) -> None:
    listed = {site["site"]: site for site in ask("sites", "--format", "json").json}
    assert {name: site["connected"] for name, site in listed.items()} == {**dict.fromkeys(SITES, True), LATE: False}
    assert all(listed[site]["software"] == ce.__version__ for site in SITES)
    text = ask("sites").out
    assert re.search(rf"late +no +never +{listed[LATE]['fingerprint']}", text)
    assert re.search(rf"north +yes +.* {listed['north']['fingerprint']}\n", text)


def test_the_same_submission_twice_is_one_job_and_another_of_its_name_is_refused(ask: Run, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", name="twice", sites=SITES, max_iterations=2)
    assert ask("submit", job, "--token", "tonight").code == 0
    assert ask("submit", job, "--token", "tonight", "--watch").code == 0
    again = ask("submit", job)
    assert (again.code, again.sentence) == (3, "a job named 'twice' exists: give this one another name")
    other = write_job(tmp_path / "job.toml", name="thrice", sites=SITES)
    used = ask("submit", other, "--token", "tonight", "--format", "json")
    assert (used.code, used.sentence) == (3, "this token was used for another job: choose a new one")


@pytest.mark.parametrize("command", ["show", "watch", "cancel", "result"])
def test_an_unknown_job_is_bad_input(ask: Run, command: str, tmp_path: Path) -> None:
    more = ["--out", tmp_path] if command == "result" else []
    for words in ([], ["--format", "json"]):
        unknown = ask(command, "no such job", *more, *words)
        assert unknown.code == 3
        assert unknown.sentence == "no job is named 'no such job': ce-coordinator list shows all jobs"


def test_a_job_that_waits_says_for_whom_and_can_be_cancelled(ask: Run, deployment: Deployment, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", name="waiting", sites=(*SITES, LATE))
    assert ask("submit", job).code == 0
    deployment.processes["hub"].wait_for("job enrolling", job="waiting")
    shown = ask("show", "waiting").out
    assert re.search(r"waiting +for late \(never seen\); deadline in \d+ s\n", shown)
    early = ask("result", "waiting", "--out", tmp_path)
    assert early.code == 7
    assert early.sentence.startswith("job 'waiting' is enrolling; only a job that is done has a result")
    assert ask("cancel", "waiting").out == "job waiting is cancelled\n"
    assert ask("cancel", "waiting").code == 0
    for words in ([], ["--format", "json"]):
        watched = ask("watch", "waiting", *words)
        assert (watched.code, watched.sentence) == (8, "cancelled by olga")
    assert re.search(r"waiting +cancelled .* cancelled by olga\n", ask("list").out)


def test_watch_ends_as_the_job_ends(ask: Run, deployment: Deployment, tmp_path: Path) -> None:
    policy = deployment.directory / "south" / "policy.toml"
    kept = policy.read_text()
    try:
        policy.write_text('weakest_privacy = "plain"\nmin_sites = 5\n')
        refused = ask("submit", write_job(tmp_path / "job.toml", name="refused", sites=SITES), "--watch")
    finally:
        policy.write_text(kept)
    assert (refused.code, refused.sentence) == (
        6,
        "south: the job has 3 sites; this site asks for 5 (rule: min_sites)",
    )
    shown = ask("show", "refused").out
    assert re.search(r"rule +min_sites\n", shown)
    soon = {"name": "late", "sites": (*SITES, LATE), "deadlines.enrol_s": 0.5}
    failed = ask("submit", write_job(tmp_path / "job.toml", **soon), "--watch", "--format", "json")
    assert failed.code == 7
    assert "did not enrol within deadlines.enrol_s, 0.5 s: see that the sites run" in failed.sentence
    assert failed.lines[-1]["state"] == "failed"
    too_many = write_job(tmp_path / "job.toml", name="too many", sites=SITES, clusters=41)
    impossible = ask("submit", too_many, "--watch")
    assert impossible.code == 3
    assert impossible.sentence == "41 consensus clusters or classes for 40 objects: ask for fewer"


def test_ctrl_c_ends_the_watching_and_not_the_job(ask: Run, deployment: Deployment, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", name="goes on", sites=(*SITES, LATE))
    with started(COORDINATOR, "submit", job, "--watch", "--config", deployment.hub) as watching:
        assert watching.stdout is not None
        read = read_until(watching.stdout.fileno(), "goes on: enrolling")
        watching.send_signal(signal.SIGINT)
        ended = finished(watching, read)
    assert ended.code == 130
    assert ended.sentence == "interrupted"
    assert f"the job goes on; look again with: ce-coordinator watch 'goes on' --config {deployment.hub}" in ended.err
    assert ask("show", "goes on", "--format", "json").json["state"] == "enrolling"
    assert ask("cancel", "goes on").code == 0


def on_a_terminal(*arguments: object) -> tuple[subprocess.Popen[str], int]:
    """A command whose output goes to a terminal, and the terminal's other end."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", COORDINATOR, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, text=True, env=environment)
    os.close(theirs)
    return process, ours


def test_watch_on_a_terminal_draws_in_place(ask: Run, deployment: Deployment, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", name="drawn", sites=(*SITES, LATE))
    assert ask("submit", job).code == 0
    process, terminal = on_a_terminal("watch", "drawn", "--config", deployment.hub)
    try:
        # Twice: the second picture takes the place of the first.
        seen = read_until(terminal, "never seen); deadline in") + read_until(terminal, "never seen); deadline in")
        assert ask("cancel", "drawn").code == 0
        seen += read_until(terminal, "error:")
        assert process.wait(PATIENCE_S) == 8
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    assert "drawn  enrolling for " in text
    assert re.search(r"● north +seen", text)
    assert re.search(r"○ late +never seen +awaited", text)
    assert "\x1b[1A" in seen
    assert "cancelled by olga" in text


def test_watch_survives_a_restart_of_the_coordinator(deployment: Deployment, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", name="survives", sites=(*SITES, LATE), max_iterations=3)
    with started(COORDINATOR, "submit", job, "--watch", "--config", deployment.hub) as watching:
        assert watching.stdout is not None
        out = watching.stdout.fileno()
        read = read_until(out, "survives: enrolling")
        assert deployment.processes["hub"].stop() == 0
        read += read_until(out, f"{deployment.address} does not answer; waiting for it, at most")
        deployment.start("hub")
        read += read_until(out, "survives: enrolling, attempt 2")
        late = deployment.start(LATE)
        ended = finished(watching, read)
        late.stop()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-2].startswith("survives: done, attempt 2")


def test_a_coordinator_that_is_not_there_is_unreachable(run: Run, hub: Path, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", sites=SITES)
    address = CoordinatorSettings.read(hub / "coordinator.toml").operator.address
    for words in (["list"], ["sites"], ["show", "x"], ["watch", "x"], ["cancel", "x"], ["submit", job, "--watch"]):
        gone = run("ce-coordinator", *words, "--config", hub)
        assert (gone.code, gone.out) == (5, "")
        assert gone.sentence == f"nothing listens at {address}: is the coordinator running, is the port right?"
    as_json = run("ce-coordinator", "watch", "x", "--config", hub, "--format", "json")
    assert json.loads(as_json.err)["exit_code"] == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_stops_cleanly_and_logs_as_it_is_asked(hub: Path, number: int) -> None:
    with started(COORDINATOR, "--log-level", "debug", "serve", "--config", hub, "--format", "json") as serving:
        assert serving.stderr is not None
        read = read_until(serving.stderr.fileno(), '"listening"')
        serving.send_signal(number)
        ended = finished(serving)
    assert (ended.code, ended.out) == (0, "")
    events = [json.loads(line) for line in (read + ended.err).splitlines()]
    assert events[-1]["event"] == "stopped"
    assert "debug" in {event["level"] for event in events}
    # Every event once: what is logged must not come back through the descriptor that gRPC writes to.
    assert len(events) < 50


class PollerCompletionQueue:
    """What gRPC's of this name does in a process that has had another event loop before."""

    def find_nothing(self) -> None:
        raise BlockingIOError

    def find_a_closed_loop(self) -> None:
        raise RuntimeError("Event loop is closed")


def test_grpcs_complaints_about_former_event_loops_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    def defect() -> None:
        raise RuntimeError("ours")

    async def work() -> int:
        loop, queue = asyncio.get_running_loop(), PollerCompletionQueue()
        for callback in (queue.find_nothing, queue.find_a_closed_loop, defect):
            loop.call_soon(callback)
        return await asyncio.to_thread(int, "3")

    assert run_async(work()) == 3
    (record,) = caplog.records
    assert "defect" in record.getMessage()


# What a watcher sees.


def status_of(**fields: Any) -> pb.JobStatus:
    given: dict[str, Any] = {
        "job": "demo",
        "state": "running",
        "model": "bce",
        "privacy": "plain",
        "epoch": 1,
        "now_s": 1000.0,
        "submitted_s": 900.0,
        "changed_s": 940.0,
        "deadline_s": 87300.0,
        "layout": "row",
        "objects": 1234,
        "sites": [
            pb.SiteStatus(site=site, connected=True, last_seen_s=999.5, awaited=True, objects=617) for site in "ab"
        ],
    }
    return pb.JobStatus(**{**given, **fields})


RUNNING: dict[str, Any] = {
    "iteration": 20,
    "max_iterations": 300,
    "starts_running": 1,
    "exchanges": 22,
    "exchanges_per_s": 4.0,
    "bytes": 1_999_600,
    "bound_path": [-9.0, -5.0, -4.0, -3.5, -3.25],
}


def drawn(status: pb.JobStatus, **how: Any) -> list[str]:
    console = Console(width=120, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(picture.picture(status, **how))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_picture_of_a_job_that_runs() -> None:
    assert drawn(status_of(**RUNNING)) == [
        "demo  running for 60 s  bce, plain sums, row layout, 1,234 objects",
        "  ● a  seen just now  617 objects",
        "  ● b  seen just now  617 objects",
        "iteration  20 of at most 300, 1 start running",
        "bound      -3.2500  ▁▁▅▇█",
        "exchanges  22, 4.0 per second, 2 MB",
        "time left  at most 70 s at this rate; deadline in 24 h",
    ]
    assert not any(ord(letter) > 127 for line in drawn(status_of(**RUNNING), ascii_only=True) for letter in line)


SEALED: dict[str, Any] = {"model": "pairs", "privacy": "sealed", "iteration": 1, "max_iterations": 36}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"state": "aligning"}, None),
        ({"phase": "scoring", "iteration": 9, "exchanges": 9}, "phase scoring, round 9 of at most 36"),
        ({"state": "done", "iteration": 35, "exchanges": 35}, None),
        ({"state": "failed", "reason": "a site is missing"}, None),
    ],
)
def test_a_sealed_job_has_phases_and_rounds_and_no_iterations(fields: dict[str, Any], where: str | None) -> None:
    status = status_of(**{**SEALED, **fields})
    said = picture.line(status)
    assert "iteration" not in said + " ".join(drawn(status))
    assert "round" not in said if where is None else where in said


def test_a_picture_of_a_job_that_waits() -> None:
    missing = pb.SiteStatus(site="c", connected=False, last_seen_s=400.0, awaited=True)
    silent = pb.SiteStatus(site="d", connected=True, last_seen_s=980.0, awaited=True)
    status = status_of(**RUNNING)
    status.sites.extend([missing, silent])
    lines = drawn(status)
    assert "  ○ c  seen 10 min ago               awaited" in lines
    assert "  ● d  seen 20 s ago                 awaited" in lines
    assert lines[-1] == "waiting    for c (seen 10 min ago), d (seen 20 s ago); deadline in 24 h"


def test_a_picture_has_room_for_those_that_are_missed() -> None:
    status = status_of()
    status.sites.extend(pb.SiteStatus(site=f"site{i:03}", connected=True, last_seen_s=1000.0) for i in range(100))
    status.sites.append(pb.SiteStatus(site="zulu", awaited=True))
    lines = drawn(status, rows=5)
    assert lines[1].startswith("  ○ zulu")
    assert lines[6] == "    and 98 more, 98 of them connected"


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, 70.0),  # one exchange for each of 280 iterations, 4 in a second
        ({"exchanges": 41}, 140.0),  # two for each
        ({"iteration": 1, "exchanges": 3}, 2 * 299 / 4),  # too early to tell
        ({"iteration": 300, "exchanges": 302}, 0.0),
        ({"iteration": 0}, None),
        ({"exchanges_per_s": 0.0}, None),
        ({"bound_path": []}, None),  # another stage follows
        ({"state": "enrolling"}, None),
    ],
)
def test_the_time_left_is_said_only_when_it_is_known(fields: dict[str, Any], left: float | None) -> None:
    assert picture.most_time_left(status_of(**(RUNNING | fields))) == left


def test_lines_come_at_changes_and_then_less_and_less_often(capsys: pytest.CaptureFixture[str]) -> None:
    view, times = Lines(), []
    for second in range(400):
        view.show(status_of(now_s=1000.0 + second, sites=[], **RUNNING))
        if capsys.readouterr().out:
            times.append(second)
    first = int(FIRST_INTERVAL_S)
    assert times[:5] == [0, first, 3 * first, 7 * first, 15 * first]
    assert max(later - earlier for earlier, later in pairwise(times)) == 60
    view.show(status_of(now_s=1400.0, sites=[], **(RUNNING | {"state": "done", "changed_s": 1400.0})))
    assert capsys.readouterr().out == "demo: done, iteration 20, bound -3.2500, exchanges 22, 2 MB, took 8 min\n"


def test_the_curve_of_a_bound() -> None:
    assert picture.curve([]) == ""
    assert picture.curve([float("nan"), float("-inf")]) == ""
    assert picture.curve([1.0]) == "▁"
    assert picture.curve([1.0] * 500) == "▁" * 40
    rising = picture.curve([-1000.0, *(float(i) for i in range(400))])
    assert len(rising) == 40
    assert rising == "".join(sorted(rising))
    assert rising[-1] in "▇█"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (1.4, "1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (86400 * 1.5, "36 h"),
        (86400 * 400, "400 d"),
        (1e9, "11,574 d"),
    ],
)
def test_time_spans_as_people_say_them(seconds: float, text: str) -> None:
    assert span(seconds) == text
    assert ago(seconds) == ("just now" if seconds < 2 else f"{text} ago")


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (1.5e9, "1.5 GB"),
        (2.5e12, "2.5 TB"),
        (1e16, "10,000.0 TB"),
    ],
)
def test_sizes_as_people_say_them(n: float, text: str) -> None:
    assert size(n) == text


@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"state": "cancelled", "reason": "cancelled by olga", "exit_code": 8}, 8, "cancelled by olga"),
        ({"state": "failed", "reason": "no", "rule": "min_sites", "exit_code": 6}, 6, "no (rule: min_sites)"),
        ({"state": "failed", "reason": "labels", "exit_code": 3}, 3, "labels"),
        ({"state": "failed", "reason": "policy", "exit_code": 4}, 4, "policy"),
        ({"state": "failed", "reason": "it broke", "exit_code": 7}, 7, "it broke"),
        ({"state": "failed"}, 7, "job demo is failed"),
    ],
)
def test_the_end_of_a_job_is_an_exit_code(fields: dict[str, Any], code: int, sentence: str) -> None:
    error = ended_as(status_of(**fields))
    assert (error.exit_code, str(error)) == (code, sentence)
