"""Files of keys, certificates and pins: written completely or not at all; private files are read only if they are
private.

A file gets its name after all its bytes are on the disk, so that a crash or a full disk leaves the old file or none,
never half a key.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from ce.errors import ConfigError

#: Largest file in bytes. Keys, certificates and pins take kilobytes, so that a larger file is the wrong one.
LARGEST_FILE = 1 << 20

PRIVATE = 0o600
PUBLIC = 0o644


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Create `path`, with `mode` from the beginning. Raises ConfigError if the name is taken."""
    with _writing(path), _aside(path, data, mode) as aside:
        # A hard link, unlike a rename, fails if the name is taken, so that no key is ever overwritten, even in a race.
        try:
            path.hardlink_to(aside)
        except FileExistsError:
            raise ConfigError(f"{path} exists already and is never overwritten: move it away first") from None


def rewrite(path: Path, data: bytes) -> None:
    """Replace the content of `path`. Permissions stay and, where this user may set it, the owner."""
    with _writing(path):
        # The target of a link is replaced, not the link.
        path = path.resolve()
        before = path.stat() if path.exists() else None
        with _aside(path, data, PUBLIC if before is None else PRIVATE) as aside:
            if before is not None:
                with contextlib.suppress(PermissionError):
                    # Otherwise a daemon could not read a file that an administrator has changed.
                    os.chown(aside, before.st_uid, before.st_gid)
                aside.chmod(stat.S_IMODE(before.st_mode))
            aside.replace(path)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Create the directory `path` and its parents, unless it exists."""
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made a directory: {error.strerror}") from error


def read_public(path: Path) -> bytes:
    """The bytes of a file that need not be private."""
    data = read_if_there(path)
    if data is None:
        raise ConfigError(f"{path} does not exist: check the path")
    return data


def read_if_there(path: Path) -> bytes | None:
    """The bytes of a file that need not be private; None if it does not exist."""
    try:
        with _reading(path), _regular(path) as (handle, _):
            return _bytes_of(handle, path)
    except FileNotFoundError:
        return None


def read_private(path: Path) -> bytes:
    """The bytes of a private file. Raises ConfigError unless only its owner, who is this user or root, may open it."""
    try:
        with _reading(path), _regular(path) as (handle, status):
            _check_private(path, status)
            return _bytes_of(handle, path)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: check the path") from None


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path} belongs to another user, who can read and change it: make a new one as the user that runs this "
            "command, or change its owner with chown"
        )
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} is open to other users: close it with `chmod 600 {path}`")


@contextlib.contextmanager
def _aside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A complete copy on disk beside `path`, for the caller to put in its place. It is removed afterwards."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    finally:
        aside.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    # Some file systems and users cannot do this. The file itself is complete.
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _regular(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """An open handle and its status. The status is that of the handle, because the path may be replaced in between."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a file: give the path of a file")
        yield handle, status
    finally:
        os.close(handle)


def _bytes_of(handle: int, path: Path) -> bytes:
    with os.fdopen(handle, "rb", closefd=False) as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"{path} is larger than any file of this kind: check that it is the right file")
    return data


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(f"{path} cannot be written: its directory does not exist, make it first") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
