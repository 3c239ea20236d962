"""One Markov chain over the clusters of all cells of a Bayesian cluster ensemble, theta and beta integrated out.

    P(z_ij = h | rest) ∝ (omega + n_hj,x_ij) / (k_j omega + n_hj) * (alpha + n_ih)         counts without cell (i, j)

n_ih: labels of object i in cluster h; n_hjr: labels r of column j in cluster h; n_hj its sum over r.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from ce.kernels.gibbs import sweep_bce
from ce.ring import Reals
from ce.samplers.hard_labels import HardLabels

#: Cells whose random numbers are drawn at a time.
STRETCH = 2**16


class BCEChain:
    """The state of a chain. It begins with no cell drawn: the first sweep draws each given those before it."""

    def __init__(self, labels: HardLabels, k: int, alpha: float, omega: float, rng: np.random.Generator) -> None:
        n, m = labels.codes.shape
        self._labels = labels
        self._alpha, self._omega, self._k = alpha, omega, k
        self._rng = rng
        self.clusters = np.full((n, m), -1, dtype=np.int16)
        self.of_objects = np.zeros((n, k))
        self.of_categories = np.zeros((int(labels.widths.sum()), k))
        self.of_columns = np.zeros((m, k))
        # ln of Gamma(alpha + c) / Gamma(alpha), for every count that an object can have.
        self._log_rising = gammaln(alpha + np.arange(m + 1)) - gammaln(alpha)

    def sweep(self) -> None:
        """Draw every cell once, in the order of the table."""
        codes, m = self._labels.codes, self._labels.codes.shape[1]
        rows = max(1, STRETCH // m)
        for begin in range(0, len(codes), rows):
            part = slice(begin, begin + rows)
            uniforms = self._rng.random(codes[part].shape)
            sweep_bce(
                codes[part],
                self._labels.widths,
                self.clusters[part],
                self.of_objects[part],
                self.of_categories,
                self.of_columns,
                self._alpha,
                self._omega,
                uniforms,
            )

    @property
    def log_joint(self) -> float:
        """ln p(labels, clusters)."""
        alpha, omega, k, labels = self._alpha, self._omega, self._k, self._labels
        objects = self._log_rising[self.of_objects.astype(np.intp)].sum()
        objects -= (gammaln(k * alpha + labels.counts) - gammaln(k * alpha)).sum()
        used = labels.widths > 0
        whole = labels.widths[used, None] * omega
        columns = (gammaln(whole) - gammaln(whole + self.of_columns[used])).sum()
        columns += (gammaln(omega + self.of_categories) - gammaln(omega)).sum()
        return float(objects + columns)

    @property
    def partition(self) -> NDArray[np.int16]:
        """(n,) the cluster that most labels of an object are in, the first of equals."""
        found: NDArray[np.int16] = self.of_objects.argmax(axis=1).astype(np.int16)
        return found

    @property
    def counts(self) -> tuple[Reals, Reals]:
        """Of objects (n, k) and of categories (categories, k): what the parameters follow from."""
        return self.of_objects, self.of_categories
