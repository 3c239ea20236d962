"""What a coordinator can make of everything that it ever receives and sends: in `blind` nothing, in `masked` nothing of
any one site.

Whole jobs run over the in-process transport, and every frame in either direction is kept. Each test that finds nothing
in a hidden recording finds what it looks for in a plain one of the same job.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc, erfc
from support.problems import TOPOLOGIES, deal, problem

import ce.privacy.masks
import ce.protocol.modes.mask_context
from ce.labels import LabelTable
from ce.models import BC3E, BCE, Mixture
from ce.privacy.masks import Keystream, Masks
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.local_run import run
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.topology.enrolment import enrol
from ce.protocol.topology.topology import align
from ce.steps.model import Model
from ce.transport.in_process import Gather, InProcess, encoded

#: A test that would fail by chance once in a billion runs does not fail by chance.
IMPOSSIBLE = 1e-9
LAYOUTS = {"columns": 3, "rows": 4, "figure_3": 6, "ragged": 3}
CLASSES = ("a", "b", "c")


class Tape(InProcess):
    """The in-process transport, which keeps everything that goes either way."""

    def __init__(self, sites: Mapping[str, Callable[[Task], Answer]]) -> None:
        super().__init__(sites)
        self.tasks: list[tuple[str, Task]] = []
        self.answers: list[tuple[str, Answer]] = []
        self.frames: list[tuple[str, str, bytes]] = []  # "down" or "up", site, bytes

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        for site, frames in encoded(tasks).items():
            self.tasks.append((site, tasks[site]))
            gather = Gather()
            for frame in frames:
                self.frames.append(("down", site, frame))
                for reply in self._sites[site].receive(frame):
                    self.frames.append(("up", site, reply))
                    if (answer := gather.receive(reply)) is not None:
                        self.answers.append((site, answer))
                        yield site, answer

    def arrays(self, messages: Iterable[tuple[str, Task | Answer]], kind: str) -> Iterator[tuple[str, Array]]:
        """Name and content of every array of words ("i"), reals ("f") or bytes ("u")."""
        for _, message in messages:
            for name, array in message.arrays.items():
                if array.dtype.kind == kind:
                    yield name, array

    @property
    def words_up(self) -> NDArray[np.int64]:
        return _pooled(self.arrays(self.answers, "i"))

    @property
    def totals_down(self) -> NDArray[np.int64]:
        """Each total once, to however many sites it went."""
        different = {(name, array.tobytes()): (name, array) for name, array in self.arrays(self.tasks, "i")}
        return _pooled(different.values())

    @property
    def sealed(self) -> bytes:
        """Every sealed array once: it goes up, and down again as it is."""
        return b"".join(array.tobytes() for _, array in self.arrays(self.answers, "u"))

    @property
    def outline(self) -> list[tuple[object, ...]]:
        """All that is not content: steps, names, shapes and types, and the size of every frame."""
        found: list[tuple[object, ...]] = []
        for site, message in (*self.tasks, *self.answers):
            arrays = tuple((name, array.shape, array.dtype.str) for name, array in message.arrays.items())
            found.append((site, message.round, message.step, len(message.starts), arrays))
        return found + [(way, site, len(frame)) for way, site, frame in self.frames]


def _pooled(arrays: Iterable[tuple[str, Array]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *(array.reshape(-1) for _, array in arrays)])


# Jobs.


@dataclass(frozen=True)
class Case:
    """A job: who holds what, and what is computed."""

    tables: dict[str, LabelTable]
    model: Model
    twins: list[tuple[str, str]]  # objects with the same labels in all columns of all sites

    def record(self, privacy: str) -> Tape:
        tapes: list[Tape] = []

        def transport(sites: Mapping[str, Callable[[Task], Answer]]) -> Tape:
            tapes.append(Tape(sites))
            return tapes[0]

        starts = {site: SeededStarts(3) for site in self.tables}
        classes = CLASSES if self.model.uses_votes else ()
        run(self.model, self.tables, starts, classes=classes, privacy=privacy, transport_to=transport)
        return tapes[0]

    def blocks(self) -> dict[int, list[str]]:
        """The ids of each block's objects, in the order of its arrays."""
        enrolments = {site: enrol(own, self.model.uses_votes) for site, own in self.tables.items()}
        _, rows = align(enrolments)
        return {
            block: self.tables[site].ids[own].tolist() for site, found in rows.items() for block, own in found.items()
        }


@cache
def case(layout: str, model: str = "bce") -> Case:
    whole = problem(11, k=3, clusterings=6, missing=0.1, classifiers=3 * (model == "bc3e"), n=90).table
    # The second half of the objects are twins of the first: the layouts deal by the number of an object modulo 3.
    half = np.arange(90) % 45
    table = replace(whole, columns=tuple(column.take(half) for column in whole.columns))
    owner = TOPOLOGIES[layout](table, LAYOUTS[layout], np.random.default_rng(9))[half]
    twins = list(zip(table.ids[:45].tolist(), table.ids[45:].tolist(), strict=True))
    steps: Model = BC3E(3, max_iter=3, tol=0).steps(3) if model == "bc3e" else _bce(5)
    return Case(deal(table, owner, lists_all=True), steps, twins)


def _bce(iterations: int) -> Model:
    return BCE(3, n_init=2, anneal_iter=2, max_iter=iterations, tol=0, schedule="newton").steps()


@cache
def tape(layout: str, privacy: str, model: str = "bce") -> Tape:
    return case(layout, model).record(privacy)


CASES = [("columns", "bce"), ("rows", "bce"), ("ragged", "bce"), ("figure_3", "bc3e")]
each_case = pytest.mark.parametrize(("layout", "model"), CASES, ids=[" ".join(own) for own in CASES])


# Does it look random?


def odds_of_bits(words: NDArray[np.int64]) -> float:
    """How likely random words are to have a bit that is so seldom, or so often, 1: the least of all 64 positions."""
    bits = np.unpackbits(words.astype("<i8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    deviation = np.abs(bits.sum(axis=0, dtype=np.int64) - len(words) / 2) / math.sqrt(len(words) / 4)
    return float(erfc(deviation / math.sqrt(2)).min())


def odds_of_bytes(content: bytes) -> float:
    """How likely random bytes are to be distributed so unevenly, or so evenly: chi-square, both ends."""
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    expected = len(content) / 256
    value = float(((counts - expected) ** 2).sum() / expected)
    return float(2 * min(chdtrc(255, value), chdtr(255, value)))


def odds_of_repetition(words: NDArray[np.int64]) -> float:
    """How likely random words are to be so few different ones."""
    return 1.0 if len(np.unique(words)) == len(words) else len(words) ** 2 / 2.0**65


def least_odds(words: NDArray[np.int64], also: bytes = b"") -> float:
    return min(odds_of_bits(words), odds_of_bytes(words.astype("<i8").tobytes() + also), odds_of_repetition(words))


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
@each_case
def test_blind_words_are_random_in_both_directions(layout: str, model: str) -> None:
    found = tape(layout, "blind", model)
    assert len(found.words_up) > 3000
    assert len(found.totals_down) > 900
    assert least_odds(found.words_up, found.sealed) > IMPOSSIBLE
    assert least_odds(found.totals_down) > IMPOSSIBLE
    assert odds_of_bytes(found.sealed) > IMPOSSIBLE
    # By itself every site's contribution is random too, and every array.
    for site in case(layout, model).tables:
        own = [(s, answer) for s, answer in found.answers if s == site]
        assert least_odds(_pooled(found.arrays(own, "i"))) > IMPOSSIBLE
    by_name: dict[str, list[tuple[str, Array]]] = defaultdict(list)
    for name, array in found.arrays(found.answers, "i"):
        by_name[name].append((name, array))
    for name, arrays in by_name.items():
        if len(words := _pooled(arrays)) > 300:
            assert odds_of_bits(words) > IMPOSSIBLE, name


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
@each_case
def test_blind_messages_have_nothing_beside_words_and_sealed_bytes(layout: str, model: str) -> None:
    found = tape(layout, "blind", model)
    for _, message in (*found.tasks, *found.answers):
        assert not message.starts, "which starts go on is told to sites only"
        for name, array in message.arrays.items():
            assert array.dtype == (np.uint8 if name.startswith("box/") else np.int64), name
    assert not any(task.retry for _, task in found.tasks)
    assert {answer.next_step is not None for _, answer in found.answers if answer.step != "decide"} == {False}
    assert any(True for _ in tape(layout, "plain", model).arrays(tape(layout, "plain", model).tasks, "f"))


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
@each_case
def test_masked_words_of_every_site_are_random_and_all_else_is_as_in_plain(layout: str, model: str) -> None:
    found, plain = tape(layout, "masked", model), tape(layout, "plain", model)
    assert least_odds(found.words_up) > IMPOSSIBLE
    for site in case(layout, model).tables:
        own = [(s, answer) for s, answer in found.answers if s == site]
        assert least_odds(_pooled(found.arrays(own, "i"))) > IMPOSSIBLE
    assert [(site, _whole(task)) for site, task in found.tasks] == [(site, _whole(task)) for site, task in plain.tasks]
    assert _totals(found) == _totals(plain)


def _whole(task: Task) -> tuple[object, ...]:
    arrays = {name: (array.shape, array.dtype.str, array.tobytes()) for name, array in task.arrays.items()}
    return task.round, task.step, task.stage, task.iteration, task.starts, task.retry, arrays


def _totals(found: Tape) -> dict[tuple[int, str], bytes]:
    totals: dict[tuple[int, str], NDArray[np.int64]] = {}
    for _, answer in found.answers:
        for name, words in answer.arrays.items():
            totals[answer.round, name] = totals.get((answer.round, name), np.zeros_like(words)) + words
    return {at: total.tobytes() for at, total in totals.items()}


@each_case
@pytest.mark.parametrize("privacy", ["plain", "masked", "blind"])
def test_sites_are_told_the_counts_before_anything_but_counts_is_asked(layout: str, model: str, privacy: str) -> None:
    found = tape(layout, privacy, model)
    sites = set(case(layout, model).tables)
    at = [number for number, (_, task) in enumerate(found.tasks) if task.step == "counts"]
    assert {found.tasks[number][0] for number in at} == sites
    assert len(at) == len(sites), "once"
    assert {task.step for _, task in found.tasks[: at[0]]} <= {"keys", "open", "shares"}
    assert not {task.step for _, task in found.tasks[at[-1] + 1 :]} & {"keys", "open", "counts"}
    assert all(not answer.arrays for _, answer in found.answers if answer.step == "counts")
    if privacy == "blind":
        return
    opened = {name: total for (round_, name), total in _totals(found).items() if round_ == found.tasks[0][1].round}
    shown = ("labels", "hidden", "ballots") if model == "bc3e" else ("labels", "hidden")
    for _, task in (found.tasks[number] for number in at):
        blocks = {int(name.split("/")[1]) for name in task.arrays}
        assert set(task.arrays) == {f"block/{block}/{kind}" for block in blocks for kind in shown}
        for name, counts in task.arrays.items():
            assert counts.dtype == np.float64
            assert counts.astype(np.int64).tobytes() == opened[name], name
    told = {name for number in at for name in found.tasks[number][1].arrays}
    assert told == {name for name in opened if name.split("/")[-1] in shown}


@each_case
def test_the_same_tests_find_plain_words(layout: str, model: str) -> None:
    found = tape(layout, "plain", model)
    for odds in (odds_of_bits, odds_of_repetition, lambda words: odds_of_bytes(words.tobytes())):
        assert odds(found.words_up) < IMPOSSIBLE
    # Totals that masked shows are real ones, and so would those of blind be without the mask of their sets.
    totals = np.concatenate([np.frombuffer(own, "<i8") for own in _totals(tape(layout, "masked", model)).values()])
    assert least_odds(totals) < IMPOSSIBLE


# Does it tell who is alike?


def alike(found: Tape, own: Case, messages: Iterable[tuple[str, Task | Answer]], kind: str) -> tuple[int, int]:
    """Words of twins that are equal, and that are not, in all arrays of shared blocks."""
    twins, equal, different = dict(own.twins), 0, 0
    places = {
        block: [(at, ids.index(twins[name])) for at, name in enumerate(ids) if name in twins and twins[name] in ids]
        for block, ids in own.blocks().items()
    }
    for name, array in found.arrays(messages, kind):
        named = ArrayName(name)
        if named.kind == "block" and not named.is_mac:
            assert places[named.number], "a block without twins shows nothing"
            one, other = np.array(places[named.number]).T
            same = array[..., one] == array[..., other]
            equal += int(same.sum())
            different += int((~same).sum())
    return equal, different


shared_objects = pytest.mark.parametrize(
    ("layout", "model"), [own for own in CASES if own[0] != "rows"], ids=[" ".join(o) for o in CASES if o[0] != "rows"]
)


@shared_objects
def test_objects_with_the_same_labels_look_different_to_whoever_adds(layout: str, model: str) -> None:
    own = case(layout, model)
    blind = tape(layout, "blind", model)
    for messages in (blind.answers, blind.tasks):
        equal, different = alike(blind, own, messages, "i")
        assert equal == 0
        assert different > 0
    masked = tape(layout, "masked", model)
    equal, different = alike(masked, own, masked.answers, "i")
    assert equal == 0
    assert different > 0


@shared_objects
def test_in_plain_they_look_the_same_and_so_do_the_messages_of_masked(layout: str, model: str) -> None:
    own = case(layout, model)
    plain, masked = tape(layout, "plain", model), tape(layout, "masked", model)
    for equal, different in (
        alike(plain, own, plain.answers, "i"),
        alike(plain, own, plain.tasks, "f"),
        alike(masked, own, masked.tasks, "f"),
    ):
        assert equal > 0
        assert different == 0


# Does its size tell anything?


def with_other_labels(own: Case) -> Case:
    """The same job, in which the last site has other labels of the same categories, for the same objects."""
    rng = np.random.default_rng(5)
    last = max(own.tables)
    columns = []
    for column in own.tables[last].columns:
        rows = np.arange(column.n_objects)
        seen = rows[column.observed]
        rows[seen] = rng.permutation(seen)
        columns.append(column.take(rows))
    return replace(own, tables={**own.tables, last: replace(own.tables[last], columns=tuple(columns))})


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
@each_case
def test_other_labels_give_a_recording_of_the_same_outline(layout: str, model: str) -> None:
    other = with_other_labels(case(layout, model))
    assert _totals(other.record("plain")) != _totals(tape(layout, "plain", model)), "they are other labels"
    for privacy in ("masked", "blind"):
        assert tape(layout, privacy, model).outline == other.record(privacy).outline


def test_another_job_gives_a_recording_of_another_outline() -> None:
    own = case("columns")
    one_more = replace(own, model=_bce(6))
    fewer = {site: table.select(slice(1, None)) for site, table in own.tables.items()}
    for other in (one_more, replace(own, tables=fewer)):
        assert other.record("blind").outline != tape("columns", "blind").outline


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
def test_starts_that_stop_are_not_seen_to_stop() -> None:
    own = replace(case("columns"), model=Mixture(3, n_init=3, max_iter=30, tol=1e-4).steps())
    sizes = {}
    for privacy in ("masked", "blind"):
        found = own.record(privacy)
        sums = [answer for site, answer in found.answers if answer.step == "sums" and site == "site0"]
        sizes[privacy] = {tuple((name, array.shape) for name, array in answer.arrays.items()) for answer in sums}
    assert len(sizes["blind"]) == 1
    assert len(sizes["masked"]) > 1, "no start stopped before the others: the test shows nothing"


# Is any mask used twice?


class Uses:
    """Every stream of masks that was made in a job: by which key, by whom, and in which round."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, list[tuple[str, int]]] = defaultdict(list)  # who, and the round
        self.current: tuple[str, int] = ("nobody", 0)
        self.contexts: dict[bytes, set[int]] = defaultdict(set)  # the round that each was made for


@pytest.fixture(name="uses")
def _uses(monkeypatch: pytest.MonkeyPatch) -> Uses:
    uses = Uses()
    mask, unmask, key_of_tag, context_of = (
        Masks.mask,
        ce.protocol.modes.mask_context.unmask,
        ce.protocol.modes.mask_context.mac_key,
        ce.protocol.modes.mask_context.mask_context,
    )

    class Noted(Keystream):
        def __init__(self, key: bytes) -> None:
            uses.by_key[key].append(uses.current)
            super().__init__(key)

    def noted_hide(masks: Masks, round_: int, *rest: Any) -> Any:
        uses.current = (masks._site, round_)
        return mask(masks, round_, *rest)

    def noted_uncover(totals: Any, set_key: bytes, context: bytes) -> Any:
        (where,) = uses.contexts[context]
        uses.current = (READER, where)
        return unmask(totals, set_key, context)

    def noted_key_of_tag(set_key: bytes, context: bytes) -> bytes:
        (where,) = uses.contexts[context]
        uses.current = (TAGGER, where)
        return key_of_tag(set_key, context)

    def noted_context(attempt: bytes, round_: int, *rest: bytes) -> bytes:
        context = context_of(attempt, round_, *rest)
        uses.contexts[context].add(round_)
        return context

    monkeypatch.setattr(ce.privacy.masks, "Keystream", Noted)
    monkeypatch.setattr(ce.protocol.modes.mask_context, "Keystream", Noted)
    monkeypatch.setattr(Masks, "mask", noted_hide)
    monkeypatch.setattr(ce.protocol.modes.mask_context, "unmask", noted_uncover)
    monkeypatch.setattr(ce.protocol.modes.mask_context, "mac_key", noted_key_of_tag)
    monkeypatch.setattr(ce.protocol.modes.mask_context, "mask_context", noted_context)
    return uses


#: Whoever takes a mask off.
READER = "a reader"
#: Whoever computes a tag, of its own words or of a total.
TAGGER = "a tagger"


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_stream_of_masks_is_used_in_two_rounds_or_by_others(layout: str, privacy: str, uses: Uses) -> None:
    """That it runs through every array once: `test_mask_context`."""
    found = case(layout).record(privacy)
    contributors: dict[tuple[int, str], list[str]] = defaultdict(list)
    for site, answer in found.answers:
        for name, array in answer.arrays.items():
            if array.dtype.kind == "i":
                contributors[answer.round, name].append(site)
    sets = {(round_, tuple(sorted(sites))) for (round_, _), sites in contributors.items()}
    expected: Counter[tuple[object, ...]] = Counter()
    # Two sites that contribute to an array share a stream in its round, and both use it.
    expected.update({(round_, *pair) for round_, sites in sets for pair in combinations(sites, 2)})
    if privacy == "blind":
        # The contributors of some totals share one more: the first adds it, all take it off. So it is with the
        # coefficients of tags: all use them, for their own words and for the totals.
        for round_, sites in sets:
            expected[(round_, *sorted([sites[0], *(READER for _ in sites)]))] += 1
            expected[(round_, *(TAGGER for _ in sites), *(TAGGER for _ in sites))] += 1
    seen: Counter[tuple[object, ...]] = Counter()
    for made in uses.by_key.values():
        rounds = {round_ for _, round_ in made}
        assert len(rounds) == 1, "a key is that of one round"
        seen[(rounds.pop(), *sorted(who for who, _ in made))] += 1
    assert seen == expected
    assert all(len(where) == 1 for where in uses.contexts.values())
