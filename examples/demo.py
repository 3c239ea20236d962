"""The whole product on one machine: a coordinator and four sites as processes of their own, over mutual TLS.

Does with the real commands what an operator and four organisations do (docs/quick-start.md), in a temporary directory,
on the example labels, with the rules that every site begins with: a sealed job (docs/sealed.md). Shows at the end what
nobody sees in earnest: everybody's results side by side. Run by `make demo`.
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import ce
from ce.cli.report import Consensus
from ce.kernels.warmup import warm_up
from ce.simulation import SiteResult

HERE = Path(__file__).resolve().parent
SITES = ("north", "east", "south", "west")
JOB = """\
name = "demo"
model = "pairs"      # implies privacy = "sealed": noisy pair tables are opened once, then labels, and nothing else
clusters = 5
sites = ["north", "east", "south", "west"]
"""
PATIENCE_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="where the results go")
    out = parser.parse_args().out
    warm_up(print)
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
        title("Each site knows what the job has cost it")
        budgets = {site: json.loads(run("ce-client", "budget", "--config", site, "--format", "json")) for site in SITES}
    compare(directory, out, budgets)


def compare(directory: Path, out: Path, budgets: Mapping[str, Any]) -> None:
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
    truth = consensus.scores(ce.LabelTable.from_csv(HERE / "truth.csv"))
    title("All results side by side")
    console = Console(emoji=False)
    console.print(_facts(report, consensus, budgets))
    console.print(_agreement(consensus, truth))
    for entry in report["excluded"]:
        what = ", ".join(f"{entry[kind]:,} {kind}" for kind in ("objects", "columns", "labels") if entry[kind])
        console.print(f"left out at {entry['site']}: {what} ({entry['rule']})", highlight=False)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _facts(report: Mapping[str, Any], consensus: Consensus, budgets: Mapping[str, Any]) -> Table:
    table = Table(title="Consensus", show_header=False, title_justify="left")
    names, sizes = np.unique(consensus.labels[consensus.labels >= 0], return_counts=True)
    unlabelled = int((consensus.labels < 0).sum())
    table.add_row("model", f"{report['model']}, {report['privacy']}")
    table.add_row("objects", f"{len(consensus.ids):,}, of which {report['objects_in_fit']:,} are in the fit")
    table.add_row("clusters", ", ".join(f"{name}: {size:,}" for name, size in zip(names, sizes, strict=True)))
    if unlabelled:
        table.add_row("without a label", f"{unlabelled:,}")
    table.add_row("exchanges", f"{report['exchanges']:,}, {report['bytes'] / 1e6:.1f} MB")
    noise = f"epsilon {report['epsilon']:g}, delta {report['delta']:g}, for a site's labels of one object"
    table.add_row("noise", noise)
    for site, budget in budgets.items():
        table.add_row(f"epsilon spent at {site}", _spent(budget))
    return table


def _spent(budget: Mapping[str, Any]) -> str:
    """How much was told about the site's labels of one object, of the objects of which most was told."""
    most = budget["spent"][0]
    return f"{most['epsilon']:.2f} of {budget['max_epsilon']:.2f}, {most['objects']:,} objects"


def _agreement(consensus: Consensus, truth: Mapping[str, float]) -> Table:
    table = Table(title="Agreement", title_justify="left")
    table.add_column("consensus with")
    table.add_column("NMI", justify="right")
    table.add_column("ARI", justify="right")
    for name, scores in consensus.agreement().items():
        table.add_row(name, f"{scores['nmi']:.3f}", f"{scores['ari']:.3f}")
    table.add_section()
    table.add_row("[bold]the truth[/]", f"[bold]{truth['nmi']:.3f}[/]", f"[bold]{truth['ari']:.3f}[/]")
    return table


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
