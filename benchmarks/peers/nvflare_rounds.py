"""Seconds of a round of NVFlare that sums an array over four clients: runs in an environment with nvflare.

    python nvflare_rounds.py BYTES ROUNDS

Its simulator, with four clients as processes of their own that talk to the server over the loopback interface; without
TLS, which is in NVFlare's favour. In a round the controller sends each client an array and adds up the arrays that come
back. Rounds are timed within the controller. Prints JSON: seconds of each round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENTS = 4
PATIENCE_S = 300.0

SERVER = {
    "format_version": 2,
    "workflows": [{"id": "sums", "path": "sums.Sums", "args": {}}],
    "components": [],
}
CLIENT = {
    "format_version": 2,
    "executors": [{"tasks": ["sum"], "executor": {"path": "sums.SendBack", "args": {}}}],
    "components": [],
}

CODE = """\
import json, os, time
import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller


class SendBack(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        array = from_shareable(shareable).data["array"]
        return DXO(DataKind.WEIGHTS, data={"array": np.array(array)}).to_shareable()


class Sums(Controller):
    def start_controller(self, fl_ctx):
        pass

    def stop_controller(self, fl_ctx):
        pass

    def process_result_of_unknown_task(self, client, task_name, client_task_id, result, fl_ctx):
        pass

    def control_flow(self, abort_signal, fl_ctx):
        size, rounds, clients = (int(os.environ["BENCH_" + key]) for key in ("BYTES", "ROUNDS", "CLIENTS"))
        array, seconds = np.ones(size // 8), []

        def done(client_task, fl_ctx):
            answers.append(from_shareable(client_task.result).data["array"])
            client_task.result = None

        for _ in range(rounds):
            answers = []
            begin = time.perf_counter()
            data = DXO(DataKind.WEIGHTS, data={"array": array}).to_shareable()
            task = Task(name="sum", data=data, result_received_cb=done)
            self.broadcast_and_wait(
                task, fl_ctx, min_responses=clients, wait_time_after_min_received=0, abort_signal=abort_signal
            )
            total = sum(answers)
            assert len(answers) == clients and total[0] == clients
            seconds.append(time.perf_counter() - begin)
        with open(os.environ["BENCH_OUT"], "w") as file:
            json.dump(seconds, file)
"""


def main() -> None:
    size, rounds = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="nvflare-rounds-") as directory:
        print(json.dumps(measure(Path(directory), size, rounds)))


def measure(directory: Path, size: int, rounds: int) -> list[float]:
    job, out = directory / "job", directory / "seconds.json"
    (job / "app" / "config").mkdir(parents=True)
    (job / "app" / "custom").mkdir()
    meta = {"name": "sums", "min_clients": CLIENTS, "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}}
    (job / "meta.json").write_text(json.dumps(meta))
    (job / "app" / "config" / "config_fed_server.json").write_text(json.dumps(SERVER))
    (job / "app" / "config" / "config_fed_client.json").write_text(json.dumps(CLIENT))
    (job / "app" / "custom" / "sums.py").write_text(CODE)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BENCH_BYTES": str(size),
        "BENCH_ROUNDS": str(rounds),
        "BENCH_CLIENTS": str(CLIENTS),
        "BENCH_OUT": str(out),
    }
    command = [str(Path(sys.executable).with_name("nvflare")), "simulator", str(job)]
    command += ["-w", str(directory / "workspace"), "-n", str(CLIENTS), "-t", str(CLIENTS)]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False
    )
    if not out.exists():
        raise SystemExit(f"NVFlare has not finished; its log ends\n{done.stdout.decode()[-3000:]}")
    found: list[float] = json.loads(out.read_text())
    return found


if __name__ == "__main__":
    main()
