"""Commands without their start-up: a process that has imported them forks for each.

Pages have more than a hundred command lines, and for most of them importing takes most of the time. `Warm.bin` has
programs of the same names as those of this environment, which hand their words, directory, environment and streams to
that process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

#: What a program ends with when its command was killed.
KILLED = 70
_PROGRAM = f"""\
#!{sys.executable} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as door:
    door.connect(os.path.join(os.path.dirname(os.path.dirname(sys.argv[0])), "door"))
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    socket.send_fds(door, [b"."], [0, 1, 2])
    door.sendall(json.dumps([words, os.getcwd(), dict(os.environ)]).encode())
    door.shutdown(socket.SHUT_WR)
    code = door.recv(1)
sys.exit(code[0] if code else {KILLED})
"""


class Warm:
    """The process, and the programs that ask it. `environment` is what all its commands find set."""

    def __init__(self, names: tuple[str, ...], environment: Mapping[str, str]) -> None:
        # A name of its own and short: sockets have short names.
        self._directory = Path(tempfile.mkdtemp(prefix="ce-"))
        self.bin = self._directory / "bin"
        self.bin.mkdir()
        for name in names:
            (self.bin / name).write_text(_PROGRAM, encoding="utf-8")
            (self.bin / name).chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._directory / "door")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"open\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self._directory)


def _serve(path: str) -> None:
    import ce.cli.main
    import ce_client.cli.main
    import ce_coordinator.cli.main

    mains = {
        "ce": ce.cli.main.main,
        "ce-client": ce_client.cli.main.main,
        "ce-coordinator": ce_coordinator.cli.main.main,
    }
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("open", flush=True)
        while True:
            asked, _ = listener.accept()
            with asked:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _, streams, _, _ = socket.recv_fds(asked, 1, 3)
                    with asked.makefile("rb") as file:
                        words, directory, environment = json.load(file)
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    os.chdir(directory)
                    os.environ.update(environment)
                    code = 1
                    try:
                        mains[words[0]](words[1:])
                    except SystemExit as left:
                        code = left.code if isinstance(left.code, int) else int(left.code is not None)
                    finally:
                        sys.stdout.flush()
                        sys.stderr.flush()
                        asked.send(bytes([code]))
                        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
