"""The engine at a site: the cell step on its labels, the object step of its private blocks, the column step of its own
columns. Tasks in, answers out; it neither waits nor connects.

What leaves is listed in `ce.protocol.messages.task`: sums of shared blocks and shared columns, shares of the globals.
Nothing of a private block or of a column with one holder ever does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.labels import LabelTable
from ce.protocol.engine.cell_passes import CellPasses, Segment
from ce.protocol.engine.object_state import ObjectState, cluster_sizes
from ce.protocol.engine.snapshots import Snapshot, by_number, numbered
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.messages.steps import first_step
from ce.protocol.messages.task import Answer, Array, Task, fraction_bits
from ce.protocol.topology.topology import Categories, Rows, SiteView, TopologyColumn
from ce.ring import Reals, Scale, Words, decode, encode
from ce.steps.model import Model, Opening, Sizes, State, no_votes, stage_of, with_unchanged_rows

#: By block, then by name: (objects,) "labels", "hidden" and, for models with votes, "ballots".
OnCounts = Callable[[dict[int, dict[str, Reals]]], None]


@dataclass
class _Table:
    """A clustering's table for the starts that run: as it entered the iteration, and after local loops."""

    column: TopologyColumn
    entering: Reals
    current: Reals
    sums: Words
    stopped: dict[int, Reals] = field(default_factory=dict)

    def keep(self, kept: NDArray[np.intp]) -> None:
        self.entering, self.current, self.sums = self.entering[kept], self.current[kept], self.sums[kept]

    def adopt(self, new: Reals) -> None:
        self.entering = self.current = new

    def snapshot(self) -> Snapshot:
        stopped = numbered(self.stopped)
        return {"entering": self.entering, "current": self.current, "sums": self.sums, "stopped": stopped}


class Site:
    """One site's part in a job."""

    def __init__(
        self,
        name: str,
        table: LabelTable,
        topology: SiteView,
        rows: Mapping[int, Rows],
        model: Model,
        starts: Starts,
        *,
        classes: Categories = (),
        given: Mapping[str, Reals] | None = None,
        threads: int = 1,
        on_counts: OnCounts | None = None,
    ) -> None:
        """`on_counts` is told, before anything but counts is answered, how many labels and ballots the objects of
        shared blocks have at all sites together; it may raise."""
        self.name = name
        self._n_objects = table.n_objects
        self._topology = topology
        self._sizes = topology.sizes
        self._starts = starts
        self._set_model(model)
        self._cell_passes = CellPasses(
            table, topology, rows, model, classes=classes, given=given or {}, threads=threads
        )
        self._groups = topology.groups
        self._place = {c: (group, where) for group in self._groups.values() for c, where in group.slices.items()}
        self._private, self._shared = self._cell_passes.private, self._cell_passes.shared
        self._opened = False
        self._counted = False
        self._on_counts = on_counts
        self._stage = -1
        self._active: tuple[int, ...] = ()
        self._globals: State = {}
        self._tables: dict[int, _Table] = {}
        self._objects: ObjectState  # of the private segment
        self._message: Reals  # of the shared segment
        self._shared_memberships: Reals  # (k, entries)
        self.unlabelled: NDArray[np.bool_]  # objects of the table without a label at any site, after "finish"

    def answer(self, task: Task) -> Answer:
        """Do what a task asks and return the answer."""
        arrays = self._perform(task)
        return Answer(task.round, task.step, task.starts, arrays, {n: fraction_bits(n, self._scales) for n in arrays})

    def close(self) -> None:
        self._cell_passes.close()

    def begins_iteration(self, task: Task) -> bool:
        """Whether the state after this task is one to go on from."""
        return task.step == first_step(self._model, self._topology)

    def snapshot(self) -> Snapshot:
        """All that the next task builds on, beside what follows from labels and alignment. Good until that task."""
        return {
            "stage": self._stage,
            "active": self._active,
            "globals": self._globals,
            "objects": self._objects.snapshot(),
            "tables": {str(index): table.snapshot() for index, table in self._tables.items()},
        }

    def restore(self, kept: Snapshot) -> None:
        """Go on after the answer after which the snapshot was taken. Only before anything was answered."""
        if self._opened:
            raise MessageError("resume: the rounds have begun")
        self._open()
        self._counted = True
        self._stage = kept["stage"]
        self._set_model(stage_of(self._model, self._stage))
        self._active = tuple(kept["active"])
        self._globals = kept["globals"]
        self._objects.restore(self._model, self._scales, kept["objects"])
        columns = {column.index: column for column in self._cell_passes.clusterings}
        for index, own in by_number(kept["tables"]).items():
            stopped = by_number(own["stopped"])
            self._tables[index] = _Table(columns[index], own["entering"], own["current"], own["sums"], stopped)

    # Results, after "finish".

    @property
    def model(self) -> Model:
        """That of the present stage."""
        return self._model

    @property
    def globals(self) -> State:
        return self._globals

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    @property
    def columns(self) -> list[TopologyColumn]:
        """The clusterings that this site holds."""
        return self._cell_passes.clusterings

    def memberships(self) -> Reals:
        """(objects of the table, k); an object without a label gets what the model says of such."""
        result = np.empty((self._n_objects, self._model.k))
        own = self._model.memberships(self._objects.result(self._winner))[0]
        result[self._private.rows] = own.T[self._private.inverse]
        result[self._shared.rows] = self._shared_memberships.T[self._shared.inverse]
        result[self.unlabelled] = self._model.prior_memberships(self._globals)[0]
        return result

    def object_state(self, name: str) -> Reals:
        """(objects of the table, k) of one array of the private objects' state; NaN for others."""
        result = np.full((self._n_objects, self._model.k), np.nan)
        state = self._objects.result(self._winner)[name][0]
        result[self._private.rows] = state.T[self._private.inverse]
        return result

    def table(self, column: int) -> Reals:
        """(k, categories) of a clustering."""
        return self._tables[column].stopped[self._winner]

    # Tasks.

    def _perform(self, task: Task) -> dict[str, Array]:
        self._check_turn(task)
        if task.step == "open":
            return self._open()
        if task.step == "counts":
            self._take_counts(task)
            return {}
        if task.step == "votes":
            return self._by_block("votes", self._cell_passes.votes(self._shared, self._model.k, self._scales["votes"]))
        if task.step == "clusterings_only":
            return self._view(task)
        if task.step == "finish":
            return self._finish(task)
        if task.stage != self._stage:
            self._begin_stage(task)
        elif self._model.phases == 1:
            self._adopt_iteration(task)
        else:
            self._adopt_phase(task)
        return self._shared_sums() if task.step == "columns" else self._contribute(task)

    def _check_turn(self, task: Task) -> None:
        """Steps have an order, and a model has only some of them."""
        begun = self._stage >= 0
        match task.step:
            case "open":
                fits = not begun
            case "counts":
                fits = self._opened and not begun
            case "votes":
                fits = self._counted and not begun and self._model.uses_votes
            case "sums" | "objects":
                model = self._model.next_stage() if begun and task.stage == self._stage + 1 else self._model
                fits = self._counted and model is not None and task.step == first_step(model, self._topology)
            case "columns":
                fits = begun and self._model.phases == 2
            case "clusterings_only":
                fits = begun and self._model.uses_votes
            case _:
                fits = begun
        if not fits:
            raise MessageError("step: not one that this model takes now")

    def _open(self) -> dict[str, Array]:
        self._opened = True
        scale = self._scales.get("votes", Scale.counting())

        labels = self._cell_passes.label_counts(self._private)
        votes = no_votes(self._model.k, len(labels))
        if self._model.uses_votes:
            votes = decode(self._cell_passes.votes(self._private, self._model.k, scale), scale)
        opening = Opening(labels.astype(np.float64), votes, self._cell_passes.given(self._private))
        self._objects = ObjectState(opening, self._private.weights)
        count = len(self._private.rows)
        arrays: dict[str, Array] = {"global/objects": np.array([count], dtype=np.int64)}
        labels, ballots = self._cell_passes.label_counts(self._shared), self._cell_passes.ballots(self._shared)
        hidden = self._cell_passes.hidden_counts(self._shared)
        for block, objects in self._shared.blocks.items():
            arrays[f"block/{block}/labels"] = labels[objects]
            arrays[f"block/{block}/hidden"] = hidden[objects]
            if self._model.uses_votes:
                arrays[f"block/{block}/ballots"] = ballots[objects]
            for column, claims in self._cell_passes.claims(block).items():
                arrays[f"block/{block}/claims/{column}"] = claims
        return arrays

    def _take_counts(self, task: Task) -> None:
        """How many labels and ballots the objects of shared blocks have at all their sites together."""
        self._counted = True
        names = ("labels", "hidden", "ballots") if self._model.uses_votes else ("labels", "hidden")
        counts: dict[int, dict[str, Reals]] = {}
        for block, objects in self._shared.blocks.items():
            shape = (objects.stop - objects.start,)
            counts[block] = {what: _array(task, f"block/{block}/{what}", shape) for what in names}
            self._refuse_impossible(counts[block], objects)
        if self._on_counts is not None:
            self._on_counts(counts)

    def _refuse_impossible(self, counts: Mapping[str, Reals], objects: slice) -> None:
        """Counts that cannot be those of all sites together."""
        own = {
            "labels": self._cell_passes.label_counts(self._shared)[objects],
            "hidden": self._cell_passes.hidden_counts(self._shared)[objects],
            "ballots": self._cell_passes.ballots(self._shared)[objects],
        }
        sizes = {"labels": self._sizes.clusterings, "ballots": self._sizes.classifiers}
        for what, told in counts.items():
            most = counts["labels"] if what == "hidden" else np.full(len(told), float(sizes[what]))
            if (told != np.rint(told)).any() or (told < own[what]).any() or (told > most).any():
                raise MessageError(f"block/.../{what}: counts that cannot be those of all sites")

    def _begin_stage(self, task: Task) -> None:
        if task.stage != self._stage + 1:
            raise MessageError("stage: not the one that follows")
        if task.stage > 0:
            following = self._model.next_stage()
            if following is None:
                raise MessageError("stage: the model has no such stage")
            self._stop_all()
            self._set_model(following)
        if task.starts != tuple(range(self._model.n_starts)):
            raise MessageError("starts: a stage begins with all of them")
        self._stage = task.stage
        self._active = task.starts
        self._take_globals(task)
        before = self._objects.result(0) if task.stage else None
        self._objects.begin(self._model, self._scales, self._globals, before)
        if self._model.phases == 1:
            self._take_messages(task)
        self._tables = {}
        for column in self._cell_passes.clusterings:
            drawn = self._starts.tables(column, self._model.n_starts, self._model.k)
            table = self._model.start_beta(drawn)
            self._tables[column.index] = _Table(column, table, table, np.zeros(table.shape, dtype=np.int64))

    def _adopt_iteration(self, task: Task) -> None:
        """One-phase models: new tables, then the object step of private blocks with the new globals."""
        kept, retry = self._go_on_with(task)
        for table in self._tables.values():
            new = with_unchanged_rows(self._new_table(task, table), table.current)
            table.adopt(np.where(retry[:, None, None], table.entering, new) if task.retry else new)
        self._take_globals(task)
        self._objects.update(kept, retry, self._globals)
        self._take_messages(task)

    def _adopt_phase(self, task: Task) -> None:
        """Two-phase models: messages of shared blocks complete the column sums; those make new tables."""
        kept, _ = self._go_on_with(task)
        self._objects.keep(kept)
        if task.step != "objects":
            self._take_messages(task)
            self._second_pass(self._shared, self._message)
        if task.step == "columns":
            return
        for table in self._tables.values():
            table.adopt(with_unchanged_rows(self._new_table(task, table), table.current))
        self._take_globals(task)

    def _new_table(self, task: Task, table: _Table) -> Reals:
        if table.column.shared:
            group, where = self._place[table.column.index]
            starts, k, _ = table.current.shape
            return _array(task, f"columns/{group.index}/beta", (starts, k, group.width))[..., where]
        return self._model.column(table.sums, self._scales["columns"])

    def _go_on_with(self, task: Task) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Put aside the starts that stopped. Which others, by position, go on, and which of those are retried."""
        if not set(task.starts) <= set(self._active):
            raise MessageError("starts: one that has stopped cannot go on")
        kept = np.array([at for at, start in enumerate(self._active) if start in task.starts], dtype=np.intp)
        for position, start in enumerate(self._active):
            if start not in task.starts:
                self._stop(position, start)
        if len(kept) < len(self._active):
            for table in self._tables.values():
                table.keep(kept)
        self._active = task.starts
        return kept, np.array([start in task.retry for start in task.starts], dtype=bool)

    def _stop(self, position: int, start: int) -> None:
        for table in self._tables.values():
            table.stopped[start] = table.current[position]
        self._objects.stop(position, start)

    def _stop_all(self) -> None:
        for position, start in enumerate(self._active):
            self._stop(position, start)
        self._active = ()

    # Contributions.

    def _contribute(self, task: Task) -> dict[str, Array]:
        starts = len(self._active)
        totals: dict[str, Words] = {
            name: np.zeros((starts, *shape), dtype=np.int64)
            for name, shape in self._model.share_shapes(task.iteration).items()
        }
        totals["bound"] = np.zeros(starts, dtype=np.int64)
        totals["moved"] = np.zeros(starts, dtype=np.int64)
        for _ in range(self._model.local_loops - 1):
            self._loop_locally()
        if mine := [table.current for table in self._tables.values() if table.column.holders[0] == self.name]:
            priors = self._model.prior(np.concatenate(mine, axis=-1))
            totals["bound"] += encode(priors, self._scales["prior"], "prior").sum(axis=(1, 2))
        self._clear_sums()
        if self._model.phases == 1:
            own, own_bound = self._pass(self._private, self._objects.message)
            shared, shared_bound = self._pass(self._shared, self._message)
            totals["bound"] += own_bound + shared_bound
        else:
            own, shared = self._first_pass(self._private), self._first_pass(self._shared)
        self._objects.receive(own, self._globals)
        for name, share in self._objects.shares(self._globals, task.iteration).items():
            totals[name] += share
        if self._model.phases == 2:
            self._second_pass(self._private, self._objects.message)
        arrays = self._by_block("sums", shared)
        arrays.update({f"global/{name}": total for name, total in totals.items()})
        if task.step == "sums":
            arrays.update(self._shared_sums())
        return arrays

    def _by_block(self, what: str, words: Words) -> dict[str, Array]:
        return {f"block/{block}/{what}": words[..., objects] for block, objects in self._shared.blocks.items()}

    def _shared_sums(self) -> dict[str, Array]:
        return {
            f"columns/{group.index}/sums": np.concatenate([self._tables[c.index].sums for c in group.columns], axis=-1)
            for group in self._groups.values()
        }

    def _loop_locally(self) -> None:
        """Cell and column step for columns with one holder, objects held: concave, and costs no exchange."""
        self._clear_sums()
        self._pass(self._private, self._objects.message)
        self._pass(self._shared, self._message)
        for table in self._tables.values():
            if not table.column.shared:
                new = self._model.column(table.sums, self._scales["columns"])
                table.current = with_unchanged_rows(new, table.current)

    def _pass(self, segment: Segment, message: Reals) -> tuple[Words, Words]:
        return self._cell_passes.pass_once(
            self._model, self._scales, segment, message, self._current_tables(), self._column_sums()
        )

    def _first_pass(self, segment: Segment) -> Words:
        tables = self._current_tables()
        return self._cell_passes.first_pass(self._model, self._scales, segment, tables, len(self._active))

    def _second_pass(self, segment: Segment, message: Reals) -> None:
        self._cell_passes.second_pass(self._model, self._scales, segment, message, self._column_sums())

    def _current_tables(self) -> dict[int, Reals]:
        return {index: table.current for index, table in self._tables.items()}

    def _column_sums(self) -> dict[int, Words]:
        return {index: table.sums for index, table in self._tables.items()}

    def _clear_sums(self) -> None:
        for table in self._tables.values():
            table.sums = np.zeros(table.current.shape, dtype=np.int64)

    # The end.

    def _view(self, task: Task) -> dict[str, Array]:
        """What the clusterings alone say: the cell step under a flat message, with the winner's tables."""
        self._end(task)
        for table in self._tables.values():
            table.adopt(table.stopped[self._winner][None])
        self._clear_sums()
        own, _ = self._pass(self._private, np.ones((1, self._model.k, self._private.width)))
        shared, _ = self._pass(self._shared, np.ones((1, self._model.k, self._shared.width)))
        return {**self._by_block("sums", shared), "global/agreement": self._objects.agreement(own)}

    def _finish(self, task: Task) -> dict[str, Array]:
        self._end(task)
        self._shared_memberships = self._from_blocks(task, "memberships", self._model.k)
        self.unlabelled = np.ones(self._n_objects, dtype=bool)
        self.unlabelled[self._private.rows] = False
        self.unlabelled[self._shared.rows] = self._from_blocks(task, "labelled", 1)[0] == 0
        likeliest = self._model.memberships(self._objects.result(self._winner))[0].argmax(axis=0)
        return {"global/sizes": cluster_sizes(likeliest, self._private.weights, self._model.k)}

    def _end(self, task: Task) -> None:
        """All starts have stopped; the winner is named."""
        if len(task.starts) != 1 or task.starts[0] >= self._model.n_starts:
            raise MessageError("starts: there is exactly one winner")
        self._stop_all()
        self._winner = task.starts[0]
        self._globals = {
            name: _array(task, f"global/{name}", (1, *shape)) for name, shape in self._global_shapes.items()
        }

    # Reading tasks.

    def _take_globals(self, task: Task) -> None:
        self._globals = {
            name: _array(task, f"global/{name}", (len(self._active), *shape))
            for name, shape in self._global_shapes.items()
        }

    def _take_messages(self, task: Task) -> None:
        self._message = self._from_blocks(task, "message", len(self._active), self._model.k)
        if self._message.size and not (self._message.min() >= 0 and self._message.max() <= 1):
            raise MessageError("message: not between 0 and 1")

    def _from_blocks(self, task: Task, what: str, *shape: int) -> Reals:
        """(*shape, entries) of the shared segment, out of its blocks' arrays."""
        whole = np.empty((*shape, self._shared.width))
        for block, objects in self._shared.blocks.items():
            size = objects.stop - objects.start
            whole[..., objects] = _array(task, f"block/{block}/{what}", (*shape, size))
        return whole

    def _set_model(self, model: Model) -> None:
        self._model = model
        self._scales = model.scales(self._sizes)
        start = model.start_globals(self._sizes, None)
        self._global_shapes = {name: start[name].shape[1:] for name in model.broadcast}


def _array(task: Task, name: str, shape: tuple[int, ...]) -> Reals:
    """A real array of the task, of exactly this shape."""
    array = task.arrays.get(name)
    if array is None:
        raise MessageError(f"{name}: missing")
    if array.dtype != np.float64 or array.shape != shape:
        raise MessageError(f"{name}: not real numbers of the expected shape")
    return array.astype(np.float64, copy=False)
