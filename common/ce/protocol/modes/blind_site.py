"""A site in `blind`: the coordinator adds what it cannot read; the contributors of a total, and only they, can.

Beside its engine every site runs a home of its blocks and columns. A task brings the totals of the last exchange as
words. The site removes the mask that the contributors share, checks the tags that these have added, lets its home
advance, does with its engine what the home asks, and answers with masked words again. Arrays keep the width of all
starts, whichever still run, so that the coordinator sees only how many exchanges there are.

What must be decided once (a start goes on, goes back or stops; the globals that follow) the first site by name decides,
and sends it to the others, encrypted under the key of each pair. `state` is a running digest of all totals over all
objects and all decisions, which every site should have in common: a site that was sent other totals than the first one
is noticed. Masks are bound to it and to the totals of their block or columns so far: members that were sent different
totals get noise.
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
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Outcome
from ce.protocol.engine.home import Home
from ce.protocol.engine.shared_objects import Pseudonyms
from ce.protocol.engine.site import Site
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.engine.start_selection import StartDecisions
from ce.protocol.messages.array_names import EVERYTHING, ArrayName, Scope
from ce.protocol.messages.steps import ArraySpec, Step, check_asked, expected_arrays, with_macs
from ce.protocol.messages.task import Answer, Array, NextStep, Task, array_hash
from ce.protocol.modes.decision_codec import decode_decision, encode_decision
from ce.protocol.modes.mask_context import MaskBinding, ViewDigest
from ce.protocol.modes.saved_answer import answer_again, saved_answer
from ce.protocol.topology.site_view import SiteView
from ce.ring import SentWords, word_type
from ce.steps.model import Model

SET_KEY_SIZE = 32
STATE_SIZE = 32
#: Bytes that encryption adds: nonce and tag.
BOX_OVERHEAD = NONCE_SIZE + 16
_SET_KEYS, _DECISION, _STATE = b"ce set keys 1", b"ce decision 1", b"ce state 1"

Members = tuple[str, ...]


def member_sets(view: SiteView, model: Model) -> list[Members]:
    """All different sets of contributors, in order: each has a key of its own."""
    scales = model.scales(view.sizes)
    steps: tuple[Step, ...] = ("open", "sums")
    names = {name for step in steps for name in expected_arrays(step, view, model, scales, 1, 1)}
    return sorted({name.contributors(view) for name in names})


def keys_from(first: str, to: str, sets: Sequence[Members]) -> list[Members]:
    """The sets whose keys `first` makes and sends to `to`."""
    return [members for members in sets if members[0] == first and to in members]


@dataclass
class _Sent:
    """What the last answer with words was, so that its totals can be read when they come."""

    round: int
    bits: Mapping[str, int]
    specs: Mapping[str, ArraySpec]
    digest: ViewDigest
    per_start: bool  # whether arrays have one entry for each start, also for those that have stopped


def _chained(before: bytes, total: SentWords) -> bytes:
    return hashlib.sha256(joined(before, array_hash(total.astype(np.int64, copy=False)))).digest()


class CommonState:
    """Running digests of what the sites of a blind job must have in common: of everything, and of each scope."""

    def __init__(self, *context: bytes) -> None:
        self.value = hashlib.sha256(joined(_STATE, *context)).digest()
        self._seen: dict[Scope, bytes] = {}  # of the totals that the contributors of a scope share

    def remember(self, *parts: bytes) -> None:
        self.value = hashlib.sha256(joined(_STATE, self.value, *parts)).digest()

    def add_totals(self, totals: Mapping[ArrayName, SentWords]) -> None:
        self.remember(*(totals[name].tobytes() for name in sorted(totals) if name.scope == EVERYTHING))
        for name in sorted(totals):
            # Claims are known to the holders of a column only, not to all members of the block.
            if name.scope != EVERYTHING and not name.is_claims:
                self._seen[name.scope] = _chained(self._seen.get(name.scope, b""), totals[name])

    def view_digest(self) -> ViewDigest:
        """What two sites must have in common: the state, and all totals of the scopes that both are in, so far."""
        state, seen = self.value, dict(self._seen)

        def of(scopes: tuple[Scope, ...]) -> bytes:
            parts = (part for scope in scopes for part in (scope.encode(), seen.get(scope, b"")))
            return hashlib.sha256(joined(b"ce view 1", state, *parts)).digest()

        return of

    def shown(self, key: bytes) -> bytes:
        """For the coordinator: equal at all sites, and says nothing without a key that only they have."""
        return hmac.digest(key, self.value, "sha256")[:16]

    def snapshot(self) -> Snapshot:
        return {"value": self.value, "seen": dict(self._seen)}

    def restore(self, snapshot: Snapshot) -> None:
        self.value = snapshot["value"]
        self._seen = {Scope(scope): digest for scope, digest in snapshot["seen"].items()}


class BlindSite:
    """One site's end of a blind job: tasks in, answers out."""

    def __init__(
        self,
        attempt: Attempt,
        site: Site,
        view: SiteView,
        model: Model,
        masks: MaskBinding,
        pair_keys: Mapping[str, bytes],
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        self._attempt = attempt
        self._name = site.name
        self._site = site
        self._masks = masks
        self._pair_keys = dict(pair_keys)
        self._sets = member_sets(view, model)
        self.home = Home(view, model, member=site.name, pseudonyms=pseudonyms)
        self._sent: _Sent | None = None
        self._ahead = False  # the first site has advanced already, when it decided
        self._state = CommonState(*attempt.context)
        self.checkpoint: Snapshot | None = None

    @property
    def outcome(self) -> Outcome | None:
        return self.home.result

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
                self._advance(task)
        if task.step != self._step or self._sent is not None:
            raise MessageError(f"step: expected {self._step}, got {task.step}")
        return self._contribute(task)

    def resume(self, task: Task, checkpoint: Snapshot) -> Answer:
        """Go on from a checkpoint: the sums are given again, and read when all have given theirs."""
        self._take_keys(task)
        answer = answer_again(task, checkpoint["answer"], with_macs)
        self._site.restore(checkpoint["site"])
        self.home.restore(checkpoint["home"])
        # What all have in common so far, in this attempt.
        self._state.restore(checkpoint["state"])
        self._state.remember(*self._attempt.context)
        return self._send(answer, checkpoint["per_start"])

    @property
    def leads(self) -> bool:
        return self._attempt.roster[0] == self._name

    @property
    def _step(self) -> Step | None:
        """The step that the home waits for; None: the job is over."""
        return None if self.home.open_round is None else self.home.open_round.step

    @property
    def _state_digest(self) -> bytes:
        return self._state.shown(self._masks.set_keys[self._attempt.roster])

    @property
    def _n_starts(self) -> int:
        """All starts of the present stage, also those that have stopped."""
        return self.home.stage.model.n_starts

    # Keys of the sets.

    def _send_keys(self, task: Task) -> Answer:
        if self._masks.set_keys:
            raise MessageError("step: expected keys once, got it again")
        mine = [members for members in self._sets if members[0] == self._name]
        self._masks.set_keys = {members: os.urandom(SET_KEY_SIZE) for members in mine}
        contents = {}
        for peer in self._pair_keys:
            if theirs := keys_from(self._name, peer, self._sets):
                contents[peer] = b"".join(self._masks.set_keys[members] for members in theirs)
        return self._boxes(task, contents, _SET_KEYS)

    def _take_keys(self, task: Task) -> None:
        for peer in self._pair_keys:
            theirs = keys_from(peer, self._name, self._sets)
            if not theirs:
                continue
            content = self._decrypted(peer, task, _SET_KEYS)
            if len(content) != SET_KEY_SIZE * len(theirs):
                raise MessageError(f"{ArrayName.of_box(peer)}: expected the keys of {len(theirs)} sets of sites")
            for at, members in enumerate(theirs):
                self._masks.set_keys[members] = content[at * SET_KEY_SIZE : (at + 1) * SET_KEY_SIZE]
        if set(self._masks.set_keys) != set(self._sets):
            raise MessageError("keys: the keys of a set of sites are missing")

    # Decisions.

    def _decide(self, task: Task) -> Answer:
        if not self.leads or not self.home.decides or self._sent is None:
            raise MessageError(f"step: expected {self._step}, got decide")
        self._take_totals(task)
        running, starts, before = self.home.starts.running, self._n_starts, self._state.value
        decisions = self.home.advance()
        assert decisions is not None
        content = encode_decision(decisions, running, starts)
        self._state.remember(content)
        self._ahead = True
        answer = self._boxes(task, dict.fromkeys(self._pair_keys, before + content), _DECISION, number(task.round))
        assert self._step is not None
        return replace(answer, next_step=NextStep(self._step, self.home.stage.number), state=self._state_digest)

    def _decision(self, task: Task) -> StartDecisions:
        first = self._attempt.roster[0]
        content = self._decrypted(first, task, _DECISION, number(task.round - 1))
        state, rest = content[:STATE_SIZE], content[STATE_SIZE:]
        if not hmac.compare_digest(state, self._state.value):
            raise MessageError("state: the first site was sent other totals than this one")
        decisions = decode_decision(rest, self.home.starts.running, self._n_starts, self.home.globals)
        self._state.remember(rest)
        return decisions

    # Totals down, contributions up.

    def _advance(self, task: Task) -> None:
        if self._sent is None or (self.leads and self.home.decides):
            raise MessageError(f"step: expected {'decide' if self._sent else 'keys'}, got {task.step}")
        self._take_totals(task)
        self.home.advance(self._decision(task) if self.home.decides else None)

    def _take_totals(self, task: Task) -> None:
        assert self._sent is not None
        sent, self._sent = self._sent, None
        totals: dict[str, SentWords] = {}
        for name, spec in sent.specs.items():
            total, kind = task.arrays.get(name), word_type(spec.word_bits)
            if total is None or total.dtype != kind or total.shape != spec.shape:
                raise MessageError(f"{name}: the total is missing, or not words of {spec}")
            totals[name] = total.astype(kind, copy=False)
        unmasked = self._masks.unmask(totals, sent.bits, sent.round, sent.digest)
        self._state.add_totals(unmasked)
        if sent.per_start:
            running = list(self.home.starts.running)
            unmasked = {name: total[running] for name, total in unmasked.items()}
        self.home.fill({str(name): total for name, total in unmasked.items()})

    def _contribute(self, task: Task) -> Answer:
        home = self.home
        per_start = home.per_start
        if self._step == "shares":
            arrays: Mapping[str, Array] = home.block_shares
        else:
            arrays = self._site.answer(home.tasks()[self._name]).arrays
        if self._step == "finish":
            home.fill({name: np.asarray(words, dtype=np.int64) for name, words in arrays.items()})  # and not sent
            home.advance()
            return Answer(task.round, task.step, state=self._state_digest)
        scales = home.stage.scales
        bits = {name: ArrayName(name).fraction_bits(scales) for name in arrays}
        if per_start:
            arrays = {name: self._widened(words) for name, words in arrays.items()}
        specs = {ArrayName(name): ArraySpec.of(words, bits[name]) for name, words in arrays.items()}
        check_asked(task.asked, with_macs(specs))
        answer = Answer(task.round, task.step, (), arrays, bits)
        due = task.checkpoint and self._site.begins_iteration(task)
        self.checkpoint = self._snapshot(task, answer, per_start) if due else None
        return self._send(answer, per_start)

    def _snapshot(self, task: Task, answer: Answer, per_start: bool) -> Snapshot:
        return {
            "site": self._site.snapshot(),
            "home": self.home.snapshot(),
            "answer": saved_answer(task, answer),
            "per_start": per_start,
            "state": self._state.snapshot(),
        }

    def _send(self, answer: Answer, per_start: bool) -> Answer:
        """Mask, with tags, and remember how to unmask the totals."""
        digest = self._state.view_digest()
        masked = self._masks.mask(answer, digest)
        bits = masked.fraction_bits
        specs = {name: ArraySpec.of(words, bits[name]) for name, words in masked.arrays.items()}
        self._sent = _Sent(answer.round, bits, specs, digest, per_start)
        return replace(masked, state=self._state_digest)

    def _widened(self, words: Array) -> Array:
        whole = np.zeros((self._n_starts, *words.shape[1:]), dtype=words.dtype)
        whole[list(self.home.starts.running)] = words
        return whole

    # Boxes.

    def _boxes(self, task: Task, contents: Mapping[str, bytes], *purpose: bytes) -> Answer:
        """An answer with these bytes, encrypted for each peer."""
        arrays: dict[str, Array] = {
            ArrayName.of_box(peer): self._encrypted(peer, content, *purpose) for peer, content in contents.items()
        }
        check_asked(task.asked, {ArrayName(name): ArraySpec(array.shape) for name, array in arrays.items()})
        return Answer(task.round, task.step, arrays=arrays, fraction_bits=dict.fromkeys(arrays, 0))

    def _encrypted(self, peer: str, content: bytes, *purpose: bytes) -> Array:
        context = (*purpose, *self._attempt.context, self._name.encode(), peer.encode())
        box = encrypt(self._pair_keys[peer], content, *context)
        return np.frombuffer(box.nonce + box.ciphertext, dtype=np.uint8)

    def _decrypted(self, peer: str, task: Task, *purpose: bytes) -> bytes:
        name = ArrayName.of_box(peer)
        array = task.arrays.get(name)
        if array is None or array.dtype != np.uint8:
            raise MessageError(f"{name}: missing")
        content = array.tobytes()
        context = (*purpose, *self._attempt.context, peer.encode(), self._name.encode())
        return decrypt(
            self._pair_keys[peer], EncryptedBox(content[:NONCE_SIZE], content[NONCE_SIZE:]), *context, sender=peer
        )
