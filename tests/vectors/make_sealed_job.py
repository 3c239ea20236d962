"""Makes sealed_job.json: a whole sealed job of three sites, every byte of every task and every answer.

    python tests/vectors/make_sealed_job.py

The job is run by ce itself, with keys and random bytes that are given. tests/unit/test_sealed_job.py lets each site
answer the tasks of the file again, and so does a site that was written from docs/protocol.md (tests/independent): both
must send the same bytes.

The labels were chosen so that a column is shared by all sites and another by two, one object has no label anywhere, and
one site has objects of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from given_keys import AES_ENTROPY, Entropy, given_pair_keys, public_key

from ce.job import Job
from ce.labels import LabelTable
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import add_answer
from ce.protocol.engine.starting_parameters import job_key
from ce.protocol.local_alignment import LocalAlignment, align_tables
from ce.protocol.messages.task import Answer, Task, task_digest
from ce.protocol.sealed.opened_shares import opened_cells
from ce.protocol.sealed_run import SealedParties, sealed_parties
from ce.protocol.topology.enrolment import by_pseudonym, with_tokens
from ce.protocol.topology.vocabularies import Wishes

PATH = Path(__file__).with_name("sealed_job.json")

ABOUT = (
    "A whole sealed job of ce, protocol version 4 (docs/protocol.md, 'Sealed'): three sites, nine objects. Bytes are "
    "hexadecimal. Arrays of bytes are their bytes; model/categories, model/weights and model/beta are their elements, "
    "row-major, separated by spaces, with the shape beside them; reals are the shortest decimals that give the same "
    "double. rounds[].down are the arrays of the tasks, with the sites that get them; rounds[].up are those of the "
    "answers, by site; exactly these were asked for. " + AES_ENTROPY + " Everything is exact, but the model, which "
    "another machine may fit with other last bits; from the model that stands here all further bytes follow."
)

SITES = ("east", "north", "south")
LABELS: dict[str, dict[str, Any]] = {
    "east": {
        "ids": ["u1", "u2", "u3", "u4", "u5", "u6", "u7"],
        "columns": {
            "age": ["mid", "young", "mid", None, "young", None, "mid"],
            "visits": [None, 1, 2, 2, 1, None, 2],
        },
    },
    "north": {
        "ids": ["u1", "u2", "u3", "u8", "u9"],
        "columns": {
            "age": ["mid", "young", "old", "mid", "young"],
            "rank": [0, 1, 0, 0, 1],
            "visits": [2, None, None, 2, 1],
        },
    },
    "south": {
        "ids": ["u1", "u2", "u3", "u4", "u5", "u6"],
        "columns": {
            "shape": ["x", "y", "x", "x", "y", None],
            "visits": [2, 1, 2, 2, None, None],
        },
    },
}
SECRETS = {site: hashlib.sha256(f"sealed job {site}".encode()).digest() for site in SITES}
PRIVATE_KEYS = {site: hashlib.sha256(f"ephemeral key of {site}".encode()).digest() for site in SITES}
ENTROPY = {site: hashlib.sha256(f"entropy of {site}".encode()).digest() for site in SITES}
JOB = Job(name="tiny-sealed", model="pairs", clusters=2, sites=SITES, epsilon=20.0)
ATTEMPT = Attempt(JOB.name, JOB.definition(), 1, SITES)
JOB_KEY = job_key(SECRETS[SITES[0]], JOB.disclosure_digest)

#: By site: the tasks and the answers of one round.
Round = tuple[dict[str, Task], dict[str, Answer]]


def tables() -> dict[str, LabelTable]:
    """As the daemons use them: objects in the order of their pseudonyms."""
    found = {}
    for site, held in LABELS.items():
        labels = np.array(list(held["columns"].values()), dtype=object).T
        table = LabelTable.from_arrays(labels, ids=held["ids"], columns=list(held["columns"]))
        found[site] = by_pseudonym(table, JOB_KEY)
    return found


def alignment() -> LocalAlignment:
    return align_tables(False, tables(), dict.fromkeys(SITES, Wishes()), JOB_KEY)


def parties() -> tuple[SealedParties, dict[str, Entropy]]:
    """All parties before the first round, and where the sites' random bytes come from."""
    named = {site: with_tokens(table, JOB_KEY) for site, table in tables().items()}
    entropy = {site: Entropy(ENTROPY[site]) for site in SITES}
    keys = given_pair_keys(ATTEMPT, PRIVATE_KEYS)
    with mock.patch("ce.protocol.sealed_run.local_pair_keys", return_value=keys):
        return sealed_parties(JOB, ATTEMPT, alignment(), named, entropy=entropy), entropy


# The file.


def sealed_job() -> dict[str, Any]:
    own, entropy = parties()
    rounds, coordinator = [], own.coordinator
    while coordinator.open_round is not None:
        tasks = coordinator.tasks()
        answers = {site: own.sites[site].answer(task) for site, task in tasks.items()}
        rounds.append(_round(tasks, answers, {site: entropy[site].taken() for site in SITES}))
        for site, answer in answers.items():
            add_answer(coordinator, site, answer)
        coordinator.advance()
    aligned, terms = alignment(), coordinator.terms
    shares = next(entry["up"] for entry in rounds if entry["step"] == "release")
    cells = opened_cells(terms, {site: bytes.fromhex(shares[site][f"all/share/{site}"]) for site in SITES})
    assert terms.noise is not None
    return {
        "about": ABOUT,
        "definition": JOB.definition().decode(),
        "job_digest": ATTEMPT.job_digest.hex(),
        "epoch": ATTEMPT.epoch,
        "roster": list(SITES),
        "job_key": JOB_KEY.hex(),
        "enrolment_digest": aligned.enrolment_digest.hex(),
        "sites": {site: _site(site, aligned) for site in SITES},
        "columns": [{"name": c.name, "holders": list(c.holders), "categories": c.categories} for c in terms.columns],
        "sizes": vars(aligned.topology.sizes),
        "terms": {
            "variance": str(terms.noise.site_variance),
            "sd": repr(terms.sd),
            "rho": {site: repr(rho) for site, rho in terms.rho.items()},
            "bits": terms.ring.bits,
            "score_unit": terms.score_unit,
            "digest": terms.digest.hex(),
        },
        "opened_cells": cells.tolist(),
        "results": {site: _results(own, site) for site in SITES},
        "rounds": rounds,
    }


def _site(site: str, aligned: LocalAlignment) -> dict[str, Any]:
    view, summaries, rows = aligned.of(site)
    return {
        "ids": LABELS[site]["ids"],
        "labels": LABELS[site]["columns"],
        "private_key": PRIVATE_KEYS[site].hex(),
        "public_key": public_key(PRIVATE_KEYS[site]).hex(),
        "entropy": ENTROPY[site].hex(),
        "enrolled_pseudonyms": [token.tobytes().hex() for token in aligned.enrolments[site].objects],
        "summary": summaries[site].signed_bytes().hex(),
        "private_objects": summaries[site].private_objects,
        "blocks": [
            {"index": b.index, "members": list(b.members), "size": b.size, "rows": rows[b.index].tolist()}
            for b in view.blocks.values()
        ],
        "columns": [
            {"index": c.index, "name": c.name, "holders": list(c.holders), "categories": list(c.categories)}
            for c in view.columns
        ],
    }


def _round(tasks: Mapping[str, Task], answers: Mapping[str, Answer], drawn: Mapping[str, list[str]]) -> dict[str, Any]:
    down: list[dict[str, Any]] = []
    for site in SITES:
        for name, array in sorted(tasks[site].arrays.items()):
            written = {"name": name, **_written(array)}
            entry = next((e for e in down if {**e, "to": 0} == {**written, "to": 0}), None)
            if entry is None:
                down.append(entry := {**written, "to": []})
            entry["to"].append(site)
    return {
        "round": tasks[SITES[0]].round,
        "step": tasks[SITES[0]].step,
        "down": down,
        "up": {s: {n: array.tobytes().hex() for n, array in sorted(answers[s].arrays.items())} for s in SITES},
        "drawn": drawn,
        "digests": {s: task_digest(ATTEMPT.job_digest, ATTEMPT.epoch, t, t.hashes).hex() for s, t in tasks.items()},
    }


def _written(array: Any) -> dict[str, Any]:
    if array.dtype == np.uint8:
        return {"bytes": array.tobytes().hex()}
    return {"shape": list(array.shape), "elements": " ".join(repr(value) for value in array.reshape(-1).tolist())}


def _results(own: SealedParties, site: str) -> dict[str, Any]:
    """In the order of the label file; memberships of objects that this site alone holds."""
    found = own.sites[site].result
    assert found is not None
    order = {name: at for at, name in enumerate(tables()[site].ids.tolist())}
    rows = [order[name] for name in LABELS[site]["ids"]]
    memberships = [None if np.isnan(found.memberships[row, 0]) else found.memberships[row].tolist() for row in rows]
    return {"labels": found.labels[rows].tolist(), "memberships": memberships}


def text(made: Mapping[str, Any]) -> str:
    """One line per round, so that a difference can be read."""
    rest = {key: value for key, value in made.items() if key != "rounds"}
    lines = ",\n".join("  " + json.dumps(entry) for entry in made["rounds"])
    return json.dumps(rest, indent=1)[:-2] + f',\n "rounds": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    PATH.write_text(text(sealed_job()), encoding="ascii")
