"""The coordinator of a sealed job: passes on what it cannot read, deals, adds up the opened shares and fits the model.

It offers what a `Home` offers (`ce.protocol.engine.aggregator`), so that the same transports and daemon serve it. It
keeps nothing over attempts: a later one gets shares and model from the sites, byte for byte as they were. What grows
with the number of objects goes to rooms (`ce.protocol.messages.rooms`): encrypted messages, and the dealer's words for
one level of the tournament. Seeds and opened shares never do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np

from ce.errors import JobFailed, MessageError
from ce.job import Job
from ce.pair_tables import MOST_CLUSTERS, PairFit
from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.engine.aggregator import OpenRound, Progress
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.rooms import MemoryRoom, Rooms
from ce.protocol.messages.sealed_steps import PHASES, SEALED_TABLE, Phase
from ce.protocol.messages.steps import Arrays, ArraySpec, SealedStep
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.sealed.channel import as_array
from ce.protocol.sealed.dealer import Dealer, LocalDealer
from ce.protocol.sealed.label_rounds import LabelRounds
from ce.protocol.sealed.opened_shares import AcceptedModel, check_model, fit_model, opened_cells
from ce.protocol.sealed.schedule import (
    CATEGORIES,
    MODEL,
    PRODUCT_SEED,
    SHARE,
    STATE,
    Received,
    Schedule,
    decode_state,
    relayed,
    shared_blocks,
)
from ce.protocol.sealed.terms import Terms, columns_of_topology
from ce.protocol.topology.site_view import SiteView
from ce.ring import Words

#: Rounds before the tournament, and after it.
_BEFORE, _AFTER = 6, 5


class SealedCoordinator:
    """One attempt at a sealed job at the coordinator; an `Aggregator`."""

    bound_path: tuple[float, ...] = ()
    diverged: tuple[str, ...] = ()
    result = None
    begins_iteration = False

    def __init__(
        self,
        job: Job,
        job_digest: bytes,
        view: SiteView,
        objects: Mapping[int, bytes],
        on_progress: Callable[[Progress], None] | None = None,
        *,
        dealer: Dealer | None = None,
        rooms: Rooms = MemoryRoom,
    ) -> None:
        """`view`: the whole topology; `objects`: by block, the digest of its pseudonyms in their order. Raises
        InputError where no such job can run."""
        self.terms = Terms.of(job, job_digest, view.sites, columns_of_topology(view), view.sizes.objects)
        self.n_clusters = 0  # of the model, once it is fitted
        self.fit: PairFit | None = None  # None also where sites have accepted a model before
        self.phase: Phase = PHASES[0]
        self.exchanges = 0
        self.rounds = 0
        self.open_round: OpenRound | None = None
        self._blocks = shared_blocks(job_digest, view, objects)
        self._schedule = Schedule(self.terms, self._blocks)
        self._dealer = dealer or LocalDealer(self.terms.ring, self._schedule.products, self.terms.widths)
        self._rooms = rooms
        self._on_progress = on_progress
        self._brought: dict[str, dict[ArrayName, Array]] = {}
        self._accepted = dict.fromkeys(view.sites, 0)  # clusters of the model that each site has accepted
        self._labels: LabelRounds | None = None  # from `score` on
        self._absent: set[str] = set()  # sites that the job goes on without
        categories = [len(column.categories) for column in sorted(view.clusterings, key=lambda c: c.name)]
        counts: dict[ArrayName, Array] = {ArrayName.of_model(CATEGORIES): np.array(categories, dtype=np.int64)}
        self._await("meet", {site: dict(counts) for site in view.sites})

    # What the outside calls, as of a Home.

    @property
    def noise_warning(self) -> str:
        """A sentence where the noise hides what the tables say; else nothing."""
        return self.terms.noise_warning

    @property
    def opened(self) -> bool:
        """Whether a site may have opened its share: from then on a job needs all its sites until tables are opened."""
        return self.open_round is None or self.open_round.step not in ("meet", "mask", "verify", "commit")

    @property
    def advances_at_once(self) -> bool:
        return False

    @property
    def stoppable(self) -> bool:
        """Whether the tables are opened: each shared block goes on by itself."""
        return self._labels is not None

    @property
    def stopped(self) -> frozenset[int]:
        """Shared blocks whose objects end without a label."""
        return frozenset() if self._labels is None else frozenset(self._blocks) - frozenset(self._labels.running)

    def stop(self, sites: Collection[str]) -> None:
        """Go on without sites that stay away: their shared blocks are stopped, the others finish. In the last round all
        labels are known already."""
        assert self._labels is not None
        assert self.open_round is not None
        self._absent |= set(sites)
        if self.open_round.step != "finish":
            gone = self._absent
            self._labels.stop(index for index, (block, _) in self._blocks.items() if gone & set(block.members))
        self.open_round.accumulators.leave_out(sites)

    def tasks(self, checkpoint: int = 0) -> dict[str, Task]:
        round_ = self.open_round
        if round_ is None:
            return {}
        return {
            site: Task(round_.number, round_.step, arrays=dict(self._brought[site].items()), asked=asked)
            for site, asked in round_.asked.items()
        }

    def snapshot(self) -> Snapshot:
        raise MessageError("checkpoint: a sealed job has none at the coordinator")

    def restore(self, snapshot: Snapshot, origin: int = 0) -> None:
        raise MessageError("checkpoint: a sealed job has none at the coordinator")

    def begin(self, site: str, answer: Answer) -> None:
        assert self.open_round is not None
        self.open_round.refuse_other(site, answer, ())
        self.open_round.accumulators.begin(site)

    def advance(self) -> None:
        assert self.open_round is not None
        self.open_round.require_complete()
        step: SealedStep = self.open_round.step  # type: ignore[assignment]
        received = self.open_round.accumulators.received
        self._brought = {}  # all have it: its room is free for the next round
        if step == "finish":
            self.open_round = None
            return
        self.exchanges += 1
        brought: dict[str, dict[ArrayName, Array]] = {}
        if self._labels is not None:
            following, arrays = self._labels.after(step, received)
            self._await(following, {site: dict(arrays.get(site, {})) for site in self.terms.sites})
            return
        brought = {s: dict(arrays) for s, arrays in relayed(received, self.terms.sites, self._blocks).items()}
        match step:
            case "meet":
                self._await("release" if self._read_states(received) else "mask", brought)
            case "mask":
                for (first, second), words in self._deal(received).items():
                    brought[second][ArrayName.of_products(first)] = as_array(words)
                self._await("verify", brought)
            case "verify":
                self._await("commit", brought)
            case "commit":
                self._await("release", brought)
            case _:
                model = self._fit(received)
                for arrays_of_site in brought.values():
                    arrays_of_site.update(model.arrays)
                self._await("score", brought)

    # How.

    def _await(self, step: SealedStep, brought: dict[str, dict[ArrayName, Array]]) -> None:
        self.rounds += 1
        self.phase = SEALED_TABLE[step].phase
        boxes = {site: arrays for site, arrays in self._expected(step).items() if site not in self._absent}
        asked: dict[str, dict[str, ArraySpec]] = {site: dict(arrays.items()) for site, arrays in boxes.items()}
        self._brought = brought
        self.open_round = OpenRound(self.rounds, step, {}, asked, Accumulators({}, asked, boxes, self._rooms))
        self._tell_progress()

    def _expected(self, step: SealedStep) -> dict[str, Arrays]:
        if self._labels is not None:
            expected = {} if step == "finish" else self._labels.expected(step)
            return {site: expected.get(site, {}) for site in self.terms.sites}
        return {site: self._schedule.asked(step, site, self._accepted[site]) for site in self.terms.sites}

    def _read_states(self, received: Received) -> bool:
        """Whether a site may have opened its share in an earlier attempt."""
        opening = False
        for site in self.terms.sites:
            content = received[site, ArrayName.of_broadcast(STATE, site)].tobytes()
            release, self._accepted[site] = decode_state(site, content)
            if self._accepted[site] and release != "opening":
                raise JobFailed(
                    f"{site} says that it has accepted a model, and not that it has opened its share, without which "
                    "there is none: ask that site which release it runs"
                )
            opening |= release == "opening"
        return opening

    def _deal(self, received: Received) -> Mapping[tuple[str, str], bytes]:
        name = ArrayName.to_dealer(PRODUCT_SEED)
        return self._dealer.products({site: words.tobytes() for (site, n), words in received.items() if n == name})

    def _fit(self, received: Received) -> AcceptedModel:
        """The model of the opened tables; the one that sites have accepted in an earlier attempt, if there is one."""
        self.phase = "fitting"
        self._tell_progress()
        shares = {site: received[site, ArrayName.of_broadcast(SHARE, site)].tobytes() for site in self.terms.sites}
        cells = opened_cells(self.terms, shares)
        accepted = {content.tobytes() for (_, name), content in received.items() if name.what == MODEL}
        if len(accepted) > 1:
            raise JobFailed(
                "sites have accepted different models in earlier attempts: submit the job under another name"
            )
        if accepted:
            model = self._checked(accepted.pop(), cells)
        else:
            self.fit = fit_model(self.terms, cells)
            model = AcceptedModel(self.fit.weights, self.fit.beta)
        self.n_clusters = model.n_clusters
        self._labels = LabelRounds(self.terms, self._blocks, self._dealer, model.n_clusters, self._rooms)
        return model

    def _checked(self, content: bytes, cells: Words) -> AcceptedModel:
        """The model that sites say they have accepted, if it is one of these tables."""
        try:
            model = AcceptedModel.decoded(content, self.terms)
            check_model(self.terms, cells, model)
        except MessageError as error:
            raise JobFailed(
                f"the model that sites say they have accepted before is not that of their tables ({error}): ask the "
                "sites which release they run, and submit the job under another name"
            ) from error
        return model

    def _tell_progress(self) -> None:
        if self._on_progress is not None:
            levels = math.ceil(math.log2((self.n_clusters or MOST_CLUSTERS) + 1))
            rounds = _BEFORE + 5 * levels + _AFTER
            where = (PHASES.index(self.phase), self.rounds, rounds)
            self._on_progress(Progress(*where, running=0, bound=float("nan"), has_bound=False))
