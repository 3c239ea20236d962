"""What one exchange costs: a row-distributed job over four site processes, against bare gRPC over as many processes.

Both use mutual TLS on the loopback interface and the same number of processes, in the same run, turn by turn. The ping
does nothing but send about 1 KB to every process and wait until all have sent it back.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import grpc
from support.processes import Deployment

import ce
from ce.identity.keys import pem, read_key
from ce.job import MODES_OF_TOTALS
from ce.transport.tls import TlsCredentials, make_server, open_channel

SITES = ("east", "north", "south", "west")
METHOD = "/bench.Ping/Ping"
ITERATIONS = 300
TURNS = 5
BYTES = 1000
PROMISE = 5.0


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        deployment = Deployment(Path(directory), SITES)
        with deployment:
            _write_labels(deployment)
            deployment.run(_job("warm-up", 20, "masked"))
            pings: list[float] = []
            exchanges: dict[str, list[float]] = {mode: [] for mode in MODES_OF_TOTALS}
            size = 0.0
            for turn in range(TURNS):
                pings.append(asyncio.run(_ping(deployment)))
                for mode, seconds in exchanges.items():
                    once, size = seconds_per_exchange(deployment, _job(f"{mode} {turn}", ITERATIONS, mode))
                    seconds.append(once)
    ping = statistics.median(pings)
    print(f"{len(SITES)} site processes, medians of {TURNS} turns")
    print(f"  bare gRPC ping to all, {BYTES} bytes each way           {ping * 1e3:7.2f} ms   1.0")
    for mode, seconds in exchanges.items():
        exchange = statistics.median(seconds)
        verdict = "kept" if exchange < PROMISE * ping else "NOT kept"
        what = f"one exchange of a row-distributed job, {size:.0f} B, {mode}"
        print(f"  {what:<50} {exchange * 1e3:7.2f} ms   {exchange / ping:.1f}   below {PROMISE:.0f}: {verdict}")


def _job(name: str, iterations: int, privacy: str) -> ce.Job:
    return ce.Job(
        name=name,
        clusters=3,
        sites=SITES,
        restarts=1,
        max_iterations=iterations,
        tolerance=0.0,
        privacy=privacy,
    )


def _write_labels(deployment: Deployment) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 400)
    columns = [np.where(rng.random(400) < 0.2, rng.integers(0, 3, 400), rng.permutation(3)[truth]) for _ in range(5)]
    cells = np.column_stack(columns)
    for at, site in enumerate(SITES):
        rows = slice(100 * at, 100 * (at + 1))
        ids = [f"o{i}" for i in range(400)][rows]
        deployment.write_labels(site, ce.LabelTable.from_arrays(cells[rows], ids=ids))


def seconds_per_exchange(deployment: Deployment, job: ce.Job) -> tuple[float, float]:
    """Run a job: seconds per exchange, and bytes of arrays that one site sends and receives in one."""
    name = job.name
    status = deployment.run(job)
    assert status.state == "done", status.reason
    hub = deployment.processes["hub"]
    begin, end = (_time(hub.wait_for(event, job=name)) for event in ("job running", "job done"))
    status = deployment.ask(lambda stub, timeout: _get(stub, name, timeout))
    return (end - begin) / status.exchanges, status.bytes / status.exchanges / len(SITES)


async def _get(stub: Any, name: str, timeout: float) -> Any:
    from ce_proto.v1 import operator_pb2 as pb

    return await stub.GetJob(pb.GetJobRequest(job=name), timeout=timeout)


def _time(event: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(event["time"]).timestamp()


async def _ping(deployment: Deployment) -> float:
    """Seconds from sending to all processes until all have answered."""
    hub = deployment.hub
    roots = (hub / "authority" / "ca.pem").read_bytes()
    key = pem(read_key(hub / "coordinator.key"))
    credentials = TlsCredentials(key, (hub / "coordinator.pem").read_bytes(), roots)
    streams: list[Any] = []
    over = asyncio.Event()
    all_here = asyncio.Event()

    async def serve(_: Any, context: Any) -> None:
        streams.append(context)
        if len(streams) == len(SITES):
            all_here.set()
        await over.wait()

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(serve) if details.method == METHOD else None

    server, port = make_server(credentials, "127.0.0.1:0")
    server.add_generic_rpc_handlers((Handler(),))
    await server.start()
    echoes = [
        subprocess.Popen([sys.executable, __file__, "echo", str(deployment.directory / site), str(port)])
        for site in SITES
    ]
    try:
        await asyncio.wait_for(all_here.wait(), 30)
        payload = bytes(BYTES)

        async def once(stream: Any) -> None:
            await stream.write(payload)
            await stream.read()

        for _ in range(50):
            await asyncio.gather(*map(once, streams))
        begin = time.perf_counter()
        for _ in range(ITERATIONS):
            await asyncio.gather(*map(once, streams))
        return (time.perf_counter() - begin) / ITERATIONS
    finally:
        over.set()
        await server.stop(None)
        for echo in echoes:
            echo.wait(10)


async def _echo(site: Path, port: int) -> None:
    credentials = TlsCredentials(
        pem(read_key(site / "site.key")), (site / "site.pem").read_bytes(), (site / "ca.pem").read_bytes()
    )
    async with open_channel(f"127.0.0.1:{port}", credentials) as channel:
        call = channel.stream_stream(METHOD)()
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the server has stopped


if __name__ == "__main__":
    if sys.argv[1:2] == ["echo"]:
        asyncio.run(_echo(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        main()
