"""An iteration of BCE against other software and against its own arithmetic, and how it grows.

ce runs on two threads where the name says so; StepMix and scikit-learn run as they do by default, on one; tomotopy on
two. What is compared on two threads is wall time; what runs on one thread is compared by CPU time, which is the same on
a quiet machine and does not depend on who else uses a busy one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from harness.labels import by_columns, by_rows, planted
from harness.measurement import Growth, Measurement, Ratio, Subject
from harness.options import Options
from peers import bare_loop, iterations

import ce

N, COLUMNS, K = 100_000, 20, 7
TWO, ONE, NUMPY = "ce, two threads", "ce, one thread", "ce, numpy's kernels"
LDA, TOMOTOPY = "scikit-learn LDA", "tomotopy, two threads"
#: What wall time would say on a machine that nobody else uses.
CPU = ", by CPU time, as if each thread had a core of its own"
GROWTH_PROMISE = 1.15


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    yield [iteration(options), *growths(options), *sweeps(options), layouts(options)]


def iteration(options: Options) -> Measurement:
    _, codes = planted(N, COLUMNS, K)
    return Measurement(
        name="iteration of BCE",
        what=f"One iteration with bound and sums, {N:,} objects, {COLUMNS} columns, k = {K}, one start, rows all "
        "different. StepMix: one EM iteration of a categorical mixture. scikit-learn: one inner pass of its variational"
        " LDA. tomotopy: one Gibbs sweep of LDA. Bare loop: products, sums over clusters, divisions of one cell pass.",
        unit="s",
        subjects=(
            Subject(TWO, partial(iterations.bce, codes, K, threads=2)),
            Subject(ONE, partial(iterations.bce_with_cells, codes, K)),
            Subject(f"{NUMPY}, two threads", partial(_numpy, codes, 2)),
            Subject(f"{NUMPY}, one thread", partial(_numpy, codes, 1)),
            Subject("StepMix", partial(iterations.stepmix, codes, K), "peer"),
            Subject(LDA, partial(iterations.sklearn_lda, codes, K), "peer"),
            Subject(TOMOTOPY, iterations.TomotopyLda(codes, K, 2), "peer"),
            Subject("bare loop", partial(bare_loop.cell_pass, codes, K), "limit"),
        ),
        claims=(
            Ratio("StepMix's EM iteration, in iterations", least=8, goal=10, of="StepMix: wall", to=f"{TWO}: wall"),
            Ratio("an inner pass of scikit-learn's LDA", least=20, goal=30, of=f"{LDA}: wall", to=f"{TWO}: wall"),
            Ratio("a sweep of tomotopy's LDA", of=f"{TOMOTOPY}: wall", to=f"{TWO}: wall"),
            Ratio("the cell pass, of the bare loop, CPU", most=2, of=f"{ONE}: cells, CPU", to="bare loop: CPU"),
            Ratio("the iteration, of its cell pass, CPU", most=2.5, of=f"{ONE}: CPU", to=f"{ONE}: cells, CPU"),
            Ratio("numpy's kernels, two threads", least=4, of=f"{NUMPY}, two threads: wall", to=f"{TWO}: wall"),
            Ratio("numpy's kernels, one thread, CPU", least=2.5, of=f"{NUMPY}, one thread: CPU", to=f"{ONE}: CPU"),
            Ratio("one thread, of two", of=f"{ONE}: wall", to=f"{TWO}: wall"),
            Ratio(f"StepMix{CPU}", of="StepMix: CPU", to=f"{TWO}: CPU", threads=2),
            Ratio(f"scikit-learn's LDA{CPU}", of=f"{LDA}: CPU", to=f"{TWO}: CPU", threads=2),
            Ratio(f"numpy's kernels, two threads{CPU}", of=f"{NUMPY}, two threads: CPU", to=f"{TWO}: CPU"),
            Ratio("a sweep of tomotopy's LDA, CPU", of=f"{TOMOTOPY}: CPU", to=f"{TWO}: CPU"),
        ),
        turns=options.turns(5, 15),
    )


def _numpy(codes: iterations.Codes, threads: int) -> dict[str, float]:
    return iterations.bce(codes, K, threads=threads, iterations=5, choice="numpy")


def growths(options: Options) -> list[Measurement]:
    """An iteration on one thread, by objects, columns and clusters."""
    ranges = {
        "objects": [(n, COLUMNS, K) for n in (1_000, 10_000, 100_000, 1_000_000)],
        "columns": [(20_000, m, K) for m in (5, 20, 80, 320)],
        "clusters": [(20_000, COLUMNS, k) for k in (4, 16, 64, 256)],
    }
    found = []
    for at, (what, sizes) in enumerate(ranges.items()):
        values = {f"{size[at]:,} {what}": size for size in sizes}
        found.append(
            Measurement(
                name=f"growth in {what}",
                what="One iteration with bound and sums on one thread, CPU time: "
                + "; ".join(f"{n:,} objects, {m} columns, k = {k}" for n, m, k in sizes),
                unit="s",
                subjects=tuple(Subject(name, _Sized(*size)) for name, size in values.items()),
                claims=(
                    Growth(
                        f"exponent in {what}",
                        most=GROWTH_PROMISE,
                        sizes={name: float(size[at]) for name, size in values.items()},
                    ),
                ),
                turns=options.turns(3, 9),
                warm_up=0,
                axis=what,
            )
        )
    return found


class _Sized:
    """An iteration on labels of this size; labels are made when they are first needed, and categories are seven."""

    def __init__(self, n: int, columns: int, k: int) -> None:
        self.n, self.columns, self.k = n, columns, k
        self._codes: iterations.Codes | None = None

    def __call__(self) -> float:
        if self._codes is None:
            _, self._codes = planted(self.n, self.columns, K)
        return iterations.bce(self._codes, self.k, threads=1, iterations=5)["CPU"]


def sweeps(options: Options) -> list[Measurement]:
    """Gibbs sampling: a sweep against that of tomotopy's LDA, which is the same model but for one beta per column, on
    one thread each; and how it grows."""
    small, k, most = 10_000, 10, 1_000_000
    _, codes = planted(small, COLUMNS, k)
    ours, theirs = "BCE, sweep", "tomotopy, sweep"
    sizes = {f"{n:,} objects": n for n in (small, 100_000, most)}
    return [
        Measurement(
            name="Gibbs sweep",
            what=f"One sweep over {small:,} objects, {COLUMNS} columns, {k} clusters or topics, one thread.",
            unit="s",
            subjects=(
                Subject(ours, iterations.BCESweep(codes, k)),
                Subject(theirs, iterations.TomotopyLda(codes, k, 1), "peer"),
            ),
            claims=(Ratio("BCE, of a sweep of tomotopy's LDA", most=2, of=f"{ours}: CPU", to=f"{theirs}: CPU"),),
            turns=options.turns(5, 15),
        ),
        Measurement(
            name="growth of a Gibbs sweep",
            what=f"One sweep, {COLUMNS} columns, {k} clusters, one thread, CPU time.",
            unit="s",
            subjects=tuple(Subject(name, _Swept(n, k)) for name, n in sizes.items()),
            claims=(
                Growth("exponent in objects", most=GROWTH_PROMISE, sizes={name: float(n) for name, n in sizes.items()}),
            ),
            turns=options.turns(3, 9),
            warm_up=1,
            axis="objects",
        ),
    ]


class _Swept:
    """A sweep over labels of this size, which are made when they are first needed."""

    def __init__(self, n: int, k: int) -> None:
        self._n, self._k = n, k
        self._sweep: iterations.BCESweep | None = None

    def __call__(self) -> float:
        if self._sweep is None:
            _, codes = planted(self._n, COLUMNS, self._k)
            self._sweep = iterations.BCESweep(codes, self._k, sweeps=1)
        return self._sweep()["CPU"]


def layouts(options: Options) -> Measurement:
    """What it costs to be several sites: a job of four, one after the other in one process, against one site."""
    _, codes = planted(20_000, COLUMNS, K)
    four = ("s0", "s1", "s2", "s3")
    tables = {"one site": by_rows(codes, four[:1]), "rows": by_rows(codes, four), "columns": by_columns(codes, four)}

    def seconds(name: str) -> dict[str, float]:
        job = ce.Job(clusters=K, restarts=5, max_iterations=8, tolerance=0.0, local_loops=1)
        stamps: list[iterations.Stamp] = []
        ce.simulate(job, tables[name], privacy="plain", on_progress=lambda _: stamps.append(iterations.now()))
        return iterations.between(stamps)

    return Measurement(
        name="layouts in one process",
        what="One iteration of five starts of ce.simulate in plain, 20,000 objects, 20 columns, k = 7: one site, or "
        "four that run one after the other.",
        unit="s",
        subjects=tuple(Subject(name, partial(seconds, name)) for name in tables),
        claims=(
            Ratio("four sites by rows, of one site, CPU", of="rows: CPU", to="one site: CPU"),
            Ratio("four sites by columns, of one site, CPU", of="columns: CPU", to="one site: CPU"),
        ),
        turns=options.turns(3, 9),
    )
