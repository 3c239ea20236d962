"""A coordinator that lies to honest sites about what they cannot check: it gets noise, and the job fails.

In which order objects stand, how large the job is, what the others were told, what their parts come to: masks are bound
to all of it, so that they do not cancel between sites that were told different things. In `masked` the liar is itself
the home, and what it adds up is noise; in `blind` the members see that a total cannot be, and what sites send to each
other through its hands opens nowhere else. Which objects other sites hold too, the sites find out by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from support.lying_sites import (
    ALL,
    COMMON,
    HEARER,
    LEAVE,
    MEMBERS,
    SITES,
    TWO,
    Change,
    Heard,
    Lie,
    LyingJob,
    Scene,
    arrays_of,
    ask,
    assert_broken,
    assert_noise,
    assert_refused,
    assert_told_nothing,
    job_of,
    mail,
    older,
    others,
    private_of,
    put,
    scene_fixture,  # noqa: F401 (a fixture)
    task_of,
    total_of,
    totals,
    truth_fixture,  # noqa: F401 (a fixture)
    with_arrays,
)

from ce.errors import JobFailed, MessageError, Refused
from ce.protocol.messages.task import Answer, Array, Task
from ce_client.attempt.attempt import SiteAttempt
from ce_proto.v1 import site_pb2 as pb

hidden_modes = pytest.mark.parametrize("privacy", ["masked", "blind"])


# Who holds what: told to one site only, and seen in the sum.


@pytest.fixture(autouse=True)
def _asks_for_what_each_site_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site refuses a task that does not list the arrays that it computes itself (tests/protocol/test_messages.py).
    That list is no secret: here the liar sends each site the one that it expects, and the rest must hold without."""
    for module in ("ce.protocol.engine.site", "ce.protocol.modes.blind_site"):
        monkeypatch.setattr(f"{module}.check_asked", lambda asked, expected: None)


def shrink(message: pb.Alignment, table: LyingJob) -> None:
    """One object is left in the block of two; the others are said to be of this site alone."""
    rows = arrays_of(message.chunks)
    own = next(block for block in message.blocks if len(block.members) == 1)
    two = next(block for block in message.blocks if block.index == TWO)
    rows[f"rows/{own.index}"] = np.concatenate([rows[f"rows/{own.index}"], rows[f"rows/{TWO}"][1:]])
    rows[f"rows/{TWO}"] = rows[f"rows/{TWO}"][:1]
    own.size, two.size = len(rows[f"rows/{own.index}"]), 1
    message.private_objects[SITES.index(own.members[0])] = own.size
    put(message.chunks, rows)


def swap(one: str, other: str) -> Change:
    """The first objects of two blocks."""

    def change(rows: dict[str, Array]) -> None:
        rows[one][0], rows[other][0] = rows[other][0].copy(), rows[one][0].copy()

    return with_arrays(change)


def other_members(message: pb.Alignment, table: LyingJob) -> None:
    """East hears that it shares with west what it shares with north."""
    two = next(block for block in message.blocks if block.index == TWO)
    del two.members[:]
    two.members.extend(["east", "west"])


#: What, to whom, and which total is noise.
SHOWN: dict[str, tuple[str, Change, str]] = {
    "objects in another order": (
        HEARER,
        with_arrays(lambda rows: rows.update({f"rows/{ALL}": rows[f"rows/{ALL}"][::-1]})),
        f"block/{ALL}/claims/{COMMON}",
    ),
    "another number of objects that a peer holds alone": (
        HEARER,
        private_of("north", lambda n: n + 1),
        "global/objects",
    ),
}


@pytest.mark.promise("If sites are sent inconsistent views, their masks do not cancel.")
@pytest.mark.parametrize(("to", "change", "name"), SHOWN.values(), ids=SHOWN)
def test_masked_sums_of_sites_that_were_shown_different_things_are_noise(
    scene: Scene, truth: Heard, to: str, change: Change, name: str
) -> None:
    table = scene.begin(job_of("masked"), Lie(to, "alignment", change))
    table.run()
    assert_broken(table)
    assert_noise(table, truth, name)


@pytest.mark.promise("If sites are sent inconsistent views, their masks do not cancel.")
@pytest.mark.parametrize(("to", "change", "name"), SHOWN.values(), ids=SHOWN)
def test_blind_sites_that_were_shown_different_things_see_it_in_the_totals(
    scene: Scene, to: str, change: Change, name: str
) -> None:
    table = scene.begin(job_of("blind"), Lie(to, "alignment", change))
    table.run()
    assert_broken(table)


@hidden_modes
def test_sums_of_sites_that_were_told_different_sizes_are_noise(scene: Scene, truth: Heard, privacy: str) -> None:
    """Of more objects than there are follows another scale. The liar hides from its own machine that it is another."""
    table = scene.begin(job_of(privacy), Lie(HEARER, "alignment", lambda m, _: setattr(m.sizes, "objects", 26)))
    bits: dict[tuple[int, str], list[int]] = {}

    def amend(site: str, frame: pb.SiteFrame) -> None:
        for part in frame.answer.chunks.chunks:
            seen = bits.setdefault((frame.answer.round, part.name), [])
            seen.append(part.fraction_bits)
            part.fraction_bits = seen[0]

    table.amend = amend
    table.run()
    scales = [set(seen) for (_, name), seen in bits.items() if name == f"columns/{COMMON}/sums"]
    assert len(scales[0]) == 2, "the scale is the same: the test shows nothing"
    assert_broken(table)
    if privacy == "masked":
        assert_noise(table, truth, f"columns/{COMMON}/sums")


@hidden_modes
def test_sites_that_were_sent_different_enrolments_cannot_read_each_others_letters(scene: Scene, privacy: str) -> None:
    table = scene.begin(job_of(privacy), Lie(HEARER, "introduction", older, revision=1), policies=LEAVE)
    table.run()
    assert table.since[HEARER][0].WhichOneof("frame") == "letters", "it cannot know"
    assert (table.record.state, table.record.exit_code) == ("failed", MessageError.exit_code)
    assert "was not encrypted for this site, job and epoch: " in table.record.reason
    assert not table.heard, "something was answered"


# Which objects other sites hold too: the sites have compared them.


OVERLAPS: dict[str, tuple[str, Change]] = {
    "an object of another block": (HEARER, swap(f"rows/{ALL}", "rows/4")),
    "an object of another shared block": ("east", swap(f"rows/{ALL}", f"rows/{TWO}")),
    "one object": ("east", shrink),
    "other members": ("east", other_members),
}


@pytest.mark.promise("A site finds out if the coordinator says something wrong about which sites hold its objects.")
@pytest.mark.parametrize("privacy", ["plain", "masked", "blind"])
@pytest.mark.parametrize(("to", "change"), OVERLAPS.values(), ids=OVERLAPS)
def test_what_the_sites_have_found_otherwise_is_refused(scene: Scene, privacy: str, to: str, change: Change) -> None:
    table = scene.begin(job_of(privacy), Lie(to, "alignment", change))
    table.run()
    assert_refused(table, Refused, "the coordinator says something else about whether", to)
    assert table.record.rule == "overlap of sites"
    assert not table.heard, "something was answered"


# Tasks: what two members are told differs.

#: All totals that west is in; whatever two sites are told of objects that both hold is in all masks between them.
EVERYTHING = (f"block/{ALL}/sums", f"columns/{COMMON}/sums", "global/bound", "global/moved")
#: What, and which totals are noise.
TOLD: dict[str, tuple[Change, tuple[str, ...]]] = {
    "another message": (others(f"block/{ALL}/message"), EVERYTHING),
    "other tables": (others(f"columns/{COMMON}/beta"), (f"columns/{COMMON}/sums",)),
    "other globals": (others("global/alpha"), EVERYTHING),
    "another iteration": (lambda m, _: setattr(m, "iteration", 3), EVERYTHING),
}


@pytest.mark.parametrize(("change", "names"), TOLD.values(), ids=TOLD)
def test_masked_sums_of_members_that_were_told_different_things_are_noise(
    scene: Scene, truth: Heard, change: Change, names: tuple[str, ...]
) -> None:
    table = scene.begin(job_of("masked"), Lie(HEARER, "task", change, step=pb.STEP_SUMS, iteration=2))
    table.run()
    assert_broken(table)
    for name in names:
        assert_noise(table, truth, name)
    # Sites that were told the same about the objects of theirs alone have what they had.
    name, last = f"block/{TWO}/sums", max(at for at, _ in table.heard)
    np.testing.assert_array_equal(total_of(table.heard[last, name]), total_of(truth[last, name]))


IMPOSSIBLE: dict[str, tuple[int, int, Change, str]] = {
    "more labels than columns": (
        pb.STEP_COUNTS,
        0,
        with_arrays(lambda a: a[f"block/{ALL}/labels"].__iadd__(1)),
        "labels of a block: expected whole numbers",
    ),
    "fewer labels than this site has": (
        pb.STEP_COUNTS,
        0,
        with_arrays(lambda a: a[f"block/{ALL}/labels"].__imul__(0)),
        "labels of a block: expected whole numbers",
    ),
    "more hidden labels than labels": (
        pb.STEP_COUNTS,
        0,
        with_arrays(lambda a: a[f"block/{ALL}/hidden"].__iadd__(2)),
        "hidden of a block: expected whole numbers",
    ),
    "a message that no object has": (
        pb.STEP_SUMS,
        2,
        with_arrays(lambda a: a[f"block/{ALL}/message"].__iadd__(1)),
        "message: expected numbers from 0 to 1",
    ),
}


@pytest.mark.parametrize(("step", "iteration", "change", "says"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_be_is_refused(scene: Scene, step: int, iteration: int, change: Change, says: str) -> None:
    table = scene.begin(job_of("masked"), Lie(HEARER, "task", change, step=step, iteration=iteration))
    table.run()
    assert_refused(table, MessageError, says)


@pytest.mark.promise("If sites are sent inconsistent views, their masks do not cancel.")
def test_masked_sums_of_fewer_sites_than_all_are_noise(scene: Scene, truth: Heard) -> None:
    """Nobody need lie: who adds up only some of what it hears, or looks at one site alone, has nothing."""
    table = scene.begin(job_of("masked"))
    table.run()
    assert table.record.state == "done"
    assert table.heard.keys() == truth.keys()
    for key, words in table.heard.items():
        np.testing.assert_array_equal(total_of(words), total_of(truth[key]), err_msg=str(key))
        for some in (some for r in range(1, len(words)) for some in combinations(words, r)):
            got, true = (total_of({site: heard[key][site] for site in some}) for heard in (table.heard, truth))
            assert (got != true).all(), (key, some)


# Blind: the totals, and what sites send to each other, pass through the liar's hands.


def less_of_north(message: pb.Task, table: LyingJob) -> None:
    """The total without one site's part."""
    arrays = arrays_of(message.chunks)
    name = f"block/{ALL}/sums"
    part = table.heard[message.round - 1, name]["north"]
    arrays[name] = arrays[name] - part  # type: ignore[operator]
    put(message.chunks, arrays)


def last_time(message: pb.Task, table: LyingJob) -> None:
    """The totals of the iteration before."""
    before = [f.task for f in table.told[HEARER] if f.WhichOneof("frame") == "task" and f.task.step == message.step]
    put(message.chunks, arrays_of(before[-1].chunks))


def there_and_back(arrays: dict[str, Array]) -> None:
    """Another total of the same sum over the clusters, so that no law is broken by itself."""
    words = arrays[f"block/{ALL}/sums"]
    words[:, 0] += 2**20
    words[:, 1] -= 2**20


#: What, to whom, in which step and iteration.
ALTERED: dict[str, tuple[str, int, int, Change]] = {
    "the part of a site left out": (HEARER, pb.STEP_SHARES, 2, less_of_north),
    "totals of the last time": (HEARER, pb.STEP_SHARES, 2, last_time),
    "labels counted otherwise": (
        HEARER,
        pb.STEP_SHARES,
        0,
        with_arrays(lambda a: a[f"block/{ALL}/labels"].__isub__(1)),
    ),
    "an object less": (HEARER, pb.STEP_COUNTS, 0, with_arrays(lambda a: a["global/objects"].__isub__(1))),
    "other object sums": (HEARER, pb.STEP_SHARES, 2, with_arrays(there_and_back)),
    "other object sums for the first site": ("east", pb.STEP_SHARES, 2, with_arrays(there_and_back)),
    "other column sums": (HEARER, pb.STEP_SHARES, 2, others(f"columns/{COMMON}/sums")),
}


@pytest.mark.parametrize(("to", "step", "iteration", "change"), ALTERED.values(), ids=ALTERED)
def test_altered_totals_are_seen_by_the_members(
    scene: Scene, to: str, step: int, iteration: int, change: Change
) -> None:
    table = scene.begin(job_of("blind"), Lie(to, "task", change, step=step, iteration=iteration))
    table.run()
    assert_broken(table)
    assert set(table.refusals) == {to}
    assert {frame.WhichOneof("frame") for frame in table.since[to]} == {"refusal"}, "it has gone on"


def at_once(delta: int, start: int, cluster: int, at: int) -> Change:
    """One object's total shifted from one cluster to another: the sum over the clusters stays what it is."""

    def change(arrays: dict[str, Array]) -> None:
        words = arrays[f"block/{ALL}/sums"]
        words[start, cluster, at : at + 1] -= delta  # modulo 2^64, as slices of an array are
        words[start, 1 - cluster, at : at + 1] += delta

    return with_arrays(change)


@pytest.mark.promise("In blind a total that was changed is refused before anything is decided.")
def test_a_total_that_is_shifted_alike_for_all_tells_nothing(scene: Scene, truth: Heard) -> None:
    """The coordinator asks whether a sum that it cannot read is below a number: it shifts the total by that number,
    alike for all members, and watches whether the law breaks that no sum is negative."""
    _, second, *_ = sorted(at for at, name in truth if name == f"block/{ALL}/sums")
    sums = np.asarray(total_of(truth[second, f"block/{ALL}/sums"]))
    delta = int(np.median(sums))
    places = sorted(np.ndindex(*sums.shape), key=lambda at: int(sums[at]))

    def ask_about(at: tuple[int, ...]) -> LyingJob:
        lies = [Lie(site, "task", at_once(delta, *at), step=pb.STEP_SHARES, iteration=2) for site in MEMBERS[ALL]]
        table = scene.begin(job_of("blind"), *lies)
        table.run()
        return table

    replies = []
    for at in (*places[:2], *places[-2:]):
        table = ask_about(at)
        replies.append([frame.SerializeToString() for site in MEMBERS[ALL] for frame in table.since[site]])
        assert_broken(table)
        assert set(table.refusals) == set(MEMBERS[ALL])
    assert all(frames == replies[0] for frames in replies), "what comes back depends on the sums"
    with pytest.MonkeyPatch.context() as without_tags:  # so one question is answered by yes, the other by no
        without_tags.setattr("ce.protocol.modes.mask_context.from_words", lambda words: 0)
        without_tags.setattr("ce.protocol.modes.mask_context.tag", lambda words, key: 0)
        assert (bool(ask_about(places[0]).refusals), bool(ask_about(places[-1]).refusals)) == (True, False)


#: What a site may be sent, and what may happen to it, so that it fails after masked words have left.
SENT_IN: dict[str, dict[str, Change]] = {
    "blind": {
        "no total": with_arrays(lambda a: a.pop("global/bound")),
        "a changed total": others("global/bound"),
        "a changed tag": others("global/mac"),
        "another step": lambda m, _: setattr(m, "step", pb.STEP_FINISH),
    },
    "masked": {
        "an impossible message": with_arrays(lambda a: a[f"block/{ALL}/message"].__iadd__(1)),
        "no message": with_arrays(lambda a: a.pop(f"block/{ALL}/message")),
        "another step": lambda m, _: setattr(m, "step", pb.STEP_FINISH),
    },
}
HAPPENS: dict[str, Exception] = {
    "no memory": MemoryError(),
    "no room on the disk": JobFailed("the ledger cannot be written"),
    "a rule": Refused("max_rounds", "this site answers at most 5 rounds of a job"),
    "an error of the program": ZeroDivisionError(),
}


def fail(scene: Scene, privacy: str, why: str) -> LyingJob:
    """A job that ends in its second iteration because west cannot go on."""
    change = SENT_IN[privacy].get(why)
    table = scene.begin(
        job_of(privacy), *([] if change is None else [Lie(HEARER, "task", change, step=pb.STEP_SUMS, iteration=2)])
    )
    rounds: Any = table.pause(pb.STEP_SUMS, iteration=2)[HEARER]._rounds
    for site, task in table.waiting.items():
        table.down[site].appendleft(pb.CoordinatorFrame(task=task).SerializeToString())
    table.since[HEARER] = []
    with pytest.MonkeyPatch.context() as patch:
        if why in HAPPENS:

            def happens() -> None:
                raise HAPPENS[why]

            patch.setattr(rounds._recorder, "next_round", happens)
        table.run()
    return table


@pytest.mark.promise("After the first masked word every failure of a site is told in the same bytes.")
@hidden_modes
def test_every_failure_is_told_alike(scene: Scene, privacy: str) -> None:
    told, known = {}, set()
    for why in (*SENT_IN[privacy], *HAPPENS):
        table = fail(scene, privacy, why)
        assert_told_nothing(table, HEARER)
        assert set(table.refusals) == {HEARER}
        (frame,) = table.since[HEARER]
        told[why] = frame.SerializeToString()
        known.add(str(table.refusals[HEARER]))
    assert len(set(told.values())) == 1, told
    assert len(known) >= 7, "the site itself knows what it was"


@pytest.mark.parametrize(
    ("to", "step", "hearers"),
    [(HEARER, pb.STEP_SUMS, (HEARER,)), ("east", pb.STEP_DECIDE, ("north", "west"))],
    ids=["one site", "the first site"],
)
def test_totals_that_the_first_site_was_not_told_are_refused(
    scene: Scene, to: str, step: int, hearers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who decides says from what; so those that were told something else do not follow, even if tags were forged."""
    monkeypatch.setattr("ce.protocol.modes.mask_context.from_words", lambda words: 0)
    monkeypatch.setattr("ce.protocol.modes.mask_context.tag", lambda words, key: 0)
    iteration = 2 if step == pb.STEP_SUMS else 1
    table = scene.begin(job_of("blind"), Lie(to, "task", others("global/bound"), step=step, iteration=iteration))
    table.run()
    assert set(table.refusals) == set(hearers)
    for site in hearers:
        assert isinstance(table.refusals[site], MessageError)
        assert "state: the first site was sent other totals than this one" in str(table.refusals[site])
        last = [frame.task for frame in table.told[site] if frame.WhichOneof("frame") == "task"][-1]
        assert not any(site in words for (at, _), words in table.heard.items() if at == last.round)
    assert (table.record.state, table.record.exit_code) == ("failed", 7)


def letter_of(site: str, name: str) -> Change:
    """What was sealed for another site."""

    def change(message: pb.Task, table: LyingJob) -> None:
        sent = table.heard[message.round - 1, f"box/{site}"][name.removeprefix("box/")]
        put(message.chunks, arrays_of(message.chunks) | {name: sent})

    return change


def old_letter(message: pb.Task, table: LyingJob) -> None:
    """What was decided in the iteration before, and sealed for this very site."""
    before = table.heard[message.round - 4, f"box/{HEARER}"]["east"]
    put(message.chunks, arrays_of(message.chunks) | {"box/east": before})


NOT_FOR_THIS = "ciphertext: what comes from east was not encrypted for this site, job and epoch"
LETTERS: dict[str, tuple[int, int, Change, str]] = {
    "another site's keys": (pb.STEP_OPEN, 0, letter_of("north", "box/east"), NOT_FOR_THIS),
    "no keys": (pb.STEP_OPEN, 0, with_arrays(lambda a: a.pop("box/east")), "box/east: missing"),
    "changed keys": (pb.STEP_OPEN, 0, with_arrays(lambda a: a["box/east"].__ixor__(1)), NOT_FOR_THIS),
    "another site's decision": (pb.STEP_SUMS, 2, letter_of("north", "box/east"), NOT_FOR_THIS),
    "an old decision": (pb.STEP_SUMS, 3, old_letter, NOT_FOR_THIS),
    "no decision": (pb.STEP_SUMS, 2, with_arrays(lambda a: a.pop("box/east")), "box/east: missing"),
    "no total": (pb.STEP_SUMS, 2, with_arrays(lambda a: a.pop("global/bound")), "global/bound: the total is missing"),
}


@pytest.mark.parametrize(("step", "iteration", "change", "says"), LETTERS.values(), ids=LETTERS)
def test_what_a_peer_has_not_sealed_for_this_is_refused(
    scene: Scene, step: int, iteration: int, change: Change, says: str
) -> None:
    table = scene.begin(job_of("blind"), Lie(HEARER, "task", change, step=step, iteration=iteration))
    table.run()
    assert_refused(table, MessageError, says)


def test_a_site_that_is_said_to_share_everything_with_everybody_is_not_led_astray(scene: Scene) -> None:
    """West cannot know of the block that it has no part in; but then it expects other steps than it is asked for."""
    table = scene.begin(job_of("blind"), Lie(HEARER, "alignment", lambda m, _: setattr(m, "shared_by_all", True)))
    table.run()
    assert "step: expected counts, got shares" in str(table.refusals[HEARER])
    assert table.record.state == "failed"


@contextmanager
def by_hand(scene: Scene) -> Iterator[tuple[dict[str, SiteAttempt], Callable[..., dict[str, Answer]]]]:
    """The sites of a blind job that has come to the first sums, and how to put tasks to them, totals and letters."""
    table = scene.begin(job_of("blind"))
    sites = table.pause(pb.STEP_SUMS)
    waiting = {site: task_of(task) for site, task in table.waiting.items()}
    last = {site: ask(own, waiting[site]) for site, own in sites.items()}
    round_ = waiting[HEARER].round

    def put_to(step: Any, *names: str, letters: Mapping[str, Answer] | None = None) -> dict[str, Answer]:
        nonlocal last, round_
        round_ += 1
        told = {s: {n: totals(last)[n] for n in last[s].arrays} | mail(letters or {}, s) for s in sites}
        answers = {s: ask(sites[s], Task(round_, step, 0, 1, arrays=told[s])) for s in names or sites}
        if step not in ("keys", "decide"):
            last = answers
        return answers

    yield sites, put_to


FOLLOWS = "step: expected decide, got"
UNDECIDED = "step: expected \\w+, got decide"


@pytest.mark.parametrize(
    ("before", "step", "site", "says"),
    [
        # The decision is skipped.
        (["shares"], "sums", "east", FOLLOWS),
        (["shares"], "sums", "north", "box/east: missing"),
        (["shares"], "finish", "east", FOLLOWS),
        (["shares"], "finish", "north", "box/east: missing"),
        # Keys, openings and decisions again, or out of turn, or of somebody else.
        ([], "keys", "east", "step: expected keys once, got it again"),
        (["shares"], "keys", "west", "step: expected keys once, got it again"),
        ([], "open", "east", "step: expected \\w+, got"),
        (["shares"], "open", "east", "step: expected \\w+, got"),
        ([], "decide", "east", UNDECIDED),
        (["shares"], "decide", "west", UNDECIDED),
        (["shares", "decide"], "decide", "east", UNDECIDED),
        # Words before the totals of the last ones are known.
        ([], "sums", "west", "step: expected \\w+, got"),
        (["shares"], "shares", "west", "box/east: missing"),
    ],
)
def test_blind_steps_have_an_order(scene: Scene, before: list[str], step: str, site: str, says: str) -> None:
    with by_hand(scene) as (_, put_to):
        for other in before:
            put_to(other, *(["east"] if other == "decide" else []))
        with pytest.raises(MessageError, match=says):
            put_to(step, site)


def test_by_hand_is_as_the_coordinator_does_it(scene: Scene) -> None:
    with by_hand(scene) as (_, put_to):
        for _ in range(2):
            put_to("shares")
            decided = put_to("decide", "east")
            answers = put_to("sums", letters=decided)
        assert all(answer.arrays for answer in answers.values())
