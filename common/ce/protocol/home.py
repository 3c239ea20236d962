"""The engine at the home: adds what sites send, runs the column step of shared columns, the global step and the object
step of shared blocks, and says what comes next. No clock, no connection: answers in, tasks out.

    home = Home(topology, model)
    while (tasks := home.tasks()): exchange them, home.add(site, answer) for each, home.advance()

Words are added into one preallocated accumulator per array as answers arrive; memory does not grow with the sites.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError, MessageError, Refused
from ce.protocol.messages import Answer, Array, Piece, Step, Task, fraction_bits, pieces
from ce.protocol.objects import ObjectBlock, cluster_sizes, select
from ce.protocol.stopping import Path, winner
from ce.protocol.topology import Topology, column_groups
from ce.protocol.totals import Asked, Totals
from ce.ring import Reals, Scale, Words, decode, weighted_total
from ce.steps.agreement import agreement, kappa
from ce.steps.model import Model, Opening, State, keep_old_rows


@dataclass(frozen=True)
class Progress:
    """Where a job stands after an iteration."""

    stage: int
    iteration: int
    max_iter: int
    running: int  # starts that have not converged
    bound: float  # the best so far
    has_bound: bool  # whether this stage's bound means anything


@dataclass(frozen=True)
class Outcome:
    """What the home knows at the end."""

    winner: int
    globals: State  # of the winner, axis of starts kept (length 1)
    paths: dict[int, Path]
    iterations: int
    exchanges: int
    kappa: float | None  # do the clusterings follow the classes? None for models without votes
    sizes: Words  # (k,) objects by most likely cluster, those without a label left out
    tables: dict[str, Reals]  # (k, categories) of the shared columns; those with one holder stay there


class Home:
    """One job's engine at its home."""

    def __init__(self, topology: Topology, model: Model, on_progress: Callable[[Progress], None] | None = None) -> None:
        self._topology = topology
        self._sizes = topology.sizes
        self._on_progress = on_progress
        self._groups = column_groups(topology.columns)
        self._shared_columns = [column for group in self._groups.values() for column in group.columns]
        self._shared_blocks = [b for b in topology.blocks if b.shared]
        ends = np.cumsum([b.size for b in self._shared_blocks], dtype=int).tolist()
        self._slices = {b.index: slice(e - b.size, e) for b, e in zip(self._shared_blocks, ends, strict=True)}
        self._objects: ObjectBlock  # of all shared blocks, one after the other
        self._round = 0
        self._step: Step | None = None  # None: the job is over
        self._totals: Totals
        self._by_site: dict[tuple[str, ...], dict[str, list[str]]] = {}
        self._exchanges = 0
        self._stage = 0
        self._iteration = 0
        self._active: tuple[int, ...] = ()
        self._retry: tuple[int, ...] = ()
        self._down: dict[str, Array] = {}  # arrays of the next task, by name; each site gets those it may see
        self._kappa: float | None = None
        self._set_model(model)
        self._await("open")

    # What the outside calls.

    def tasks(self) -> dict[str, Task]:
        """The task that each site gets now; none when the job is over."""
        if self._step is None:
            return {}
        return {site: self._task(site) for site in self._topology.sites}

    @property
    def round(self) -> int:
        return self._round

    @property
    def words(self) -> int:
        """Numbers in the totals of this round."""
        return self._totals.size

    @property
    def waiting(self) -> Collection[str]:
        """Sites that have not answered yet."""
        return self._totals.waiting

    def add(self, site: str, answer: Answer) -> None:
        """Add one site's whole answer to the totals."""
        self.begin(site, answer)
        for piece in pieces(answer):
            self.add_piece(site, piece)
        self.end(site)

    def begin(self, site: str, answer: Answer) -> None:
        """A site begins its answer, or begins it again; its arrays follow as pieces."""
        if answer.round != self._round or answer.step != self._step or answer.starts != self._active:
            raise MessageError(f"{site}: answers another round, step or set of starts")
        self._totals.begin(site)

    def add_piece(self, site: str, piece: Piece) -> None:
        self._totals.add(site, piece)

    def end(self, site: str) -> None:
        self._totals.end(site)

    def advance(self) -> None:
        """All have answered: run the home's steps and prepare the next task."""
        if self.waiting:
            raise MessageError(f"{len(self.waiting)} sites have not answered")
        self._exchanges += self._step != "finish"
        match self._step:
            case "open":
                self._opened()
            case "sums" | "objects":
                self._summed()
            case "columns":
                self._down = self._globals_down() | self._tables_down()
                self._next_iteration()
            case "view":
                self._viewed()
            case _:
                self._cluster_sizes = self._totals["global/sizes"] + self._shared_sizes
                self._step = None

    @property
    def outcome(self) -> Outcome:
        """The end result; only after the last task."""
        return Outcome(
            self._winner,
            self._final_globals,
            self._paths,
            self._paths[self._winner].iterations,
            self._exchanges,
            self._kappa,
            self._cluster_sizes,
            {column.name: self._stopped_tables[self._winner][column.index] for column in self._shared_columns},
        )

    # Steps.

    def _opened(self) -> None:
        for block in self._shared_blocks:
            for column in self._topology.contested(block):
                claims = self._totals[f"block/{block.index}/claims/{column.index}"]
                twice = int((claims > 1).sum())
                if twice:
                    holders = " and ".join(site for site in column.holders if site in block.members)
                    raise Refused(
                        "overlapping cells",
                        f"column {column.name!r}: objects with a label at more than one of {holders}: {twice}; "
                        "a cell belongs to one site: drop the label at all but one, or rename the column at one",
                    )
        labels = self._concatenated("labels", ()).astype(np.float64)
        votes = np.zeros((self._model.k, len(labels)))
        if self._model.uses_votes:
            votes = decode(self._concatenated("votes", (self._model.k,)), self._scales["votes"])
        # An object without a label anywhere is there to be answered for, but counts nothing.
        labelled = (labels > 0) | (votes.sum(axis=0) > 0)
        self._labelled = labelled.astype(np.int64)
        self._objects = ObjectBlock(Opening(labels, votes), None if labelled.all() else self._labelled)
        count = int(self._totals["global/objects"][0]) + int(self._labelled.sum())
        if not 0 <= count <= self._sizes.objects:
            raise MessageError("global/objects: the sites count more objects with a label than they enrolled")
        if count == 0:
            raise InputError("no object has a label that this model uses")
        self._counted = replace(self._sizes, objects=count)
        self._begin_stage(None)

    def _begin_stage(self, before: State | None) -> None:
        self._active = tuple(range(self._model.n_starts))
        self._retry = ()
        self._iteration = 0
        self._paths = {start: Path() for start in self._active}
        self._stopped_globals: dict[int, State] = {}
        self._stopped_tables: dict[int, dict[int, Reals]] = {}
        # Starting tables are the sites' secret: a row is unknown here until it is first computed.
        shape = (len(self._active), self._model.k)
        self._tables = {c.index: np.full((*shape, len(c.categories)), np.nan) for c in self._shared_columns}
        self._globals = self._model.start_globals(self._sizes, before)
        before_objects = self._objects.result(0) if self._stage else None
        self._objects.begin(self._model, self._scales, self._globals, before_objects)
        self._down = self._globals_down()
        if self._model.phases == 1:
            self._down |= self._messages_down()
        self._next_iteration()

    def _next_iteration(self) -> None:
        self._iteration += 1
        self._await(self._first_step)

    def _summed(self) -> None:
        """The global step, then what each start does next: go on, go back, or stop."""
        model = self._model
        totals = {n: self._totals[f"global/{n}"] for n in (*model.share_shapes(self._iteration), "bound", "moved")}
        self._objects.receive(self._concatenated("sums", (len(self._active), model.k)), self._globals)
        for name, share in self._objects.shares(self._globals, self._iteration).items():
            totals[name] = totals[name] + share
        bound = decode(totals["bound"], self._scales["bound"])
        reals = {n: decode(totals[n], self._scales[n]) for n in model.share_shapes(self._iteration)}
        settled = model.settle(bound, reals, self._globals, self._counted, self._iteration)
        kept = self._judge(settled.bound, settled.retry, totals["moved"])
        if settled.stop is not None:
            kept &= ~settled.stop
        for position, start in enumerate(self._active):
            if not kept[position]:
                self._stop(position, start)
        where = np.flatnonzero(kept)
        self._tables = {index: table[where] for index, table in self._tables.items()}
        self._active = tuple(start for start, keep in zip(self._active, kept, strict=True) if keep)
        self._report()
        if not self._active:
            # Globals that follow from the final objects, for the stage that goes on from here.
            self._end_stage(settled.globals)
            return
        retry = settled.retry[where]
        self._retry = tuple(start for start, again in zip(self._active, retry, strict=True) if again)
        self._globals = select(settled.globals, where)
        if model.phases == 1:
            self._objects.update(where, retry, self._globals)
        else:
            self._objects.keep(where)
        if self._step == "objects":
            self._down = self._messages_down()
            self._await("columns")
            return
        self._down = self._globals_down() | self._messages_down() | self._tables_down(where, retry)
        self._next_iteration()

    def _judge(self, bound: Reals, retry: NDArray[np.bool_], moved: Words) -> NDArray[np.bool_]:
        """Which starts go on. A step that is taken back is no iteration: the one that replaces it is."""
        kept = np.ones(len(self._active), dtype=bool)
        for position, start in enumerate(self._active):
            if retry[position]:
                continue
            path = self._paths[start]
            path.accept(float(bound[position]), int(moved[position]))
            path.converged = self._model.may_stop(path.iterations) and path.has_converged(self._model.tol)
            kept[position] = not path.converged and path.iterations < self._model.max_iter
        return kept

    def _stop(self, position: int, start: int) -> None:
        self._stopped_globals[start] = select(self._globals, np.array([position]))
        self._stopped_tables[start] = {index: table[position] for index, table in self._tables.items()}
        self._objects.stop(position, start)

    def _end_stage(self, last_globals: State) -> None:
        following = self._model.next_stage()
        if following is not None:
            self._stage += 1
            self._set_model(following)
            self._begin_stage(last_globals)
            return
        self._winner = winner(self._paths)
        self._final_globals = self._stopped_globals[self._winner]
        self._active = (self._winner,)
        self._retry = ()
        self._down = {f"global/{n}": self._final_globals[n] for n in self._model.broadcast}
        if self._model.uses_votes:
            self._await("view")
        else:
            self._finish()

    def _viewed(self) -> None:
        view = decode(self._concatenated("sums", (1, self._model.k)), self._scales["objects"])
        seen = agreement(view, self._objects.opening).astype(np.int64)
        total = self._totals["global/agreement"] + weighted_total(seen, None)
        self._kappa = float(kappa(total.astype(np.float64))[0, 0])
        self._finish()

    def _finish(self) -> None:
        memberships = self._model.memberships(self._objects.result(self._winner))
        self._shared_sizes = cluster_sizes(memberships[0].argmax(axis=0), self._labelled, self._model.k)
        self._down |= self._by_block("memberships", memberships[0])
        self._down |= self._by_block("labelled", self._labelled[None].astype(np.float64))
        self._await("finish")

    # What goes down.

    def _globals_down(self) -> dict[str, Array]:
        return {f"global/{name}": self._globals[name] for name in self._model.broadcast}

    def _messages_down(self) -> dict[str, Array]:
        return self._by_block("message", self._objects.message)

    def _by_block(self, what: str, array: Reals) -> dict[str, Array]:
        return {f"block/{index}/{what}": array[..., part] for index, part in self._slices.items()}

    def _tables_down(
        self, kept: NDArray[np.intp] | None = None, retry: NDArray[np.bool_] | None = None
    ) -> dict[str, Array]:
        """New tables of shared columns; a row of zeros, as for all rows of a start that goes back, means "keep"."""
        down: dict[str, Array] = {}
        for group in self._groups.values():
            sums = self._totals[f"columns/{group.index}/sums"]
            sums = sums if kept is None else sums[kept]
            tables = self._model.columns(sums, group.widths, self._scales["columns"])
            if retry is not None:
                tables[retry] = 0.0
            complete = bool(tables.all())
            for index, where in group.slices.items():
                table = tables[..., where]
                self._tables[index] = table if complete else keep_old_rows(table, self._tables[index])
            down[f"columns/{group.index}/tables"] = tables
        return down

    def _task(self, site: str) -> Task:
        assert self._step is not None
        arrays = {name: array for name, array in self._down.items() if self._concerns(site, name)}
        return Task(self._round, self._step, self._stage, self._iteration, self._active, self._retry, arrays)

    # What comes up.

    def _await(self, step: Step) -> None:
        """Open a round: one accumulator per array that is asked for."""
        self._step = step
        self._round += 1
        asked = {n: Asked(shape, fraction_bits(n, self._scales)) for n, shape in self._asked(step).items()}
        names = tuple(asked)
        if names not in self._by_site:  # rounds of a stage ask for the same, again and again
            self._by_site[names] = {s: [n for n in names if self._concerns(s, n)] for s in self._topology.sites}
        self._totals = Totals(asked, self._by_site[names])

    def _concatenated(self, what: str, shape: tuple[int, ...]) -> Words:
        """The totals of all shared blocks, one after the other."""
        parts = [self._totals[f"block/{index}/{what}"] for index in self._slices]
        return np.concatenate(parts or [np.zeros((*shape, 0), dtype=np.int64)], axis=-1)

    def _asked(self, step: Step) -> dict[str, tuple[int, ...]]:
        """Name and shape of every total of a round."""
        starts, k = len(self._active), self._model.k
        shapes: dict[str, tuple[int, ...]] = {}
        if step == "open":
            shapes["global/objects"] = (1,)
            for block in self._shared_blocks:
                shapes[f"block/{block.index}/labels"] = (block.size,)
                if self._model.uses_votes:
                    shapes[f"block/{block.index}/votes"] = (k, block.size)
                for column in self._topology.contested(block):
                    shapes[f"block/{block.index}/claims/{column.index}"] = (block.size,)
        if step in ("sums", "objects", "view"):
            for block in self._shared_blocks:
                shapes[f"block/{block.index}/sums"] = (starts, k, block.size)
        if step in ("sums", "objects"):
            for name, shape in self._model.share_shapes(self._iteration).items():
                shapes[f"global/{name}"] = (starts, *shape)
            shapes["global/bound"] = shapes["global/moved"] = (starts,)
        if step in ("sums", "columns"):
            for group in self._groups.values():
                shapes[f"columns/{group.index}/sums"] = (starts, k, group.width)
        if step == "view":
            shapes["global/agreement"] = (1, k * k)
        if step == "finish":
            shapes["global/sizes"] = (k,)
        return shapes

    def _concerns(self, site: str, name: str) -> bool:
        """Whether a site is a member of the block and a holder of the columns that an array belongs to."""
        kind, *rest = name.split("/")
        if kind == "global":
            return True
        if kind == "columns":
            return site in self._groups[int(rest[0])].holders
        if site not in self._topology.blocks[int(rest[0])].members:
            return False
        return rest[1] != "claims" or site in self._topology.columns[int(rest[2])].holders

    # Bookkeeping.

    def _set_model(self, model: Model) -> None:
        self._model = model
        self._scales: dict[str, Scale] = model.scales(self._sizes)
        split = model.phases == 2 and self._topology.needs_two_exchanges
        self._first_step: Step = "objects" if split else "sums"

    def _report(self) -> None:
        if self._on_progress is None:
            return
        bounds = [path.bounds[-1] for path in self._paths.values() if path.bounds]
        self._on_progress(
            Progress(
                self._stage,
                self._iteration - 1,
                self._model.max_iter,
                len(self._active),
                max(bounds),
                self._model.next_stage() is None,
            )
        )
