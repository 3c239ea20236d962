"""What a site keeps and decides between jobs: previews, consents, rosters, the ledger, and the commands for them."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from support.commands import (
    CLIENT,
    Run,
    finished,
    read_until,
    run_fixture,  # noqa: F401 (a fixture)
    started,
)

from ce.errors import ConfigError, Refused
from ce.identity.authority import Authority
from ce.identity.certificates import sign
from ce.identity.keys import make_key, read_key, replace_key
from ce.identity.names import Identity
from ce.policy import Policy
from ce.protocol.minimums import RuleCheck
from ce.testing import make_sites
from ce_client.daemon.single_instance import is_running, running_daemon, sole_daemon, wake_daemon
from ce_client.state.attempt_history import AttemptHistory, AttemptRecord
from ce_client.state.consents import Consents
from ce_client.state.files import exclusive, name_of
from ce_client.state.job_index import JobEntry, JobIndex
from ce_client.state.ledger import PURPOSE, Ledger
from ce_client.state.previews import Excluded, Preview, PreviewArray, Previews
from ce_client.state.rosters import Rosters, content_digest

SITES, FEWER = ("east", "north", "south"), ("north", "south")
DIGEST, OTHER = b"\x01" * 32, b"\x02" * 32
LABELS = b"\x03" * 32
PREVIEW = Preview(
    job="demo",
    job_digest=DIGEST.hex(),
    coordinator="hub",
    epoch=1,
    model="bce",
    privacy="masked",
    sites=SITES,
    rounds_up_to=312,
    arrays=(
        PreviewArray(
            "block/0/sums", "sums", (5, 3, 1200), "masked", SITES, (RuleCheck("min_sites", 3, 3), RuleCheck("x", 4, 9))
        ),
        PreviewArray("global/bound", "sums", (5,), "masked", ("north",)),
    ),
    excluded=(Excluded("objects shared with south", 12, "min_foreign_columns", 4, 2),),
    randomise=0.25,
    epsilon={"north_1": 1.946},
    epsilon_row=3.892,
    waits_for_consent=True,
)


@pytest.fixture(name="north")
def _north(tmp_path: Path) -> Path:
    """A site whose coordinator is not there."""
    labels = tmp_path / "labels.csv"
    labels.write_text("id,north_1\n" + "".join(f"object{i},{i % 2}\n" for i in range(30)))
    make_sites(tmp_path, {"north": labels, "south": labels})
    return tmp_path / "north"


class Notes:
    """A ledger that only remembers what it was told."""

    def __init__(self) -> None:
        self.allowed: list[tuple[str, tuple[str, ...]]] = []

    def allow_roster(self, job: str, roster: tuple[str, ...]) -> bytes:
        self.allowed.append((job, roster))
        return bytes(32)


@contextmanager
def daemon(north: Path) -> Iterator[int]:
    """The site's daemon, waiting for a coordinator that does not come; it is not ended by being woken."""
    with started(CLIENT, "run", "--config", north, "--format", "json") as running:
        assert running.stderr is not None
        read_until(running.stderr.fileno(), "not connected; trying again")
        yield running.pid
        assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        assert finished(running).code == 0


# Previews and consents.


def test_a_preview_is_read_as_it_was_written(tmp_path: Path) -> None:
    previews = Previews(tmp_path / "state")
    assert previews.read("demo") is None
    previews.write(PREVIEW)
    assert previews.read("demo") == PREVIEW
    (path,) = (tmp_path / "state" / "previews").iterdir()
    assert path.name == f"{name_of('demo')}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for damage in ("{", "[]", "{}", json.dumps({**asdict(PREVIEW), "more": 1})):
        path.write_text(damage)
        with pytest.raises(ConfigError, match="is damaged"):
            previews.read("demo")
    assert previews.forget("demo")
    assert not previews.forget("demo")


@pytest.mark.promise("A job waits for consent where the policy asks for it, and consent holds for that job only.")
def test_a_consent_holds_for_the_very_job_and_roster(tmp_path: Path) -> None:
    consents = Consents(tmp_path)
    assert consents.decision("demo", DIGEST, SITES) is None
    consents.decide("demo", DIGEST, reversed(SITES), "approved")
    assert consents.decision("demo", DIGEST, SITES) == "approved"
    assert consents.decision("other", DIGEST, SITES) is None
    for digest, roster in ((OTHER, SITES), (DIGEST, FEWER), (DIGEST, (*SITES, "west"))):
        with pytest.raises(Refused, match="the job is not the one that was approved here") as refused:
            consents.decision("demo", digest, roster)
        assert refused.value.rule == "consent"
    consents.decide("demo", OTHER, FEWER, "declined")
    assert consents.decision("demo", OTHER, FEWER) == "declined"
    (path,) = (tmp_path / "consents").iterdir()
    assert set(json.loads(path.read_bytes())) == {"job", "job_digest", "roster", "decision", "at"}
    for damage in ("", "{}", "[]", json.dumps({**json.loads(path.read_bytes()), "decision": "perhaps"})):
        path.write_text(damage)
        with pytest.raises(ConfigError, match="is damaged"):
            consents.decision("demo", OTHER, FEWER)


def test_preview_shows_every_array_that_would_leave(run: Run, north: Path) -> None:
    Previews(north / "state").write(PREVIEW)
    printed = run("ce-client", "preview", "demo", "--config", north, "--format", "json").json
    for check in (*printed["excluded"], *(rule for array in printed["arrays"] for rule in array["rules"])):
        assert check.pop("asked") == check["required"], "the former name of the key"
    assert printed == json.loads(json.dumps(asdict(PREVIEW)))
    shown = run("ce-client", "preview", "demo", "--config", north)
    assert (shown.code, shown.err) == (0, "")
    assert re.search(
        r"block/0/sums +sums +5 x 3 x 1,200 +masked +east, south +min_sites: 3, required 3; x: 9", shown.out
    )
    assert re.search(r"global/bound +sums +5 +masked +no other site", shown.out)
    assert re.search(r"rounds +up to 312\n", shown.out)
    assert re.search(r"excluded +objects shared with south: 12 objects here; min_foreign_columns requires 4", shown.out)
    assert re.search(
        r"randomised +each label with probability 0.25: epsilon 1.95 \(north_1\) per label; 3.89 per row", shown.out
    )
    assert re.search(r"waits +for ce-client approve", shown.out)


def test_a_preview_of_the_version_before_has_the_epsilon_of_a_row_too(tmp_path: Path) -> None:
    previews = Previews(tmp_path)
    previews.write(PREVIEW)
    (path,) = (tmp_path / "previews").iterdir()
    content = json.loads(path.read_bytes())
    del content["epsilon_row"]
    content["epsilon"] = {"north_1": 1.5, "north_2": 2.0}
    path.write_text(json.dumps(content))
    found = previews.read("demo")
    assert found is not None
    assert found.epsilon_row == 3.5


@pytest.mark.parametrize("command", ["preview", "approve", "decline", "allow-roster", "allow-definition", "forget"])
def test_a_job_that_this_site_was_not_in_is_unknown(run: Run, north: Path, command: str) -> None:
    JobIndex(north / "state").write(JobEntry("demo", "offered", 1))
    unknown = run("ce-client", command, "demmo", "--config", north, "--format", "json")
    assert unknown.code == 3
    assert unknown.sentence.startswith("this site was in no job named 'demmo'; did you mean demo?")


@pytest.mark.parametrize("command", ["preview", "approve", "decline"])
def test_a_job_without_a_preview_cannot_be_decided(run: Run, north: Path, command: str) -> None:
    JobIndex(north / "state").write(JobEntry("demo", "offered", 1))
    early = run("ce-client", command, "demo", "--config", north)
    assert early.code == 3
    assert early.sentence.startswith("there is no preview of job 'demo': not all sites have enrolled yet")


@pytest.mark.promise("A job waits for consent where the policy asks for it, and consent holds for that job only.")
@pytest.mark.parametrize(("command", "decision"), [("approve", "approved"), ("decline", "declined")])
def test_a_decision_is_bound_to_what_was_seen(run: Run, north: Path, command: str, decision: str) -> None:
    JobIndex(north / "state").write(JobEntry("demo", "offered", 1, sites=SITES))
    Previews(north / "state").write(PREVIEW)
    said = run("ce-client", command, "demo", "--config", north)
    assert said.out.startswith(f"{decision} demo, with east, north, south\nno daemon is running here")
    assert Consents(north / "state").decision("demo", DIGEST, SITES) == decision
    with pytest.raises(Refused, match=f"not the one that was {decision}"):
        Consents(north / "state").decision("demo", DIGEST, FEWER)
    as_json = run("ce-client", command, "demo", "--config", north, "--format", "json").json
    assert (as_json["decision"], as_json["roster"], as_json["daemon_told"]) == (decision, list(SITES), False)
    JobIndex(north / "state").write(JobEntry("demo", "failed", 1, sites=SITES))
    late = run("ce-client", command, "demo", "--config", north)
    assert (late.code, late.sentence) == (3, "job 'demo' is over (failed): there is nothing left to decide")


# The daemon is found, and woken.


def test_the_daemon_is_woken_and_lives_on(run: Run, north: Path) -> None:
    JobIndex(north / "state").write(JobEntry("demo", "offered", 1, sites=SITES))
    Previews(north / "state").write(PREVIEW)
    assert running_daemon(north / "state") is None
    with daemon(north) as process:
        assert running_daemon(north / "state") == process
        for command in ("approve", "decline"):
            assert run("ce-client", command, "demo", "--config", north, "--format", "json").json["daemon_told"]
        refused = run("ce-client", "forget", "demo", "--config", north)
        assert (refused.code, refused.sentence) == (
            6,
            "job 'demo' is offered here: wait for its end, or stop the daemon (rule: job under way)",
        )
        assert Previews(north / "state").read("demo") == PREVIEW
    assert running_daemon(north / "state") is None
    assert not wake_daemon(north / "state")


def test_only_who_holds_the_lock_is_the_daemon(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    # A number that a daemon left which was killed is somebody else's by now.
    (tmp_path / "lock").write_text(f"{os.getpid()} {Path('/proc/self/ns/pid').readlink()}\n")
    assert running_daemon(tmp_path) is None
    with sole_daemon(tmp_path):
        assert is_running(tmp_path)
        assert running_daemon(tmp_path) == os.getpid()
        assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
        for foreign in ("", "12", "x pid:[1]", f"{os.getpid()} pid:[1]"):
            (tmp_path / "lock").write_text(foreign)
            assert running_daemon(tmp_path) is None, "a process of another container has its numbers"
            assert is_running(tmp_path)
        with pytest.raises(ConfigError, match="another daemon of this site is running"), sole_daemon(tmp_path):
            pass


def test_looking_does_not_keep_a_daemon_from_starting(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_running(tmp_path)

    watchers = [threading.Thread(target=look) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(200):
            with sole_daemon(tmp_path):
                pass
    finally:
        over.set()
        for watcher in watchers:
            watcher.join()


# Rosters.


@pytest.mark.promise("A label file is contributed under one roster unless a person allows another.")
def test_a_label_file_is_contributed_under_one_roster(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("one")
    rosters, notes = Rosters(tmp_path / "state"), Notes()
    digest = content_digest(labels)
    rosters.check(labels, digest, SITES)
    rosters.remember(labels, digest, SITES, "first", notes)
    rosters.check(labels, digest, reversed(SITES))
    path = tmp_path / "state" / "rosters.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    rosters.remember(labels, digest, SITES, "second", notes)
    assert path.read_bytes() == before, "what is known is not written again"

    copy = tmp_path / "copy.csv"
    copy.write_text("one")
    (tmp_path / "link.csv").symlink_to(labels)
    for same, content in ((labels, digest), (labels, OTHER), (copy, digest), (tmp_path / "link.csv", OTHER)):
        with pytest.raises(Refused, match=r"with east, north, south; totals with north, south.*ce-client allow") as no:
            rosters.check(same, content, FEWER)
        assert no.value.rule == "one roster per label file"
    rosters.check(copy, OTHER, FEWER)

    # Content that came from a file of another roster has both against it.
    rosters.remember(copy, OTHER, FEWER, "third", notes)
    with pytest.raises(Refused, match="with north, south; totals with east, north, south"):
        rosters.check(labels, OTHER, SITES)
    assert notes.allowed == []


def test_an_allowed_roster_is_written_to_the_ledger_when_it_is_used(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    rosters, notes = Rosters(tmp_path), Notes()
    rosters.remember(labels, DIGEST, SITES, "first", notes)
    assert rosters.allow(FEWER, "second")
    assert not rosters.allow(reversed(FEWER), "third"), "allowed already"
    rosters.check(labels, DIGEST, FEWER)
    assert notes.allowed == []
    rosters.remember(labels, DIGEST, FEWER, "second", notes)
    rosters.remember(labels, DIGEST, FEWER, "third", notes)
    assert notes.allowed == [("second", FEWER)]
    rosters.check(labels, DIGEST, SITES)  # nothing new can be learnt from either
    with pytest.raises(Refused):
        rosters.check(labels, DIGEST, (*SITES, "west"))
    # A site that forgot would give away what it must not: damage is an error, not a new beginning.
    (tmp_path / "rosters.json").write_text("{}")
    with pytest.raises(ConfigError, match="is damaged"):
        rosters.check(labels, DIGEST, SITES)


def test_the_daemon_and_a_command_do_not_lose_each_others_changes(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"

    def remember() -> None:
        for at in range(10):
            Rosters(tmp_path).remember(labels, bytes([at]) * 32, SITES, "job", Notes())

    with exclusive(tmp_path):
        worker = threading.Thread(target=remember)
        worker.start()
    for at in range(10):
        Rosters(tmp_path).allow((f"site{at}",), "job")
    worker.join()
    written = json.loads((tmp_path / "rosters.json").read_bytes())
    assert (len(written["uses"]), len(written["allowed"])) == (10, 10)
    assert {path.name for path in tmp_path.iterdir()} == {"rosters.json"}


# Attempts.


def attempted(state: Path) -> AttemptRecord:
    """A job with one attempt behind it, in which two alignments were shown."""
    memory = AttemptHistory(state)
    known = memory.begin("demo", DIGEST, LABELS, Policy())
    known = memory.align("demo", known, "0", b"story", b"block 0", b"block 1")
    known = memory.align("demo", known, "2", b"story without some", b"block 1")
    return memory.end("demo", known, rounds=41)


def refuses(attempt: Callable[[], object], sentence: str) -> None:
    with pytest.raises(Refused, match=sentence) as refused:
        attempt()
    assert refused.value.rule == "same in every attempt"
    assert re.search("submit (it|this one) by another name", str(refused.value))


def test_a_later_attempt_that_is_the_same_goes_on(tmp_path: Path) -> None:
    before = attempted(tmp_path / "state")
    memory = AttemptHistory(tmp_path / "state")  # of a daemon that was started again
    again = memory.begin("demo", DIGEST, LABELS, Policy())
    assert again == before == memory.of("demo", DIGEST)
    assert memory.align("demo", again, "0", b"story", b"block 0", b"block 1") == before
    assert memory.align("demo", again, "2", b"story without some", b"block 1") == before
    assert memory.align("demo", again, "3", b"another revision").alignments.keys() == {"0", "2", "3"}
    (path,) = (tmp_path / "state" / "attempts").iterdir()
    assert path.name == f"{name_of('demo')}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not re.search(rb"story|block|demo", path.read_bytes()), "digests only"


@pytest.mark.parametrize(
    ("labels", "policy"),
    [
        (OTHER, Policy()),
        (LABELS, Policy(min_objects=21)),
        (LABELS, Policy(randomise=0.25)),
        (LABELS, Policy(below_minimum="refuse")),
        (OTHER, Policy(min_objects=21)),
    ],
    ids=["labels", "a minimum", "randomise", "below_minimum", "both"],
)
def test_a_later_attempt_with_other_labels_or_rules_is_refused(tmp_path: Path, labels: bytes, policy: Policy) -> None:
    before, memory = attempted(tmp_path), AttemptHistory(tmp_path)
    for _ in range(2):  # what was refused is not remembered instead
        refuses(lambda: memory.begin("demo", DIGEST, labels, policy), "labels or the rules of this site have changed")
        assert memory.of("demo", DIGEST) == before
    assert memory.begin("demo", DIGEST, LABELS, Policy()) == before
    memory.begin("another", DIGEST, labels, policy)


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        (0, (b"another story", b"block 0", b"block 1")),
        (0, (b"story", b"block 0", b"block 2")),
        (0, (b"story", b"block 1", b"block 0")),
        (0, (b"story", b"block 0")),
        (0, (b"story", b"block 0block 1")),
        (0, (b"story without some", b"block 1")),
        (2, (b"story", b"block 0", b"block 1")),
    ],
)
def test_another_alignment_of_the_same_revision_is_refused(
    tmp_path: Path, revision: int, said: tuple[bytes, ...]
) -> None:
    before, memory = attempted(tmp_path), AttemptHistory(tmp_path)
    known = memory.begin("demo", DIGEST, LABELS, Policy())
    for _ in range(2):
        refuses(
            lambda: memory.align("demo", known, str(revision), *said), "who shares what with whom is not what it was"
        )
        assert memory.of("demo", DIGEST) == before


def test_a_job_that_was_refused_is_not_looked_at_again(tmp_path: Path) -> None:
    known, memory = attempted(tmp_path), AttemptHistory(tmp_path)
    known = memory.end("demo", known, 42, refused="Refused")
    memory.end("demo", known, 43)  # the end of an attempt does not take the refusal back
    kept = memory.of("demo", DIGEST)
    assert (kept.rounds, kept.refused) == (43, "Refused")
    for labels in (LABELS, OTHER):
        refuses(lambda own=labels: memory.begin("demo", DIGEST, own, Policy()), "this site has refused this job")
    assert memory.begin("another", DIGEST, LABELS, Policy()).refused == ""


def test_rounds_are_kept_from_attempt_to_attempt(tmp_path: Path) -> None:
    attempted(tmp_path)
    memory = AttemptHistory(tmp_path)
    known = memory.begin("demo", DIGEST, LABELS, Policy())
    assert known.rounds == 41
    memory.end("demo", known, known.rounds + 9)
    assert AttemptHistory(tmp_path).begin("demo", DIGEST, LABELS, Policy()).rounds == 50
    refuses(lambda: memory.begin("demo", OTHER, LABELS, Policy()), "another job of this name")


def test_attempts_are_forgotten_with_their_job_only(tmp_path: Path) -> None:
    attempted(tmp_path)
    memory = AttemptHistory(tmp_path)
    memory.begin("another", DIGEST, LABELS, Policy())
    assert memory.forget("demo")
    assert not memory.forget("demo")
    assert memory.of("demo", DIGEST) == AttemptRecord(DIGEST.hex())
    assert memory.begin("demo", DIGEST, OTHER, Policy(min_objects=21)).rounds == 0
    assert memory.of("another", DIGEST).labels == LABELS.hex()


def test_damaged_attempts_are_an_error_and_not_a_new_beginning(tmp_path: Path) -> None:
    known = attempted(tmp_path)
    (path,) = (tmp_path / "attempts").iterdir()
    for damage in ("", "{", "[]", "{}", "7", json.dumps({**asdict(known), "more": 1}), path.read_text()[:-9]):
        path.write_text(damage)
        for use in (
            lambda: AttemptHistory(tmp_path).of("demo", DIGEST),
            lambda: AttemptHistory(tmp_path).begin("demo", DIGEST, LABELS, Policy()),
        ):
            with pytest.raises(ConfigError, match="is damaged"):
                use()
        assert path.read_text() == damage


class Terminal(StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


def test_allow_roster_warns_and_asks(run: Run, north: Path, tmp_path: Path) -> None:
    labels, rosters = tmp_path / "labels.csv", Rosters(north / "state")
    JobIndex(north / "state").write(JobEntry("demo", "refused", 1, sites=FEWER, rule="one roster per label file"))
    needless = run("ce-client", "allow-roster", "demo", "--config", north)
    assert (needless.code, needless.out) == (
        0,
        "these labels were never contributed without north, south: nothing to allow\n",
    )
    rosters.remember(labels, content_digest(labels), SITES, "first", Notes())
    unasked = run("ce-client", "allow-roster", "demo", "--config", north)
    assert unasked.code == 2
    assert "no terminal to ask for confirmation: read --help, then give --yes" in unasked.sentence
    assert "these labels are in totals with east, north, south" in unasked.err
    assert "then knows exactly what east added" in unasked.err
    for answer, code in (("n\n", 8), ("", 130)):
        with patch.object(sys, "stdin", Terminal(answer)):
            assert run("ce-client", "allow-roster", "demo", "--config", north).code == code
    with pytest.raises(Refused):
        rosters.check(labels, content_digest(labels), FEWER)
    with patch.object(sys, "stdin", Terminal("y\n")):
        assert "allowed: totals with north, south" in run("ce-client", "allow-roster", "demo", "--config", north).out
    rosters.check(labels, content_digest(labels), FEWER)
    JobIndex(north / "state").write(JobEntry("wider", "refused", 1, sites=(*SITES, "west")))
    given = run("ce-client", "allow-roster", "wider", "--yes", "--config", north, "--format", "json")
    assert (given.code, given.json["allowed"], given.json["others"]) == (0, True, [list(SITES)])
    assert not (north / "state" / "ledger.jsonl").exists(), "only the daemon writes there"


# The ledger.


def write_ledger(north: Path) -> Path:
    key = read_key(north / "site.key")
    arrays = {"block/0/sums": np.zeros((2, 3, 4), dtype=np.int64), "global/bound": np.zeros(2, dtype=np.int64)}
    company = {"block/0/sums": SITES, "global/bound": SITES}
    with Ledger(north / "state" / "ledger.jsonl", "north") as ledger:
        ledger.begin("demo", 1, DIGEST, SITES, "masked", 0.25, {"north_1": 1.946})
        for number in (1, 2):
            ledger.record("demo", 1, number, arrays, "masked", company)
        ledger.end("demo", 1, "done", lambda message: sign(key, message, purpose=PURPOSE))
        ledger.allow_roster("next", FEWER)
        ledger.begin("next", 1, OTHER, FEWER, "blind")
    return north / "state" / "ledger.jsonl"


def test_the_ledger_is_listed_shown_and_verified(run: Run, north: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ce_client.state.ledger.time.time", lambda: 1_700_000_000.0)  # all of it in one millisecond
    for command in ("list", "verify"):
        assert run("ce-client", "ledger", command, "--config", north).out == "nothing has left this site yet\n"
    path = write_ledger(north)
    listed = run("ce-client", "ledger", "list", "--config", north, "--format", "json").json
    assert [(own["job"], own["contributions"], own["state"]) for own in listed] == [
        ("next", 0, ""),
        ("demo", 2, "done"),
    ]
    assert listed[1]["bytes"] == 2 * 8 * 26
    text = run("ce-client", "ledger", "list", "--config", north).out
    assert re.search(r"demo +1 +2 +416 B +masked +east, north, south +done +just now", text)
    assert re.search(r"next +1 +0 +0 B +blind +north, south +not yet", text)

    shown = run("ce-client", "ledger", "show", "demo", "--config", north).out
    assert re.search(r"attempt 1 begins: masked sums with east, north, south; .* epsilon 1.95 \(north_1\)", shown)
    assert re.search(r"block/0/sums +int64 +2 x 3 x 4 +masked +east, north, south +2 +1 to 2", shown)
    assert "attempt 1 ends: done; signed" in shown
    assert "are allowed, beside those with others" in run("ce-client", "ledger", "show", "next", "--config", north).out
    lines = run("ce-client", "ledger", "show", "demo", "--config", north, "--format", "json").json
    assert [line["kind"] for line in lines] == ["begin", "contribution", "contribution", "end"]
    unknown = run("ce-client", "ledger", "show", "dmo", "--config", north)
    assert unknown.code == 3
    assert unknown.sentence.startswith("nothing has left this site in a job named 'dmo'; did you mean demo?")

    verified = run("ce-client", "ledger", "verify", "--config", north)
    assert (verified.code, verified.err) == (0, "")
    assert verified.out.startswith("2 contributions in 2 jobs, 1 signed ends\nhead ")
    head = verified.out.split()[-1]
    assert run("ce-client", "ledger", "verify", "--head", head, "--config", north).code == 0
    missing = run("ce-client", "ledger", "verify", "--head", "0" * 64, "--config", north)
    assert missing.code == 3
    assert "no line has this head" in missing.sentence
    assert run("ce-client", "ledger", "verify", "--head", "xyz", "--config", north).code == 2
    both = ("--certificate", north / "site.pem", "--certificate", north.parent / "south" / "site.pem")
    assert "another site than south" in run("ce-client", "ledger", "verify", *both, "--config", north).sentence

    content = path.read_bytes()
    path.write_bytes(content.replace(b'"round":2', b'"round":3'))
    bad = run("ce-client", "ledger", "verify", "--config", north, "--format", "json")
    assert bad.code == 3
    assert (bad.json["ok"], bad.json["bad_line"], bad.json["lines"]) == (False, 4, 3)
    assert bad.sentence == f"{path}, line 4: this line, or one before it, is not as it was written"
    path.write_bytes(content.replace(b'"round":2', b'"rounds":2'))
    assert "line 4: is damaged" in run("ce-client", "ledger", "list", "--config", north).sentence


def test_what_a_former_key_has_signed_stays_verified(run: Run, north: Path) -> None:
    write_ledger(north)
    authority = Authority.open(north.parent / "authority")
    key = make_key()
    (north / "former").mkdir()
    (north / "site.pem").rename(north / "former" / "2026.pem")
    replace_key(north / "site.key", key)
    issued = authority.issue(Identity("site", "north"), key, datetime.now(UTC), replace=True)
    (north / "site.pem").write_bytes(issued.public_bytes(Encoding.PEM))

    def ledger() -> tuple[int, bool]:
        checks = run("ce-client", "check", "--config", north, "--format", "json").json["checks"]
        (own,) = (check["ok"] for check in checks if check["check"] == "ledger")
        return run("ce-client", "ledger", "verify", "--config", north).code, own

    assert ledger() == (0, True)
    (north / "former" / "2026.pem").unlink()
    assert ledger() == (3, False)


@pytest.mark.parametrize("command", ["list", "show", "verify"])
def test_every_command_of_the_ledger_has_help_with_examples(run: Run, command: str) -> None:
    shown = run("ce-client", "ledger", command, "--help")
    assert shown.out.startswith(f"Usage: ce-client ledger {command}")
    assert "Examples:" in shown.out
    about = run("ce-client", "ledger", "--help").out
    assert "proves which bytes were sent" in about
    assert "does not prove that they were computed correctly" in " ".join(about.split())


def test_check_tells_the_rules_the_noise_and_the_state_of_the_ledger(run: Run, north: Path, tmp_path: Path) -> None:
    def told() -> dict[str, dict[str, object]]:
        checked = run("ce-client", "check", "--config", north, "--format", "json").json
        return {check["check"]: check for check in checked["checks"]}

    first = told()
    assert first["rules"]["sentence"] == (
        "min_sites 1, min_objects 1, min_foreign_columns 0, min_classifiers 0, min_cluster 1; what is below is "
        "excluded; objects that other sites hold too are in totals that are opened; a job begins by itself"
    )
    assert "randomise" not in first
    assert first["ledger"]["sentence"] == "nothing has left this site yet"
    path = write_ledger(north)
    (north / "policy.toml").write_text('randomise = 0.25\nconsent = "ask"\nbelow_minimum = "refuse"\n')
    then = told()
    assert str(then["rules"]["sentence"]).endswith(
        "makes this site refuse; objects that other sites hold too take part in sealed jobs only; a job begins when it "
        "is approved here"
    )
    assert (then["randomise"]["ok"], then["randomise"]["exit_code"]) == (False, Refused.exit_code)
    assert "the categories of column 'north_1' are not declared" in str(then["randomise"]["sentence"])
    configuration = (north / "client.toml").read_text()
    (north / "client.toml").write_text(configuration + "categories = { north_1 = [0, 1] }\n")
    then = told()
    assert then["randomise"]["sentence"] == (
        "each label is replaced with probability 0.25: epsilon 1.95 (north_1) per label; 1.95 per row, all labels of "
        "an object"
    )
    assert then["ledger"] == {
        "check": "ledger",
        "ok": True,
        "sentence": "2 contributions in 2 jobs, 1 signed ends",
        "exit_code": 0,
    }
    path.write_bytes(path.read_bytes().replace(b'"round":2', b'"round":3'))
    (tmp_path / "labels.csv").write_text("id,north_1,soft:a=x,soft:a=y\n1,0,0.5,0.5\n2,1,1,0\n")
    bad = told()
    assert (bad["ledger"]["ok"], bad["ledger"]["exit_code"]) == (False, 3)
    assert "line 4" in str(bad["ledger"]["sentence"])
    assert not bad["randomise"]["ok"]
    assert "column 'a': soft labels cannot be randomised" in str(bad["randomise"]["sentence"])


# Forgetting.


def test_forget_removes_what_is_kept_of_a_job_and_never_the_ledger(run: Run, north: Path, tmp_path: Path) -> None:
    state, results = north / "state", north / "results"
    ledger, labels = write_ledger(north), tmp_path / "labels.csv"

    def keep(job: str) -> None:
        JobIndex(state).write(JobEntry(job, "running", 1, sites=SITES))
        Previews(state).write(PREVIEW)
        Consents(state).decide(job, DIGEST, SITES, "approved")
        AttemptHistory(state).begin(job, DIGEST, LABELS, Policy())
        (state / "checkpoints" / name_of(job)).mkdir(parents=True)
        (state / "checkpoints" / name_of(job) / "3").touch()
        (results / job).mkdir(parents=True, exist_ok=True)

    Rosters(state).remember(labels, content_digest(labels), SITES, "demo", Notes())
    kept = {path: path.read_bytes() for path in (ledger, state / "rosters.json")}
    keep("demo")
    forgotten = run("ce-client", "forget", "demo", "--config", north, "--format", "json")
    assert forgotten.json == {
        "job": "demo",
        "removed": ["preview", "consent", "attempts", "checkpoints", "journal"],
        "kept": ["ledger", "results"],
    }
    assert [path for path in state.rglob("*") if path.is_file() and path not in kept] == []
    assert (results / "demo").exists()
    keep("demo")
    said = run("ce-client", "forget", "demo", "--results", "--config", north)
    assert said.out == "removed of demo: preview, consent, attempts, checkpoints, results, journal; kept: ledger\n"
    assert not (results / "demo").exists()
    assert {path: path.read_bytes() for path in kept} == kept
    assert run("ce-client", "forget", "demo", "--config", north).code == 3


def test_a_job_with_the_name_of_a_path_forgets_nothing_elsewhere(run: Run, north: Path) -> None:
    (north / "results").mkdir()
    for name in ("../state", "..", ".", str(north / "results")):
        JobIndex(north / "state").write(JobEntry(name, "refused", 1))
        forgotten = run("ce-client", "forget", name, "--results", "--config", north, "--format", "json")
        assert (forgotten.json["removed"], forgotten.json["kept"]) == (["journal"], ["ledger"])
    assert (north / "site.key").exists()
    assert (north / "state").exists()
    assert (north / "results").exists()


def test_a_state_that_cannot_be_written_is_said_in_a_sentence(run: Run, north: Path) -> None:
    Previews(north / "state").write(PREVIEW)
    (north / "state" / "consents").touch()
    refused = run("ce-client", "approve", "demo", "--config", north)
    assert refused.code == 4
    assert "cannot be written" in refused.sentence
