"""What the engine asks of a model: four pure steps, the sums they exchange, and a bound.

    step    in                                             out
    cell    object messages, column parameters, labels     per-object sums, per-column sums, a share of the bound
    column  total of a column's sums                       the column's parameters (beta)
    global  totals over all objects                        globals (alpha, mu, ...), the bound
    object  total of an object's sums, globals             object state, its message, its shares of the globals' totals

Only the cell step reads labels. A model knows nothing of sites, transport or privacy: the engine decides where each
step runs. The first axis of arrays are the starts: object arrays are (starts, k, objects), beta is (starts, k,
categories). A state is a dict of such arrays, so that the engine can select starts without knowing its contents.

One-phase models (BCE, BC3E) compute object sums and column sums in one pass over the cells, from the same message.
Two-phase models (mixtures) need the new message before they can compute column sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ce.kernels.cells import CellSums, TileCells
from ce.ring import Precision, Reals, Scale, Words

State = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a job, which every party knows before the first round; scales follow from them. They do not depend on
    which site holds what."""

    objects: int
    clusterings: int
    classifiers: int
    categories: int  # over all clusterings


@dataclass(frozen=True)
class Opening:
    """What is known about a block's objects before the first iteration, summed once over the sites that hold them."""

    labels: Reals  # (n,) number of cluster labels of each object
    votes: Reals  # (k, n) sum of the classifiers' votes; zero for models without classes
    given: State = field(default_factory=dict)  # a given start: (k, n) arrays, or (starts, k, n) "weights"


def no_votes(k: int, objects: int) -> Reals:
    """(k, n) zeros, which take no memory: the votes of models without classes."""
    return np.broadcast_to(0.0, (k, objects))


@dataclass(frozen=True)
class GlobalDecision:
    """The outcome of a global step for each start that took part."""

    bound: Reals  # (starts,) of the state at the beginning of the iteration
    globals: State
    retry: NDArray[np.bool_]  # (starts,) the last step lowered the bound: take it back and use these globals
    stop: NDArray[np.bool_] | None = None  # (starts,) the model declares the start finished; None: no start is
    may_stop: NDArray[np.bool_] | None = None  # (starts,) whether it may count as converged; None: every start may
    #: (starts,) how often hopeless starts may be dropped by now, as far as this start is concerned. None: never.
    halvings: Reals | None = None


@dataclass(frozen=True)
class Rest:
    """When the labels of a start are at rest, so that it may stop although its bound still moves a little: in each of
    so many iterations at most this share of the labels moved, and the bound changed by less than the tolerance,
    relative."""

    iterations: int = 5
    share: float = 0.0
    tolerance: float = 1e-4


@dataclass(frozen=True)
class AuditHints:
    """How `ce audit` reads a model's messages and totals. Without hints only attacks that fit any model are played."""

    #: How an object's sums follow from its message: "dirichlet", message_h ∝ exp(psi(alpha_h + sum_h)), with the
    #: global "alpha"; "weights", message_h ∝ weights_h exp(sum_h), with the global "weights"; None: they do not.
    message: Literal["dirichlet", "weights"] | None = None
    #: Whether an object's sums add ln beta of its labels (True), or beta itself.
    log_beta: bool = False
    #: Whether a label adds message_h beta_h / sum_g message_g beta_g, so that least squares take a total apart.
    posterior_sums: bool = False


class Model(ABC):
    """One consensus model. Instances hold options only, never data or results."""

    phases: ClassVar[Literal[1, 2]]
    uses_votes: ClassVar[bool] = False
    #: Names of the globals that object steps need; only the global step uses the others.
    broadcast: ClassVar[tuple[str, ...]]
    #: The smallest and the largest term that one label can add to one of its object's sums.
    cell_terms: ClassVar[tuple[float, float]] = (0.0, 1.0)
    #: Whether the terms of one label, over the clusters, sum to 1.
    normalised: ClassVar[bool] = False
    #: Whether a label adds the same vector to the sums of every object. Such sums can be unmixed (docs/audit.md).
    linear: ClassVar[bool] = False
    #: What an audit must know to play every attack.
    audit: ClassVar[AuditHints] = AuditHints()

    n_starts: int
    k: int
    max_iter: int
    tol: float
    local_loops: int = 1
    rest: Rest = Rest()  # the second way to converge
    #: Whether hopeless starts are dropped. None: in jobs whose columns all loop at their sites, where nothing is lost.
    halving: bool | None = False
    #: Of the job. "single": the scales of `cell_scales` are of 32-bit words where they can be, and messages of 32 bits.
    precision: Precision = "double"

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

    def can_have(self, globals_: State, iteration: int) -> bool:
        """Whether an honest home can send these in this iteration, as far as a site relies on it."""
        return True

    def start_beta(self, drawn: Reals) -> Reals:
        """A column's first beta, from a random one (starts, k, categories) whose rows are distributions."""
        return drawn

    @abstractmethod
    def start_objects(self, opening: Opening, globals_: State, before: State | None) -> State:
        """The first object state of a block; `before` is its state in the preceding stage, if there was one."""

    # The four steps.

    @abstractmethod
    def message(self, state: State) -> Reals:
        """(starts, k, n): all that a cell step needs to know about an object, and all that a site is sent about it."""

    def cells(self, message: Reals, betas: list[Reals], cells: TileCells, scales: Mapping[str, Scale]) -> CellSums:
        """One-phase models: object sums, column sums and bound share of one tile."""
        raise TypeError(f"{type(self).__name__} is not a one-phase model")

    def object_sums(self, betas: list[Reals], cells: TileCells, n: int, scales: Mapping[str, Scale]) -> Words:
        """Two-phase models, first pass over a tile: (starts, k, n)."""
        raise TypeError(f"{type(self).__name__} is not a two-phase model")

    def column_sums(self, message: Reals, cells: TileCells, scales: Mapping[str, Scale]) -> list[Words]:
        """Two-phase models, second pass over a tile: (starts, k, categories) per column."""
        raise TypeError(f"{type(self).__name__} is not a two-phase model")

    @abstractmethod
    def column(self, sums: Words, scale: Scale) -> Reals:
        """The beta that maximises the bound given the column's sums. A row of zeros means: unchanged."""

    def columns(self, sums: Words, widths: Sequence[int], scale: Scale) -> Reals:
        """The same for several columns whose categories are side by side; `widths` are their numbers of categories."""
        parts, end = [], 0
        for width in widths:
            parts.append(self.column(np.ascontiguousarray(sums[..., end : end + width]), scale))
            end += width
        return np.concatenate(parts, axis=-1)

    @abstractmethod
    def prior(self, beta: Reals) -> Reals:
        """(starts, k, categories) the column's terms of the bound, one per entry of beta."""

    @abstractmethod
    def global_step(self, bound: Reals, totals: State, globals_: State, sizes: Sizes, iteration: int) -> GlobalDecision:
        """The global step. `bound` is the total of all shares of the bound. `totals` has those of `share_shapes`, and
        "moved" (starts,): how many objects have another most likely cluster since the last object step.
        """

    def decides_at_once(self, globals_: State) -> bool:
        """Whether `global_step` does a fixed number of operations with each number that it is given, and no search: a
        daemon need not do it apart from other work."""
        return False

    @abstractmethod
    def objects(self, sums: Reals, state: State, opening: Opening, globals_: State) -> State:
        """The object step."""

    @abstractmethod
    def shares(self, state: State, sums: Reals, opening: Opening, globals_: State, iteration: int) -> dict[str, Reals]:
        """Per object (starts, *shape, n): its terms of every total in `share_shapes`, and of "bound".

        One-phase models compute them from the state before the cell step, and may use the new sums.
        """

    def rounding_of_bound(self, message: Reals, sums: Reals) -> Reals | float:
        """Single precision: what is added to the bound of each object (starts, n) because the cell step took its
        message rounded (`ce.steps.precision`)."""
        return 0.0

    # Results and stopping.

    @abstractmethod
    def memberships(self, state: State) -> Reals:
        """(starts, k, n), summing to 1 over k."""

    @abstractmethod
    def prior_memberships(self, globals_: State) -> Reals:
        """(starts, k): the memberships of an object without a label."""

    def takes_trial_steps(self, iteration: int) -> bool:
        """Whether the object step of this iteration may be taken back in the next one (`GlobalDecision.retry`)."""
        return False

    def next_stage(self) -> Model | None:
        """The model that continues from this one's result; None for the last one."""
        return None


def stage_of(model: Model, stage: int) -> Model:
    """The model of a stage, given that of the first stage."""
    for _ in range(stage):
        following = model.next_stage()
        assert following is not None
        model = following
    return model


def last_stage(model: Model) -> Model:
    """The model of the last stage, given that of the first: its bound is the one that is reported."""
    while (following := model.next_stage()) is not None:
        model = following
    return model


#: Limit of one cell's term of the bound, in nats: ln of the smallest double is -745.
CELL_BOUND = 1024.0


def bound_scales(terms: int, per_object: int, entries: int, smoothing: float) -> dict[str, Scale]:
    """One fixed point for all terms of the bound: cells, objects of `per_object` terms, entries of beta."""
    weight = max(smoothing, 1.0)
    cell = Scale.for_sum(terms + entries * weight, CELL_BOUND)
    return {"bound": cell, "object_bound": cell.times(per_object), "prior": cell.times(weight)}


def fits_the_ring(model: Model, sizes: Sizes) -> bool:
    """Whether all totals of a job of these sizes fit in 64 bits, in every stage."""
    stage: Model | None = model
    while stage is not None:
        if any(scale.bits < 0 for scale in stage.scales(sizes).values()):
            return False
        stage = stage.next_stage()
    return True


def with_unchanged_rows(new: Reals, old: Reals) -> Reals:
    """The new beta, with the old row in place of each row of zeros, which stands for "unchanged"."""
    if np.count_nonzero(new) == new.size:  # with smoothing, always
        return new
    merged: Reals = np.where(new.any(axis=-1, keepdims=True), new, old)
    return merged
