"""The engine at the home: adds what sites send, runs the column step of shared columns, the global step and the object
step of shared blocks, and says what comes next. No clock, no connection: answers in, tasks out.

    home = Home(topology.whole(), model)
    while (tasks := home.tasks()): exchange them, home.add(site, answer) for each, home.advance()

Words are added into one preallocated accumulator per array as answers arrive; memory does not grow with the sites.

In `blind` every site is a home of its own blocks and columns (`member`), given totals that somebody else added up
without being able to read them. What only some sites know, the shares of a block that not all of them hold, its first
member contributes in an exchange of its own, "shares".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError, MessageError
from ce.protocol.engine.accumulators import Accumulators, AddingUp, Asked
from ce.protocol.engine.convergence import BoundPath, winner
from ce.protocol.engine.invariants import check_column_sums, check_object_sums, check_opening, check_shares
from ce.protocol.engine.object_state import ObjectState, cluster_sizes, select
from ce.protocol.engine.shared_objects import Pseudonyms, SharedObjects
from ce.protocol.engine.snapshots import Snapshot, by_number, numbered
from ce.protocol.messages.steps import asked, first_step, shares_of
from ce.protocol.messages.task import Answer, Array, Step, Task, fraction_bits
from ce.protocol.topology.topology import SiteView
from ce.ring import Reals, Scale, Words, decode
from ce.steps.agreement import kappa
from ce.steps.model import GlobalDecision, Model, State, no_votes, stage_of, with_unchanged_rows


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
    paths: dict[int, BoundPath]
    iterations: int
    exchanges: int
    kappa: float | None  # do the clusterings follow the classes? None for models without votes
    sizes: Words | None  # (k,) objects by most likely cluster, those without a label left out; None in blind
    tables: dict[str, Reals]  # (k, categories) of the shared columns; those with one holder stay there


class Home(AddingUp):
    """One job's engine at its home."""

    def __init__(
        self,
        view: SiteView,
        model: Model,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        member: str | None = None,
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        """`pseudonyms` of the objects of shared blocks, in a distributed job: where they begin follows from them."""
        self._view = view
        self._sizes = view.sizes
        self._on_progress = on_progress
        self._member = member
        self._sites = view.sites if member is None else (member,)
        self._groups = view.groups
        self._shared_columns = [column for group in self._groups.values() for column in group.columns]
        self._scattered = member is not None and not view.shared_by_all
        self._shared = SharedObjects(view, member if self._scattered else None, pseudonyms)
        self._objects: ObjectState  # of all shared blocks, one after the other
        self._round = 0
        self._step: Step | None = None  # None: the job is over
        self._totals: Accumulators
        self._column_sums: dict[int, Words] = {}  # of the last exchange that asked for them
        self._whole: dict[str, Words] = {}  # totals over all objects, by name, as far as they are known
        self._own_shares: dict[str, Words] = {}  # the shared blocks' part of these
        self._owed_to: Step | None = None  # the step whose totals the exchange of shares completes
        self._concerned: dict[tuple[str, str], bool] = {}
        self._by_site: dict[tuple[str, ...], dict[str, list[str]]] = {}
        self._exchanges = 0
        self._stage = 0
        self._iteration = 0
        self._active: tuple[int, ...] = ()
        self._retry: tuple[int, ...] = ()
        self._down: dict[str, Array] = {}  # arrays of the next task, by name; each site gets those it may see
        self._globals: State
        self._stopped_globals: dict[int, State]
        self._stopped_tables: dict[int, dict[int, Reals]]
        self._resume = 0  # the origin of the state that the sites are to go on from, in a round that was restored
        self._kappa: float | None = None
        self._cluster_sizes: Words | None = None
        self._set_model(model)
        self._await("open")

    # What the outside calls.

    def tasks(self, keep: int = 0) -> dict[str, Task]:
        """The task that each site gets now; none when the job is over. `keep`: see `Task`."""
        if self._step is None:
            return {}
        return {site: self._task(site, keep) for site in self._sites}

    @property
    def begins_iteration(self) -> bool:
        """Whether the open round is one of which a snapshot can be taken."""
        return self._step == self._first_step

    def snapshot(self) -> Snapshot:
        """All that the open round and what follows build on, beside the view. Taken before anybody has answered."""
        return {
            "round": self._round,
            "stage": self._stage,
            "iteration": self._iteration,
            "exchanges": self._exchanges,
            "active": self._active,
            "retry": self._retry,
            "counted": self._counted.objects,
            "globals": self._globals,
            "paths": {str(start): path.snapshot() for start, path in self._paths.items()},
            "tables": numbered(self._tables),
            "stopped_globals": numbered(self._stopped_globals),
            "stopped_tables": {str(start): numbered(tables) for start, tables in self._stopped_tables.items()},
            "shared": self._shared.snapshot(),
            "votes": self._objects.opening.votes,
            "objects": self._objects.snapshot(),
        }

    def restore(self, kept: Snapshot, origin: int = 0) -> None:
        """Open the round of a snapshot again; with an `origin` its tasks ask the sites to go on from theirs."""
        self._shared.restore(kept["shared"])
        self._objects = self._shared.objects(kept["votes"], self._model.n_starts)
        self._counted = replace(self._sizes, objects=kept["counted"])
        self._stage, self._iteration = kept["stage"], kept["iteration"]
        self._set_model(stage_of(self._model, self._stage))
        self._objects.restore(self._model, self._scales, kept["objects"])
        self._active, self._retry = tuple(kept["active"]), tuple(kept["retry"])
        self._globals = kept["globals"]
        self._paths = {start: BoundPath(**own) for start, own in by_number(kept["paths"]).items()}
        self._tables = by_number(kept["tables"])
        self._stopped_globals = by_number(kept["stopped_globals"])
        self._stopped_tables = {s: by_number(own) for s, own in by_number(kept["stopped_tables"]).items()}
        self._exchanges = kept["exchanges"]
        self._down = {}
        self._round = kept["round"] - 1
        self._await(self._first_step)
        self._resume = origin

    @property
    def step(self) -> Step | None:
        """The step of the open round; None when the job is over."""
        return self._step

    @property
    def active(self) -> tuple[int, ...]:
        """The starts that take part in the open round."""
        return self._active

    @property
    def n_starts(self) -> int:
        """All starts of the present stage, also those that have stopped."""
        return self._model.n_starts

    @property
    def stage(self) -> int:
        return self._stage

    @property
    def globals(self) -> State:
        return self._globals

    @property
    def decides(self) -> bool:
        """Whether the global step is next, once the open round is complete."""
        step = self._owed_to if self._step == "shares" else self._step
        return step in ("sums", "objects") and (self._step == "shares" or not self._scattered)

    @property
    def widened(self) -> bool:
        """Whether the arrays of the open round have one entry for each start."""
        step = self._owed_to if self._step == "shares" else self._step
        return step in ("sums", "objects", "columns")

    @property
    def bound_path(self) -> tuple[float, ...]:
        """The best bound of all starts after each iteration of this stage so far, as it was reported then."""
        paths = [path.bounds for path in self._paths.values() if path.bounds]
        longest = max(map(len, paths), default=0)
        return tuple(max(bounds[min(at, len(bounds) - 1)] for bounds in paths) for at in range(longest))

    def fraction_bits(self, name: str) -> int:
        """The fixed point of an array of the open round."""
        return fraction_bits(name, self._scales)

    @property
    def own_shares(self) -> dict[str, Array]:
        """What a member answers in an exchange of shares: those of the shared blocks that it speaks for."""
        return {f"global/{name}": words for name, words in self._own_shares.items()}

    def begin(self, site: str, answer: Answer) -> None:
        """A site begins its answer, or begins it again; its arrays follow as pieces."""
        if answer.round != self._round or answer.step != self._step or answer.starts != self._active:
            raise MessageError(f"{site}: answers another round, step or set of starts")
        self._totals.begin(site)

    def fill(self, totals: Mapping[str, Words]) -> None:
        """Take the round's totals from somebody who has added them up."""
        self._totals.fill(totals)

    def advance(self, decision: GlobalDecision | None = None) -> GlobalDecision | None:
        """All have answered: run the home's steps and prepare the next task.

        Where several homes must agree, one decides, and the others are given what it `settled`. Returns what was
        settled, by whomever; None after a step that settles nothing.
        """
        if self.waiting:
            raise MessageError(f"{len(self.waiting)} sites have not answered")
        step = self._step
        self._exchanges += step != "finish"
        if step == "shares":
            for name, total in self._whole.items():
                self._whole[name] = total + self._totals[f"global/{name}"]
            return self._complete(self._owed_to, decision)
        self._whole = {n.removeprefix("global/"): self._totals[n] for n in shares_of(self._shapes)}
        match step:
            case "open":
                uses_votes = self._model.uses_votes
                count = self._shared.open(self._totals, self._shapes, self._scales, uses_votes)
                self._own_shares = {"objects": count}
            case "sums" | "objects":
                self._take_column_sums()
                self._own_shares = self._received()
            case "clusterings_only":
                self._own_shares = self._viewed()
            case "finish" if self._member is None:
                self._own_shares = {"sizes": self._shared_sizes}
            case "columns":
                self._take_column_sums()
                self._own_shares = {}
            case _:
                self._own_shares = {}
        if self._scattered and self._own_shares:
            self._owed_to = step
            self._await("shares")
            return None
        for name, share in self._own_shares.items():
            self._whole[name] = self._whole[name] + share
        return self._complete(step, decision)

    def _complete(self, step: Step | None, decision: GlobalDecision | None) -> GlobalDecision | None:
        """All totals of a step are known."""
        match step:
            case "open":
                self._begin()
            case "counts" if self._model.uses_votes:
                self._down = {}
                self._await("votes")
            case "counts":
                self._voted(no_votes(self._model.k, len(self._shared.labels)))
            case "votes":
                for name in self._shapes:
                    check_opening(name, self._totals[name], self._sizes, self._scales)
                self._voted(
                    decode(self._shared.together(self._totals, "votes", (self._model.k,)), self._scales["votes"])
                )
            case "sums" | "objects":
                return self._settle(step, decision)
            case "columns":
                self._down = self._globals_down() | self._tables_down()
                self._next_iteration()
            case "clusterings_only":
                check_shares("agreement", self._whole["agreement"], self._sizes)
                self._kappa = float(kappa(self._whole["agreement"].astype(np.float64))[0, 0])
                self._finish()
            case _:
                if self._member is None:
                    check_shares("sizes", self._whole["sizes"], self._sizes)
                    self._cluster_sizes = self._whole["sizes"]
                self._step = None
        return None

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

    def _begin(self) -> None:
        """How many objects count is known. The members are told how many labels each of theirs has."""
        check_opening("global/objects", self._whole["objects"], self._sizes, self._scales)
        count = int(self._whole["objects"][0])
        if count == 0:
            raise InputError("no object has a label that this model uses")
        self._counted = replace(self._sizes, objects=count)
        self._down = self._shared.counts
        self._await("counts")

    def _voted(self, votes: Reals) -> None:
        """All that there is to know before the first iteration: the first stage begins."""
        self._objects = self._shared.objects(votes, self._model.n_starts)
        self._begin_stage(None)

    def _begin_stage(self, before: State | None) -> None:
        self._active = tuple(range(self._model.n_starts))
        self._retry = ()
        self._iteration = 0
        self._paths = {start: BoundPath() for start in self._active}
        self._stopped_globals = {}
        self._stopped_tables = {}
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

    def _received(self) -> dict[str, Words]:
        """Object sums have come: the shared blocks' part of the global totals."""
        sums = self._shared.together(self._totals, "sums", (len(self._active), self._model.k))
        check_object_sums(sums, self._shared.labels, self._model, self._scales["objects"])
        self._objects.receive(sums, self._globals)
        return self._objects.shares(self._globals, self._iteration)

    def _take_column_sums(self) -> None:
        for index in self._groups:
            name = f"columns/{index}/sums"
            if name in self._shapes:
                check_column_sums(self._totals[name], self._sizes, self._scales["columns"])
                self._column_sums[index] = self._totals[name]

    def _settle(self, step: Step, decision: GlobalDecision | None) -> GlobalDecision:
        """The global step, then what each start does next: go on, go back, or stop."""
        model, totals = self._model, self._whole
        for name, total in totals.items():
            check_shares(name, total, self._sizes)
        if decision is None:
            bound = decode(totals["bound"], self._scales["bound"])
            reals = {n: decode(totals[n], self._scales[n]) for n in model.share_shapes(self._iteration)}
            decision = model.global_step(bound, reals, self._globals, self._counted, self._iteration)
        kept = self._judge(decision.bound, decision.retry, totals["moved"])
        if decision.stop is not None:
            kept &= ~decision.stop
        for position, start in enumerate(self._active):
            if not kept[position]:
                self._stop(position, start)
        where = np.flatnonzero(kept)
        self._tables = {index: table[where] for index, table in self._tables.items()}
        self._active = tuple(start for start, keep in zip(self._active, kept, strict=True) if keep)
        self._report()
        if not self._active:
            # Globals that follow from the final objects, for the stage that goes on from here.
            self._end_stage(decision.globals)
            return decision
        retry = decision.retry[where]
        self._retry = tuple(start for start, again in zip(self._active, retry, strict=True) if again)
        self._globals = select(decision.globals, where)
        if model.phases == 1:
            self._objects.update(where, retry, self._globals)
        else:
            self._objects.keep(where)
        if step == "objects":
            self._down = self._messages_down()
            self._await("columns")
            return decision
        self._down = self._globals_down() | self._messages_down() | self._tables_down(where, retry)
        self._next_iteration()
        return decision

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
            self._await("clusterings_only")
        else:
            self._finish()

    def _viewed(self) -> dict[str, Words]:
        words = self._shared.together(self._totals, "sums", (1, self._model.k))
        check_object_sums(words, self._shared.labels, self._model, self._scales["objects"])
        return {"agreement": self._objects.agreement(words)}

    def _finish(self) -> None:
        memberships = self._model.memberships(self._objects.result(self._winner))
        self._shared_sizes = cluster_sizes(memberships[0].argmax(axis=0), self._shared.labelled, self._model.k)
        self._down |= self._shared.apart("memberships", memberships[0])
        self._down |= self._shared.apart("labelled", self._shared.labelled[None].astype(np.float64))
        self._await("finish")

    # What goes down.

    def _globals_down(self) -> dict[str, Array]:
        return {f"global/{name}": self._globals[name] for name in self._model.broadcast}

    def _messages_down(self) -> dict[str, Array]:
        return self._shared.apart("message", self._objects.message)

    def _tables_down(
        self, kept: NDArray[np.intp] | None = None, retry: NDArray[np.bool_] | None = None
    ) -> dict[str, Array]:
        """New tables of shared columns; a row of zeros, as for all rows of a start that goes back, means "keep"."""
        down: dict[str, Array] = {}
        for group in self._groups.values():
            sums = self._column_sums[group.index]
            sums = sums if kept is None else sums[kept]
            tables = self._model.columns(sums, group.widths, self._scales["columns"])
            if retry is not None:
                tables[retry] = 0.0
            complete = bool(tables.all())
            for index, where in group.slices.items():
                table = tables[..., where]
                self._tables[index] = table if complete else with_unchanged_rows(table, self._tables[index])
            down[f"columns/{group.index}/beta"] = tables
        return down

    def _task(self, site: str, keep: int) -> Task:
        assert self._step is not None
        arrays = {name: array for name, array in self._down.items() if self._concerns(site, name)}
        where = (self._round, self._step, self._stage, self._iteration)
        return Task(*where, self._active, self._retry, arrays, keep, self._resume)

    # What comes up.

    def _await(self, step: Step) -> None:
        """Open a round: one accumulator per array that is asked for."""
        self._step = step
        self._resume = 0
        self._round += 1
        if step == "shares":
            self._shapes = {f"global/{name}": words.shape for name, words in self._own_shares.items()}
        elif step == "finish" and self._member is not None:
            self._shapes = {}  # nobody is told the sizes of clusters
        else:
            self._shapes = asked(step, self._view, self._model, len(self._active), self._iteration)
        wanted = {n: Asked(shape, fraction_bits(n, self._scales)) for n, shape in self._shapes.items()}
        names = tuple(wanted)
        if names not in self._by_site:  # rounds of a stage ask for the same, again and again
            self._by_site[names] = {s: [n for n in names if self._concerns(s, n)] for s in self._sites}
        self._totals = Accumulators(wanted, self._by_site[names])

    def _concerns(self, site: str, name: str) -> bool:
        """Whether a site contributes to an array's total, and is told what follows from it."""
        key = (site, name)
        if key not in self._concerned:
            self._concerned[key] = site in self._view.contributors(name)
        return self._concerned[key]

    # Bookkeeping.

    def _set_model(self, model: Model) -> None:
        self._model = model
        self._scales: dict[str, Scale] = model.scales(self._sizes)
        self._first_step = first_step(model, self._view)

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
