"""Reset, isolate, probe: crafted messages that read every label of columns that one site alone holds.

The coordinator of a `masked` job changes the messages of a shared block, alike for all sites, so that masks cancel. It
is sent neither parameters nor sums of columns with one holder, and needs none. Of the k clusters the last is a dump,
and the one before it the reference.

    isolate   one-hot messages put one object, or two, into a cluster of their own, nothing into the reference, and all
              others into the dump; changed globals put private objects there. The sites' column step makes beta of
              that cluster (1 + s) / (1 + s k_c) at the object's labels, s / (1 + s k_c) elsewhere, and beta of the
              reference 1 / k_c
    probe     all objects are shared out between a cluster and the reference. Each label adds one of two known numbers
              to an object's total, which so says in how many columns it agrees with the isolated object
    reset     the next isolation begins anew, because one-hot messages leave no trace of beta

Two objects that agree in one column only, isolated together, give a third number where a label is that of both: the
objects that have it are those with one label of one column, an indicator. Indicators of one column do not overlap,
those of different columns do, which shows what belongs together.

An isolation takes two exchanges, for all starts at once. The attack needs three clusters, and objects without a missing
label. This is an active attack; in `blind` the coordinator sends no messages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ce.audit.adversary_views import Guess, Guesses, Question, scale_of
from ce.audit.attacks.crafted_messages import AttackOver, dumped_private_objects, flat_beta, messages_of
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.messages.transport import Transport
from ce.protocol.topology.topology import Topology
from ce.ring import Reals, Words, decode
from ce.steps.model import Model

#: The attack ends after this many exchanges.
MOST_EXCHANGES = 100
FEWEST_CLUSTERS = 3
#: Clusters that are probed at once, which disturb each other little because each gets a small part of the objects.
_MOST_ISOLATED = 10
_EVEN, _SMALL = 1.0, 3e-9
#: How far a total is from the number that it stands for, relative to the part that a cluster gets.
_SAME_EVEN, _SAME_SMALL = 1e-9, 2e-5
#: Larger than any total: the number of an object's labels is looked up together with its total.
_PER_LABEL = 1000.0
#: With more possible totals than this there is no look-up.
_MOST_TOTALS = 400_000
#: Pairs of objects that show which indicators belong together: how many at most, differing in how many labels.
_MOST_PAIRS, _MOST_SWITCHED = 20_000, 3

Mask = NDArray[np.bool_]
Counts = NDArray[np.intp]
Script = Generator[Reals, Reals, None]


@dataclass(frozen=True)
class Indicator:
    """The objects with one label of one column, which has so many labels."""

    members: Mask
    width: int

    def has(self, *objects: int) -> bool:
        return bool(self.members[list(objects)].all())


class ResetAndProbe:
    """A transport whose coordinator isolates and probes objects of one block. Raises AttackOver at the end."""

    def __init__(self, inner: Transport, block: int, topology: Topology, model: Model, smoothing: float) -> None:
        self._inner = inner
        self._block = block
        self._scale = scale_of(model, topology, 0, "objects")
        self._shape = (model.n_starts, model.k, topology.blocks[block].size)
        self._widths = {
            column.index: len(column.categories)
            for column in topology.clusterings
            if not column.shared and column.holders[0] in topology.blocks[block].members
        }
        self._smoothing = smoothing
        self._counted: dict[str, Words] = {}
        self._search: Search | None = None
        self._script: Script | None = None
        self._message: Reals | None = None
        self.bytes_sent = 0

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        crafted = {site: replace(task, arrays={**task.arrays, **self._craft(task)}) for site, task in tasks.items()}
        totals: dict[str, Words] = {}
        for site, answer in self._inner.exchange(crafted):
            for name, words in answer.arrays.items():
                if ArrayName(name).scope == ArrayName.of_block(self._block, "sums").scope:
                    totals[name] = totals.get(name, 0) + words.astype(np.int64)
            yield site, answer
        self.bytes_sent = self._inner.bytes_sent
        self._read(next(iter(tasks.values())), totals)

    def _craft(self, task: Task) -> dict[str, Array]:
        if task.step != "sums" or self._message is None:
            return {}
        crafted: dict[str, Array] = {**dumped_private_objects(task), **flat_beta(task)}
        for name, array in messages_of(task).items():
            mine = name == ArrayName.of_block(self._block, "message")
            crafted[name] = self._message if mine else _dumped(array.shape)
        return crafted

    def _read(self, task: Task, totals: Mapping[str, Words]) -> None:
        """The totals of an exchange decide what is sent in the next one."""
        if task.step == "open":
            self._counted = {what: totals[ArrayName.of_block(self._block, what)] for what in ("labels", "hidden")}
        elif task.step == "counts":
            hidden = self._counted["hidden"].astype(np.intp)
            shared = (self._counted["labels"] - self._counted["hidden"]).astype(np.float64)
            self._search = Search(self._shape, list(self._widths.values()), self._smoothing, hidden, shared)
            self._script = self._search.script()
            self._message = next(self._script)
        elif task.step == "sums" and self._script is not None:
            try:
                total = decode(totals[ArrayName.of_block(self._block, "sums")], self._scale)
                self._message = self._script.send(total)
            except StopIteration:
                raise AttackOver from None

    def guesses(self, questions: Sequence[Question]) -> Guesses:
        """The partitions that were found: for each column those with as many labels, since none has a name."""
        if self._search is None:
            return {}
        indicators = self._search.indicators
        columns = {width: joined_columns(indicators, width) for width in set(self._widths.values())}
        asked = [q for q in questions if q.block == self._block and q.column in self._widths]
        return {question: columns[self._widths[question.column]] for question in asked}

    @property
    def exchanges(self) -> int:
        """Exchanges of sums until the attack ended."""
        return 0 if self._search is None else self._search.exchanges


class Search:
    """What the coordinator knows, and which objects it isolates next."""

    def __init__(
        self, shape: tuple[int, int, int], widths: Sequence[int], smoothing: float, hidden: Counts, shared: Reals
    ) -> None:
        """`hidden` and `shared`: how many labels each object has in columns of one holder, and in shared ones."""
        self._starts, self._k, self._n = shape
        self._totals = Totals(widths, smoothing)
        self._hidden, self._shared = hidden, shared
        self._complete = hidden == hidden.max(initial=0)
        #: By isolated object, (n, widths): in how many columns others agree with it; -1: not known.
        self._agreeing: dict[int, Counts] = {}
        self._tried: set[tuple[int, int]] = set()
        self.indicators: list[Indicator] = []
        self.exchanges = 0

    def script(self) -> Script:
        """Messages to send, one after the other; each is answered by the totals that follow."""
        yield self._dump()
        if self._k < FEWEST_CLUSTERS or not self._totals.searchable:
            return
        while self.exchanges + 2 <= MOST_EXCHANGES:
            pairs = self._pairs()
            if pairs:
                yield from self._probe_pairs(pairs)
                continue
            single = self._next_single()
            if not len(single):
                return
            yield from self._probe_single(single)

    def _dump(self) -> Reals:
        self.exchanges += 1
        return _dumped((self._starts, self._k, self._n))

    def _isolated(self, groups: Mapping[tuple[int, int], Sequence[int]]) -> Reals:
        """(start, cluster) -> the objects that are alone there."""
        message = self._dump()
        for (start, cluster), objects in groups.items():
            message[start][:, list(objects)] = 0.0
            message[start, cluster, list(objects)] = 1.0
        return message

    def _probing(self, clusters: int, part: float) -> Reals:
        self.exchanges += 1
        message = np.zeros((self._starts, self._k, self._n))
        message[:, :clusters] = part
        message[:, self._k - 2] = 1.0
        return message

    def _probe_single(self, objects: Counts) -> Script:
        """In how many columns the others agree with each of these objects."""
        each = self._isolated_at_once
        places = {(at // each, at % each): int(o) for at, o in enumerate(objects)}
        yield self._isolated({place: [o] for place, o in places.items()})
        total = yield self._probing(each, _SMALL)
        of_shared = self._shared * _SMALL / (1.0 + each * _SMALL)
        table = self._totals.single(_SMALL)
        for (start, cluster), o in places.items():
            seen = (total[start, cluster] - of_shared) / _SMALL
            self._agreeing[o] = table.look_up(seen, self._hidden, _SAME_SMALL)

    def _probe_pairs(self, pairs: Sequence[tuple[int, int]]) -> Script:
        """The objects with the one label of which the two objects of a pair have no indicator in common yet."""
        yield self._isolated({(start, 0): pair for start, pair in enumerate(pairs)})
        total = yield self._probing(1, _EVEN)
        of_shared = self._shared * _EVEN / (1.0 + _EVEN)
        for start, (o, other) in enumerate(pairs):
            self._tried |= {(o, other), (other, o)}
            agreeing = self._agreeing[o][other]
            missing = np.flatnonzero(agreeing - self._known(o)[other])
            if len(missing) != 1:  # another pair of this exchange has shown it
                continue
            at = int(missing[0])
            both = self._totals.pair(_EVEN, tuple(agreeing.tolist())).look_up(
                total[start, 0] - of_shared, self._hidden, _SAME_EVEN
            )
            width = self._totals.widths[at]
            explained = sum(
                (i.members.astype(np.intp) for i in self.indicators if i.has(o, other) and i.width == width),
                np.zeros(self._n, np.intp),
            )
            members = both[:, at] - explained == 1
            known = any(i.width == width and (i.members == members).all() for i in self.indicators)
            if members[o] and members[other] and not known:
                self.indicators.append(Indicator(members, width))

    @property
    def _isolated_at_once(self) -> int:
        return min(self._k - 2, _MOST_ISOLATED)

    def _known(self, o: int) -> Counts:
        """(n, widths) how many known indicators each object has in common with one."""
        known = np.zeros((self._n, len(self._totals.widths)), dtype=np.intp)
        for indicator in self.indicators:
            if indicator.members[o]:
                known[indicator.members, self._totals.widths.index(indicator.width)] += 1
        return known

    def _pairs(self) -> list[tuple[int, int]]:
        """For each start two objects that agree in one column more than is known; those that agree least come first."""
        found: list[tuple[int, int, int]] = []
        for o, agreeing in self._agreeing.items():
            rest = agreeing - self._known(o)
            useful = (rest.sum(axis=1) == 1) & (rest.min(axis=1) >= 0) & (agreeing[:, 0] >= 0) & self._complete
            order = np.argsort(agreeing.sum(axis=1), kind="stable")
            for other in order[useful[order]].tolist():
                few = self._totals.few(tuple(agreeing[other].tolist()))
                if (o, other) not in self._tried and other != o and few:
                    found.append((int(agreeing[other].sum()), o, other))
                    break
        return [(o, other) for _, o, other in sorted(found)[: self._starts]]

    def _next_single(self) -> Counts:
        """Complete objects with most labels of which no indicator is known, and not isolated before."""
        unknown = self._hidden - sum((i.members.astype(np.intp) for i in self.indicators), np.zeros(self._n, np.intp))
        open_ = self._complete & (unknown > 0)
        open_[list(self._agreeing)] = False
        order = np.argsort(-unknown, kind="stable")
        chosen: Counts = order[open_[order]][: self._starts * self._isolated_at_once]
        return chosen


@dataclass(frozen=True)
class _Table:
    """Possible totals, each with its number of labels, in ascending order, and what they stand for."""

    keys: Reals
    agreeing: Counts  # (totals, widths): labels that are those of the isolated object, or of both

    def look_up(self, totals: Reals, labels: Counts, same: float) -> Counts:
        """(objects, widths) `agreeing`; -1 where no possible total is as close as `same`."""
        wanted = totals + _PER_LABEL * labels
        after = np.clip(np.searchsorted(self.keys, wanted), 1, len(self.keys) - 1)
        nearest = np.where(wanted - self.keys[after - 1] < self.keys[after] - wanted, after - 1, after)
        close = np.abs(self.keys[nearest] - wanted) <= same
        found: Counts = np.where(close[:, None], self.agreeing[nearest], -1)
        return found


class Totals:
    """The totals that are possible when an object is probed, given how many labels the columns have."""

    def __init__(self, widths: Sequence[int], smoothing: float) -> None:
        self.widths = sorted(set(widths))
        self._columns = [list(widths).count(width) for width in self.widths]
        self._smoothing = smoothing
        self._known: dict[tuple[float, tuple[int, ...]], _Table] = {}

    @property
    def searchable(self) -> bool:
        return bool(self.widths) and self.few((0,) * len(self.widths))

    def few(self, agreeing: tuple[int, ...]) -> bool:
        """Whether there are few enough possible totals for a pair that agrees in so many columns of each width."""
        sizes = [len(_numbers(columns, both)) for columns, both in zip(self._columns, agreeing, strict=True)]
        return float(np.prod(sizes, dtype=float)) <= _MOST_TOTALS

    def single(self, part: float) -> _Table:
        """One isolated object, whose cluster gets this part."""
        return self._table(part, ())

    def pair(self, part: float, agreeing: tuple[int, ...]) -> _Table:
        """Two isolated objects that agree in so many columns of each width."""
        return self._table(part, agreeing)

    def _table(self, part: float, agreeing: tuple[int, ...]) -> _Table:
        if (part, agreeing) not in self._known:
            keys, found = np.zeros(1), np.zeros((1, 0), np.intp)
            for at, (width, columns) in enumerate(zip(self.widths, self._columns, strict=True)):
                numbers = _numbers(columns, agreeing[at] if agreeing else 0)
                isolated, unit = (2, 1.0) if agreeing else (1, part)
                terms = np.array([self._term(width, many, isolated, part) / unit for many in (2, 1, 0)])
                more = numbers @ terms + _PER_LABEL * numbers.sum(axis=1)
                counted = numbers[:, 0 if agreeing else 1]
                found = np.column_stack([np.repeat(found, len(more), axis=0), np.tile(counted, len(keys))])
                keys = (keys[:, None] + more).reshape(-1)
            order = np.argsort(keys, kind="stable")
            self._known[part, agreeing] = _Table(keys[order], found[order])
        return self._known[part, agreeing]

    def _term(self, width: int, agreeing: int, isolated: int, part: float) -> float:
        """What a label adds to its cluster's sum if so many of the isolated objects have it."""
        beta = (agreeing + self._smoothing) / (isolated + self._smoothing * width)
        joint = part * width * beta
        return joint / (1.0 + joint)


@lru_cache(maxsize=256)
def _numbers(columns: int, most_both: int) -> Counts:
    """(possibilities, 3): in how many of these columns a label is that of both, of one and of none of the objects."""
    found = [
        (both, one, none)
        for both in range(most_both + 1)
        for one in range(columns + 1 - both)
        for none in range(columns + 1 - both - one)
    ]
    return np.array(found, dtype=np.intp)


def joined_columns(indicators: Sequence[Indicator], width: int) -> list[Guess]:
    """Partitions out of indicators. Two indicators that overlap are of two columns; where two objects differ in few
    indicators, each that the one has is of the same column as one that the other has."""
    masks = np.array([i.members for i in indicators if i.width == width])
    if not len(masks):
        return []
    weights = _switched(masks)
    overlap = (masks.astype(np.intp) @ masks.T.astype(np.intp)) > 0
    column_of = np.arange(len(masks))
    order = np.argsort(-weights, axis=None, kind="stable")
    for one, other in np.column_stack(np.unravel_index(order, weights.shape)):
        if one < other and weights[one, other] > 0:
            mine, its = column_of == column_of[one], column_of == column_of[other]
            if not overlap[np.ix_(mine, its)].any():
                column_of[its] = column_of[one]
    found: list[Guess] = []
    for column in np.unique(column_of):
        guess = np.full(masks.shape[1], -1, dtype=np.intp)
        for label in np.flatnonzero(column_of == column):
            guess[masks[label]] = label
        found.append(guess)
    return found


def _switched(masks: NDArray[np.bool_]) -> Reals:
    """(indicators, indicators) how often one takes the place of the other between two objects, divided by the square
    of how many take the place of each other there."""
    rows = masks.T.astype(np.float64)
    common = rows @ rows.T
    sizes = rows.sum(axis=1)
    weights: Reals = np.zeros((len(masks), len(masks)))
    for switched in range(1, _MOST_SWITCHED + 1):
        alike = (common == sizes[:, None] - switched) & (common == sizes[None, :] - switched)
        one, other = np.nonzero(np.triu(alike))
        one, other = one[:_MOST_PAIRS], other[:_MOST_PAIRS]
        gone, come = rows[one] * (1 - rows[other]), rows[other] * (1 - rows[one])
        both = gone.T @ come / switched**2
        weights += both + both.T
    return weights


def _dumped(shape: tuple[int, ...]) -> Reals:
    """All objects in the last cluster."""
    message = np.zeros(shape)
    message[:, -1] = 1.0
    return message
