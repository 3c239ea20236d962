"""The protocol's known answers: `tests/vectors/known_answers.json`, which another implementation can be held against.

The file is made without any of this code, from the documented definitions (`tests/vectors/make_known_answers.py`). Here
the code must compute the same: what is checked is that the definitions are right, and that nobody changes one unseen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from support.vectors import VECTORS, imported_by, program, vectors

import ce.privacy.pair_keys
import ce_client.state.ledger
from ce.errors import MessageError, RingOverflow
from ce.identity.certificates import sign
from ce.identity.keys import PrivateKey
from ce.job import Job
from ce.labels import Column, LabelTable
from ce.labels.randomised import Randomisation, randomise
from ce.privacy.derivation import derive, extract, joined, number
from ce.privacy.masks import BLOCK, Keystream, Masks, Part, set_stream_key, unmask
from ce.privacy.pair_keys import EncryptedBox, EphemeralKey, decrypt
from ce.privacy.pseudonyms import pseudonyms, tokens
from ce.privacy.set_intersection import BlindedItems, Comparison
from ce.protocol.attempt import Attempt
from ce.protocol.engine.start_selection import StartDecisions
from ce.protocol.engine.starting_parameters import SecretStarts, job_key, object_weights
from ce.protocol.keys.handshake import key_commitment, sign_enrolment, sign_key_share
from ce.protocol.keys.letters import SiteLetters
from ce.protocol.messages.array_names import Scope
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.messages.task import Answer, Task, array_hash, task_digest
from ce.protocol.modes.blind_site import CommonState, _chained
from ce.protocol.modes.decision_codec import decode_decision, encode_decision
from ce.protocol.modes.mask_context import (
    MaskBinding,
    ViewDigest,
    described,
    mask_context,
    object_digests,
    view_digest,
)
from ce.protocol.topology.enrolment import ColumnClaim, Enrolment, EnrolmentSummary, enrolment_digest
from ce.protocol.topology.site_view import Block, SiteView, TopologyColumn
from ce.protocol.topology.vocabularies import Wishes
from ce.ring import Scale, decode, encode
from ce.steps.model import Sizes
from ce_client.state.ledger import PURPOSE, Ledger

KNOWN = vectors("known_answers")
_DTYPES: dict[str, Any] = {"i": np.int64, "f": np.float64, "u": np.uint8}


def hexes(texts: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def words_of(texts: Sequence[str], shape: Sequence[int] = (-1,)) -> NDArray[np.int64]:
    return np.array([int(text) for text in texts], dtype=np.int64).reshape(shape)


def reals_of(texts: Sequence[str], shape: Sequence[int] = (-1,)) -> NDArray[np.float64]:
    return np.array([float(text) for text in texts]).reshape(shape)


def attempt() -> Attempt:
    own = KNOWN["attempt"]
    return Attempt(own["job"], bytes.fromhex(own["definition"]), own["epoch"], tuple(own["roster"]))


def task_of(known: Mapping[str, Any]) -> Task:
    arrays = {}
    for name, own in known["arrays"].items():
        convert = float if own["kind"] == "f" else int
        elements = [convert(text) for text in own["elements"]]
        arrays[name] = np.array(elements, dtype=_DTYPES[own["kind"]]).reshape(own["shape"])
    fields = [known[key] for key in ("round", "step", "stage", "iteration")]
    asked = {name: ArraySpec(tuple(shape), bits) for name, (shape, bits) in known["asked"].items()}
    return Task(
        *fields,
        tuple(known["starts"]),
        tuple(known["retry"]),
        arrays,
        known["checkpoint"],
        known["resume"],
        tuple(known["stop"]),
        asked,
    )


class Recorder:
    """A key that signs nothing: it records what it is given to sign."""

    def __init__(self) -> None:
        self.signed: list[bytes] = []

    def sign(self, content: bytes, how: object) -> bytes:
        self.signed.append(content)
        return b"signature"

    @property
    def key(self) -> PrivateKey:
        return cast(PrivateKey, self)


def ephemeral(monkeypatch: pytest.MonkeyPatch, private: str) -> EphemeralKey:
    """A key that is not random."""
    given = X25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    with monkeypatch.context() as patch:
        patch.setattr(ce.privacy.pair_keys, "X25519PrivateKey", SimpleNamespace(generate=lambda: given))
        return EphemeralKey()


# The file.


@pytest.mark.promise("Known answers of the protocol are computed without this code.")
def test_the_file_is_what_its_program_makes_without_this_code() -> None:
    assert not {name for name in imported_by(VECTORS / "make_known_answers.py") if name.startswith("ce")}
    made = program("make_known_answers")
    assert made.known_answers() == (VECTORS / "known_answers.json").read_text(encoding="ascii")


@pytest.mark.promise("Known answers of the protocol are computed without this code.")
def test_every_section_says_what_it_is_and_is_held_against_the_code() -> None:
    sections = {name: own for name, own in KNOWN.items() if name != "about"}
    assert all(own["what"].endswith(".") for own in sections.values())
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in sections if f'KNOWN["{name}"]' not in source] == []


# Numbers.


@pytest.mark.parametrize("known", KNOWN["words"]["cases"], ids=lambda known: f"{known['bits']} bits")
def test_reals_become_words(known: dict[str, Any]) -> None:
    scale = Scale(known["bits"], float(known["limit"]))
    values, words = reals_of(known["values"]), words_of(known["words"])
    found = encode(values, scale, "a sum")
    np.testing.assert_array_equal(found, words)
    np.testing.assert_allclose(decode(found, scale), values, atol=0.5 / scale.unit, rtol=0)


@pytest.mark.parametrize("known", KNOWN["words"]["refused"], ids=lambda known: known["value"])
def test_terms_beyond_their_bound_are_refused(known: dict[str, Any]) -> None:
    with pytest.raises(RingOverflow):
        encode(reals_of([known["value"]]), Scale(known["bits"], float(known["limit"])), "a sum")


def test_scales() -> None:
    for known in KNOWN["scales"]["cases"]:
        assert Scale.for_sum(float(known["terms"]), float(known["limit"])).bits == known["bits"], known


# Bytes out of bytes.


def test_encodings_and_derivation() -> None:
    for known in KNOWN["encodings"]["joined"]:
        assert joined(*hexes(known["parts"])).hex() == known["joined"]
    for known in KNOWN["encodings"]["number"]:
        assert number(int(known["n"])).hex() == known["number"]
    for known in KNOWN["derivation"]["cases"]:
        assert derive(bytes.fromhex(known["secret"]), *hexes(known["info"])).hex() == known["key"]


def test_the_context_of_an_attempt() -> None:
    known = KNOWN["attempt"]
    assert attempt().job_digest.hex() == known["job_digest"]
    assert [part.hex() for part in attempt().context] == known["context"]


def test_pair_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KNOWN["pair_keys"]
    keys = {site: ephemeral(monkeypatch, private) for site, private in known["private_keys"].items()}
    assert {site: own.public.hex() for site, own in keys.items()} == known["public_keys"]
    for pair in known["pairs"]:
        names = [site.encode() for site in sorted(pair["sites"])]
        for own, peer in (pair["sites"], pair["sites"][::-1]):
            found = keys[own].pair_key(keys[peer].public, *attempt().context, *names)
            assert found.hex() == pair["pair_key"]
    for public in hexes(known["refused_public_keys"]):
        with pytest.raises(MessageError, match="public_key"):
            keys["east"].pair_key(public)


def test_the_job_key_and_what_is_encrypted() -> None:
    known = KNOWN["job_key"]
    job = Job.from_definition(known["definition"].encode())
    assert job.disclosure_definition().decode() == known["disclosure_definition"]
    assert job.disclosure_digest.hex() == known["disclosure_digest"]
    assert job_key(bytes.fromhex(known["secret"]), job.disclosure_digest).hex() == known["job_key"]
    pair_key = bytes.fromhex(KNOWN["encryption"]["pair_key"])
    for case in KNOWN["encryption"]["cases"]:
        box = EncryptedBox(bytes.fromhex(case["nonce"]), bytes.fromhex(case["ciphertext"]))
        assert decrypt(pair_key, box, *hexes(case["associated"])).hex() == case["content"]


# What the job key names and draws.


def categories_of(known: Mapping[str, Any]) -> tuple[int, ...] | tuple[str, ...]:
    return tuple(int(own) for own in known["categories"]) if known["integers"] else tuple(known["categories"])


def test_pseudonyms_and_tokens() -> None:
    known = KNOWN["names"]
    key = bytes.fromhex(known["job_key"])
    assert [own.tobytes().hex() for own in pseudonyms(key, known["ids"])] == known["pseudonyms"]
    for column in known["columns"]:
        assert list(tokens(key, column["column"], categories_of(column))) == column["tokens"]


def test_starting_parameters() -> None:
    known = KNOWN["starts"]
    starts = SecretStarts.of(*hexes([known["secret"], known["job_key"], known["disclosure_digest"]]))
    for at, own in enumerate(known["columns"]):
        assert own["key"] == (starts.job_key if own["shared"] else starts.site_key).hex()
        holders = ("east", "north") if own["shared"] else ("north",)
        column = TopologyColumn(at, own["column"], "clustering", tuple(own["categories"]), holders)
        found = starts.beta(column, known["starts"], known["k"])
        expected = reals_of(own["beta"], own["beta_shape"])
        np.testing.assert_allclose(found, expected, rtol=float(known["tolerance"]), atol=0)
        # The words themselves say the same: what differs between machines is the logarithm only.
        words = np.array([int(word) for word in own["words"]], dtype=np.uint64).reshape(own["words_shape"])
        drawn = -np.log(((words >> np.uint64(11)).astype(float) + 0.5) * 2.0**-53).swapaxes(1, 2)
        np.testing.assert_allclose(found, drawn / drawn.sum(axis=2, keepdims=True), rtol=1e-13)


def test_where_shared_objects_begin() -> None:
    known = KNOWN["object_weights"]
    tokens_ = np.array([np.void(own) for own in hexes(known["pseudonyms"])], dtype="V16")
    found = object_weights(tokens_, known["starts"], known["k"])
    expected = reals_of(known["weights"], known["weights_shape"])
    np.testing.assert_allclose(found, expected, rtol=float(known["tolerance"]), atol=0)


# What is signed.


def enrolled() -> dict[str, Enrolment]:
    found = {}
    for site, known in KNOWN["signatures"]["enrolled"].items():
        claims = tuple(
            ColumnClaim(
                own["name"], own["kind"], own["soft"], tuple(own["tokens"]), own["written"] or None, own["labels"]
            )
            for own in known["columns"]
        )
        objects = np.array([np.void(own) for own in hexes(known["pseudonyms"])], dtype="V16")
        found[site] = Enrolment(objects, claims)
    return found


def summaries() -> dict[str, EnrolmentSummary]:
    known = KNOWN["signatures"]["enrolled"]
    return {
        site: own.summary(
            known[site]["revision"],
            bytes.fromhex(known[site]["salt"]),
            key_commitment(attempt(), bytes.fromhex(KNOWN["job_key"]["job_key"])),
            Wishes(known[site]["min_sites"], known[site]["min_objects"]),
        )
        for site, own in enrolled().items()
    }


def test_what_is_signed_of_key_shares_and_enrolments(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KNOWN["signatures"]
    recorder = Recorder()
    own_key = ephemeral(monkeypatch, KNOWN["pair_keys"]["private_keys"]["north"])
    share = sign_key_share(attempt(), known["key_share"]["site"], own_key, recorder.key, b"certificate")
    assert share.public_key.hex() == known["public_key"]
    assert recorder.signed.pop().hex() == known["key_share"]["signed"]
    for site, summary in summaries().items():
        enrolled_ = known["enrolled"][site]
        assert summary.pseudonym_digest.hex() == enrolled_["pseudonym_digest"]
        assert summary.key_commitment.hex() == enrolled_["key_commitment"]
        assert [own.categories for own in summary.columns] == [len(own["tokens"]) for own in enrolled_["columns"]]
        sign_enrolment(attempt(), site, summary, recorder.key)
        assert recorder.signed.pop().hex() == known["enrolments"][site]
    assert enrolment_digest(summaries(), known["private_objects"]).hex() == known["enrolment_digest"]


# What sites write to each other.


def test_blinded_objects_and_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KNOWN["letters"]
    key, pair_key = bytes.fromhex(KNOWN["job_key"]["job_key"]), bytes.fromhex(known["pair_key"])
    secret = ec.derive_private_key(int(known["secret_number"], 16), ec.SECP256R1())
    monkeypatch.setattr("ce.privacy.set_intersection.ec.generate_private_key", lambda curve: secret)
    blinded = BlindedItems(key)
    objects = np.array([list(bytes.fromhex(own["pseudonym"])) for own in known["points"]], dtype=np.uint8)
    assert blinded.blind(row.tobytes() for row in objects) == hexes(own["blinded"] for own in known["points"])
    comparison = Comparison(blinded, pair_key, objects, len(objects))
    assert [f"{tag:016x}" for tag in comparison._tags.tolist()] == known["tags"]
    written: list[tuple[bytes, bytes]] = []

    def encrypt(key: bytes, content: bytes, *context: bytes) -> EncryptedBox:
        written.append((content, joined(*context)))
        return EncryptedBox(b"", b"")

    monkeypatch.setattr("ce.protocol.keys.letters.encrypt", encrypt)
    letters = SiteLetters(attempt(), "east", 2, summaries(), {"north": pair_key}, key)
    age = next(own for own in KNOWN["signatures"]["enrolled"]["east"]["columns"] if own["name"] == "age")
    letters._counting = {"age": tuple(age["tokens"][:1])}
    letters.begin(blinded, objects, LabelTable.from_arrays([["x"]], ids=["a"], columns=["of east alone"]))
    assert [(content.hex(), context.hex()) for content, context in written] == [
        (known["content"], known["associated_data"])
    ]


# Tasks.


def test_digests_of_tasks() -> None:
    known = KNOWN["tasks"]
    for case in known["cases"]:
        task = task_of(case["task"])
        assert {name: own.hex() for name, own in task.hashes.items()} == {
            name: own["blake3"] for name, own in case["task"]["arrays"].items()
        }
        digest = task_digest(bytes.fromhex(known["job_digest"]), known["epoch"], task, task.hashes)
        assert digest.hex() == case["digest"]


def test_elements_are_hashed_little_endian_and_row_major() -> None:
    known = KNOWN["view_digests"]["task"]["arrays"]["block/1/message"]
    array = reals_of(known["elements"], known["shape"])
    for other in (array.astype(">f8"), np.asfortranarray(array), np.repeat(array, 2, axis=2)[:, :, ::2]):
        assert array_hash(other).hex() == known["blake3"]


def test_view_digests() -> None:
    known = KNOWN["view_digests"]
    digest = view_digest(task_of(known["task"]))
    for case in known["cases"]:
        assert digest(scopes_of(case)).hex() == case["view_digest"], case["scopes"]
    resumed = task_of({**known["task"], "resume": known["resumed"]["resume"], "arrays": {}})
    assert view_digest(resumed)(()).hex() == known["resumed"]["view_digest"]


def scopes_of(case: Mapping[str, Any]) -> tuple[Scope, ...]:
    return tuple(map(Scope, case["scopes"]))


# Masks.


def pair_keys_of(site: str) -> dict[str, bytes]:
    found = {}
    for pair in KNOWN["pair_keys"]["pairs"]:
        if site in pair["sites"]:
            (peer,) = set(pair["sites"]) - {site}
            found[peer] = bytes.fromhex(pair["pair_key"])
    return found


def masks_of(site: str, *, shares_blocks: bool = True) -> MaskBinding:
    """As the site itself makes it, from what it was sent and what it holds."""
    known = KNOWN["mask_contexts"]
    blocks, rows, objects = {}, {}, [b"\0" * 16]
    for name, own in known["blocks"].items():
        if shares_blocks and site in own["members"]:
            blocks[int(name)] = Block(int(name), tuple(own["members"]), len(own["pseudonyms"]))
            rows[int(name)] = len(objects) + np.arange(len(own["pseudonyms"]))
            objects += hexes(own["pseudonyms"])
    columns = tuple(
        TopologyColumn(own["index"], own["name"], "clustering", tuple(own["tokens"]), tuple(own["holders"]))
        for own in known["columns"]
        if site in own["holders"]
    )
    view = SiteView(attempt().roster, Sizes(5, 3, 0, 7), blocks, columns, needs_two_exchanges=True, shared_by_all=False)
    digests = object_digests(np.array([np.void(own) for own in objects], dtype="V16"), rows)
    return MaskBinding(attempt(), site, view, digests, pair_keys_of(site), bytes.fromhex(known["enrolment_digest"]))


def test_mask_keys() -> None:
    known = KNOWN["mask_keys"]["cases"]
    assert ["block/1", "block/14", "block/4"] in [case["blocks"] for case in known], "in order as text"
    for case in known:
        key, digest = hexes([case["pair_key"], case["blocks_digest"]])
        assert derive(key, b"ce blocks 1", digest).hex() == case["mask_key"]
        for site, peer in (case["sites"], case["sites"][::-1]):
            masks = masks_of(site, shares_blocks=bool(case["blocks"]))
            assert masks._blocks_of(peer) == digest
            assert masks._masks._extracted[peer] == extract(bytes.fromhex(case["mask_key"]))


def test_mask_contexts() -> None:
    known = KNOWN["mask_contexts"]
    assert [round_["mode"] for round_ in known["rounds"]] == ["masked", "blind"]
    for round_ in known["rounds"]:
        asked = {own["name"]: own for own in round_["arrays"]}
        assert list(asked) == sorted(asked, key=lambda name: (asked[name]["contributors"], name))
        for own in (*round_["pairs"], *round_["sets"]):
            (site, *_) = own["sites"]
            assert digests_in(round_["mode"], site)(scopes_of(own)).hex() == own["view_digest"]
            arrays = (
                described(bytes.fromhex(one["identity"]), name, tuple(one["shape"]), one["bits"])
                for name, one in asked.items()
                if name in own["arrays"]
            )
            found = mask_context(
                bytes.fromhex(known["attempt"]), round_["round"], bytes.fromhex(own["view_digest"]), *arrays
            )
            assert found.hex() == own["context"]


def test_every_round_is_masked_with_the_contexts_of_pairs_and_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, tuple[Sequence[Part], Mapping[str, bytes], Mapping[tuple[str, ...], bytes]]] = {}

    def record(masks: Masks, round_: int, parts: Sequence[Part], contexts: Any, streams: Any) -> Any:
        made[masks._site] = (parts, contexts, streams)
        return [list(part.arrays) for part in parts]

    monkeypatch.setattr(Masks, "mask", record)
    for round_ in KNOWN["mask_contexts"]["rounds"]:
        asked = {own["name"]: own for own in round_["arrays"]}
        blind = round_["mode"] == "blind"
        for site in attempt().roster:
            masks = masks_of(site)
            masks.set_keys = known_set_keys() if blind else {}
            masks.mask(round_of_zeros(round_, site), digests_in(round_["mode"], site))
            parts, contexts, streams = made[site]
            expected = {
                peer: bytes.fromhex(own["context"])
                for own in round_["pairs"]
                for peer in own["sites"]
                if site in own["sites"] and peer != site
            }
            assert contexts == expected
            for own in round_["pairs"]:
                if site in own["sites"]:
                    shared = [asked[name]["shape"] for name in own["arrays"]]
                    theirs = [part for part in parts if set(own["sites"]) <= set(part.contributors)]
                    assert [list(array.shape) for part in theirs for array in part.arrays] == shared
            assert streams == {
                tuple(own["sites"]): derive(
                    known_set_keys()[tuple(own["sites"])], b"ce set mask 2", bytes.fromhex(own["context"])
                )
                for own in round_["sets"]
                if own["sites"][0] == site
            }


def round_of_zeros(round_: dict[str, Any], site: str) -> Answer:
    """What a site has before tags are added, in no order."""
    arrays = [own for own in reversed(round_["arrays"]) if site in own["contributors"] and "/mac" not in own["name"]]
    words: dict[str, Any] = {own["name"]: np.zeros(own["shape"], dtype=np.int64) for own in arrays}
    return Answer(round_["round"], "sums", (), words, {own["name"]: own["bits"] for own in arrays})


def known_set_keys() -> dict[tuple[str, ...], bytes]:
    return {tuple(own["sites"]): bytes.fromhex(own["key"]) for own in KNOWN["masked_totals"]["set_keys"]}


def digests_in(mode: str, site: str) -> ViewDigest:
    return blind_digest(site) if mode == "blind" else view_digest(task_of(KNOWN["masked_totals"]["task"]))


def test_streams() -> None:
    nothing = np.zeros(8, dtype=np.int64)
    for case in KNOWN["streams"]["cases"]:
        key, context = hexes([case["key"], case["context"]])
        purpose, words = case["purpose"].encode(), words_of(case["first_words"])
        stream_key = derive(key, purpose, context)
        assert stream_key.hex() == case["stream_key"]
        room = bytearray(BLOCK + 16)
        Keystream(stream_key).into(room, 64)
        assert room[:64].hex() == case["first_64_bytes"]
        np.testing.assert_array_equal(np.frombuffer(room, "<i8", 8), words)
        if case["stream"] == "pair":
            for site, peer, expected in (("east", "south", words), ("south", "east", -words)):
                ((sent,),) = Masks(site, {peer: key}).mask(1, [Part(("east", "south"), [nothing])], {peer: context})
                np.testing.assert_array_equal(sent, expected)
        else:
            assert set_stream_key(key, context) == stream_key
            ((sent,),) = Masks("east", {}).mask(1, [Part(("east",), [nothing])], {}, {("east",): stream_key})
            np.testing.assert_array_equal(sent, words)
            np.testing.assert_array_equal(unmask([words], key, context), [nothing])


def blind_digest(site: str) -> ViewDigest:
    """As far as the site has come in known answers: what it has seen of the totals of its own blocks and columns."""
    known, blocks = KNOWN["view_digests_in_blind"], KNOWN["mask_contexts"]["blocks"]
    seen = {}
    for chain in known["chains"]:
        kind, at = chain["scope"].split("/")
        if kind != "block" or site in blocks[at]["members"]:
            seen[chain["scope"]] = bytes.fromhex(chain["seen"][-1])
    state = CommonState(*attempt().context)
    state.restore({"value": bytes.fromhex(known["state"]), "seen": seen})
    return state.view_digest()


def test_view_digests_in_blind() -> None:
    known = KNOWN["view_digests_in_blind"]
    for chain in known["chains"]:
        assert chain["seen"][0] == ""
        for before, total, after in zip(chain["seen"], chain["totals"], chain["seen"][1:], strict=False):
            assert _chained(bytes.fromhex(before), words_of(total)).hex() == after
    digest_of = blind_digest("east")
    for case in known["cases"]:
        assert digest_of(scopes_of(case)).hex() == case["view_digest"], case["scopes"]


@pytest.mark.parametrize("known", KNOWN["masked_totals"]["cases"], ids=lambda known: str(known["mode"]))
def test_what_contributors_send_and_what_it_sums_to(known: dict[str, Any]) -> None:
    arrays, blind = {own["name"]: own for own in known["arrays"]}, known["mode"] == "blind"
    added: dict[str, Any] = {name: np.zeros(own["shape"], dtype=np.int64) for name, own in arrays.items()}
    bits = {name: own["bits"] for name, own in arrays.items()}
    for site in attempt().roster:
        masks = masks_of(site)
        masks.set_keys = known_set_keys() if blind else {}
        own = {name: words_of(a["plain"][site], a["shape"]) for name, a in arrays.items() if site in a.get("plain", {})}
        answer = Answer(known["round"], "sums", arrays=own, fraction_bits={name: bits[name] for name in own})
        sent = masks.mask(answer, digests_in(known["mode"], site))
        assert set(sent.arrays) == {name for name, a in arrays.items() if site in a["sent"]}
        for name, array in sent.arrays.items():
            np.testing.assert_array_equal(array, words_of(arrays[name]["sent"][site], arrays[name]["shape"]))
            assert sent.fraction_bits[name] == bits[name]
            added[name] += array
    for name, a in arrays.items():
        np.testing.assert_array_equal(added[name], words_of(a["sum_of_sent"], a["shape"]))
        if not blind:
            np.testing.assert_array_equal(added[name], words_of(a["total"], a["shape"]))
    for site in attempt().roster if blind else ():
        masks = masks_of(site)
        masks.set_keys = known_set_keys()
        totals = {name: total for name, total in added.items() if site in arrays[name]["sent"]}
        found = masks.unmask(totals, {name: bits[name] for name in totals}, known["round"], blind_digest(site))
        assert set(found) == {name for name in totals if "total" in arrays[name]}
        for name, total in found.items():
            np.testing.assert_array_equal(total, words_of(arrays[name]["total"], arrays[name]["shape"]))


# Blind.


def test_the_state_that_all_share() -> None:
    known = KNOWN["states"]
    state = CommonState(*attempt().context)
    assert state.value.hex() == known["first"]
    for step in known["steps"]:
        assert state.value.hex() == step["state"]
        state.remember(*hexes(step["parts"]))
        assert state.value.hex() == step["after"]
    assert state.shown(bytes.fromhex(known["set_key"])).hex() == known["sent"]


def test_decisions() -> None:
    known = KNOWN["decisions"]
    globals_ = {name: reals_of(own["elements"], own["shape"]) for name, own in known["globals"].items()}
    flags = {name: np.array(known[name]) for name in ("retry", "converged", "stopped", "dropped")}
    decisions = StartDecisions(reals_of(known["bound"]), globals_, **flags)
    assert encode_decision(decisions, known["running"], known["starts"]).hex() == known["encoded"]
    found = decode_decision(bytes.fromhex(known["encoded"]), known["running"], known["starts"], globals_)
    np.testing.assert_array_equal(found.bound, decisions.bound)
    for name, values in flags.items():
        np.testing.assert_array_equal(getattr(found, name), values)
    for name, values in globals_.items():
        np.testing.assert_array_equal(found.globals[name], values)


# At a site.


def test_lines_of_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = KNOWN["ledger"]
    path = tmp_path / "ledger.jsonl"
    lines = [json.loads(own["line"]) for own in known["lines"]]
    times = iter([*(line["time_s"] for line in lines), float(known["end"]["time_s"])])
    monkeypatch.setattr(ce_client.state.ledger, "time", SimpleNamespace(time=lambda: next(times)))
    recorder = Recorder()
    with Ledger(path, lines[0]["site"]) as ledger:
        assert ledger.head.hex() == known["lines"][0]["head_after"]
        keys = ("job", "epoch", "job_digest", "roster", "mode", "randomise", "epsilon", "epsilon_row", "definition")
        begun = {key: lines[1][key] for key in keys}
        head = ledger.begin(**{**begun, "job_digest": bytes.fromhex(begun["job_digest"])})
        assert head.hex() == known["lines"][1]["head_after"]
        assert path.read_text(encoding="ascii") == "".join(own["line"] for own in known["lines"])
        end = known["end"]
        ledger.end(end["job"], end["epoch"], end["state"], lambda head: sign(recorder.key, head, purpose=PURPOSE))
    assert recorder.signed.pop().hex() == end["signed"]


def test_randomised_response() -> None:
    known = KNOWN["randomised"]
    columns = tuple(
        Column(own["column"], "clustering", categories_of(own), np.array(own["codes"], dtype=np.int32), None)
        for own in known["columns"]
    )
    table = LabelTable(np.array(known["ids"]), columns)
    declared = {own["column"]: categories_of(own) for own in known["columns"]}
    for sampled, after in ((0, "codes_after"), (1, "codes_after_one_column_each")):
        found = randomise(table, Randomisation(float(known["p"]), declared, sampled), bytes.fromhex(known["secret"]))
        for own, column in zip(known["columns"], found.columns, strict=True):
            assert column.codes is not None
            assert column.codes.tolist() == own[after]
            assert own[after] != own["codes"]
