"""The coordinator in `blind`: adds words that it cannot read and passes on boxes that it cannot decrypt.

It offers what a `Home` offers (`ce.protocol.engine.aggregator`), so that the same transports and daemon serve it. It
knows which step follows which. The first site by name sends it, in the clear, only which step comes after a decision:
how many iterations a job takes is all that it learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ce.errors import MessageError
from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.engine.aggregator import OpenRound, Progress
from ce.protocol.engine.home_state import Stage
from ce.protocol.engine.shared_objects import Pseudonyms
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.round_plans import RoundPlans, SitePlan
from ce.protocol.messages.steps import (
    TABLE,
    Arrays,
    ArraySpec,
    Step,
    TaggedArrays,
    following_steps,
    totals_over_all,
    with_macs,
)
from ce.protocol.messages.task import Answer, Array, NextStep, Task
from ce.protocol.modes.blind_site import BOX_OVERHEAD, SET_KEY_SIZE, STATE_SIZE, keys_from, member_sets
from ce.protocol.modes.decision_codec import encoded_size
from ce.protocol.topology.site_view import SiteView
from ce.ring import SentWords
from ce.steps.model import Model, stage_of

Boxes = dict[ArrayName, ArraySpec]
#: What a round without totals asks for.
_NOTHING: Arrays = {}


class BlindCoordinator:
    """One blind job at the coordinator."""

    bound_path: tuple[float, ...] = ()
    advances_at_once = True  # nothing is computed with totals that nobody can read
    result = None

    def __init__(
        self,
        view: SiteView,
        model: Model,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        """`pseudonyms` are not used: the members compute where objects begin."""
        self._view = view
        self._on_progress = on_progress
        self._first, *self._others = view.sites
        self._asked = TaggedArrays(view)
        self._round_plans = RoundPlans(view)
        self._plans: Mapping[str, SitePlan] = {}  # of the open round
        self._stage = Stage.of(0, model, view)
        self._iteration = 0
        self._main: Step = "open"  # the last step beside "shares" and "decide"
        self._last: dict[ArrayName, SentWords] = {}  # totals of the last exchange of words
        self._decided = False  # the first site has these totals already
        self._next: NextStep | None = None
        self._boxes: Mapping[tuple[str, str], Array] = {}  # (from, to): what was encrypted, for the next task
        self._states: dict[str, bytes] = {}
        self._restored: tuple[Snapshot, int] | None = None  # what to go on from, and its origin, after the keys
        self.diverged: tuple[str, ...] = ()
        self.exchanges = 0
        self.rounds = 0
        self.open_round: OpenRound | None = None
        self._await("keys")

    # What the outside calls, as of a Home.

    def tasks(self, checkpoint: int = 0) -> dict[str, Task]:
        if self.open_round is None:
            return {}
        return {site: self._task(self.open_round, site, checkpoint) for site in self._plans}

    @property
    def begins_iteration(self) -> bool:
        return self.open_round is not None and self.open_round.step == self._stage.begins_with

    def snapshot(self) -> Snapshot:
        """How far the job is; the coordinator knows nothing else of it."""
        where = {"stage": self._stage.number, "iteration": self._iteration}
        return {"round": self.rounds, "exchanges": self.exchanges, **where}

    def restore(self, snapshot: Snapshot, origin: int = 0) -> None:
        """Once the sites have exchanged keys, which they must in every attempt, open the round of a snapshot again."""
        self._restored = (snapshot, origin)

    def begin(self, site: str, answer: Answer) -> None:
        assert self.open_round is not None
        self.open_round.refuse_other(site, answer, ())
        if self.open_round.step == "decide":
            self._next = self._checked(answer.next_step)
        self._states[site] = answer.state
        self.open_round.accumulators.begin(site)

    def advance(self) -> None:
        assert self.open_round is not None
        self.open_round.require_complete()
        step, received = self.open_round.step, self.open_round.accumulators
        self.exchanges += step != "finish"
        self._compare_states()
        self._boxes = received.boxes
        if step == "decide":
            self._follow()
            return
        self._decided = False
        self._last = {name: received.as_sent(name) for name in self.open_round.arrays}
        if step == "keys" and self._restored is not None:
            self._open_again(*self._restored)
        elif TABLE[step].owes_shares and not self._view.shared_by_all:
            self._await("shares")
        elif TABLE[self._main].decided and step != "keys":
            self._await("decide")
        else:
            self._go_on(step)

    # How.

    def _open_again(self, snapshot: Snapshot, origin: int) -> None:
        self._iteration = snapshot["iteration"]
        self._stage = Stage.of(snapshot["stage"], stage_of(self._stage.model, snapshot["stage"]), self._view)
        self.exchanges, self.rounds = snapshot["exchanges"], snapshot["round"] - 1
        self._await(self._stage.begins_with, resume=origin)

    def _go_on(self, step: Step) -> None:
        """After a step that decides nothing there is one that follows, or none."""
        main = "keys" if step == "keys" else self._main
        following = following_steps(main, self._stage.model, self._view)
        if not following:
            self.open_round = None
        elif following[0] == self._stage.begins_with and main != "keys":
            self._next_iteration()
        else:
            self._await(following[0])

    def _follow(self) -> None:
        """What the first site has decided."""
        assert self._next is not None
        self._decided = True
        if self._on_progress is not None:
            where = (self._stage.number, self._iteration, self._stage.model.max_iter)
            self._on_progress(Progress(*where, running=0, bound=float("nan"), has_bound=False))
        if self._next.stage != self._stage.number:
            following = self._stage.following(self._view)
            assert following is not None
            self._stage, self._iteration = following, 0
        if self._next.step == self._stage.begins_with:
            self._next_iteration()
        else:
            self._await(self._next.step)

    def _checked(self, given: NextStep | None) -> NextStep:
        """The next step that the first site names, which must be one that may follow."""
        stage, following = self._stage, self._stage.following(self._view)
        steps = following_steps(self._main, stage.model, self._view)
        possible = {NextStep(step, stage.number) for step in steps}
        if following is not None:
            possible.add(NextStep(following.begins_with, following.number))
        if given not in possible:
            expected = " or ".join(sorted(f"{step} in stage {number}" for step, number in possible))
            raise MessageError(f"{self._first}: next_step: expected {expected}")
        return given

    def _next_iteration(self) -> None:
        self._iteration += 1
        self._await(self._stage.begins_with)

    def _await(self, step: Step, resume: int = 0) -> None:
        if step not in ("shares", "decide"):
            self._main = step
        self.rounds += 1
        self._states = {}
        arrays, boxes = self._expected(step), self._expected_boxes(step)
        sites = (self._first,) if step == "decide" else self._view.sites
        self._plans = self._round_plans.of(step, sites, self._last, arrays)
        asked = {site: {**plan.asked, **boxes.get(site, {})} for site, plan in self._plans.items()}
        self.open_round = OpenRound(self.rounds, step, arrays, asked, Accumulators(arrays, asked, boxes), resume)

    def _expected(self, step: Step) -> Arrays:
        if step in ("keys", "decide", "finish"):
            return _NOTHING
        if step == "shares":
            last = {name: words for name, words in self._last.items() if not name.is_mac}
            return with_macs(totals_over_all({n: ArraySpec.of(w, self._bits(n)) for n, w in last.items()}))
        stage = self._stage
        starts = stage.model.n_starts
        return self._asked.of(step, stage.model, stage.scales, starts, self._iteration)

    def _bits(self, name: ArrayName) -> int:
        return name.fraction_bits(self._stage.scales)

    def _expected_boxes(self, step: Step) -> dict[str, Boxes]:
        """What sites send to each other, by sender."""
        model = self._stage.model
        if step == "keys":
            sets = member_sets(self._view, model)
            return {site: self._keys_of(site, sets) for site in self._view.sites}
        if step == "decide":
            like = model.start_globals(self._view.sizes, None)
            spec = ArraySpec((BOX_OVERHEAD + STATE_SIZE + encoded_size(like, model.n_starts),))
            return {self._first: {ArrayName.of_box(peer): spec for peer in self._others}}
        return {}

    def _keys_of(self, site: str, sets: list[tuple[str, ...]]) -> Boxes:
        theirs = {peer: len(keys_from(site, peer, sets)) for peer in self._view.sites if peer != site}
        sizes = {peer: BOX_OVERHEAD + SET_KEY_SIZE * count for peer, count in theirs.items() if count}
        return {ArrayName.of_box(peer): ArraySpec((size,)) for peer, size in sizes.items()}

    def _task(self, round_: OpenRound, site: str, checkpoint: int) -> Task:
        arrays: dict[str, Array] = {}
        if not (self._decided and site == self._first):
            arrays = {name: self._last[name] for name in self._plans[site].sent}
        arrays |= {ArrayName.of_box(sender): box for (sender, to), box in self._boxes.items() if to == site}
        where = (round_.number, round_.step, self._stage.number, self._iteration)
        asked = round_.asked[site]
        return Task(*where, checkpoint=checkpoint, resume=round_.resume, arrays=arrays, asked=asked)

    def _compare_states(self) -> None:
        given = {site: state for site, state in self._states.items() if state}
        known = given.get(self._first)
        self.diverged = tuple(site for site, state in given.items() if known is not None and state != known)
