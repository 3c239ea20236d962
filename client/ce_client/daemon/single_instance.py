"""One daemon per site: of two with the same certificate, each would end the stream of the other, endlessly.

The lock file contains the daemon's process id, so that `ce-client approve` can wake the daemon with SIGUSR1 and the
daemon need not poll.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ce.errors import ConfigError
from ce.service.atomic_files import make_directory

FILE_NAME = "lock"
WAKE = signal.SIGUSR1
#: Tries of a daemon that starts: a command that checks whether a daemon runs holds the lock for some microseconds.
_TRIES = 10_000


@contextmanager
def sole_daemon(state: Path) -> Iterator[None]:
    """Hold the lock of a site's state directory. The kernel releases it when the process ends, however it ends."""
    path = state / FILE_NAME
    try:
        make_directory(state)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{state}: cannot be written: {error.strerror}: state is a directory that this user may write to"
        ) from error
    try:
        try:
            taken = _take(descriptor)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be locked: {error.strerror}; keep state on a local disk") from error
        if not taken:
            raise ConfigError(
                f"{path}: another daemon of this site is running: stop it, or give this one another state directory"
            )
        _ignore_wake_signal()  # before the process id is in the file
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {_pid_namespace()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_running(state: Path) -> bool:
    """True if a daemon on this machine holds the lock, in any container."""
    with _lock_file(state) as descriptor:
        return descriptor is not None and _is_held(descriptor)


def running_daemon(state: Path) -> int | None:
    """The process id of this site's daemon; None: none is running, or it is in another container."""
    with _lock_file(state) as descriptor:
        if descriptor is None or not _is_held(descriptor):
            return None
        process, _, namespace = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip().partition(" ")
    if not process.isdecimal() or namespace != _pid_namespace():
        return None
    return int(process)


def wake_daemon(state: Path) -> bool:
    """Signal this site's daemon that a file here has changed. False: there is no daemon to signal."""
    process = running_daemon(state)
    if process is None:
        return False
    try:
        os.kill(process, WAKE)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise ConfigError(
            f"the daemon (process {process}) belongs to another user and could not be signalled: run this command as "
            "that user, or restart the daemon"
        ) from error
    return True


@contextmanager
def _lock_file(state: Path) -> Iterator[int | None]:
    path = state / FILE_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}: run this as the daemon's user") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if _is_held(descriptor):
            return False
    return False


def _is_held(descriptor: int) -> bool:
    """True if a daemon has the lock. This check takes the lock in shared mode, for a moment."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _pid_namespace() -> str:
    """The process-id namespace of this process: in another container the same id is another process."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "-"


def _ignore_wake_signal() -> None:
    """Ignore the signal until the daemon handles it: by default it would end the process."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(WAKE) is signal.SIG_DFL:
        signal.signal(WAKE, signal.SIG_IGN)
