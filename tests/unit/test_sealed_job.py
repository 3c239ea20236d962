"""A whole small sealed job, byte by byte: `tests/vectors/sealed_job.json`, for other implementations of a site.

The library must answer every task of the file with the bytes of the file, and so must a site that was written from
the documents alone (`tests/independent`). Only the model, which another machine may fit with other last bits, is
compared to 1e-9 where the coordinator makes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.vectors import program, vectors

from ce.errors import MessageError
from ce.protocol.engine.aggregator import add_answer
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.messages.task import Answer, Task, task_digest

SEALED = vectors("sealed_job")
SITES = tuple(SEALED["roster"])
_TYPES = {"model/categories": np.int64, "model/weights": np.float64, "model/beta": np.float64}


def array_of(entry: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    if "bytes" in entry:
        return np.frombuffer(bytes.fromhex(entry["bytes"]), np.uint8)
    kind = _TYPES[entry["name"]]
    return np.array([kind(text) for text in entry["elements"].split()], kind).reshape(entry["shape"])


def task_of(known: Mapping[str, Any], site: str) -> Task:
    arrays = {entry["name"]: array_of(entry) for entry in known["down"] if site in entry["to"]}
    asked = {name: ArraySpec((len(sent) // 2,)) for name, sent in known["up"][site].items()}
    return Task(known["round"], known["step"], arrays=arrays, asked=asked)


def hexes(arrays: Mapping[str, Any]) -> dict[str, str]:
    return {name: array.tobytes().hex() for name, array in sorted(arrays.items())}


@pytest.mark.promise("A whole sealed job is written down byte by byte, and every site sends these bytes again.")
@pytest.mark.parametrize("site", SITES)
def test_each_site_answers_the_tasks_of_the_file_with_its_bytes(site: str) -> None:
    made = program("make_sealed_job")
    own, entropy = made.parties()
    for known in SEALED["rounds"]:
        task = task_of(known, site)
        digest = task_digest(made.ATTEMPT.job_digest, made.ATTEMPT.epoch, task, task.hashes)
        assert digest.hex() == known["digests"][site]
        assert hexes(own.sites[site].answer(task).arrays) == known["up"][site], known["step"]
        assert entropy[site].taken() == known["drawn"][site]
    found = own.sites[site].result
    order = {name: at for at, name in enumerate(made.tables()[site].ids.tolist())}
    rows = [order[name] for name in SEALED["sites"][site]["ids"]]
    assert found.labels[rows].tolist() == SEALED["results"][site]["labels"]


@pytest.mark.promise("A whole sealed job is written down byte by byte, and every site sends these bytes again.")
def test_the_coordinator_makes_the_tasks_of_the_file() -> None:
    own, _ = program("make_sealed_job").parties()
    coordinator = own.coordinator
    for known in SEALED["rounds"]:
        for site, task in coordinator.tasks().items():
            expected = task_of(known, site)
            assert (task.round, task.step, task.asked) == (expected.round, expected.step, expected.asked)
            assert sorted(task.arrays) == sorted(expected.arrays)
            for name, array in task.arrays.items():
                slack = 1e-9 if name in ("model/weights", "model/beta") else 0
                np.testing.assert_allclose(array, expected.arrays[name], rtol=0, atol=slack, err_msg=name)
        for site in SITES:
            arrays = {name: np.frombuffer(bytes.fromhex(sent), np.uint8) for name, sent in known["up"][site].items()}
            bits = dict.fromkeys(arrays, 0)
            add_answer(coordinator, site, Answer(known["round"], known["step"], arrays=arrays, fraction_bits=bits))
        coordinator.advance()
    assert coordinator.open_round is None


def test_what_the_file_says_beside_its_rounds_is_what_the_library_makes() -> None:
    made = program("make_sealed_job").sealed_job()
    for key in SEALED:
        if key not in ("rounds", "results"):
            assert made[key] == SEALED[key], key
    for site, known in SEALED["results"].items():
        assert made["results"][site]["labels"] == known["labels"]


def test_it_has_what_makes_sealed_jobs_different() -> None:
    steps = [entry["step"] for entry in SEALED["rounds"]]
    before, after = ["meet", "mask", "verify", "commit", "release", "score"], ["settle", "prove", "reveal", "reveal"]
    assert steps == [*before, *["compare"] * 10, *after, "finish"]
    shared = {tuple(b["members"]) for own in SEALED["sites"].values() for b in own["blocks"] if len(b["members"]) > 1}
    assert sorted(map(len, shared)) == [2, 3]
    assert sorted(len(column["holders"]) for column in SEALED["columns"]) == [1, 1, 2, 3]
    assert -1 in SEALED["results"]["south"]["labels"], "an object has no label anywhere"
    assert min(SEALED["opened_cells"]) < 0, "there is noise"


def independent(site: str) -> Any:
    """The site that was written from the documents, in this job."""
    sealed_site, sealed_words = program("sealed_site"), program("sealed_words")
    keys, given = program("keys_and_masks"), program("given_keys")
    own, definition = SEALED["sites"][site], json.loads(SEALED["definition"])
    attempt = keys.Attempt(definition["name"], bytes.fromhex(SEALED["job_digest"]), SEALED["epoch"], SITES)
    columns = tuple((c["name"], tuple(c["holders"]), c["categories"]) for c in SEALED["columns"])
    terms = sealed_words.Terms(attempt.digest, definition, SITES, columns, SEALED["sizes"]["objects"])
    assert terms.digest.hex() == SEALED["terms"]["digest"]
    names = [bytes.fromhex(text) for text in own["enrolled_pseudonyms"]]
    job_key = bytes.fromhex(SEALED["job_key"])
    row_of = {keys.hmac_16(job_key, id_.encode()): at for at, id_ in enumerate(own["ids"])}
    codes = []
    for column in sorted(own["columns"], key=lambda c: c["name"]):
        labels = own["labels"][column["name"]]
        spelled = [f"{'int' if isinstance(label, int) else 'str'} {label}" for label in labels]
        tokens = [
            keys.hmac_16(job_key, keys.joined(b"category", column["name"].encode(), t.encode())).hex() for t in spelled
        ]
        found = [
            -1 if label is None else column["categories"].index(t) for label, t in zip(labels, tokens, strict=True)
        ]
        codes.append([found[row_of[name]] for name in names])
    blocks = [
        sealed_site.Block(
            b["index"],
            tuple(b["members"]),
            np.array(b["rows"]),
            keys.sha256(b"".join(names[row] for row in b["rows"])),
        )
        for b in own["blocks"]
    ]
    private = {name: bytes.fromhex(SEALED["sites"][name]["private_key"]) for name in SITES}
    pairs = given.given_pair_keys(program("make_sealed_job").ATTEMPT, private)[site]
    parts: list[bytes] = []
    for name, enrolled in SEALED["sites"].items():
        parts += [name.encode(), bytes.fromhex(enrolled["summary"]), keys.number(enrolled["private_objects"])]
    digest = keys.sha256(keys.joined(*parts))
    assert digest.hex() == SEALED["enrolment_digest"]
    entropy = given.Entropy(bytes.fromhex(own["entropy"]))
    return sealed_site.SealedSite(site, attempt, terms, np.array(codes).T, blocks, pairs, digest, entropy)


@pytest.mark.promise("A site written from the documents alone takes part in jobs beside real daemons.")
@pytest.mark.parametrize("site", SITES)
def test_a_site_written_from_the_documents_sends_the_same_bytes(site: str) -> None:
    own = independent(site)
    for known in SEALED["rounds"]:
        task = task_of(known, site)
        asked = {name: spec.shape[0] for name, spec in task.asked.items()}
        sent = own.answer(known["step"], known["round"], dict(task.arrays), asked)
        assert {name: content.hex() for name, content in sorted(sent.items())} == known["up"][site], known["step"]
    names = SEALED["sites"][site]["enrolled_pseudonyms"]
    key, hmac_16 = bytes.fromhex(SEALED["job_key"]), program("keys_and_masks").hmac_16
    rows = [names.index(hmac_16(key, id_.encode()).hex()) for id_ in SEALED["sites"][site]["ids"]]
    assert own.found[rows].tolist() == SEALED["results"][site]["labels"]
    for row, known in zip(own.memberships[rows].tolist(), SEALED["results"][site]["memberships"], strict=True):
        np.testing.assert_allclose(row, [np.nan] * own.k if known is None else known, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("mask", "box/east"),
        ("verify", "members/0/masked/north"),
        ("score", "all/share/east"),
        ("score", "model/beta"),
        ("finish", "members/1/digest/east"),
    ],
)
def test_both_refuse_what_was_changed_on_its_way(step: str, name: str) -> None:
    ours, theirs = program("make_sealed_job").parties()[0].sites["south"], independent("south")
    for known in SEALED["rounds"]:
        task = task_of(known, "south")
        asked = {asked: spec.shape[0] for asked, spec in task.asked.items()}
        if known["step"] != step:
            ours.answer(task)
            theirs.answer(step=known["step"], round_=known["round"], arrays=dict(task.arrays), asked=asked)
            continue
        changed = task.arrays[name].copy()
        changed[-1:] += 0.01 if name == "model/beta" else 1
        arrays = {**task.arrays, name: changed}
        with pytest.raises(MessageError):
            ours.answer(replace(task, arrays=arrays))
        with pytest.raises(program("keys_and_masks").CannotGoOn):
            theirs.answer(step, known["round"], arrays, asked)
        break
