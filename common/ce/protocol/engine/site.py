"""The engine at a site: the cell step on its labels, the object step of its private blocks, the column step of columns
with one holder. Tasks in, answers out; it neither waits nor connects. docs/site-computation.md has the equations.

What leaves is listed in `ce.protocol.messages.steps`: sums of shared blocks and shared columns, shares of the globals.
Nothing of a private block or of a column with one holder ever does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ce.errors import MessageError, somebody
from ce.labels import LabelTable
from ce.protocol.engine.cell_passes import CellPasses
from ce.protocol.engine.object_state import cluster_sizes
from ce.protocol.engine.site_state import SiteState, real_array
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import Arrays, AskedArrays, StepOrder, check_asked, first_step
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.topology.site_view import Categories, SiteView, TopologyColumn
from ce.protocol.topology.topology import Rows
from ce.ring import Reals, Words, narrowed
from ce.steps.model import Model, Sizes, State

#: By block, then by what was counted: (objects,) "labels", "hidden" and, for models with votes, "ballots".
Counts = dict[int, dict[str, Reals]]
OnCounts = Callable[[Counts], None]


class Site:
    """One site's part in a job."""

    def __init__(
        self,
        name: str,
        table: LabelTable,
        view: SiteView,
        rows: Mapping[int, Rows],
        model: Model,
        starts: Starts,
        *,
        classes: Categories = (),
        given: Mapping[str, Reals] | None = None,
        threads: int = 1,
        on_counts: OnCounts | None = None,
    ) -> None:
        """`on_counts` is called, before anything but counts is answered, with the number of labels and ballots that
        the objects of shared blocks have at all sites together; it may raise."""
        self.name = name
        self._n_objects = table.n_objects
        self._view = view
        self._on_counts = on_counts
        self._order = StepOrder(view)
        self._asked = AskedArrays(view, name)
        self._passes = CellPasses(table, view, rows, model, classes=classes, given=given or {}, threads=threads)
        self._private, self._shared = self._passes.private, self._passes.shared
        self._state = SiteState(name, view, model, self._passes, starts)
        self._shared_memberships: Reals  # (k, entries)
        self.unlabelled: NDArray[np.bool_]  # objects of the table without a label at any site, after "finish"

    def answer(self, task: Task) -> Answer:
        """Do what a task asks and return the answer."""
        self._order.check(task.step, self.model)
        if self._state.stage >= 0 and task.stage != self._state.stage:
            self._next_stage(task)
        expected = self._expected(task)
        check_asked(task.asked, expected)
        arrays = self._perform(task)
        for name, spec in expected.items():
            if spec.word_bits != 64:
                arrays[name] = narrowed(np.asarray(arrays[name], dtype=np.int64), spec.word_bits, name)
        self._order.taken(task.step)
        bits: dict[str, int] = {name: expected[name].fraction_bits for name in arrays}
        return Answer(task.round, task.step, task.starts, dict(arrays.items()), bits)

    def close(self) -> None:
        self._passes.close()

    def begins_iteration(self, task: Task) -> bool:
        """Whether a checkpoint can be written of the state after this task."""
        return task.step == first_step(self.model, self._view)

    def snapshot(self) -> Snapshot:
        """All that the next task builds on, beside what follows from labels and alignment. Valid until that task."""
        return self._state.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """Go on after the answer after which the snapshot was taken. Only before anything was answered."""
        if self._order.begun:
            raise MessageError("resume: expected as the first task, got it after others")
        self._open()
        self._state.restore(snapshot)
        self._order.resume(self.model)

    # Results, after "finish".

    @property
    def model(self) -> Model:
        """That of the present stage."""
        return self._state.model

    @property
    def globals(self) -> State:
        return self._state.globals

    @property
    def sizes(self) -> Sizes:
        return self._view.sizes

    @property
    def columns(self) -> list[TopologyColumn]:
        """The clusterings that this site holds."""
        return self._state.columns.clusterings

    def memberships(self) -> Reals:
        """(objects of the table, k); an object without a label gets the model's prior memberships."""
        result = np.empty((self._n_objects, self.model.k))
        private = self.model.memberships(self._state.objects.result(self._state.winner))[0]
        result[self._private.rows] = private.T[self._private.inverse]
        result[self._shared.rows] = self._shared_memberships.T[self._shared.inverse]
        result[self.unlabelled] = self.model.prior_memberships(self._state.globals)[0]
        return result

    def object_state(self, name: str) -> Reals:
        """(objects of the table, k) of one array of the private objects' state; NaN for others."""
        result = np.full((self._n_objects, self.model.k), np.nan)
        state = self._state.objects.result(self._state.winner)[name][0]
        result[self._private.rows] = state.T[self._private.inverse]
        return result

    def beta(self, column: int) -> Reals:
        """(k, categories) of a clustering."""
        return self._state.columns.result(column, self._state.winner)

    # Tasks.

    def _next_stage(self, task: Task) -> None:
        """A stage ends with the task that begins the next one."""
        stage, following = self._state.stage, self.model.next_stage()
        if following is None or task.stage != stage + 1 or task.step != first_step(following, self._view):
            raise MessageError(f"stage: expected {stage}, got {task.stage}")
        self._state.end_stage(task)

    def _expected(self, task: Task) -> Arrays:
        """The arrays that this site answers a task with."""
        return self._asked.of(task.step, self.model, self._state.scales, len(task.starts), task.iteration)

    def _perform(self, task: Task) -> dict[ArrayName, Array]:
        match task.step:
            case "open":
                return self._open()
            case "counts":
                self._take_counts(task)
                return {}
            case "votes":
                return self._state.by_block(
                    "votes", self._passes.votes(self._shared, self.model.k, self._state.scales["votes"])
                )
            case "clusterings_only":
                return self._clusterings_only(task)
            case "finish":
                return self._finish(task)
        if task.stage != self._state.stage:
            self._state.begin_stage(task)
        elif self.model.phases == 1:
            self._state.adopt_iteration(task)
        else:
            self._state.adopt_phase(task)
        return self._state.columns.group_sums() if task.step == "columns" else self._state.contribute(task)

    def _open(self) -> dict[ArrayName, Array]:
        self._state.open()
        arrays: dict[ArrayName, Array] = {
            ArrayName.of_all("objects"): np.array([len(self._private.rows)], dtype=np.int64)
        }
        for what, counts in self._counts().items():
            arrays |= self._state.by_block(what, counts)
        for block in self._shared.blocks:
            for column, claims in self._passes.claims(block).items():
                arrays[ArrayName.of_claims(block, column)] = claims
        return arrays

    def _counts(self) -> dict[str, Words]:
        """What this site counts of the objects of its shared blocks."""
        counts = {"labels": self._passes.label_counts(self._shared), "hidden": self._passes.hidden_counts(self._shared)}
        return counts | ({"ballots": self._passes.ballots(self._shared)} if self.model.uses_votes else {})

    def _take_counts(self, task: Task) -> None:
        """How many labels and ballots the objects of shared blocks have at all their sites together."""
        counted = self._counts()
        totals: Counts = {}
        for block, objects in self._shared.blocks.items():
            shape = (objects.stop - objects.start,)
            totals[block] = {what: real_array(task, ArrayName.of_block(block, what), shape) for what in counted}
            counted_here = {what: words[objects] for what, words in counted.items()}
            self._refuse_impossible(totals[block], counted_here, self._view.blocks[block].members)
        if self._on_counts is not None:
            self._on_counts(totals)

    def _refuse_impossible(
        self, totals: Mapping[str, Reals], counted: Mapping[str, Words], members: tuple[str, ...]
    ) -> None:
        """Counts that cannot be those of all members together."""
        sizes = {"labels": self.sizes.clusterings, "ballots": self.sizes.classifiers}
        for what, total in totals.items():
            most = totals["labels"] if what == "hidden" else np.full(len(total), float(sizes[what]))
            if (total != np.rint(total)).any() or (total < counted[what]).any() or (total > most).any():
                raise MessageError(
                    f"{what} of a block: expected whole numbers from this site's own count to all columns; "
                    f"{somebody(members)} sent false numbers"
                )

    # The end.

    def _clusterings_only(self, task: Task) -> dict[ArrayName, Array]:
        """What the clusterings alone say of private objects: the cell step under a flat message, with the winner's
        parameters. Of a shared object such sums are linear in its labels: they are not computed."""
        self._end(task)
        self._state.columns.take_winner(self._state.winner)
        self._state.columns.clear_sums()
        sums, _ = self._state.one_pass(self._private, np.ones((1, self.model.k, self._private.width)))
        return {ArrayName.of_all("agreement"): self._state.objects.agreement(sums)}

    def _finish(self, task: Task) -> dict[ArrayName, Array]:
        self._end(task)
        self._shared_memberships = self._state.from_blocks(task, "memberships", self.model.k)
        self.unlabelled = np.ones(self._n_objects, dtype=bool)
        self.unlabelled[self._private.rows] = False
        self.unlabelled[self._shared.rows] = self._state.from_blocks(task, "labelled", 1)[0] == 0
        likeliest = self.model.memberships(self._state.objects.result(self._state.winner))[0].argmax(axis=0)
        return {ArrayName.of_all("sizes"): cluster_sizes(likeliest, self._private.weights, self.model.k)}

    def _end(self, task: Task) -> None:
        """All starts have stopped; the winner is named."""
        if len(task.starts) != 1 or task.starts[0] >= self.model.n_starts:
            raise MessageError(f"starts: expected one winner of {self.model.n_starts} starts, got {len(task.starts)}")
        if task.step == "clusterings_only" or not self.model.uses_votes:
            self._state.stop_all(task)
        self._state.running = task.starts
        self._state.take_globals(task)
