"""Pattern counts: crafted parameters make column sums count the objects that have given labels in several columns.

The coordinator of a `masked` job changes globals and the beta of shared columns, alike for all holders. It needs no
shared object. Three exchanges count one pattern (x_1 = r_1, ..., x_m = r_m) in each start:

    reset   all objects go into the last cluster
    mark    a label of the pattern goes into the cluster "match", another label of its columns into "mismatch", all
            other labels stay: an object's sums now say how often it matches, and how often not
    read    beta is the same for all labels, but 10^30 times smaller for "match": only an object without a mismatch,
            whose "mismatch" has the weight exp(psi(0.01)), is counted there

The column sums of "match" then count the objects with the pattern by their labels in every other column, so that
patterns grow column by column, until they are whole label rows. What leaves are still sums over all objects of all
holders: the attack finds how many objects of all sites together have which labels, and not at which site, or which
object. `masked` does not hide that from a coordinator that deviates; in `blind` it sends no parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ce.audit.adversary_views import Row, scale_of
from ce.audit.attacks.crafted_messages import AttackOver
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.messages.transport import Transport
from ce.protocol.topology.site_view import ColumnGroup
from ce.protocol.topology.topology import Topology
from ce.ring import Reals, Words, decode
from ce.steps.model import Model

#: The attack ends after this many exchanges.
MOST_EXCHANGES = 300
FEWEST_CLUSTERS = 3
_MISMATCH, _MATCH = 0, 1
#: alpha of a cluster that nothing, and of one that everything, goes into; the range that a model learns it in.
_EMPTY, _FULL = 0.01, 1e4
#: beta that keeps a label out of a cluster, whatever the messages; and that of "match" when it is read.
_NEVER, _READ = 1e-200, 1e-30

#: Patterns by column of the group: None where the pattern says nothing.
Pattern = tuple[int | None, ...]
Found = dict[Pattern, int]
Sent = tuple[Reals, Reals]  # alpha (starts, k) and beta (starts, k, categories) of the group
Script = Generator[Sent, Reals, None]


class PatternCounts:
    """A transport whose coordinator counts patterns in one group of shared columns. Raises AttackOver at the end."""

    def __init__(self, inner: Transport, group: ColumnGroup, topology: Topology, model: Model) -> None:
        self._inner = inner
        self._group = group
        self._starts, self._k = model.n_starts, model.k
        self._scale = scale_of(model, topology, 0, "columns")
        self.counted: Found = {}  # how many objects have a pattern
        self.exchanges = 0
        self.bytes_sent = 0
        self._script: Script = self._search()
        self._sent: Sent = next(self._script)

    def rows(self) -> Counter[Row]:
        """Whole label rows of the group, and how many objects of all holders have each."""
        return Counter({tuple(-1 if r is None else r for r in p): n for p, n in self.counted.items() if None not in p})

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        crafted = {site: replace(task, arrays={**task.arrays, **self._craft(task)}) for site, task in tasks.items()}
        total: Words | None = None
        for site, answer in self._inner.exchange(crafted):
            words = answer.arrays.get(ArrayName.of_columns(self._group.index, "sums"))
            if words is not None:
                total = words.astype(np.int64) if total is None else total + words.astype(np.int64)
            yield site, answer
        self.bytes_sent = self._inner.bytes_sent
        if next(iter(tasks.values())).step == "sums" and total is not None:
            self.exchanges += 1
            try:
                self._sent = self._script.send(decode(total, self._scale))
            except StopIteration:
                raise AttackOver from None

    def _craft(self, task: Task) -> dict[str, Array]:
        if task.step != "sums":
            return {}
        alpha, beta = self._sent
        crafted: dict[str, Array] = {}
        for name, array in task.arrays.items():
            match ArrayName(name).what:
                case "alpha":
                    crafted[name] = alpha
                case "beta":
                    mine = ArrayName(name).number == self._group.index
                    crafted[name] = beta if mine else _only_last(array.shape)
                case "message":
                    crafted[name] = _in_last(array.shape)
        return crafted

    # What is sent, one exchange after the other.

    def _search(self) -> Script:
        """Begin with the labels of the first column; a pattern that an object has is extended by the next column."""
        yield self._reset()
        seen = yield self._reset()
        waiting: list[Pattern] = []
        nothing: Pattern = (None,) * len(self._group.columns)
        where = self._group.slices[self._group.columns[0].index]
        for label, count in enumerate(_counts(seen[0, :, where].sum(axis=0))):
            self._add(_with(nothing, 0, label), count, waiting)
        while waiting and self.exchanges + 3 <= MOST_EXCHANGES:
            patterns = [waiting.pop() for _ in range(min(self._starts, len(waiting)))]
            yield self._mark(patterns)
            read = yield self._read()
            yield self._reset()
            for start, pattern in enumerate(patterns):
                after = pattern.index(None)
                where = self._group.slices[self._group.columns[after].index]
                for label, count in enumerate(_counts(read[start, _MATCH, where])):
                    self._add(_with(pattern, after, label), count, waiting)

    def _add(self, pattern: Pattern, count: int, waiting: list[Pattern]) -> None:
        if count > 0:
            self.counted[pattern] = count
            if None in pattern:
                waiting.append(pattern)
                waiting.sort(key=lambda p: -self.counted[p])  # rare patterns, which are next, soon end in a row

    def _reset(self) -> Sent:
        alpha = np.full((self._starts, self._k), _EMPTY)
        alpha[:, -1] = _FULL
        return alpha, np.ones(self._shape)

    def _mark(self, patterns: Sequence[Pattern]) -> Sent:
        alpha, beta = self._reset()
        beta[:, :-1] = _NEVER
        for start, pattern in enumerate(patterns):
            for column, label in zip(self._group.columns, pattern, strict=True):
                if label is not None:
                    where = self._group.slices[column.index]
                    beta[start, :, where] = _NEVER
                    beta[start, _MISMATCH, where] = 1.0
                    beta[start, _MISMATCH, where.start + label] = _NEVER
                    beta[start, _MATCH, where.start + label] = 1.0
        return alpha, beta

    def _read(self) -> Sent:
        beta = np.full(self._shape, _NEVER)
        beta[:, _MISMATCH] = 1.0
        beta[:, _MATCH] = _READ
        return np.full((self._starts, self._k), _EMPTY), beta

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self._starts, self._k, self._group.width


def _with(pattern: Pattern, at: int, label: int) -> Pattern:
    return (*pattern[:at], label, *pattern[at + 1 :])


def _counts(sums: Reals) -> list[int]:
    whole: list[int] = np.rint(sums).astype(np.intp).tolist()
    return whole


def _in_last(shape: tuple[int, ...]) -> Reals:
    """Messages that put all objects into the last cluster."""
    message = np.zeros(shape)
    message[:, -1] = 1.0
    return message


def _only_last(shape: tuple[int, ...]) -> Reals:
    """Parameters with which every label goes into the last cluster."""
    beta = np.full(shape, _NEVER)
    beta[:, -1] = 1.0
    return beta
