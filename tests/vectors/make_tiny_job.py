"""Makes tiny_job.json: a whole job of three sites, every task and every answer, for other implementations of a site.

    python tests/vectors/make_tiny_job.py

The job is run by ce itself, in `plain`, and one round is masked with given keys. tests/vectors/check_tiny_job.py
computes the same a second time from docs/site-computation.md and docs/protocol.md, without ce;
tests/unit/test_tiny_job.py holds both against the file.

Labels and secrets were chosen so that the hold of alpha ends in different rounds, one start takes steps back (retry),
both stop in different rounds, and the winner is the one that stopped first. No start is dropped: of two starts the one
that stays would then be the winner and the last one, and to a site a dropped start is one more in `stop`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from given_keys import given_pair_keys, public_key

from ce.job import Job
from ce.labels import LabelTable
from ce.models.registry import model_of
from ce.privacy.derivation import derive, expand, extract
from ce.protocol.attempt import Attempt
from ce.protocol.engine.starting_parameters import SecretStarts, job_key
from ce.protocol.keys.handshake import key_commitment
from ce.protocol.local_run import Run, run
from ce.protocol.messages.task import Answer, Task, task_digest
from ce.protocol.messages.transport import InMemory, Transport
from ce.protocol.modes.mask_context import MaskBinding, object_digests, view_digest
from ce.protocol.topology.enrolment import Enrolment, EnrolmentSummary, by_pseudonym, enrol, enrolment_digest
from ce.protocol.topology.topology import Rows, Topology, align

PATH = Path(__file__).with_name("tiny_job.json")

ABOUT = (
    "A whole job of ce, model bce, protocol version 4 (docs/protocol.md, docs/site-computation.md): three sites, three "
    "objects each. Bytes are hexadecimal. Arrays are texts: their elements, row-major, separated by spaces, with the "
    "shape beside them; reals are the shortest decimals that give the same double, words are signed 64-bit integers. "
    "rounds[].down are the arrays of the tasks, with the sites that get them; rounds[].up are the answers of each site "
    "without masks. Every site is asked for exactly the arrays of `up` that have its words, with this shape and these "
    "fraction bits. Reals and words of other implementations agree to 1e-9 of the value that they stand for; counts, "
    "names, keys, digests and masks are exact (digests and masks for the elements that stand here)."
)

SITES = ("east", "north", "south")
LABELS: dict[str, dict[str, Any]] = {
    "east": {
        "ids": ["u1", "u2", "u3"],
        "columns": {"age": ["young", "mid", "mid"], "visits": [None, 1, None]},
    },
    "north": {
        "ids": ["u1", "u4", "u5"],
        "columns": {"age": [None, "young", "mid"], "rank": [0, 1, 0]},
    },
    "south": {
        "ids": ["u1", "u2", "u6"],
        "columns": {"shape": ["x", "x", "y"], "visits": [2, None, 2]},
    },
}
SECRETS = {site: hashlib.sha256(f"tiny job 2 {site}".encode()).digest() for site in SITES}
PRIVATE_KEYS = {site: hashlib.sha256(f"ephemeral key of {site}".encode()).digest() for site in SITES}
JOB = Job(name="tiny", clusters=2, restarts=2, sites=SITES, local_loops=2, max_iterations=75, tolerance=1e-4)
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


def play() -> tuple[list[Round], Run]:
    """The job in `plain`, and all that was sent."""
    rounds: list[Round] = []

    class Recording(InMemory):
        def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
            answers = dict(super().exchange(tasks))
            rounds.append((dict(tasks), answers))
            yield from answers.items()

    @contextmanager
    def recording(handlers: Mapping[str, Callable[[Task], Answer]]) -> Iterator[Transport]:
        yield Recording(handlers)

    held = tables()
    model, _ = model_of(JOB, list(held.values()))
    starts = {site: SecretStarts.of(SECRETS[site], JOB_KEY, JOB.disclosure_digest) for site in SITES}
    finished = run(model, held, starts, job_key=JOB_KEY, privacy="plain", transport_to=recording)
    return rounds, finished


def masks_of(
    site: str, enrolments: Mapping[str, Enrolment], topology: Topology, rows: Mapping[str, Any]
) -> MaskBinding:
    """The masks of a site, with ephemeral keys that are given."""
    private = dict.fromkeys(SITES, 0) | {b.members[0]: b.size for b in topology.blocks if not b.shared}
    digest = enrolment_digest({name: summary(name, enrolments[name]) for name in SITES}, private)
    objects = object_digests(enrolments[site].objects, rows[site])
    return MaskBinding(ATTEMPT, site, topology.view(site), objects, pair_keys(site), digest)


def summary(site: str, enrolment: Enrolment) -> EnrolmentSummary:
    """What a site signs; the salt is any 16 bytes."""
    return enrolment.summary(0, site[:1].encode() * 16, key_commitment(ATTEMPT, JOB_KEY))


def pair_keys(site: str) -> dict[str, bytes]:
    return given_pair_keys(ATTEMPT, PRIVATE_KEYS)[site]


# The file.


def tiny_job() -> dict[str, Any]:
    rounds, finished = play()
    enrolments = {site: enrol(table, False, JOB_KEY) for site, table in tables().items()}
    topology, rows = align(enrolments)
    return {
        "about": ABOUT,
        "definition": JOB.definition().decode(),
        "job_digest": ATTEMPT.job_digest.hex(),
        "epoch": ATTEMPT.epoch,
        "roster": list(SITES),
        "job_key": JOB_KEY.hex(),
        "sites": {site: _site(site, enrolments[site], topology, rows[site]) for site in SITES},
        "sizes": vars(topology.sizes),
        "needs_two_exchanges": topology.needs_two_exchanges,
        "shared_by_all": topology.shared_by_all,
        "rounds": [_round(*sent) for sent in rounds],
        "winner": finished.outcome.winner,
        "results": {site: _results(finished, site) for site in SITES},
        "masked": _masked(rounds, enrolments, topology, rows),
    }


def _site(site: str, enrolment: Enrolment, topology: Topology, rows: Mapping[int, Rows]) -> dict[str, Any]:
    view = topology.view(site)
    return {
        "secret": SECRETS[site].hex(),
        "ids": LABELS[site]["ids"],
        "labels": LABELS[site]["columns"],
        "enrolled_pseudonyms": [token.tobytes().hex() for token in enrolment.objects],
        "enrolled_columns": {claim.name: [str(token) for token in claim.categories] for claim in enrolment.columns},
        "summary": summary(site, enrolment).signed_bytes().hex(),
        "blocks": [
            {"index": b.index, "members": list(b.members), "size": b.size, "rows": rows[b.index].tolist()}
            for b in view.blocks.values()
        ],
        "columns": [
            {"index": c.index, "name": c.name, "holders": list(c.holders), "categories": list(c.categories)}
            for c in view.columns
        ],
    }


def _round(tasks: Mapping[str, Task], answers: Mapping[str, Answer]) -> dict[str, Any]:
    first = tasks[SITES[0]]
    down: dict[str, Any] = {}
    up: dict[str, Any] = {}
    for site in SITES:
        for name, array in tasks[site].arrays.items():
            entry = down.setdefault(name, {"shape": list(array.shape), "reals": _reals(array), "to": []})
            entry["to"].append(site)
        for name, (shape, bits, _) in tasks[site].asked.items():
            entry = up.setdefault(name, {"shape": list(shape), "fraction_bits": bits, "words": {}})
            entry["words"][site] = _words(answers[site].arrays[name])
    header = {key: getattr(first, key) for key in ("round", "step", "stage", "iteration")}
    lists = {key: list(getattr(first, key)) for key in ("starts", "retry", "stop")}
    digests = {site: task_digest(ATTEMPT.job_digest, ATTEMPT.epoch, t, t.hashes).hex() for site, t in tasks.items()}
    return {**header, **lists, "down": dict(sorted(down.items())), "up": dict(sorted(up.items())), "digests": digests}


def _results(finished: Run, site: str) -> dict[str, Any]:
    """In the order of the label file."""
    order = {own: at for at, own in enumerate(tables()[site].ids.tolist())}
    memberships = finished.sites[site].memberships()[[order[own] for own in LABELS[site]["ids"]]]
    return {"shape": list(memberships.shape), "memberships": _reals(memberships)}


def _masked(
    rounds: list[Round], enrolments: Mapping[str, Enrolment], topology: Topology, rows: Mapping[str, Any]
) -> dict[str, Any]:
    """The first round that takes a step back, as the sites send it in `masked`."""
    tasks, answers = next((tasks, answers) for tasks, answers in rounds if tasks[SITES[0]].retry)
    words: dict[str, dict[str, str]] = {}
    contexts: dict[str, str] = {}
    for site in SITES:
        binding = masks_of(site, enrolments, topology, rows)
        digest = view_digest(tasks[site])
        sent = binding.mask(answers[site], digest)
        words[site] = {str(name): _words(array) for name, array in sorted(sent.arrays.items())}
        if site == SITES[0]:
            found = binding._pair_contexts(binding._made, answers[site].round, digest)
            contexts = {peer: context.hex() for peer, context in sorted(found.items())}
            attempt = binding._attempt.hex()
            blocks = {peer: binding._blocks_of(peer) for peer in SITES[1:]}
    keys = pair_keys(SITES[0])
    mask_keys = {peer: derive(keys[peer], b"ce blocks 1", blocks[peer]) for peer in SITES[1:]}
    streams = {
        peer: expand(extract(mask_keys[peer]), b"ce mask 2", bytes.fromhex(context)).hex()
        for peer, context in contexts.items()
    }
    return {
        "round": tasks[SITES[0]].round,
        "private_keys": {site: key.hex() for site, key in PRIVATE_KEYS.items()},
        "public_keys": {site: public_key(key).hex() for site, key in PRIVATE_KEYS.items()},
        "attempt": attempt,
        "words": words,
        "of_east": {
            "pair_keys": {peer: key.hex() for peer, key in keys.items()},
            "mask_keys": {peer: key.hex() for peer, key in mask_keys.items()},
            "contexts": contexts,
            "stream_keys": streams,
        },
    }


def _reals(array: Any) -> str:
    return " ".join(repr(value) for value in array.reshape(-1).tolist())


def _words(array: Any) -> str:
    return " ".join(str(value) for value in array.reshape(-1).tolist())


def text(made: Mapping[str, Any]) -> str:
    """One line per round, so that a difference can be read."""
    rest = {key: value for key, value in made.items() if key != "rounds"}
    lines = ",\n".join("  " + json.dumps(entry) for entry in made["rounds"])
    return json.dumps(rest, indent=1)[:-2] + f',\n "rounds": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    PATH.write_text(text(tiny_job()), encoding="ascii")
