"""Checkpoints: snapshots of running jobs, on the disk, from which a process that was killed resumes.

Each is one file, written as a whole, encrypted under a local key, bound to the job and to what its sites have enrolled.
A damaged file, one of another version or one of another alignment counts as missing. Each process has the newest two of
a job: while the newest is being written at one process, all processes still have the one before it. All are removed
when the job ends.

    file     "cecheckpoint" version(2) salt(16) frame*        frame = length(4) AES-256-GCM(plaintext of at most 1 MiB)
    key      HKDF(local key, "ce checkpoint", salt, job, context, origin, round); nonce = number of the frame, from 0;
             associated data = 1 for the last frame, else 0

The coordinator and each site give the same `CheckpointId` to snapshots of the same round.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ce.errors import JobFailed
from ce.privacy.derivation import derive, number
from ce.service.atomic_files import atomic_write, make_directory
from ce.service.checkpoint_id import CHECKPOINTS_PER_JOB, CheckpointId
from ce.service.snapshot_codec import pack, unpack

__all__ = ["CheckpointFailed", "CheckpointFiles", "CheckpointId", "Checkpoints", "MemoryCheckpoints", "local_key"]

MAGIC = b"cecheckpoint"
VERSION = 3
KEY_SIZE = 32
SALT_SIZE = 16
#: Most bytes of plaintext in a frame that is read; and in a frame that is written, so that little is copied at a time.
LARGEST_FRAME, FRAME = 2**20, 2**16
SUFFIX = ".checkpoint"
#: The names of the limits in coordinator.toml and in client.toml.
LARGEST = "checkpoints.largest; largest_checkpoint at a site"
LEAST_FREE = "checkpoints.least_free; least_free at a site"


class CheckpointFailed(JobFailed):
    """A checkpoint could not be written or read. The job continues without it.

    Next: make room on the disk, or raise the limit that the log names.
    """


class Checkpoints(Protocol):
    """Saves and loads snapshots. `context` is a digest of everything that a snapshot is valid for."""

    def ids(self, job: str, context: bytes) -> list[CheckpointId]:
        """The newest intact checkpoints of a job, at most two, oldest first."""

    def save(self, job: str, context: bytes, checkpoint_id: CheckpointId, snapshot: Mapping[str, Any]) -> None:
        """Write one durably, then remove all but the newest two. Raises CheckpointFailed; then nothing has changed."""

    def load(self, job: str, context: bytes, checkpoint_id: CheckpointId) -> dict[str, Any]:
        """One of `ids`. Raises CheckpointFailed when it is missing or damaged."""

    def remove(self, job: str) -> None:
        """Remove all checkpoints of a job."""


class MemoryCheckpoints:
    """Checkpoints that last as long as this object, for tests. Like files, they hold bytes, not references."""

    def __init__(self) -> None:
        self._saved: dict[str, dict[CheckpointId, tuple[bytes, bytearray]]] = {}

    def ids(self, job: str, context: bytes) -> list[CheckpointId]:
        return sorted(found for found, (bound_to, _) in self._saved.get(job, {}).items() if bound_to == context)

    def save(self, job: str, context: bytes, checkpoint_id: CheckpointId, snapshot: Mapping[str, Any]) -> None:
        saved = self._saved.setdefault(job, {})
        saved[checkpoint_id] = (context, bytearray(b"".join(pack(snapshot))))
        for old in sorted(saved)[:-CHECKPOINTS_PER_JOB]:
            del saved[old]

    def load(self, job: str, context: bytes, checkpoint_id: CheckpointId) -> dict[str, Any]:
        bound_to, content = self._saved.get(job, {}).get(checkpoint_id, (b"", bytearray()))
        if bound_to != context:
            raise CheckpointFailed("the checkpoint is missing")
        return unpack(bytearray(content))

    def remove(self, job: str) -> None:
        self._saved.pop(job, None)


class CheckpointFiles:
    """Checkpoints in files below `directory`, encrypted under a key that never leaves this machine."""

    def __init__(self, directory: Path, key: bytes, largest: int, least_free: int = 0) -> None:
        """`largest`: most bytes of one checkpoint; `least_free`: bytes that must stay free on the disk. A checkpoint
        that breaks either limit is not saved."""
        self._directory = directory
        self._key = key
        self._largest = largest
        self._least_free = least_free

    def ids(self, job: str, context: bytes) -> list[CheckpointId]:
        intact = [found for found, path in self._files(job) if self._read(path, job, context, found) is not None]
        return intact[-CHECKPOINTS_PER_JOB:]  # a third is there if the process was killed before it could remove it

    def save(self, job: str, context: bytes, checkpoint_id: CheckpointId, snapshot: Mapping[str, Any]) -> None:
        chunks = list(pack(snapshot))
        size = sum(len(chunk) for chunk in chunks)
        if size > self._largest:
            raise CheckpointFailed(f"a checkpoint of {size:,} bytes is larger than {self._largest:,} bytes ({LARGEST})")
        path = self._of(job) / f"{checkpoint_id.origin}-{checkpoint_id.round}{SUFFIX}"
        salt = os.urandom(SALT_SIZE)
        cipher = AESGCM(self._file_key(salt, job, context, checkpoint_id))
        try:
            self._leave_room(path.parent, size)
            with atomic_write(path) as file:
                file.write(MAGIC + VERSION.to_bytes(2, "big") + salt)
                _write_frames(file, cipher, chunks)
            for _, old in self._files(job)[:-CHECKPOINTS_PER_JOB]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointFailed(f"{path.parent}: a checkpoint cannot be written: {error.strerror}") from error

    def load(self, job: str, context: bytes, checkpoint_id: CheckpointId) -> dict[str, Any]:
        for found, path in self._files(job):
            if found == checkpoint_id and (content := self._read(path, job, context, found)) is not None:
                return unpack(content)
        raise CheckpointFailed("the checkpoint is missing or damaged")

    def remove(self, job: str) -> None:
        shutil.rmtree(self._of(job), ignore_errors=True)

    def remove_all_but(self, jobs: Iterable[str]) -> None:
        """Called when a process starts: removes what an earlier process left of jobs that have ended."""
        unfinished = {self._of(job) for job in jobs}
        for path in self._directory.iterdir() if self._directory.is_dir() else ():
            if path.is_dir() and path not in unfinished:
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

    def _file_key(self, salt: bytes, job: str, context: bytes, checkpoint_id: CheckpointId) -> bytes:
        origin, round_ = checkpoint_id
        return derive(self._key, b"ce checkpoint", salt, job.encode(), context, number(origin), number(round_))

    def _read(self, path: Path, job: str, context: bytes, checkpoint_id: CheckpointId) -> bytearray | None:
        """A file's content; None when it is damaged, or of another version, job, context or id."""
        try:
            with path.open("rb") as file:
                head = file.read(len(MAGIC) + 2 + SALT_SIZE)
                if head[: len(MAGIC) + 2] != MAGIC + VERSION.to_bytes(2, "big"):
                    return None
                cipher = AESGCM(self._file_key(head[len(MAGIC) + 2 :], job, context, checkpoint_id))
                return bytearray(b"".join(_read_frames(file, cipher)))
        except (OSError, InvalidTag, EOFError):
            return None


def local_key(path: Path) -> bytes:
    """The key of this machine's checkpoints: 32 bytes, in a file that is created when it is missing.

    Raises OSError, or ValueError when the file holds no such key.
    """
    if not path.exists():
        with atomic_write(path) as file:
            file.write(os.urandom(KEY_SIZE).hex().encode() + b"\n")
    key = bytes.fromhex(path.read_text())
    if len(key) != KEY_SIZE:
        raise ValueError("not a key")
    return key


def _write_frames(file: BinaryIO, cipher: AESGCM, chunks: list[bytes | memoryview]) -> None:
    unwritten = bytearray()
    count = 0

    def write(content: bytes, last: bool) -> None:
        nonlocal count
        frame = cipher.encrypt(count.to_bytes(12, "big"), content, bytes([last]))
        file.write(len(frame).to_bytes(4, "big") + frame)
        count += 1

    for chunk in chunks:
        for begin in range(0, len(chunk), FRAME):
            unwritten += chunk[begin : begin + FRAME]
            if len(unwritten) > FRAME:
                write(bytes(unwritten[:FRAME]), False)
                del unwritten[:FRAME]
    write(bytes(unwritten), True)


def _read_frames(file: BinaryIO, cipher: AESGCM) -> Iterator[bytes]:
    """Raises EOFError or InvalidTag unless all frames are there, in order, and nothing follows them."""
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
