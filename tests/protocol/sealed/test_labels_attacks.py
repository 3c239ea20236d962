"""What a dealer, a relay or a member sends that is false ends the labels before a real row is opened, with a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.label_stage import FairDealer, Play, Stage, all_rounds

from ce.errors import CeError, MessageError, Refused
from ce.privacy.score_words import DUMMY_ROWS, PermutedRows
from ce.privacy.secure_argmax import Corrections, drawn, level_comparisons
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.messages.task import Task
from ce.protocol.sealed.channel import Bytes
from ce.protocol.sealed.records import MemoryRecords
from ce.protocol.sealed.site_argmax import OtherShare, WinnerShare, WrongWinners
from ce.protocol.sealed.site_labels import DifferentLabels
from ce.protocol.topology.topology import Rows

LAYOUT = ([(("a", "b", "c"), 300)], [((s,), 3) for s in "aabbcc"])
TWO_BLOCKS = ([(("a", "b", "c"), 9), (("a", "b"), 7), (("c",), 4)], [((s,), 3) for s in "aabbcc"])


class ShiftingDealer(FairDealer):
    """Turns the outcome of a part of the comparisons round."""

    def __init__(self, part: float, seed: int) -> None:
        self.part, self.rng = part, np.random.default_rng(seed)

    def dealt(self, data: bytes, comparisons: int) -> bytes:
        found = Corrections.from_bytes(data, comparisons)
        shifted = found.thermometers.copy()
        shifted[-1] ^= (self.rng.random(comparisons) < self.part).astype(np.uint16) << 15
        return replace(found, thermometers=shifted).to_bytes()


def caught(part: float, seed: int) -> bool:
    stage = Stage.of(seed, *LAYOUT, n_clusters=7)
    play = Play(stage, dealer=ShiftingDealer(part, seed), entropy=f"dealer {seed}").until(("reveal", 0))
    for site in stage.sites:
        try:
            play.answer(site)
        except WrongWinners:
            assert (0, "winners") not in play.sent(site)
        else:
            return False
    return True


@pytest.mark.promise("A dealer that shifts one comparison in a hundred is found before a label is opened.")
@pytest.mark.parametrize("seed", range(5))
def test_a_dealer_that_shifts_one_comparison_in_a_hundred_is_found(seed: int) -> None:
    assert caught(0.01, seed)


class NowhereDealer(FairDealer):
    """Turns round, in the last level, the comparisons of a cluster with "no label anywhere", and no others: their
    differences are larger than those of two clusters."""

    def corrections(
        self, context: bytes, seeds: Sequence[bytes], rows: int, candidates: int
    ) -> Iterator[tuple[int, Iterable[bytes]]]:
        for level, parts in super().corrections(context, seeds, rows, candidates):
            data = b"".join(parts)
            if level < len(level_comparisons(rows, candidates)) - 1:
                yield level, [data]
                continue
            mask = np.sum([drawn(seed, context, level, 0, rows).mask for seed in seeds], axis=0, dtype=np.uint32)
            digit = ((mask >> np.uint32(24)) % 16).astype(np.int64)
            found = Corrections.from_bytes(data, rows)
            turned = found.thermometers.copy()
            for shift in range(3, 13):
                turned[6] ^= np.where(digit + shift < 16, 1 << (digit + shift), 0).astype(np.uint16)
            yield level, [replace(found, thermometers=turned).to_bytes()]


@pytest.mark.parametrize("members", ["ab", "abc", "abcde"])
def test_a_dealer_that_spoils_only_large_differences_is_found(members: str) -> None:
    stage = Stage.of(7, [(tuple(members), 100)], [((site,), 3) for site in members * 3], n_clusters=2)
    play = Play(stage, dealer=NowhereDealer()).until(("reveal", 0))
    for site in members:
        with pytest.raises(WrongWinners):
            play.answer(site)


class NoCandidateDealer(FairDealer):
    """Moves the words of some rows, so that their winner is no candidate if they win the first comparison."""

    def __init__(self, rows: Callable[[], NDArray[np.intp]]) -> None:
        self.rows = rows

    def corrections(
        self, context: bytes, seeds: Sequence[bytes], rows: int, candidates: int
    ) -> Iterator[tuple[int, Iterable[bytes]]]:
        for level, parts in super().corrections(context, seeds, rows, candidates):
            data = b"".join(parts)
            if level == 0:
                found = Corrections.from_bytes(data, level_comparisons(rows, candidates)[0])
                moved = found.masked_word.copy()
                moved.reshape(-1, rows)[0, self.rows()] += np.uint32(16)
                data = replace(found, masked_word=moved).to_bytes()
            yield level, [data]


@pytest.mark.parametrize("seed", range(3))
def test_a_dealer_does_not_see_from_a_failure_how_objects_compare(seed: int) -> None:
    """Objects with a winner that is no candidate have no label; where a dealer hits no dummy row, no round fails."""
    stage = Stage.of(seed, *LAYOUT, n_clusters=3, missing=0.4)

    def real_rows() -> NDArray[np.intp]:
        key = play.players["a"]._drawn[0]
        return PermutedRows(key, 300, 4, 3).real(np.arange(300 + DUMMY_ROWS))

    play = Play(stage, dealer=NoCandidateDealer(real_rows))
    play.until()
    pooled = stage.pooled()
    for site, labels in play.labels().items():
        moved = (pooled[site] == 0) | (pooled[site] == 2)  # the first pair of the tournament
        assert moved.any()
        assert (labels == np.where(moved, -1, pooled[site])).all()


@pytest.mark.slow
def test_a_dealer_that_shifts_comparisons_is_found_as_often_as_dummies_say() -> None:
    assert all(caught(0.01, seed) for seed in range(100, 200))
    # 256 dummy rows, three comparisons of each winner: 1 - (1 - .001)^768 = .54
    assert 0.35 < np.mean([caught(0.001, seed) for seed in range(200, 300)]) < 0.73


@pytest.mark.parametrize("where", [w for w in all_rounds(1) if w not in (("score", 0), ("finish", 0))])
def test_an_altered_message_is_refused_where_it_arrives(where: tuple[str, int]) -> None:
    def alter(play: Play, received: dict[tuple[str, ArrayName], Bytes]) -> None:
        if play.where == where:
            key = next(key for key in received if key[0] == "b" and key[1].kind == "members")
            content = received[key].copy()
            content[len(content) // 2] ^= 1
            received[key] = content

    play = Play(Stage.of(1, *TWO_BLOCKS, n_clusters=1), before_relay=alter)
    with pytest.raises(MessageError, match="was not encrypted for this site"):
        play.until()
    assert not play.outcomes


def test_an_opening_does_not_count_as_that_of_another_member() -> None:
    def swap(play: Play, site: str, task: Task) -> Task:
        mine, other = (ArrayName.of_members(0, "opening", sender) for sender in "bc")
        if (site, play.where) == ("a", ("compare", 2)):
            return replace(task, arrays={**task.arrays, mine: task.arrays[other], other: task.arrays[mine]})
        return task

    with pytest.raises(MessageError, match="was not encrypted for this site"):
        Play(Stage.of(1, *TWO_BLOCKS, n_clusters=3), before_answer=swap).until()


def test_members_that_were_sent_different_openings_cannot_read_each_other() -> None:
    """A member that helps the relay encrypts two openings, and each of the others is given one of them."""
    second: dict[ArrayName, Bytes] = {}
    name = ArrayName.of_members(0, "opening", "b")

    def write_two(play: Play, received: dict[tuple[str, ArrayName], Bytes]) -> None:
        if play.where == ("compare", 1):
            content = bytearray(play.sent("b")[0, "opening"][-1])
            content[0] ^= 1
            second[name] = play.channels["b"].to_block(0, "opening", bytes(content))

    def give_the_second(play: Play, site: str, task: Task) -> Task:
        there = (site, play.where) == ("a", ("compare", 2))
        return replace(task, arrays={**task.arrays, **second}) if there else task

    play = Play(Stage.of(1, *TWO_BLOCKS, n_clusters=3), before_relay=write_two, before_answer=give_the_second)
    play.until(("compare", 3))
    for site, sender in (("a", "b"), ("b", "a"), ("c", "a")):
        with pytest.raises(MessageError, match=f"opening/{sender}: was not encrypted for this site"):
            play.answer(site)


@pytest.mark.parametrize("at", [("prove", 0), ("reveal", 0)])
def test_a_share_replaced_after_the_commitments_is_found(at: tuple[str, int]) -> None:
    def other(play: Play, site: str, task: Task) -> Task:
        if site == "b" and play.where == at:
            block: Any = play.players["b"]._running[0]
            block._own = WinnerShare((block._own.share + 1) % 32, block._own.key, block._own.nonce)
            # The member itself sees nothing wrong in what it sends.
            block.commitment, block.check_dummies = lambda: play.sent("b")[0, "commitment"][0], lambda openings: None
            block._real_leaves = {"a": b"", "c": b""}
        return task

    play = Play(Stage.of(2, *TWO_BLOCKS, n_clusters=3), before_answer=other)
    with pytest.raises(OtherShare, match="b opened another share of the labels than it has committed to"):
        play.until()
    assert not play.outcomes


def test_a_member_whose_openings_are_false_spoils_dummies() -> None:
    def lie(play: Play, site: str, task: Task) -> Task:
        if site == "b" and play.where == ("compare", 0):
            codes = play.stage.codes["b"]
            codes[:] = np.where(codes >= 0, 0, codes)  # other labels are no lie that anybody could see ...
        if site == "b" and play.where == ("compare", 1):
            block: Any = play.players["b"]._running[0]
            block._argmax._level.message ^= 0x55  # ... but other openings are
        return task

    with pytest.raises(WrongWinners):
        Play(Stage.of(2, *TWO_BLOCKS, n_clusters=3), before_answer=lie).until()


def test_different_labels_are_a_named_failure_at_the_sites() -> None:
    def other(play: Play, site: str, task: Task) -> Task:
        if site == "b" and play.where == ("reveal", 1):
            block: Any = play.players["b"]._running[0]
            read = block.labels
            block.labels = lambda openings: read(openings)[::-1].copy() + 1
        return task

    play = Play(Stage.of(2, *TWO_BLOCKS, n_clusters=3), before_answer=other)
    with pytest.raises(DifferentLabels, match="b has other labels of the same objects"):
        play.until()
    assert not play.outcomes


class OneLedger(MemoryRecords):
    """A site that has labelled these objects in another job."""

    def enter(self, block: bytes, rows: Rows, commitments: Any) -> None:
        raise Refused("once per object", "objects of this job were labelled in another job")


def test_objects_that_were_labelled_in_another_job_are_refused_before_anything_is_opened() -> None:
    stage = Stage.of(3, *TWO_BLOCKS, n_clusters=3)
    stage.records = {"b": OneLedger()}
    play = Play(stage).until(("prove", 0))
    with pytest.raises(Refused, match="once per object"):
        play.answer("b")
    assert (0, "dummies") not in play.sent("b")
    assert (0, "winners") not in play.sent("b")


# A block that is left out, and coordinators that ask for what no step has.


@pytest.mark.parametrize("where", all_rounds(1)[1:])
def test_a_block_that_is_left_out_ends_without_labels_and_others_finish(where: tuple[str, int]) -> None:
    stage = Stage.of(4, *TWO_BLOCKS, n_clusters=1, missing=0.5)
    play = Play(stage).until(where)
    play.rounds.stop([0])
    for arrays in play.brought.values():
        for name in [name for name in arrays if name.number == 0 and name.kind in ("members", "dealer")]:
            del arrays[name]
    play.until()
    for site, outcome in play.outcomes.items():
        assert outcome.stopped == (0,)
        assert outcome.lost == ()
        expected = stage.pooled()[site]
        expected[stage.rows[site][0]] = -1
        assert outcome.labels.tolist() == expected.tolist()
        record = stage.record(site, 0)
        assert record is None or record.state == "entered"


@pytest.mark.parametrize("where", all_rounds(1)[1:])
def test_where_all_blocks_are_left_out_the_job_finishes_at_once(where: tuple[str, int]) -> None:
    stage = Stage.of(4, *TWO_BLOCKS, n_clusters=1)
    play = Play(stage).until(where)
    play.rounds.stop([0, 1])
    if where[0] == "finish":
        play.brought = {site: {} for site in stage.sites}
    play.until()
    assert play.round <= 7 + all_rounds(1).index(where) + 1
    for site, outcome in play.outcomes.items():
        assert set(outcome.stopped) == stage.shared(site).keys()
        assert (outcome.labels[np.concatenate([stage.rows[site][b] for b in stage.shared(site)])] == -1).all()


def test_a_block_that_was_left_out_never_comes_back() -> None:
    play = Play(Stage.of(4, *TWO_BLOCKS, n_clusters=2)).until(("compare", 1))
    name = ArrayName.of_members(0, "opening", "a")

    def leave_out(play: Play, site: str, task: Task) -> Task:
        return replace(task, asked={n: spec for n, spec in task.asked.items() if n != name})

    play.before_answer = leave_out
    play.answer("a")
    play.before_answer, play.where = lambda play, site, task: task, ("compare", 1)
    with pytest.raises(MessageError, match="asked"):
        play.answer("a")


@pytest.mark.parametrize(
    ("where", "step"),
    [
        (("compare", 3), "settle"),
        (("compare", 0), "settle"),
        (("settle", 0), "compare"),
        (("settle", 0), "reveal"),
        (("prove", 0), "reveal"),
        (("reveal", 0), "prove"),
        (("reveal", 1), "score"),
        (("score", 0), "reveal"),
    ],
)
def test_steps_out_of_order_are_refused(where: tuple[str, int], step: str) -> None:
    play = Play(Stage.of(4, *TWO_BLOCKS, n_clusters=3)).until(where)
    task = play.task("a")
    what = {"compare": "opening", "settle": "commitment", "prove": "dummies", "reveal": "winners"}.get(step, "")
    sizes = {"opening": 1, "commitment": 32, "dummies": 320, "winners": 41, "": 1}
    asked = {ArrayName.of_members(0, what, "a"): ArraySpec((sizes[what] + 28,))} if what else {}
    before = {key: list(contents) for key, contents in play.sent("a").items()}
    play.channels["a"].begin(task)
    with pytest.raises(MessageError, match=r"^step: expected|^winners: expected after|^score: the members"):
        play.players["a"].answer(replace(task, step=step, asked=asked), play.stage.model)  # type: ignore[arg-type]
    assert play.sent("a") == before


def damaged(task: Task, rng: Random) -> Task:
    """One thing in a task changed."""
    arrays, asked = dict(task.arrays), dict(task.asked)
    kind = rng.randrange(6)
    names = sorted(arrays)
    if kind == 0 and names:
        del arrays[rng.choice(names)]
    elif kind == 1 and names:
        name = rng.choice(names)
        arrays[name] = arrays[name][: rng.randrange(len(arrays[name]))]
    elif kind == 2 and names:
        name = rng.choice(names)
        arrays[name] = arrays[name].astype(np.int64)
    elif kind == 3 and len(names) > 1:
        one, other = rng.sample(names, 2)
        arrays[one], arrays[other] = arrays[other], arrays[one]
    elif kind == 4 and asked:
        name = rng.choice(sorted(asked))
        asked[name] = ArraySpec((asked[name].shape[0] + 1,))
    else:
        asked[ArrayName.of_members(rng.randrange(4), rng.choice(["opening", "winners"]), "a")] = ArraySpec((60,))
    return replace(task, arrays=arrays, asked=asked)


def test_garbled_tasks_never_crash_a_site_and_open_nothing() -> None:
    rng, rounds = Random(5), all_rounds(2)
    for _ in range(20):
        where, victim = rng.choice(rounds), rng.choice("abc")
        garble: Callable[[Play, str, Task], Task] = lambda play, site, task, where=where, victim=victim: (  # type: ignore[misc]  # noqa: E731
            damaged(task, rng) if (play.where, site) == (where, victim) else task
        )
        stage = Stage.of(6, *TWO_BLOCKS, n_clusters=2)
        play = Play(stage, before_answer=garble)
        try:
            play.until()
        except CeError:
            assert len(play.outcomes) < 3
        for site, labels in play.labels().items():
            right = stage.pooled()[site]
            assert ((labels == right) | (labels == -1)).all()
