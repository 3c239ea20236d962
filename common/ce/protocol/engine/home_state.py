"""What a home computes: the column step of shared columns, the global step, the object step of shared blocks, for the
starts that run. Which round comes when is `ce.protocol.engine.home`'s part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ce.errors import InputError
from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.engine.column_state import SharedColumns
from ce.protocol.engine.invariants import check_object_sums, check_opening, check_shares, check_sizes
from ce.protocol.engine.object_state import ObjectState, cluster_sizes, select
from ce.protocol.engine.shared_objects import Pseudonyms, SharedObjects
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.engine.start_selection import StartDecisions, StartSelection
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import Step, first_step
from ce.protocol.messages.task import Array
from ce.protocol.topology.site_view import SiteView
from ce.ring import Reals, Scale, Words, decode
from ce.steps.agreement import kappa
from ce.steps.model import Model, Sizes, State, stage_of


@dataclass(frozen=True)
class Stage:
    """One of the model's stages."""

    number: int
    model: Model
    scales: Mapping[str, Scale] = field(repr=False)
    begins_with: Step  # the step that begins an iteration

    @classmethod
    def of(cls, number: int, model: Model, view: SiteView) -> Stage:
        return cls(number, model, model.scales(view.sizes), first_step(model, view))

    def following(self, view: SiteView) -> Stage | None:
        """None: this is the last one."""
        model = self.model.next_stage()
        return None if model is None else Stage.of(self.number + 1, model, view)


class HomeState:
    """Objects of shared blocks, shared columns, globals and starts."""

    def __init__(self, view: SiteView, model: Model, speaker: str | None, pseudonyms: Pseudonyms | None) -> None:
        """`speaker`: see `SharedObjects`."""
        self._view = view
        self._speaker = speaker
        self.stage = Stage.of(0, model, view)
        self.iteration = 0
        self.starts = StartSelection(0)
        self.globals: State = {}
        self.kappa: float | None = None
        self._counted: Sizes = view.sizes  # of objects, only those that have a label
        self._shared = SharedObjects(view, speaker, pseudonyms)
        self._objects: ObjectState  # of all shared blocks, one after the other
        self._columns = SharedColumns(view)

    # Before the first iteration.

    def open(self, received: Accumulators, names: Iterable[str]) -> Words:
        """(1,) how many objects of shared blocks, of those that this home speaks for, have a label."""
        return self._shared.open(received, names, self.stage.scales, self.stage.model.uses_votes)

    def take_number_of_objects(self, total: Words) -> dict[str, Array]:
        """How many objects have a label is known. The members are sent how many labels each of theirs has."""
        check_opening(ArrayName.of_all("objects"), total, self._view, self.stage.scales)
        if not int(total[0]):
            raise InputError("no object has a label that this model uses")
        self._counted = replace(self._view.sizes, objects=int(total[0]))
        return self._shared.counts

    def read_votes(self, received: Accumulators, names: Iterable[str]) -> Reals:
        """(k, objects) the sum of the votes on each shared object."""
        for name in names:
            check_opening(name, received[name], self._view, self.stage.scales)
        words = self._shared.together(received, "votes", (self.stage.model.k,))
        return decode(words, self.stage.scales["votes"])

    @property
    def n_shared(self) -> int:
        """Objects of shared blocks."""
        return len(self._shared.labels)

    @property
    def _has_objects(self) -> bool:
        """Whether there are object sums to take and shares to give. A home that does not speak for all blocks gives its
        shares in any case: the others wait for them."""
        return self.n_shared > 0 or self._speaker is not None

    # Stages.

    def begin_first_stage(self, votes: Reals) -> dict[str, Array]:
        """All that there is to know before the first iteration is known."""
        self._objects = self._shared.objects(votes, self.stage.model.n_starts)
        return self._begin(None)

    def begin_next_stage(self, stage: Stage, last_globals: State) -> dict[str, Array]:
        self.stage = stage
        return self._begin(last_globals)

    def _begin(self, before: State | None) -> dict[str, Array]:
        """What the sites are sent."""
        model = self.stage.model
        self.starts = StartSelection(model.n_starts, self._drops_starts(model))
        self.iteration = 0
        self._columns.begin(model.n_starts, model.k)
        self.globals = model.start_globals(self._view.sizes, before)
        before_objects = self._objects.result(0) if self.stage.number else None
        self._objects.begin(model, self.stage.scales, self.globals, before_objects)
        return self.globals_sent() | (self.messages_sent() if model.phases == 1 else {})

    def _drops_starts(self, model: Model) -> bool:
        """By what all homes know, so that the starts of a job are the same in every mode."""
        if model.halving is not None:
            return model.halving
        view = self._view
        shared_by_all = view.shared_by_all and any(block.shared for block in view.blocks.values())
        no_shared_column = len(view.sites) == 1 or (shared_by_all and not view.needs_two_exchanges)
        return model.local_loops > 1 and no_shared_column

    # Iterations.

    def receive_columns(self, received: Accumulators) -> None:
        self._columns.receive(received, self._view.sizes, self.stage.scales["columns"])

    def receive_objects(self, received: Accumulators) -> dict[str, Words]:
        """Take object sums; returns the shared blocks' shares of the totals over all objects."""
        if not self._has_objects:
            return {}
        model = self.stage.model
        sums = self._shared.together(received, "sums", (len(self.starts.running), model.k))
        check_object_sums(sums, self._shared.labels, model, self.stage.scales["objects"], self._shared.members)
        self._objects.receive(sums, self.globals)
        return self._objects.shares(self.globals, self.iteration)

    def decide(self, totals: Mapping[str, Words], decisions: StartDecisions | None) -> StartDecisions:
        """The global step, then what each start does next: go on, go back, or stop. `decisions`: those of another home
        that has decided for all."""
        model, scales = self.stage.model, self.stage.scales
        for what, total in totals.items():
            check_shares(what, total, self._view)
        if decisions is None:
            bound = decode(totals["bound"], scales["bound"])
            reals = {what: decode(totals[what], scales[what]) for what in model.share_shapes(self.iteration)}
            reals["moved"] = totals["moved"].astype(np.float64)
            found = model.global_step(bound, reals, self.globals, self._counted, self.iteration)
            decisions = self.starts.decide(model, found, totals["moved"], self._counted.objects)
        else:
            self.starts.follow(model, decisions, totals["moved"], self._counted.objects)
        for position, start in enumerate(self.starts.running):
            if decisions.stop[position]:
                self._columns.stop(position, start)
                self._objects.stop(position, start)
        return decisions

    @property
    def decides_at_once(self) -> bool:
        """Whether the next global step, and what follows from it, is a fixed number of operations with each number."""
        return not self._has_objects and self.stage.model.decides_at_once(self.globals)

    def apply(self, decisions: StartDecisions, *, with_columns: bool) -> dict[str, Array]:
        """Go on with the starts that survive. What the sites are sent; nothing when none does."""
        model = self.stage.model
        surviving = self.starts.apply(decisions, self.globals)
        if not self.starts.running:
            return {}
        retry, self.globals = decisions.retry, decisions.globals
        if len(surviving) < len(retry):
            self._columns.select(surviving)
            retry, self.globals = retry[surviving], select(self.globals, surviving)
        if model.phases == 1 and self._has_objects:
            self._objects.update(surviving, retry, self.globals)
        else:
            self._objects.select_starts(surviving)
        if not with_columns:
            return self.messages_sent()
        beta = self._columns.update(model, self.stage.scales["columns"], surviving, retry)
        return self.globals_sent() | self.messages_sent() | beta

    def update_columns(self) -> dict[str, Array]:
        """The column step alone, where it has an exchange of its own."""
        return self.globals_sent() | self._columns.update(self.stage.model, self.stage.scales["columns"])

    # The end.

    def end(self) -> dict[str, Array]:
        """All starts have stopped: what the sites are sent of the winner."""
        self.globals = self.starts.globals_of(self.starts.end())
        return self.globals_sent()

    def take_agreement(self, total: Words) -> None:
        """The objects that one site alone holds, by what their clusterings say and what their votes say."""
        check_shares("agreement", total, self._view)
        if total.any():
            self.kappa = float(kappa(total.astype(np.float64))[0, 0])

    @property
    def winner(self) -> int:
        [winner] = self.starts.running
        return winner

    def memberships(self) -> Reals:
        """(k, objects) of the shared blocks."""
        memberships: Reals = self.stage.model.memberships(self._objects.result(self.winner))[0]
        return memberships

    def results_sent(self) -> dict[str, Array]:
        labelled = self._shared.apart("labelled", self._shared.labelled[None].astype(np.float64))
        return self._shared.apart("memberships", self.memberships()) | labelled

    def sizes(self) -> Words:
        """(k,) objects of shared blocks by most likely cluster."""
        return cluster_sizes(self.memberships().argmax(axis=0), self._shared.labelled, self.stage.model.k)

    def check_sizes(self, total: Words) -> None:
        """Raises BrokenTotals unless all objects that have a label are in a cluster, and no others."""
        check_sizes(total, self._counted.objects, self._view)

    def beta(self) -> dict[str, Reals]:
        """(k, categories) of the shared columns, by name."""
        return self._columns.result(self.winner)

    # What is sent, and what is written down.

    def globals_sent(self) -> dict[str, Array]:
        return {ArrayName.of_all(name): self.globals[name] for name in self.stage.model.broadcast}

    def messages_sent(self) -> dict[str, Array]:
        return self._shared.apart("message", self._objects.message)

    def snapshot(self) -> Snapshot:
        return {
            "stage": self.stage.number,
            "iteration": self.iteration,
            "counted": self._counted.objects,
            "globals": self.globals,
            "starts": self.starts.snapshot(),
            "columns": self._columns.snapshot(),
            "shared": self._shared.snapshot(),
            "votes": self._objects.opening.votes,
            "objects": self._objects.snapshot(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        self._shared.restore(snapshot["shared"])
        self._objects = self._shared.objects(snapshot["votes"], self.stage.model.n_starts)
        self._counted = replace(self._view.sizes, objects=snapshot["counted"])
        number, self.iteration = snapshot["stage"], snapshot["iteration"]
        self.stage = Stage.of(number, stage_of(self.stage.model, number), self._view)
        self._objects.restore(self.stage.model, self.stage.scales, snapshot["objects"])
        self.starts = StartSelection.restored(snapshot["starts"], self._drops_starts(self.stage.model))
        self.globals = snapshot["globals"]
        self._columns.restore(snapshot["columns"])
