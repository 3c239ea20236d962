"""How many exchanges and bytes a column-distributed BCE job over totals takes, and how good its consensus is.

    python benchmarks/schedules.py run --data FOLDER --out after.jsonl
    python benchmarks/schedules.py compare before.jsonl after.jsonl

`run` makes base clusterings, deals their columns to four sites, and runs `ce.simulate` in privacy "plain" with the
defaults of a job. It writes one JSON line per case. It uses the public interface only and imports nothing of this
folder, so that the same file runs in another version's environment. `compare` takes the lines of two versions and
prints the promises as kept or not kept; cases are compared only where both had the same labels.

Base clusterings of data sets (those that scikit-learn ships, and CSV files whose last column is `class`): k-means,
Gaussian mixtures, k-means in random subspaces. Planted ensembles: permuted copies of a planted clustering, a share of
their labels wrong, a share missing.
"""

from __future__ import annotations

import os

# Before numpy is imported: k-means adds in an order that depends on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import gzip
import hashlib
import json
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SITES, COLUMNS = 4, 20
MOST_ROWS = 3000
#: What is promised of two versions, at most; a loss is before minus after.
EXCHANGES, BYTES = "exchanges, median ratio over all cases", "bytes_sent, median ratio over all cases"
NMI_LOSS, ARI_LOSS = "NMI, mean loss over all cases", "ARI, largest loss of a planted ensemble"
PROMISES = {EXCHANGES: 1 / 3, BYTES: 1 / 5, NMI_LOSS: 0.002, ARI_LOSS: 0.01}
PLANTED_OBJECTS, PLANTED_CLUSTERS = (60, 250, 1000), (3, 7, 15)
PLANTED_WRONG, PLANTED_MISSING = (0.2, 0.4, 0.6), (0.0, 0.3)
#: Data sets that come with scikit-learn, under the names that CSV folders give them.
SHIPPED = {"iris": "load_iris", "wine": "load_wine", "wdbc": "load_breast_cancer", "digits": "load_digits"}

Codes = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """One ensemble. `codes` (n, m): labels, -1 where one is missing."""

    name: str
    kind: str  # "data" | "planted"
    group: str  # the name without the seed
    clusters: int
    truth: Codes
    codes: Codes


# Base clusterings of data sets.


def k_means(points: Reals, k: int, rng: np.random.Generator) -> Codes:
    """As many clusters as there are classes, one random start."""
    return _k_means(points, k, rng)


def gaussian_mixture(points: Reals, k: int, rng: np.random.Generator) -> Codes:
    from sklearn.mixture import GaussianMixture

    components = int(rng.integers(k, 2 * k + 1))
    model = GaussianMixture(
        components,
        covariance_type="diag",
        reg_covar=1e-3,
        max_iter=50,
        init_params="k-means++",
        random_state=int(rng.integers(2**31)),
    )
    return np.asarray(model.fit_predict(points), dtype=np.int64)


def random_subspace(points: Reals, k: int, rng: np.random.Generator) -> Codes:
    """k-means of half of the features, with k to 2 k clusters."""
    features = points.shape[1]
    chosen = rng.choice(features, max(1, features // 2), replace=False)
    return _k_means(points[:, chosen], int(rng.integers(k, 2 * k + 1)), rng)


def _k_means(points: Reals, k: int, rng: np.random.Generator) -> Codes:
    from sklearn.cluster import KMeans

    model = KMeans(k, init="random", n_init=1, max_iter=100, random_state=int(rng.integers(2**31)))
    return np.asarray(model.fit_predict(points), dtype=np.int64)


ENSEMBLES: dict[str, Callable[[Reals, int, np.random.Generator], Codes]] = {
    "k-means": k_means,
    "mixture": gaussian_mixture,
    "subspace": random_subspace,
}


def data_sets(folder: Path | None) -> Iterator[tuple[str, Reals, Codes]]:
    """Name, standardised features (at most MOST_ROWS objects), classes."""
    import sklearn.datasets

    for name, loader in SHIPPED.items():
        points, classes = getattr(sklearn.datasets, loader)(return_X_y=True)
        yield name, *_prepared(points, classes)
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")] if folder else []):
        name = path.name.removesuffix(".gz").removesuffix(".csv")
        if name not in SHIPPED:
            yield name, *_prepared(*_read(path))


def _read(path: Path) -> tuple[Reals, Codes]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header, *rows = csv.reader(content.decode().splitlines())
    if header[-1] != "class":
        raise SystemExit(f"{path}: the last column is {header[-1]!r}; expected 'class'")
    values = np.array(rows)
    return values[:, :-1].astype(np.float64), np.unique(values[:, -1], return_inverse=True)[1]


def _prepared(points: Any, classes: Any) -> tuple[Reals, Codes]:
    points, classes = np.asarray(points, dtype=np.float64), np.asarray(classes, dtype=np.int64)
    if len(points) > MOST_ROWS:
        chosen = np.sort(np.random.default_rng(0).permutation(len(points))[:MOST_ROWS])
        points, classes = points[chosen], classes[chosen]
    spread = points.std(axis=0)
    return (points - points.mean(axis=0)) / np.where(spread > 0, spread, 1.0), classes


def of_data(folder: Path | None, seeds: int) -> Iterator[Case]:
    for name, points, classes in data_sets(folder):
        k = len(np.unique(classes))
        for how, cluster in ENSEMBLES.items():
            for seed in range(seeds):
                rng = np.random.default_rng([seed, len(points), k])
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # base clusterings need not have converged
                    codes = np.column_stack([cluster(points, k, rng) for _ in range(COLUMNS)])
                group = f"{name} {how}"
                yield Case(f"{group} seed {seed}", "data", group, k, classes, codes)


def planted(seeds: int) -> Iterator[Case]:
    for n in PLANTED_OBJECTS:
        for k in PLANTED_CLUSTERS:
            for wrong in PLANTED_WRONG:
                for missing in PLANTED_MISSING:
                    for seed in range(seeds):
                        group = f"planted N {n} k {k} wrong {wrong:.0%} missing {missing:.0%}"
                        rng = np.random.default_rng([seed, n, k, round(100 * wrong), round(100 * missing)])
                        truth, codes = planted_ensemble(n, k, wrong, missing, rng)
                        yield Case(f"{group} seed {seed}", "planted", group, k, truth, codes)


def planted_ensemble(
    n: int, k: int, wrong: float, missing: float, rng: np.random.Generator, columns: int = COLUMNS
) -> tuple[Codes, Codes]:
    """Truth (n,), and permuted copies of it with wrong and missing (-1) labels (n, columns)."""
    truth = rng.integers(0, k, n)
    codes = np.column_stack([rng.permutation(k)[truth] for _ in range(columns)])
    at = rng.random(codes.shape) < wrong
    codes[at] = rng.integers(0, k, int(at.sum()))
    codes[rng.random(codes.shape) < missing] = -1
    return truth, codes


# A run.


def measure(case: Case, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Run the job; `keys` are keys of ce.Job beside the number of clusters."""
    import ce

    ids = [f"o{i}" for i in range(len(case.codes))]
    tables = {
        f"s{site}": ce.LabelTable.from_arrays(
            case.codes[:, site::SITES], ids=ids, columns=[f"c{c}" for c in range(site, case.codes.shape[1], SITES)]
        )
        for site in range(SITES)
    }
    job = ce.Job(**{"model": "bce", "clusters": case.clusters, "seed": 0, **keys})
    begin = time.process_time()
    result = ce.simulate(job, tables, privacy="plain")
    seconds = time.process_time() - begin
    found = dict(zip(result.sites["s0"].ids.tolist(), result.sites["s0"].labels.tolist(), strict=True))
    labels = [found[one] for one in ids]
    return {
        "case": case.name,
        "kind": case.kind,
        "group": case.group,
        "objects": len(ids),
        "clusters": case.clusters,
        "labels": digest(case.codes),
        "layout": result.layout,
        "exchanges": result.exchanges,
        "iterations": result.iterations,
        "bytes_sent": result.bytes_sent,
        "nmi": ce.metrics.nmi(case.truth, labels),
        "ari": ce.metrics.ari(case.truth, labels),
        "bound": result.lower_bound,
        "cpu_s": round(seconds, 3),
    }


def digest(codes: Codes) -> str:
    """Two versions are compared on equal labels only."""
    return hashlib.sha256(np.ascontiguousarray(codes, dtype=np.int64).tobytes()).hexdigest()[:16]


def run(out: Path | None, folder: Path | None, seeds: int, keys: Mapping[str, Any], only: str) -> None:
    file = sys.stdout if out is None else out.open("w")
    begin = time.monotonic()
    done = 0
    for cases in (of_data(folder, seeds), planted(seeds)):
        for case in cases:
            if only not in case.name:
                continue
            print(json.dumps(measure(case, keys)), file=file, flush=True)
            done += 1
            if out is not None and done % 20 == 0:
                print(f"{done} cases, {time.monotonic() - begin:.0f} s: {case.name}", file=sys.stderr, flush=True)


# A comparison of two runs.


@dataclass(frozen=True)
class Verdict:
    """One promise about two runs. `limit` is what `found` may be at most."""

    what: str
    found: float
    limit: float

    @property
    def kept(self) -> bool:
        return self.found <= self.limit

    def __str__(self) -> str:
        return f"{self.what:<58} {self.found:8.3f}   at most {self.limit:.3f}: {'kept' if self.kept else 'NOT kept'}"


def pairs_of(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Lines of the same case with the same labels."""
    old = {(line["case"], line["labels"]): line for line in before}
    return [(old[key], line) for line in after if (key := (line["case"], line["labels"])) in old]


def verdicts(pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Verdict]:
    """Losses are before minus after, so that a gain is negative."""
    ratios = {
        what: statistics.median(new[key] / old[key] for old, new in pairs)
        for what, key in ((EXCHANGES, "exchanges"), (BYTES, "bytes_sent"))
    }
    worst = max((old["ari"] - new["ari"] for old, new in pairs if old["kind"] == "planted"), default=0.0)
    found = {**ratios, NMI_LOSS: _mean_loss(pairs, "nmi"), ARI_LOSS: worst}
    return [Verdict(what, found[what], limit) for what, limit in PROMISES.items()]


def _mean_loss(pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]], key: str) -> float:
    return statistics.fmean(old[key] - new[key] for old, new in pairs)


def compare(before: Path, after: Path) -> bool:
    """Print promises, medians by kind, and where quality fell most; returns whether all promises are kept."""
    old, new = ([json.loads(line) for line in path.read_text().splitlines()] for path in (before, after))
    pairs = pairs_of(old, new)
    if not pairs:
        raise SystemExit("no case with the same labels in both files")
    print(f"{len(pairs)} cases in both, of {len(old)} before and {len(new)} after")
    found = verdicts(pairs)
    for verdict in found:
        print(f"  {verdict}")
    by_kind: dict[str, list[Any]] = defaultdict(list)
    groups: dict[str, list[Any]] = defaultdict(list)
    for pair in pairs:
        of_data = pair[0]["kind"] == "data"
        by_kind[pair[0]["group"].rsplit(" ", 1)[-1] if of_data else "planted"].append(pair)
        groups[pair[0]["group"]].append(pair)
    print(f"{'':<12} cases  exchanges before, after (median, most)  ratio  bytes  CPU    NMI before, after   ARI")
    for kind, some in [*by_kind.items(), ("all", pairs)]:
        print(f"{kind:<12} {len(some):5d}  {_line(some)}")
    print("largest losses of ARI, mean over the seeds of a group:")
    losses = sorted(((_mean_loss(some, "ari"), name) for name, some in groups.items()), reverse=True)
    for loss, name in losses[:8]:
        print(f"  {loss:+.3f}  {name}")
    return all(verdict.kept for verdict in found)


def _line(pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    exchanges = [[pair[side]["exchanges"] for pair in pairs] for side in (0, 1)]
    ratios = [statistics.median(new[key] / old[key] for old, new in pairs) for key in ("exchanges", "bytes_sent")]
    cpu = sum(new["cpu_s"] for _, new in pairs) / max(sum(old["cpu_s"] for old, _ in pairs), 1e-9)
    means = [statistics.fmean(pair[side][key] for pair in pairs) for key in ("nmi", "ari") for side in (0, 1)]
    counts = ", ".join(f"{statistics.median(some):4.0f} ({max(some):4.0f})" for some in exchanges)
    return (
        f"{counts:>25} {ratios[0]:21.2f}  {ratios[1]:5.2f}  {cpu:4.2f}   "
        f"{means[0]:.4f} {means[1]:.4f}   {means[2]:.4f} {means[3]:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="measure the version in whose environment this runs")
    running.add_argument("--data", type=Path, help="folder of CSV files, gzipped or not, last column `class`")
    running.add_argument("--out", type=Path, help="JSON lines; without it they are printed")
    running.add_argument("--seeds", type=int, default=2, help="ensembles of each kind")
    running.add_argument("--only", default="", help="cases whose name contains this text")
    running.add_argument(
        "--job", action="append", default=[], metavar="KEY=VALUE", help="a key of ce.Job, its value in JSON"
    )
    comparing = commands.add_parser("compare", help="compare the results of two versions")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.command == "compare":
        sys.exit(0 if compare(asked.before, asked.after) else 1)
    keys = {key: json.loads(value) for key, value in (one.split("=", 1) for one in asked.job)}
    run(asked.out, asked.data, asked.seeds, keys, asked.only)


if __name__ == "__main__":
    main()
