"""Seconds of one iteration: of ce, and of software that does about the same work on the same labels.

An iteration is measured from the inside, between two passes, so that reading labels and starting up do not count. All
return wall time, and CPU time of all threads of this process, which other users of the machine hardly change.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import ce
from ce.kernels.backend import using

Codes = NDArray[np.int32]


#: Wall time and CPU time at one moment.
Stamp = tuple[float, float]


def now() -> Stamp:
    return time.perf_counter(), time.process_time()


def between(stamps: list[Stamp], skip: int = 1) -> dict[str, float]:
    """The median time between two stamps; the first intervals do not count."""
    pairs = list(zip(stamps[skip:], stamps[skip + 1 :], strict=False))
    return {key: statistics.median(b[at] - a[at] for a, b in pairs) for at, key in enumerate(("wall", "CPU"))}


def since(begin: Stamp, times: int = 1) -> dict[str, float]:
    """One of so many, on average."""
    end = now()
    return {key: (end[at] - begin[at]) / times for at, key in enumerate(("wall", "CPU"))}


def bce(labels: Codes, k: int, *, threads: int, iterations: int = 12, choice: str = "") -> dict[str, float]:
    """An iteration of BCE with bound and sums, alpha being learnt, one start."""
    stamps: list[Stamp] = []
    with using(choice):
        _fit(labels, k, threads, iterations, lambda: stamps.append(now()))
    return between(stamps)


def bce_with_cells(labels: Codes, k: int, *, iterations: int = 12) -> dict[str, float]:
    """An iteration on one thread, and CPU time of its cell pass: the only place of the benchmarks inside the engine."""
    from ce.steps.bce import BCESteps

    inner: list[float] = []
    stamps: list[Stamp] = []
    passes: list[float] = []
    original = BCESteps.cells

    def cells(*arguments: Any, **named: Any) -> Any:
        begin = time.process_time()
        result = original(*arguments, **named)
        inner.append(time.process_time() - begin)
        return result

    def stamp() -> None:
        stamps.append(now())
        passes.append(sum(inner))
        inner.clear()

    with mock.patch.object(BCESteps, "cells", cells):
        _fit(labels, k, 1, iterations, stamp)
    if not any(passes):
        raise RuntimeError("the engine no longer calls BCESteps.cells")
    return {**between(stamps), "cells, CPU": statistics.median(passes[2:])}


def _fit(labels: Codes, k: int, threads: int, iterations: int, stamp: Callable[[], None]) -> None:
    ce.models.BCE(
        k,
        n_init=1,
        init="dirichlet",
        max_iter=iterations,
        tol=0,
        random_state=0,
        n_threads=threads,
        progress=lambda _: stamp(),
    ).fit(labels)


def stepmix(labels: Codes, k: int, iterations: int = 4) -> dict[str, float]:
    """An EM iteration of StepMix, categorical: the mixture model, of which BCE is a generalisation."""
    from stepmix import StepMix

    stamps: list[Stamp] = []

    class Stamped(StepMix):  # type: ignore[misc]
        def _e_step(self, *arguments: Any, **named: Any) -> Any:
            stamps.append(now())
            return super()._e_step(*arguments, **named)

    model = Stamped(
        k, measurement="categorical", max_iter=iterations, n_init=1, abs_tol=0, random_state=0, progress_bar=0
    )
    _quietly(lambda: model.fit(labels))
    return between(stamps[: iterations + 1], skip=0)


def sklearn_lda(labels: Codes, k: int, passes: int = 4) -> dict[str, float]:
    """One inner pass of scikit-learn's LDA (its E step repeats them for each document), a document being an object."""
    from sklearn.decomposition import LatentDirichletAllocation

    words = one_hot(labels)

    def seconds(inner: int) -> dict[str, float]:
        model = LatentDirichletAllocation(
            k, learning_method="batch", max_iter=1, max_doc_update_iter=inner, mean_change_tol=0.0, random_state=0
        )
        begin = now()
        model.fit(words)
        return since(begin)

    one, more = seconds(1), seconds(1 + passes)
    return {key: (more[key] - one[key]) / passes for key in one}


class BCESweep:
    """One sweep of BCE's collapsed Gibbs sampler, one thread; a sampler goes on where it was."""

    def __init__(self, labels: Codes, k: int, sweeps: int = 3) -> None:
        self._labels, self._k, self._sweeps = labels, k, sweeps
        self._chain: Any = None

    def __call__(self) -> dict[str, float]:
        if self._chain is None:
            from ce.samplers.bce_chain import BCEChain
            from ce.samplers.hard_labels import HardLabels

            table = HardLabels.of(ce.LabelTable.from_arrays(self._labels))
            self._chain = BCEChain(table, self._k, 1.0, 0.1, np.random.default_rng(0))
            self._chain.sweep()  # draws every cell for the first time
        begin = now()
        for _ in range(self._sweeps):
            self._chain.sweep()
        return since(begin, self._sweeps)


class TomotopyLda:
    """One sweep of tomotopy's collapsed Gibbs sampler for LDA; a sampler goes on where it was."""

    def __init__(self, labels: Codes, k: int, threads: int, sweeps: int = 3) -> None:
        self._labels, self._k, self._threads, self._sweeps = labels, k, threads, sweeps
        self._model: Any = None

    def __call__(self) -> dict[str, float]:
        if self._model is None:
            import tomotopy

            self._model = tomotopy.LDAModel(k=self._k, seed=0)
            for row in self._labels:
                self._model.add_doc([f"{c}:{label}" for c, label in enumerate(row.tolist())])
            _quietly(lambda: self._model.train(1, workers=self._threads))  # assigns topics, and counts
        begin = now()
        _quietly(lambda: self._model.train(self._sweeps, workers=self._threads))
        return since(begin, self._sweeps)


def one_hot(labels: Codes) -> Any:
    """(n, all categories) sparse matrix with a one for each label."""
    from scipy.sparse import csr_matrix

    n, columns = labels.shape
    widths = labels.max(axis=0) + 1
    begins = np.cumsum(widths) - widths
    at = (labels + begins).reshape(-1)
    return csr_matrix((np.ones(at.size), at, np.arange(0, at.size + 1, columns)), shape=(n, int(widths.sum())))


def _quietly(work: Callable[[], object]) -> None:
    """A fit that is ended by its number of iterations warns."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
