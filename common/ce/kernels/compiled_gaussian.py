"""BC3E's object step as fused loops, with the bits of `ce.kernels.gaussian`: some objects at a time, all rounds.

Objects of a batch stand side by side, cluster by cluster, in buffers that fit in a core's cache; the last batch is
filled up with its last object. An element that has converged is held while others of its batch go on.
"""

from __future__ import annotations

import numpy as np

from ce.kernels import gaussian
from ce.kernels.gaussian import CLOSE, MOST_STEPS
from ce.kernels.machine_code import inlined, of_numbers, stored

_BATCH = 32

_log, _exp = of_numbers["log"], of_numbers["exp"]
_mean_of = inlined(gaussian.mean_of, of_numbers)
_next_eps = inlined(gaussian.next_eps, {**of_numbers, "mean_of": _mean_of})
_log_variance_below = inlined(gaussian.log_variance_below, of_numbers)
_variance_step = inlined(gaussian.variance_step, of_numbers)

with stored() as compiled:

    @compiled
    def _log_sum_exp(mean, variance, result):  # type: ignore[no-untyped-def]
        """ln sum exp(mean + variance/2) over the clusters of flat (k, batch) arrays, for every cluster again."""
        k = mean.size // _BATCH
        largest, total = np.empty(_BATCH), np.zeros(_BATCH)
        for e in range(mean.size):
            result[e] = mean[e] + 0.5 * variance[e]
        for b in range(_BATCH):
            largest[b] = result[b]
        for h in range(1, k):
            for b in range(_BATCH):
                x = result[h * _BATCH + b]
                largest[b] = x if x > largest[b] else largest[b]
        for h in range(k):
            for b in range(_BATCH):
                total[b] += _exp(result[h * _BATCH + b] - largest[b])
        for b in range(_BATCH):
            total[b] = largest[b] + _log(total[b])
        for h in range(k):
            for b in range(_BATCH):
                result[h * _BATCH + b] = total[b]

    @compiled
    def _means(x, log_rate, result):  # type: ignore[no-untyped-def]
        for e in range(x.size):
            result[e] = _mean_of(x[e], log_rate[e])

    @compiled
    def _settle_eps(eps, evidence, sums, log_rate1, log_rate2, precision, tie):  # type: ignore[no-untyped-def]
        """`gaussian._joint_means`: eps in place."""
        moving = np.ones(eps.size, dtype=np.int64)
        for _ in range(MOST_STEPS):
            going = 0
            for e in range(eps.size):
                new = _next_eps(eps[e], evidence[e], sums[e], log_rate1[e], log_rate2[e], precision[e], tie)
                step = abs(new - eps[e])
                here = new if moving[e] != 0 else eps[e]
                eps[e] = here
                moving[e] &= np.int64(step > CLOSE * (1.0 + abs(here)))
                going |= moving[e]
            if going == 0:
                break

    @compiled
    def _settle_variances(precision, log_rate, curvature, u):  # type: ignore[no-untyped-def]
        """`gaussian._variance`, into u."""
        most = -np.inf
        for e in range(u.size):
            u[e] = -_log(precision[e] + _exp(log_rate[e]))
            most = u[e] if u[e] > most else most
        if most > 0.0:
            for e in range(u.size):
                u[e] = np.minimum(u[e], _log_variance_below(log_rate[e], curvature[e]))
        moving = np.ones(u.size, dtype=np.int64)
        for _ in range(MOST_STEPS):
            going = 0
            for e in range(u.size):
                step = _variance_step(u[e], precision[e], log_rate[e], curvature[e])
                here = u[e] - step if moving[e] != 0 else u[e]
                u[e] = here
                moving[e] &= np.int64(abs(step) > CLOSE * (1.0 + abs(here)))
                going |= moving[e]
            if going == 0:
                break
        for e in range(u.size):
            u[e] = _exp(u[e])

    @compiled
    def gaussian_sweeps(  # type: ignore[no-untyped-def]
        rounds, joint, mu, eps, s, d, r, evidence, sums, log_r1, log_r2, precision, log_precision, ties
    ):
        """Rounds of updates of mu, eps, s, d, r (starts, k, n) in place. evidence and sums are such arrays, log_r1 and
        log_r2 (n,), precision and its logarithm (starts, k), ties (starts,)."""
        starts, k, n = mu.shape
        size = k * _BATCH
        of_mu, of_eps, of_s, of_d, of_r = np.empty(size), np.empty(size), np.empty(size), np.empty(size), np.empty(size)
        known, wanted, of_r1, of_r2 = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
        own, log_own, tie_only = np.empty(size), np.empty(size), np.empty(size)
        flat, x, curvature = np.empty(size), np.empty(size), np.zeros(size)
        log_rate1, log_rate2 = np.empty(size), np.empty(size)
        for start in range(starts):
            tie = ties[start]
            log_tie = _log(tie)
            for h in range(k):
                for e in range(h * _BATCH, (h + 1) * _BATCH):
                    own[e], log_own[e], tie_only[e] = precision[start, h], log_precision[start, h], tie
            for begin in range(0, n, _BATCH):
                for h in range(k):
                    for b in range(_BATCH):
                        i, e = min(begin + b, n - 1), h * _BATCH + b
                        of_mu[e], of_eps[e] = mu[start, h, i], eps[start, h, i]
                        of_s[e], of_d[e], of_r[e] = s[start, h, i], d[start, h, i], r[start, h, i]
                        known[e], wanted[e] = evidence[start, h, i], sums[start, h, i]
                        of_r1[e], of_r2[e] = log_r1[i], log_r2[i]
                for _ in range(rounds):
                    _log_sum_exp(of_mu, of_s, flat)
                    for e in range(size):
                        log_rate1[e] = of_r1[e] - flat[e] + 0.5 * of_s[e] - log_own[e]
                    if joint:
                        _log_sum_exp(of_eps, of_d, flat)
                        for e in range(size):
                            log_rate2[e] = of_r2[e] - flat[e] + 0.5 * of_d[e]
                        _settle_eps(of_eps, known, wanted, log_rate1, log_rate2, own, tie)
                    for e in range(size):
                        x[e] = (known[e] + tie * of_eps[e]) / own[e]
                    _means(x, log_rate1, of_mu)
                    _log_sum_exp(of_mu, of_s, flat)
                    for e in range(size):
                        log_rate1[e] = of_r1[e] - flat[e] + of_mu[e]
                        if joint:
                            curvature[e] = of_d[e] * tie * tie
                    _settle_variances(own, log_rate1, curvature, of_s)
                    if joint:
                        for e in range(size):
                            slope = of_s[e] * tie
                            of_s[e] = of_s[e] + slope * slope * of_d[e]
                            of_r[e] = slope * of_d[e]
                            curvature[e] = of_s[e] * tie * tie
                    else:
                        _log_sum_exp(of_eps, of_d, flat)
                        for e in range(size):
                            log_rate2[e] = of_r2[e] - flat[e] + 0.5 * of_d[e] - log_tie
                            x[e] = of_mu[e] + wanted[e] / tie
                        _means(x, log_rate2, of_eps)
                    _log_sum_exp(of_eps, of_d, flat)
                    for e in range(size):
                        log_rate2[e] = of_r2[e] - flat[e] + of_eps[e]
                    _settle_variances(tie_only, log_rate2, curvature, of_d)
                    if joint:
                        for e in range(size):
                            slope = of_d[e] * tie
                            of_d[e] = of_d[e] + slope * slope * of_s[e]
                            of_r[e] = slope * of_s[e]
                for h in range(k):
                    for b in range(min(_BATCH, n - begin)):
                        i, e = begin + b, h * _BATCH + b
                        mu[start, h, i], eps[start, h, i] = of_mu[e], of_eps[e]
                        s[start, h, i], d[start, h, i], r[start, h, i] = of_s[e], of_d[e], of_r[e]
