"""Daemons without most of their start-up: a process that has imported what takes long forks one for whoever asks.

What it has imported is mathematics and cryptography only. gRPC is not among it: it reads its settings when it is first
imported, and is not to be forked. A daemon is a process of its own in every respect: it becomes a child of the one that
asked, which waits for it, sends it signals and learns its exit code as of any other.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

IMPORTED = ("numpy", "scipy.special", "cryptography.x509", "asyncio", "sqlite3", "rich.console", "ce.models.registry")
_PR_SET_CHILD_SUBREAPER = 36
_LONGEST = 2**20


class Child:
    """As much of a `subprocess.Popen` as tests need."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._handle = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with self._lock:
            if self._code is None and select.select([self._handle], [], [], 0)[0]:
                _, status = os.waitpid(self.pid, 0)
                self._code = os.waitstatus_to_exitcode(status)
                os.close(self._handle)
            return self._code

    def wait(self, timeout: float) -> int:
        if self.poll() is None and not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a daemon", timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Nursery:
    """The process that forks; it ends with the one that started it."""

    def __init__(self) -> None:
        # Whoever loses its parent becomes a child of this process.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "this system does not hand over children")
        self._lock = threading.Lock()
        self._door, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with inside:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(inside.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[inside.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    def start(self, module: str, arguments: Iterable[str], environment: Mapping[str, str], log: int) -> Child:
        """`python -m module arguments`, its standard error going to the file `log`."""
        asked = json.dumps([module, [*arguments], dict(environment), str(Path.cwd())]).encode()
        with self._lock:
            socket.send_fds(self._door, [asked], [log])
            return Child(int(self._door.recv(_LONGEST)))

    def close(self) -> None:
        self._door.close()
        self._process.wait(10)


def _serve(door: socket.socket) -> tuple[str, list[str]] | None:
    """Forks for each that is asked for, and returns there, with what is to be run. None: nobody asks any more."""
    while True:
        asked, streams, _, _ = socket.recv_fds(door, _LONGEST, 1)
        if not asked:
            return None
        answer, told = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:  # ends at once: its child is then a child of whoever asked
                os.write(told, str(pid).encode())
                os._exit(0)
            os.close(answer)
            os.close(told)
            module, arguments, environment, directory = json.loads(asked)
            os.dup2(streams[0], 2)
            os.close(streams[0])
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            return module, arguments
        os.close(streams[0])
        os.close(told)
        pid_of_child = os.read(answer, 32)
        os.close(answer)
        os.waitpid(between, 0)
        door.send(pid_of_child)


def _main() -> NoReturn:
    del sys.path[0]  # of this file; a daemon finds what `python -m` finds
    for name in IMPORTED:
        __import__(name)
    with socket.socket(fileno=int(sys.argv[1])) as door:
        todo = _serve(door)
    if todo is not None:
        module, arguments = todo
        sys.argv = [module, *arguments]
        sys.path.insert(0, "")
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    _main()
