"""What the version before wrote can be opened: its stores, ledgers, policies, configurations and notes.

`before.tar.gz` holds the directories of a coordinator and three sites, made and left by the commands of that version
and by nothing else (`make_before.py` says how, and what is in them). Here the commands of this version are run on
copies, as processes; what they answer is compared with what those of the version before answered about the same files.
Nothing of ce is imported, so that this module stays as it is however the code is arranged.

It passes at any date. Certificates of sites, coordinator and operator are valid for 397 days, and so commands that look
at them are given new ones, which the authority in the archive signs, by the commands that operators use for that
(`ce-coordinator sign`, `renew`; docs/operations.md): always, not only when the old ones are over. The authority's own
is valid for ten years; where the clock shows another time, it is dated anew (`dated_now`), for the same key.
The unfinished jobs may take thirty years (deadlines.job_s). Commands that need no connection work on certificates as
they are: signatures in a ledger do not expire.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

ARCHIVE = Path(__file__).with_name("before.tar.gz")
MODULES = {"ce-coordinator": "ce_coordinator.cli.main", "ce-client": "ce_client.cli.main"}
SITES = ("north", "east", "south")
#: Stands in state files for the directory of the archive, which was somewhere else.
PLACEHOLDER = "@BEFORE@"
UNFINISHED = ("unfinished", "unfinished blind")
PATIENCE_S = 60.0
#: What a job's record says of it for ever; the rest of a status is of the moment.
KEPT_OF_JOBS = (
    *("job", "state", "model", "privacy", "operator", "epoch", "submitted_s", "changed_s"),
    *("reason", "rule", "exit_code", "left_behind"),
)
REFUSED_BY_A_RULE = 6
#: What somebody is told to do about a job of the version before, which cannot be gone on with.
REFUSAL = re.compile(r"submit it by another name \(rule: same in every attempt\)$")
#: What a coordinator logs of a job that does not begin at the beginning.
RESUMED = "job goes on from a checkpoint"


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err + self.out
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """What it complained about: one sentence, no traceback."""
        told = json.loads(self.err.splitlines()[-1])
        assert told["exit_code"] == self.code
        return str(told["error"])


@dataclass(frozen=True)
class Copy:
    """The directories of the version before, for the commands of this version."""

    root: Path
    overrides: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, directory: Path) -> Copy:
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(directory, filter="tar")  # with permissions: keys that others may read are refused
        root = directory / "before"
        for site in SITES:
            path = root / site / "state" / "rosters.json"
            text = path.read_text()
            assert PLACEHOLDER in text
            path.write_text(text.replace(PLACEHOLDER, str(root.resolve())))
        return cls(root)

    def command(self, name: str, *words: str) -> list[str]:
        return [sys.executable, "-m", MODULES[name], *words]

    @property
    def environment(self) -> dict[str, str]:
        """That of the tests, without what somebody may have set for daemons of their own."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("CE_")}
        return {**ours, **self.overrides}

    def run(self, *words: str) -> Answer:
        """One command; it is over within a minute, and never ends with a traceback or with 1, a defect."""
        ended = subprocess.run(
            self.command(*words, "--format", "json"),
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert "Traceback" not in ended.stderr + ended.stdout, ended.stderr + ended.stdout
        assert ended.returncode != 1, ended.stderr
        return Answer(ended.returncode, ended.stdout, ended.stderr)

    def run_all(self, *commands: tuple[str, ...]) -> list[Answer]:
        """Several at once."""
        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(lambda words: self.run(*words), commands))

    def said(self, name: str) -> Any:
        """What a command of the version before answered about the same files."""
        return json.loads((self.root / "said" / f"{name}.json").read_text())


class Daemon:
    """A daemon on a copy, and the events that it has logged. It is killed at the end; then its log is shown."""

    def __init__(self, copy: Copy, *words: str) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            copy.command(*words),
            cwd=copy.root,
            env=copy.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()
        print("".join(self.lines))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in [*self.lines] if line.startswith("{")]

    def wait_for(self, event: str, **fields: object) -> dict[str, Any]:
        """The first event of this name with these fields; fails when the daemon has ended, or after a minute."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while True:
                for entry in self.events:
                    if entry["event"] == event and fields.items() <= entry.items():
                        return entry
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    pytest.fail(f"no event {event!r} {fields}; the log is\n" + "".join(self.lines))
                self._changed.wait(min(left, 1.0))

    def assert_not_surprised(self) -> None:
        """Whatever it met was foreseen: there is no traceback, and no place of one, in its log."""
        surprises = [line for line in self.lines if "Traceback" in line or '"trace"' in line]
        assert not surprises
        assert not any(entry["event"] == "unexpected error" for entry in self.events)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


# Dates.


def dated_now(certificate: x509.Certificate, key: EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    """The same certificate of the same authority, but valid now."""
    dated = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject)
        .issuer_name(certificate.issuer)
        .public_key(key.public_key())
        .serial_number(certificate.serial_number)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=3650))
    )
    for extension in certificate.extensions:
        dated = dated.add_extension(extension.value, extension.critical)
    return dated.sign(key, SHA256())


def read_authority(copy: Copy) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    directory = copy.root / "hub" / "authority"
    key = load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes()), key


def renew_certificates(copy: Copy) -> None:
    """New certificates for everybody, for the keys that they have, as an operator renews them."""
    now = datetime.now(UTC)
    certificate, key = read_authority(copy)
    if not certificate.not_valid_before_utc < now < certificate.not_valid_after_utc - timedelta(days=400):
        path = copy.root / "hub" / "authority" / "ca.pem"
        path.write_bytes(dated_now(certificate, key, now).public_bytes(Encoding.PEM))
    answers = copy.run_all(
        *(("ce-coordinator", "renew", whose, "--config", "hub") for whose in ("coordinator", "operator")),
        *(("ce-coordinator", "sign", f"{site}/{site}.csr", "--config", "hub", "--out", site) for site in SITES),
    )
    assert [answer.code for answer in answers] == [0] * 5, answers
    for site in SITES:
        (copy.root / site / f"{site}.pem").replace(copy.root / site / "site.pem")


# Copies.


@pytest.fixture(scope="module", name="before")
def _before(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """As the version before left it; for commands that need no coordinator."""
    return Copy.make(tmp_path_factory.mktemp("before"))


@dataclass(frozen=True)
class Running:
    """A coordinator of this version on the directory of the version before, and copies of its sites."""

    copy: Copy
    hub: Daemon


@pytest.fixture(scope="module", name="running")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    copy = Copy.make(tmp_path_factory.mktemp("running"))
    renew_certificates(copy)
    served = replace(copy, overrides={"CE_COORDINATOR_LISTEN": "127.0.0.1:0"})
    with Daemon(served, "ce-coordinator", "serve", "--config", "hub") as hub:
        address = f"127.0.0.1:{hub.wait_for('listening')['port']}"
        overrides = {"CE_COORDINATOR_OPERATOR_ADDRESS": address, "CE_CLIENT_COORDINATOR": address}
        yield Running(replace(copy, overrides=overrides), hub)
        hub.assert_not_surprised()


def assert_holds(now: Any, before: Any) -> None:
    """That an answer says all that it said before; it may say more."""
    if isinstance(before, dict):
        assert before.keys() <= now.keys()
        for key, value in before.items():
            assert_holds(now[key], value)
    elif isinstance(before, list):
        assert len(now) == len(before)
        for own, value in zip(now, before, strict=True):
            assert_holds(own, value)
    else:
        assert now == before


# The archive itself.


def test_the_archive_is_of_the_version_before_and_tells_nothing_of_the_machine_that_made_it(before: Copy) -> None:
    assert before.said("version") == "ce-coordinator, version 0.1.0"
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            content = archive.extractfile(member)
            text = b"" if content is None else content.read()
            assert not re.search(rb"(/tmp|/home|/root|/work|/srv|/Users)/", text), member.name
            assert (member.uname, member.gname) == ("", "")


def test_an_authority_can_be_dated_anew(before: Copy) -> None:
    """So that this module passes when its certificate is over: what it has signed, it has signed under both dates."""
    certificate, key = read_authority(before)
    for now in (datetime(2020, 1, 1, tzinfo=UTC), datetime(2049, 1, 1, tzinfo=UTC)):
        dated = dated_now(certificate, key, now)
        assert dated.not_valid_before_utc < now < dated.not_valid_after_utc
        assert list(dated.extensions) == list(certificate.extensions)
        for path in sorted((before.root / "hub" / "authority" / "issued").glob("*.pem")):
            x509.load_pem_x509_certificate(path.read_bytes()).verify_directly_issued_by(dated)


# A site's files.


@pytest.mark.promise("Files written by the version before open.")
@pytest.mark.parametrize("site", SITES)
def test_a_sites_notes_previews_and_ledger_say_what_they_said(before: Copy, site: str) -> None:
    """`jobs`, `show`, `preview`, `ledger list` and `ledger verify`, on files that nobody has touched since; the chain
    and the signatures of the ledger are those of the version before."""
    jobs, shown, previewed, listed, verified = before.run_all(
        ("ce-client", "jobs", "--config", site),
        ("ce-client", "show", "finished", "--config", site),
        ("ce-client", "preview", "finished", "--config", site),
        ("ce-client", "ledger", "list", "--config", site),
        ("ce-client", "ledger", "verify", "--config", site),
    )
    assert_holds(jobs.json, before.said(f"{site}/jobs"))
    states = {entry["job"]: entry["state"] for entry in jobs.json}
    assert (states["finished"], states["cancelled"]) == ("done", "cancelled")
    assert states["declined"] == ("refused" if site == "south" else "failed")
    assert states.get("refused") == (None if site == "south" else "refused")
    assert {states[job] for job in UNFINISHED} == {"running"}
    assert shown.json["state"] == "done"
    assert (before.root / shown.json["results"] / "consensus.csv").is_file()
    assert_holds(previewed.json, before.said(f"{site}/preview"))
    assert_holds(listed.json, before.said(f"{site}/ledger"))
    assert verified.json["ok"]
    assert_holds(verified.json, before.said(f"{site}/verify"))


def test_with_whom_labels_were_contributed_is_not_forgotten(before: Copy) -> None:
    """A rule stands on it: totals of other sites than before are allowed by a person, or not at all."""
    answer = before.run("ce-client", "allow-roster", "refused", "--yes", "--config", "east")
    assert answer.json["roster"] == ["east", "north"]
    assert answer.json["others"] == [["east", "north", "south"]]
    assert answer.json["allowed"]


@pytest.mark.promise("Files written by the version before open.")
def test_jobs_without_a_definition_in_ledger_and_preview_are_shown(before: Copy) -> None:
    """Lines of the ledger and previews have had no definition, and nothing was counted: that is no error."""
    shown, needless = before.run_all(
        ("ce-client", "ledger", "show", "finished", "--config", "north"),
        ("ce-client", "allow-definition", "finished", "--yes", "--config", "north"),
    )
    assert shown.json[0]["kind"] == "begin"
    assert "definition" not in shown.json[0]
    assert (needless.code, needless.json["allowed"], needless.json["definition"]) == (0, False, {})


# With a coordinator.


@pytest.mark.promise("Files written by the version before open.")
def test_a_store_has_the_jobs_and_results_that_it_had(running: Running, tmp_path: Path) -> None:
    """`list`, `show`, `result`, `sites`: a coordinator was started on the old store, with the old coordinator.toml."""
    copy = running.copy
    listed, shown, fetched, sites = copy.run_all(
        ("ce-coordinator", "list", "--config", "hub"),
        ("ce-coordinator", "show", "finished", "--config", "hub"),
        ("ce-coordinator", "result", "finished", "--out", str(tmp_path), "--config", "hub"),
        ("ce-coordinator", "sites", "--config", "hub"),
    )
    now = {status["job"]: status for status in listed.json}
    before = {status["job"]: status for status in copy.said("hub/list")}
    states = {job: (status["state"], status["rule"]) for job, status in before.items()}
    assert states == {
        "finished": ("done", ""),
        "refused": ("failed", "min_sites"),
        "declined": ("failed", "consent"),
        "cancelled": ("cancelled", ""),
    }
    assert now.keys() == {*before, *UNFINISHED}
    for job, status in before.items():
        assert_holds(now[job], {key: status[key] for key in KEPT_OF_JOBS})
        assert [own["site"] for own in now[job]["sites"]] == [own["site"] for own in status["sites"]]
    assert_holds(shown.json, {key: before["finished"][key] for key in KEPT_OF_JOBS})
    assert_holds(fetched.json["result"], copy.said("hub/result"))
    assert json.loads((tmp_path / "finished.json").read_text()) == fetched.json["result"]
    assert {own["site"] for own in sites.json} == set(SITES)


@pytest.mark.promise("Files written by the version before open.")
def test_a_site_could_take_part_as_it_is(running: Running) -> None:
    """`check` finds nothing wrong: client.toml, policy.toml and peers.toml, of north with every key that there was, are
    known; key, secret, labels and ledger can be used; the coordinator lets the site in."""
    for answer in running.copy.run_all(*(("ce-client", "check", "--config", site) for site in SITES)):
        assert answer.code == 0, answer.out + answer.err


@pytest.mark.promise("Files written by the version before open.")
def test_jobs_that_were_under_way_end(running: Running) -> None:
    """Their checkpoints are of another schedule, and are not gone on from. They would begin again at the beginning, but
    the rules of the sites have keys now that they had not: totals of both attempts would show a difference, and sites
    refuse, with a sentence that says what to do. Nobody waits for ever, and nobody is asked for a consent that was
    given. Ledgers are the old ones, with more lines."""
    copy = running.copy
    with ExitStack() as sites:
        daemons = {site: sites.enter_context(Daemon(copy, "ce-client", "run", "--config", site)) for site in SITES}
        for daemon in daemons.values():
            daemon.wait_for("connected")
        watched = copy.run_all(*(("ce-coordinator", "watch", job, "--config", "hub") for job in UNFINISHED))
        for job in UNFINISHED:
            for daemon in daemons.values():
                daemon.wait_for("job over", job=job)
        for daemon in daemons.values():
            daemon.assert_not_surprised()
    for answer in watched:
        assert answer.code == REFUSED_BY_A_RULE
        assert REFUSAL.search(answer.sentence), answer.sentence
    assert not [entry for entry in running.hub.events if entry["event"] == RESUMED]
    # Whole, and where they ended before is in the chain.
    heads = {site: copy.said(f"{site}/verify")["head"] for site in SITES}
    verify = ("ce-client", "ledger", "verify")
    for answer in copy.run_all(*((*verify, "--head", heads[site], "--config", site) for site in SITES)):
        assert answer.json["ok"]
