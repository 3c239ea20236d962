"""Makes bits.json: results of small fits, simulations and a job between real processes, to the last bit.

    python tests/vectors/make_bits.py

Only what users call is used here: estimators, `ce.simulate` and the commands of the daemons. So the same program runs
with every version, and a change of the code that is not meant to change results can be held against the file
(tests/unit/test_bits.py). Logarithms differ in their last bit between processors and library builds: the file names
those that it was made with, and elsewhere results agree to 1e-9.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import scipy

import ce
from ce.models import BC3E, BCE, Mixture

PATH = Path(__file__).with_name("bits.json")
SITES = ("east", "north", "south")
CLASSES = ("high", "low", "middle")
SECRETS = {site: hashlib.sha256(b"secret of " + site.encode()).digest() for site in SITES}
OBJECTS, COLUMNS, CLASSIFIERS, K = 36, 6, 3, 3
#: Every number of the policy that would leave something out of such small jobs.
POLICY = (
    'weakest_privacy = "plain"\nmin_sites = 1\nmin_objects = 1\nmin_foreign_columns = 0\nmin_classifiers = 0\n'
    "max_definitions = 10\n"
    'shared_objects = "totals"\n'
)


def _random(*about: object) -> int:
    """A number that is the same in every version of every library."""
    return int.from_bytes(hashlib.sha256(repr(about).encode()).digest()[:4], "big")


def labels(columns: int, missing: int = 15) -> np.ndarray:
    """(objects, columns) noisy copies of a clustering with K clusters; -1 is missing, in `missing` percent."""
    found = np.empty((OBJECTS, columns), dtype=np.int64)
    for i in range(OBJECTS):
        for j in range(columns):
            wrong = _random("wrong", i, j) % 100 < 25
            label = _random("other", i, j) % K if wrong else (i % K + j) % K
            found[i, j] = -1 if _random("missing", i, j) % 100 < missing else label
    return found


def votes() -> np.ndarray:
    """(objects, classifiers) class names."""
    right = [[_random("vote", i, j) % 100 < 70 for j in range(CLASSIFIERS)] for i in range(OBJECTS)]
    other = [[_random("class", i, j) % K for j in range(CLASSIFIERS)] for i in range(OBJECTS)]
    at = np.where(right, (np.arange(OBJECTS) % K)[:, None], other)
    return np.array(CLASSES)[at]


def table(rows: list[int], columns: list[int], classifiers: list[int]) -> ce.LabelTable:
    """What one site holds: some objects, some clusterings, some classifiers."""
    clusterings, all_votes = labels(COLUMNS), votes()
    names = [f"c{j}" for j in columns] + [f"clf:{j}" for j in classifiers]
    content = [[str(v) if v >= 0 else "" for v in clusterings[rows, j]] for j in columns]
    content += [all_votes[rows, j].tolist() for j in classifiers]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "labels.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *names])
            writer.writerows(zip([f"object {i:02d}" for i in rows], *content, strict=True))
        return ce.LabelTable.from_csv(path)


def layouts() -> dict[str, dict[str, ce.LabelTable]]:
    """By name: the tables of the sites."""
    everything = list(range(OBJECTS))
    ragged = {"east": (range(24), (0, 1, 2)), "north": (range(12, 36), (2, 3, 4)), "south": (range(6, 30), (4, 5))}
    return {
        "row": {
            site: table(everything[at::3], list(range(COLUMNS)), list(range(CLASSIFIERS)))
            for at, site in enumerate(SITES)
        },
        "column": {site: table(everything, [2 * at, 2 * at + 1], [at]) for at, site in enumerate(SITES)},
        # A column of two sites, which share some of its objects: each cell is claimed by one of them.
        "arbitrary": {
            site: _without_claimed_twice(site, table(list(rows), list(columns), [at]))
            for at, (site, (rows, columns)) in enumerate(ragged.items())
        },
    }


def _without_claimed_twice(site: str, own: ce.LabelTable) -> ce.LabelTable:
    """A shared cell belongs to one site: c2 of objects below 18 to east, c4 of objects below 20 to north."""
    keep = {
        "c2": (lambda i: i < 18) if site == "east" else (lambda i: i >= 18),
        "c4": (lambda i: i < 20) if site == "north" else (lambda i: i >= 20),
    }
    number = [int(name.removeprefix("object ")) for name in own.ids.tolist()]
    columns = []
    for column in own.columns:
        codes = column.codes
        assert codes is not None
        if column.name in keep:
            codes = np.where([keep[column.name](i) for i in number], codes, -1).astype(codes.dtype)
        columns.append(type(column)(column.name, column.kind, column.categories, codes, None))
    return ce.LabelTable(own.ids, tuple(columns))


def bits(values: Any) -> list[Any]:
    """Reals as hexadecimal text, row by row."""
    array = np.asarray(values, dtype=np.float64)
    return [float(value).hex() for value in array] if array.ndim == 1 else [bits(row) for row in array]


def fits() -> Iterator[tuple[str, dict[str, Any]]]:
    clusterings, classes = labels(COLUMNS), votes()
    for name, model in {
        "bce": BCE(K, n_init=3, smoothing=0.01, random_state=1),
        "bce newton": BCE(K, n_init=2, schedule="newton", init="dirichlet", smoothing=0.5, random_state=2, max_iter=30),
        "bce loops": BCE(K, n_init=2, local_loops=3, smoothing=0.01, random_state=3),
        "mixture": Mixture(K, n_init=3, smoothing=0.01, random_state=1),
    }.items():
        model.fit(clusterings)
        yield f"fit {name}", {"memberships": bits(model.memberships_), "bound_path": bits(model.bound_path_)}
    for posterior, start in (("joint", "votes"), ("factorised", "votes"), ("joint", "diffused")):
        fitted = BC3E(posterior=posterior, start=start, max_iter=10).fit(clusterings, classes)
        found = {"memberships": bits(fitted.class_proba_), "bound_path": bits(fitted.bound_path_)}
        yield f"fit bc3e {posterior} {start}", found


def job(model: str, name: str, privacy: str) -> ce.Job:
    asked: dict[str, Any] = {"classes": CLASSES} if model == "bc3e" else {"clusters": K, "restarts": 3}
    keys = {"smoothing": 0.01, "max_iterations": 25 if model == "mixture" else 80} if model != "bc3e" else {}
    return ce.Job(name=name, model=model, sites=SITES, privacy=privacy, **keys, **asked)


def simulations() -> Iterator[tuple[str, dict[str, Any]]]:
    modes = ("plain", "masked", "blind")
    for at, (layout, tables) in enumerate(layouts().items()):
        for to, model in enumerate(("bce", "mixture", "bc3e")):
            privacy = modes[(at + to) % 3]
            done = ce.simulate(job(model, f"{layout} {model}", privacy), tables, secrets=SECRETS)
            assert done.layout == layout
            yield (
                f"simulate {layout} {model} {privacy}",
                {
                    "memberships": {site: bits(own.memberships) for site, own in done.sites.items()},
                    "bound_path": bits(done.bound_path),
                    "beta": {name: bits(beta) for name, beta in sorted(done.parameters["beta"].items())},
                    "exchanges": done.exchanges,
                },
            )


def service() -> Iterator[tuple[str, dict[str, Any]]]:
    """Masked jobs between a coordinator and three sites, as processes, through the commands only."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        where = Path(directory)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        hub = where / "hub"
        _coordinator("init", str(hub), "--listen", address)
        tables = layouts()["arbitrary"]
        for site in SITES:
            _write(where / f"{site}.csv", tables[site])
            home = where / site
            labels_at = str(where / f"{site}.csv")
            _client("init", str(home), "--name", site, "--coordinator", address, "--labels", labels_at)
            (home / "secret").write_text(SECRETS[site].hex())
            (home / "policy.toml").write_text(POLICY)
            shown = _client("fingerprint", "--config", str(home), "--format", "json")
            print_ = json.loads(shown)["fingerprint"]
            (home / "print").write_text(print_)
            _coordinator(
                "sign", str(home / f"{site}.csr"), "--fingerprint", print_, "--config", str(hub), "--out", str(home)
            )
            (home / f"{site}.pem").replace(home / "site.pem")
        for site in SITES:
            for peer in SITES:
                if peer != site:
                    _client("trust", peer, (where / peer / "print").read_text(), "--config", str(where / site))
        stack.callback(_start("ce_coordinator.cli.main", "serve", "--config", str(hub)).kill)
        for site in SITES:
            stack.callback(_start("ce_client.cli.main", "run", "--config", str(where / site)).kill)
        for model in ("bce", "bc3e"):
            name = f"service-{model}"
            asked = f"classes = {json.dumps(CLASSES)}" if model == "bc3e" else "clusters = 3\nrestarts = 3"
            (where / "job.toml").write_text(
                f'name = "{name}"\nmodel = "{model}"\nsites = {json.dumps(SITES)}\nprivacy = "masked"\n'
                f"smoothing = 0.01\n{asked}\n"
            )
            _coordinator("submit", str(where / "job.toml"), "--config", str(hub), "--watch")
            found = {}
            for site in SITES:
                with (where / site / "results" / name / "consensus.csv").open(newline="", encoding="utf-8") as file:
                    found[site] = bits([[float(v) for v in row[3:]] for row in list(csv.reader(file))[1:]])
            yield f"service arbitrary {model} masked", {"memberships": found}


def _write(path: Path, own: ce.LabelTable) -> None:
    names = [f"{'clf:' if column.kind == 'classifier' else ''}{column.name}" for column in own.columns]
    content = [["" if code < 0 else column.categories[code] for code in column.codes] for column in own.columns]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *names])
        writer.writerows(zip(own.ids, *content, strict=True))


def _run(module: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"{module} {arguments[0]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def _coordinator(*arguments: str) -> str:
    return _run("ce_coordinator.cli.main", *arguments)


def _client(*arguments: str) -> str:
    return _run("ce_client.cli.main", *arguments)


def _start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A daemon; returns when it has said that it is up."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in process.stderr:
        if b'"listening"' in line or b'"connected"' in line:
            os.set_blocking(process.stderr.fileno(), False)
            return process
    raise SystemExit(f"{module} ended before it was up")


def made_with() -> dict[str, str]:
    """What decides the last bits."""
    flags = next((line for line in _cpuinfo() if line.startswith(("flags", "Features"))), "")
    simd = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]
    return {"machine": platform.machine(), "simd": simd, "numpy": np.__version__, "scipy": scipy.__version__}


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def results() -> Mapping[str, dict[str, Any]]:
    """Everything but the job between processes, which takes some seconds."""
    return {name: found for part in (fits(), simulations()) for name, found in part}


if __name__ == "__main__":
    made = {"made with": made_with(), "results": {**results(), **dict(service())}}
    PATH.write_text(json.dumps(made, indent=0) + "\n", encoding="ascii")
