"""What the engine asks of a model: four pure steps, the sums they exchange, and a bound.

    step    in                                             out
    cell    object messages, column tables, labels         per-object sums, per-column sums, a share of the bound
    column  total of a column's sums                       the column's table (beta)
    global  totals over all objects                        globals (alpha, mu, ...), the bound
    object  total of an object's sums, globals             object state, its message, its shares of the globals' totals

Only the cell step reads labels. A model knows nothing of sites, transport or privacy: the engine decides where each
step runs. Arrays have a leading axis of starts; object arrays are (starts, k, objects), tables (starts, k, categories).
A state is a dict of such arrays, so that the engine can select starts without knowing what is in it.

One-phase models form object sums and column sums in one pass over the cells, from the message that entered it
(BCE, BC3E). Two-phase models need the new message before they can form column sums (mixtures).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ce.kernels.cells import CellSums, TileCells
from ce.ring import Reals, Scale, Words

State = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Sizes:
    """What everybody knows before the first round; scales follow from it. Independent of who holds what."""

    objects: int
    clusterings: int
    classifiers: int
    categories: int  # over all clusterings


@dataclass(frozen=True)
class Opening:
    """What is known of a block's objects before the first iteration; summed once over the sites that hold them."""

    labels: Reals  # (n,) number of cluster labels of each object
    votes: Reals  # (k, n) sum of the classifiers' votes; zero for models without classes
    given: State = field(default_factory=dict)  # of a start: (k, n) arrays, or (starts, k, n) "weights"


def no_votes(k: int, objects: int) -> Reals:
    """(k, n) of models without classes: zeros that take no memory."""
    return np.broadcast_to(0.0, (k, objects))


@dataclass(frozen=True)
class GlobalDecision:
    """The outcome of a global step for each start that took part."""

    bound: Reals  # (starts,) of the state that entered the iteration
    globals: State
    retry: NDArray[np.bool_]  # (starts,) the last step lowered the bound: go back, with these globals
    stop: NDArray[np.bool_] | None = None  # (starts,) the model itself says that it is done; None: none is


class Model(ABC):
    """One consensus model. Instances hold options only, never data or results."""

    phases: ClassVar[Literal[1, 2]]
    uses_votes: ClassVar[bool] = False
    #: Names of the globals that object steps need; the rest is the global step's own memory.
    broadcast: ClassVar[tuple[str, ...]]
    #: The smallest and the largest term that one label can add to one of its object's sums.
    cell_terms: ClassVar[tuple[float, float]] = (0.0, 1.0)
    #: Whether a label is shared out among the clusters, so that its terms sum to 1.
    normalised: ClassVar[bool] = False
    #: Whether an object's sums are one vector per label, whatever the object: then they can be taken apart again.
    linear: ClassVar[bool] = False

    n_starts: int
    k: int
    max_iter: int
    tol: float
    local_loops: int = 1

    # What is summed.

    @abstractmethod
    def scales(self, sizes: Sizes) -> dict[str, Scale]:
        """Scales of "objects" and "columns" (the cells' sums), "votes", every share, and those of `bound_scales`."""

    @abstractmethod
    def share_shapes(self, iteration: int) -> dict[str, tuple[int, ...]]:
        """Shape, without starts, of every total that the global step of this iteration needs, beside the bound."""

    # Starts.

    @abstractmethod
    def start_globals(self, sizes: Sizes, before: State | None) -> State:
        """The first globals; `before` are those of the preceding stage, if there was one."""

    def start_beta(self, drawn: Reals) -> Reals:
        """A column's first table, from a random one (starts, k, categories) whose rows are distributions."""
        return drawn

    @abstractmethod
    def start_objects(self, opening: Opening, globals_: State, before: State | None) -> State:
        """The first object state of a block; `before` is its state in the preceding stage, if there was one."""

    # The four steps.

    @abstractmethod
    def message(self, state: State) -> Reals:
        """(starts, k, n): all that a cell step needs to know of an object, and all that a site is told of it."""

    def cells(self, message: Reals, tables: list[Reals], cells: TileCells, scales: Mapping[str, Scale]) -> CellSums:
        """One-phase models: object sums, column sums and bound share of one tile."""
        raise TypeError(f"{type(self).__name__} is not a one-phase model")

    def object_sums(self, tables: list[Reals], cells: TileCells, n: int, scales: Mapping[str, Scale]) -> Words:
        """Two-phase models, first pass over a tile: (starts, k, n)."""
        raise TypeError(f"{type(self).__name__} is not a two-phase model")

    def column_sums(self, message: Reals, cells: TileCells, scales: Mapping[str, Scale]) -> list[Words]:
        """Two-phase models, second pass over a tile: (starts, k, categories) per column."""
        raise TypeError(f"{type(self).__name__} is not a two-phase model")

    @abstractmethod
    def column(self, sums: Words, scale: Scale) -> Reals:
        """The table that maximises the bound given the column's sums. A row of zeros means: keep the old row."""

    def columns(self, sums: Words, widths: Sequence[int], scale: Scale) -> Reals:
        """The same for several columns whose categories stand side by side, `widths` of each."""
        parts, end = [], 0
        for width in widths:
            parts.append(self.column(np.ascontiguousarray(sums[..., end : end + width]), scale))
            end += width
        return np.concatenate(parts, axis=-1)

    @abstractmethod
    def prior(self, table: Reals) -> Reals:
        """(starts, k, categories) the column's own terms of the bound, each from its own entry of the table."""

    @abstractmethod
    def global_step(self, bound: Reals, totals: State, globals_: State, sizes: Sizes, iteration: int) -> GlobalDecision:
        """The global step. `bound` is the total of all shares, `totals` those of `share_shapes`."""

    @abstractmethod
    def objects(self, sums: Reals, state: State, opening: Opening, globals_: State) -> State:
        """The object step."""

    @abstractmethod
    def shares(self, state: State, sums: Reals, opening: Opening, globals_: State, iteration: int) -> dict[str, Reals]:
        """Per object (starts, *shape, n): its terms of every total in `share_shapes`, and of "bound".

        One-phase models compute them from the state that entered the cell step, and may use the new sums.
        """

    # Results and stopping.

    @abstractmethod
    def memberships(self, state: State) -> Reals:
        """(starts, k, n), summing to 1 over k."""

    @abstractmethod
    def prior_memberships(self, globals_: State) -> Reals:
        """(starts, k): what the model says of an object without a label."""

    def takes_trial_steps(self, iteration: int) -> bool:
        """Whether the object step of this iteration may be taken back in the next (`GlobalDecision.retry`)."""
        return False

    def may_stop(self, iteration: int) -> bool:
        """Whether a start may be called converged after this many iterations."""
        return True

    def next_stage(self) -> Model | None:
        """The model that goes on from this one's result; None for the last."""
        return None


def stage_of(model: Model, stage: int) -> Model:
    """The model that runs in a stage, given that of the first."""
    for _ in range(stage):
        following = model.next_stage()
        assert following is not None
        model = following
    return model


#: No term of the bound per cell, in nats, can be larger: ln of the smallest double is -745.
CELL_BOUND = 1024.0


def bound_scales(terms: int, per_object: int, entries: int, smoothing: float) -> dict[str, Scale]:
    """One fixed point for all that the bound adds up: cells, objects of `per_object` terms, entries of the tables."""
    weight = max(smoothing, 1.0)
    cell = Scale.for_sum(terms + entries * weight, CELL_BOUND)
    return {"bound": cell, "object_bound": cell.times(per_object), "prior": cell.times(weight)}


def fits_the_ring(model: Model, sizes: Sizes) -> bool:
    """Whether all totals of a job of these sizes have room in 64 bits, in every stage."""
    stage: Model | None = model
    while stage is not None:
        if any(scale.bits < 0 for scale in stage.scales(sizes).values()):
            return False
        stage = stage.next_stage()
    return True


def with_unchanged_rows(new: Reals, old: Reals) -> Reals:
    """Adopt a new table except for rows of zeros, which stand for "unchanged"."""
    if new.all():  # with smoothing, always
        return new
    kept: Reals = np.where(new.any(axis=-1, keepdims=True), new, old)
    return kept
