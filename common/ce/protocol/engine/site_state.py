"""What a site computes: objects that it alone holds, its columns, its contributions to sums, for the starts that run.

Which task may come when is `ce.protocol.engine.site`'s part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.errors import MessageError
from ce.protocol.engine.cell_passes import CellPasses, Segment
from ce.protocol.engine.column_state import SiteColumns
from ce.protocol.engine.object_state import ObjectState
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Array, Task
from ce.protocol.topology.site_view import SiteView
from ce.ring import Scale, Words, decode, encode
from ce.steps.model import Model, Opening, State, no_votes, stage_of
from ce.steps.precision import SentMessage, sent_type


class SiteState:
    """Private objects, columns, globals and starts at one site."""

    def __init__(self, name: str, view: SiteView, model: Model, passes: CellPasses, starts: Starts) -> None:
        self._view = view
        self._starts = starts
        self._passes = passes
        self._private, self._shared = passes.private, passes.shared
        self.columns = SiteColumns(name, view)
        self.stage = -1  # before the first
        self.running: tuple[int, ...] = ()
        self.globals: State = {}
        self.objects: ObjectState  # of the private segment
        self._message: SentMessage  # of the shared segment
        self._set_model(model)

    def snapshot(self) -> Snapshot:
        return {
            "stage": self.stage,
            "running": self.running,
            "globals": self.globals,
            "objects": self.objects.snapshot(),
            "columns": self.columns.snapshot(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """In the middle of a stage; `open` comes before."""
        self.stage = snapshot["stage"]
        self._set_model(stage_of(self.model, self.stage))
        self.running = tuple(snapshot["running"])
        self.globals = snapshot["globals"]
        self.objects.restore(self.model, self.scales, snapshot["objects"])
        self.columns.restore(snapshot["columns"])

    @property
    def winner(self) -> int:
        """After all starts have stopped."""
        [winner] = self.running
        return winner

    def open(self) -> None:
        """The private objects, as far as they are known before the first iteration."""
        scale = self.scales.get("votes", Scale.counting())
        labels = self._passes.label_counts(self._private)
        votes = no_votes(self.model.k, len(labels))
        if self.model.uses_votes:
            votes = decode(self._passes.votes(self._private, self.model.k, scale), scale)
        opening = Opening(labels.astype(np.float64), votes, self._passes.given(self._private))
        self.objects = ObjectState(opening, self._private.weights, self._passes.pool)

    # Stages and starts.

    def end_stage(self, task: Task) -> None:
        """The stage is over: the model of the next one takes its place."""
        following = self.model.next_stage()
        assert following is not None
        self.stop_all(task)
        self._set_model(following)

    def begin_stage(self, task: Task) -> None:
        if task.stage != self.stage + 1:
            raise MessageError(f"stage: expected {self.stage + 1}, got {task.stage}")
        if task.starts != tuple(range(self.model.n_starts)):
            raise MessageError(f"starts: expected all {self.model.n_starts} at the beginning of a stage")
        self.stage = task.stage
        self.running = task.starts
        self.take_globals(task)
        before = self.objects.result(0) if task.stage else None
        self.objects.begin(self.model, self.scales, self.globals, before)
        if self.model.phases == 1:
            self._take_messages(task)
        self.columns.begin(self.model, self._starts)

    def adopt_iteration(self, task: Task) -> None:
        """One-phase models: new column parameters, then the object step of private blocks with the new globals."""
        surviving = self._select_starts(task)
        retry = np.array([start in task.retry for start in task.starts], dtype=bool)
        self._adopt_columns(task, retry if task.retry else None)
        self.take_globals(task)
        self.objects.update(surviving, retry, self.globals)
        self._take_messages(task)

    def adopt_phase(self, task: Task) -> None:
        """Two-phase models: messages of shared blocks complete the column sums; those make new column parameters."""
        self.objects.select_starts(self._select_starts(task))
        if task.step != "objects":
            self._take_messages(task)
            self._passes.second_pass(self.model, self.scales, self._shared, self._message, self.columns.sums)
        if task.step == "columns":
            return
        self._adopt_columns(task, None)
        self.take_globals(task)

    def _adopt_columns(self, task: Task, retry: NDArray[np.bool_] | None) -> None:
        starts, k = len(self.running), self.model.k
        received = {
            group: real_array(task, name, (starts, k, width)) for group, (name, width) in self._beta_names.items()
        }
        self.columns.adopt(received, self.model, self.scales["columns"], retry)

    def _select_starts(self, task: Task) -> NDArray[np.intp]:
        """Put aside the starts that stop. Which others go on, by position."""
        self._refuse_other_starts(task)
        surviving = np.array([at for at, start in enumerate(self.running) if start in task.starts], dtype=np.intp)
        if task.stop:
            self._put_aside(task.stop)
            self.columns.select(surviving)
        self.running = task.starts
        return surviving

    def _refuse_other_starts(self, task: Task) -> None:
        if tuple(sorted((*task.starts, *task.stop))) != self.running:
            raise MessageError(f"starts: expected {self.running} to go on or stop, got {task.starts} and {task.stop}")

    def stop_all(self, task: Task) -> None:
        if task.stop != self.running:
            raise MessageError(f"stop: expected {self.running}, since all starts have ended, got {task.stop}")
        self._put_aside(task.stop)
        self.running = ()

    def _put_aside(self, stop: tuple[int, ...]) -> None:
        for position, start in enumerate(self.running):
            if start in stop:
                self.columns.stop(position, start)
                self.objects.stop(position, start)

    # Contributions.

    def contribute(self, task: Task) -> dict[ArrayName, Array]:
        model, starts = self.model, len(self.running)
        if not model.can_have(self.globals, task.iteration):
            raise MessageError(f"globals: numbers that model steps cannot have reached in iteration {task.iteration}")
        bound: Words = np.zeros(starts, dtype=np.int64)
        for _ in range(model.local_loops - 1 if self.columns.any_alone else 0):
            check_cancelled()
            self.pass_over_all()
            self.columns.update_alone(model, self.scales["columns"])
        if first_held := self.columns.first_held:
            priors = model.prior(np.concatenate(first_held, axis=-1))
            bound += encode(priors, self.scales["prior"], "prior").sum(axis=(1, 2))
        if model.phases == 1:
            (private, private_bound), (shared, shared_bound) = self.pass_over_all()
            bound += private_bound
            bound += shared_bound
        else:
            self.columns.clear_sums()
            private, shared = self._first_pass(self._private), self._first_pass(self._shared)
        self.objects.receive(private, self.globals)
        totals = self.objects.shares(self.globals, task.iteration)
        totals["bound"] += bound
        if model.phases == 2:
            sums, message = self.columns.sums, self.objects.message
            self._passes.second_pass(model, self.scales, self._private, message, sums)
        arrays = self.by_block("sums", shared)
        arrays.update((ArrayName.of_all(what), total) for what, total in totals.items())
        if task.step == "sums":
            arrays.update(self.columns.group_sums())
        return arrays

    def by_block(self, what: str, words: Words) -> dict[ArrayName, Array]:
        blocks = self._shared.blocks.items()
        return {ArrayName.of_block(block, what): words[..., objects] for block, objects in blocks}

    def pass_over_all(self) -> tuple[tuple[Words, Words], tuple[Words, Words]]:
        """One-phase models: object sums and bound of private and of shared objects; column sums begin anew."""
        self.columns.clear_sums()
        return self.one_pass(self._private, self.objects.message), self.one_pass(self._shared, self._message)

    def one_pass(self, segment: Segment, message: SentMessage) -> tuple[Words, Words]:
        if not segment.tiles:
            return np.zeros(message.shape, dtype=np.int64), np.zeros(len(message), dtype=np.int64)
        beta, sums = self.columns.beta, self.columns.sums
        return self._passes.pass_once(self.model, self.scales, segment, message, beta, sums)

    def _first_pass(self, segment: Segment) -> Words:
        return self._passes.first_pass(self.model, self.scales, segment, self.columns.beta, len(self.running))

    # Reading tasks.

    def take_globals(self, task: Task) -> None:
        starts = len(self.running)
        self.globals = {
            what: real_array(task, name, (starts, *shape)) for what, (name, shape) in self._global_names.items()
        }

    def _take_messages(self, task: Task) -> None:
        kind = sent_type(self.model.precision)
        self._message = self.from_blocks(task, "message", len(self.running), self.model.k, kind=kind)
        if self._message.size and not (
            np.minimum.reduce(self._message, axis=None) >= 0 and np.maximum.reduce(self._message, axis=None) <= 1
        ):
            raise MessageError("message: expected numbers from 0 to 1")

    def from_blocks(self, task: Task, what: str, *shape: int, kind: type[Any] = np.float64) -> NDArray[Any]:
        """(*shape, entries) of the shared segment, out of its blocks' arrays of this kind of numbers."""
        whole = np.empty((*shape, self._shared.width), dtype=kind)
        for block, objects in self._shared.blocks.items():
            size = objects.stop - objects.start
            whole[..., objects] = real_array(task, ArrayName.of_block(block, what), (*shape, size), kind)
        return whole

    def _set_model(self, model: Model) -> None:
        self.model = model
        self.scales = model.scales(self._view.sizes)
        start = model.start_globals(self._view.sizes, None)
        # Names of the arrays that tasks bring, and what is known of their shapes before a task comes.
        self._global_names = {what: (ArrayName.of_all(what), start[what].shape[1:]) for what in model.broadcast}
        self._beta_names = {
            group.index: (ArrayName.of_columns(group.index, "beta"), group.width)
            for group in self._view.groups.values()
        }


def real_array(task: Task, name: ArrayName, shape: tuple[int, ...], kind: type[Any] = np.float64) -> NDArray[Any]:
    """A real array of the task, of exactly this shape and kind of numbers."""
    array = task.arrays.get(name)
    if array is None:
        raise MessageError(f"{name}: missing")
    if array.dtype != kind or array.shape != shape:
        width = " of 32 bits" if kind is np.float32 else ""
        got = f"{array.dtype.name} of {array.shape}"
        raise MessageError(f"{name}: expected real numbers{width} of shape {shape}, got {got}")
    return array.astype(kind, copy=False)
