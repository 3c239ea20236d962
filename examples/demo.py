"""The whole product on one machine: a coordinator and four sites as processes of their own, over mutual TLS.

Does with the real commands what an operator and four organisations do (docs/quick-start.md), in a temporary directory,
on the example labels, and shows at the end what nobody sees in earnest: everybody's results side by side.
Run by `make demo`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import ce
from ce.cli.report import Consensus, show
from ce.simulation import SiteResult

HERE = Path(__file__).resolve().parent
SITES = ("north", "east", "south", "west")
JOB = """\
name = "demo"
model = "bce"
clusters = 5
sites = ["north", "east", "south", "west"]
privacy = "masked"   # the coordinator sees totals only, never one site's part
"""
PATIENCE_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where the results go")
    out = parser.parse_args().out
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ce-demo-") as directory:
        play(Path(directory), out)
        os.chdir(HERE)
    print(f"\neverything stopped, {time.monotonic() - begin:.0f} s in all; results in {out}")


def play(directory: Path, out: Path) -> None:
    out = out.absolute()
    os.chdir(directory)  # so that commands read as they would be typed
    address = f"127.0.0.1:{free_port()}"
    title("The operator makes an authority and a coordinator")
    run("ce-coordinator", "init", "hub", "--listen", address)
    title("Each site makes its own key, which never leaves it; the operator signs a request")
    for site in SITES:
        labels = HERE / f"{site}.csv"
        run("ce-client", "init", site, "--name", site, "--coordinator", address, "--labels", labels)
        run("ce-coordinator", "sign", f"{site}/{site}.csr", "--config", "hub", "--out", site)
        Path(site, f"{site}.pem").rename(Path(site, "site.pem"))
    title("The sites hold the same customers, and opt in to totals of them: labels can be read from such totals")
    for site in SITES:
        add_rule(site, 'shared_objects = "totals"')
    title("Sites pin each other's keys, after comparing fingerprints by telephone")
    prints = {site: run("ce-client", "fingerprint", "--config", site).strip() for site in SITES}
    for site in SITES:
        for peer in SITES:
            if peer != site:
                run("ce-client", "trust", peer, prints[peer], "--config", site)
    title("Everybody starts")
    with ExitStack() as running:
        running.enter_context(daemon("hub", "listening", "ce-coordinator", "serve"))
        for site in SITES:
            running.enter_context(daemon(site, "connected", "ce-client", "run"))
        title("The operator submits a job")
        Path("job.toml").write_text(JOB)
        print(JOB, flush=True)
        submit = command("ce-coordinator", "submit", "job.toml", "--config", "hub", "--watch")
        said(submit)
        code = subprocess.run(submit, timeout=PATIENCE_S, check=False).returncode
        if code:
            sys.exit(code)
        run("ce-coordinator", "result", "demo", "--config", "hub", "--out", ".")
        compare(directory, out)


def compare(directory: Path, out: Path) -> None:
    """What each site got, put together: possible only here, where all labels are on one machine."""
    report: dict[str, Any] = json.loads((directory / "demo.json").read_text())
    tables = {site: ce.LabelTable.from_csv(HERE / f"{site}.csv") for site in SITES}
    sites, written = {}, []
    out.mkdir(parents=True, exist_ok=True)
    for site in SITES:
        path = out / f"{site}.csv"
        shutil.copyfile(directory / site / "results" / "demo" / "consensus.csv", path)
        written.append(path)
        table = ce.LabelTable.from_csv(path, columns=("label",), noise="keep")
        column = table.columns[0]
        labels = np.array([-1 if code < 0 else column.categories[code] for code in column.likeliest])
        sites[site] = SiteResult(table.ids, labels, np.empty((len(labels), 0)))
    everything: Any = SimpleNamespace(sites=sites, classes=())
    consensus = Consensus.of(everything, tables)
    names, sizes = np.unique(consensus.labels, return_counts=True)
    report["sites"] = {site: len(own.ids) for site, own in sites.items()}
    report["sizes"] = {str(name): int(size) for name, size in zip(names, sizes, strict=True)}
    report["agreement"] = consensus.agreement()
    report["truth"] = consensus.scores(ce.LabelTable.from_csv(HERE / "truth.csv"))
    report["bytes_sent"] = report["bytes"]
    report["excluded"] = [
        {**entry, "columns": [f"{entry['columns']} columns"] * bool(entry["columns"])} for entry in report["excluded"]
    ]
    print()
    show(report, "text", written)


# Commands.


def command(*words: object) -> list[str]:
    """A command of this environment, wherever it is installed."""
    return [str(Path(sys.executable).with_name(str(words[0]))), *map(str, words[1:])]


def said(words: list[str]) -> None:
    print("$ " + shlex.join([Path(words[0]).name, *words[1:]]), flush=True)


def run(*words: object) -> str:
    full = command(*words)
    said(full)
    return subprocess.run(full, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True).stdout


def add_rule(site: str, rule: str) -> None:
    """Add a line to a site's policy.toml."""
    print(f"$ echo {shlex.quote(rule)} >>{site}/policy.toml", flush=True)
    with Path(site, "policy.toml").open("a") as policy:
        policy.write(f"{rule}\n")


@contextmanager
def daemon(name: str, ready: str, *words: str) -> Iterator[None]:
    """A daemon that runs until the block ends; its log goes to a file. Returns when it has logged `ready`."""
    full = command(*words, "--config", name)
    said(full)
    process = subprocess.Popen(full, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    is_ready = threading.Event()

    def copy() -> None:
        assert process.stderr is not None
        with Path(f"{name}.log").open("wb") as log:
            for line in process.stderr:
                log.write(line)
                if f'"event": "{ready}"'.encode() in line:
                    is_ready.set()
        is_ready.set()

    copying = threading.Thread(target=copy)
    copying.start()
    try:
        if not is_ready.wait(PATIENCE_S) or process.poll() is not None:
            sys.exit(f"{name} did not start; its log says why:\n{Path(f'{name}.log').read_text()}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        copying.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def title(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


if __name__ == "__main__":
    main()
