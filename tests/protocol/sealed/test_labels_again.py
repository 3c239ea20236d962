"""A job that is taken up again: what may have been opened is opened again byte for byte, and the rest starts anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.label_stage import Play, Stage, Where, all_rounds
from support.sealed_jobs import SealedWorld, few_sites, play_until, sealed_job

from ce.errors import MessageError, Refused
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.sealed.records import MemoryRecords
from ce.protocol.sealed.schedule import LabelStatus
from ce.protocol.sealed.site_argmax import OtherShare

LAYOUT = ([(("a", "b", "c"), 9), (("a", "b"), 7), (("c",), 4)], [((s,), 3) for s in "aabbcc"])
OPENED = ("commitment", "dummies", "winners", "digest")


def crashed(stage: Stage, where: Where, answering: str, epoch: int = 1) -> Play:
    """An attempt that ends in this round, of which only some sites have done their part."""
    play = Play(stage, epoch=epoch).until(where)
    for site in answering:
        play.answer(site)
    return play


def entered(stage: Stage, site: str, block: int) -> bool:
    record = stage.record(site, block)
    return record is not None and record.state == "entered"


@pytest.mark.promise("A job taken up again opens labels that may have been opened before byte for byte, or not at all.")
@pytest.mark.parametrize("answering", ["b", "abc"])
@pytest.mark.parametrize("where", all_rounds(1))
def test_a_job_that_is_taken_up_again_ends_with_the_same_labels(where: Where, answering: str) -> None:
    taken_up_again(where, answering, n_clusters=1)


@pytest.mark.slow
@pytest.mark.parametrize("answering", ["a", "c", "ab", "bc", "abc"])
@pytest.mark.parametrize("where", all_rounds(6))
def test_a_job_of_more_clusters_is_taken_up_again_at_every_step(where: Where, answering: str) -> None:
    taken_up_again(where, answering, n_clusters=6)


def taken_up_again(where: Where, answering: str, n_clusters: int) -> None:
    stage = Stage.of(1, *LAYOUT, n_clusters=n_clusters, missing=0.5)
    before = crashed(stage, where, answering)
    first = {site: stage.record(site, 0) for site in stage.sites}
    was_entered = any(entered(stage, site, 0) for site in stage.sites)
    again = Play(stage, epoch=2, entropy="another").until()
    assert {s: v.tolist() for s, v in again.labels().items()} == {s: v.tolist() for s, v in stage.pooled().items()}
    for site in stage.sites:
        new = stage.record(site, 0)
        assert new is not None
        assert stage.records[site].entered.count(stage.digest(0)) == 1  # once, over both attempts
        if was_entered:
            assert (new.origin, new.share, new.key, new.nonce) == _bytes(first[site])
            for what in OPENED:
                for content in before.sent(site).get((0, what), []):
                    assert again.sent(site)[0, what] == [content]
            assert (0, "opening") not in again.sent(site)
        else:
            assert new.origin == 2
            old = first[site]
            assert old is None or (old.key != new.key and old.share != new.share and old.nonce != new.nonce)
            assert again.sent(site)[0, "opening"][0] not in before.sent(site).get((0, "opening"), [])


def _bytes(record: object) -> tuple[object, ...]:
    assert record is not None
    return (record.origin, record.share, record.key, record.nonce)  # type: ignore[attr-defined]


def test_blocks_are_taken_up_apart_from_each_other() -> None:
    """One block was entered by one member, the other by nobody."""
    stage = Stage.of(2, *LAYOUT, n_clusters=3)
    play = Play(stage).until(("prove", 0))
    task = play.task("c")  # a member of the first block alone
    play.channels["c"].begin(task)
    play.players["c"].answer(task, stage.model)
    again = Play(stage, epoch=2).until()
    assert {s: v.tolist() for s, v in again.labels().items()} == {s: v.tolist() for s, v in stage.pooled().items()}
    assert [stage.record("a", block).origin for block in (0, 1)] == [1, 2]  # type: ignore[union-attr]
    assert (0, "opening") not in again.sent("a")
    assert (1, "opening") in again.sent("a")


@pytest.mark.parametrize("how", ["nothing", "another attempt"])
def test_where_a_member_has_lost_its_share_the_block_ends_without_labels_for_all(how: str) -> None:
    stage = Stage.of(3, *LAYOUT, n_clusters=3)
    crashed(stage, ("prove", 0), "a")
    stage.records["c"] = MemoryRecords()
    if how == "another attempt":  # as from an old copy of its disk
        stage.records["c"].settle(stage.digest(0), 0, bytes(9 + 256), bytes(32), bytes(32), 3)
    again = Play(stage, epoch=2).until()
    for site, outcome in again.outcomes.items():
        assert outcome.lost == outcome.stopped == (0,)
        expected = stage.pooled()[site]
        expected[stage.rows[site][0]] = -1
        assert outcome.labels.tolist() == expected.tolist()
        assert not any(block == 0 for block, _ in again.sent(site))


def test_a_share_replaced_between_attempts_is_found_by_those_that_have_entered_and_by_those_that_were_told() -> None:
    for alone in ("a", "c"):
        stage = Stage.of(4, *LAYOUT, n_clusters=3)
        crashed(stage, ("prove", 0), "a")
        old = stage.record("b", 0)
        assert old is not None
        share = (np.frombuffer(old.share, dtype=np.uint8) + 1) % 32
        stage.records["b"].discard_labels(stage.digest(0))
        stage.records["b"].settle(stage.digest(0), old.origin, share.tobytes(), old.key, old.nonce, 3)
        play = Play(stage, epoch=2).until(("prove", 0))
        with pytest.raises(OtherShare, match="b opened another share"):
            play.answer(alone)
        assert (0, "dummies") not in play.sent(alone)


def test_a_share_that_was_never_entered_is_deleted_before_anything_new_is_sent() -> None:
    stage = Stage.of(5, *LAYOUT, n_clusters=2)
    crashed(stage, ("settle", 0), "abc")
    assert all(stage.record(site, 0) is not None for site in stage.sites)
    Play(stage, epoch=2).exchange()
    assert all(stage.record(site, 0) is None for site in stage.sites)


def test_members_that_disagree_about_a_block_end_it() -> None:
    """A coordinator cannot make this happen: it takes a site that tells two stories."""
    stage = Stage.of(6, *LAYOUT, n_clusters=2)
    crashed(stage, ("prove", 0), "abc")
    play = Play(stage, epoch=2)
    play.players["a"]._states[0] |= {"b": LabelStatus()}  # type: ignore[operator]
    play.until()
    assert play.outcomes["a"].lost == (0,)
    assert play.outcomes["b"].stopped == (0,)
    assert play.outcomes["b"].lost == ()
    states = [content.tolist() for _, _, name, content in play.seen if name == ArrayName.of_broadcast("blocks", "a")]
    assert states == [[2, 1]]


# The same objects as another block.


@pytest.mark.parametrize("job_key", [None, b"k" * 32])
def test_a_coordinator_cannot_order_the_objects_of_a_block_otherwise(job_key: bytes | None) -> None:
    """Each order would be a block of its own: one release would pay for any number of labellings."""
    world = SealedWorld(sealed_job(2, 2.0), few_sites(), job_key)
    play_until(world.attempt(), "finish")
    order = np.random.default_rng(1).permutation(24)
    shared = {block.index for block in world.aligned.topology.blocks if block.shared}
    others = {
        site: {index: rows[order] if index in shared else rows for index, rows in of_site.items()}
        for site, of_site in world.aligned.rows.items()
    }
    world.aligned = replace(world.aligned, rows=others)
    with pytest.raises(MessageError, match="not in the order of their pseudonyms"):
        world.attempt()
    assert all(len(records.entered) == 1 for records in world.records.values())


class OtherDigests(Stage):
    """The same objects under other digests of blocks."""

    @property
    def objects(self) -> dict[int, bytes]:
        return {index: digest[::-1] for index, digest in super().objects.items()}


def test_a_site_labels_objects_once_in_a_job_whatever_the_digest_of_their_block() -> None:
    stage = Stage.of(2, *LAYOUT, n_clusters=3)
    Play(stage).until()
    again = OtherDigests(**vars(stage))
    play = Play(again, epoch=2, entropy="another").until(("prove", 0))
    for site in again.sites:
        with pytest.raises(Refused, match="rule: one labelling"):
            play.answer(site)
        assert (0, "dummies") not in play.sent(site)
