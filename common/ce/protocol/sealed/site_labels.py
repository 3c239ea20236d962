"""The second half of a sealed job at a site: from the accepted model to the labels of its objects.

`SealedSite` calls `answer` for the steps `score` to `reveal`, and `finish`. Objects that several sites hold get the
winner of the secure argmax of their block (`ce.protocol.sealed.site_argmax`), once, and with the bytes that were
written down first. Objects that this site alone holds are scored here, with memberships.

A block taken up again: where any member has entered its labels, all send the same bytes as then, from their records;
where one has lost them the block ends without labels, for all. Where nobody has, it starts anew with a fresh seed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np

from ce.errors import JobFailed, MessageError
from ce.pair_tables import cell_words, weight_words
from ce.privacy.derivation import joined, number
from ce.privacy.score_words import score_words
from ce.privacy.secure_argmax import WINNER_MODULUS, Words, corrections_size, level_comparisons, share_from
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.sealed_steps import SEALED_TABLE
from ce.protocol.messages.steps import Arrays, check_asked
from ce.protocol.messages.task import Task
from ce.protocol.sealed.channel import Bytes, as_array, received
from ce.protocol.sealed.label_rounds import (
    AGAIN,
    BLOCKS,
    FRESH,
    LOST,
    SEED_SIZE,
    LabelBlock,
    LabelStep,
    broadcast,
    keys_between,
    rounds_of,
    score_arrays,
)
from ce.protocol.sealed.opened_shares import AcceptedModel
from ce.protocol.sealed.schedule import ARGMAX_SEED, LabelStatus
from ce.protocol.sealed.site_argmax import Labels, OtherShare, SharedBlock, WinnerShare
from ce.protocol.sealed.site_input import Codes, SealedOutcome, SiteContext
from ce.ring import Reals

NONCE_SIZE = 32
#: Takes what the other members of a block have sent ...
Preparation = Callable[[Task, LabelBlock], None]
#: ... and gives what this one sends them.
Opening = Callable[[SharedBlock], bytes]


class DifferentLabels(JobFailed):
    """Members of a block have computed different labels of the same objects.

    Next: check that all sites have the same release; then submit the job again under another name.
    """

    def __init__(self, block: int, member: str) -> None:
        super().__init__(
            f"block {block}: {member} has other labels of the same objects than this site; check that all sites have "
            "the same release"
        )


def plan_of(block: LabelBlock, states: Mapping[str, LabelStatus]) -> int:
    """Whether a block compares, is taken up again, or is lost. All members come to the same, from what all have told.

    Where a member has entered, labels may have been opened: then nothing but the shares of that attempt may follow.
    """
    origins = {status.origin for status in states.values() if status.state == "entered"}
    if not origins:
        return FRESH
    have = {(member, status.origin) for member, status in states.items() if status.state is not None}
    return AGAIN if len(origins) == 1 and have == {(member, *origins) for member in block.members} else LOST


class OwnScores:
    """What a site adds to the scores of objects, as whole numbers, for an accepted model."""

    def __init__(self, context: SiteContext, model: AcceptedModel) -> None:
        terms, site = context.terms, context.site
        self._context = context
        self._n_clusters = model.n_clusters
        self._categories = terms.categories_of(site)
        self._cells = cell_words(model.beta[terms.cells_of(site)], terms.score_unit)
        self._weights = weight_words(model.weights, terms.score_unit)

    def of_block(self, block: LabelBlock) -> Words:
        """(k + 1, rows) words of a shared block; the first member adds the weights of the clusters."""
        context = self._context
        codes = context.input.of_block(block.index)
        if len(block.members) == 2:
            # With one other member the winner says something about the labels here: with few, it might say all. What
            # this member has enrolled itself it may know, label by label: that hides nothing from it.
            [other] = [member for member in block.members if member != context.site]
            columns = [context.terms.columns[at] for at in context.terms.columns_of(context.site)]
            foreign = np.array([other not in column.holders for column in columns], dtype=bool)
            few = (codes[:, foreign] >= 0).sum(axis=1) < context.min_foreign_columns
            codes = np.where(few[:, None], np.int32(-1), codes)
        is_first = block.members[0] == context.site
        return score_words(codes, self._categories, self._cells, self._weights if is_first else None)

    def alone(self, codes: Codes) -> tuple[Labels, Reals]:
        """Labels and memberships of objects that only this site holds, from the same whole numbers."""
        words = score_words(codes, self._categories, self._cells, self._weights).view(np.int32)
        found = words.argmax(axis=0).astype(np.int32)
        scores = (words[:-1] // WINNER_MODULUS).T / self._context.terms.score_unit
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        return np.where(found == self._n_clusters, np.int32(-1), found), chances


class BlockMessages:
    """What the members of blocks send each other, all of it bound into whatever they send next."""

    def __init__(self, context: SiteContext, candidates: int) -> None:
        self._site, self._channel = context.site, context.channel
        self._candidates = candidates
        self.sent: dict[int, bytes] = {}  # by block: the content of this site's last message

    def send(self, block: LabelBlock, step: LabelStep, number_: int, content: bytes) -> tuple[ArrayName, Bytes]:
        kind = broadcast(block, step, number_, self._candidates)
        self.sent[block.index] = content
        return kind.name(block, self._site), self._channel.to_block(block.index, kind.what, content)

    def take(self, task: Task, block: LabelBlock, step: LabelStep, number_: int) -> dict[str, bytes]:
        """What the other members have sent in the round before, which was this one."""
        kind = broadcast(block, step, number_, self._candidates)
        others = [member for member in block.members if member != self._site]
        found = {m: self._channel.from_block(block.index, kind.what, m, task, kind.size) for m in others}
        whole = found | {self._site: self.sent[block.index]}
        self._channel.bind_block(block.index, *(whole[member] for member in block.members))
        return found

    def asked(self, task: Task, blocks: Iterable[LabelBlock], step: LabelStep, number_: int) -> set[int]:
        """The blocks whose array a task asks for. Raises MessageError where it asks for anything else."""
        expected: Arrays = {}
        found = set()
        for block in blocks:
            kind = broadcast(block, step, number_, self._candidates)
            name = kind.name(block, self._site)
            if name in task.asked:
                expected[name] = kind.spec
                found.add(block.index)
        check_asked(task.asked, expected)
        return found

    def brings_digests(self, task: Task, block: LabelBlock) -> bool:
        """Whether a block is in the last task: it asks for nothing, so that what it brings says it."""
        kind = broadcast(block, "reveal", 1, self._candidates)
        return any(kind.name(block, member) in task.arrays for member in block.members)


class SiteLabels:
    """One site's labels in one attempt. `states`: what each member has told of each shared block, this site too."""

    def __init__(self, context: SiteContext, states: Mapping[int, Mapping[str, LabelStatus]]) -> None:
        self._context = context
        self._states = states
        self._blocks = [LabelBlock.of(block, digest) for _, (block, digest) in sorted(context.blocks.items())]
        self._running: dict[int, SharedBlock] = {}
        self._compared: set[int] = set()  # of these, those that compare in this attempt
        self._drawn: dict[int, bytes] = {}  # keys of the rows of blocks whose first member this site is
        self._seed = b""
        self._ended: dict[int, bool] = {}  # blocks without labels; whether a member has lost its share
        self._labels: dict[int, Labels] = {}
        self._model: AcceptedModel | None = None
        self._last: tuple[LabelStep, int] = ("score", 0)  # step and number of the last round

    def answer(self, task: Task, model: AcceptedModel) -> dict[ArrayName, Bytes]:
        """The arrays of one answer. Raises JobFailed, and Refused where objects were labelled before."""
        match task.step:
            case "score":
                return self._score(task, model)
            case "compare":
                return self._compare(task)
            case "settle" | "prove" | "reveal":
                return self._open(task, task.step)
            case _:
                raise MessageError(f"step: expected one of the labels, got {task.step}")

    def finish(self, task: Task) -> SealedOutcome:
        """The labels of all objects of this site, once the others' digests are equal to its own."""
        model = self._accepted
        self._stop_all_but({block.index for block in self._mine() if self._messages.brings_digests(task, block)})
        for block in self._mine():
            for member, digest in self._take(task, block).items():
                if not hmac.compare_digest(digest, self._messages.sent[block.index]):
                    raise DifferentLabels(block.index, member)
        for index in self._ended:
            self._forget(index)
        return self._outcome(model)

    # The scores.

    def _score(self, task: Task, model: AcceptedModel) -> dict[ArrayName, Bytes]:
        if self._model is not None:
            raise MessageError("step: expected score once, got it again")
        self._model = model
        self._messages = BlockMessages(self._context, self._candidates)
        context = self._context
        check_asked(task.asked, score_arrays(self._blocks, context.site))
        if not self._blocks:
            return {}
        plans = [plan_of(block, self._states[block.index]) for block in self._blocks]
        for block, plan in zip(self._blocks, plans, strict=True):
            if plan == LOST:
                self._ended[block.index] = True
                continue
            if plan == FRESH:
                self._forget(block.index)
                self._compared.add(block.index)
            shared = SharedBlock(block.index, block.members, context.site, block.rows, self._candidates)
            self._running[block.index] = shared
        # A key is drawn for every block, also where it is not needed: what a site sends says nothing.
        mine = [block for block in self._blocks if block.members[0] == context.site]
        self._drawn = {block.index: context.entropy(SEED_SIZE) for block in mine}
        self._seed = context.entropy(SEED_SIZE)
        arrays = {
            ArrayName.to_dealer(ARGMAX_SEED): as_array(self._seed),
            ArrayName.of_broadcast(BLOCKS, context.site): np.array(plans, dtype=np.uint8),
        }
        for peer in self._peers():
            if sent := keys_between(self._blocks, context.site, peer):
                content = b"".join(self._drawn[block.index] for block in sent)
                arrays[ArrayName.of_box(peer)] = context.channel.to_peer(peer, content)
        return arrays

    # The tournament.

    def _compare(self, task: Task) -> dict[ArrayName, Bytes]:
        number_ = self._next("compare")
        compared = [block for block in self._mine() if block.index in self._compared]
        waiting = self._running.keys() - self._compared  # those taken up again have nothing to compare
        self._stop_all_but(self._messages.asked(task, compared, "compare", number_) | waiting)
        blocks = [block for block in compared if block.index in self._running]
        if number_ == 0:
            self._begin(task, blocks)
        else:
            for block in blocks:
                self._running[block.index].receive_openings(self._take(task, block))
        for block in blocks:
            self._correct(task, block)
        return self._send(blocks, "compare", number_, SharedBlock.opening)

    def _begin(self, task: Task, blocks: Sequence[LabelBlock]) -> None:
        context, keys = self._context, dict(self._drawn)
        for peer in self._peers():
            theirs = keys_between(self._blocks, peer, context.site)
            if any(block in blocks for block in theirs):
                content = context.channel.from_peer(peer, task, SEED_SIZE * len(theirs))
                for at, block in enumerate(theirs):
                    keys[block.index] = content[at * SEED_SIZE : (at + 1) * SEED_SIZE]
        scores = OwnScores(context, self._accepted)
        for block in blocks:
            words = scores.of_block(block)
            self._running[block.index].begin(keys[block.index], self._seed, block.digest, words)
        self._seed, self._drawn = b"", {}

    def _correct(self, task: Task, block: LabelBlock) -> None:
        """The dealer's corrections come with the first round of a level."""
        shared = self._running[block.index]
        level = shared.level
        if level is not None:
            size = corrections_size(level_comparisons(block.total, self._candidates)[level])
            shared.correct(level, received(task.arrays, ArrayName.of_corrections(block.index, level), size))

    # The winners.

    def _open(self, task: Task, step: LabelStep) -> dict[ArrayName, Bytes]:
        number_ = self._next(step)
        self._stop_all_but(self._messages.asked(task, self._mine(), step, number_))
        blocks = self._mine()
        prepare, opened = self._openings(step, number_)
        for block in blocks:
            prepare(task, block)
        return self._send(blocks, step, number_, opened)

    def _openings(self, step: LabelStep, number_: int) -> tuple[Preparation, Opening]:
        """What is done with the others' messages of each block, for all blocks first; then what is sent."""
        openings: Mapping[tuple[LabelStep, int], tuple[Preparation, Opening]] = {
            ("settle", 0): (self._settle, SharedBlock.commitment),
            ("prove", 0): (self._enter, SharedBlock.dummies),
            ("reveal", 0): (self._check_dummies, SharedBlock.real),
            ("reveal", 1): (self._read_labels, self._digest),
        }
        return openings[step, number_]

    def _settle(self, task: Task, block: LabelBlock) -> None:
        """Write down the share of the winners, or read what was written down in an earlier attempt."""
        context, shared = self._context, self._running[block.index]
        origin = context.attempt.epoch
        if block.index in self._compared:
            shared.receive_openings(self._take(task, block))
            own = shared.settle(context.entropy(NONCE_SIZE))
            context.records.settle(
                block.digest, origin, own.share.tobytes(), own.key, own.nonce, self._accepted.n_clusters
            )
        else:
            record = context.records.labels(block.digest)
            if record is None or record.n_clusters != self._accepted.n_clusters:
                raise MessageError(f"block {block.index}: its share of the labels is not that of this model")
            origin = record.origin
            shared.take_up(WinnerShare(share_from(record.share, block.total), record.key, record.nonce))
        job, _, roster = context.attempt.context
        shared.bind({m: joined(job, number(origin), roster, block.digest, m.encode()) for m in block.members})

    def _enter(self, task: Task, block: LabelBlock) -> None:
        """All commitments are known: enter the objects, once, before anything is opened."""
        shared, records = self._running[block.index], self._context.records
        commitments = self._take(task, block) | {self._context.site: shared.commitment()}
        for status in self._states[block.index].values():
            if status.state == "entered":
                for member, known in zip(block.members, status.commitments, strict=True):
                    if not hmac.compare_digest(known, commitments[member]):
                        raise OtherShare(block.index, member)
        shared.receive_commitments(commitments)
        records.enter(block.digest, self._context.input.rows[block.index], commitments)

    def _check_dummies(self, task: Task, block: LabelBlock) -> None:
        self._running[block.index].check_dummies(self._take(task, block))

    def _read_labels(self, task: Task, block: LabelBlock) -> None:
        self._labels[block.index] = self._running[block.index].labels(self._take(task, block))

    def _digest(self, shared: SharedBlock) -> bytes:
        """What all members have the same of; encrypted, as the coordinator could try all labels of a small block."""
        content = np.ascontiguousarray(self._labels[shared.index], dtype="<i4").tobytes()
        return hashlib.sha256(joined(b"ce labels of a block 1", content)).digest()

    def _outcome(self, model: AcceptedModel) -> SealedOutcome:
        context = self._context
        n = len(context.input.codes)
        labels = np.full(n, -1, dtype=np.int32)
        memberships = np.full((n, model.n_clusters), np.nan)
        for index, found in self._labels.items():
            if index not in self._ended:
                labels[context.input.rows[index]] = found
        scores = OwnScores(context, model)
        for index, block in context.view.blocks.items():
            if not block.shared:
                rows = context.input.rows[index]
                labels[rows], memberships[rows] = scores.alone(context.input.of_block(index))
        lost = tuple(sorted(index for index, is_lost in self._ended.items() if is_lost))
        return SealedOutcome(labels, memberships, model.n_clusters, tuple(sorted(self._ended)), lost)

    # Rounds.

    @property
    def _accepted(self) -> AcceptedModel:
        if self._model is None:
            raise MessageError("step: expected score first")
        return self._model

    @property
    def _candidates(self) -> int:
        return self._accepted.n_clusters + 1

    def _mine(self) -> list[LabelBlock]:
        """The blocks that have not ended."""
        return [block for block in self._blocks if block.index in self._running]

    def _peers(self) -> list[str]:
        return sorted({member for block in self._blocks for member in block.members} - {self._context.site})

    def _next(self, step: LabelStep) -> int:
        """Which round of its step this one is."""
        allowed = SEALED_TABLE[self._last[0]].follows
        if step not in allowed:
            raise MessageError(f"step: expected {' or '.join(allowed)}, got {step}")
        number_ = self._last[1] + 1 if self._last[0] == step else 0
        if number_ >= rounds_of(step, self._candidates):
            raise MessageError(f"step: expected {rounds_of(step, self._candidates)} rounds of {step}, got another")
        return number_

    def _stop_all_but(self, going_on: Set[int]) -> None:
        """Blocks that a task leaves out end here, for good: their objects get no label."""
        for index in self._running.keys() - going_on:
            del self._running[index]
            self._labels.pop(index, None)
            self._ended[index] = False

    def _take(self, task: Task, block: LabelBlock) -> dict[str, bytes]:
        """What the other members have sent in the round before."""
        return self._messages.take(task, block, *self._last)

    def _send(
        self, blocks: Iterable[LabelBlock], step: LabelStep, number_: int, opened: Opening
    ) -> dict[ArrayName, Bytes]:
        """What `opened` gives of each block, for its members."""
        self._last = (step, number_)
        return dict(self._messages.send(b, step, number_, opened(self._running[b.index])) for b in blocks)

    def _forget(self, index: int) -> None:
        """A share that was never entered was never opened, and is not needed any more."""
        digest = self._context.blocks[index][1]
        record = self._context.records.labels(digest)
        if record is not None and record.state == "settled":
            self._context.records.discard_labels(digest)
