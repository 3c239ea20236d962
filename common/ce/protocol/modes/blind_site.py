"""A site in `blind`: it adds nothing up itself, but it alone, with the other members, can read what was added up.

Beside its engine every site runs a home of its own blocks and columns. A task brings the totals of the last exchange as
words; the site takes off the mask that the contributors share, lets its home go on, does with its engine what the home
asks, and answers with masked words again. Arrays keep the width of all starts, whichever still run, so that whoever
adds sees only how many exchanges there are.

What must be decided once (a start goes on, goes back, stops; the globals that follow) the first site by name decides,
and tells the others under the key of each pair. `state` is a running digest of all global totals and decisions, which
every site should have in common: a site that was told others than the first one is noticed. Masks are bound to it and
to the totals of their own block or columns so far: members that were told different ones get noise.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ce.errors import MessageError
from ce.privacy.derivation import joined, number
from ce.privacy.pair_keys import NONCE_SIZE, EncryptedBox, decrypt, encrypt
from ce.protocol.engine.home import Home
from ce.protocol.engine.shared_objects import Pseudonyms
from ce.protocol.engine.site import Site
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.keys.handshake import Attempt
from ce.protocol.messages.steps import asked
from ce.protocol.messages.task import Answer, Array, NextStep, Task
from ce.protocol.modes.decision_codec import decode_decision, encode_decision
from ce.protocol.modes.mask_binding import MaskBinding, ViewDigest, scope_of
from ce.protocol.modes.saved_answer import answer_again, saved_answer
from ce.protocol.topology.topology import SiteView
from ce.ring import Words
from ce.steps.model import GlobalDecision, Model

SET_KEY_SIZE = 32
STATE_SIZE = 32
#: Bytes that sealing adds.
SEALING = NONCE_SIZE + 16
_SET_KEYS, _DECISION, _STATE = b"ce set keys 1", b"ce decision 1", b"ce state 1"

Members = tuple[str, ...]


def member_sets(view: SiteView, model: Model) -> list[Members]:
    """All different sets of contributors, in order: each has a key of its own."""
    names = asked("open", view, model, 1, 1) | asked("sums", view, model, 1, 1)
    return sorted({view.contributors(name) for name in names})


def keys_from(first: str, to: str, sets: Sequence[Members]) -> list[Members]:
    """The sets whose keys `first` makes and sends to `to`."""
    return [members for members in sets if members[0] == first and to in members]


@dataclass
class _Sent:
    """What the last answer with words was, so that its totals can be read when they come."""

    round: int
    bits: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    binding: ViewDigest
    widened: bool  # whether arrays have the width of all starts


def _chained(before: bytes, total: Words) -> bytes:
    return hashlib.sha256(joined(before, np.ascontiguousarray(total, dtype="<i8").tobytes())).digest()


class BlindSite:
    """One site's part in a blind job: tasks in, answers out."""

    def __init__(
        self,
        attempt: Attempt,
        site: Site,
        view: SiteView,
        model: Model,
        cover: MaskBinding,
        pair_keys: Mapping[str, bytes],
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        self._attempt = attempt
        self._name = site.name
        self._site = site
        self._cover = cover
        self._pair_keys = dict(pair_keys)
        self._sets = member_sets(view, model)
        self.home = Home(view, model, member=site.name, pseudonyms=pseudonyms)
        self._sent: _Sent | None = None
        self._ahead = False  # the first site has gone on already, when it decided
        self._state = hashlib.sha256(joined(_STATE, *attempt.context)).digest()
        self._seen: dict[str, bytes] = {}  # by scope: a running digest of the totals that its contributors share
        self.kept: Snapshot | None = None

    def answer(self, task: Task) -> Answer:
        match task.step:
            case "keys":
                return self._send_keys(task)
            case "open":
                self._take_keys(task)
            case "decide":
                return self._decide(task)
            case _ if self._ahead:
                self._ahead = False
            case _:
                self._go_on(task)
        if task.step != self.home.step or self._sent is not None:
            raise MessageError("step: not the one that follows")
        return self._contribute(task)

    def resume(self, task: Task, kept: Snapshot) -> Answer:
        """Go on from what was kept: the sums are given again, and read when all have given theirs."""
        self._take_keys(task)
        answer = answer_again(task, kept["answer"])
        self._site.restore(kept["site"])
        self.home.restore(kept["home"])
        # What all have in common so far, in this attempt.
        self._state = kept["state"]
        self._seen = dict(kept["seen"])
        self._remember(*self._attempt.context)
        return self._send(answer, kept["widened"])

    @property
    def leads(self) -> bool:
        return self._attempt.roster[0] == self._name

    # Keys of the sets.

    def _send_keys(self, task: Task) -> Answer:
        if self._cover.set_keys:
            raise MessageError("step: keys were made before")
        own = [members for members in self._sets if members[0] == self._name]
        self._cover.set_keys = {members: os.urandom(SET_KEY_SIZE) for members in own}
        arrays: dict[str, Array] = {}
        for peer in self._pair_keys:
            if theirs := keys_from(self._name, peer, self._sets):
                content = b"".join(self._cover.set_keys[members] for members in theirs)
                arrays[f"box/{peer}"] = self._sealed(peer, content, _SET_KEYS)
        return Answer(task.round, task.step, arrays=arrays, fraction_bits=dict.fromkeys(arrays, 0))

    def _take_keys(self, task: Task) -> None:
        for peer in self._pair_keys:
            theirs = keys_from(peer, self._name, self._sets)
            if not theirs:
                continue
            content = self._unsealed(peer, task, _SET_KEYS)
            if len(content) != SET_KEY_SIZE * len(theirs):
                raise MessageError("sealed: keys of other sets of sites than this site was told of")
            for at, members in enumerate(theirs):
                self._cover.set_keys[members] = content[at * SET_KEY_SIZE : (at + 1) * SET_KEY_SIZE]
        if set(self._cover.set_keys) != set(self._sets):
            raise MessageError("sealed: the keys of a set of sites are missing")

    # Decisions.

    def _decide(self, task: Task) -> Answer:
        if not self.leads or not self.home.decides or self._sent is None:
            raise MessageError("step: nothing is to be decided here now")
        self._take_totals(task)
        active, starts, before = self.home.active, self.home.n_starts, self._state
        decision = self.home.advance()
        assert decision is not None
        content = encode_decision(decision, active, starts)
        self._remember(content)
        self._ahead = True
        arrays: dict[str, Array] = {
            f"box/{peer}": self._sealed(peer, before + content, _DECISION, number(task.round))
            for peer in self._pair_keys
        }
        assert self.home.step is not None
        following = NextStep(self.home.step, self.home.stage)
        return Answer(task.round, task.step, (), arrays, dict.fromkeys(arrays, 0), following, self._state_digest())

    def _decision(self, task: Task) -> GlobalDecision:
        first = self._attempt.roster[0]
        content = self._unsealed(first, task, _DECISION, number(task.round - 1))
        state, rest = content[:STATE_SIZE], content[STATE_SIZE:]
        if not hmac.compare_digest(state, self._state):
            raise MessageError("state: the first site was told other totals than this one")
        decision = decode_decision(rest, self.home.active, self.home.n_starts, self.home.globals)
        self._remember(rest)
        return decision

    # Totals down, contributions up.

    def _go_on(self, task: Task) -> None:
        if self._sent is None or (self.leads and self.home.decides):
            raise MessageError("step: comes before what it follows from")
        self._take_totals(task)
        self.home.advance(self._decision(task) if self.home.decides else None)

    def _take_totals(self, task: Task) -> None:
        assert self._sent is not None
        sent, self._sent = self._sent, None
        totals: dict[str, Words] = {}
        for name, shape in sent.shapes.items():
            total = task.arrays.get(name)
            if total is None or total.dtype != np.int64 or total.shape != shape:
                raise MessageError(f"{name}: the total is missing, or not words of the expected shape")
            totals[name] = total.astype(np.int64, copy=False)
        totals = self._cover.unmask(totals, sent.bits, sent.round, sent.binding)
        self._remember(*(totals[n].tobytes() for n in sorted(totals) if n.startswith("global/")))
        for name in sorted(totals):
            # Claims are known to the holders of a column only, not to all members of the block.
            if (scope := scope_of(name)) != "global" and "/claims/" not in name:
                self._seen[scope] = _chained(self._seen.get(scope, b""), totals[name])
        if sent.widened:
            totals = {name: total[list(self.home.active)] for name, total in totals.items()}
        self.home.fill(totals)

    def _contribute(self, task: Task) -> Answer:
        home = self.home
        widened = home.widened
        if home.step == "shares":
            arrays: Mapping[str, Array] = home.own_shares
        else:
            arrays = self._site.answer(home.tasks()[self._name]).arrays
        if home.step == "finish":
            home.fill({})
            home.advance()
            return Answer(task.round, task.step, state=self._state_digest())
        bits = {name: home.fraction_bits(name) for name in arrays}
        if widened:
            arrays = {name: self._widen(words) for name, words in arrays.items()}
        answer = Answer(task.round, task.step, (), arrays, bits)
        keep = task.checkpoint and self._site.begins_iteration(task)
        self.kept = self._snapshot(task, answer, widened) if keep else None
        return self._send(answer, widened)

    def _snapshot(self, task: Task, answer: Answer, widened: bool) -> Snapshot:
        return {
            "site": self._site.snapshot(),
            "home": self.home.snapshot(),
            "answer": saved_answer(task, answer),
            "widened": widened,
            "state": self._state,
            "seen": dict(self._seen),
        }

    def _send(self, answer: Answer, widened: bool) -> Answer:
        """Put the masks on, and remember how to take them off the total."""
        binding = self._binding()
        hidden = self._cover.mask(answer, binding)
        shapes = {name: words.shape for name, words in hidden.arrays.items()}
        self._sent = _Sent(answer.round, answer.fraction_bits, shapes, binding, widened)
        return replace(hidden, state=self._state_digest())

    def _widen(self, words: Array) -> Words:
        whole = np.zeros((self.home.n_starts, *words.shape[1:]), dtype=np.int64)
        whole[list(self.home.active)] = words
        return whole

    # The state that all share.

    def _binding(self) -> ViewDigest:
        """What two sites must have in common: the state, and all totals of the scopes that both are in, so far."""
        state, seen = self._state, dict(self._seen)

        def of(scopes: tuple[str, ...]) -> bytes:
            parts = (part for scope in scopes for part in (scope.encode(), seen.get(scope, b"")))
            return hashlib.sha256(joined(b"ce told 1", state, *parts)).digest()

        return of

    def _remember(self, *parts: bytes) -> None:
        self._state = hashlib.sha256(joined(_STATE, self._state, *parts)).digest()

    def _state_digest(self) -> bytes:
        """For whoever relays: equal at all sites, and says nothing without a key that only they have."""
        return hmac.digest(self._cover.set_keys[self._attempt.roster], self._state, "sha256")[:16]

    def _sealed(self, peer: str, content: bytes, *purpose: bytes) -> Array:
        context = (*purpose, *self._attempt.context, self._name.encode(), peer.encode())
        sealed = encrypt(self._pair_keys[peer], content, *context)
        return np.frombuffer(sealed.nonce + sealed.ciphertext, dtype=np.uint8)

    def _unsealed(self, peer: str, task: Task, *purpose: bytes) -> bytes:
        array = task.arrays.get(f"box/{peer}")
        if array is None or array.dtype != np.uint8:
            raise MessageError(f"box/{peer}: missing")
        content = array.tobytes()
        context = (*purpose, *self._attempt.context, peer.encode(), self._name.encode())
        return decrypt(self._pair_keys[peer], EncryptedBox(content[:NONCE_SIZE], content[NONCE_SIZE:]), *context)
