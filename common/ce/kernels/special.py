"""Functions of object arrays (starts, k, n), compiled where they can be: element by element, or over clusters.

Arrays that numpy works on go through in stretches that fit in a core's cache. No number depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.kernels import backend, elementary
from ce.ring import Reals, Scale, Words, encode, weighted_total

#: Numbers of one array that numpy works on at a time.
_STRETCH = 2**13
#: For a compiled kernel: entries without weights.
_ONE_EACH = np.zeros(0, dtype=np.int64)


def digamma(x: Reals) -> Reals:
    """psi(x) for x > 0."""
    kernels = backend.compiled()
    return _by_stretches(elementary.digamma, x) if kernels is None else _flat(kernels.digamma, x)


def trigamma(x: Reals) -> Reals:
    """psi'(x) for x > 0."""
    kernels = backend.compiled()
    return _by_stretches(elementary.trigamma, x) if kernels is None else _flat(kernels.trigamma, x)


def log(x: Reals) -> Reals:
    """ln x for x > 0 that are normal numbers."""
    kernels = backend.compiled()
    return _by_stretches(elementary.log, x) if kernels is None else _flat(kernels.log, x)


def log_or_infinite(x: Reals) -> Reals:
    """The same, and minus infinity for every other x."""
    fine = x >= elementary.SMALLEST_NORMAL
    return np.where(fine, log(np.where(fine, x, 1.0)), -np.inf)


def exp(x: Reals) -> Reals:
    """e^x for x up to 709."""
    kernels = backend.compiled()
    return _by_stretches(elementary.exp, x) if kernels is None else _flat(kernels.exp, x)


def _flat(kernel: Callable[[Reals, Reals], None], x: Reals) -> Reals:
    contiguous = backend.plain(x)
    result = np.empty_like(contiguous)
    kernel(contiguous.reshape(-1), result.reshape(-1))
    return result.reshape(x.shape)


def _by_stretches(function: Callable[[Any], Any], x: Reals) -> Reals:
    if x.size <= _STRETCH:
        small: Reals = function(np.ascontiguousarray(x)).reshape(x.shape)
        return small
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty_like(flat)
    for begin in range(0, len(flat), _STRETCH):
        result[begin : begin + _STRETCH] = function(flat[begin : begin + _STRETCH])
    return result.reshape(x.shape)


def over_clusters(x: Reals) -> Reals:
    """Sum (starts, k, n) over k, one cluster after the other: (starts, n).

    x.sum(axis=1) adds in an order that depends on n: for n = 1 numpy folds the axes and sums pairwise.
    """
    total = x[:, 0].copy()
    for h in range(1, x.shape[1]):
        total += x[:, h]
    return total


def log_beta(a: Reals) -> Reals:
    """ln B(a) = sum_h lnG(a_h) - lnG(sum_h a_h), the normaliser of Dirichlet distributions: (starts, n)."""
    if (kernels := backend.compiled()) is not None:
        result = np.empty((a.shape[0], a.shape[2]))
        kernels.log_beta(backend.plain(a), result)
        return result
    logs = _by_stretches(elementary.log_gamma, a)
    difference: Reals = over_clusters(logs) - _by_stretches(elementary.log_gamma, over_clusters(a))
    return difference


def dirichlet_posterior(gamma: Reals) -> tuple[Reals, Reals, Reals]:
    """E ln theta of Dirichlet(gamma); its largest entry per object (starts, 1, n); exp of it, scaled so that the
    largest entry is 1."""
    if (kernels := backend.compiled()) is not None:
        mean_log, message = np.empty(gamma.shape), np.empty(gamma.shape)
        largest = np.empty((gamma.shape[0], 1, gamma.shape[2]))
        kernels.dirichlet_posterior(backend.plain(gamma), mean_log, largest, message)
        return mean_log, largest, message
    mean_log = digamma(gamma) - digamma(over_clusters(gamma))[:, None]
    largest = mean_log.max(axis=1, keepdims=True)
    return mean_log, largest, exp(mean_log - largest)


def responsibilities(log_joint: Reals) -> tuple[Reals, Reals]:
    """exp of (starts, k, n), divided by its sum over clusters, and ln of that sum (starts, 1, n)."""
    if (kernels := backend.compiled()) is not None:
        joint = np.array(log_joint, order="C")
        log_sum = np.empty((joint.shape[0], 1, joint.shape[2]))
        kernels.responsibilities(joint, log_sum)
        return joint, log_sum
    largest = log_joint.max(axis=1, keepdims=True)
    joint = exp(log_joint - largest)
    total = over_clusters(joint)[:, None]
    return joint / total, log(total) + largest


def encoded_total(values: Reals, scale: Scale, name: str, weights: Words | None) -> Words:
    """The words of (..., n), summed over the last axis: see `ce.ring.encode` and `weighted_total`."""
    kernels = backend.compiled()
    if kernels is None or not values.size:
        return weighted_total(encode(values, scale, name), weights)
    total = np.zeros(values.shape[:-1], dtype=np.int64)
    rows = backend.plain(values).reshape(-1, values.shape[-1])
    counts = _ONE_EACH if weights is None else weights
    if not kernels.encoded_total(rows, counts, scale.unit, scale.limit, total.reshape(-1)):
        encode(values, scale, name)  # raises the error
    return total


def likeliest(memberships: Reals) -> NDArray[np.intp]:
    """(starts, n): the cluster with the largest membership, the first of equals."""
    if (kernels := backend.compiled()) is not None:
        result = np.empty((memberships.shape[0], memberships.shape[2]), dtype=np.intp)
        kernels.likeliest(backend.plain(memberships), result)
        return result
    labels: NDArray[np.intp] = memberships.argmax(axis=1)
    return labels
