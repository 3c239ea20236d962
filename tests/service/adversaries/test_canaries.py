"""No label, no object id, no category and no secret is where it does not belong.

Canaries are planted as object ids, labels and secrets of real jobs. Then everything is searched for them: all that the
coordinator has (its memory, while jobs run and when they are done, its store, its logs, every frame that it was sent),
all that both daemons tell whoever scrapes their metrics, and all that a site says and keeps beside its label file, its
secret and its results: logs, ledger, previews, consents, rosters, journal, what its commands print, what it says when
it refuses. The search itself is shown to find what may be known: names of sites and columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support.commands import (
    Run,
    run_fixture,  # noqa: F401 (a fixture)
)
from support.processes import Deployment

import ce
from ce.errors import CeError
from ce.identity.keys import read_key
from ce.identity.peers import CHANGED, UNPINNED
from ce.models import BCE
from ce.privacy.masks import Keystream, Masks, Part
from ce.privacy.pair_keys import EncryptedBox, EphemeralKey, decrypt
from ce.privacy.ring_words import Stream
from ce.protocol import sealed_run
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import add_answer
from ce.protocol.engine.site import Site
from ce.protocol.engine.starting_parameters import SecretStarts, SeededStarts, job_key
from ce.protocol.keys.handshake import KeyShare, check_key_share
from ce.protocol.local_alignment import align_tables
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.messages.task import Answer, Task, chunks
from ce.protocol.modes.contributor import contributor
from ce.protocol.modes.decision_codec import decode_decision
from ce.protocol.modes.mask_context import MaskBinding, view_digest
from ce.protocol.sealed.channel import Channel
from ce.protocol.sealed.records import LabelRecord, ReleaseRecord
from ce.protocol.sealed.site import SealedSite
from ce.protocol.topology.enrolment import enrol, with_tokens
from ce.protocol.topology.topology import align
from ce.protocol.topology.vocabularies import Wishes
from ce.testing import PERMISSIVE, FrameByFrame, make_sites, write_labels
from ce_client.state.consents import Consents
from ce_client.state.releases.database import FILE_NAME as RELEASES
from ce_client.state.releases.job_records import JobRecords
from ce_proto.v1 import site_pb2

SITES = ("north", "east", "south")
MODES = ("plain", "masked", "blind")
#: What makes a job a sealed one.
SEALED_JOB = {"model": "pairs", "privacy": "sealed"}
N = 120
CANARY = "canary"
# Ids and labels that nothing else in a Python process looks like.
IDS = [f"zq{CANARY}id{i:04d}" for i in range(N)]
LABELS = [f"xw{CANARY}label{r}" for r in range(4)]
NUMBERS = [7_340_033_011 + 7919 * r for r in range(3)]  # integer labels, as text and as words
COLUMN = "columnthatisknown"
SECRETS = {site: hashlib.sha256(f"the secret of {site}".encode()).digest() for site in SITES}
FIRST = min(SITES)  # makes the job keys


def tables() -> dict[str, ce.LabelTable]:
    """Shared objects, a shared text column, a shared integer column, a private text column."""
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, N)
    found = {}
    for at, site in enumerate(SITES):
        rows = np.arange(20 * at, N - 20 * (2 - at))
        own = truth[rows]
        # A cell has one holder: shared columns are dealt by row number, private ones are this site's alone.
        text = np.array(LABELS, dtype=object)[(own + (rng.random(len(rows)) < 0.1)) % 4]
        text[rows % 3 != at] = None
        whole = np.array(NUMBERS, dtype=object)[own]
        whole[rows % 3 != at] = None
        private = np.array(LABELS, dtype=object)[own]
        found[site] = ce.LabelTable.from_arrays(
            np.column_stack([text, whole, private]),
            ids=[IDS[i] for i in rows],
            columns=[COLUMN, "numbers", f"private{site}"],
        )
    return found


def job(name: str, privacy: str, **keys: Any) -> ce.Job:
    keys = {"clusters": 3, "sites": SITES, "restarts": 2, "max_iterations": 20, "privacy": privacy} | keys
    return ce.Job(name=name, **keys | (SEALED_JOB if keys["privacy"] == "sealed" else {}))


# The search.


def _anchors() -> list[bytes]:
    """What all canaries have a part of: looked for first, for there is much to search."""
    # A search for zeros at the end would stop at every empty page.
    words = [CANARY.encode(encoding).rstrip(b"\0") for encoding in ("utf-8", "utf-16-le", "utf-32-le")]
    # Integer labels differ in their last digits, and in their lowest bytes.
    return [*words, str(NUMBERS[0])[:5].encode(), NUMBERS[0].to_bytes(8, "little")[2:5]]


ANCHORS = _anchors()


def planted(text: bytes, secrets: Iterable[bytes] = ()) -> list[str]:
    """The canaries that occur, in any of the ways in which a process keeps text and numbers."""
    found = [f"secret {at}" for at, own in enumerate(secrets) if own in text]
    if not any(anchor in text for anchor in ANCHORS):
        return found
    found += [
        f"{word[:2]} as {encoding}"
        for word in ("zq" + CANARY, "xw" + CANARY)
        for encoding in ("utf-8", "utf-16-le", "utf-32-le")
        if word.encode(encoding) in text
    ]
    return found + ["a number" for n in NUMBERS if str(n).encode() in text or n.to_bytes(8, "little") in text]


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
def test_the_search_finds_whatever_is_planted() -> None:
    hay = bytes(1000) + b"nothing to see" + bytes(range(256))
    assert planted(hay, SECRETS.values()) == []
    for own in (IDS[7], LABELS[3]):
        for encoding in ("utf-8", "utf-16-le", "utf-32-le"):
            assert planted(hay + own.encode(encoding) + hay) == [f"{own[:2]} as {encoding}"]
    for number in NUMBERS:
        for found in (str(number).encode(), number.to_bytes(8, "little"), np.array([1, number, 2]).tobytes()):
            assert planted(hay + found + hay) == ["a number"]
    assert planted(hay + SECRETS["south"] + hay, SECRETS.values()) == ["secret 2"]


def secrets_of(directory: Path, jobs: Iterable[ce.Job]) -> list[bytes]:
    """What must not leave the sites below a directory: their secrets, the keys drawn from them, their private keys.

    As bytes and in hexadecimal; the private keys as in their files too.
    """
    found = list(SECRETS.values())
    for one in jobs:
        key = job_key(SECRETS[FIRST], one.disclosure_digest)
        found += [key, *(SecretStarts.of(own, key, one.disclosure_digest).site_key for own in SECRETS.values())]
    files = [directory / site / "site.key" for site in SITES]
    found += [read_key(path).private_numbers().private_value.to_bytes(32, "big") for path in files]
    written = [path.read_bytes().splitlines()[1] for path in files]
    return [*found, *(own.hex().encode() for own in found), *written]


def files_below(directory: Path, *, but: Iterable[str] = ()) -> dict[str, bytes]:
    """All files, also those of directories that nobody has thought of yet; one that disappears meanwhile is none."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and not any(name == own or name.startswith(f"{own}/") for own in but):
            with contextlib.suppress(FileNotFoundError):
                found[name] = path.read_bytes()
    return found


def planted_in(files: dict[str, bytes], secrets: list[bytes]) -> dict[str, list[str]]:
    return {name: found for name, content in files.items() if (found := planted(name.encode() + content, secrets))}


def memory_of(pid: int) -> Iterator[bytes]:
    """Everything that a process can have written, in overlapping pieces; what it only maps from files is left out."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            begin, end = (int(part, 16) for part in span.split("-"))
            for first, last in _used(pid, begin, end):
                for at in range(first, last, 1 << 24):
                    try:
                        memory.seek(at)
                        yield memory.read(min((1 << 24) + 256, last - at))
                    except (OSError, ValueError, OverflowError):
                        break


def _used(pid: int, begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of a span of memory that were ever written to, as far as the system says."""
    page = os.sysconf("SC_PAGESIZE")
    try:
        with Path(f"/proc/{pid}/pagemap").open("rb", 0) as pagemap:
            pagemap.seek(begin // page * 8)
            entries = np.frombuffer(pagemap.read((end - begin) // page * 8), "<u8")
    except (OSError, ValueError, OverflowError):
        return [(begin, end)]
    if len(entries) != (end - begin) // page:
        return [(begin, end)]
    there = np.concatenate([[False], entries >> np.uint64(62) != 0, [False]])  # in memory, or swapped out
    edges = np.flatnonzero(there[1:] != there[:-1]).reshape(-1, 2)
    return [(begin + first * page, begin + last * page) for first, last in edges.tolist()]


def planted_in_memory(pid: int, secrets: list[bytes]) -> list[str] | None:
    """None: this system does not let a process look at another's memory."""
    found, known = [], False
    try:
        for chunk in memory_of(pid):
            known |= COLUMN.encode() in chunk
            found += planted(chunk, secrets)
    except PermissionError:
        return None
    assert known, "the search finds nothing"
    return found


# Real processes.


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """A job does not end while one of its sites stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def set_policy(directory: Path, **keys: object) -> None:
    """A site's policy: permissive but for these."""
    rest = [line for line in PERMISSIVE.splitlines() if line.split(" ")[0] not in keys]
    lines = [*rest, *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    (directory / "policy.toml").write_text("\n".join(lines) + "\n")


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
def test_nothing_is_where_it_does_not_belong_in_real_jobs_of_every_mode(tmp_path: Path, run: Run) -> None:
    often = "[checkpoints]\nevery_s = 0.0\nevery_exchanges = 1"
    with Deployment(tmp_path, SITES, SECRETS, configuration=often, metrics=True) as deployment:
        for site, table in tables().items():
            deployment.write_labels(site, table)
        hub, north = deployment.processes["hub"], deployment.processes["north"]
        names = [f"canaries-{privacy}" for privacy in MODES]
        jobs = [job(name, privacy, tolerance=0, max_iterations=60) for name, privacy in zip(names, MODES, strict=True)]
        sealed = job("canaries-sealed", "sealed")
        secrets = secrets_of(tmp_path, [*jobs, sealed, job("refused", "masked")])
        skipped = False
        for one, name, privacy in zip(jobs, names, MODES, strict=True):
            set_policy(tmp_path / "north", consent="ask" if privacy == "masked" else "auto")
            deployment.submit(one)
            if privacy == "masked":
                north.wait_for("job waits for approval", job=name)
                shown = run("ce-client", "preview", name, "--config", tmp_path / "north")
                assert "waits" in shown.out
                assert planted((shown.out + shown.err).encode(), secrets) == []
                assert run("ce-client", "approve", name, "--config", tmp_path / "north").code == 0
            deployment.watch_until(name, lambda status: status.exchanges >= 10)
            with standing_still(deployment.processes["south"].pid):
                during = planted_in_memory(hub.pid, [*SECRETS.values(), job_key(SECRETS[FIRST], one.disclosure_digest)])
                skipped |= during is None
                assert not during
                for site in SITES:
                    kept = files_below(tmp_path / site / "state")
                    assert any(path.endswith(".checkpoint") for path in kept), "checkpoints are searched, too"
                    assert planted_in(kept, secrets) == {}
                kept = files_below(deployment.hub / "checkpoints", but=("key",))
                assert any(path.endswith(".checkpoint") for path in kept)
                assert planted_in(kept, secrets) == {}
                _search_metrics(deployment, ("hub", "north", "east"), names, secrets)
            assert deployment.wait(name).state == "done"
        assert deployment.run(sealed).state == "done"
        names.append(sealed.name)
        set_policy(tmp_path / "north", min_foreign_columns=9, below_minimum="refuse")
        refused = deployment.run(job("refused", "masked"))
        assert (refused.state, refused.rule) == ("failed", "min_foreign_columns")

        _search_metrics(deployment, ("hub", *SITES), names, secrets)
        assert not planted_in_memory(hub.pid, list(SECRETS.values()))
        if not skipped:
            # The sites themselves know: the same search finds everything there.
            assert len(set(planted_in_memory(north.pid, [SECRETS["north"]]) or [])) > 3
        _search_logs_and_coordinator(deployment, names, secrets)
        for site in SITES:
            _search_site(deployment, site, names, secrets)
            _search_commands(run, tmp_path / site, names, secrets)
        if skipped:
            pytest.skip("all but memory was searched: this system does not let a process look at another's memory")


def _search_metrics(deployment: Deployment, daemons: Iterable[str], names: list[str], secrets: list[bytes]) -> None:
    """Neither canaries, nor names, which other searches may find."""
    for name in daemons:
        for path in ("/metrics", "/healthz"):
            _, text = deployment.get(name, path)
            assert planted(text, secrets) == []
            assert not any(own.encode() in text for own in (*names, *SITES, COLUMN, "olga"))
        assert b"_bytes_total{" in deployment.get(name)[1]


def _search_logs_and_coordinator(deployment: Deployment, names: list[str], secrets: list[bytes]) -> None:
    for process in deployment.processes.values():
        log = "\n".join(process.raw).encode()
        assert all(name.encode() in log for name in names)
        assert planted(log, secrets) == []
    files = files_below(deployment.hub)
    store = b"".join(content for name, content in files.items() if name.startswith("coordinator.sqlite"))
    assert all(name.encode() in store for name in names)
    assert COLUMN.encode() in store
    assert planted_in(files, secrets) == {}


def _search_site(deployment: Deployment, site: str, names: list[str], secrets: list[bytes]) -> None:
    home = deployment.directory / site
    files = files_below(home, but=("site.key", "secret", "results"))
    kept = {name.split("/")[-1] for name in files} | {name.split("/")[1] for name in files if "/" in name}
    assert {"ledger.jsonl", "rosters.json", "previews", RELEASES} <= kept
    assert site != "north" or "consents" in kept
    job_index = b"".join(content for name, content in files.items() if re.fullmatch(r"state/[0-9a-f]{32}\.json", name))
    assert all(name.encode() in job_index for name in names)
    assert planted_in(files, secrets) == {}
    # Results are the site's own, under its own ids; labels and secrets are not in them.
    results = files_below(home / "results")
    for name in names:
        lines = (home / "results" / name / "consensus.csv").read_text().splitlines()
        assert [line.split(",")[0] for line in lines[1:]] == tables()[site].ids.tolist()
    for found in planted_in(results, secrets).values():
        assert found == ["zq as utf-8"]


def _search_commands(run: Run, home: Path, names: list[str], secrets: list[bytes]) -> None:
    commands = [["jobs"], ["show", "refused"], ["ledger", "list"], ["ledger", "verify"], ["preview", "unknown"]]
    last = (["show"], ["preview"], ["ledger", "show"], ["forget"], ["allow-release"])
    commands += [["budget"], *([*words, names[-1]] for words in last)]
    for words in commands:
        for format_ in ("text", "json"):
            ended = run("ce-client", *words, "--config", home, "--format", format_)
            assert ended.code == 0 or {"unknown", "forget", "allow-release"} & {*words}
            assert planted((ended.out + ended.err).encode(), secrets) == [], words


# Every frame.


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
@pytest.mark.parametrize("privacy", MODES)
def test_no_frame_to_the_coordinator_has_a_label_an_id_or_a_secret(tmp_path: Path, privacy: str) -> None:
    table = seated(tmp_path)
    table.submit(job("canaries", privacy).definition())
    table.run()
    assert table.machine.records["canaries"].state == "done"
    search_frames_and_files(table, tmp_path, job("canaries", privacy))


def search_frames_and_files(table: Listening, directory: Path, played: ce.Job) -> None:
    """After a job: all frames to the coordinator, and all files of the sites."""
    wire = b"".join(table.up_recording)
    assert COLUMN.encode() in wire
    assert planted(wire, secrets_of(directory, [played])) == []
    # Nor a plain hash of one: pseudonyms are keyed.
    for own in (*IDS, *LABELS):
        for digest in (hashlib.sha256(own.encode()).digest(), hashlib.md5(own.encode()).digest()):
            assert digest[:8] not in wire
    assert not re.search(rb"\.csv", wire), "the name of a label file is nobody's business"
    for site in SITES:
        files = files_below(directory / site, but=("site.key", "secret", "results"))
        assert planted_in(files, secrets_of(directory, [played])) == {}


class Overheard:
    """What the sites of a sealed job draw, encrypt and write down, while it is played in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: set[bytes] = set()  # seeds and keys; nonces of boxes are public
        self.recorded: set[bytes] = set()  # what the records of a site keep, beside its shares
        self.keys: set[bytes] = set()  # of boxes, pairs of sites and streams
        self.contents: list[bytes] = []  # of boxes
        assert SealedSite.__init__.__kwdefaults__ is not None
        monkeypatch.setitem(SealedSite.__init__.__kwdefaults__, "entropy", self._draw)
        self.before(monkeypatch, Channel, "_encrypt", lambda key, content, _: self._encrypts(key, content))
        self.before(monkeypatch, Stream, "__init__", self.keys.add)
        self.before(monkeypatch, JobRecords, "commit", lambda _o, _c, nonce, _s: self.recorded.add(nonce))
        self.before(
            monkeypatch, JobRecords, "settle", lambda _b, _o, _s, key, nonce, _n: self.recorded.update((key, nonce))
        )
        derived = EphemeralKey.pair_key

        def pair_key(own: EphemeralKey, *parts: bytes) -> bytes:
            found = derived(own, *parts)
            self.keys.add(found)
            return found

        monkeypatch.setattr(EphemeralKey, "pair_key", pair_key)

    @staticmethod
    def before(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, listen: Callable[..., object]) -> None:
        called = getattr(kind, name)

        def wrapped(own: Any, *arguments: Any) -> Any:
            listen(*arguments)
            return called(own, *arguments)

        monkeypatch.setattr(kind, name, wrapped)

    def _draw(self, size: int) -> bytes:
        found = os.urandom(size)
        if size == 32:
            self.drawn.add(found)
        return found

    def _encrypts(self, key: bytes, content: bytes) -> None:
        self.keys.add(key)
        self.contents.append(content)


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
@pytest.mark.promise(
    "Seeds and keys of a sealed job are on no disk, rows and openings only encrypted; only the dealer gets seeds."
)
def test_secrets_of_a_sealed_job_are_where_the_protocol_says_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overheard = Overheard(monkeypatch)
    table = seated(tmp_path)

    def all_files() -> dict[str, bytes]:
        but = [f"{site}/{name}" for site in SITES for name in ("site.key", "secret", "results")]
        return files_below(tmp_path, but=[*but, "authority", *(f"{site}.csv" for site in SITES)])

    on_disk: list[dict[str, bytes]] = []  # each time that a site enters labels
    overheard.before(monkeypatch, JobRecords, "enter", lambda *_: on_disk.append(all_files()))
    table.submit(job("canaries", "sealed").definition())
    table.run()
    assert table.machine.records["canaries"].state == "done"
    search_frames_and_files(table, tmp_path, job("canaries", "sealed"))
    wire = b"".join(table.up_recording)
    # In the clear: seeds for the dealer, which the coordinator is here, and nonces of shares that are open.
    told: dict[str, set[bytes]] = {}
    for frame in map(site_pb2.SiteFrame.FromString, table.up_recording):
        for chunk in getattr(frame, str(frame.WhichOneof("frame"))).chunks.chunks if _has_chunks(frame) else ():
            told.setdefault("/".join(chunk.name.split("/")[:2]), set()).add(chunk.data)
    seeds = told["dealer/product_seed"] | told["dealer/argmax_seed"]
    assert len(seeds) == 2 * len(SITES)
    in_the_clear = seeds | told["all/nonce"]
    assert in_the_clear < overheard.drawn
    hidden = [*(overheard.drawn - in_the_clear), *overheard.keys]
    assert len(overheard.drawn - in_the_clear) > 3 * len(SITES), "keys of blocks and rows, check seeds, noise"
    assert planted(wire, [*hidden, *(secret.hex().encode() for secret in hidden)]) == []
    boxed = [content for content in overheard.contents if any(content)]  # a site without a past says zeros at first
    assert sum(map(len, boxed)) > 20_000, "masked rows and openings"
    assert planted(wire, boxed) == []
    # On no disk: not even the seeds that the dealer has. Until the end a site keeps its shares, their nonces and the
    # order of rows; these are found.
    secret = [*(overheard.drawn - overheard.recorded), *overheard.keys]
    assert seeds < {*secret}
    openings = [content for content in boxed if len(content) > 32]  # of 32 bytes are commitments, which are kept
    for files in (*on_disk, all_files()):
        assert planted_in(files, [*secret, *(own.hex().encode() for own in secret), *openings]) == {}
    kept = b"".join(content for name, content in on_disk[-1].items() if RELEASES in name)
    assert any(own in kept for own in overheard.recorded)
    assert planted_in(all_files(), [*overheard.recorded]) == {}
    # Nor does the coordinator note or store any of it.
    noted = repr([table.notes, table.closed, table.store.jobs(), table.store.sites()]).encode()
    everything = [*overheard.drawn, *overheard.keys]
    assert planted(noted, [*everything, *(own.hex().encode() for own in everything)]) == []


def _has_chunks(frame: site_pb2.SiteFrame) -> bool:
    return frame.WhichOneof("frame") in ("answer", "more", "enrolment", "letters")


# Refusals.


class Listening(FrameByFrame):
    """A table that hears why its sites refuse, which a site itself writes into its log and its journal."""

    def __init__(self, *arguments: Any) -> None:
        self.refusals: dict[int, CeError] = {}
        super().__init__(*arguments)

    def deliver_down(self, site: str) -> None:
        super().deliver_down(site)
        for site_attempt in self.sites[site].site_attempts.values():
            if site_attempt.refusal is not None:
                self.refusals[id(site_attempt.refusal)] = site_attempt.refusal


def seated(directory: Path) -> Listening:
    paths = {site: directory / f"{site}.csv" for site in SITES}
    for site, own in tables().items():
        write_labels(paths[site], own)
    table = Listening(make_sites(directory, paths, SECRETS))
    table.connect()
    return table


def _votes(home: Path, classes: tuple[str, ...]) -> None:
    """A label file with votes beside the labels."""
    own = tables()[home.name]
    rng = np.random.default_rng(1)
    codes = rng.integers(0, len(classes), own.n_objects).astype(np.int32)
    votes = ce.labels.Column(f"votes{home.name}", "classifier", classes, codes, None)
    write_labels(home.parent / f"{home.name}.csv", replace(own, columns=(*own.columns, votes)))


def _votes_everywhere(home: Path) -> None:
    for site in SITES:
        _votes(home.parent / site, ("a", "b"))


def _labels(change: Callable[[str], str]) -> Callable[[Path], None]:
    """Change the text of the label file."""

    def changed(home: Path) -> None:
        path = home.parent / f"{home.name}.csv"
        path.write_text(change(path.read_text()))

    return changed


def _overlapping(home: Path) -> None:
    """This site claims all cells of the shared column."""
    own = tables()[home.name]
    whole = np.resize(np.arange(4, dtype=np.int32), own.n_objects)
    columns = tuple(replace(c, categories=tuple(LABELS), codes=whole) if c.name == COLUMN else c for c in own.columns)
    write_labels(home.parent / f"{home.name}.csv", replace(own, columns=columns))


def _pins(change: Callable[[str], str]) -> Callable[[Path], None]:
    def changed(home: Path) -> None:
        path = home / "peers.toml"
        path.write_text(change(path.read_text()))

    return changed


def _declined(home: Path) -> None:
    definition = job("consent", "masked").definition()
    Consents(home / "state").decide("consent", hashlib.sha256(definition).digest(), SITES, "declined")


def _same_id_twice(text: str) -> str:
    return text + text.splitlines()[-1] + "\n"


def _soft(home: Path) -> None:
    """A label file with a soft column too."""
    own = tables()[home.name]
    probabilities = np.full((own.n_objects, 2), 0.5)
    soft = ce.labels.Column("soft", "clustering", tuple(LABELS[:2]), None, probabilities)
    write_labels(home.parent / f"{home.name}.csv", replace(own, columns=(*own.columns, soft)))


bc3e = {"model": "bc3e", "clusters": None, "classes": ("a", "b"), "restarts": 1, "max_iterations": 3}
Prepare = Callable[[Path], None]
#: What is refused, by which rule, under which policy of one site, and what is done before.
REFUSALS: dict[str, tuple[str, dict[str, Any], dict[str, Any], Prepare | None]] = {
    "weakest_privacy": ("weakest_privacy", {"weakest_privacy": "blind"}, {}, None),
    "min_sites": ("min_sites", {"min_sites": 4}, {}, None),
    "models": ("models", {"models": ["mixture"]}, {}, None),
    "coordinators": ("coordinators", {"coordinators": ["elsewhere"]}, {}, None),
    "crowd": ("min_sites", {"min_sites": 2, "min_objects": 1000}, {}, None),
    "min_objects": ("rare categories", {"min_objects": 50, "below_minimum": "refuse"}, {}, None),
    "min_foreign_columns": ("min_foreign_columns", {"min_foreign_columns": 9, "below_minimum": "refuse"}, {}, None),
    "min_classifiers": ("min_classifiers", {"min_classifiers": 9, "below_minimum": "refuse"}, bc3e, _votes_everywhere),
    "max_rounds": ("max_rounds", {"max_rounds": 2}, {}, None),
    "consent": ("consent", {"consent": "ask"}, {}, _declined),
    "roster": ("one roster per label file", {}, {"sites": ("east", "north")}, None),
    "classes": ("classes of the job", {}, bc3e, lambda home: _votes(home, tuple(LABELS))),
    "no pins": (UNPINNED, {}, {}, lambda home: (home / "peers.toml").unlink()),
    "other pins": (CHANGED, {}, {}, _pins(lambda text: re.sub(r"[0-9a-f]{8}", "01234567", text, count=1))),
    "pins of nobody": ("", {}, {}, _pins(lambda text: text + LABELS[0])),
    "clashing column": ("clashing column", {}, {}, _labels(lambda text: re.sub(r"\b73400\d+", LABELS[0], text))),
    "overlapping cells": ("overlapping cells", {}, {}, _overlapping),
    "same id twice": ("", {}, {}, _labels(_same_id_twice)),
    "half a row": ("", {}, {}, _labels(lambda text: text + IDS[0])),
    "no probabilities": (
        "",
        {},
        {},
        _labels(lambda text: text.replace("privatenorth", f"soft:privatenorth={LABELS[0]}")),
    ),
    "randomised": ("", {"randomise": 0.5}, {}, _soft),
    "not declared": ("declared categories", {"randomise": 0.5}, {}, None),
    "sealed budget": ("max_epsilon", {"max_epsilon": 0.5}, SEALED_JOB, None),
    "sealed without noise": ("allow_exact", {"allow_exact": False}, SEALED_JOB | {"epsilon": "exact"}, None),
    "sealed collusion": ("min_collusion", {"min_collusion": 2}, SEALED_JOB, None),
    "sealed soft": ("", {}, SEALED_JOB, _soft),
    "no ids": ("", {}, {}, _labels(lambda text: text.replace("id,", LABELS[0] + ",", 1))),
    "no policy": ("", {"randomise": LABELS[0]}, {}, None),
}


#: Rules that are checked when masked words have left: the coordinator is not told their names.
AFTER_THE_COUNTS = ("max_rounds",)


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
def test_no_refusal_says_anything_about_labels(tmp_path: Path) -> None:
    table = seated(tmp_path)
    home = tmp_path / "north"
    before = files_below(tmp_path)
    submitted = [job("done", "masked")]
    table.submit(submitted[0].definition())
    table.run()
    assert table.machine.records["done"].state == "done"
    for name, (rule, policy, keys, prepare) in REFUSALS.items():
        for path, content in before.items():
            if path.endswith((".csv", "peers.toml")):
                (tmp_path / path).write_bytes(content)
        set_policy(home, **policy)
        if prepare is not None:
            prepare(home)
        table.refusals.clear()
        submitted.append(job(name, **{"privacy": "masked"} | keys))
        table.submit(submitted[-1].definition(), token=name)
        table.run()
        record = table.machine.records[name]
        assert record.state == "failed", name
        refusals = list(table.refusals.values())
        told = "" if name in AFTER_THE_COUNTS else rule
        assert not rule or record.rule == told, (name, record.rule, record.reason)
        assert told or not rule or rule in {getattr(error, "rule", "") for error in refusals}, name
        assert record.reason
        assert refusals or rule in ("clashing column", "overlapping cells"), name
        said = [record.reason, record.rule, repr(record), *(f"{error!s} {error!r}" for error in refusals)]
        # What a CeError says is logged whole; of its causes only their types are (`ce.service.logs`).
        assert planted("\n".join(said).encode(), secrets_of(tmp_path, submitted[-1:])) == [], name
    set_policy(home)
    secrets = secrets_of(tmp_path, submitted)
    assert planted(b"".join(table.up_recording), secrets) == []
    assert planted(repr([table.notes, table.closed, table.store.jobs(), table.store.sites()]).encode(), secrets) == []
    for site in SITES:
        assert planted_in(files_below(tmp_path / site, but=("site.key", "secret", "results")), secrets) == {}


# Errors within.

KEY = b"zqcanarykeyzqcanarykeyzqcanaryke"
#: Whatever an array has in it, nobody should see it in an error.
WORDS = np.array(NUMBERS)
SEALED = np.frombuffer("".join(IDS[:4]).encode(), np.uint8)


def at_a_site(mode: str, name: str = "north") -> tuple[Any, Any, dict[str, bytes]]:
    """A site's end of a job, its topology, and its keys; all of canaries."""
    own = tables()
    key = job_key(SECRETS[FIRST], b"job")
    enrolments = {site: enrol(table, False, key) for site, table in own.items()}
    topology, rows = align(enrolments)
    model = BCE(3, n_init=2, max_iter=3).steps()
    view, starts = topology.view(name), SecretStarts.of(SECRETS[name], key, b"job")
    site = Site(name, with_tokens(own[name], key), view, rows[name], model, starts)
    keys = {peer: KEY for peer in SITES if peer != name}
    attempt = Attempt("job", "".join(LABELS).encode(), 1, topology.sites)
    return contributor(mode, attempt, site, view, model, enrolments[name].objects, rows[name], keys), view, keys


def at_a_sealed_site(step: str, name: str = "north") -> tuple[SealedSite, Task]:
    """A site's end of a sealed job before a step, and the task of this step; all of canaries."""
    own, asked, key = tables(), job("canaries", "sealed"), job_key(SECRETS[FIRST], b"job")
    aligned = align_tables(False, own, dict.fromkeys(SITES, Wishes()), key)
    attempt = Attempt(asked.name, asked.definition(), 1, aligned.topology.sites)
    named = {site: with_tokens(table, key) for site, table in own.items()}
    keys = {site: dict.fromkeys({*SITES} - {site}, KEY) for site in SITES}
    with mock.patch.object(sealed_run, "local_pair_keys", return_value=keys):
        parties = sealed_run.sealed_parties(asked, attempt, aligned, named)
    while (tasks := parties.coordinator.tasks())[name].step != step:
        for site, task in tasks.items():
            add_answer(parties.coordinator, site, parties.sites[site].answer(task))
        parties.coordinator.advance()
    return parties.sites[name], tasks[name]


def sealed_with(step: str, array: str, content: Any, *, whole: bool = False) -> None:
    """A task of the coordinator with something else in one of its arrays, or with one more that is asked for.

    `whole`: as much of it as there was."""
    site, task = at_a_sealed_site(step)
    content = np.resize(content, task.arrays[array].shape) if whole else content
    if content is None:
        site.answer(replace(task, asked={**task.asked, array: ArraySpec((16,))}))
    site.answer(replace(task, arrays={**task.arrays, array: content}))


def after_keys(name: str = "north") -> Any:
    """A blind member that has made its keys."""
    found, _, _ = at_a_site("blind", name)
    found.answer(Task(1, "keys"))
    return found


def a_cover() -> MaskBinding:
    cover: MaskBinding = at_a_site("masked")[0]._masks
    return cover


def mask(cover: MaskBinding, name: str, bits: dict[str, int] | None = None, times: int = 1) -> None:
    for _ in range(times):
        answer = Answer(2, "sums", arrays={name: WORDS}, fraction_bits={name: 3} if bits is None else bits)
        cover.mask(answer, view_digest(Task(2, "sums", arrays={"global/alpha": WORDS})))


def read(name: str, words: Any) -> None:
    cover = a_cover()
    cover.set_keys = {("nobody",): KEY}
    cover.unmask({name: words}, {name: 0}, 1, view_digest(Task(1, "open")))


MALFORMED: dict[str, Callable[[], object]] = {
    "no bits": lambda: mask(a_cover(), "global/bound", {}),
    "negative bits": lambda: mask(a_cover(), "global/bound", {"global/bound": -3}),
    "no such block": lambda: mask(a_cover(), "block/99/sums"),
    "no such group": lambda: mask(a_cover(), "columns/99/sums"),
    "no such array": lambda: mask(a_cover(), "xw"),
    "claims on nothing": lambda: mask(a_cover(), "block/0/claims/99"),
    "hidden twice": lambda: mask(a_cover(), "global/bound", times=2),
    "no set key": lambda: read("global/bound", WORDS),
    "words that are none": lambda: read("global/bound", IDS),
    "unknown peer": lambda: Masks("north", {"east": KEY}).mask(1, [Part(SITES, [WORDS])], {"east": KEY, "west": KEY}),
    "no context": lambda: Masks("north", {"east": KEY}).mask(1, [Part(("east", "north"), [WORDS])], {}),
    "a short key": lambda: Keystream(KEY[:5]),
    "a short public key": lambda: EphemeralKey().pair_key(KEY[:31]),
    "a weak public key": lambda: EphemeralKey().pair_key(bytes(32), KEY),
    "sealed by nobody": lambda: decrypt(KEY, EncryptedBox(KEY[:12], SEALED.tobytes()), KEY),
    "a short nonce": lambda: decrypt(KEY, EncryptedBox(KEY[:5], SEALED.tobytes()), KEY),
    "no certificate": lambda: check_key_share(Attempt("job", KEY, 1, SITES), "east", KeyShare(KEY, KEY, KEY)),
    "a short decision": lambda: decode_decision(SEALED.tobytes(), (0,), 2, {"alpha": np.ones((2, 3))}),
    "keys twice": lambda: after_keys(FIRST).answer(Task(2, "keys")),
    "open without keys": lambda: after_keys().answer(Task(2, "open")),
    "open with words": lambda: after_keys().answer(Task(2, "open", arrays={"box/east": WORDS})),
    "open with noise": lambda: after_keys().answer(Task(2, "open", arrays={"box/east": SEALED})),
    "open with little": lambda: after_keys().answer(Task(2, "open", arrays={"box/east": SEALED[:3]})),
    "decide too early": lambda: after_keys().answer(Task(2, "decide", arrays={"global/bound": WORDS})),
    "sums too early": lambda: after_keys().answer(Task(2, "sums", arrays={"global/bound": WORDS})),
    "finish too early": lambda: after_keys().answer(Task(2, "finish", arrays={"block/0/memberships": WORDS})),
    "sums without messages": lambda: at_a_site("masked")[0].answer(Task(1, "sums", 0, 1, (0, 1))),
    "sealed, wrong categories": lambda: sealed_with("meet", "model/categories", WORDS),
    "sealed, ids as categories": lambda: sealed_with("meet", "model/categories", SEALED),
    "sealed, asked for more": lambda: sealed_with("mask", f"members/0/{LABELS[0]}/north", None),
    "sealed, a box of noise": lambda: sealed_with("mask", "box/east", SEALED, whole=True),
    "sealed, a box of ids": lambda: sealed_with("mask", "box/east", SEALED),
    "sealed, rows of others": lambda: sealed_with("verify", "dealer/products/east", SEALED),
    "sealed, no commitment": lambda: sealed_with("release", "all/commitment/east", SEALED),
    "sealed, another share": lambda: sealed_with("score", "all/nonce/east", SEALED[:32]),
    "sealed, no model": lambda: sealed_with("score", "model/weights", WORDS.astype(float)),
    "sealed, twice": lambda: at_a_sealed_site("mask")[0].answer(at_a_sealed_site("meet")[1]),
    "sealed, a short seed": lambda: Stream(KEY[:5]),
    "no such start": lambda: at_a_site("masked")[0].answer(Task(1, "sums", 0, 1, (7,), (7,), {"global/alpha": WORDS})),
}


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
@pytest.mark.parametrize("what", MALFORMED)
def test_errors_about_malformed_input_do_not_quote_it(what: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (whichever it is)
        MALFORMED[what]()
    error = caught.value
    said = f"{error!s} {error!r}"
    if isinstance(error, CeError):
        said += "".join(traceback.format_exception(error))
    assert planted(said.encode(), [KEY, *SECRETS.values()]) == []
    assert "zqcanarykey" not in said


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
def test_what_holds_secrets_does_not_show_them() -> None:
    blind, view, keys = at_a_site("blind")
    own = tables()["north"]
    key = job_key(SECRETS[FIRST], b"job")
    answer = Answer(1, "sums", arrays={"a": WORDS}, fraction_bits={"a": 0})
    sealed, _ = at_a_sealed_site("settle")
    assert sealed._rounds is not None
    parts = [*vars(sealed).values(), *vars(sealed._rounds).values(), *vars(sealed._rounds.context).values()]
    ours = [part for part in parts if type(part).__module__.startswith("ce.")]
    assert len({type(part) for part in ours}) > 8
    kept = {"east": KEY}
    shown = [
        sealed,
        *ours,
        ReleaseRecord(1, KEY, "opening", KEY, KEY, kept, KEY),
        LabelRecord(1, "entered", KEY, KEY, KEY, kept, 3),
        Stream(KEY),
        blind,
        blind._masks,
        blind._masks._masks,
        blind._site,
        blind.home,
        own,
        own.columns,
        enrol(own, False),
        enrol(own, False, key),
        SecretStarts.of(SECRETS["north"], key, b"job"),
        SeededStarts.of(0, [own]),
        Attempt("job", "".join(LABELS).encode(), 1, SITES),
        EncryptedBox(KEY[:12], KEY),
        KeyShare(b"public", KEY, KEY),
        Keystream(KEY),
        EphemeralKey(),
        Task(1, "sums", arrays={"a": WORDS}),
        answer,
        *chunks(answer),
        align({"north": enrol(own, False)})[0],
        view,
    ]
    for thing in shown:
        if type(thing).__name__ == "MemoryRecords":  # of simulations: holds what is in no file and no log
            continue
        text = f"{thing!r} {thing!s} {[thing]}"
        assert planted(text.encode(), [*keys.values(), *SECRETS.values(), key]) == [], type(thing).__name__
        assert "zqcanarykey" not in text
