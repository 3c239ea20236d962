"""Seconds of a round of Flower that sums an array over four clients: runs in an environment with flwr.

    python flower_rounds.py BYTES ROUNDS

A superlink and four supernodes as processes of their own on the loopback interface, as its documentation starts them;
without TLS, which is in Flower's favour. In a round the server app sends each client an array and adds up the arrays
that come back. Rounds are timed within the server app. Prints JSON: seconds of each round.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CLIENTS = 4
PATIENCE_S = 300.0

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "sums"
version = "1.0.0"
description = "sums"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "sums.server:app"
clientapp = "sums.client:app"

[tool.flwr.app.config]
"""

SERVER = """\
import json, os, time
import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    size, rounds, clients = (int(os.environ["BENCH_" + key]) for key in ("BYTES", "ROUNDS", "CLIENTS"))
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    array, seconds = np.ones(size // 8), []
    for _ in range(rounds):
        begin = time.perf_counter()
        record = ArrayRecord([array])
        messages = [
            Message(content=RecordDict({"array": record}), message_type=MessageType.TRAIN, dst_node_id=node)
            for node in nodes
        ]
        answers = list(grid.send_and_receive(messages))
        total = sum(answer.content["array"].to_numpy_ndarrays()[0] for answer in answers)
        assert total[0] == clients
        seconds.append(time.perf_counter() - begin)
    with open(os.environ["BENCH_OUT"] + ".part", "w") as file:
        json.dump(seconds, file)
    os.rename(os.environ["BENCH_OUT"] + ".part", os.environ["BENCH_OUT"])
"""

CLIENT = """\
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    array = message.content["array"].to_numpy_ndarrays()[0]
    return Message(content=RecordDict({"array": ArrayRecord([array])}), reply_to=message)
"""


def main() -> None:
    size, rounds = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="flower-rounds-") as directory:
        print(json.dumps(measure(Path(directory), size, rounds)))


def measure(directory: Path, size: int, rounds: int) -> list[float]:
    app, out, home = directory / "app", directory / "seconds.json", directory / "home"
    (app / "sums").mkdir(parents=True)
    home.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__": "", "server": SERVER, "client": CLIENT}.items():
        (app / "sums" / f"{name}.py").write_text(text)
    port, *others = (_free_port() for _ in range(1 + CLIENTS))
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "BENCH_BYTES": str(size),
        "BENCH_ROUNDS": str(rounds),
        "BENCH_CLIENTS": str(CLIENTS),
        "BENCH_OUT": str(out),
    }
    log = (directory / "log").open("w+")

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
        return subprocess.Popen(
            command, env=environment, cwd=app, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    link = start(
        *("flower-superlink", "--insecure", "--disable-runtime-dependency-installation"),
        *("--host", "127.0.0.1", "--port", str(port)),
    )
    running = [link]
    try:
        _wait_for(port, link, directory / "log")
        running += [
            start(
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"),
                *("--host", "127.0.0.1", "--port", str(own)),
            )
            for own in others
        ]
        submit = start("flwr", "run", ".", "here")
        deadline = time.monotonic() + PATIENCE_S
        while not out.exists():
            if time.monotonic() > deadline or submit.poll() not in (None, 0):
                log.seek(0)
                raise SystemExit(f"Flower has not finished; its log ends\n{log.read()[-3000:]}")
            time.sleep(0.2)
        found: list[float] = json.loads(out.read_text())
        return found
    finally:
        for process in running:
            os.killpg(process.pid, 15)
        for process in running:
            process.wait(30)
        shutil.rmtree(app, ignore_errors=True)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"Flower's superlink did not start; its log ends\n{log.read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
