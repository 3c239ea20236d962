"""One round of summing an array over four clients, in frameworks for federated learning and in ce.

Flower and NVFlare are installed by name into environments of their own below the results (`envs/`), which takes a
network and minutes; where that fails, the table says why. They run without TLS, ce with mutual TLS and computing its
iteration. Rounds are timed from the inside; the first one, which may start processes, does not count.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from harness.labels import by_columns, by_rows, planted
from harness.measurement import Measurement, Ratio, Subject
from harness.options import Options
from harness.processes import deployed, per_exchange, per_iteration

from parts import exchange, throughput

PEERS = Path(__file__).resolve().parent.parent / "peers"
#: By name of a distribution: its script.
FRAMEWORKS = {"flwr": "flower_rounds.py", "nvflare": "nvflare_rounds.py"}
SIZES = {"small": 8_000, "14 MB": 14_000_000}
INSTALL_S, MEASURE_S, ROUNDS = 600, 900, 6


class NotInstalled(RuntimeError):
    """An environment that could not be made."""


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    missing, pythons = {}, {}
    for name in FRAMEWORKS:
        try:
            pythons[name] = environment(options, name)
        except NotInstalled as error:
            missing[name] = f"not installed: {error}"
    _, small = planted(exchange.OBJECTS, exchange.COLUMNS, exchange.CLUSTERS, wrong=0.2)
    _, large = planted(throughput.OBJECTS, throughput.COLUMNS_PER_SITE * 4, throughput.CLUSTERS, wrong=0.2)
    with ExitStack() as stack:
        rows = stack.enter_context(deployed(by_rows(small, exchange.SITES)))
        columns = stack.enter_context(deployed(by_columns(large, throughput.SITES)))
        keys = {"clusters": exchange.CLUSTERS, "restarts": 1, "max_iterations": 300, "tolerance": 0.0}
        ours: dict[str, Callable[[], float]] = {
            "small": lambda: per_exchange(rows, privacy="masked", **keys).seconds,
            "14 MB": lambda: per_iteration(columns, privacy="masked", **throughput.KEYS).seconds,
        }
        yield [
            Measurement(
                name=f"round of a framework, {size}",
                what=f"One round with four clients and an array of {amount / 1e6:g} MB down and up, wall time. ce: one "
                "exchange of a masked BCE job, "
                + ("by rows, with sums of a few hundred bytes." if size == "small" else "by columns, 14 MB."),
                unit="s",
                subjects=(
                    Subject("ce, masked", ours[size]),
                    *(Subject(name, partial(_round, pythons.get(name), name, amount), "peer") for name in FRAMEWORKS),
                ),
                claims=tuple(Ratio(f"{name}, of ce", of=name, to="ce, masked") for name in FRAMEWORKS),
                missing=missing,
                turns=1,
                warm_up=0,
            )
            for size, amount in SIZES.items()
        ]


def environment(options: Options, name: str) -> Path:
    """The python of an environment with this distribution; made if it is not there. Raises NotInstalled."""
    folder = (options.out / "envs" / name).absolute()
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python
    if options.no_install:
        raise NotInstalled("--no-install was given")
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", name, "numpy"]
    for command in ([sys.executable, "-m", "venv", str(folder)], install):
        try:
            subprocess.run(command, check=True, timeout=INSTALL_S, capture_output=True, text=True)
        except subprocess.TimeoutExpired as error:
            raise NotInstalled(f"pip took more than {INSTALL_S} s") from error
        except (subprocess.CalledProcessError, OSError) as error:
            raise NotInstalled(_last_line(getattr(error, "stderr", "") or str(error))) from error
    ready.touch()
    return python


def _round(python: Path | None, name: str, size: int) -> float:
    """The median round, in a process of its own."""
    assert python is not None
    command = [str(python), str(PEERS / FRAMEWORKS[name]), str(size), str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_S, check=False)
    if done.returncode:
        raise RuntimeError(_last_line(done.stderr))
    rounds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return statistics.median(rounds[1:])


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200].replace("|", "/") if lines else "no reason was given"
