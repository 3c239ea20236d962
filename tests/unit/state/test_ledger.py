"""The disclosure ledger: everything that leaves is in it first, and whatever is done to it afterwards is found.

Speed, measured beside hashing alone on one core: a contribution of 8 arrays costs some 0.15 ms more than the SHA-256 of
its words (64 MB: 1.01 of hashing alone, 8 MB: 1.08, 80 kB: 3).
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from cryptography import x509
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ce.errors import ConfigError, InputError, JobFailed
from ce.identity.authority import Authority
from ce.identity.certificates import sign
from ce.identity.keys import PrivateKey, make_key
from ce.identity.names import Identity
from ce.protocol.messages.task import array_hash
from ce_client.cli.ledger import WORD_BYTES
from ce_client.state.contributed_arrays import ContributedArrays
from ce_client.state.hash_chain import canonical, chained, split, with_hash
from ce_client.state.ledger import PURPOSE, Ledger, entries, verify

DOCS = Path(__file__).parents[3] / "docs"
ROSTER = ("east", "north", "south")
ARRAYS = {
    "block/0/sums": np.arange(24, dtype=np.int64).reshape(2, 3, 4),
    "global/bound": np.array([-7], dtype=np.int64),
}
COMPANY = dict.fromkeys(ARRAYS, ROSTER)


class Site:
    """A key, and a certificate for it."""

    def __init__(self, authority: Authority, name: str) -> None:
        self.key: PrivateKey = make_key()
        self.certificate: x509.Certificate = authority.issue(
            Identity("site", name), self.key, datetime.now(UTC), replace=True
        )

    def sign(self, message: bytes) -> bytes:
        return sign(self.key, message, purpose=PURPOSE)


@pytest.fixture(scope="module", name="authority")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"), datetime.now(UTC))


@pytest.fixture(scope="module", name="north")
def _north(authority: Authority) -> Site:
    return Site(authority, "north")


def contribute(ledger: Ledger, job: str, rounds: range) -> bytes:
    head = b""
    for number in rounds:
        head = ledger.record(job, 1, number, ARRAYS, "masked", COMPANY)
    return head


def write(path: Path, north: Site) -> list[bytes]:
    """Two jobs, both signed, and then a contribution of a third; returns the heads as they were handed out."""
    with Ledger(path, "north") as ledger:
        heads = [ledger.begin("first", 1, bytes(32), ROSTER, "masked", 0.25, {"a": 2.0, "b": 3.5})]
        heads += [contribute(ledger, "first", range(1, 3))]
        heads += [ledger.end("first", 1, "done", north.sign)]
        heads += [ledger.allow_roster("second", ("north", "west"))]
        heads += [ledger.allow_definition("second", "ab" * 32, "masked")]
        heads += [
            ledger.begin("second", 1, bytes(32), ROSTER, "masked", definition={"smoothing": 0.01, "classes": None})
        ]
        heads += [ledger.disclosure("second", "ab" * 32, "masked", 7, "cd" * 32)]
        heads += [contribute(ledger, "second", range(1, 2)), ledger.end("second", 1, "failed", north.sign)]
        heads += [ledger.begin("third", 4, bytes(32), ROSTER, "blind"), contribute(ledger, "third", range(1, 2))]
    return heads


@pytest.fixture(scope="module", name="written")
def _written(tmp_path_factory: pytest.TempPathFactory, north: Site) -> bytes:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    write(path, north)
    return path.read_bytes()


# What is written.


@pytest.mark.promise("Everything that leaves a site is in its ledger first, and changes to a ledger are detected.")
def test_a_contribution_is_one_line_with_all_that_was_promised(tmp_path: Path, north: Site) -> None:
    path = tmp_path / "state" / "ledger.jsonl"
    before = datetime.now(UTC).timestamp()
    with Ledger(path, "north") as ledger:
        ledger.begin("demo", 2, b"\x01" * 32, reversed(ROSTER), "masked", 0.25, {"a": 2.0})
        modes = {"block/0/sums": "masked", "global/bound": "plain"}
        head = ledger.record("demo", 2, 7, ARRAYS, modes, COMPANY, ["a note"])
        assert ledger.head == head
        # With the operating system, before anything is sent: nothing was closed or flushed.
        assert head.hex() in path.read_text()
        ledger.end("demo", 2, "done", north.sign)
    first, begun, sent, ended = entries(path)
    assert (first["kind"], first["site"], first["version"]) == ("ledger", "north", 1)
    assert (begun["job"], begun["epoch"], begun["job_digest"], begun["mode"]) == ("demo", 2, "01" * 32, "masked")
    assert (begun["roster"], begun["randomise"], begun["epsilon"]) == (list(ROSTER), 0.25, {"a": 2.0})
    assert (sent["kind"], sent["job"], sent["epoch"], sent["round"]) == ("contribution", "demo", 2, 7)
    assert sent["notes"] == ["a note"]
    assert before - 1 < sent["time_s"] < before + 60
    for name, array in ARRAYS.items():
        assert sent["arrays"][name] == {
            "shape": list(array.shape),
            "type": "int64",
            "mode": modes[name],
            "contributors": list(ROSTER),
            "blake3": array_hash(array).hex(),
        }
    assert (ended["kind"], ended["state"]) == ("end", "done")
    assert [line["n"] for line in entries(path)] == [1, 2, 3, 4]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_written_is_verified_and_counted(tmp_path: Path, north: Site) -> None:
    path = tmp_path / "ledger.jsonl"
    heads = write(path, north)
    found = verify(path, north.certificate)
    assert found.ok, found.sentence
    assert (found.lines, found.contributions, found.jobs, found.signed_ends) == (13, 4, 3, 2)
    assert (found.unsigned, found.torn, found.bad_line, found.head) == (1, 0, None, heads[-1].hex())
    assert found.sentence == "4 contributions in 3 jobs, 2 signed ends; 1 contributions since the last of them"
    for head in heads:
        assert verify(path, north.certificate, head=head).ok


def test_a_ledger_goes_on_where_it_was(tmp_path: Path, north: Site) -> None:
    path = tmp_path / "ledger.jsonl"
    head = write(path, north)[-1]
    with Ledger(path, "north") as ledger:
        assert ledger.head == head
        contribute(ledger, "third", range(2, 3))
        ledger.end("third", 4, "done", north.sign)
    assert verify(path, north.certificate).signed_ends == 3
    with pytest.raises(ConfigError, match="is not the ledger of site south"):
        Ledger(path, "south")


def test_the_way_to_verify_by_hand_works(
    tmp_path: Path, north: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    head = write(tmp_path / "ledger.jsonl", north)[-1]
    from cryptography.hazmat.primitives.serialization import Encoding

    (tmp_path / "site.pem").write_bytes(north.certificate.public_bytes(Encoding.PEM))
    chain, signature = re.findall(r"(?s)```python\n(.*?)```", (DOCS / "ledger.md").read_text(encoding="utf-8"))
    # The files that these lines of a person's leave open are of no interest here.
    with pytest.warns(ResourceWarning):
        exec(chain, {})
    assert capsys.readouterr().out == f"13 lines, head {head.hex()}\n"
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    before = bytes.fromhex(json.loads(lines[3])["hash"])
    with pytest.warns(ResourceWarning):
        exec(signature, {"line": lines[4], "before": before})


def test_the_format_of_every_kind_of_line_is_in_the_docs(written: bytes) -> None:
    page = (DOCS / "ledger.md").read_text(encoding="utf-8")
    for line in map(json.loads, written.splitlines()):
        assert f"| `{line['kind']}` |" in page
        assert all(f"`{key}`" in page for key in line)


# What is found.


def changed(content: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "changed.jsonl"
    path.write_bytes(content)
    return path


def line_of(content: bytes, at: int) -> int:
    return content[:at].count(b"\n") + 1


@pytest.mark.promise("Everything that leaves a site is in its ledger first, and changes to a ledger are detected.")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_single_byte_is_found(data: st.DataObject, written: bytes, north: Site, tmp_path: Path) -> None:
    at = data.draw(st.integers(0, len(written) - 1))
    flip = data.draw(st.one_of(st.sampled_from([1 << bit for bit in range(8)]), st.integers(1, 255)))
    bad = written[:at] + bytes([written[at] ^ flip]) + written[at + 1 :]
    found = verify(changed(bad, tmp_path), north.certificate)
    assert not found.ok
    # The line that was changed is the first that is named; one that lost its end is one with the next.
    assert found.bad_line == line_of(written, at)


@pytest.mark.promise("Everything that leaves a site is in its ledger first, and changes to a ledger are detected.")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_lines_that_are_removed_moved_or_put_in_are_found(
    data: st.DataObject, written: bytes, north: Site, tmp_path: Path
) -> None:
    lines = written.splitlines(keepends=True)
    last = len(lines) - 1
    first = data.draw(st.integers(0, last - 1))
    other = data.draw(st.integers(0, last).filter(lambda at: at != first))
    what = data.draw(st.sampled_from(["remove", "swap", "repeat", "blank", "truncate"]))
    if what == "remove":
        del lines[first]
    elif what == "swap":
        lines[first], lines[other] = lines[other], lines[first]
    elif what == "repeat":
        lines.insert(other, lines[first])
    elif what == "blank":
        lines.insert(other, b"\n")
    else:
        lines[other] = lines[other][: data.draw(st.integers(1, len(lines[other]) - 1))]
    found = verify(changed(b"".join(lines), tmp_path), north.certificate)
    assert not found.ok
    assert found.bad_line is not None


def rechained(lines: list[bytes], change: int) -> bytes:
    """As somebody without the key would do it: one line says something else, and all later heads fit."""
    head, out = bytes(32), []
    for at, line in enumerate(lines):
        parts = split(line)
        assert parts is not None
        body = parts[0]
        if at == change:
            body = canonical({**json.loads(body), "time_s": 1.0})
        head = chained(head, body)
        out.append(with_hash(body, head))
    return b"".join(out)


@pytest.mark.promise("Everything that leaves a site is in its ledger first, and changes to a ledger are detected.")
def test_a_chain_made_anew_breaks_at_the_next_signature(written: bytes, north: Site, tmp_path: Path) -> None:
    lines = written.splitlines(keepends=True)
    ends = [at for at, line in enumerate(lines) if b'"kind":"end"' in line]
    head = bytes.fromhex(json.loads(lines[-1])["hash"])
    for change in range(len(lines)):
        path = changed(rechained(lines, change), tmp_path)
        found = verify(path, north.certificate)
        later = [end for end in ends if end >= change]
        if later:
            assert found.bad_line == later[0] + 1
            assert "is not signed by this site's key" in found.problem
        else:
            # After the last signature only a head that was noted elsewhere tells.
            assert found.ok
            assert found.unsigned
            assert not verify(path, north.certificate, head=head).ok


def test_what_is_cut_off_at_the_end_is_told_by_a_head_or_left_unsigned(
    written: bytes, north: Site, tmp_path: Path
) -> None:
    lines = written.splitlines(keepends=True)
    head = bytes.fromhex(json.loads(lines[-1])["hash"])
    for kept in range(1, len(lines)):
        path = changed(b"".join(lines[:kept]), tmp_path)
        found = verify(path, north.certificate)
        assert found.ok
        if b'"kind":"contribution"' in lines[kept - 1]:
            assert found.unsigned, "contributions without a signed end are counted"
        found = verify(path, north.certificate, head=head)
        assert (found.ok, found.bad_line) == (False, None)
        assert found.sentence.startswith("no line has this head")
    assert verify(changed(b"", tmp_path), north.certificate).sentence.startswith("the file is empty")
    with pytest.raises(InputError, match="cannot be read"):
        verify(tmp_path / "nowhere", north.certificate)


def test_only_the_sites_own_key_signs(written: bytes, authority: Authority, north: Site, tmp_path: Path) -> None:
    path = changed(written, tmp_path)
    renewed, south = Site(authority, "north"), Site(authority, "south")
    assert verify(path, renewed.certificate).bad_line == 5
    assert verify(path, renewed.certificate, north.certificate).ok, "after a change of key both are given"
    assert verify(path, south.certificate).sentence == "line 1: is the ledger of another site than south"


# A daemon that is killed, a disk that is full, a file that somebody touches.


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 5000))
def test_a_torn_line_is_cut_off_and_noted(cut: int, written: bytes, north: Site, tmp_path: Path) -> None:
    kept = written[: -min(cut, len(written))]
    path = changed(kept, tmp_path)
    torn = len(kept) - (kept.rfind(b"\n") + 1)
    whole = verify(changed(kept[: len(kept) - torn], tmp_path), north.certificate).lines
    path = changed(kept, tmp_path)
    assert verify(path, north.certificate).ok == (torn == 0 and whole > 0)
    with Ledger(path, "north") as ledger:
        contribute(ledger, "third", range(2, 3))
    found = verify(path, north.certificate)
    assert found.ok, found.sentence
    assert found.torn == (torn > 0)
    assert found.lines == max(whole, 1) + (torn > 0) + 1
    if torn:
        assert [line["bytes"] for line in entries(path) if line["kind"] == "torn"] == [torn]


def test_a_last_line_that_somebody_changed_is_not_gone_on_from(written: bytes, tmp_path: Path) -> None:
    lines = written.splitlines(keepends=True)
    for bad in (
        [*lines[:-1], lines[-1].replace(b"third", b"thirt")],
        [*lines[:-2], lines[-1]],
        [*lines, b"{}\n"],
        [lines[-1]],
    ):
        with pytest.raises(ConfigError, match=r"its last lines are not as the daemon wrote them: see ce-client ledger"):
            Ledger(changed(b"".join(bad), tmp_path), "north")


@pytest.mark.promise("A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.")
def test_a_full_disk_fails_the_job_and_leaves_no_half_line(
    tmp_path: Path, north: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 100:
            return real(descriptor, data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Ledger(path, "north") as ledger:
        head = contribute(ledger, "demo", range(1, 3))
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(JobFailed, match=r"cannot be written \(No space left on device\).*make room"):
                contribute(ledger, "demo", range(3, 4))
        assert ledger.head == head
        contribute(ledger, "demo", range(3, 4))
        ledger.end("demo", 1, "done", north.sign)
    assert verify(path, north.certificate).contributions == 3


def test_nothing_is_recorded_into_a_file_that_was_moved_or_changed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, "north") as ledger:
        path.rename(tmp_path / "away.jsonl")
        with pytest.raises(JobFailed, match="was moved or removed while its daemon runs"):
            contribute(ledger, "demo", range(1, 2))
        (tmp_path / "away.jsonl").rename(path)
        contribute(ledger, "demo", range(1, 2))
        with Ledger(path, "north") as second:
            contribute(second, "demo", range(2, 3))
        with pytest.raises(JobFailed, match="was changed by another program"):
            contribute(ledger, "demo", range(3, 4))
    with pytest.raises(JobFailed, match="is closed"):
        contribute(ledger, "demo", range(4, 5))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="nothing is sent without it"):
        Ledger(tmp_path / "file" / "ledger.jsonl", "north")


def test_several_jobs_may_write_at_once(tmp_path: Path, north: Site) -> None:
    path = tmp_path / "ledger.jsonl"
    heads: list[bytes] = []

    def work(ledger: Ledger, job: str) -> None:
        ledger.begin(job, 1, bytes(32), ROSTER, "masked")
        heads.extend(ledger.record(job, 1, number, ARRAYS, "masked", COMPANY) for number in range(1, 26))
        ledger.end(job, 1, "done", north.sign)

    with Ledger(path, "north") as ledger:
        threads = [threading.Thread(target=work, args=(ledger, f"job {at}")) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = verify(path, north.certificate)
    assert (found.ok, found.contributions, found.jobs, found.signed_ends) == (True, 200, 8, 8)
    assert {line["hash"] for line in entries(path)} >= {head.hex() for head in heads}
    for at in range(8):
        rounds = [line["round"] for line in entries(path) if line.get("job") == f"job {at}" and "round" in line]
        assert rounds == list(range(1, 26))


# Reading.


def test_entries_say_which_line_is_damaged_and_nothing_of_it(tmp_path: Path, written: bytes) -> None:
    assert list(entries(tmp_path / "nowhere")) == []
    lines = written.splitlines(keepends=True)
    for bad in (b'{"canary":1\n', b'{"kind":"contribution"}\n', b"[]\n"):
        with pytest.raises(
            InputError, match=r"changed.jsonl, line 3: is damaged: see ce-client ledger verify"
        ) as error:
            list(entries(changed(b"".join([*lines[:2], bad]), tmp_path)))
        assert "canary" not in str(error.value)
    assert len(list(entries(changed(written[:-5], tmp_path)))) == len(lines) - 1, "a torn line is not shown"


def test_the_same_words_have_the_same_hash_whatever_their_layout(tmp_path: Path) -> None:
    words = np.arange(12, dtype=np.int64).reshape(3, 4)
    layouts: list[Any] = [words, np.asfortranarray(words), words.astype(">i8"), np.repeat(words, 2, axis=0)[::2]]
    with Ledger(tmp_path / "ledger.jsonl", "north") as ledger:
        for number, array in enumerate(layouts, 1):
            ledger.record("demo", 1, number, {"a": array}, "plain", {"a": ROSTER})
    sent = [line["arrays"]["a"] for line in entries(tmp_path / "ledger.jsonl") if line["kind"] == "contribution"]
    assert {own["blake3"] for own in sent} == {blake3(words.tobytes()).hexdigest()}
    assert all(own["type"] == "int64" for own in sent)


def test_the_width_of_what_left_is_in_the_ledger(tmp_path: Path) -> None:
    kinds: list[Any] = [np.int64, np.int32, np.float64, np.float32, np.uint8]
    with Ledger(tmp_path / "ledger.jsonl", "north") as ledger:
        for number, kind in enumerate(kinds, 1):
            ledger.record("demo", 1, number, {"a": np.arange(6, dtype=kind)}, "plain", {"a": ROSTER})
    sent = [line["arrays"]["a"] for line in entries(tmp_path / "ledger.jsonl") if line["kind"] == "contribution"]
    assert [own["type"] for own in sent] == [kind.__name__ for kind in kinds]
    assert [own["blake3"] for own in sent] == [blake3(np.arange(6, dtype=kind).tobytes()).hexdigest() for kind in kinds]
    assert [WORD_BYTES[own["type"]] for own in sent] == [8, 4, 8, 4, 1]


names = st.text(st.characters(codec="utf-8"), max_size=12)


@given(
    arrays=st.dictionaries(names, st.integers(0, 5), max_size=4),
    job=names,
    sites=st.lists(names),
    notes=st.lists(names),
)
def test_the_line_of_a_contribution_is_canonical(
    arrays: dict[str, int], job: str, sites: list[str], notes: list[str]
) -> None:
    words = {name: np.arange(2 * n, dtype=np.int64).reshape(2, n) for name, n in arrays.items()}
    described = ContributedArrays(words, "masked", dict.fromkeys(words, tuple(sites)))
    line = {"kind": "contribution", "job": job, "epoch": 2, "round": 7, "notes": notes, "n": 3, "time_s": 1763.25}
    line["arrays"] = {
        name: {
            "shape": [2, n],
            "type": "int64",
            "mode": "masked",
            "contributors": sites,
            "blake3": array_hash(words[name]).hex(),
        }
        for name, n in arrays.items()
    }
    assert described.line(job, 2, 7, words, notes)(3, 1763.25) == canonical(line)
    assert described.fits({name: array + 1 for name, array in words.items()})
    assert not described.fits({**words, "more": np.zeros(1, dtype=np.int64)})
    assert not words or not described.fits({name: array[:1] for name, array in words.items()})
