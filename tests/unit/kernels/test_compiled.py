"""Compiled kernels and numpy's give the same bits: kernel by kernel, and for whole fits and jobs in every layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ce
from ce.errors import InputError, RingOverflow
from ce.kernels import backend, special
from ce.kernels.cells import CellSums, ColumnCells, TileCells, count_sums, lookup_sums, posterior_sums
from ce.kernels.code_cache import cache_folder, fall_back_to, writable_cache_folder
from ce.kernels.gaussian import Gaussians, Prior, factorised_sweep, joint_sweep
from ce.kernels.warmup import warm_up
from ce.models import BC3E, BCE, Mixture
from ce.ring import Scale, Words, encode, weighted_total
from ce.splits import split as split_table

pytest.importorskip("numba")

laws = settings(deadline=None, max_examples=40, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def random_columns(rng: np.random.Generator, n: int, m: int) -> list[tuple[np.ndarray[Any, Any], int]]:
    """Codes of m columns, some missing (the code after the last category)."""
    columns = []
    for _ in range(m):
        categories = int(rng.integers(1, 9))
        codes = rng.integers(0, categories, n)
        codes[rng.random(n) < rng.choice([0.0, 0.3])] = categories
        columns.append((codes.astype(np.intp), categories))
    return columns


def tile(columns: list[tuple[np.ndarray[Any, Any], int]], weights: Words | None) -> TileCells:
    return TileCells.of([ColumnCells.hard(codes, categories, weights) for codes, categories in columns], 10_000)


@laws
@given(seed=seeds, n=st.integers(1, 150), m=st.integers(1, 6), k=st.integers(1, 19), starts=st.integers(1, 3))
def test_cell_steps_give_the_same_bits(seed: int, n: int, m: int, k: int, starts: int) -> None:
    rng = np.random.default_rng(seed)
    columns = random_columns(rng, n, m)
    weights = rng.integers(1, 9, n) if rng.random() < 0.5 else None
    message = rng.random((starts, k, n)) ** 8
    betas = [rng.dirichlet(np.ones(categories), (starts, k)) for _, categories in columns]
    # Kernels round fine and coarse words in different ways.
    coarser = rng.choice([1.0, 2.0**20])
    phi, bound = Scale.for_sum((n * 9 + m) * coarser, 1.0), Scale.for_sum(n * m * 9.0, 1024.0)

    def all_sums() -> tuple[CellSums, Words, list[Words]]:
        cells = tile(columns, weights)
        sums = posterior_sums(message, betas, cells, phi, bound)
        looked_up = lookup_sums([np.log(beta + 1e-9) for beta in betas], cells, n, Scale.for_sum(m, 1024.0))
        return sums, looked_up, count_sums(message, cells, phi)

    with backend.using("numpy"):
        plain = all_sums()
    with backend.using("numba"):
        fast = all_sums()
    np.testing.assert_array_equal(plain[0].objects, fast[0].objects)
    np.testing.assert_array_equal(plain[0].bound, fast[0].bound)
    np.testing.assert_array_equal(plain[1], fast[1])
    for one, other in zip([*plain[0].columns, *plain[2]], [*fast[0].columns, *fast[2]], strict=True):
        np.testing.assert_array_equal(one, other)


@laws
@given(seed=seeds, n=st.integers(1, 200), k=st.integers(1, 12), starts=st.integers(1, 3))
def test_object_steps_give_the_same_bits(seed: int, n: int, k: int, starts: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.exp(rng.uniform(-5.0, 6.0, (starts, k, n)))

    def all_results() -> list[Any]:
        return [
            *special.dirichlet_posterior(x),
            special.log_beta(x),
            *special.responsibilities(-x),
            special.digamma(x),
            special.trigamma(x),
            special.log(x),
            special.log_or_infinite(x - 1.0),
            special.exp(-x),
            special.likeliest(np.round(x)),
        ]

    with backend.using("numpy"):
        plain = all_results()
    with backend.using("numba"):
        fast = all_results()
    for one, other in zip(plain, fast, strict=True):
        np.testing.assert_array_equal(one, other)


@laws
@given(seed=seeds, n=st.integers(0, 60), rows=st.integers(1, 4), weighted=st.booleans(), wrong=st.booleans())
def test_totals_of_words_are_equal_and_refuse_what_is_too_large(
    seed: int, n: int, rows: int, weighted: bool, wrong: bool
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.uniform(-5.0, 5.0, (2, rows, n))
    weights = rng.integers(1, 5, n) if weighted else None
    scale = Scale.for_sum(1000.0, 5.0)
    if wrong and n:
        values[1, 0, n // 2] = rng.choice([5.1, -6.0, np.nan, np.inf, -np.inf])
    totals = []
    for kernels in backend.CHOICES:
        with backend.using(kernels):
            if wrong and n:
                with pytest.raises(RingOverflow, match="spread: a term is not a finite number"):
                    special.encoded_total(values, scale, "spread", weights)
            else:
                totals.append(special.encoded_total(values, scale, "spread", weights))
    if totals:
        np.testing.assert_array_equal(*totals)
        np.testing.assert_array_equal(totals[0], weighted_total(encode(values, scale, ""), weights))


@laws
@given(
    seed=seeds,
    n=st.integers(1, 100),
    k=st.integers(1, 9),
    starts=st.integers(1, 2),
    rounds=st.integers(1, 3),
    sweep=st.sampled_from([joint_sweep, factorised_sweep]),
    spread=st.sampled_from([1e-3, 1.0, 300.0]),
)
def test_gaussian_sweeps_give_the_same_bits(
    seed: int, n: int, k: int, starts: int, rounds: int, sweep: Any, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    shape = (starts, k, n)
    q = Gaussians(*rng.normal(size=(2, *shape)), *(spread * rng.uniform(0.5, 2.0, (2, *shape))), np.zeros(shape))
    votes, sums = rng.integers(0, 4, (k, n)).astype(float), 5.0 * rng.random(shape)
    votes[:, rng.random(n) < 0.2] = 0.0
    labels = np.where(rng.random(n) < 0.2, 0.0, 9.0)
    sums *= labels > 0
    prior = Prior(rng.normal(size=(starts, k, 1)), np.full((starts, k, 1), spread), np.full((starts, 1, 1), spread))
    with backend.using("numpy"):
        plain = sweep(q, votes, sums, labels, prior, rounds)
    with backend.using("numba"):
        fast = sweep(q, votes, sums, labels, prior, rounds)
    for name in ("mu", "eps", "s", "d", "r"):
        assert np.isfinite(getattr(plain, name)).all()
        np.testing.assert_array_equal(getattr(plain, name), getattr(fast, name))


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_a_label_that_no_cluster_can_produce_is_refused(kernels: str) -> None:
    with backend.using(kernels):
        cells = tile([(np.array([1, 0], dtype=np.intp), 2)], None)
        beta = np.array([[[1.0, 0.0]]])
        with pytest.raises(RingOverflow, match="no cluster can produce"):
            posterior_sums(np.ones((1, 1, 2)), [beta], cells, Scale.for_sum(2, 1.0), Scale.for_sum(4, 1024.0))


def planted(seed: int, n: int, m: int, k: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random((n, m)) < 0.3, rng.integers(0, k, (n, m)), rng.integers(0, k, n)[:, None])
    labels[rng.random((n, m)) < 0.1] = -1
    return labels


@pytest.mark.promise("Compiled kernels and numpy's give the same bits.")
@settings(deadline=None, max_examples=8, derandomize=True)
@given(seed=st.integers(0, 1000), threads=st.integers(1, 3))
def test_fits_have_the_same_bits_with_and_without_compiled_kernels(seed: int, threads: int) -> None:
    labels = planted(seed, 300, 6, 4)
    votes = planted(seed + 1, 300, 3, 4)
    estimators = [
        lambda: BCE(4, n_init=2, max_iter=75, random_state=seed, n_threads=threads).fit(labels),
        lambda: Mixture(4, n_init=2, max_iter=20, random_state=seed, n_threads=threads).fit(labels),
        lambda: BC3E(n_classes=4, max_iter=4, n_threads=threads).fit(labels, votes),
        lambda: BC3E(n_classes=4, max_iter=4, posterior="factorised", start="diffused").fit(labels, votes),
    ]
    for fit in estimators:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ce.errors.ConvergenceWarning)
            with backend.using("numpy"):
                plain = fit()
            with backend.using("numba"):
                fast = fit()
        np.testing.assert_array_equal(plain.memberships_, fast.memberships_)
        np.testing.assert_array_equal(plain.bound_path_, fast.bound_path_)


@pytest.mark.parametrize("split", ["rows:3", "columns:3", "blocks:4"])
@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize("model", ["bce", "mixture"])
def test_jobs_have_the_same_bits_with_and_without_compiled_kernels(split: str, privacy: str, model: str) -> None:
    tables = split_table(ce.LabelTable.from_arrays(planted(5, 120, 6, 3)), split, 1)
    job = ce.Job(name="j", model=model, clusters=3, sites=tuple(tables), restarts=2, max_iterations=65)
    with backend.using("numpy"):
        plain = ce.simulate(job, tables, privacy=privacy)
    with backend.using("numba"):
        fast = ce.simulate(job, tables, privacy=privacy)
    np.testing.assert_array_equal(plain.bound_path, fast.bound_path)
    for site in plain.sites:
        np.testing.assert_array_equal(plain.sites[site].memberships, fast.sites[site].memberships)


# Machine code.


def test_an_unknown_choice_of_kernels_names_the_choices() -> None:
    with backend.using("fortran"), pytest.raises(InputError, match="numba, numpy"):
        backend.compiled()


def test_warmup_compiles_once_and_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "CE_KERNELS": "numba", "CE_CACHE_DIR": str(tmp_path)}

    def warmup() -> tuple[dict[str, Any], str]:
        command = [sys.executable, "-m", "ce.cli.main", "warmup", "--format", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=240)
        return json.loads(done.stdout), done.stderr

    first, said = warmup()
    assert not first["was_compiled"]
    assert "once per installation" in said
    second, said = warmup()
    assert second["was_compiled"]
    assert not said
    assert second["seconds"] < first["seconds"]
    assert oct(next(tmp_path.glob("kernels-*")).stat().st_mode & 0o777) == "0o700"


#: Fits of all kinds in a process whose kernels are warm; prints the kernels that had to be compiled after all.
AFTER_WARMUP = """
import warnings
import numpy as np, ce
from numba.core.dispatcher import Dispatcher
from ce.kernels import compiled, compiled_cells, compiled_gaussian, compiled_objects
from ce.kernels.warmup import warm_up
from ce.models import BC3E, BCE, Mixture
from ce.splits import split

modules = (compiled, compiled_cells, compiled_gaussian, compiled_objects)
kernels = {{name: one for m in modules for name, one in vars(m).items() if isinstance(one, Dispatcher)}}
if {warm}:
    warm_up()
before = {{name: list(one.signatures) for name, one in kernels.items()}}
warnings.simplefilter("ignore", ce.errors.ConvergenceWarning)
rng = np.random.default_rng(0)
labels, votes = rng.integers(-1, 4, (300, 6)), rng.integers(0, 3, (300, 3))
table = ce.LabelTable.from_arrays(labels)
for k, threads in ((3, 1), (9, 2)):
    BCE(k, n_init=2, max_iter=75, n_threads=threads, random_state=0).fit(labels).predict(labels[:50])
    Mixture(k, n_init=2, max_iter=5, n_threads=threads, random_state=0).fit(np.repeat(labels[:20], 9, axis=0))
    BC3E(n_classes=3, max_iter=3, n_threads=threads).fit(labels, votes)
    BC3E(n_classes=3, max_iter=3, posterior="factorised", start="diffused").fit(labels, votes)
for model in ("bce", "mixture"):
    for how, privacy in (("rows:3", "masked"), ("blocks:4", "blind"), ("columns:2", "plain")):
        tables = split(table, how, 1)
        ce.simulate(ce.Job(name="j", model=model, clusters=3, sites=tuple(tables), max_iterations=65), tables,
                    privacy=privacy)
print([name for name, one in kernels.items() if list(one.signatures) != before[name]])
"""


@pytest.mark.parametrize("warm", [True, False])
def test_nothing_is_compiled_after_the_warmup(warm: bool) -> None:
    """Without it, kernels are compiled, or loaded, during the fits: so the list would show what is left out."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_WARMUP.format(warm=warm)],
        env={**os.environ, "CE_KERNELS": "numba"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    late = done.stdout.strip()
    assert (late == "[]") == warm, late


def test_without_numba_there_is_nothing_to_compile() -> None:
    with backend.using("numpy"):
        assert warm_up(pytest.fail).kernels == "numpy"


def test_machine_code_goes_to_the_state_where_the_users_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.delenv("CE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(occupied))
    assert writable_cache_folder() is None
    fall_back_to(tmp_path / "state")
    assert cache_folder().parent == tmp_path / "state"
    monkeypatch.delenv("CE_CACHE_DIR")


def test_a_writable_cache_of_the_user_is_preferred_to_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fall_back_to(tmp_path / "state")
    assert cache_folder().parent == tmp_path / "cache" / "ce"
