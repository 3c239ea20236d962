"""Labels of sealed jobs are those of the pooled scores, whatever the layout; sizes of messages say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.label_stage import Play, Stage, all_rounds

from ce.pair_tables import log_scores
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.sealed.channel import OVERHEAD

laws = settings(deadline=None, derandomize=True)
SITES = tuple("abcdefghij")

LAYOUT = (
    [(("a", "b", "c"), 21), (("a", "b"), 9), (("a",), 6), (("b", "c"), 1)],
    [(("a",), 3), (("b",), 4), (("b", "c"), 2), (("c",), 5), (("a", "c"), 3)],
)


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    sites = SITES[: draw(st.integers(2, 10))]
    some = st.lists(st.sampled_from(sites), min_size=1, unique=True).map(lambda chosen: tuple(sorted(chosen)))
    blocks = draw(st.lists(st.tuples(some, st.integers(1, 9)), min_size=1, max_size=3))
    columns = draw(st.lists(st.tuples(some, st.integers(1, 4)), min_size=2, max_size=6))
    # Every site has a column, and is in a block.
    blocks, columns = [*blocks, (sites, draw(st.integers(1, 5)))], [*columns, (sites, 2)]
    clusters, missing, coarse = draw(st.integers(2, 31)), draw(st.sampled_from([0.0, 0.3, 0.9])), draw(st.booleans())
    stage = Stage.of(draw(st.integers(0, 2**32)), blocks, columns, clusters, missing, coarse)
    stage.min_foreign_columns = draw(st.integers(0, 3))
    return stage


def labels_are_pooled(stage: Stage) -> None:
    found, pooled = Play(stage).until().labels(), stage.pooled()
    for site in stage.sites:
        assert found[site].tolist() == pooled[site].tolist()


@pytest.mark.promise("The labels of a sealed job are those of the scores of all labels in one place.")
@settings(laws, max_examples=6)
@given(stages())
def test_labels_are_those_of_the_pooled_scores(stage: Stage) -> None:
    labels_are_pooled(stage)


@pytest.mark.slow
@settings(laws, max_examples=200)
@given(stages())
def test_labels_are_those_of_the_pooled_scores_in_many_layouts(stage: Stage) -> None:
    labels_are_pooled(stage)


def test_ten_sites_find_thirty_one_clusters() -> None:
    labels_are_pooled(Stage.of(4, [(SITES, 40), (SITES[4:], 20)], [((site,), 5) for site in SITES], 31))


def test_equal_scores_go_to_the_lowest_cluster_and_no_label_is_no_cluster() -> None:
    stage = Stage.of(3, *LAYOUT, n_clusters=6, missing=0.5, coarse=True)
    stage.model.beta[:] = 0.25
    for codes in stage.codes.values():
        codes[::3] = -1
    for site, labels in Play(stage).until().labels().items():
        assert labels.tolist() == stage.pooled()[site].tolist()
        assert set(labels.tolist()) == {0, -1}


def test_a_cell_at_two_sites_counts_twice() -> None:
    # One column, at both sites: its label says cluster 1 by a little, the weights say 0 by a little more.
    stage = Stage.of(0, [(("a", "b"), 2)], [(("a", "b"), 2), (("a",), 2)], 2)
    stage.model.weights[:] = [0.6, 0.4]
    stage.model.beta[:] = [[0.4, 0.5], [0.6, 0.5], [0.5, 0.5], [0.5, 0.5]]
    stage.codes["a"][:], stage.codes["b"][:] = -1, -1
    for site, both in (("a", (0, 1)), ("b", (1,))):
        stage.codes[site][stage.rows[site][0][list(both)], 0] = 0
    labels = Play(stage).until().labels()
    for site in "ab":
        assert labels[site][stage.rows[site][0]].tolist() == [0, 1]  # .6 * .4 > .4 * .5, and .6 * .16 < .4 * .25


def test_in_a_block_of_two_an_object_with_few_labels_is_scored_as_unlabelled() -> None:
    stage = Stage.of(5, [(("a", "b"), 40), (("a", "b", "c"), 40)], [((s,), 3) for s in "aaabbbc"], 4, missing=0.4)
    freely = Play(stage).until().labels()
    stage.min_foreign_columns, stage.records = 3, {}
    kept = Play(stage, epoch=2).until().labels()
    rows = stage.rows["a"]
    assert kept["a"].tolist() == stage.pooled()["a"].tolist()
    assert (kept["a"][rows[0]] != freely["a"][rows[0]]).any()
    assert (kept["a"][rows[1]] == freely["a"][rows[1]]).all()
    few = [(stage.codes[s][stage.rows[s][0]] >= 0).sum(axis=1) < 3 for s in "ab"]
    assert (kept["a"][rows[0]] == -1).tolist() == (few[0] & few[1]).tolist()


def test_labels_in_columns_of_the_other_member_hide_nothing_from_it() -> None:
    """Of each object a has three labels that b may have too, and one to three of its own."""
    columns = [(("a", "b"), 3)] * 3 + [(("a",), 3)] * 3 + [(("b",), 3)] * 3
    stage = Stage.of(7, [(("a", "b"), 40)], columns, 4, missing=0.0)
    few = np.arange(40) < 20
    stage.codes["a"][np.ix_(stage.rows["a"][0][few], [4, 5])] = -1
    stage.codes["b"][stage.rows["b"][0][few]] = -1  # so that the winner is of a's labels alone
    stage.min_foreign_columns = 3
    found = Play(stage).until().labels()["a"][stage.rows["a"][0]]
    assert (found == -1).tolist() == few.tolist()
    assert found.tolist() == stage.pooled()["a"][stage.rows["a"][0]].tolist()


def test_objects_held_alone_have_memberships_that_agree_with_their_labels() -> None:
    stage = Stage.of(6, [(("a",), 200), (("a", "b"), 3)], [(("a",), 3), (("a",), 4), (("b",), 2)], 5, missing=0.4)
    outcome = Play(stage).until().outcomes["a"]
    alone, together = stage.rows["a"][0], stage.rows["a"][1]
    codes, chances = stage.codes["a"][alone], outcome.memberships[alone]
    unlabelled = (codes < 0).all(axis=1)
    assert unlabelled.any()
    assert (outcome.labels[alone] == np.where(unlabelled, -1, chances.argmax(axis=1))).all()
    assert np.isnan(outcome.memberships[together]).all()
    whole = np.hstack((codes, np.full((len(codes), 1), -1, dtype=np.int32)))
    exact = np.exp(log_scores(whole, stage.terms.layout, stage.model.weights, stage.model.beta))
    np.testing.assert_allclose(chances, exact / exact.sum(axis=1, keepdims=True), atol=1e-4)


def test_without_shared_blocks_the_labels_need_no_round() -> None:
    stage = Stage.of(7, [(("a",), 4), (("b",), 5)], [(("a",), 3), (("b",), 2)], 3)
    play = Play(stage).until()
    assert play.seen == []
    assert {s: v.tolist() for s, v in play.labels().items()} == {s: v.tolist() for s, v in stage.pooled().items()}


@pytest.mark.parametrize("n_clusters", [1, 3, 4, 31])
def test_five_rounds_a_level_whatever_the_number_of_blocks(n_clusters: int) -> None:
    play = Play(Stage.of(8, *LAYOUT, n_clusters=n_clusters)).until()
    assert list(dict.fromkeys(where for where, *_ in play.seen)) == all_rounds(n_clusters)[:-1]


def test_sizes_follow_from_public_numbers() -> None:
    sizes = []
    for seed, missing, coarse in ((1, 0.0, False), (2, 0.9, True)):
        play = Play(Stage.of(seed, *LAYOUT, n_clusters=5, missing=missing, coarse=coarse)).until()
        sizes.append([(where, site, name, content.shape) for where, site, name, content in play.seen])
    assert sizes[0] == sizes[1]
    per_block = {name.what: shape[0] - OVERHEAD for _, _, name, shape in sizes[0] if name.scope == "block/0"}
    assert per_block == {"opening": 35, "commitment": 32, "dummies": 320, "winners": 53, "digest": 32}


def test_the_coordinator_sees_no_opening_and_passes_on_only_to_members() -> None:
    play = Play(Stage.of(9, *LAYOUT, n_clusters=4))
    while play.where != ("finish", 0):
        play.go_on(play.exchange())
        for site, arrays in play.brought.items():
            for name in arrays:
                if name.kind == "members":
                    assert site in play.stage.blocks[name.number].members
                    assert site != name.site
                elif name.kind == "dealer":
                    assert play.stage.blocks[name.number].members[-1] == site
                else:
                    assert name.kind == "box"
    everything = b"".join(content.tobytes() for *_, content in play.seen)
    for site in play.stage.sites:
        for contents in play.sent(site).values():
            assert all(content[:24] not in everything for content in contents)
    clear = {name.kind for _, _, name, _ in play.seen} - {"box", "members"}
    assert clear == {"dealer", "all"}
    assert {name.what for _, _, name, _ in play.seen if name.kind == "all"} == {"blocks"}


def test_seeds_are_fresh_in_every_attempt_and_of_every_site() -> None:
    stage, seeds = Stage.of(10, *LAYOUT, n_clusters=2), []
    for epoch in (1, 2, 3):
        play = Play(stage, epoch=epoch).until(("prove", 0))
        seeds += [content.tobytes() for _, _, name, content in play.seen if name == ArrayName.to_dealer("argmax_seed")]
    assert len(seeds) == len(set(seeds)) == 9


@pytest.mark.slow
def test_what_is_sent_looks_uniform() -> None:
    """Bytes that the coordinator relays; and what the members open of the comparisons, which says nothing to them."""
    counts, bits = np.zeros(256), []
    for seed in range(12):
        stage = Stage.of(seed, [(("a", "b", "c"), 400)], [((s,), 3) for s in "aabbcc"], 7)
        play = Play(stage, entropy=f"uniform {seed}").until()
        for _, _, name, content in play.seen:
            if name.kind == "members":
                counts += np.bincount(content, minlength=256)
        openings = [play.sent(site)[0, "opening"] for site in "abc"]
        for level in range(3):
            words = [np.frombuffer(messages[5 * level], dtype="<u4") for messages in openings]
            opened = words[0] + words[1] + words[2]
            bits.append(np.unpackbits(opened.view(np.uint8)).reshape(-1, 32).mean(axis=0))
            chosen = [np.frombuffer(messages[5 * level + 4], dtype=np.uint8) for messages in openings]
            assert abs(np.unpackbits(chosen[0] ^ chosen[1] ^ chosen[2]).mean() - 0.5) < 0.07
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * np.sqrt(2 * 255)
    assert np.abs(np.mean(bits, axis=0) - 0.5).max() < 0.02
