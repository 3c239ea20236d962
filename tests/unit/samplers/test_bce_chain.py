"""The sampler of BCE draws from the posterior: exact enumeration on tiny problems."""

from __future__ import annotations

from itertools import product
from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.kernels import backend, gibbs
from ce.labels import LabelTable
from ce.samplers.bce_chain import BCEChain
from ce.samplers.hard_labels import HardLabels

laws = settings(deadline=None, max_examples=40, derandomize=True)


def chain_of(codes: object, k: int, alpha: float, omega: float, seed: int = 0, widths: object = None) -> BCEChain:
    table = HardLabels.of(LabelTable.from_arrays(np.asarray(codes)))
    if widths is not None:  # also categories that nobody has
        sizes = np.asarray(widths, dtype=np.int64)
        begins = np.cumsum(sizes) - sizes
        given = np.asarray(codes)
        table = HardLabels(np.where(given < 0, -1, given + begins).astype(np.int32), sizes, np.ones(len(given), bool))
    return BCEChain(table, k, alpha, omega, np.random.default_rng(seed))


def put(chain: BCEChain, clusters: np.ndarray) -> None:
    """Set the clusters of all cells."""
    codes = chain._labels.codes
    chain.clusters[:] = np.where(codes < 0, -1, clusters)
    for counts in (chain.of_objects, chain.of_categories, chain.of_columns):
        counts[:] = 0.0
    for i, j in np.argwhere(codes >= 0):
        h = chain.clusters[i, j]
        chain.of_objects[i, h] += 1
        chain.of_categories[codes[i, j], h] += 1
        chain.of_columns[j, h] += 1


def test_the_joint_sums_to_one_over_all_labels_and_clusters() -> None:
    n, m, k, widths = 2, 2, 2, (2, 3)
    total = 0.0
    for labels in product(*(range(w) for w in widths * n)):
        codes = np.reshape(labels, (n, m))
        chain = chain_of(codes, k, 0.7, 0.4, widths=widths)
        for clusters in product(range(k), repeat=n * m):
            put(chain, np.reshape(clusters, (n, m)))
            total += exp(chain.log_joint)
    assert total == pytest.approx(1.0, abs=1e-10)


@laws
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(2, 5))
def test_the_chances_of_a_cell_are_ratios_of_the_joint(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, 3, (4, 3))
    codes[0] = 0, 1, 2  # a label in each column
    codes[1:, 0] = np.maximum(codes[1:, 0], 0)  # and of each object
    alpha, omega = rng.uniform(0.1, 3.0, 2)
    chain = chain_of(codes, k, alpha, omega)
    known = chain._labels
    clusters = rng.integers(0, k, codes.shape)
    i, j = rng.choice(np.argwhere(known.codes >= 0))
    joints = []
    for h in range(k):
        clusters[i, j] = h
        put(chain, clusters)
        joints.append(chain.log_joint)
    chain.of_objects[i, k - 1] -= 1
    chain.of_categories[known.codes[i, j], k - 1] -= 1
    chain.of_columns[j, k - 1] -= 1
    weights, code = np.empty(k), known.codes[i, j]
    counts = chain.of_categories[code], chain.of_columns[j], chain.of_objects[i]
    gibbs.bce_weights(*counts, alpha, omega, int(known.widths[j]), weights)
    np.testing.assert_allclose(np.log(weights / weights[0]), np.subtract(joints, joints[0]), rtol=0, atol=1e-10)


@pytest.mark.promise("Samplers draw from the posterior: as exact enumeration says on tiny problems.")
@pytest.mark.parametrize("codes", [((0, 0), (0, 1), (1, 1)), ((0, -1), (0, 1), (1, 1), (-1, 0))])
def test_draws_are_distributed_as_the_posterior(codes: object) -> None:
    pytest.importorskip("numba")
    k, alpha, omega = 2, 0.8, 0.5
    chain = chain_of(codes, k, alpha, omega, seed=3)
    cells = np.argwhere(chain._labels.codes >= 0)
    exact: dict[bytes, float] = {}
    clusters = np.zeros(chain.clusters.shape, dtype=np.int64)
    for values in product(range(k), repeat=len(cells)):
        clusters[tuple(cells.T)] = values
        put(chain, clusters)
        exact[chain.clusters.tobytes()] = exp(chain.log_joint)
    whole = sum(exact.values())
    draws = 60_000
    seen = dict.fromkeys(exact, 0)
    with backend.using("numba"):
        for _ in range(draws):
            chain.sweep()
            seen[chain.clusters.tobytes()] += 1
    distance = 0.5 * sum(abs(seen[z] / draws - p / whole) for z, p in exact.items())
    assert distance < 0.03


def test_counts_are_those_of_the_clusters_after_any_sweep() -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(-1, 4, (30, 6))
    codes[codes.max(axis=1) < 0] = 0
    chain = chain_of(codes, 3, 1.0, 0.1)
    for _ in range(3):
        chain.sweep()
        again = chain_of(codes, 3, 1.0, 0.1)
        put(again, chain.clusters.astype(np.int64))
        np.testing.assert_array_equal(chain.of_objects, again.of_objects)
        np.testing.assert_array_equal(chain.of_categories, again.of_categories)
        np.testing.assert_array_equal(chain.of_columns, again.of_columns)
    assert (chain.clusters[chain._labels.codes < 0] == -1).all()


@laws
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), m=st.integers(1, 6), k=st.integers(1, 7))
def test_compiled_sweeps_give_the_same_bits(seed: int, n: int, m: int, k: int) -> None:
    pytest.importorskip("numba")
    codes = np.random.default_rng(seed).integers(-1, 4, (n, m))
    codes[0] = 0
    chains = {}
    for kernels in backend.CHOICES:
        chains[kernels] = chain_of(codes, k, 0.9, 0.2, seed=seed)
        with backend.using(kernels):
            for _ in range(2):
                chains[kernels].sweep()
    one, other = chains.values()
    np.testing.assert_array_equal(one.clusters, other.clusters)
    assert one.log_joint == other.log_joint
