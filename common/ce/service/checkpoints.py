"""Checkpoints: snapshots of jobs under way, on the disk, so that a process that was killed goes on where it was.

One file each, written as a whole, encrypted under a key of whoever keeps it, bound to the job and to what its sites
have enrolled. A damaged file, one of another version or one of another alignment is as good as none. Two are kept of a
job: while the newest is being written somewhere, the one before it is still everywhere. All go when the job ends.

    file     "cekept" version(2) salt(16) frame*        frame = length(4) AES-256-GCM(plaintext of at most 1 MiB)
    key      HKDF(local key, "ce checkpoint", salt, job, context, origin, round); nonce = number of the frame, from 0;
             associated data = 1 for the last frame, else 0

The coordinator and each site number checkpoints alike: `origin`, the epoch in which the run began from the beginning,
and `round`. Equal numbers are states of the same moment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ce.errors import JobFailed
from ce.privacy.derivation import derive, number
from ce.protocol.engine.snapshots import Snapshot, pack, unpack
from ce.service.atomic_files import atomic_write, make_directory

MAGIC = b"cekept"
VERSION = 1
KEPT = 2
KEY_SIZE = 32
SALT_SIZE = 16
#: Bytes of a frame: at most, of any version's; and as they are written, so that little is copied at a time.
LARGEST_FRAME, FRAME = 2**20, 2**16
SUFFIX = ".kept"
#: What the limits are called in the files of a coordinator and of a site.
LARGEST = "checkpoints.largest; largest_checkpoint at a site"
LEAST_FREE = "checkpoints.least_free; least_free at a site"


class CheckpointId(NamedTuple):
    """Which moment of a job a checkpoint is of."""

    origin: int
    round: int


class CheckpointFailed(JobFailed):
    """A checkpoint could not be written, or not be read again. The job goes on without.

    Next: make room on the disk, or raise the limit that the log names.
    """


class Checkpoints(Protocol):
    """Where snapshots are kept. `context` is a digest of all that a snapshot is only good for."""

    def labels(self, job: str, context: bytes) -> list[CheckpointId]:
        """The newest sound checkpoints of a job, at most two, oldest first."""

    def save(self, job: str, context: bytes, label: CheckpointId, snapshot: Mapping[str, Any]) -> None:
        """Keep one more, and forget all but two. Raises NotKept; then those that were there are there."""

    def load(self, job: str, context: bytes, label: CheckpointId) -> Snapshot:
        """One of `labels`. Raises NotKept when it is gone or damaged."""

    def remove(self, job: str) -> None:
        """Forget all of a job."""


class MemoryCheckpoints:
    """Checkpoints that last as long as this object: for tests. They do what files do, as bytes."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[CheckpointId, tuple[bytes, bytearray]]] = {}

    def labels(self, job: str, context: bytes) -> list[CheckpointId]:
        return sorted(label for label, (own, _) in self._kept.get(job, {}).items() if own == context)

    def save(self, job: str, context: bytes, label: CheckpointId, snapshot: Mapping[str, Any]) -> None:
        kept = self._kept.setdefault(job, {})
        kept[label] = (context, bytearray(b"".join(pack(snapshot))))
        for old in sorted(kept)[:-KEPT]:
            del kept[old]

    def load(self, job: str, context: bytes, label: CheckpointId) -> Snapshot:
        own, content = self._kept.get(job, {}).get(label, (b"", bytearray()))
        if own != context:
            raise CheckpointFailed("the checkpoint is gone")
        return unpack(bytearray(content))

    def remove(self, job: str) -> None:
        self._kept.pop(job, None)


class CheckpointFiles:
    """Checkpoints in files below `directory`, under a key that never leaves this machine."""

    def __init__(self, directory: Path, key: bytes, largest: int, least_free: int = 0) -> None:
        """`largest`: bytes that one checkpoint may have; larger ones are not kept. `least_free`: nor those that would
        leave fewer bytes than this on the disk."""
        self._directory = directory
        self._key = key
        self._largest = largest
        self._least_free = least_free

    def labels(self, job: str, context: bytes) -> list[CheckpointId]:
        sound = [label for label, path in self._files(job) if self._read(path, job, context, label) is not None]
        return sound[-KEPT:]  # a third is there when the process was killed before it could remove it

    def save(self, job: str, context: bytes, label: CheckpointId, snapshot: Mapping[str, Any]) -> None:
        chunks = list(pack(snapshot))
        size = sum(len(chunk) for chunk in chunks)
        if size > self._largest:
            raise CheckpointFailed(
                f"a checkpoint would take {size:,} bytes, and may take {self._largest:,} ({LARGEST})"
            )
        path = self._of(job) / f"{label.origin}-{label.round}{SUFFIX}"
        salt = os.urandom(SALT_SIZE)
        cipher = AESGCM(self._file_key(salt, job, context, label))
        try:
            self._leave_room(path.parent, size)
            with atomic_write(path) as file:
                file.write(MAGIC + VERSION.to_bytes(2, "big") + salt)
                _write_frames(file, cipher, chunks)
            for _, old in self._files(job)[:-KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointFailed(f"{path.parent}: a checkpoint cannot be written: {error.strerror}") from error

    def load(self, job: str, context: bytes, label: CheckpointId) -> Snapshot:
        for own, path in self._files(job):
            if own == label and (content := self._read(path, job, context, label)) is not None:
                return unpack(content)
        raise CheckpointFailed("the checkpoint is gone or damaged")

    def remove(self, job: str) -> None:
        shutil.rmtree(self._of(job), ignore_errors=True)

    def remove_all_but(self, jobs: Iterable[str]) -> None:
        """When a process starts: what a former one left of jobs that are over."""
        wanted = {self._of(job) for job in jobs}
        for path in self._directory.iterdir() if self._directory.is_dir() else ():
            if path.is_dir() and path not in wanted:
                shutil.rmtree(path, ignore_errors=True)

    def _leave_room(self, directory: Path, size: int) -> None:
        make_directory(directory)
        free = shutil.disk_usage(directory).free
        if free - size < self._least_free:
            raise CheckpointFailed(
                f"a checkpoint of {size:,} bytes would leave fewer than {self._least_free:,} bytes free on its disk "
                f"({LEAST_FREE})"
            )

    def _of(self, job: str) -> Path:
        return self._directory / hashlib.sha256(job.encode()).hexdigest()[:32]

    def _files(self, job: str) -> list[tuple[CheckpointId, Path]]:
        found = []
        for path in self._of(job).glob(f"*{SUFFIX}"):
            origin, _, round_ = path.name.removesuffix(SUFFIX).partition("-")
            if origin.isdecimal() and round_.isdecimal():
                found.append((CheckpointId(int(origin), int(round_)), path))
        return sorted(found)

    def _file_key(self, salt: bytes, job: str, context: bytes, label: CheckpointId) -> bytes:
        return derive(
            self._key, b"ce checkpoint", salt, job.encode(), context, number(label.origin), number(label.round)
        )

    def _read(self, path: Path, job: str, context: bytes, label: CheckpointId) -> bytearray | None:
        """What is in a file; None when it is not whole, or not of this version, job, context and moment."""
        try:
            with path.open("rb") as file:
                head = file.read(len(MAGIC) + 2 + SALT_SIZE)
                if head[: len(MAGIC) + 2] != MAGIC + VERSION.to_bytes(2, "big"):
                    return None
                cipher = AESGCM(self._file_key(head[len(MAGIC) + 2 :], job, context, label))
                return bytearray(b"".join(_read_frames(file, cipher)))
        except (OSError, InvalidTag, EOFError):
            return None


def local_key(path: Path) -> bytes:
    """The key of the checkpoints of this machine, 32 bytes in a file of its own, which is made where there is none.

    Raises OSError, or ValueError where the file is another one.
    """
    if not path.exists():
        with atomic_write(path) as file:
            file.write(os.urandom(KEY_SIZE).hex().encode() + b"\n")
    key = bytes.fromhex(path.read_text())
    if len(key) != KEY_SIZE:
        raise ValueError("not a key")
    return key


def _write_frames(file: BinaryIO, cipher: AESGCM, chunks: list[bytes | memoryview]) -> None:
    waiting = bytearray()
    count = 0

    def write(content: bytes, last: bool) -> None:
        nonlocal count
        frame = cipher.encrypt(count.to_bytes(12, "big"), content, bytes([last]))
        file.write(len(frame).to_bytes(4, "big") + frame)
        count += 1

    for chunk in chunks:
        for begin in range(0, len(chunk), FRAME):
            waiting += chunk[begin : begin + FRAME]
            if len(waiting) > FRAME:
                write(bytes(waiting[:FRAME]), False)
                del waiting[:FRAME]
    write(bytes(waiting), True)


def _read_frames(file: BinaryIO, cipher: AESGCM) -> Iterator[bytes]:
    """Raises EOFError or InvalidTag unless all frames are there, in order, and nothing else."""
    count, last = 0, False
    while not last:
        size = int.from_bytes(file.read(4), "big")
        if not 16 <= size <= LARGEST_FRAME + 16:
            raise EOFError
        frame = file.read(size)
        following = file.peek(1)[:1]  # type: ignore[attr-defined]
        last = not following
        if len(frame) < size:
            raise EOFError
        yield cipher.decrypt(count.to_bytes(12, "big"), frame, bytes([last]))
        count += 1
