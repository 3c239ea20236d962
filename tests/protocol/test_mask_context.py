"""Masks cancel exactly for all that contributors can add up, and never between contributors that were told two stories.

Keys are given here; where they come from is the business of `test_handshake`. That nothing is masked twice alike over a
whole job: `test_recordings`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import ce.privacy.masks
import ce.protocol.modes.mask_context
from ce.errors import AlteredTotals, MessageError
from ce.privacy.derivation import expand, extract
from ce.privacy.mac import MAC_WORDS
from ce.privacy.masks import BLOCK, Masks, Part, set_stream_key
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Task
from ce.protocol.modes.blind_site import CommonState
from ce.protocol.modes.mask_context import MaskBinding, ViewDigest, object_digests, view_digest
from ce.protocol.topology.site_view import Block, SiteView, TopologyColumn
from ce.ring import Words
from ce.steps.model import Sizes

laws = settings(max_examples=40, deadline=None, derandomize=True)

CONTEXT = hashlib.sha256(b"a context").digest()
SET_KEY = hashlib.sha256(b"a set key").digest()
EXTREMES = (0, 1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63))
WORDS = st.one_of(st.sampled_from(EXTREMES), st.integers(-(2**63), 2**63 - 1))
SHORT_WORDS = st.one_of(st.sampled_from((0, 1, -1, 2**31 - 1, -(2**31))), st.integers(-(2**31), 2**31 - 1))
KINDS = (np.int64, np.int32)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)


def pair_keys(sites: Sequence[str]) -> dict[str, dict[str, bytes]]:
    def key(*pair: str) -> bytes:
        return hashlib.sha256(" and ".join(sorted(pair)).encode()).digest()

    return {site: {peer: key(site, peer) for peer in sites if peer != site} for site in sites}


def hidden(
    parts: Mapping[str, Words], *, set_key: bytes | None = None, context: Mapping[str, bytes] | None = None
) -> dict[str, Words]:
    """What each contributor sends. The first adds the stream of the set, if there is one."""
    sites = tuple(sorted(parts))
    keys = pair_keys(sites)
    own = dict.fromkeys(sites, CONTEXT) | dict(context or {})
    streams = {} if set_key is None else {sites: set_stream_key(set_key, own[sites[0]])}
    return {
        site: Masks(site, keys[site]).mask(
            1, [Part(sites, [parts[site]])], dict.fromkeys(keys[site], own[site]), streams if site == sites[0] else {}
        )[0][0]
        for site in sites
    }


def added(parts: Mapping[str, Words]) -> Words:
    """Modulo 2 to the power of the words' bits, as everywhere."""
    stacked = np.stack(list(parts.values()))
    with np.errstate(over="ignore"):
        total: Words = np.sum(stacked, axis=0, dtype=stacked.dtype)
    return total


def unmask(total: Words, set_key: bytes, context: bytes) -> Words:
    (found,) = ce.privacy.masks.unmask([total], set_key, context)
    return found


def names(count: int) -> list[str]:
    return [f"s{i:02d}" for i in range(count)]


# Masks cancel.


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
@pytest.mark.parametrize("kind", KINDS)
@laws
@given(st.integers(1, 6), SHAPES, st.data())
def test_the_sum_of_what_is_sent_is_the_sum_of_what_is_meant(
    kind: Any, sites: int, shape: tuple[int, ...], data: st.DataObject
) -> None:
    words = WORDS if kind is np.int64 else SHORT_WORDS
    parts = {site: data.draw(hnp.arrays(kind, shape, elements=words)) for site in names(sites)}
    before = {site: own.copy() for site, own in parts.items()}
    sent = hidden(parts)
    np.testing.assert_array_equal(added(sent), added(parts))
    covered = hidden(parts, set_key=SET_KEY)
    np.testing.assert_array_equal(unmask(added(covered), SET_KEY, CONTEXT), added(parts))
    for site, own in parts.items():
        np.testing.assert_array_equal(own, before[site])
        assert sent[site].shape == shape
        assert sent[site].dtype == kind
        assert not np.shares_memory(sent[site], own)


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
@pytest.mark.parametrize("words", [0, 1, BLOCK // 8 - 1, BLOCK // 8, BLOCK // 8 + 1, 3 * (BLOCK // 8) + 5])
def test_arrays_of_any_length_are_masked_throughout(words: int) -> None:
    rng = np.random.default_rng(words)
    parts = {site: rng.integers(-(2**63), 2**63 - 1, words, endpoint=True) for site in names(3)}
    sent = hidden(parts)
    np.testing.assert_array_equal(added(sent), added(parts))
    covered = added(hidden(parts, set_key=SET_KEY))
    np.testing.assert_array_equal(unmask(covered, SET_KEY, CONTEXT), added(parts))
    masks = [*(sent[site] - parts[site] for site in parts), covered - added(parts)]
    for mask in masks:
        # Not one word in the clear, and no word of a stream again: not in a later block of it either.
        assert len(np.unique(mask)) == words
        assert not (mask == 0).any()


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
@pytest.mark.parametrize("words", [0, 1, BLOCK // 4 - 1, BLOCK // 4, BLOCK // 4 + 1, 2 * (BLOCK // 4) + 5])
def test_short_arrays_of_any_length_are_masked_with_the_same_stream_of_bytes(words: int) -> None:
    rng = np.random.default_rng(words)
    parts = {site: rng.integers(-(2**31), 2**31 - 1, words, endpoint=True, dtype=np.int32) for site in names(2)}
    sent = hidden(parts)
    np.testing.assert_array_equal(added(sent), added(parts))
    first, second = names(2)
    key = expand(extract(pair_keys((first, second))[first][second]), b"ce mask 2", CONTEXT)
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * words))
    np.testing.assert_array_equal(sent[first] - parts[first], np.frombuffer(stream, "<i4"))
    np.testing.assert_array_equal(parts[second] - sent[second], np.frombuffer(stream, "<i4"))


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
def test_every_contributor_has_masks_of_its_own_in_every_array() -> None:
    zeros = {site: np.zeros((2, 3), dtype=np.int64) for site in names(4)}
    other = hashlib.sha256(b"another").digest()
    sent = [*hidden(zeros).values(), *hidden(zeros, context=dict.fromkeys(zeros, other)).values()]
    assert len(np.unique(np.concatenate(sent))) == 8 * 6


def test_one_contributor_alone_sends_its_words_and_in_blind_only_its_set_hides_them() -> None:
    own = {"alone": np.arange(5)}
    sent = hidden(own)["alone"]
    np.testing.assert_array_equal(sent, np.arange(5))
    assert not np.shares_memory(sent, own["alone"])
    covered = hidden(own, set_key=SET_KEY)["alone"]
    assert not (covered == np.arange(5)).any()
    np.testing.assert_array_equal(unmask(covered, SET_KEY, CONTEXT), np.arange(5))


def test_the_strides_of_an_array_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    whole = rng.integers(-(2**63), 2**63 - 1, (6, 8, 10))
    parts: dict[str, NDArray[Any]] = {
        "every other": whole[::2, ::2, ::2],
        "backwards": whole[::-1, :, ::-1],
        "transposed": whole.T,
        "by column": np.asfortranarray(whole),
        "one word for all": np.broadcast_to(np.int64(7), (3, 4)),
        "big-endian": whole.astype(">i8"),
        "read-only": whole.view(),
    }
    parts["read-only"].flags.writeable = False
    for what, own in parts.items():
        before = own.copy()
        like = np.ascontiguousarray(own, dtype=np.int64)
        two = {"s00": own, "s01": np.zeros_like(like)}
        found, expected = hidden(two)["s00"], hidden({**two, "s00": like})["s00"]
        np.testing.assert_array_equal(found, expected, err_msg=what)
        assert found.shape == own.shape
        np.testing.assert_array_equal(own, before, err_msg=what)


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
def test_no_round_is_masked_twice_and_none_comes_back() -> None:
    masks = Masks("s00", pair_keys(names(3))["s00"])

    def mask(round_: int) -> list[list[Words]]:
        return masks.mask(round_, [Part(tuple(names(3)), [np.arange(3)])], dict.fromkeys(names(3)[1:], CONTEXT))

    mask(1)
    with pytest.raises(MessageError, match="no mask is used twice"):
        mask(1)
    mask(5)
    for round_ in (5, 4, 1, 0):
        with pytest.raises(MessageError, match="no mask is used twice"):
            mask(round_)
    mask(6)


# One stream for all arrays of a pair.

ROUNDS = st.lists(
    st.tuples(st.sets(st.integers(0, 3), min_size=1), st.lists(SHAPES, min_size=1, max_size=4)), min_size=1, max_size=5
)


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
@laws
@given(ROUNDS, st.booleans(), st.data())
def test_streams_run_through_all_arrays_of_their_users_and_through_no_others(
    drawn: list[tuple[set[int], list[tuple[int, ...]]]], blind: bool, data: st.DataObject
) -> None:
    """Any arrays, each of any of four sites: totals are true, and no word of a stream is used in two places."""
    everybody = names(4)
    shapes = {tuple(everybody[at] for at in sorted(who)): of for who, of in drawn}
    words = {
        who: {site: [data.draw(hnp.arrays(np.int64, shape, elements=WORDS)) for shape in of] for site in who}
        for who, of in shapes.items()
    }
    keys, set_contexts = pair_keys(everybody), {who: hashlib.sha256(str(who).encode()).digest() for who in shapes}
    sent: dict[str, dict[tuple[str, ...], list[Words]]] = {}
    for site in everybody:
        parts = [Part(who, words[who][site]) for who in sorted(shapes) if site in who]
        streams = {
            part.contributors: set_stream_key(SET_KEY, set_contexts[part.contributors])
            for part in parts
            if blind and part.contributors[0] == site
        }
        found = Masks(site, keys[site]).mask(1, parts, dict.fromkeys(everybody, CONTEXT), streams)
        sent[site] = {part.contributors: own for part, own in zip(parts, found, strict=True)}
    used: list[int] = []
    for who, of in shapes.items():
        totals = [added({site: sent[site][who][at] for site in who}) for at in range(len(of))]
        if blind:
            totals = ce.privacy.masks.unmask(totals, SET_KEY, set_contexts[who])
        for at in range(len(of)):
            np.testing.assert_array_equal(totals[at], added({site: words[who][site][at] for site in who}))
        with np.errstate(over="ignore"):
            masks = [sent[site][who][at] - words[who][site][at] for site in who for at in range(len(of))]
        # Of two sites alone the one's mask is minus the other's; what one site alone contributes nobody else hides.
        if len(who) > 2 or (len(who) == 2 and blind):
            used += [word for mask in masks for word in mask.reshape(-1).tolist()]
        elif len(who) == 2:
            used += [word for mask in masks[: len(of)] for word in mask.reshape(-1).tolist()]
    assert len(set(used)) == len(used)
    assert 0 not in used


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
@pytest.mark.parametrize("sizes", [(BLOCK // 8 - 1, 3), (5, BLOCK // 8, 7), (0, 2 * BLOCK // 8 + 3, 0, 1, BLOCK // 4)])
def test_streams_go_on_where_arrays_and_blocks_end(sizes: tuple[int, ...]) -> None:
    whole = np.zeros(sum(sizes), dtype=np.int64)
    arrays = [np.zeros(size, dtype=np.int64) for size in sizes]
    sites = tuple(names(3))
    found = []
    for given_ in ([whole], arrays):
        masks = Masks(sites[1], pair_keys(sites)[sites[1]])
        (sent,) = masks.mask(1, [Part(sites, given_)], dict.fromkeys(sites, CONTEXT))
        found.append(np.concatenate(sent))
    np.testing.assert_array_equal(*found)
    assert len(np.unique(found[0])) == len(whole)


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
@pytest.mark.parametrize(
    "kinds",
    [
        [(3, "i4"), (2, "i8"), (1, "i4")],
        [(BLOCK // 4 + 1, "i4"), (1, "i8"), (0, "i4"), (5, "i4"), (BLOCK // 8 + 3, "i8")],
        [(7, "i8"), (0, "i8"), (1, "i4"), (1, "i8"), (1, "i4")],
    ],
    ids=str,
)
def test_a_stream_goes_on_through_words_of_both_widths(kinds: list[tuple[int, str]]) -> None:
    """What hides zeros are the bytes of the stream, one after another; and the totals of three sites are true."""
    rng = np.random.default_rng(1)
    sites = tuple(names(3))
    zeros: list[Any] = [np.zeros(size, dtype=kind) for size, kind in kinds]
    first, second = sites[:2]
    mask = Masks(first, pair_keys(sites[:2])[first]).mask
    (hidden_zeros,) = mask(1, [Part((first, second), zeros)], {second: CONTEXT})
    found = b"".join(own.tobytes() for own in hidden_zeros)
    key = expand(extract(pair_keys(sites[:2])[first][second]), b"ce mask 2", CONTEXT)
    assert found == Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(len(found)))
    limits = [np.iinfo(own.dtype) for own in zeros]
    words: dict[str, list[Any]] = {
        site: [
            rng.integers(limit.min, limit.max, own.shape, dtype=own.dtype)
            for own, limit in zip(zeros, limits, strict=True)
        ]
        for site in sites
    }
    sent = {}
    for site in sites:
        (sent[site],) = Masks(site, pair_keys(sites)[site]).mask(
            1, [Part(sites, words[site])], dict.fromkeys(sites, CONTEXT)
        )
    for at in range(len(kinds)):
        total = added({site: sent[site][at] for site in sites})
        np.testing.assert_array_equal(total, added({site: words[site][at] for site in sites}))
        assert total.dtype == zeros[at].dtype


# What masks are bound to.

SITES = ("east", "north", "south")
#: Words whose true sums fit in 64 bits, as all do that sites send; just so.
PARTS = {
    "east": np.array([[5, 2**62, -1], [0, 0, 3]]),
    "north": np.array([[1, 2**62 - 2, -1], [0, 7, 3]]),
    "south": np.array([[1, 1, 2**63 - 1], [0, 0, -(2**63)]]),
}


@dataclass(frozen=True)
class Objects:
    """A block as one member is told of it."""

    members: tuple[str, ...]
    objects: tuple[str, ...]


#: What sites hold beside block 1: two of them share a block, and one has objects of its own.
OTHERS = {2: Objects(("east", "north"), ("o4", "o5")), 3: Objects(("south",), ("o6",))}


@dataclass(frozen=True)
class Story:
    """All that one contributor believes about an array that it contributes to."""

    name: str
    definition: bytes = b'{"name":"job"}'
    epoch: int = 2
    roster: tuple[str, ...] = (*SITES, "west")
    enrolments: bytes = b"s" * 32
    members: tuple[str, ...] = SITES
    objects: tuple[str, ...] = ("o1", "o2", "o3")
    others: Mapping[int, Objects] = field(default_factory=lambda: OTHERS)
    columns: tuple[str, ...] = ("age", "income")
    categories: tuple[tuple[str, ...], ...] = (("a", "b"), ("c",))
    bits: int = 40
    round: int = 6
    shape: tuple[int, ...] = (2, 3)
    task: Task = field(
        default_factory=lambda: Task(
            6,
            "sums",
            1,
            3,
            (0, 1),
            (1,),
            {
                "global/alpha": np.array([0.5, 1.5]),
                "block/1/message": np.array([1.0, 2.0]),
                "block/2/message": np.array([8.0, 9.0]),
                "block/3/message": np.array([4.0]),
                "columns/0/beta": np.array([0.25, 0.75]),
            },
        )
    )
    state: bytes | None = None  # blind: what all have in common, and what was seen of each scope, instead of the task
    seen: Mapping[str, bytes] = field(
        default_factory=lambda: {scope: scope.encode() * 4 for scope in ("block/1", "block/2", "block/3", "columns/0")}
    )

    @property
    def binding(self) -> ViewDigest:
        if self.state is None:
            return view_digest(self.task)
        common = CommonState()
        common.restore({"value": self.state, "seen": self.seen})
        return common.view_digest()

    def cover(self, site: str) -> MaskBinding:
        roster = self.roster
        held = {1: Objects(self.members, self.objects)}
        held |= {number: own for number, own in self.others.items() if site in own.members}
        blocks = {number: Block(number, own.members, len(own.objects)) for number, own in held.items()}
        columns = tuple(
            TopologyColumn(at, name, "clustering", categories, self.members)
            for at, (name, categories) in enumerate(zip(self.columns, self.categories, strict=True))
        )
        view = SiteView(roster, Sizes(9, 2, 0, 3), blocks, columns, needs_two_exchanges=True, shared_by_all=False)
        digests: dict[int, bytes] = {}
        for number, own in held.items():
            pseudonyms = np.array([np.void(hashlib.md5(o.encode()).digest()) for o in own.objects], dtype="V16")
            digests |= object_digests(pseudonyms, {number: np.arange(len(own.objects))})
        attempt = Attempt("job", self.definition, self.epoch, roster)
        # More peers than any story has: keys alone must not be what keeps two stories apart.
        keys = pair_keys((*SITES, "other", "west"))[site]
        return MaskBinding(attempt, site, view, digests, keys, self.enrolments)

    def sent(self, site: str, words: Words) -> Words:
        """What the site sends, laid out as the others lay it out; in blind, and then the words of its tag."""
        cover = self.cover(site)
        if self.state is not None:
            cover.set_keys = {ArrayName(self.name).contributors(cover._view): SET_KEY}
        answer = Answer(
            self.round, "sums", arrays={self.name: words.reshape(self.shape)}, fraction_bits={self.name: self.bits}
        )
        arrays = cover.mask(answer, self.binding).arrays
        assert len(arrays) == 1 + (self.state is not None)
        return np.concatenate([own.reshape(-1).astype(np.int64, copy=False) for own in arrays.values()])

    def streams(self, site: str) -> dict[str, bytes]:
        """The key of the site's keystream with each other contributor."""
        cover, made = self.cover(site), cast(dict[str, bytes], {})
        keys = cover._masks._extracted

        def keep(round_: int, parts: Sequence[Part], contexts: Mapping[str, bytes], _: object) -> list[list[Words]]:
            made.update({peer: expand(keys[peer], b"ce mask 2", context) for peer, context in contexts.items()})
            return [list(part.arrays) for part in parts]

        cover._masks = cast(Masks, SimpleNamespace(mask=keep))
        arrays = {self.name: np.zeros(self.shape, dtype=np.int64)}
        cover.mask(Answer(self.round, "sums", arrays=arrays, fraction_bits={self.name: self.bits}), self.binding)
        return made


def total_of(stories: Mapping[str, Story]) -> Words:
    return added({site: own.sent(site, PARTS[site]) for site, own in stories.items()})


Lie = Callable[[Story], Story]
EVERYWHERE = ("global/mean_log", "block/1/sums", "columns/0/sums", "block/1/claims/1")
_BLOCK, _COLUMNS, _CLAIMS = ("block/1/sums", "block/1/claims/1"), ("columns/0/sums",), ("block/1/claims/1",)
#: What is changed, in which arrays it must be noticed whoever masks or reads them, and how it is changed.
LIES: dict[str, tuple[tuple[str, ...], Lie]] = {
    "definition": (EVERYWHERE, lambda s: replace(s, definition=b'{"name":"jpb"}')),
    "epoch": (EVERYWHERE, lambda s: replace(s, epoch=3)),
    "roster": (EVERYWHERE, lambda s: replace(s, roster=(*SITES, "other", "west"))),
    "order of the roster": (EVERYWHERE, lambda s: replace(s, roster=("east", "south", "north", "west"))),
    "enrolments of others": (EVERYWHERE, lambda s: replace(s, enrolments=b"t" * 32)),
    "one contributor more": (_BLOCK + _COLUMNS, lambda s: replace(s, members=(*SITES, "west"))),
    "another contributor": (_BLOCK + _COLUMNS, lambda s: replace(s, members=("east", "north", "other", "south"))),
    "order of objects": (_BLOCK, lambda s: replace(s, objects=("o2", "o1", "o3"))),
    "objects of the block": (_BLOCK, lambda s: replace(s, objects=("o1", "o2", "o4"))),
    "column name": (_COLUMNS, lambda s: replace(s, columns=("age", "incomf"))),
    "column name of claims": (_CLAIMS, lambda s: replace(s, columns=("age", "incomf"))),
    "order of columns": (_COLUMNS, lambda s: replace(s, columns=("income", "age"), categories=(("c",), ("a", "b")))),
    "order of categories": (_COLUMNS, lambda s: replace(s, categories=(("b", "a"), ("c",)))),
    "a category": (_COLUMNS, lambda s: replace(s, categories=(("a", "x"), ("c",)))),
    "categories of two columns": (_COLUMNS, lambda s: replace(s, categories=(("a",), ("b", "c")))),
    "array": (EVERYWHERE, lambda s: replace(s, name=s.name[:-1] + ("0" if s.name.endswith("1") else "z"))),
    "shape": (EVERYWHERE, lambda s: replace(s, shape=(3, 2))),
    "flat shape": (EVERYWHERE, lambda s: replace(s, shape=(6,))),
    "bits": (EVERYWHERE, lambda s: replace(s, bits=41)),
    "round": (EVERYWHERE, lambda s: replace(s, round=7)),
    "step": (EVERYWHERE, lambda s: replace(s, task=replace(s.task, step="objects"))),
    "stage": (EVERYWHERE, lambda s: replace(s, task=replace(s.task, stage=2))),
    "iteration": (EVERYWHERE, lambda s: replace(s, task=replace(s.task, iteration=4))),
    "starts": (EVERYWHERE, lambda s: replace(s, task=replace(s.task, starts=(0, 2)))),
    "retry": (EVERYWHERE, lambda s: replace(s, task=replace(s.task, retry=()))),
    "retry instead of starts": (EVERYWHERE, lambda s: replace(s, task=replace(s.task, starts=(0,), retry=(1, 1)))),
    "globals": (EVERYWHERE, lambda s: _told(s, "global/alpha", np.array([0.5, np.nextafter(1.5, 2)]))),
    "messages": (_BLOCK, lambda s: _told(s, "block/1/message", np.array([2.0, 1.0]))),
    "messages left out": (_BLOCK, lambda s: _told(s, "block/1/message", None)),
    "tables": (_COLUMNS, lambda s: _told(s, "columns/0/beta", np.array([0.75, 0.25]))),
    "one array told as another": (EVERYWHERE, lambda s: _told(_told(s, "global/alpha", None), "global/mu", _ALPHA)),
}
_ALPHA = np.array([0.5, 1.5])
#: What is said about objects and columns that several sites hold is in every mask between two of them.
ABOUT_WHAT_BOTH_HOLD = {
    "one contributor more",
    "another contributor",
    "order of objects",
    "objects of the block",
    "messages",
    "messages left out",
    "tables",
}


def masked_otherwise(what: str) -> tuple[str, ...]:
    """In which arrays a contributor to whom this is told has other masks with the others."""
    return EVERYWHERE if what in ABOUT_WHAT_BOTH_HOLD else LIES[what][0]


def _told(enrolment_digest: Story, name: str, array: NDArray[np.float64] | None) -> Story:
    arrays = {other: own for other, own in enrolment_digest.task.arrays.items() if other != name}
    if array is not None:
        arrays[name] = array
    return replace(enrolment_digest, task=replace(enrolment_digest.task, arrays=arrays))


def contributors(name: str) -> dict[str, Story]:
    """All who contribute to an array, of one mind. All sites contribute to a global one, so that these are all."""
    enrolment_digest = Story(name, roster=SITES) if name.startswith("global/") else Story(name)
    return dict.fromkeys(SITES, enrolment_digest)


def test_an_answer_is_covered_once() -> None:
    enrolment_digest = contributors("block/1/sums")["east"]
    cover = enrolment_digest.cover("east")
    arrays = {"block/1/sums": PARTS["east"], "global/bound": np.arange(2)}
    answer = Answer(enrolment_digest.round, "sums", arrays=arrays, fraction_bits=dict.fromkeys(arrays, 0))
    cover.mask(answer, enrolment_digest.binding)
    other = view_digest(replace(enrolment_digest.task, iteration=99))
    for again in (answer, replace(answer, round=1), replace(answer, arrays={"global/bound": np.arange(9)})):
        with pytest.raises(MessageError, match="no mask is used twice"):
            cover.mask(again, other)
    cover.mask(replace(answer, round=enrolment_digest.round + 1), enrolment_digest.binding)


def truth() -> Words:
    return added(PARTS).reshape(-1)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_contributors_of_one_mind_get_the_true_total(name: str) -> None:
    stories = contributors(name)
    np.testing.assert_array_equal(total_of(stories), truth())
    blind = {site: replace(own, state=b"c" * 32) for site, own in stories.items()}
    covered = total_of(blind)
    assert not (covered[:-MAC_WORDS] == truth()).any()
    for site in SITES:
        np.testing.assert_array_equal(uncovered(blind[site], site, covered), truth())


def uncovered(enrolment_digest: Story, site: str, total: Words) -> Words:
    """What a contributor reads, from the words of a total and of its tag."""
    cover = enrolment_digest.cover(site)
    name = ArrayName(enrolment_digest.name)
    cover.set_keys = {name.contributors(cover._view): SET_KEY}
    found = cover.unmask(
        {name: total[:-MAC_WORDS].reshape(enrolment_digest.shape), name.mac: total[-MAC_WORDS:]},
        {name: enrolment_digest.bits, name.mac: 0},
        enrolment_digest.round,
        enrolment_digest.binding,
    )
    assert list(found) == [name], "the tag is not handed on"
    return found[name].reshape(-1)


def assert_unreadable(enrolment_digest: Story, site: str, total: Words) -> None:
    """The contributor refuses the total; and it could read nothing from it if it did not."""
    with pytest.raises(AlteredTotals):
        uncovered(enrolment_digest, site, total)
    with pytest.MonkeyPatch.context() as unchecked:
        unchecked.setattr(ce.protocol.modes.mask_context, "from_words", lambda words: 0)
        unchecked.setattr(ce.protocol.modes.mask_context, "tag", lambda words, key: 0)
        assert not (uncovered(enrolment_digest, site, total) == truth()).any(), enrolment_digest.name


@pytest.mark.promise("If sites are sent inconsistent views, their masks do not cancel.")
@pytest.mark.parametrize("liar", ["first", "last"])
@pytest.mark.parametrize("what", LIES)
def test_whoever_was_told_anything_else_ruins_the_total(what: str, liar: str) -> None:
    _, lie = LIES[what]
    misled = SITES[0] if liar == "first" else SITES[-1]
    for name in masked_otherwise(what):
        stories = contributors(name)
        stories[misled] = lie(stories[misled])
        total = total_of(stories)
        assert not (total == truth()).any(), f"{name}: some words of the total are true"


@pytest.mark.parametrize("what", LIES)
def test_it_is_the_keystream_that_changes_not_only_with_whom_it_is_shared(what: str) -> None:
    _, lie = LIES[what]
    for name in masked_otherwise(what):
        enrolment_digest = contributors(name)["north"]
        before, after = enrolment_digest.streams("north"), lie(enrolment_digest).streams("north")
        assert set(before) == {"east", "south"}
        assert not set(before.values()) & set(after.values()), name


@pytest.mark.parametrize("what", LIES)
def test_a_total_of_blind_is_not_read_by_whoever_was_told_anything_else(what: str) -> None:
    arrays, lie = LIES[what]
    for name in arrays:
        stories = {site: replace(own, state=b"c" * 32) for site, own in contributors(name).items()}
        covered = total_of(stories)
        misled = lie(stories["south"])
        if misled.task is not stories["south"].task:
            misled = replace(misled, state=b"d" * 32)  # whatever is told goes into the state
        assert_unreadable(misled, "south", covered)


def test_what_does_not_concern_an_array_changes_nothing() -> None:
    """A site is told about its own blocks and columns only: masks must not need that all were told the same."""
    for name in EVERYWHERE:
        for state in (None, b"c" * 32):
            stories = {site: replace(own, state=state) for site, own in contributors(name).items()}
            expected = total_of(stories)
            stories["south"] = _said(_said(stories["south"], "block/3", 7.0), "block/2", 7.0)
            stories["south"] = replace(stories["south"], others={3: Objects(("south",), ("o7", "o8"))})
            np.testing.assert_array_equal(total_of(stories), expected)
    for name in EVERYWHERE:
        stories = contributors(name)
        stories["east"] = _told(stories["east"], "columns/1/beta", np.array([0.5, 0.5]))
        np.testing.assert_array_equal(total_of(stories), truth())


def whole_round(site: str) -> Answer:
    """Several arrays of a round; one of them is not for the last site."""
    arrays: dict[str, Any] = {"global/bound": np.arange(2), "block/1/sums": PARTS[site], "columns/0/sums": np.arange(4)}
    if site != "south":
        arrays["block/2/labels"] = np.arange(2)
    return Answer(6, "sums", arrays=arrays, fraction_bits=dict.fromkeys(arrays, 7))


def _arrays(answer: Answer, **changes: Any) -> Answer:
    arrays = {name: own for name, own in {**answer.arrays, **changes}.items() if own is not None}
    return replace(answer, arrays=arrays, fraction_bits={**dict.fromkeys(arrays, 7), **answer.fraction_bits})


#: What one site believes of a whole round, and with whom its masks are others then.
LIES_ABOUT_A_ROUND: dict[str, tuple[tuple[str, ...], Callable[[Answer], Answer]]] = {
    "an array more": (("east", "south"), lambda a: _arrays(a, **{"global/moved": np.arange(2)})),
    "an array less": (("east", "south"), lambda a: _arrays(a, **{"columns/0/sums": None})),
    "another name": (("east", "south"), lambda a: _arrays(a, **{"global/bound": None, "global/moved": np.arange(2)})),
    "another shape": (("east", "south"), lambda a: _arrays(a, **{"columns/0/sums": np.arange(4).reshape(2, 2)})),
    "another scale": (
        ("east", "south"),
        lambda a: replace(a, fraction_bits={**a.fraction_bits, "block/1/sums": 8}),
    ),
    "an array of two more": (("east",), lambda a: _arrays(a, **{"block/2/hidden": np.arange(2)})),
    "an array of two less": (("east",), lambda a: _arrays(a, **{"block/2/labels": None})),
}


@pytest.mark.promise("If sites are sent inconsistent views, their masks do not cancel.")
@pytest.mark.parametrize("blind", [False, True], ids=["masked", "blind"])
@pytest.mark.parametrize("what", LIES_ABOUT_A_ROUND)
def test_a_lie_about_one_array_ruins_all_totals_of_the_round(what: str, blind: bool) -> None:
    """The streams of a pair are those of all arrays that both contribute to."""
    peers, lie = LIES_ABOUT_A_ROUND[what]
    story = replace(contributors("global/bound")["east"], state=b"c" * 32 if blind else None)
    plain = {site: whole_round(site) for site in SITES}

    def cover(site: str) -> MaskBinding:
        found = story.cover(site)
        found.set_keys = dict.fromkeys((SITES, SITES[:2]), SET_KEY) if blind else {}
        return found

    def sent(answers: Mapping[str, Answer]) -> dict[str, Answer]:
        return {site: cover(site).mask(answer, story.binding) for site, answer in answers.items()}

    def total(answers: Mapping[str, Answer], name: str) -> Words:
        return added({site: cast(Words, own.arrays[name]) for site, own in answers.items() if name in own.arrays})

    def read(answers: Mapping[str, Answer]) -> dict[ArrayName, Words]:
        totals = {name: total(answers, name) for name in honest["east"].arrays}
        return cover("east").unmask(totals, honest["east"].fraction_bits, 6, story.binding)

    honest, told = sent(plain), sent({**plain, "north": lie(plain["north"])})
    for name, words in plain["north"].arrays.items():
        there = told["north"].arrays.get(name)
        if not blind:
            np.testing.assert_array_equal(total(honest, name), total(plain, name))
            if there is not None and there.shape == words.shape:
                assert not (total(told, name) == total(plain, name)).any(), name
    if blind:
        for name, words in read(honest).items():
            np.testing.assert_array_equal(words, total(plain, name))
        # The coordinator has words of every array from everybody, whatever they were masked as.
        own = {
            name: told["north"].arrays.get(name, words).reshape(words.shape)
            for name, words in honest["north"].arrays.items()
        }
        told["north"] = replace(told["north"], arrays=own)
        with pytest.raises(AlteredTotals):
            read(told)
    before, after = (_pair_contexts(cover("north"), own, story) for own in (plain["north"], lie(plain["north"])))
    assert tuple(peer for peer in before if before[peer] != after[peer]) == peers


def _pair_contexts(cover: MaskBinding, answer: Answer, story: Story) -> dict[str, bytes]:
    asked = {ArrayName(name): (own.shape, answer.fraction_bits[name], 64) for name, own in answer.arrays.items()}
    return cover._pair_contexts(cover._parts(asked), answer.round, story.binding)


# What two sites are told about objects that both hold is in all masks between them.


def _said(enrolment_digest: Story, scope: str, value: float | None) -> Story:
    """Something else told about a block: in masked by the task, in blind by the totals so far."""
    if enrolment_digest.state is None:
        return _told(enrolment_digest, f"{scope}/message", None if value is None else np.array([value]))
    seen = {other: own for other, own in enrolment_digest.seen.items() if other != scope}
    return replace(
        enrolment_digest, seen=seen if value is None else {**seen, scope: hashlib.sha256(bytes(int(value))).digest()}
    )


def _block(enrolment_digest: Story, number: int, own: Objects | None) -> Story:
    others = {other: known for other, known in enrolment_digest.others.items() if other != number}
    return replace(enrolment_digest, others=others if own is None else {**others, number: own})


#: To whom it is told, with whom alone its masks are others then, and what.
LIES_ABOUT_TWO: dict[str, tuple[str, str, Lie]] = {
    "a block that the peer is told of": ("east", "north", lambda s: _block(s, 2, None)),
    "a block that the peer is not told of": (
        "east",
        "south",
        lambda s: _block(s, 4, Objects(("east", "south"), ("o7",))),
    ),
    "by the last": ("south", "east", lambda s: _block(s, 4, Objects(("east", "south"), ("o7",)))),
    "a second block that the peer is not told of": (
        "north",
        "east",
        lambda s: _block(s, 10, Objects(("east", "north"), ("o7",))),
    ),
    "a site more in it": ("east", "north", lambda s: _block(s, 2, Objects(("east", "north", "west"), ("o4", "o5")))),
    "its number": ("north", "east", lambda s: _block(_block(s, 2, None), 12, OTHERS[2])),
    "an object of it": ("north", "east", lambda s: _block(s, 2, Objects(("east", "north"), ("o4", "o6")))),
    "an object less": ("east", "north", lambda s: _block(s, 2, Objects(("east", "north"), ("o4",)))),
    "the order of its objects": ("east", "north", lambda s: _block(s, 2, Objects(("east", "north"), ("o5", "o4")))),
    "its messages": ("east", "north", lambda s: _said(s, "block/2", 7.0)),
    "its messages to the other": ("north", "east", lambda s: _said(s, "block/2", 7.0)),
    "its messages left out": ("north", "east", lambda s: _said(s, "block/2", None)),
}


@pytest.mark.promise("If sites are sent inconsistent views, their masks do not cancel.")
@pytest.mark.parametrize("state", [None, b"c" * 32], ids=["masked", "blind"])
@pytest.mark.parametrize("what", LIES_ABOUT_TWO)
def test_two_sites_that_are_told_unlike_things_of_their_objects_ruin_every_total(
    what: str, state: bytes | None
) -> None:
    misled, peer, lie = LIES_ABOUT_TWO[what]
    for name in EVERYWHERE:
        stories = {site: replace(own, state=state) for site, own in contributors(name).items()}
        before = stories[misled].streams(misled)
        stories[misled] = lie(stories[misled])
        after = stories[misled].streams(misled)
        assert {other for other in before if before[other] != after[other]} == {peer}, name
        total = total_of(stories)
        if state is None:
            assert not (total == truth()).any(), name
        else:
            for reader in SITES:
                assert_unreadable(stories[reader], reader, total)


@pytest.mark.parametrize("state", [None, b"c" * 32], ids=["masked", "blind"])
@pytest.mark.parametrize("what", LIES_ABOUT_TWO)
def test_told_alike_to_both_it_ruins_nothing(what: str, state: bytes | None) -> None:
    misled, peer, lie = LIES_ABOUT_TWO[what]
    for name in EVERYWHERE:
        stories = {site: replace(own, state=state) for site, own in contributors(name).items()}
        stories |= {site: lie(stories[site]) for site in (misled, peer)}
        total = total_of(stories)
        found = total if state is None else uncovered(stories["south"], "south", total)
        np.testing.assert_array_equal(found, truth())


@pytest.mark.promise("If sites are sent inconsistent views, their masks do not cancel.")
@laws
@given(st.sampled_from(sorted(LIES)), st.sampled_from(SITES), st.sampled_from(SITES))
def test_the_same_lie_to_two_of_three_is_noticed_too(what: str, one: str, other: str) -> None:
    _, lie = LIES[what]
    if one == other:
        return
    for name in masked_otherwise(what):
        stories = contributors(name)
        stories |= {site: lie(stories[site]) for site in (one, other)}
        assert not (total_of(stories) == truth()).any()
