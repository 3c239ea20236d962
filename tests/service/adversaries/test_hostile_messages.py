"""What a site with a valid certificate may send, and when: nothing takes the coordinator down or wedges a job.

Whole jobs without sockets, in any order of delivery, with one site that lies, repeats itself, loses its stream or its
memory at any moment; the same for a coordinator that lies to a site; then a real coordinator, with what only a real
stream can bring.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest import mock

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hostile_frames import SITES, TOGETHER, WHAT, WITHOUT, BusyJobs, Scene, Trouble, cause, job_of, sign
from support.mutations import MARK, damaged, mutated
from support.problems import deal, problem, ragged
from support.processes import PATIENCE_S, Deployment

from ce.errors import LimitReached, MessageError, Unreachable
from ce.identity.names import COORDINATOR_SERVER_NAME
from ce.models import BC3E, BCE, Mixture
from ce.privacy.pair_keys import EphemeralKey
from ce.protocol.attempt import Attempt
from ce.protocol.keys.handshake import sign_key_share
from ce.protocol.messages.task import Task, array_hash, task_digest
from ce.protocol.topology.enrolment import ColumnSummary, EnrolmentSummary
from ce.service.checkpoints import MemoryCheckpoints
from ce.steps.model import Model, Sizes, fits_the_ring
from ce.transport import array_chunks as chunks
from ce.transport.array_chunks import Collector
from ce.transport.call_errors import LOST
from ce.transport.frames import PROTOCOL, TaskReader, task_frames, task_header
from ce.transport.tls import TlsCredentials
from ce_client.attempt.attempt import SiteAttempt
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger
from ce_coordinator.core.events import FrameReceived, SiteConnected
from ce_coordinator.core.letter_relay import LetterRelay
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.machine import Machine
from ce_coordinator.service.runner import Runner
from ce_coordinator.store.memory import MemoryStore
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

LIAR = "west"
#: "field: what is wrong with it", perhaps after the name of the site.
NAMES_A_FIELD = re.compile(r"(\w+: )?[\w/ ]+: [\w ,'/:_();-]+")


@pytest.fixture(scope="module", name="scene")
def _scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene.set_up(tmp_path_factory.mktemp("scene"))


def hold_back(table: BusyJobs, site: str, kind: str, at_least: int = 0) -> pb.SiteFrame:
    """Go on until the site sends a frame of this kind (an answer: of this round or a later one), and take it away."""
    while True:
        for entry in table.up:
            frame = pb.SiteFrame.FromString(entry[1])
            early = kind == "answer" and frame.answer.round < at_least
            if table._sessions[entry[0]] == site and frame.WhichOneof("frame") == kind and not early:
                table.up.remove(entry)
                return frame
        assert table.step()


# One lie at a time. Each changes the frame that the site would now send.

Lie = Callable[[pb.SiteFrame, SiteFiles], Any]


def first_part(frame: pb.SiteFrame) -> arrays_pb2.ArrayChunk:
    return getattr(frame, str(frame.WhichOneof("frame"))).chunks.chunks[0]  # type: ignore[no-any-return]


def signed(change: Callable[[pb.Enrolment], Any]) -> Lie:
    def lie(frame: pb.SiteFrame, own: SiteFiles) -> None:
        change(frame.enrolment)
        sign(frame.enrolment, own)

    return lie


def with_key(key: bytes, certificate: Callable[[bytes], bytes] = bytes) -> Lie:
    """A key share that is well signed, whatever is in it."""

    def lie(frame: pb.SiteFrame, own: SiteFiles) -> None:
        ephemeral = EphemeralKey()
        ephemeral.public = key
        attempt = Attempt(TOGETHER.name, TOGETHER.definition(), 1, SITES)
        share = sign_key_share(attempt, LIAR, ephemeral, own.key, certificate(own.certificate_der))
        frame.key_share.public_key, frame.key_share.certificate = share.public_key, share.certificate
        frame.key_share.signature = share.signature

    return lie


def instead(**frame: Any) -> Lie:
    return lambda old, _: old.CopyFrom(pb.SiteFrame(**frame))


def changed(name: str, value: Any) -> Lie:
    """Another value of a field of whatever the frame holds."""
    return lambda frame, _: setattr(getattr(frame, str(frame.WhichOneof("frame"))), name, value)


def part_changed(name: str, value: Any) -> Lie:
    def lie(frame: pb.SiteFrame, _: SiteFiles) -> None:
        if isinstance(value, tuple):
            first_part(frame).ClearField(name)  # type: ignore[arg-type]
            getattr(first_part(frame), name).extend(value)
        else:
            setattr(first_part(frame), name, value)

    return lie


def twice(enrolment: pb.Enrolment) -> None:
    """The last object again."""
    part = enrolment.chunks.chunks[0]
    part.data = part.data[:-32] + part.data[-16:] * 2


def letters(change: Callable[[pb.Letters], Any]) -> Lie:
    def lie(frame: pb.SiteFrame, _: SiteFiles) -> None:
        change(frame.letters)

    return lie


def shorter(message: pb.Letters) -> None:
    """The first letter, without its last byte."""
    part = message.chunks.chunks[0]
    part.data, part.shape[0] = part.data[:-1], part.shape[0] - 1


def unlike_numbers(frame: pb.SiteFrame, _: SiteFiles) -> None:
    part = first_part(frame)
    part.name, part.type = MARK, arrays_pb2.ELEMENT_TYPE_FLOAT64
    del part.shape[:]
    part.data = np.full(2, np.nan).tobytes()
    part.shape.append(2)


JOB = {"job": TOGETHER.name, "epoch": 1}
REFUSED: dict[str, tuple[str, Lie, str]] = {
    # What: instead of which frame, how, and what is said.
    "nothing": ("key_share", instead(), "frame: empty"),
    "hello again": ("key_share", instead(hello=pb.Hello(site=LIAR, protocol=PROTOCOL, instance=bytes(16))), "hello"),
    "an epoch to come": ("key_share", changed("epoch", 2), "epoch: expected 1, got 2"),
    "a job of others": ("key_share", changed("job", WITHOUT[LIAR].name), "job: this site is not in it"),
    "no key": ("key_share", instead(key_share=pb.KeyShare(**JOB)), "key_share: expected a public_key of 32 bytes"),
    "a short key": ("key_share", with_key(b"k" * 31), "key_share: expected a public_key of 32 bytes"),
    "another key": ("key_share", changed("public_key", b"k" * 32), "key share of west: not a signature"),
    "no certificate": ("key_share", changed("certificate", b"no"), "certificate of west: not a certificate"),
    "a vast certificate": ("key_share", with_key(b"k" * 32, lambda der: der * 10), "a certificate of at most 4,096"),
    "no signature": ("key_share", changed("signature", b""), "key share of west: not a signature"),
    "keys too early": (
        "key_share",
        instead(encrypted_keys=pb.EncryptedKeys(**JOB)),
        "encrypted_keys: only from the first",
    ),
    "enrolment too early": ("key_share", instead(enrolment=pb.Enrolment(**JOB)), "enrolment: comes before the job key"),
    "ready too early": ("key_share", instead(ready=pb.Ready(**JOB)), "ready: comes before the sites are aligned"),
    "answer too early": ("key_share", instead(answer=pb.Answer(**JOB)), "answer: comes before the sites are aligned"),
    "more of nothing": ("key_share", instead(more=pb.More(**JOB)), "more: no enrolment is under way"),
    "keys of another than the first": (
        "enrolment",
        instead(encrypted_keys=pb.EncryptedKeys(**JOB)),
        "encrypted_keys: only from the first site by name",
    ),
    "a second key": ("enrolment", instead(key_share=pb.KeyShare(**JOB)), "key_share: differs from the one"),
    "no column": ("enrolment", signed(lambda e: e.ClearField("columns")), "columns: expected at least one"),
    "a column twice": (
        "enrolment",
        signed(lambda e: e.columns.add().CopyFrom(e.columns[0])),
        "expected different names",
    ),
    "a column without name": (
        "enrolment",
        signed(lambda e: setattr(e.columns[0], "name", "")),
        "columns: expected different names",
    ),
    "a column of no kind": (
        "enrolment",
        signed(lambda e: setattr(e.columns[0], "kind", 0)),
        "columns: expected a clustering or a classifier",
    ),
    "a classifier": ("enrolment", signed(lambda e: setattr(e.columns[0], "kind", 2)), "columns: a classifier in a"),
    "more labels than are shown": (
        "enrolment",
        signed(lambda e: setattr(e.columns[0], "labels", 4_000_000_000)),
        "columns: expected labels of at most 100, which stands for more, got 4,000,000,000",
    ),
    "no wish": ("enrolment", signed(lambda e: e.ClearField("min_sites")), "and min_sites 1 to 1,000, got 1 and 0"),
    "a vast wish": (
        "enrolment",
        signed(lambda e: setattr(e, "min_objects", 2**32 - 1)),
        "min_objects: expected 1 to 1,000,000",
    ),
    "a short salt": ("enrolment", signed(lambda e: setattr(e, "pseudonym_salt", b"x")), "expected a salt of 16 bytes"),
    "another salt": (
        "enrolment",
        lambda f, _: setattr(f.enrolment, "pseudonym_salt", bytes(16)),
        "pseudonym_digest: expected the digest of the salt and the pseudonyms",
    ),
    "letters too early": (
        "enrolment",
        instead(letters=pb.Letters(**JOB, stage=1)),
        "letters: comes before the sites are aligned",
    ),
    "letters of another stage": ("letters", letters(lambda m: setattr(m, "stage", 2)), "letters: expected stage 1"),
    "letters of another revision": (
        "letters",
        letters(lambda m: setattr(m, "revision", 1)),
        "letters: expected revision 0 and stage 1 or 2",
    ),
    "a letter less": ("letters", letters(lambda m: m.chunks.chunks.pop()), "is missing or incomplete"),
    "a short letter": ("letters", letters(shorter), "bytes, got shape"),
    "numbers of categories too early": (
        "letters",
        letters(lambda m: m.vocabularies.add(column="x", categories=1)),
        "vocabularies: expected, in the second stage",
    ),
    "an object twice": ("enrolment", signed(twice), "pseudonyms: two are equal"),
    "an object too many": (
        "enrolment",
        signed(lambda e: setattr(e, "objects", e.objects + 1)),
        "pseudonyms: expected 16 bytes for each of",
    ),
    "an object too few": ("enrolment", signed(lambda e: setattr(e, "objects", 1)), "pseudonyms: expected 16 bytes"),
    "pseudonyms of 8 bytes": ("enrolment", part_changed("shape", (1, 8)), "parts: a piece is longer"),
    "pseudonyms under another name": ("enrolment", part_changed("name", MARK), "expected the one array pseudonyms"),
    "pseudonyms that are no numbers": ("enrolment", unlike_numbers, "enrolment: expected the one array pseudonyms"),
    "vast pseudonyms": ("enrolment", part_changed("shape", (2**30, 16)), "parts: the message is larger than allowed"),
    "impossible pseudonyms": ("enrolment", part_changed("shape", (2**39, 2**39, 0)), "parts: a shape is too long"),
    "pseudonyms that have not begun": ("enrolment", part_changed("offset", 16), "parts: a piece is longer"),
    "another digest": ("enrolment", changed("pseudonym_digest", bytes(32)), "pseudonym_digest: expected the digest"),
    "another's signature": ("enrolment", changed("signature", b"x"), "enrolment of west: not a signature"),
    "an answer of a round to come": ("answer", changed("round", 99), "round: expected at most 3, got 99"),
    "an answer of no step": ("answer", changed("step", 0), "step: unknown"),
    "an answer of another step": (
        "answer",
        changed("step", pb.STEP_FINISH),
        "west: expected an answer to round, step and starts",
    ),
    "an answer to another task": ("answer", changed("task_digest", bytes(32)), "task_digest: not that of the task"),
    "other starts": (
        "answer",
        lambda f, _: f.answer.starts.append(7),
        "west: expected an answer to round, step and starts",
    ),
    "starts in disorder": ("answer", lambda f, _: f.answer.starts.extend([2, 1]), "starts: not in increasing order"),
    "another array": ("answer", part_changed("name", MARK), "west: sends an array that was not asked for"),
    "an array without name": ("answer", part_changed("name", ""), "parts: a name is not 1 to 200"),
    "another shape": ("answer", part_changed("shape", (10**6,)), "expected words, shape"),
    "another type": ("answer", part_changed("type", 2), "expected words, shape"),
    "no type": ("answer", part_changed("type", 0), "parts: an unknown element type"),
    "another scale": ("answer", part_changed("fraction_bits", 1), "expected words, shape"),
    "an impossible scale": ("answer", part_changed("fraction_bits", 63), "parts: more than 62 fractional bits"),
    "half a number": ("answer", part_changed("offset", 4), "parts: a piece is not whole elements"),
    "a gap": ("answer", part_changed("offset", 8), "parts: a piece is longer than its array"),
    "no arrays": ("answer", lambda f, _: f.answer.chunks.ClearField("chunks"), "is missing or incomplete"),
    "an array twice": (
        "answer",
        lambda f, _: f.answer.chunks.chunks.add().CopyFrom(f.answer.chunks.chunks[0]),
        "does not arrive in order",
    ),
    "an enrolment of nothing": (
        "answer",
        instead(enrolment=pb.Enrolment(**JOB, objects=1)),
        "columns: expected at least one",
    ),
    "more of no answer": ("answer", instead(more=pb.More(**JOB)), "more: no answer is under way"),
}


@pytest.mark.promise("Hostile frames and files never crash a daemon: they are refused by field.")
@pytest.mark.parametrize(("kind", "lie", "says"), REFUSED.values(), ids=REFUSED)
def test_one_wrong_message_is_refused_by_field_and_the_job_goes_on_as_if_it_had_not_been(
    scene: Scene, kind: str, lie: Lie, says: str
) -> None:
    table = scene.begin(Random(1), TOGETHER, WITHOUT[LIAR])
    frame = hold_back(table, LIAR, kind, at_least=3)
    lie(frame, table.sites[LIAR].site_files)
    table.send(LIAR, frame)
    ((site, said),) = table.closed
    assert site == LIAR
    assert says in said
    check_notes(table)
    assert [note for note in table.notes if note.event == "message refused"]
    check_rest(table, moving=True)
    table.global_step()
    for job in (TOGETHER, WITHOUT[LIAR]):
        assert scene.results(table, job) == scene.bits[job.name]
        assert table.machine.records[job.name].epoch == 1


def other_kind(frame: pb.SiteFrame, own: SiteFiles) -> None:
    for claim in frame.enrolment.columns:
        claim.soft = not claim.soft
    sign(frame.enrolment, own)


FAILS: dict[str, tuple[str, Lie, str, int]] = {
    "a certificate of another": (
        "key_share",
        lambda f, own: setattr(f.key_share, "certificate", SiteFiles.open(_others_settings(own)).certificate_der),
        "the certificate shown for west is that of site south",
        6,
    ),
    "no objects": ("enrolment", signed(lambda e: setattr(e, "objects", 0)), "west enrols 0 objects", 3),
    "too many objects": ("enrolment", signed(lambda e: setattr(e, "objects", 10**9)), "limits.objects_per_site", 3),
    "too many columns": (
        "enrolment",
        signed(lambda e: [e.columns.add(name=f"more{at}", kind=1) for at in range(20)]),
        "west enrols more columns than limits.columns_per_site",
        3,
    ),
    "too many categories": (
        "enrolment",
        signed(lambda e: setattr(e.columns[0], "category_count", 31)),
        "limits.categories_per_column",
        3,
    ),
    "another kind of column": ("enrolment", other_kind, "differs in its labels", 6),
    "more labelled objects than there are": (
        "answer",
        lambda f, _: [
            setattr(part, "data", np.array([2**62]).tobytes())
            for part in f.answer.chunks.chunks
            if part.name == "global/objects"
        ],
        "the total of global/objects breaks the law '0 <= objects <= all objects'",
        7,
    ),
    "a refusal": (
        "answer",
        instead(refusal=pb.Refusal(**JOB, exit_code=6, rule="max_rounds", sentence="enough")),
        "west: enough",
        6,
    ),
    "an odd refusal": (
        "answer",
        instead(refusal=pb.Refusal(**JOB, exit_code=99, rule="a\nb" * 99, sentence="\x1b[2J\n" + "x" * 5000)),
        "west:  [2J xxx",
        7,
    ),
}


def _others_settings(own: SiteFiles) -> Any:
    path = own.settings.key.parent.parent / "south" / "client.toml"
    return type(own.settings).read(path)


@pytest.mark.promise("A site that misbehaves harms its own jobs only.")
@pytest.mark.parametrize(("kind", "lie", "says", "code"), FAILS.values(), ids=FAILS)
def test_what_a_site_must_not_claim_fails_the_job_by_name_and_no_other(
    scene: Scene, kind: str, lie: Lie, says: str, code: int
) -> None:
    limits = Limits(columns_per_site=20, categories_per_column=30, objects_per_site=10**6)
    table = scene.begin(Random(2), TOGETHER, WITHOUT[LIAR], limits=limits)
    frame = hold_back(table, LIAR, kind)
    lie(frame, table.sites[LIAR].site_files)
    table.send(LIAR, frame)
    table.global_step()
    record = table.machine.records[TOGETHER.name]
    assert (record.state, record.exit_code) == ("failed", code)
    assert says in record.reason
    assert record.reason.isprintable()
    assert record.rule.isprintable()
    assert len(record.reason) < 1100
    assert len(record.rule) <= 100
    assert all(TOGETHER.name not in played_site.site_attempts for played_site in table.sites.values())
    assert scene.results(table, WITHOUT[LIAR]) == scene.bits[WITHOUT[LIAR].name]


@pytest.mark.promise("Lost, repeated and late frames, broken and stalled streams change no bit.")
@pytest.mark.parametrize("kind", ["key_share", "encrypted_keys", "enrolment", "ready", "answer"])
def test_what_is_said_twice_or_was_on_its_way_too_long_changes_nothing(scene: Scene, kind: str) -> None:
    site = min(SITES) if kind == "encrypted_keys" else LIAR
    table = scene.begin(Random(3), TOGETHER)
    frame = hold_back(table, site, kind)
    late = pb.SiteFrame.FromString(frame.SerializeToString())
    getattr(late, kind).epoch = 0
    for again in (late, frame, frame, frame):
        table.send(site, again)
    table.run()
    assert table.closed == []
    assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]


def test_the_third_wrong_message_fails_the_job(scene: Scene) -> None:
    table = scene.begin(Random(4), TOGETHER)
    for _ in range(2):
        table.send(LIAR, pb.SiteFrame(more=pb.More(**JOB)))
        assert table.sites[LIAR].session is None
        table.connect(LIAR)
    assert table.machine.records[TOGETHER.name].state == "enrolling"
    table.send(LIAR, pb.SiteFrame(more=pb.More(**JOB)))
    record = table.machine.records[TOGETHER.name]
    assert (record.state, record.exit_code) == ("failed", 7)
    assert record.reason == "west: more: no enrolment is under way (3 times)"


def test_what_was_on_its_way_when_a_stream_was_cut_off_is_not_held_against_the_site(scene: Scene) -> None:
    """The rest of a refused message, for one: gRPC may hand it over before the site hears of the end."""
    table = scene.begin(Random(5), TOGETHER)
    session = table.sites[LIAR].session
    assert session is not None
    wrong = pb.SiteFrame(more=pb.More(**JOB))
    first = table.machine.received(session, wrong, table.now)
    for _ in range(5):
        assert table.machine.received(session, wrong, table.now) == []
    table.do(first)
    table.global_step()
    assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]


def test_what_is_left_out_when_the_rounds_have_begun_is_refused_and_changes_nothing(scene: Scene) -> None:
    table = scene.begin(Random(11), TOGETHER)
    answer = hold_back(table, LIAR, "answer", at_least=3)
    enrolled = (f for f in map(pb.SiteFrame.FromString, table.sent[LIAR]) if f.WhichOneof("frame") == "enrolment")
    fewer = next(enrolled)
    fewer.enrolment.revision = 1
    del fewer.enrolment.columns[0]
    sign(fewer.enrolment, table.sites[LIAR].site_files)
    table.send(LIAR, fewer)
    assert table.closed == [(LIAR, "enrolment: the rounds have begun")]
    table.send(LIAR, answer)
    table.global_step()
    assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]
    assert table.machine.records[TOGETHER.name].epoch == 1


def test_what_is_left_out_when_all_have_answered_the_alignment_is_refused_and_changes_nothing(scene: Scene) -> None:
    """The coordinator computes the first round, and would align the sites again meanwhile."""
    table = scene.begin(Random(12), TOGETHER)
    while not (table.work and (attempt := table.machine.runs[TOGETHER.name].attempt) and attempt.rounds):
        assert table.step()
    enrolled = (f for f in map(pb.SiteFrame.FromString, table.sent[LIAR]) if f.WhichOneof("frame") == "enrolment")
    fewer = next(enrolled)
    fewer.enrolment.revision = 1
    del fewer.enrolment.columns[0]
    sign(fewer.enrolment, table.sites[LIAR].site_files)
    table.send(LIAR, fewer)
    assert table.closed == [(LIAR, "enrolment: all sites have answered this round already")]
    table.global_step()
    assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]
    assert table.machine.records[TOGETHER.name].epoch == 1


def test_an_enrolment_that_comes_again_while_the_sites_are_aligned_does_not_align_them_again(scene: Scene) -> None:
    table = scene.begin(Random(6), TOGETHER)
    while not table.work:
        assert table.step()
    (enrolment,) = (
        frame for frame in map(pb.SiteFrame.FromString, table.sent[LIAR]) if frame.WhichOneof("frame") == "enrolment"
    )
    table.send(LIAR, enrolment)
    assert len(table.work) == 1
    table.run()
    assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]


def test_a_site_hears_nothing_of_jobs_that_it_is_not_in(scene: Scene) -> None:
    table = scene.begin(Random(7), TOGETHER, WITHOUT[LIAR])
    name = WITHOUT[LIAR].name
    table.do(table.machine.jobs.cancel(name, "olga", table.now))
    said = []
    for job in (name, "no such job"):
        table.down[LIAR].clear()
        table.send(LIAR, pb.SiteFrame(ready=pb.Ready(job=job, epoch=1)))
        said.append(pb.CoordinatorFrame.FromString(table.down[LIAR].pop()).ended)
    assert said[0].reason == said[1].reason == "the coordinator does not know this job"
    assert table.greet(LIAR, pb.Hello(site=LIAR, protocol=PROTOCOL, instance=bytes(16), held=[pb.Held(job=name)]))
    ended = [pb.CoordinatorFrame.FromString(frame).ended for frame in table.down[LIAR]]
    assert [e.reason for e in ended if e.job == name] == ["the coordinator does not know this job"]


@pytest.mark.parametrize(
    "hello",
    [
        pb.Hello(site="south", protocol=PROTOCOL, instance=bytes(16)),
        pb.Hello(site=LIAR, protocol=0, instance=bytes(16)),
        pb.Hello(site=LIAR, protocol=PROTOCOL + 1, instance=bytes(16)),
        pb.Hello(site=LIAR, protocol=PROTOCOL),
        pb.Hello(site=LIAR, protocol=PROTOCOL, instance=bytes(17)),
        pb.Hello(site=LIAR, protocol=PROTOCOL, instance=bytes(16), held=[pb.Held()] * 10_001),
    ],
)
def test_a_hello_that_is_refused_leaves_the_older_stream_as_it_is(scene: Scene, hello: pb.Hello) -> None:
    table = scene.begin(Random(8), TOGETHER)
    for _ in range(12):
        table.step()
    assert not table.greet(LIAR, hello)
    table.run()
    assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
@pytest.mark.parametrize(
    ("kind", "on_dropout"), [("key_share", "wait"), ("enrolment", "wait"), ("answer", "fail"), ("answer", "wait")]
)
def test_a_site_that_stays_away_is_waited_for_until_the_deadline(scene: Scene, kind: str, on_dropout: str) -> None:
    job = job_of("waits", *SITES, on_dropout=on_dropout, deadlines={"enrol_s": 60, "round_s": 10, "job_s": 500})
    table = scene.begin(Random(9), job)
    hold_back(table, LIAR, kind)
    table.lose(LIAR)
    table.run()
    run = table.machine.runs[job.name]
    assert run.awaited == {LIAR}
    begin = table.now
    table.now = table.machine.next_deadline or 0.0
    assert table.now - begin == {"wait": 500, "fail": 10}[on_dropout] if kind == "answer" else 60
    table.do(table.machine.jobs.tick(table.now - 0.1))
    assert not table.machine.records[job.name].ended
    table.do(table.machine.jobs.tick(table.now))
    record = table.machine.records[job.name]
    assert (record.state, record.exit_code) == ("failed", 7)
    assert LIAR in record.reason
    assert not table.machine.runs


# Many lies, in any order.


def check_rest(table: BusyJobs, moving: bool = False) -> None:
    """Every job is over, or waits for sites that are in it."""
    for run in table.machine.runs.values():
        assert run.awaited or moving
        assert run.awaited <= set(run.roster)
        assert run.deadline < float("inf")


def check_notes(table: BusyJobs) -> None:
    """What is said of a refused message names a field, and repeats nothing of it."""
    for note in table.notes:
        assert all(str(value).isprintable() for value in note.fields.values())
        # A refusal's own words are meant for a person.
        assert MARK not in str(note.fields) or note.event in ("site refuses job", "job failed")
        if note.event == "message refused":
            assert NAMES_A_FIELD.fullmatch(str(note.fields["reason"])), note
    for _, error in table.closed:
        assert MARK not in error


TROUBLES = st.lists(
    st.builds(Trouble, st.integers(0, 110), st.sampled_from(WHAT), st.integers(0, 2**32 - 1)), min_size=1, max_size=8
)


@pytest.mark.promise("A site that misbehaves harms its own jobs only.")
@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.sampled_from(SITES), TROUBLES, st.integers(0, 2**32 - 1))
def test_nothing_that_a_site_sends_wedges_a_job_or_reaches_another(
    scene: Scene, liar: str, troubles: list[Trouble], seed: int
) -> None:
    other = WITHOUT[liar]
    table = scene.begin(Random(seed), TOGETHER, other)
    for moment in range(111):
        for trouble in troubles:
            if trouble.moment == moment:
                cause(scene, table, liar, trouble)
        if not table.step():
            check_rest(table)
    table.run()
    check_rest(table)
    # It behaves again: a stream like any other, and nothing but what its participants say.
    table.corrupting.clear()
    table.lose(liar)
    table.global_step()
    check_notes(table)
    assert scene.results(table, other) == scene.bits[other.name]
    assert table.machine.records[other.name].epoch == 1
    record = table.machine.records[TOGETHER.name]
    assert record.state in ("done", "failed")
    assert (record.state == "failed") == bool(record.reason)
    assert (record.exit_code in (3, 4, 5, 6, 7)) == (record.state == "failed")


# Streams and memories are lost.

LOSSES = st.lists(st.tuples(st.integers(0, 250), st.sampled_from(SITES), st.integers(0, 40)), min_size=1, max_size=5)


def play(
    scene: Scene, losses: list[tuple[int, str, int]], seed: int, lose: Callable[[BusyJobs, str], None]
) -> BusyJobs:
    """A job in which sites are lost at some moments, each to come back a while later; messages take many frames."""
    with mock.patch.object(chunks, "CHUNK", 256):
        table = scene.begin(Random(seed), TOGETHER)
        back = {(moment + pause, site) for moment, site, pause in losses}
        for moment in range(292):
            for at, site, _ in losses:
                if at == moment:
                    lose(table, site)
            for at, site in back:
                if at == moment and table.sites[site].session is None:
                    table.connect(site)
            table.step()
        table.global_step()
    assert table.closed == []
    return table


@pytest.mark.promise("Lost, repeated and late frames, broken and stalled streams change no bit.")
@settings(max_examples=30, deadline=None, derandomize=True)
@given(LOSSES, st.integers(0, 2**32 - 1))
def test_a_stream_lost_at_any_moment_changes_no_bit(
    scene: Scene, losses: list[tuple[int, str, int]], seed: int
) -> None:
    table = play(scene, losses, seed, BusyJobs.lose)
    assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]
    assert table.machine.records[TOGETHER.name].epoch == 1


@pytest.mark.promise("Lost, repeated and late frames, broken and stalled streams change no bit.")
@settings(max_examples=20, deadline=None, derandomize=True)
@given(LOSSES, st.integers(0, 2**32 - 1))
def test_a_memory_lost_at_any_moment_changes_no_bit(
    scene: Scene, losses: list[tuple[int, str, int]], seed: int
) -> None:
    table = play(scene, losses, seed, BusyJobs.forget)
    assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]
    assert 1 <= table.machine.records[TOGETHER.name].epoch <= 1 + len(losses)


def test_a_memory_lost_in_the_middle_is_a_new_epoch(scene: Scene) -> None:
    for kind in ("enrolment", "ready", "answer"):
        table = scene.begin(Random(10), TOGETHER)
        hold_back(table, LIAR, kind)
        table.forget(LIAR)
        table.global_step()
        assert scene.results(table, TOGETHER) == scene.bits[TOGETHER.name]
        assert table.machine.records[TOGETHER.name].epoch == 2


# More than a frame can hold.


def test_a_job_whose_enrolments_do_not_fit_in_a_frame_is_refused() -> None:
    attempt = Attempt("large", b"", 1, SITES)
    columns = tuple(ColumnSummary(f"{at:0200}", "clustering", False, None, 2) for at in range(5000))
    signed = {site: (EnrolmentSummary(4, columns, bytes(32)), b"signature") for site in SITES}
    with pytest.raises(LimitReached, match="does not fit in a message: fewer columns need less"):
        LetterRelay(attempt, signed, 0)


@pytest.mark.parametrize(
    "steps", [BCE(2).steps(), Mixture(2).steps(), BC3E(start="diffused").steps(2)], ids=["bce", "mixture", "bc3e"]
)
def test_a_job_whose_sums_do_not_fit_in_the_ring_is_known_before_it_runs(steps: Model) -> None:
    assert fits_the_ring(steps, Sizes(10**7, 1000, 100, 10**6))
    assert not fits_the_ring(steps, Sizes(2**50, 1000, 100, 10**6))


def test_a_site_with_more_categories_than_fit_in_a_frame_says_so(scene: Scene) -> None:
    table = scene.begin(Random(11), TOGETHER)
    with mock.patch("ce.transport.enrolment_codec.LARGEST_HEADER", 100):
        table.run()
    record = table.machine.records[TOGETHER.name]
    assert (record.state, record.exit_code) == ("failed", 3)
    assert "the labels of this site cannot be used; its log says why" in record.reason


# A coordinator that lies to a site.

JOB_DIGEST = hashlib.sha256(TOGETHER.definition()).digest()


def listen(scene: Scene, site: str, kind: str, rounds: int = 0) -> tuple[SiteAttempt, Any]:
    """A site's participant, and the message of this kind (a task: after so many answers) that it is about to hear."""
    table = scene.begin(Random(12), TOGETHER)
    while True:
        site_attempt = table.sites[site].site_attempts.get(TOGETHER.name)
        for data in list(table.down[site])[:1]:
            frame = pb.CoordinatorFrame.FromString(data)
            if frame.WhichOneof("frame") == kind and site_attempt and site_attempt.rounds_answered == rounds:
                return site_attempt, getattr(frame, kind)
        assert table.step()


def refusal(site_attempt: SiteAttempt, kind: str, message: Any) -> pb.Refusal:
    """What the site answers, and always answers from now on."""
    (frame,) = site_attempt.receive(kind, message)
    assert frame.WhichOneof("frame") == "refusal"
    for again in ("task", "more", "offer"):
        assert list(site_attempt.receive(again, pb.Task())) == [frame]
    return frame.refusal


ALIGNMENTS: dict[str, tuple[Callable[[pb.Alignment], Any], str]] = {
    "a block of others": (lambda a: a.blocks[0].members.remove(LIAR), "members of a block"),
    "a block with a stranger": (lambda a: a.blocks[0].members.append("zoe"), "members of a block"),
    "members in disorder": (lambda a: a.blocks[0].members.reverse(), "members of a block"),
    "a block twice": (lambda a: a.blocks.add().CopyFrom(a.blocks[0]), "two blocks are one"),
    "the same members twice": (
        lambda a: a.blocks.add(index=77, members=a.blocks[0].members, size=0),
        "two blocks are one",
    ),
    "another column": (lambda a: setattr(a.columns[0], "name", MARK), "a column that this site did not enrol"),
    "another kind": (lambda a: setattr(a.columns[0], "kind", 2), "a column that this site did not enrol"),
    "a column less": (lambda a: a.columns.pop(), "not all columns of this site"),
    "a column twice": (lambda a: a.columns.add().CopyFrom(a.columns[0]), "not all columns of this site"),
    "one number for two columns": (lambda a: setattr(a.columns[0], "index", a.columns[1].index), "have one number"),
    "holders without this site": (lambda a: a.columns[0].holders.remove(LIAR), "holders of a column"),
    "no categories": (lambda a: a.columns[0].ClearField("category_count"), "has another number of categories"),
    "vast categories": (lambda a: setattr(a.columns[0], "category_count", 2**32 - 1), "has another number of"),
    "fewer objects than this site's": (lambda a: setattr(a.sizes, "objects", 1), "sizes are not those of"),
    "fewer columns than this site's": (lambda a: setattr(a.sizes, "clusterings", 1), "sizes are not those of"),
    "sums that do not fit": (lambda a: setattr(a.sizes, "objects", 2**63), "sizes are not those of"),
    "no rows": (lambda a: a.chunks.ClearField("chunks"), "not one array of rows for each block"),
    "an array more": (lambda a: a.chunks.chunks.add(name=MARK, type=1, shape=[0]), "not one array of rows"),
    "rows of nobody": (
        lambda a: setattr(a.chunks.chunks[0], "data", b"\x7f" * len(a.chunks.chunks[0].data)),
        "rows are not positions",
    ),
    "one row for all": (
        lambda a: setattr(a.chunks.chunks[0], "data", bytes(len(a.chunks.chunks[0].data))),
        "not every object of this site",
    ),
    "a vast array": (lambda a: a.chunks.chunks.add(name="a", type=1, shape=[2**39]), "larger than allowed"),
}


@pytest.mark.parametrize(("lie", "says"), ALIGNMENTS.values(), ids=ALIGNMENTS)
def test_a_site_refuses_an_alignment_that_cannot_be(
    scene: Scene, lie: Callable[[pb.Alignment], Any], says: str
) -> None:
    site_attempt, alignment = listen(scene, LIAR, "alignment")
    # Big enough to lie about.
    assert alignment.chunks.chunks[0].shape[0] > 1
    lie(alignment)
    refused = refusal(site_attempt, "alignment", alignment)
    assert says in refused.sentence
    assert refused.exit_code == 7


@pytest.mark.parametrize(
    ("offer", "says"),
    [
        (pb.Offer(job="together", epoch=1, definition=b"{", roster=SITES), "definition: not a job"),
        (pb.Offer(job="together", epoch=1, definition=b"[" * 10_000, roster=SITES), "definition: not a job"),
        (pb.Offer(job="another", epoch=1, definition=TOGETHER.definition(), roster=SITES), "its name or roster"),
        (pb.Offer(job="together", epoch=1, definition=TOGETHER.definition(), roster=SITES[:2]), "its name or roster"),
        (
            pb.Offer(job="without-west", epoch=1, definition=WITHOUT[LIAR].definition(), roster=WITHOUT[LIAR].sites),
            "roster: this site is not in it",
        ),
    ],
)
def test_a_site_refuses_an_offer_that_cannot_be(scene: Scene, offer: pb.Offer, says: str) -> None:
    own = scene.sites[LIAR]
    site_attempt = SiteAttempt(offer, "table", SiteFiles.open(own), Ledger(own.state / LEDGER, LIAR))
    assert says in refusal(site_attempt, "offer", offer).sentence


TASKS: dict[str, tuple[int, dict[str, Any], str]] = {
    # What: after how many answers, the change, and what is said.
    "sums before the opening": (0, {"step": "sums"}, "step: expected open, got sums"),
    "the end before the opening": (0, {"step": "finish", "starts": (0,)}, "step: expected open, got finish"),
    "sums before the counts": (1, {"step": "sums", "starts": (0, 1)}, "step: expected counts, got sums"),
    "the counts again": (3, {"step": "counts"}, "step: expected sums or finish, got counts"),
    "the opening again": (3, {"step": "open"}, "step: expected sums or finish, got open"),
    "the end before the beginning": (2, {"step": "finish", "starts": (0,)}, "step: expected sums, got finish"),
    "a step of other models": (3, {"step": "columns"}, "step: expected sums or finish, got columns"),
    "clusterings without votes": (3, {"step": "clusterings_only", "starts": (0,)}, "finish, got clusterings_only"),
    "another stage": (3, {"stage": 1}, "stage: expected 0, got 1"),
    "not all starts": (2, {"starts": (0,)}, "asked: block/0/sums: expected shape (1, 2, 7)"),
    "more starts": (3, {"starts": (0, 1, 2)}, "asked: block/0/sums: expected shape (3, 2, 7)"),
    "another stop": (3, {"stop": (1,)}, "starts: expected (0, 1) to go on or stop, got (0, 1) and (1,)"),
    "back from nothing": (3, {"retry": (0,)}, "retry: the last step of this start cannot be taken back"),
    "no arrays": (1, {"arrays": None}, "block/0/labels: missing"),
    "other shapes": (
        2,
        {"arrays": {"global/alpha": np.ones((2, 9))}},
        "global/alpha: expected real numbers of shape (2, 2), got float64 of (2, 9)",
    ),
    "other types": (
        2,
        {"arrays": {"global/alpha": np.ones((2, 2), dtype=np.int64)}},
        "global/alpha: expected real numbers",
    ),
    "alpha learnt before any start may": (
        3,
        {"arrays": {"global/learning": np.array([0.0, 2.0])}},
        "globals: numbers that model steps cannot have reached in iteration 2",
    ),
    "two winners": (5, {"step": "finish", "starts": (0, 1)}, "starts: expected one winner of 2 starts, got 2"),
    "a lower round": (3, {"round": 1}, "task: of a round that was answered, and not the same"),
    "the same round with another task": (3, {"round": 3}, "task: of a round that was answered, and not the same"),
}


@pytest.mark.parametrize(("rounds", "change", "says"), TASKS.values(), ids=TASKS)
def test_a_site_refuses_a_task_out_of_turn_however_well_it_is_made(
    scene: Scene, rounds: int, change: dict[str, Any], says: str
) -> None:
    site_attempt, message = listen(scene, LIAR, "task", rounds)
    task = TaskReader(message, JOB_DIGEST, 2**30).feed(message.chunks)
    assert task is not None
    false = replace(task, **change)
    if "arrays" in change:  # others in the place of these, or none at all
        false = replace(task, arrays={} if change["arrays"] is None else {**task.arrays, **change["arrays"]})
    (frame,) = task_frames(TOGETHER.name, 1, false, digest_of(false))
    assert says in refusal(site_attempt, "task", frame.task).sentence


def digest_of(task: Task) -> bytes:
    return task_digest(JOB_DIGEST, 1, task, {name: array_hash(array) for name, array in task.arrays.items()})


def with_digest(message: pb.Task) -> None:
    """Whoever makes up a task can also make up its digest."""
    collector = Collector(2**20)
    try:
        task = task_header(message)
        if collector.feed(message.chunks):
            message.digest = digest_of(replace(task, arrays=collector.arrays))
    except MessageError:
        pass


@pytest.mark.promise("Hostile frames and files never crash a daemon: they are refused by field.")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(SITES), st.integers(0, 13), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3), st.data()
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers that were made up overflow; what comes of it is refused
def test_a_site_answers_whatever_it_is_told_or_refuses_it(
    scene: Scene, site: str, moment: int, seeds: list[int], data: st.DataObject
) -> None:
    table = scene.begin(Random(data.draw(st.integers(0, 1000))), TOGETHER)
    while len(table.heard[site]) < 2 + moment and table.step():
        pass
    site_attempt = table.sites[site].site_attempts.get(TOGETHER.name)
    if site_attempt is None:
        return
    for seed in seeds:
        rng = Random(seed)
        frame = pb.CoordinatorFrame.FromString(rng.choice(table.heard[site][1:][-3:]))
        false: Any = mutated(frame, rng, rng.randint(1, 2)) if rng.random() < 0.8 else damaged(frame, rng)
        kind = false and false.WhichOneof("frame")
        if not kind:
            continue
        message = getattr(false, kind)
        if kind == "task" and rng.random() < 0.8:
            with_digest(message)
        replies = list(site_attempt.receive(kind, message))
        if site_attempt.refusal is not None:
            (reply,) = replies
            assert reply.WhichOneof("frame") == "refusal"
            assert (reply.refusal.job, reply.refusal.epoch) == (TOGETHER.name, 1)
            assert reply.refusal.exit_code in (6, 7)
            assert "unexpected" not in reply.refusal.sentence
            assert ":" in reply.refusal.sentence or reply.refusal.rule
            assert list(site_attempt.receive(kind, message)) == replies
            break
        assert all(
            reply.WhichOneof("frame") in ("key_share", "encrypted_keys", "enrolment", "letters", "ready", "answer")
            for reply in replies
        )


# A real coordinator, and streams that are no site's daemon.


@pytest.mark.promise("A site that misbehaves harms its own jobs only.")
def test_a_site_that_never_reads_does_not_fill_the_coordinators_memory() -> None:
    async def ask_and_ask() -> BaseException:
        limits = Limits(messages_waiting=100)
        runner = Runner(Machine("hub", "test", limits, 1), MemoryStore(), MemoryCheckpoints())
        stream = runner.opened(1)
        hello = pb.Hello(site=LIAR, protocol=PROTOCOL, instance=bytes(16))
        runner.handle(SiteConnected(1, LIAR, "", hello))
        question = pb.SiteFrame(ready=pb.Ready(job="no such job", epoch=1))
        for _ in range(99):  # and the welcome
            runner.handle(FrameReceived(1, question))
        assert not stream.closed.done()
        runner.handle(FrameReceived(1, question))
        await runner.stop(Unreachable("the end"))
        return stream.closed.result()

    error = asyncio.run(ask_and_ask())
    assert isinstance(error, LimitReached)
    assert "limits.messages_waiting" in str(error)


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, TlsCredentials]]:
    """Two sites that work, and the credentials of a third that does as it likes."""
    deployment = Deployment(tmp_path_factory.mktemp("deployment"), SITES)
    credentials = SiteFiles.open(deployment.sites.pop(LIAR)).credentials
    pooled = problem(3, k=2, clusterings=5, missing=0.1, n=16).table
    tables = deal(pooled, ragged(pooled, 2, np.random.default_rng(0)))
    for site, table in zip(deployment.sites, tables.values(), strict=True):
        deployment.write_labels(site, table)
    with deployment:
        yield deployment, credentials


@asynccontextmanager
async def raw_stream(address: str, own: TlsCredentials) -> AsyncIterator[Any]:
    """A stream that takes bytes for frames, of any size."""
    channel = grpc.aio.secure_channel(
        address,
        grpc.ssl_channel_credentials(own.authority, own.key, own.certificate),
        options=(
            ("grpc.ssl_target_name_override", COORDINATOR_SERVER_NAME),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ),
    )
    try:
        yield channel.stream_stream("/ce.v1.SiteService/Connect")()
    finally:
        await channel.close()


async def end_of(call: Any, *frames: bytes) -> tuple[grpc.StatusCode, str]:
    """How the coordinator ends a stream that sends these."""
    try:
        for frame in frames:
            await call.write(frame)
        while await call.read() is not grpc.aio.EOF:
            pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # it has ended, perhaps while we were writing
    return await call.code(), await call.details()


HELLO = pb.SiteFrame(hello=pb.Hello(site=LIAR, protocol=PROTOCOL, instance=bytes(16))).SerializeToString()
STREAMS = {
    "garbage": ([b"\xff\xff\xff"], grpc.StatusCode.INVALID_ARGUMENT, "frame: cannot be read"),
    "garbage after hello": ([HELLO, b"\xff\xff\xff"], grpc.StatusCode.INVALID_ARGUMENT, "frame: cannot be read"),
    "nothing": ([b""], grpc.StatusCode.INVALID_ARGUMENT, "hello: must be the first frame"),
    "hello twice": ([HELLO, HELLO], grpc.StatusCode.INVALID_ARGUMENT, "frame: empty, or a second hello"),
    "5 MiB": ([bytes(5 * 2**20)], grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
    "5 MiB after hello": ([HELLO, bytes(5 * 2**20)], grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
}


@pytest.mark.parametrize(("frames", "code", "says"), STREAMS.values(), ids=STREAMS)
def test_a_stream_that_no_site_would_send_is_ended_with_a_reason(
    deployment: tuple[Deployment, TlsCredentials], frames: list[bytes], code: grpc.StatusCode, says: str
) -> None:
    async def send() -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(PATIENCE_S), raw_stream(deployment[0].address, deployment[1]) as call:
            return await end_of(call, *frames)

    ended, details = asyncio.run(send())
    assert ended == code
    assert says in details


@pytest.mark.parametrize(("frames", "code"), [([], grpc.StatusCode.INVALID_ARGUMENT), ([HELLO], grpc.StatusCode.OK)])
def test_a_stream_that_is_half_closed_ends(
    deployment: tuple[Deployment, TlsCredentials], frames: list[bytes], code: grpc.StatusCode
) -> None:
    async def send() -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(PATIENCE_S), raw_stream(deployment[0].address, deployment[1]) as call:
            for frame in frames:
                await call.write(frame)
            await call.done_writing()
            return await end_of(call)

    assert asyncio.run(send())[0] == code


@pytest.mark.promise("Crowds and slow callers do not keep others out.")
def test_a_job_is_done_while_one_certificate_opens_two_hundred_connections(
    deployment: tuple[Deployment, TlsCredentials],
) -> None:
    """Some say nothing, some say Hello, and each of those takes the place of the one before."""
    hub, own = deployment
    job = job_of("in a crowd", *hub.sites)
    ends: list[tuple[grpc.StatusCode, str]] = []
    most = Limits().streams_per_certificate

    async def one(number: int, enough: asyncio.Event) -> None:
        async with raw_stream(hub.address, own) as call:
            ends.append(await end_of(call, *([HELLO] if number % 4 == 0 else [])))
            if len(ends) >= 200 - most:
                enough.set()

    async def crowd() -> Any:
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(one(number, enough)) for number in range(200)]
            status = await asyncio.to_thread(hub.run, job)
            await enough.wait()
            for call in calls:
                call.cancel()
        return status

    status = asyncio.run(asyncio.wait_for(crowd(), 60))
    assert (status.state, status.reason, status.epoch) == ("done", "", 1)
    # Two hundred in one process may be too busy to show signs of life: those are given up.
    usual = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE}
    # A Hello that meets a stream just refused: gRPC for Python then hides the reason from this side.
    assert {code for code, details in ends if (code, details) != (grpc.StatusCode.INTERNAL, LOST)} <= usual
    full = [details for code, details in ends if code == grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert full
    assert all("limits.streams_per_certificate" in details for details in full)
    assert not [entry for entry in hub.processes["hub"].events if entry.get("level") == "error"]


@pytest.mark.promise("Crowds and slow callers do not keep others out.")
def test_a_job_is_done_while_others_are_silent_or_talk_nonsense(deployment: tuple[Deployment, TlsCredentials]) -> None:
    hub, own = deployment
    job = job_of("undisturbed", *hub.sites)

    nonsense = pb.SiteFrame(answer=pb.Answer(job=job.name, epoch=1, round=1)).SerializeToString()

    async def end_of_nonsense(loud: Any) -> tuple[grpc.StatusCode, str]:
        """Refused while the job runs, and answered when it is over: then a second hello is refused.

        That hello waits for the answer: a write that meets a stream just refused would hide the reason from this side.
        """
        await loud.write(HELLO)
        await loud.write(nonsense)
        try:
            while pb.CoordinatorFrame.FromString(await loud.read()).WhichOneof("frame") != "ended":
                pass
        except grpc.aio.AioRpcError as refused:
            return refused.code(), refused.details() or ""
        return await end_of(loud, HELLO)

    async def disturb() -> Any:
        async with raw_stream(hub.address, own) as silent:
            await silent.wait_for_connection()
            await asyncio.to_thread(hub.submit, job)
            ended = asyncio.create_task(asyncio.to_thread(hub.wait, job.name))
            while not ended.done():
                async with raw_stream(hub.address, own) as loud:
                    assert (await end_of_nonsense(loud))[0] == grpc.StatusCode.INVALID_ARGUMENT
            return await ended

    status = asyncio.run(disturb())
    assert (status.state, status.reason, status.epoch) == ("done", "", 1)
    assert not [entry for entry in hub.processes["hub"].events if entry.get("level") == "error"]
