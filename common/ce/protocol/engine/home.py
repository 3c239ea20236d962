"""The engine at the home: opens rounds, adds what sites send, and goes on when all have answered. No clock, no
connection: answers in, tasks out (`ce.protocol.engine.aggregator`). What it computes: `ce.protocol.engine.home_state`.

Words are added into one preallocated accumulator per array as answers arrive; memory does not grow with the sites.

In blind every site is a home of the blocks and columns that it takes part in. It is given totals that the coordinator
added up without being able to read them. The shares of a block that not all sites hold are known to its members only:
its first member contributes them in an exchange of its own, "shares".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.engine.aggregator import OpenRound, Outcome, Progress
from ce.protocol.engine.home_state import HomeState, Stage
from ce.protocol.engine.shared_objects import Pseudonyms
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.engine.start_selection import StartDecisions, StartSelection
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.round_plans import RoundPlans, SitePlan, shared_tasks
from ce.protocol.messages.steps import Arrays, ArraySpec, AskedArrays, Step, totals_over_all
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.topology.site_view import SiteView
from ce.ring import SentWords, Words
from ce.steps.model import Model, State, no_votes


@dataclass
class _Totals:
    """Totals over all objects, by what they are, and the shared blocks' part of them."""

    of_sites: dict[str, Words] = field(default_factory=dict)
    of_blocks: dict[str, Words] = field(default_factory=dict)
    owed_to: Step | None = None  # blind: the step whose totals the exchange of shares completes

    def add(self, more: Mapping[str, Words]) -> None:
        for what, words in more.items():
            self.of_sites[what] = self.of_sites[what] + words


class Home:
    """One job's engine at its home. In blind, `member` is the site that this home belongs to."""

    diverged: tuple[str, ...] = ()

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
        self._on_progress = on_progress
        self._sites = view.sites if member is None else (member,)
        self._reads_sizes = member is None  # in blind no party learns the sizes of clusters
        self._scattered = member is not None and not view.shared_by_all
        self._state = HomeState(view, model, member if self._scattered else None, pseudonyms)
        self._totals = _Totals()
        self._sent: dict[str, Array] = {}  # arrays of the open round's task, by name; each site gets those it may see
        self._stop: tuple[int, ...] = ()  # starts that stop with the open round's task
        self._asked = AskedArrays(view)
        self._round_plans = RoundPlans(view)
        self._plans: Mapping[str, SitePlan] = {}  # of the open round
        self._cluster_sizes: Words | None = None
        self.exchanges = 0
        self.rounds = 0
        self.open_round: OpenRound | None = None
        self._await("open")

    # What the outside calls.

    def tasks(self, checkpoint: int = 0) -> dict[str, Task]:
        round_ = self.open_round
        if round_ is None:
            return {}
        return shared_tasks(self._plans, lambda plan: self._task(round_, plan, checkpoint))

    @property
    def begins_iteration(self) -> bool:
        return self.open_round is not None and self.open_round.step == self.stage.begins_with

    @property
    def advances_at_once(self) -> bool:
        return self._main_step == "sums" and self._state.decides_at_once

    @property
    def starts(self) -> StartSelection:
        """The starts of the present stage."""
        return self._state.starts

    @property
    def stage(self) -> Stage:
        return self._state.stage

    @property
    def globals(self) -> State:
        return self._state.globals

    @property
    def bound_path(self) -> tuple[float, ...]:
        return self.starts.bound_path

    @property
    def decides(self) -> bool:
        """Whether the global step is next, once the open round is complete."""
        return self._main_step in ("sums", "objects") and (self._shares_due or not self._scattered)

    @property
    def per_start(self) -> bool:
        """Whether the arrays of the open round have one entry for each start that runs."""
        return self._main_step in ("sums", "objects", "columns")

    @property
    def block_shares(self) -> dict[str, Array]:
        """What a member answers in an exchange of shares: those of the shared blocks that it speaks for."""
        return {ArrayName.of_all(what): words for what, words in self._totals.of_blocks.items()}

    def begin(self, site: str, answer: Answer) -> None:
        assert self.open_round is not None
        self.open_round.refuse_other(site, answer, self.starts.running)
        self.open_round.accumulators.begin(site)

    def fill(self, totals: Mapping[str, SentWords]) -> None:
        """Take the round's totals from the party that has added them up."""
        assert self.open_round is not None
        self.open_round.accumulators.fill(totals)

    def advance(self, decisions: StartDecisions | None = None) -> StartDecisions | None:
        """All have answered: run the home's steps and prepare the next task.

        Where several homes must agree, one decides, and the others are given its `decisions`. Returns what was decided,
        by whichever home; None after a step that decides nothing.
        """
        assert self.open_round is not None
        self.open_round.require_complete()
        step, received, arrays = self.open_round.step, self.open_round.accumulators, self.open_round.arrays
        self.exchanges += step != "finish"
        over_all = {name.what: received[name] for name in totals_over_all(arrays)}
        if step == "shares":
            assert self._totals.owed_to is not None
            self._totals.add(over_all)
            return self._complete(self._totals.owed_to, received, arrays, decisions)
        self._totals = _Totals(over_all, self._receive(step, received, arrays))
        if self._scattered and self._totals.of_blocks:
            self._totals.owed_to = step
            self._await("shares")
            return None
        self._totals.add(self._totals.of_blocks)
        return self._complete(step, received, arrays, decisions)

    @property
    def result(self) -> Outcome:
        """The end result; only after the last task."""
        state, path = self._state, self.starts.paths[self._state.winner]
        ends = (state.winner, state.globals, self.starts.paths, path.iterations, self.exchanges, state.kappa)
        return Outcome(*ends, self._cluster_sizes, state.beta())

    def snapshot(self) -> Snapshot:
        """Taken before any site has answered the open round."""
        return {"round": self.rounds, "exchanges": self.exchanges, "stop": self._stop, "state": self._state.snapshot()}

    def restore(self, snapshot: Snapshot, origin: int = 0) -> None:
        self._state.restore(snapshot["state"])
        self.exchanges, self.rounds = snapshot["exchanges"], snapshot["round"] - 1
        self._await(self.stage.begins_with, stop=tuple(snapshot["stop"]), resume=origin)

    # Steps.

    @property
    def _shares_due(self) -> bool:
        return self.open_round is not None and self.open_round.step == "shares"

    @property
    def _main_step(self) -> Step | None:
        if self.open_round is None:
            return None
        return self._totals.owed_to if self._shares_due else self.open_round.step

    def _receive(self, step: Step, received: Accumulators, arrays: Arrays) -> dict[str, Words]:
        """Take the totals of columns and shared blocks; returns the blocks' part of the totals over all objects."""
        state = self._state
        if step in ("sums", "columns"):
            state.receive_columns(received)
        match step:
            case "open":
                return {"objects": state.open(received, arrays)}
            case "sums" | "objects":
                return state.receive_objects(received)
            case "finish" if self._reads_sizes:
                return {"sizes": state.sizes()}
            case _:
                return {}

    def _complete(
        self, step: Step, received: Accumulators, arrays: Arrays, decisions: StartDecisions | None
    ) -> StartDecisions | None:
        """All totals of a step are known."""
        state, totals = self._state, self._totals.of_sites
        match step:
            case "open":
                self._await("counts", state.take_number_of_objects(totals["objects"]))
            case "counts" if self.stage.model.uses_votes:
                self._await("votes")
            case "counts":
                self._next_iteration(state.begin_first_stage(no_votes(self.stage.model.k, state.n_shared)))
            case "votes":
                self._next_iteration(state.begin_first_stage(state.read_votes(received, arrays)))
            case "sums" | "objects":
                return self._global_step(step, decisions)
            case "columns":
                self._next_iteration(state.update_columns())
            case "clusterings_only":
                state.take_agreement(totals["agreement"])
                self._await("finish", state.globals_sent() | state.results_sent())
            case _:
                if self._reads_sizes:
                    state.check_sizes(totals["sizes"])
                    self._cluster_sizes = totals["sizes"]
                self.open_round = None
        return None

    def _global_step(self, step: Step, decisions: StartDecisions | None) -> StartDecisions:
        state = self._state
        decisions = state.decide(self._totals.of_sites, decisions)
        sent = state.apply(decisions, with_columns=step == "sums")
        stop = self.starts.stopping
        self._report()
        if not self.starts.running:
            # Globals that follow from the final objects, for the stage that goes on from here.
            self._end_stage(decisions.globals, stop)
        elif step == "objects":
            self._await("columns", sent, stop)
        else:
            self._next_iteration(sent, stop)
        return decisions

    def _end_stage(self, last_globals: State, stop: tuple[int, ...]) -> None:
        following = self.stage.following(self._view)
        if following is not None:
            self._next_iteration(self._state.begin_next_stage(following, last_globals), stop)
            return
        sent = self._state.end()
        if self.stage.model.uses_votes:
            self._await("clusterings_only", sent, stop)
        else:
            self._await("finish", sent | self._state.results_sent(), stop)

    def _next_iteration(self, sent: dict[str, Array], stop: tuple[int, ...] = ()) -> None:
        self._state.iteration += 1
        self._await(self.stage.begins_with, sent, stop)

    # Rounds.

    def _await(
        self, step: Step, sent: dict[str, Array] | None = None, stop: tuple[int, ...] = (), resume: int = 0
    ) -> None:
        """Open a round: one accumulator per array that is asked for."""
        self._sent, self._stop = sent or {}, stop
        self.rounds += 1
        arrays = self._expected(step)
        self._plans = self._round_plans.of(step, self._sites, self._sent, arrays)
        asked = {site: plan.asked for site, plan in self._plans.items()}
        self.open_round = OpenRound(self.rounds, step, arrays, asked, Accumulators(arrays, asked), resume)

    def _expected(self, step: Step) -> Arrays:
        stage = self.stage
        if step == "shares":
            shares = {ArrayName(name): words.shape for name, words in self.block_shares.items()}
            return {name: ArraySpec.summed(name, shape, stage.scales) for name, shape in shares.items()}
        starts, iteration = len(self.starts.running), self._state.iteration
        return self._asked.of(step, stage.model, stage.scales, starts, iteration)

    def _task(self, round_: OpenRound, plan: SitePlan, checkpoint: int) -> Task:
        arrays: dict[str, Array] = {name: self._sent[name] for name in plan.sent}
        where = (round_.number, round_.step, self.stage.number, self._state.iteration)
        starts = (self.starts.running, self.starts.retry)
        return Task(*where, *starts, arrays, checkpoint, round_.resume, self._stop, plan.asked)

    def _report(self) -> None:
        if self._on_progress is None:
            return
        model = self.stage.model
        where = (self.stage.number, self._state.iteration - 1, model.max_iter, len(self.starts.running))
        self._on_progress(Progress(*where, self.starts.best_bound, model.next_stage() is None))
