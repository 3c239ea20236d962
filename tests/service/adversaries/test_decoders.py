"""Every file and message that is read, damaged: what comes out is a typed error, or something that could have been
written; never a crash, and not after a while that somebody could wait for."""

from __future__ import annotations

import gzip
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ce
from ce.errors import CeError
from ce.identity.certificates import identity_of, parse_certificate
from ce.identity.denied import DenyList
from ce.identity.keys import make_key, read_secret
from ce.identity.names import Identity
from ce.identity.peers import Peers
from ce.identity.requests import make_csr, read_csr
from ce.job import Job
from ce.labels import LabelTable
from ce.policy import Policy
from ce.service.checkpoints import CheckpointFiles, CheckpointId
from ce.testing import PERMISSIVE, make_sites, open_site
from ce.transport.array_chunks import Collector, to_chunks
from ce_client.config import ClientSettings
from ce_client.state.attempt_history import AttemptHistory, AttemptRecord
from ce_client.state.consents import Consents
from ce_client.state.files import name_of
from ce_client.state.job_index import JobEntry, JobIndex
from ce_client.state.ledger import Ledger, entries, verify
from ce_client.state.previews import Preview, Previews
from ce_client.state.rosters import Rosters
from ce_coordinator.config import CoordinatorSettings
from ce_coordinator.daemon import open_checkpoints
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

JOB = ce.Job(name="job", clusters=2, sites=("east", "north"))
KEY = bytes(32)
STATE = {"exchanges": 3, "numbers": np.arange(10.0), "text": "x"}
#: Nobody waits longer than this for a file of a few kilobytes.
MOST_S = 5.0

Decode = Callable[[bytes, Path], object]


class Kept:
    """One file in a place of its own, which `read` looks at."""

    def __init__(self, name: str, read: Callable[[Path], object]) -> None:
        self._name, self._read = name, read

    def __call__(self, content: bytes, directory: Path) -> object:
        path = directory / self._name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)
        return self._read(path)


def _ledger(path: Path) -> object:
    path.chmod(0o600)
    verify(path)
    try:
        return list(entries(path))
    except CeError:
        with Ledger(path, "north") as ledger:
            return ledger.head


def _kept(path: Path) -> object:
    files = CheckpointFiles(path.parent.parent, KEY, 2**20)
    found = files.ids("job", b"c")
    return files.load("job", b"c", found[0] if found else CheckpointId(1, 1))


def _parts(content: bytes, _: Path) -> object:
    try:
        return Collector(2**20).feed(arrays_pb2.ArrayChunks.FromString(content))
    except DecodeError:
        return None


def _of_state(read: Callable[[Path], object], name: str) -> Kept:
    return Kept(f"state/{name}", lambda path: read(path.parents[name.count("/")]))


FILE = f"{name_of('job')}.json"
DECODERS: dict[str, Decode] = {
    "a definition": lambda content, _: Job.from_definition(content),
    "job.toml": Kept("job.toml", Job.from_toml),
    "coordinator.toml": Kept("coordinator.toml", CoordinatorSettings.read),
    "client.toml": Kept("client.toml", ClientSettings.read),
    "policy.toml": Kept("policy.toml", Policy.read),
    "peers.toml": Kept("peers.toml", Peers.read),
    "denied.txt": Kept("denied.txt", lambda path: DenyList(path).denies("SHA256:" + "0" * 64)),
    "secret": Kept("secret", read_secret),
    "a certificate": lambda content, _: identity_of(parse_certificate(content)),
    "a request": lambda content, _: read_csr(content),
    "labels.csv": Kept("labels.csv", LabelTable.from_file),
    "labels.csv.gz": Kept("labels.csv.gz", LabelTable.from_file),
    "labels.tsv": Kept("labels.tsv", LabelTable.from_file),
    "labels.parquet": Kept("labels.parquet", LabelTable.from_file),
    "the ledger": Kept("ledger.jsonl", _ledger),
    "the journal": _of_state(lambda state: JobIndex(state).entries(), FILE),
    "attempts": _of_state(lambda state: AttemptHistory(state).of("job", b""), f"attempts/{FILE}"),
    "consents": _of_state(lambda state: Consents(state).decision("job", b"", ["a"]), f"consents/{FILE}"),
    "previews": _of_state(lambda state: Previews(state).read("job"), f"previews/{FILE}"),
    "rosters": _of_state(lambda state: Rosters(state).others(state, b"", ["a"]), "rosters.json"),
    "a checkpoint": Kept(f"{name_of('job')}/1-1.checkpoint", _kept),
    "the key of checkpoints": Kept(
        "checkpoints/key",
        lambda path: open_checkpoints(CoordinatorSettings.read(_empty(path.parent.parent / "coordinator.toml"))),
    ),
    "parts": _parts,
}


def _empty(path: Path) -> Path:
    path.write_text("")
    return path


@pytest.fixture(scope="module", name="sound")
def _sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What each decoder reads when all is well."""
    directory = tmp_path_factory.mktemp("sound")
    labels = directory / "labels.csv"
    rows = b"id,a,clf:b,soft:c=x,soft:c=y\n" + b"".join(b"o%d,%d,k%d,0.25,0.75\n" % (i, i % 3, i % 2) for i in range(9))
    labels.write_bytes(rows)
    own = make_sites(directory, {"north": labels})["north"]
    played_site = open_site(own)
    played_site.ledger.begin("job", 1, KEY, ["north"], "plain")
    played_site.ledger.record("job", 1, 1, {"a": np.arange(3)}, "plain", {"a": ("north",)})
    state = own.state
    JobIndex(state).write(JobEntry("job", "offered", 1, sites=("a",)))
    AttemptHistory(state)._write("job", AttemptRecord(""))
    Consents(state).decide("job", b"", ["a"], "approved")
    Previews(state).write(Preview("job", "", "hub", 1, "bce", "plain", ("a",), 1))
    Rosters(state).allow(["a"], "job")
    CheckpointFiles(directory, KEY, 2**20).save("job", b"c", CheckpointId(1, 1), STATE)
    table = pa.table({"id": [f"o{i}" for i in range(9)], "a": [i % 3 for i in range(9)]})
    parquet = io.BytesIO()
    pyarrow.parquet.write_table(table, parquet)
    toml = "".join(
        f"{key} = {json.dumps(value)}\n"
        for key, value in json.loads(JOB.definition()).items()
        if value is not None and not isinstance(value, dict)
    )
    (chunks,) = to_chunks({"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4)})
    return {
        "a definition": JOB.definition(),
        "job.toml": toml.encode(),
        "coordinator.toml": b'listen = "127.0.0.1:1"\n[limits]\nstreams = 3\n[log]\nlevel = "info"\n',
        "client.toml": (directory / "north" / "client.toml").read_bytes(),
        "policy.toml": PERMISSIVE.encode(),
        "peers.toml": b'south = "SHA256:' + b"0" * 64 + b'"\n',
        "denied.txt": b"SHA256:" + b"0" * 64 + b"  # stolen\n",
        "secret": own.secret.read_bytes(),
        "a certificate": own.certificate.read_bytes(),
        "a request": make_csr(make_key(), Identity("site", "north")),
        "labels.csv": rows,
        "labels.csv.gz": gzip.compress(rows),
        "labels.tsv": rows.replace(b",", b"\t"),
        "labels.parquet": parquet.getvalue(),
        "the ledger": (state / "ledger.jsonl").read_bytes(),
        "the journal": (state / FILE).read_bytes(),
        "attempts": (state / "attempts" / FILE).read_bytes(),
        "consents": (state / "consents" / FILE).read_bytes(),
        "previews": (state / "previews" / FILE).read_bytes(),
        "rosters": (state / "rosters.json").read_bytes(),
        "a checkpoint": (directory / name_of("job") / "1-1.checkpoint").read_bytes(),
        "the key of checkpoints": KEY.hex().encode(),
        "parts": chunks.SerializeToString(),
    }


def decode(name: str, content: bytes, directory: Path) -> object:
    """Whatever comes out, if it is not one of our errors; in time."""
    begin = time.process_time()
    try:
        return DECODERS[name](content, directory)
    except CeError as error:
        return error
    finally:
        assert time.process_time() - begin < MOST_S


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_sound_is_read(name: str, sound: dict[str, bytes], tmp_path: Path) -> None:
    assert not isinstance(decode(name, sound[name], tmp_path), CeError)


def damage(content: bytes, rng: Random) -> bytes:
    """Bits flipped, bytes lost, moved, repeated, or other ones put in."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 1, 4, 50]))
        what = rng.randrange(6)
        if what == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del data[at:end]
        elif what == 2:
            data[at:at] = data[at:end] * rng.randint(1, 4)
        elif what == 3:
            data[at:at] = rng.choice(PIECES)
        elif what == 4:
            data[at:end] = rng.randbytes(end - at)
        elif what == 5 and rng.random() < 0.3:
            del data[at:]
    return bytes(data)


PIECES = [
    *(
        b"\0",
        b"\xff",
        b"\n",
        b"\r",
        b'"',
        b"'",
        b",",
        b"=",
        b"[",
        b"]",
        b"{",
        b"}",
        b":",
        b"-",
        b"null",
        b"NaN",
        b"1e999",
    ),
    *("ö\u202e\ufeff".encode(), b"1e999", b"9" * 5000, b"-1", b"true", b"\x1b[2J", b"[[", b"{}", b"[]", b'""', b"../"),
]


@pytest.mark.promise("Hostile frames and files never crash a daemon: they are refused by field.")
@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_damaged_is_a_typed_error_or_could_have_been_written(
    name: str, sound: dict[str, bytes], tmp_path: Path, seed: int
) -> None:
    decode(name, damage(sound[name], Random(seed)), tmp_path)


BOMBS: dict[str, bytes] = {
    "nothing": b"",
    "zeros": bytes(5000),
    "every byte": bytes(range(256)) * 4,
    "lists in lists": b"[" * 100_000,
    "lists in lists, closed": b"[" * 20_000 + b"]" * 20_000,
    "objects in objects": b'{"a":' * 50_000,
    "tables in tables": b"a = " + b"[" * 20_000 + b"]" * 20_000,
    "inline tables": b"a = " + b"{a = " * 5_000 + b"1" + b"}" * 5_000,
    "dotted keys": b".".join([b"a"] * 3_000) + b" = 1",
    "a number of many digits": b"9" * 100_000,
    "a key of many digits": b'{"name": ' + b"9" * 100_000 + b"}",
    "a number, as TOML": b"restarts = " + b"9" * 100_000,
    "a long line": b"x" * 900_000,
    "many columns": b",".join(b"c%d" % at for at in range(50_000)) + b"\n" + b"," * 49_999 + b"\n",
    "many lines": b"\n" * 500_000,
    "a bomb in gzip": gzip.compress(bytes(50_000_000)),
    "many names": b"{" + b",".join(b'"k%d":1' % at for at in range(50_000)) + b"}",
}


@pytest.mark.promise("Hostile frames and files never crash a daemon: they are refused by field.")
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_what_is_large_or_deep_is_a_typed_error_in_time(bomb: bytes, tmp_path: Path) -> None:
    for name in DECODERS:
        decode(name, bomb, tmp_path)


def test_a_frame_with_millions_of_fields_is_read_in_time() -> None:
    """As many as fit in a frame: of every kind that can be repeated, and nothing in them."""
    room = 2**20
    for path in ((1, 5), (3, 3), (4, 5), (6, 20)):  # Hello.held, SealedKeys.keys, Enrolment.columns, Answer.parts
        inner = (bytes([path[1] << 3 & 0x7F | 2, 0]) if path[1] < 16 else b"\xa2\x01\0") * (room // 3)
        begin = time.process_time()
        frame = pb.SiteFrame.FromString(bytes([path[0] << 3 | 2]) + _varint(len(inner)) + inner)
        assert frame.WhichOneof("frame") is not None
        assert time.process_time() - begin < MOST_S


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
