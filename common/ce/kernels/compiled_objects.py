"""The object steps as fused loops: no temporary array per operation.

In the order of the array functions of `ce.kernels.special`, so that results have the same bits.
"""

from __future__ import annotations

import numpy as np

from ce.kernels.machine_code import of_numbers, stored

_log, _exp, _digamma = of_numbers["log"], of_numbers["exp"], of_numbers["digamma"]
_log_gamma, _trigamma = of_numbers["log_gamma"], of_numbers["trigamma"]

with stored() as compiled:

    @compiled
    def dirichlet_posterior(gamma, mean_log, largest, message):  # type: ignore[no-untyped-def]
        """E ln theta of Dirichlet(gamma), (starts, k, n); its largest entry per object; exp of it, scaled by that."""
        starts, k, n = gamma.shape
        for s in range(starts):
            for i in range(n):
                largest[s, 0, i] = gamma[s, 0, i]
            for h in range(1, k):
                for i in range(n):
                    largest[s, 0, i] += gamma[s, h, i]
            # For a moment, `message` has psi of the sum in its first row, before that row is written.
            for i in range(n):
                message[s, 0, i] = _digamma(largest[s, 0, i])
                largest[s, 0, i] = -np.inf
            for h in range(k):
                for i in range(n):
                    mean = _digamma(gamma[s, h, i]) - message[s, 0, i]
                    mean_log[s, h, i] = mean
                    largest[s, 0, i] = mean if mean > largest[s, 0, i] else largest[s, 0, i]
            for h in range(k):
                for i in range(n):
                    message[s, h, i] = _exp(mean_log[s, h, i] - largest[s, 0, i])

    @compiled
    def log_beta(a, result):  # type: ignore[no-untyped-def]
        """ln B(a), (starts, n), of a (starts, k, n)."""
        starts, k, n = a.shape
        total = np.empty(n)
        for s in range(starts):
            for i in range(n):
                total[i] = a[s, 0, i]
                result[s, i] = _log_gamma(a[s, 0, i])
            for h in range(1, k):
                for i in range(n):
                    total[i] += a[s, h, i]
                    result[s, i] += _log_gamma(a[s, h, i])
            for i in range(n):
                result[s, i] -= _log_gamma(total[i])

    @compiled
    def responsibilities(joint, log_likelihood):  # type: ignore[no-untyped-def]
        """From ln of the joint (starts, k, n), in place: the responsibilities; and ln of their normaliser."""
        starts, k, n = joint.shape
        largest = np.empty(n)
        total = np.empty(n)
        for s in range(starts):
            for i in range(n):
                largest[i] = joint[s, 0, i]
            for h in range(1, k):
                for i in range(n):
                    largest[i] = joint[s, h, i] if joint[s, h, i] > largest[i] else largest[i]
            for i in range(n):
                joint[s, 0, i] = _exp(joint[s, 0, i] - largest[i])
                total[i] = joint[s, 0, i]
            for h in range(1, k):
                for i in range(n):
                    joint[s, h, i] = _exp(joint[s, h, i] - largest[i])
                    total[i] += joint[s, h, i]
            for h in range(k):
                for i in range(n):
                    joint[s, h, i] /= total[i]
            for i in range(n):
                log_likelihood[s, 0, i] = _log(total[i]) + largest[i]

    @compiled
    def log(x, result):  # type: ignore[no-untyped-def]
        """ln of each number of a flat array."""
        for i in range(x.size):
            result[i] = _log(x[i])

    @compiled
    def exp(x, result):  # type: ignore[no-untyped-def]
        """e to each number of a flat array."""
        for i in range(x.size):
            result[i] = _exp(x[i])

    @compiled
    def digamma(x, result):  # type: ignore[no-untyped-def]
        """psi of each number of a flat array."""
        for i in range(x.size):
            result[i] = _digamma(x[i])

    @compiled
    def trigamma(x, result):  # type: ignore[no-untyped-def]
        """psi' of each number of a flat array."""
        for i in range(x.size):
            result[i] = _trigamma(x[i])

    @compiled
    def encoded_total(values, weights, unit, limit, total):  # type: ignore[no-untyped-def]
        """The sum of the words of each row of values (rows, n); no weights: one each. True if all are in the limit."""
        rows, n = values.shape
        fine = True
        for row in range(rows):
            words = np.int64(0)
            if weights.size == 0:
                for i in range(n):
                    fine &= abs(values[row, i]) <= limit
                    words += np.int64(np.rint(values[row, i] * unit))
            else:
                for i in range(n):
                    fine &= abs(values[row, i]) <= limit
                    words += np.int64(np.rint(values[row, i] * unit)) * weights[i]
            total[row] = words
        return fine

    @compiled
    def likeliest(x, result):  # type: ignore[no-untyped-def]
        """The position of the largest entry over clusters, the first of equals: (starts, n) of (starts, k, n)."""
        starts, k, n = x.shape
        best = np.empty(n)
        for s in range(starts):
            for i in range(n):
                best[i] = x[s, 0, i]
                result[s, i] = 0
            for h in range(1, k):
                for i in range(n):
                    better = x[s, h, i] > best[i]
                    result[s, i] = h if better else result[s, i]
                    best[i] = x[s, h, i] if better else best[i]
