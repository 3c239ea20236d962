"""A whole small job, number by number: `tests/vectors/tiny_job.json`, for other implementations of a site.

The library must answer every task of the file as it says, and so must a site that is written from the documents alone
(`tests/vectors/check_tiny_job.py`). Integers, digests and masks are compared exactly, everything else to 1e-9.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from support.vectors import VECTORS, imported_by, program, vectors

TINY = vectors("tiny_job")
TOLERANCE = 1e-9
_EXACT = ("round", "step", "stage", "iteration", "starts", "retry", "stop")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """The same job, run now."""
    found: dict[str, Any] = program("make_tiny_job").tiny_job()
    return found


def numbers(text: str) -> list[float]:
    return [float(value) for value in text.split()]


def test_it_goes_back_and_its_starts_stop_in_different_rounds() -> None:
    assert [entry["retry"] for entry in TINY["rounds"] if entry["retry"]] == [[0], [0]]
    stops = {start: entry["round"] for entry in TINY["rounds"] for start in entry["stop"]}
    assert len(stops) == len(set(stops.values())) == 2
    assert stops[TINY["winner"]] == min(stops.values()), "the end must go back to a state that was put aside"
    assert {entry["step"] for entry in TINY["rounds"]} == {"open", "counts", "sums", "finish"}


def test_its_starts_hold_alpha_until_they_are_calm_and_learn_it_in_both_ways() -> None:
    sums = [entry for entry in TINY["rounds"] if entry["step"] == "sums"]
    assert all("global/mean_log" in entry["up"] for entry in sums[8:])
    assert not any("global/mean_log" in entry["up"] for entry in sums[:8])
    phases = [numbers(entry["down"]["global/learning"]["reals"]) for entry in sums]
    assert phases[:8] == [[0.0, 0.0]] * 8
    assert phases[8] == [1.0, 0.0], "one learns alpha, the other holds it: calm, and not at the limit of the hold"
    assert phases[11] == [4.0, 3.0], "one takes joint steps, the other a Newton step"


def test_what_is_exact_in_the_file_is_what_the_library_makes(made: dict[str, Any]) -> None:
    for key in TINY:
        if key not in ("rounds", "results", "masked"):
            assert made[key] == TINY[key], key
    assert [{key: entry[key] for key in _EXACT} for entry in made["rounds"]] == [
        {key: entry[key] for key in _EXACT} for entry in TINY["rounds"]
    ]


def test_every_array_of_every_round_is_what_the_library_sends(made: dict[str, Any]) -> None:
    for found, known in zip(made["rounds"], TINY["rounds"], strict=True):
        assert list(found["down"]) == list(known["down"])
        assert list(found["up"]) == list(known["up"])
        for name, entry in known["down"].items():
            assert (found["down"][name]["shape"], found["down"][name]["to"]) == (entry["shape"], entry["to"])
            got = numbers(found["down"][name]["reals"])
            np.testing.assert_allclose(got, numbers(entry["reals"]), rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        for name, entry in known["up"].items():
            assert {**found["up"][name], "words": 0} == {**entry, "words": 0}
            unit, slack = 2.0 ** entry["fraction_bits"], TOLERANCE if entry["fraction_bits"] else 0.0
            for site, words in entry["words"].items():
                got, expected = (np.array(numbers(text)) / unit for text in (found["up"][name]["words"][site], words))
                np.testing.assert_allclose(got, expected, rtol=slack, atol=slack, err_msg=f"{name} of {site}")
    for site, known in TINY["results"].items():
        got = numbers(made["results"][site]["memberships"])
        np.testing.assert_allclose(got, numbers(known["memberships"]), rtol=0, atol=TOLERANCE)


def test_masks_of_one_round(made: dict[str, Any]) -> None:
    """The words of other machines may differ in their last bits; what is added to them may not, for the same views."""
    known, found = TINY["masked"], made["masked"]
    for key in ("round", "private_keys", "public_keys", "attempt"):
        assert found[key] == known[key]
    assert found["of_east"]["pair_keys"] == known["of_east"]["pair_keys"]
    assert found["of_east"]["mask_keys"] == known["of_east"]["mask_keys"]
    if made["rounds"] == TINY["rounds"]:
        assert found == known


def test_masks_cancel() -> None:
    known = TINY["masked"]
    plain = next(entry for entry in TINY["rounds"] if entry["round"] == known["round"])["up"]
    for name, entry in plain.items():
        total = sum(np.array([int(w) for w in text.split()], dtype=np.int64) for text in entry["words"].values())
        sent = [
            np.array([int(w) for w in known["words"][site][name].split()], dtype=np.int64) for site in entry["words"]
        ]
        np.testing.assert_array_equal(sum(sent), total)
        for site, masked in zip(entry["words"], sent, strict=True):
            assert not np.array_equal(masked, [int(w) for w in entry["words"][site].split()]), (
                f"{name} of {site} is plain"
            )


def test_a_site_written_from_the_documents_answers_the_same() -> None:
    others = {"ce", "ce_client", "ce_coordinator", "ce_proto", "numpy", "scipy"}
    assert not imported_by(VECTORS / "check_tiny_job.py") & others
    assert program("check_tiny_job").differences(TINY) == []


def test_the_check_finds_a_difference() -> None:
    wrong = copy.deepcopy(TINY)
    entry = wrong["rounds"][15]["up"]["columns/0/sums"]["words"]
    entry["east"] = " ".join(str(int(word) + 2**40) for word in entry["east"].split())
    assert program("check_tiny_job").differences(wrong) == [
        "east: round 16: columns/0/sums",
        "east: masked columns/0/sums",
    ]
