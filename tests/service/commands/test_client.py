"""ce-client as the people of a site type it: what every command writes, prints and ends with."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import (
    CLIENT,
    Run,
    check_examples,
    every_command,
    finished,
    read_until,
    run_fixture,  # noqa: F401 (a fixture)
    started,
    write_job,
)
from support.processes import Deployment

import ce
from ce.identity.certificates import fingerprint
from ce.identity.keys import make_key, read_key, read_secret
from ce.identity.requests import read_csr
from ce.policy import Policy
from ce.service.settings import reference
from ce.testing import make_sites
from ce_client.cli.main import cli
from ce_client.config import ENV_PREFIX, ClientSettings, Labels, Log
from ce_client.daemon.connection import Connection
from ce_client.state.job_index import JobEntry, JobIndex
from ce_proto.v1 import site_pb2

COMMANDS = (
    *(
        "init",
        "fingerprint",
        "trust",
        "check",
        "request",
        "run",
        "jobs",
        "show",
        "preview",
        "approve",
        "decline",
        "allow-roster",
        "allow-definition",
        "allow-release",
        "allow-redraw",
    ),
    *("ledger", "budget", "forget", "completion"),
)
SITES = ("east", "north", "south")


def write_labels(path: Path, site: str, n: int = 40) -> None:
    rows = [f"object{i},{i % 2},{i % 3}" for i in range(n)]
    path.write_text("\n".join([f"id,{site}_1,{site}_2", *rows]) + "\n")


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("deployment")
    for site in SITES:
        write_labels(directory / f"{site}.csv", site)
    with Deployment(directory, SITES) as deployment:
        yield deployment


@pytest.fixture(name="north")
def _north(run: Run, tmp_path: Path) -> Path:
    """A directory as `init` makes it."""
    write_labels(tmp_path / "labels.csv", "north")
    made = run("ce-client", "init", tmp_path / "north", "--name", "north", "--labels", tmp_path / "labels.csv")
    assert made.code == 0
    return tmp_path / "north"


# What all commands have.


def test_every_command_has_help_with_examples_that_can_be_typed() -> None:
    assert {name for name, _ in every_command(cli)} == set(COMMANDS)
    assert check_examples(cli, "ce-client") >= 2 * len(COMMANDS)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=["", *COMMANDS])
def test_help_says_how_to_use_it(run: Run, command: list[str]) -> None:
    for option in ("--help", "-h"):
        shown = run("ce-client", *command, option)
        assert (shown.code, shown.err) == (0, "")
        assert shown.out.startswith(f"Usage: ce-client {' '.join(command)}".rstrip())
        assert "Examples:" in shown.out
        assert not re.search(r"\w\.\.\.$", shown.out.split("Options:")[-1], re.M), "a description is cut off"


def test_the_commands_are_listed_in_the_order_in_which_they_are_needed(run: Run) -> None:
    shown = run("ce-client", "--help").out
    places = [shown.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert "Exit codes:" in shown


def test_version_and_completion(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("ce-client", "--version").out == f"ce-client, version {ce.__version__}\n"
    for shell in ("bash", "zsh", "fish"):
        assert "_CE_CLIENT_COMPLETE" in run("ce-client", "completion", shell).out
    monkeypatch.setenv("_CE_CLIENT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ce-client trust --re")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run("ce-client").out.split() == ["plain,--replace"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trsut"], "No such command 'trsut'. Did you mean 'trust'?"),
        (["init", "here"], "Missing option '--name'."),
        (["trust", "south"], "Missing argument 'SHA256:...'."),
        (["run", "--log-level", "loud"], "'loud' is not one of"),
    ],
)
def test_a_wrong_use_is_said_in_a_sentence_and_as_json(run: Run, arguments: list[str], sentence: str) -> None:
    for words in ([], ["--format", "json"]):
        wrong = run("ce-client", *arguments, *words)
        assert wrong.code == 2
        assert sentence in wrong.sentence


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("init", "completion")])
def test_every_command_says_as_json_that_there_is_no_configuration(run: Run, tmp_path: Path, command: str) -> None:
    words = {"trust": ["south", f"SHA256:{'0' * 64}"], "ledger": ["list"]}.get(command, [])
    if command in ("show", "preview", "approve", "decline", "forget") or command.startswith("allow-"):
        words = ["demo"]
    ended = run("ce-client", command, *words, "--config", tmp_path / "nowhere", "--format", "json")
    assert ended.code == 4
    said = ended.json["checks"][0]["sentence"] if command == "check" else ended.sentence
    assert said.endswith("there is no configuration: run `ce-client init DIR --name NAME` once, then give --config DIR")


# Set up.


def test_init_makes_what_a_site_needs(run: Run, north: Path, tmp_path: Path) -> None:
    assert {path.name for path in north.iterdir()} == {"client.toml", "north.csr", "policy.toml", "secret", "site.key"}
    for private in ("site.key", "secret"):
        assert stat.S_IMODE((north / private).stat().st_mode) == 0o600
    assert len(read_secret(north / "secret")) == 32
    request = read_csr((north / "north.csr").read_bytes())
    assert str(request.identity) == "site north"
    own = fingerprint(read_key(north / "site.key").public_key())
    assert fingerprint(request.public_key) == own
    assert run("ce-client", "fingerprint", "--config", north).out == f"{own}\n"
    as_json = run("ce-client", "fingerprint", "--config", north, "--format", "json").json
    assert as_json == {"name": "north", "fingerprint": own}
    made = run("ce-client", "init", tmp_path / "south", "--name", "south", "--format", "json").json
    assert made["request"] == str(tmp_path / "south" / "south.csr")
    assert made["fingerprint"] != own
    assert made["next"][-1] == f"ce-client run --config {tmp_path / 'south'}"


def test_the_files_that_init_writes_have_every_key_and_mean_the_defaults(north: Path, tmp_path: Path) -> None:
    text = (north / "client.toml").read_text()
    read = ClientSettings.read(north / "client.toml")
    expected = ClientSettings(name="north", coordinator="localhost:8443")
    for key, value in vars(expected).items():
        if key not in ("labels", "log"):
            assert getattr(read, key) == (north / value if isinstance(value, Path) else value), key
    assert read.labels == Labels(file=tmp_path / "labels.csv")
    assert read.log == Log()
    uncommented = re.sub(r"(?m)^# (\w+ = .*)$", r"\1", text)
    written = tomllib.loads(uncommented)
    for row in reference(ClientSettings, ENV_PREFIX):
        table, _, key = row.key.rpartition(".")
        assert key in (written[table] if table else written), row.key
    (north / "client.toml").write_text(uncommented)
    assert ClientSettings.read(north / "client.toml") == read

    assert Policy.read(north / "policy.toml") == Policy()
    uncommented = re.sub(r"(?m)^# (\w+ = .*)$", r"\1", (north / "policy.toml").read_text())
    assert set(tomllib.loads(uncommented)) == {row.key for row in reference(Policy, "CE_POLICY_")}
    (north / "policy.toml").write_text(uncommented)
    assert Policy.read(north / "policy.toml") == Policy()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--name", "The North"], "cannot be a name"),
        (["--name", "north", "--coordinator", "hub"], "coordinator is host:port, like hub.example.org:8443"),
        (["--name", "north", "--coordinator", "hub:0"], "coordinator is host:port"),
        (["--name", "north", "--coordinator", "https://hub:1"], "coordinator is host:port"),
        (["--name", "north", "--labels", "caf\udce9.csv"], "not UTF-8"),
    ],
)
def test_an_init_that_is_refused_leaves_nothing_behind(
    run: Run, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    refused = run("ce-client", "init", tmp_path / "north", *arguments)
    assert refused.code == 4
    assert sentence in refused.sentence
    assert list(tmp_path.iterdir()) == []


def test_a_request_is_written_again_for_the_same_key_or_a_new_one(run: Run, north: Path) -> None:
    own = fingerprint(read_key(north / "site.key").public_key())
    (north / "north.csr").unlink()
    again = run("ce-client", "request", "--config", north, "--format", "json").json
    assert again["fingerprint"] == own == fingerprint(read_csr((north / "north.csr").read_bytes()).public_key)

    made = run("ce-client", "request", "--new-key", "--config", north / "client.toml", "--format", "json").json
    new = fingerprint(read_key(north / "site.key.next").public_key())
    assert made["fingerprint"] == new == fingerprint(read_csr((north / "north.csr").read_bytes()).public_key)
    assert new != own
    assert fingerprint(read_key(north / "site.key").public_key()) == own  # the daemon may need it yet
    twice = run("ce-client", "request", "--new-key", "--config", north)
    assert twice.code == 4
    assert "site.key.next exists already" in twice.sentence


def test_init_never_overwrites(run: Run, north: Path) -> None:
    before = {path: path.read_bytes() for path in north.iterdir()}
    again = run("ce-client", "init", north, "--name", "north")
    assert (again.code, again.sentence) == (4, f"{north} has a site already: choose another directory")
    assert {path: path.read_bytes() for path in north.iterdir()} == before


def test_the_environment_goes_before_the_file(run: Run, north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CE_CLIENT_CONFIG", str(north))
    monkeypatch.setenv("CE_CLIENT_NAME", "south")
    monkeypatch.setenv("CE_CLIENT_LABELS_CLASSIFIERS", "a, b*")
    monkeypatch.setenv("CE_CLIENT_LABELS_FILE", "/data/labels.parquet")
    assert run("ce-client", "fingerprint", "--format", "json").json["name"] == "south"
    labels = ClientSettings.read(north / "client.toml").labels
    assert (labels.classifiers, labels.file) == (("a", "b*"), Path("/data/labels.parquet"))
    monkeypatch.setenv("CE_CLIENT_LABELS_NOISE", "loud")
    refused = run("ce-client", "fingerprint")
    assert (refused.code, refused.sentence) == (
        4,
        "environment variable CE_CLIENT_LABELS_NOISE is one of missing, keep",
    )


def test_trust_pins_and_does_not_change_a_pin_unasked(run: Run, north: Path) -> None:
    first, second = (fingerprint(make_key().public_key()) for _ in range(2))
    pinned = run("ce-client", "trust", "south", first.upper().replace("SHA256:", ""), "--config", north)
    assert (pinned.code, pinned.out) == (0, f"trusts south with {first}\n")
    assert run("ce-client", "trust", "south", first, "--config", north).code == 0
    changed = run("ce-client", "trust", "south", second, "--config", north, "--format", "json")
    assert changed.code == 6
    assert "trust it with --replace (rule: changed key of a peer)" in changed.sentence
    replaced = run("ce-client", "trust", "--replace", "south", second, "--config", north, "--format", "json")
    assert replaced.json == {"name": "south", "fingerprint": second}
    assert tomllib.loads((north / "peers.toml").read_text()) == {"south": second}
    shared = run("ce-client", "trust", "west", second, "--config", north)
    assert shared.code == 4
    assert "south and west have the same fingerprint" in shared.sentence
    own = run("ce-client", "trust", "north", first, "--config", north)
    assert (own.code, own.sentence) == (4, "north is this site itself: pin the others")
    short = run("ce-client", "trust", "west", "SHA256:00", "--config", north)
    assert short.code == 4
    assert "this is not a fingerprint" in short.sentence


# Check.


def test_check_says_everything_that_is_yet_to_do(run: Run, north: Path) -> None:
    checked = run("ce-client", "check", "--config", north, "--format", "json")
    assert checked.code == 4
    told = {check["check"]: check for check in checked.json["checks"]}
    assert [name for name, check in told.items() if not check["ok"]] == ["certificate", "peers"]
    assert "send north.csr to the operator" in told["certificate"]["sentence"]
    assert "no other site is trusted yet" in told["peers"]["sentence"]
    assert told["labels"]["sentence"] == "40 objects, 2 clusterings, 0 classifiers"
    assert {path.name for path in north.iterdir()} == {"client.toml", "north.csr", "policy.toml", "secret", "site.key"}
    as_text = run("ce-client", "check", "--config", north)
    assert as_text.code == 4
    assert re.search(r"(?m)^to do  peers +no other site is trusted yet", as_text.out)
    assert re.search(r"(?m)^ok     policy +sends sums as \"masked\" or better, in jobs of 3 sites or more", as_text.out)


def test_check_of_a_site_that_can_take_part(run: Run, deployment: Deployment) -> None:
    checked = run("ce-client", "check", "--config", deployment.directory / "north", "--format", "json")
    assert (checked.code, checked.err) == (0, "")
    assert checked.json["ok"]
    assert [check["check"] for check in checked.json["checks"]] == [
        *("configuration", "certificate", "expiry", "policy", "rules", "peers", "labels", "results", "state"),
        *("ledger", "definitions", "budget", "coordinator", "clock"),
    ]
    # The daemon that is connected was not disturbed.
    assert not [event for event in deployment.processes["north"].events if event["event"] == "disconnected"]


def test_check_of_a_site_whose_coordinator_is_gone(run: Run, tmp_path: Path) -> None:
    write_labels(tmp_path / "labels.csv", "north")
    make_sites(tmp_path, {"north": tmp_path / "labels.csv", "south": tmp_path / "labels.csv"})
    checked = run("ce-client", "check", "--config", tmp_path / "north", "--format", "json")
    assert checked.code == 5
    assert checked.json["checks"][-1] == {
        "check": "coordinator",
        "ok": False,
        "sentence": "nothing listens at localhost:1: is the coordinator running, is the port right?",
        "exit_code": 5,
    }


# Jobs.


def test_a_site_knows_the_jobs_that_it_was_in(run: Run, deployment: Deployment, tmp_path: Path) -> None:
    north = deployment.directory / "north"
    job = write_job(tmp_path / "job.toml", name="known", sites=SITES, max_iterations=3)
    assert run("ce-coordinator", "submit", job, "--watch", "--config", deployment.hub).code == 0
    deployment.processes["north"].wait_for("job over", job="known")
    shown = run("ce-client", "show", "known", "--config", north, "--format", "json").json
    assert (shown["state"], shown["model"], shown["privacy"], shown["sites"]) == ("done", "bce", "plain", list(SITES))
    assert shown["results"] == str(north / "results" / "known")
    assert (north / "results" / "known" / "consensus.csv").exists()
    assert shown["rounds"] > 3
    text = run("ce-client", "show", "known", "--config", north).out
    assert re.search(rf"results +{north}/results/known\n", text)
    assert re.search(r"coordinator +hub\n", text)
    assert "known" in [entry["job"] for entry in run("ce-client", "jobs", "--config", north, "--format", "json").json]
    assert re.search(r"known +done +bce +east, north, south +", run("ce-client", "jobs", "--config", north).out)


def test_a_site_that_refused_knows_why_and_others_only_that_it_did(
    run: Run, deployment: Deployment, tmp_path: Path
) -> None:
    north, labels = deployment.directory / "north", deployment.directory / "north.csv"
    kept = labels.read_text()
    try:
        labels.unlink()
        job = write_job(tmp_path / "job.toml", name="without labels", sites=SITES)
        watched = run("ce-coordinator", "submit", job, "--watch", "--config", deployment.hub)
    finally:
        labels.write_text(kept)
    assert (watched.code, watched.sentence) == (
        3,
        "north: the labels of this site cannot be used; its log says why",
    )
    for site in SITES:
        deployment.processes[site].wait_for("job over", job="without labels")
    own = run("ce-client", "show", "without labels", "--config", north, "--format", "json").json
    assert (own["state"], own["results"]) == ("refused", None)
    assert own["reason"] == f"{labels}: cannot be read: No such file or directory"
    theirs = run("ce-client", "show", "without labels", "--config", deployment.directory / "south").out
    assert re.search(r"state +failed\n", theirs)
    assert re.search(r"reason +north: the labels of this site cannot be used; its log says why\n", theirs)
    assert str(labels) not in theirs


def test_no_jobs_yet_and_a_job_that_it_was_not_in(run: Run, north: Path) -> None:
    assert run("ce-client", "jobs", "--config", north, "--format", "json").json == []
    assert run("ce-client", "jobs", "--config", north).out.startswith("no jobs yet")
    JobIndex(north / "state").write(JobEntry("demo", "done", 1))
    (north / "state" / "damaged.json").write_text("{")
    (north / "state" / "other.json").write_text("{}")
    unknown = run("ce-client", "show", "demmo", "--config", north, "--format", "json")
    assert (unknown.code, unknown.sentence) == (
        3,
        "this site was in no job named 'demmo'; did you mean demo?: ce-client jobs lists those that it was in",
    )


# Run.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_waits_for_the_coordinator_and_stops_when_it_is_told(tmp_path: Path, number: int) -> None:
    make_sites(tmp_path, {"north": tmp_path / "labels.csv"})
    with started(CLIENT, "--log-level", "debug", "run", "--config", tmp_path / "north", "--format", "json") as running:
        assert running.stderr is not None
        read = read_until(running.stderr.fileno(), "not connected; trying again")
        running.send_signal(number)
        ended = finished(running)
    assert (ended.code, ended.out) == (0, "")
    events = [json.loads(line) for line in (read + ended.err).splitlines()]
    assert "debug" in {event["level"] for event in events}
    assert len(events) < 50
    (why,) = [event for event in events if event["event"] == "not connected; trying again"]
    assert why["reason"].startswith("nothing listens at localhost:1")


class SlowCall:
    """A stream whose other end takes its time, and which dies, like gRPC's, with a write that is cancelled."""

    def __init__(self) -> None:
        self.goes_on, self.began = asyncio.Event(), asyncio.Event()
        self.written: list[str] = []
        self.alive = True

    async def write(self, frame: site_pb2.SiteFrame) -> None:
        self.began.set()
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.alive = False
            raise
        self.written.append(frame.goodbye.reason)


async def _answered(stream: Connection, frames: list[site_pb2.SiteFrame], sent: asyncio.Event) -> None:
    stream.send_answer(frames, sent.set)
    await sent.wait()


def test_a_job_that_ends_while_its_answer_is_on_its_way_does_not_end_the_stream() -> None:
    async def play() -> SlowCall:
        call = SlowCall()
        stream = Connection(call, "hub:1")
        frames = [site_pb2.SiteFrame(goodbye=site_pb2.Goodbye(reason=word)) for word in ("first", "second", "third")]
        sent = asyncio.Event()
        job = asyncio.create_task(_answered(stream, frames[:2], sent))
        await call.began.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        other = asyncio.create_task(stream.send(frames[2:]))
        assert not sent.is_set()
        call.goes_on.set()
        await other
        assert sent.is_set()
        return call

    call = asyncio.run(play())
    assert call.alive
    assert call.written == ["first", "second", "third"], "an answer goes up whole, and the next one after it"


def test_a_second_daemon_of_a_site_does_not_take_its_stream_away(run: Run, deployment: Deployment) -> None:
    north = deployment.directory / "north"
    second = run("ce-client", "run", "--config", north)
    assert second.code == 4
    assert second.sentence.startswith(f"{north}/state/lock: another daemon of this site is running: stop it")
    assert not [event for event in deployment.processes["north"].events if event["event"] == "disconnected"]


def test_a_daemon_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    make_sites(tmp_path, {"north": tmp_path / "labels.csv"})
    for _ in range(2):
        with started(CLIENT, "run", "--config", tmp_path / "north", "--format", "json") as running:
            assert running.stderr is not None
            read_until(running.stderr.fileno(), "not connected; trying again")
            running.send_signal(signal.SIGKILL)
            assert finished(running).code == -signal.SIGKILL
    assert (tmp_path / "north" / "state" / "lock").exists()
    shutil.rmtree(tmp_path / "north" / "state")
