"""Known answers of sealed jobs: `tests/vectors/sealed_answers.json`, which another implementation can be held against.

The file is made without any of this code (`tests/vectors/make_sealed_answers.py`), by the pieces of a site that was
written from the documents. Here the code must compute the same: what is checked is that the documents are right, and
that nobody changes a byte of the protocol unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.vectors import INDEPENDENT, VECTORS, imported_by, program, vectors

from ce.errors import BrokenTotals, MessageError
from ce.job import Job
from ce.pair_tables import cell_words, score_unit, weight_words
from ce.privacy.argmax_dealer import corrections
from ce.privacy.dealt_products import ProductBlock, SiteProducts, dealer_products, masked_rows
from ce.privacy.derivation import derive, joined, number
from ce.privacy.discrete_gaussian import DiscreteGaussian, thresholds
from ce.privacy.ring_words import Ring, Stream, stream_of
from ce.privacy.score_words import PermutedRows, score_words
from ce.privacy.secure_argmax import Member, winners
from ce.privacy.zcdp import epsilon_of, rho_of, squared_sensitivity
from ce.protocol.sealed.opened_shares import commitment
from ce.protocol.sealed.site_argmax import SharedBlock, WinnerShare
from ce.protocol.sealed.terms import SealedColumn, Terms

KNOWN = vectors("sealed_answers")


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


# The file.


@pytest.mark.promise("Known answers of the protocol are computed without this code.")
def test_the_file_is_what_its_program_makes_without_this_code() -> None:
    files = [VECTORS / "make_sealed_answers.py", VECTORS / "make_known_answers.py", *INDEPENDENT.glob("sealed_*.py")]
    for path in files:
        assert not {name for name in imported_by(path) if name.startswith("ce")}, path.name
    made = program("make_sealed_answers").sealed_answers()
    assert made == (VECTORS / "sealed_answers.json").read_text(encoding="ascii")


@pytest.mark.promise("Known answers of the protocol are computed without this code.")
def test_every_section_says_what_it_is_and_is_held_against_the_code() -> None:
    sections = {name: own for name, own in KNOWN.items() if name != "about"}
    assert all(own["what"].endswith(".") for own in sections.values())
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in sections if f'KNOWN["{name}"]' not in source] == []


# Streams and words.


def test_streams() -> None:
    known = KNOWN["streams"]
    seed, parts = unhex(known["seed"]), [unhex(part) for part in known["parts"]]
    assert derive(seed, *parts).hex() == known["key"]
    kinds = {"bytes": np.uint8, "16 bits": np.uint16, "32 bits": np.uint32, "64 bits": np.uint64}
    for case in known["cases"]:
        found = stream_of(seed, *parts).words(len(case["first"]), kinds[case["numbers"]])
        assert found.tolist() == case["first"]


def test_packed_words() -> None:
    for case in KNOWN["packed_words"]["cases"]:
        ring, words = Ring(case["bits"]), np.array(case["words"], np.uint32)
        assert ring.packed(words).hex() == case["packed"]
        assert ring.unpacked(unhex(case["packed"]), len(words)).tolist() == case["words"]
    for case in KNOWN["packed_words"]["refused"]:
        with pytest.raises(MessageError):
            Ring(case["bits"]).unpacked(unhex(case["packed"]), case["count"])


# Terms.


def test_terms() -> None:
    known = KNOWN["terms"]
    columns = [SealedColumn(c["name"], tuple(c["holders"]), c["categories"]) for c in known["columns"]]
    holders = {column.name: column.holders for column in columns}
    sites, slack = tuple(known["sites"]), float(known["tolerance"])
    assert {s: squared_sensitivity(holders, "site_row", s) for s in sites} == known["site_row"]
    assert squared_sensitivity(holders, "label") == known["label"]
    assert squared_sensitivity(holders, "object") == known["object"]
    for case in known["cases"]:
        job = Job(name="a", model="pairs", sites=sites, **case["job"])
        terms = Terms.of(job, unhex(known["job_digest"]), sites, columns, case["objects"])
        assert ("" if terms.noise is None else str(terms.noise.site_variance)) == case["variance"]
        assert terms.sd == pytest.approx(float(case["sd"]), rel=slack)
        assert terms.ring.bits == case["bits"]
        rho = {} if terms.noise is None else terms.rho
        assert rho == pytest.approx({site: float(value) for site, value in case["rho"].items()}, rel=slack)
        assert terms.digest.hex() == case["digest"]


def test_epsilon_and_rho() -> None:
    known = KNOWN["budget"]
    slack = float(known["tolerance"])
    for case in known["rho_of"]:
        assert rho_of(float(case["epsilon"]), float(case["delta"])) == pytest.approx(float(case["rho"]), rel=slack)
    for case in known["epsilon_of"]:
        assert epsilon_of(float(case["rho"]), float(case["delta"])) == pytest.approx(float(case["epsilon"]), rel=slack)


def test_noise() -> None:
    for case in KNOWN["discrete_gaussian"]["cases"]:
        variance = Fraction(case["variance"])
        most, steps = thresholds(variance)
        assert most == case["most"]
        assert {value: str(steps[int(value) + most]) for value in case["thresholds"]} == case["thresholds"]
        drawn = DiscreteGaussian(variance).sample(Stream(unhex(case["key"])), len(case["drawn"]))
        assert drawn.tolist() == case["drawn"]


# Products.


def product_blocks(known: Mapping[str, Any]) -> list[ProductBlock]:
    return [ProductBlock(unhex(b["digest"]), b["objects"], tuple(b["members"])) for b in known["blocks"]]


def site_products(known: Mapping[str, Any], ring: Ring, site: str) -> SiteProducts:
    blocks = product_blocks(known)
    codes = {(own["site"], own["block"]): np.array(own["codes"], np.int32) for own in known["codes"]}
    mine = [at for at, block in enumerate(blocks) if site in block.members]
    return SiteProducts(
        site,
        unhex(known["seeds"][site]),
        ring,
        [blocks[at] for at in mine],
        {name: sum(own) for name, own in known["columns"].items()},
        known["columns"][site],
        [codes[site, at] for at in mine],
        unhex(known["check_seeds"][site]),
    )


@pytest.mark.parametrize("case", KNOWN["products"]["cases"], ids=lambda case: f"{case['bits']} bits")
def test_products(case: Mapping[str, Any]) -> None:
    known, ring = KNOWN["products"], Ring(case["bits"])
    blocks, codes = product_blocks(known), {(own["site"], own["block"]): own["codes"] for own in known["codes"]}
    seeds = {site: unhex(seed) for site, seed in known["seeds"].items()}
    widths = {site: sum(own) for site, own in known["columns"].items()}
    dealt = dealer_products(ring, seeds, blocks, widths)
    assert {pair: data.hex() for pair, data in dealt.items()} == {tuple(p["pair"]): p["dealt"] for p in case["pairs"]}
    sites = {site: site_products(known, ring, site) for site in seeds}
    for own in case["rows"]:
        site, block = own["site"], blocks[own["block"]]
        labels = np.array(codes[site, own["block"]], np.int32)
        made = masked_rows(labels, known["columns"][site], ring, seeds[site], block.context)
        assert made.hex() == own["masked"]
        for member in block.members:
            if member != site:
                sites[member].receive_rows(block.context, site, made)
    for pair in case["pairs"]:
        sites[pair["pair"][1]].receive_dealt(pair["pair"][0], unhex(pair["dealt"]))
    for pair in case["pairs"]:
        first, second = pair["pair"]
        assert sites[second].check_message(first).hex() == pair["check_message"]
        sites[first].receive_check(second, unhex(pair["check_message"]))
        shares = sites[first].product(second), sites[second].product(first)
        assert [share.tolist() for share in shares] == [pair["share_of_first"], pair["share_of_second"]]
        assert ((shares[0] + shares[1]) & ring.mask).tolist() == pair["product"]


def test_a_check_message_that_does_not_fit_is_refused() -> None:
    known, case = KNOWN["products"], KNOWN["products"]["cases"][0]
    pair = case["pairs"][0]
    message = bytearray(unhex(pair["check_message"]))
    message[40] ^= 1
    with pytest.raises(BrokenTotals):
        site_products(known, Ring(case["bits"]), pair["pair"][0]).receive_check(pair["pair"][1], bytes(message))


def test_masks_and_commitments() -> None:
    known = KNOWN["commitments"]
    stream = stream_of(unhex(known["pair_key"]), b"ce sealed share mask 1", unhex(known["terms_digest"]),
                       unhex(known["transcript"]))  # fmt: skip
    mask = Ring(22).drawn(stream, len(known["mask"]))
    assert mask.tolist() == known["mask"]
    columns = [SealedColumn(c["name"], tuple(c["holders"]), c["categories"]) for c in KNOWN["terms"]["columns"]]
    job = Job(name="a", model="pairs", clusters=3, sites=tuple(known["roster"]))
    terms = Terms.of(job, unhex(known["job_digest"]), tuple(known["roster"]), columns, 1000)
    assert terms.digest.hex() == known["terms_digest"]
    nonce, share = unhex(known["nonce"]), unhex(known["share"])
    assert commitment(terms, known["origin"], known["site"], nonce, share).hex() == known["commitment"]
    members, rows = tuple(known["roster"]), len(known["winner_shares"]) - 256
    shares = np.array(known["winner_shares"], np.uint8)
    block = SharedBlock(0, members, known["site"], rows, known["candidates"])
    block.take_up(WinnerShare(shares, unhex(known["row_key"]), unhex(known["winner_nonce"])))
    roster = joined(*(site.encode() for site in members))
    parts = (unhex(known["job_digest"]), number(known["origin"]), roster, unhex(known["block_digest"]))
    block.bind({member: joined(*parts, member.encode()) for member in members})
    assert block.commitment().hex() == known["winner_commitment"]
    assert block.dummies().hex() == known["dummies"]
    permuted = PermutedRows(unhex(known["row_key"]), rows, known["candidates"], known["members"])
    own = WinnerShare(shares, unhex(known["row_key"]), unhex(known["winner_nonce"]))
    assert own.real(permuted).hex() == known["winners"]


# Scores and the tournament.


def test_scores() -> None:
    known = KNOWN["scores"]
    unit = score_unit(known["labels"])
    assert unit == known["unit"]
    cells, weights = cell_words(np.array(known["beta"]), unit), weight_words(np.array(known["weights"]), unit)
    assert cells.tolist() == known["cell_words"]
    assert weights.tolist() == known["weight_words"]
    codes = np.array(known["codes"], np.int32)
    assert score_words(codes, known["columns"], cells, weights).tolist() == known["first"]
    assert score_words(codes, known["columns"], cells, None).tolist() == known["another"]


def test_rows_and_dummies() -> None:
    for case in KNOWN["rows"]["cases"]:
        objects, candidates = case["objects"], case["candidates"]
        rows = PermutedRows(unhex(case["row_key"]), objects, candidates, case["members"])
        order = np.array(case["order"])
        assert rows.real(order).tolist() == list(range(objects))
        assert rows.dummy(order).tolist() == list(range(objects, objects + 256))
        expected = np.array(case["winners"], np.int32)
        assert rows.dummies_are_right(expected)
        expected[17] = (expected[17] + 1) % candidates
        assert not rows.dummies_are_right(expected)
        words = np.arange(candidates * objects, dtype=np.uint32).reshape(candidates, objects)
        arranged = [rows.arranged(words, at).astype("<u4").tobytes() for at in range(case["members"])]
        assert [hashlib.sha256(part).hexdigest() for part in arranged] == case["sha256"]


def test_tournaments() -> None:
    for case in KNOWN["tournaments"]["cases"]:
        seeds, digest = [unhex(seed) for seed in case["seeds"]], unhex(case["digest"])
        words = [np.array(own, np.uint32) for own in case["words"]]
        candidates, rows = words[0].shape
        dealt = {level: b"".join(parts) for level, parts in corrections(seeds, digest, rows, candidates)}
        assert [data.hex() for data in dealt.values()] == case["corrections"]
        members = [Member(at, len(seeds), seeds[at], digest, own) for at, own in enumerate(words)]
        for level, data in dealt.items():
            members[-1].correct(level, data)
        for known in case["rounds"]:
            sent = [member.outgoing() for member in members]
            assert [message.hex() for message in sent] == known
            for at, member in enumerate(members):
                member.incoming([message for other, message in enumerate(sent) if other != at])
        assert all(member.finished for member in members)
        assert [member.share.tolist() for member in members] == case["shares"]
        assert winners([member.share for member in members], candidates).tolist() == case["winners"]
