"""What a site of a bce job computes, with numpy, written from docs/site-computation.md. Imports nothing of ce."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from keys_and_masks import Array, CannotGoOn, joined, require

HOLD, NEWTON = 8, 3  # iterations with alpha held at least, then with Newton's method
Shape = tuple[int, ...]
lgamma = np.vectorize(math.lgamma, otypes=[float])


def psi(x: Array) -> Array:
    total, x = np.zeros_like(x), x.copy()
    while (low := x < 10).any():
        total[low] -= 1 / x[low]
        x[low] += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132 - y * 691 / 32760)))))
    return total + np.log(x) - 0.5 / x - series


def trigamma(x: Array) -> Array:
    total, x = np.zeros_like(x), x.copy()
    while (low := x < 10).any():
        total[low] += 1 / x[low] ** 2
        x[low] += 1
    y = 1 / (x * x)
    series = y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * (5 / 66 - y * 691 / 2730)))))
    return total + 1 / x + y / 2 + series / x


def log_beta(values: Array) -> Array:
    """ln B over the first axis."""
    return np.asarray(lgamma(values).sum(axis=0) - lgamma(values.sum(axis=0)))


# "Words: how reals become integers".


def for_sum(terms: float, limit: float) -> int:
    return 62 - math.ceil(math.log2(max(terms * limit, 1)))


def words_of(values: Array, bits: int, limit: float) -> Array:
    require(bool((np.abs(values) <= limit).all()), "a term is larger than the limit of its sum, or not a number")
    return np.asarray(np.rint(np.ldexp(values, bits)), np.int64)


def reals_of(words: Array, bits: int) -> Array:
    return np.asarray(np.ldexp(words.astype(float), -bits))


def drawn(key: bytes, start: int, column: str, tokens: Iterable[bytes], k: int) -> Array:
    """Starting parameters of a column, (k, categories)."""
    entries = []
    for token in tokens:
        material = joined(b"ce start", key, str(start).encode(), column.encode(), f"str {token.hex()}".encode())
        words = np.frombuffer(hashlib.shake_256(material).digest(8 * k), "<u8")
        entries.append(-np.log(((words >> np.uint64(11)).astype(float) + 0.5) * 2.0**-53))
    rows = np.array(entries).T
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Clustering:
    """A clustering of this site: labels are positions among the tokens of all holders, -1 where missing."""

    index: int
    name: str
    holders: tuple[str, ...]
    tokens: tuple[bytes, ...]
    labels: Array
    start_key: bytes

    @property
    def shared(self) -> bool:
        return len(self.holders) > 1


@dataclass
class Start:
    """The state of one start."""

    alpha: Array  # (k)
    learning: float  # how many iterations have learnt alpha; 0: it is held
    beta: dict[int, Array]  # by column, (k, categories)
    g: Array  # (k, private objects)
    entered: dict[int, Array] = field(default_factory=dict)  # beta when the last iteration was entered
    object_sums: Array | None = None  # words, (k, private objects), of the last cell pass
    used: Array | None = None  # the object sums that the last object step used
    column_sums: dict[int, Array] = field(default_factory=dict)  # words, by column, of the last cell pass
    moved: int = 0


class Bce:
    """Tasks in, words without masks out. Objects are positions in the enrolled order."""

    def __init__(
        self, site: str, job: dict[str, Any], sizes: Any, columns: list[Clustering], blocks: dict[int, Any], n: int
    ) -> None:
        """`blocks`: members and rows by number."""
        self.site, self.columns, self.n = site, columns, n
        self.k, self.starts_at_first = job["clusters"], list(range(job["restarts"]))
        self.s, self.loops, self.joint = job["smoothing"], job["local_loops"], job["schedule"] == "joint"
        self.members = {b: members for b, (members, _) in blocks.items()}
        self.shared = {b: rows for b, (members, rows) in sorted(blocks.items()) if len(members) > 1}
        self.counts = self._count(columns)
        alone = [rows for members, rows in blocks.values() if len(members) == 1]
        mine = np.concatenate([np.zeros(0, np.int64), *alone])
        self.private = mine[self.counts[mine] > 0]
        self.groups: dict[int, list[Clustering]] = {}
        firsts: dict[tuple[str, ...], int] = {}
        for column in sorted(columns, key=lambda c: c.index):
            if column.shared:
                self.groups.setdefault(firsts.setdefault(column.holders, column.index), []).append(column)
        terms = sizes.objects * (2 * sizes.clusterings + 1) + self.k * sizes.categories * max(self.s, 1)
        self.per_object = sizes.clusterings + 1
        self.bits = {
            "sums": for_sum(max(sizes.objects, sizes.clusterings), 1),
            "bound": for_sum(terms, 1024),
            "mean_log": for_sum(sizes.objects, 132),
            "rise": for_sum(sizes.objects, 132),
            "fall": for_sum(sizes.objects, 132**2),
        }
        self.clusterings = sizes.clusterings
        self.running: dict[int, Start] = {}
        self.put_aside: dict[int, Start] = {}
        self.iteration = 0
        self.retries = 0

    def _count(self, columns: list[Clustering]) -> Array:
        """Labels of each object in these columns."""
        return np.asarray(sum((c.labels >= 0 for c in columns), np.zeros(self.n, np.int64)))

    # What a task must bring, and what it asks for.

    def expected(
        self, step: str, task: Any
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[tuple[int, ...], int]]]:
        """Arrays of the task (shapes), arrays of the answer (shapes and fraction bits)."""
        down: dict[str, tuple[int, ...]] = {}
        up: dict[str, tuple[tuple[int, ...], int]] = {}
        t, k = len(task.starts), self.k
        sizes = {b: len(rows) for b, rows in self.shared.items()}
        widths = {g: sum(len(c.tokens) for c in columns) for g, columns in self.groups.items()}
        if step == "open":
            up["global/objects"] = ((1,), 0)
            for b, size in sizes.items():
                up |= {f"block/{b}/{name}": ((size,), 0) for name in ("labels", "hidden")}
                up |= {f"block/{b}/claims/{c.index}": ((size,), 0) for c in self._claimed(b)}
        elif step == "counts":
            down |= {f"block/{b}/{name}": (size,) for b, size in sizes.items() for name in ("labels", "hidden")}
        elif step == "sums":
            down |= {"global/alpha": (t, k), "global/learning": (t,)}
            down |= {f"block/{b}/message": (t, k, size) for b, size in sizes.items()}
            if task.iteration > 1:
                down |= {f"columns/{g}/beta": (t, k, width) for g, width in widths.items()}
            up |= {f"block/{b}/sums": ((t, k, size), self.bits["sums"]) for b, size in sizes.items()}
            up |= {f"columns/{g}/sums": ((t, k, width), self.bits["sums"]) for g, width in widths.items()}
            up |= {"global/bound": ((t,), self.bits["bound"]), "global/moved": ((t,), 0)}
            up |= {f"global/{name}": ((t, w), self.bits[name]) for name, w in self._shares_of(task.iteration).items()}
        elif step == "finish":
            down |= {"global/alpha": (1, k), "global/learning": (1,)}
            down |= {f"block/{b}/memberships": (k, size) for b, size in sizes.items()}
            down |= {f"block/{b}/labelled": (1, size) for b, size in sizes.items()}
            up["global/sizes"] = ((k,), 0)
        return down, up

    def _claimed(self, block: int) -> list[Clustering]:
        return [c for c in self.columns if len(set(c.holders) & set(self.members[block])) > 1]

    def _shares_of(self, iteration: int) -> dict[str, int]:
        if iteration <= HOLD:
            return {}
        return {"mean_log": self.k} | ({"rise": self.k + 1, "fall": self.k + 1} if self.joint else {})

    def answer(self, step: str, task: Any, sent: dict[str, Array]) -> dict[str, Array]:
        if step == "open":
            return self._open()
        if step == "counts":
            return self._check_counts(sent)
        if step == "sums":
            return self._iterate(task, sent)
        return self._finish(task)

    # "Before the first iteration".

    def _open(self) -> dict[str, Array]:
        hidden = sum((c.labels >= 0).astype(np.int64) for c in self.columns if not c.shared) + np.zeros(
            self.n, np.int64
        )
        found = {"global/objects": np.array([len(self.private)])}
        for b, rows in self.shared.items():
            found |= {f"block/{b}/labels": self.counts[rows], f"block/{b}/hidden": hidden[rows]}
            for c in self._claimed(b):
                found[f"block/{b}/claims/{c.index}"] = (c.labels[rows] >= 0).astype(np.int64)
        return found

    def _check_counts(self, sent: dict[str, Array]) -> dict[str, Array]:
        own = self._open()
        for b in self.shared:
            labels, hidden = sent[f"block/{b}/labels"], sent[f"block/{b}/hidden"]
            for name, total in (("labels", labels), ("hidden", hidden)):
                fits = (total == np.rint(total)) & (total >= own[f"block/{b}/{name}"])
                require(bool(fits.all()), f"block/{b}/{name}: not the counts of this site and others")
            require(
                bool((labels <= self.clusterings).all() and (hidden <= labels).all()), f"block/{b}: too many labels"
            )
        return {}

    # "Iteration".

    def _iterate(self, task: Any, sent: dict[str, Array]) -> dict[str, Array]:
        if task.iteration == 1:
            self.running = {t: self._begin(t, at, sent) for at, t in enumerate(task.starts)}
        else:
            self._stop(task.stop)
            self.retries += len(task.retry)
            allowed = self.joint and self.iteration > HOLD + NEWTON
            require(allowed or not task.retry, f"retry: expected none after iteration {self.iteration}")
            for at, t in enumerate(task.starts):
                self._adopt(self.running[t], t in task.retry, at, sent)
        self.iteration = task.iteration
        answers = [self._contribute(self.running[t], at, sent) for at, t in enumerate(task.starts)]
        return {name: np.stack([answer[name] for answer in answers]) for name in answers[0]}

    def _begin(self, start: int, at: int, sent: dict[str, Array]) -> Start:
        alpha = sent["global/alpha"][at]
        beta = {c.index: drawn(c.start_key, start, c.name, c.tokens, self.k) for c in self.columns}
        g = alpha[:, None] + self.counts[self.private] / self.k
        return Start(alpha, float(sent["global/learning"][at]), beta, g, entered=beta)

    def _adopt(self, start: Start, retry: bool, at: int, sent: dict[str, Array]) -> None:
        """Steps 2 to 5: columns, globals, private objects."""
        if retry:
            start.beta = dict(start.entered)
        else:
            start.used = start.object_sums
            for g, columns in self.groups.items():
                splits = np.cumsum([len(c.tokens) for c in columns])[:-1]
                for c, new in zip(columns, np.split(sent[f"columns/{g}/beta"][at], splits, axis=1), strict=True):
                    self._replace(start, c, new)
            self._step_columns(start)
        start.entered = dict(start.beta)
        start.alpha, start.learning = sent["global/alpha"][at], float(sent["global/learning"][at])
        if start.used is None:
            raise CannotGoOn("retry: no object step came before")
        before = start.g
        start.g = start.alpha[:, None] + reals_of(start.used, self.bits["sums"])
        start.moved = int((start.g.argmax(axis=0) != before.argmax(axis=0)).sum())

    @staticmethod
    def _replace(start: Start, column: Clustering, new: Array) -> None:
        """A row of zeros means that the row keeps its present value."""
        start.beta[column.index] = np.where(new.any(axis=1, keepdims=True), new, start.beta[column.index])

    def _step_columns(self, start: Start) -> None:
        """The column step of columns with one holder."""
        for c in self.columns:
            if not c.shared:
                sums, bits = start.column_sums[c.index], self.bits["sums"]
                total = reals_of(sums.sum(axis=1, keepdims=True), bits) + self.s * len(c.tokens)
                counts = reals_of(sums, bits) + self.s
                self._replace(start, c, np.divide(counts, total, out=np.zeros_like(counts), where=total > 0))

    def _contribute(self, start: Start, at: int, sent: dict[str, Array]) -> dict[str, Array]:
        """Steps 6 to 10."""
        logs = psi(start.g) - psi(start.g.sum(axis=0))
        top = logs.max(axis=0, initial=-np.inf)
        messages = np.ones((self.k, self.n))
        messages[:, self.private] = np.exp(logs - top)
        for b, rows in self.shared.items():
            message = sent[f"block/{b}/message"][at]
            require(bool(((message >= 0) & (message <= 1)).all()), f"block/{b}/message: not within 0 and 1")
            messages[:, rows] = message
        start.beta = dict(start.beta)
        for _ in range(self.loops - 1):
            self._pass(start, messages)
            self._step_columns(start)
        bound, bits = 0, self.bits["bound"]
        for c in self.columns:
            if c.holders[0] == self.site and self.s > 0:
                terms = self.s * np.log(start.beta[c.index])
                bound += int(words_of(terms, bits, 1024 * max(self.s, 1)).sum())
        sums, cells = self._pass(start, messages)
        start.object_sums = sums[:, self.private]
        labels, alpha = self.counts[self.private], start.alpha[:, None]
        own = log_beta(start.g) - log_beta(alpha) + ((alpha - start.g) * logs).sum(axis=0) + labels * top
        bound += cells + int(words_of(own, bits, 1024 * self.per_object).sum())
        found = {"global/bound": np.array(bound), "global/moved": np.array(start.moved)}
        shares = self._shares_of(self.iteration)
        found |= {f"global/{name}": np.zeros(width, np.int64) for name, width in shares.items()}
        require(bool(shares) or start.learning <= 0, f"global/learning: expected 0 in iteration {self.iteration}")
        if start.learning > 0 and not (self.joint and start.learning > NEWTON):
            found["global/mean_log"] = words_of(logs, self.bits["mean_log"], 132).sum(axis=1)
        elif start.learning > 0:
            a = np.vstack([alpha, alpha.sum(axis=0)])
            new = a + np.vstack([reals_of(start.object_sums, self.bits["sums"]), labels])
            found["global/rise"] = words_of(psi(new) - psi(a), self.bits["rise"], 132).sum(axis=1)
            found["global/fall"] = words_of(trigamma(a) - trigamma(new), self.bits["fall"], 132**2).sum(axis=1)
        found |= {f"block/{b}/sums": sums[:, rows] for b, rows in self.shared.items()}
        for g, columns in self.groups.items():
            found[f"columns/{g}/sums"] = np.hstack([start.column_sums[c.index] for c in columns])
        return found

    def _pass(self, start: Start, messages: Array) -> tuple[Array, int]:
        """The cell pass: object sums, column sums (kept with the start), the cells' part of the bound."""
        sums, bound = np.zeros((self.k, self.n), np.int64), 0
        for c in self.columns:
            has = np.flatnonzero(c.labels >= 0)
            x = c.labels[has]
            joint = messages[:, has] * start.beta[c.index][:, x]
            z = joint.sum(axis=0)
            require(bool((z > 0).all()), "a label that no cluster can produce")
            phi = words_of(joint / z, self.bits["sums"], 1)
            sums[:, has] += phi
            counts = np.zeros((len(c.tokens), self.k), np.int64)
            np.add.at(counts, x, phi.T)
            start.column_sums[c.index] = counts.T
            bound += int(words_of(np.log(z), self.bits["bound"], 1024).sum())
        return sums, bound

    # "Stops, stages and the end".

    def _stop(self, starts: Iterable[int]) -> None:
        for t in starts:
            self.put_aside[t] = self.running.pop(t)

    def _finish(self, task: Any) -> dict[str, Array]:
        self._stop(task.stop)
        winner = self.put_aside[task.starts[0]]
        return {"global/sizes": np.bincount(winner.g.argmax(axis=0), minlength=self.k)}

    def memberships(self, task: Any, sent: dict[str, Array]) -> tuple[Array, Array]:
        """After FINISH: memberships (objects, k), and which objects have a label anywhere."""
        alpha, winner = sent["global/alpha"][0], self.put_aside[task.starts[0]]
        found = np.tile(alpha / alpha.sum(), (self.n, 1))
        labelled = np.zeros(self.n, bool)
        found[self.private] = (winner.g / winner.g.sum(axis=0)).T
        labelled[self.private] = True
        for b, rows in self.shared.items():
            has = sent[f"block/{b}/labelled"][0] != 0
            found[rows[has]] = sent[f"block/{b}/memberships"].T[has]
            labelled[rows] = has
        return found, labelled
