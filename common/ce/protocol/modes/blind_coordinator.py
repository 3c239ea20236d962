"""The coordinator in `blind`: adds words that it cannot read and passes on bytes that it cannot open.

The same interface as a `Home`, and so the same transports and the same daemon. It knows which step follows which, and
hears from the first site by name, in the clear, only what comes after a decision: how many iterations a job takes is
all that it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ce.errors import MessageError
from ce.protocol.engine.accumulators import Accumulators, AddingUp, Asked
from ce.protocol.engine.home import Progress
from ce.protocol.engine.shared_objects import Pseudonyms
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.messages.steps import Shapes, asked, first_step, shares_of
from ce.protocol.messages.task import Answer, Array, NextStep, Step, Task, fraction_bits
from ce.protocol.modes.blind_site import SEALING, SET_KEY_SIZE, STATE_SIZE, keys_from, member_sets
from ce.protocol.modes.decision_codec import encoded_size
from ce.protocol.topology.topology import SiteView
from ce.ring import Scale, Words
from ce.steps.model import Model, stage_of


class BlindCoordinator(AddingUp):
    """One blind job at the coordinator."""

    def __init__(
        self,
        view: SiteView,
        model: Model,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        """`pseudonyms` are of no use here: the members begin for themselves."""
        self._view = view
        self._on_progress = on_progress
        self._first, *self._others = view.sites
        self._round = 0
        self._stage = 0
        self._iteration = 0
        self._exchanges = 0
        self._step: Step | None = None
        self._shapes: Shapes = {}
        self._owed_to: Step | None = None
        self._last: dict[str, Words] = {}  # totals of the last exchange of words
        self._decided = False  # the first site has them already
        self._following: NextStep | None = None
        self._mail: Mapping[tuple[str, str], Array] = {}  # (from, to): what was sealed, for the next task
        self._states: dict[str, bytes] = {}
        self._restored: tuple[Snapshot, int] | None = None  # what to go on from, and its origin, after the keys
        self._resume = 0
        #: Sites whose state differs from the first site's in the last round: worth a word in the log.
        self.diverged: tuple[str, ...] = ()
        self._set_model(model)
        self._await("keys")

    # What the outside calls, as of a Home.

    def tasks(self, keep: int = 0) -> dict[str, Task]:
        if self._step is None:
            return {}
        sites = (self._first,) if self._step == "decide" else self._view.sites
        return {site: self._task(site, keep) for site in sites}

    @property
    def begins_iteration(self) -> bool:
        return self._step == first_step(self._model, self._view)

    def snapshot(self) -> Snapshot:
        """How far the job is: of what it is about nothing is known here."""
        return {
            "round": self._round,
            "stage": self._stage,
            "iteration": self._iteration,
            "exchanges": self._exchanges,
        }

    def restore(self, kept: Snapshot, origin: int = 0) -> None:
        """Once the sites have exchanged keys, which they must in every attempt, open the round of a snapshot again."""
        self._restored = (kept, origin)

    def begin(self, site: str, answer: Answer) -> None:
        if answer.round != self._round or answer.step != self._step or answer.starts:
            raise MessageError(f"{site}: answers another round or step")
        if self._step == "decide":
            self._following = self._checked(answer.next_step)
        self._states[site] = answer.state
        self._totals.begin(site)

    def advance(self) -> None:
        if self.waiting:
            raise MessageError(f"{len(self.waiting)} sites have not answered")
        step = self._step
        self._exchanges += step != "finish"
        self._compare_states()
        self._mail = self._totals.mail
        if step == "decide":
            self._follow()
            return
        self._decided = False
        self._last = {name: self._totals[name] for name in self._shapes}
        match step:
            case "keys" if self._restored is not None:
                self._open_again(*self._restored)
            case "keys":
                self._await("open")
            case "open" | "sums" | "objects" | "clusterings_only" if not self._view.shared_by_all:
                self._owed_to = step
                self._await("shares")
            case "shares":
                self._after(self._owed_to)
            case _:
                self._after(step)

    # How.

    def _open_again(self, kept: Snapshot, origin: int) -> None:
        self._stage, self._iteration = kept["stage"], kept["iteration"]
        self._set_model(stage_of(self._model, self._stage))
        self._exchanges = kept["exchanges"]
        self._round = kept["round"] - 1
        self._await(first_step(self._model, self._view))
        self._resume = origin

    def _after(self, step: Step | None) -> None:
        """All totals of a step are known to those whom they concern."""
        match step:
            case "sums" | "objects":
                self._await("decide")
            case "open":
                self._await("counts")
            case "counts" if self._model.uses_votes:
                self._await("votes")
            case "counts" | "votes" | "columns":
                self._next_iteration()
            case "clusterings_only":
                self._await("finish")
            case _:
                self._step = None

    def _follow(self) -> None:
        assert self._following is not None
        following = self._following
        self._decided = True
        if self._on_progress is not None:
            where = (self._stage, self._iteration, self._model.max_iter)
            self._on_progress(Progress(*where, running=0, bound=float("nan"), has_bound=False))
        if following.stage != self._stage:
            stage = self._model.next_stage()
            assert stage is not None
            self._stage, self._iteration = following.stage, 0
            self._set_model(stage)
        if following.step == first_step(self._model, self._view):
            self._next_iteration()
        else:
            self._await(following.step)

    def _checked(self, following: NextStep | None) -> NextStep:
        """What may come after a decision."""
        model, owed = self._model, self._last_main
        possible = {NextStep("clusterings_only" if model.uses_votes else "finish", self._stage)}
        possible.add(NextStep("columns" if owed == "objects" else first_step(model, self._view), self._stage))
        if (stage := model.next_stage()) is not None:
            possible = {p for p in possible if p.step not in ("clusterings_only", "finish")}
            possible.add(NextStep(first_step(stage, self._view), self._stage + 1))
        if following not in possible:
            raise MessageError(f"{self._first}: following: not a step that can follow")
        return following

    def _next_iteration(self) -> None:
        self._iteration += 1
        self._await(first_step(self._model, self._view))

    def _await(self, step: Step) -> None:
        self._step = step
        self._round += 1
        self._resume = 0
        self._states = {}
        mail: dict[str, dict[str, int]] = {}
        if step == "keys":
            self._shapes = {}
            mail = {s: self._keys_of(s) for s in self._view.sites}
        elif step == "decide":
            self._shapes = {}
            mail = {self._first: dict.fromkeys((f"box/{peer}" for peer in self._others), self._decision_size)}
        elif step == "finish":
            self._shapes = {}
        elif step == "shares":
            self._shapes = shares_of(self._shapes)
        else:
            starts = 1 if step == "clusterings_only" else self._model.n_starts
            self._shapes = asked(step, self._view, self._model, starts, self._iteration)
        if step in ("sums", "objects"):
            self._last_main = step
        wanted = {n: Asked(shape, fraction_bits(n, self._scales)) for n, shape in self._shapes.items()}
        sites = (self._first,) if step == "decide" else self._view.sites
        by_site = {s: [n for n in wanted if s in self._view.contributors(n)] for s in sites}
        self._totals = Accumulators(wanted, by_site, mail)

    def _keys_of(self, site: str) -> dict[str, int]:
        theirs = {peer: len(keys_from(site, peer, self._sets)) for peer in self._view.sites if peer != site}
        return {f"box/{peer}": SEALING + SET_KEY_SIZE * count for peer, count in theirs.items() if count}

    def _task(self, site: str, keep: int) -> Task:
        assert self._step is not None
        arrays: dict[str, Array] = {}
        if not (self._decided and site == self._first):
            arrays = {name: total for name, total in self._last.items() if site in self._view.contributors(name)}
        arrays |= {f"box/{sender}": content for (sender, to), content in self._mail.items() if to == site}
        where = (self._round, self._step, self._stage, self._iteration)
        return Task(*where, checkpoint=keep, resume=self._resume, arrays=arrays)

    def _compare_states(self) -> None:
        given = {site: state for site, state in self._states.items() if state}
        known = given.get(self._first)
        self.diverged = tuple(site for site, state in given.items() if known is not None and state != known)

    def _set_model(self, model: Model) -> None:
        self._model = model
        self._scales: dict[str, Scale] = model.scales(self._view.sizes)
        self._sets = member_sets(self._view, model)
        like = model.start_globals(self._view.sizes, None)
        self._decision_size = SEALING + STATE_SIZE + encoded_size(like, model.n_starts)
