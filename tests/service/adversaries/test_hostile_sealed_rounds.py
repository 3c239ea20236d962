"""What a site may send in a sealed job, and what it may not: nothing takes the coordinator down or wedges the job.

A frame that cannot be right costs a site its stream; words that turn out to be wrong end the job, or the labels of a
block; and what is encrypted for another site is found there. A coordinator that lies about columns is found at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from support.mutations import mutated

import ce
from ce.testing import FrameByFrame, make_sites
from ce_coordinator.core.job_run import STRIKES
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "west")
JOB = ce.Job(name="job", model="pairs", clusters=2, sites=SITES, epsilon=50.0)


@pytest.fixture(name="table")
def _table(tmp_path: Path) -> FrameByFrame:
    """Three sites with 20 objects in common and 5 of their own; the job is submitted."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 20)
    tables = {}
    for site in SITES:
        cells = np.repeat(np.append(truth, rng.integers(0, 2, 5))[:, None], 2, axis=1)
        ids = [*(f"o{i}" for i in range(20)), *(f"{site}{i}" for i in range(5))]
        tables[site] = ce.LabelTable.from_arrays(cells, ids=ids, columns=[f"{site}{j}" for j in range(2)])
    table = FrameByFrame(make_sites(tmp_path, tables))
    table.connect()
    table.submit(JOB.definition())
    return table


def ended(table: FrameByFrame) -> tuple[str, str]:
    record = table.machine.records["job"]
    return record.state, record.reason


def hold_back(table: FrameByFrame, step: pb.Step, site: str) -> tuple[int, pb.SiteFrame]:
    """Go on until a site answers this step, and take the answer away."""
    while True:
        for entry in table.up:
            frame = pb.SiteFrame.FromString(entry[1])
            if entry[0] == table.sites[site].session and frame.answer.step == step:
                table.up.remove(entry)
                return entry[0], frame
        assert table.step(), "no such answer"


def first(frame: pb.SiteFrame) -> arrays_pb2.ArrayChunk:
    return frame.answer.chunks.chunks[0]


def array(frame: pb.SiteFrame, part: str) -> arrays_pb2.ArrayChunk:
    return next(chunk for chunk in frame.answer.chunks.chunks if part in chunk.name)


def one_byte_more(frame: pb.SiteFrame) -> None:
    first(frame).data += b"\0"
    first(frame).shape[0] += 1


def another_shape(frame: pb.SiteFrame) -> None:
    first(frame).shape.append(1)


def words(frame: pb.SiteFrame) -> None:
    chunk = first(frame)
    chunk.data += bytes(-len(chunk.data) % 8)
    chunk.type = arrays_pb2.ELEMENT_TYPE_INT64
    chunk.shape[0] = len(chunk.data) // 8


def of_another_site(frame: pb.SiteFrame) -> None:
    first(frame).name = first(frame).name.replace("west", "east").replace("north", "east")


def one_array_less(frame: pb.SiteFrame) -> None:
    del frame.answer.chunks.chunks[0]


def twice(frame: pb.SiteFrame) -> None:
    frame.answer.chunks.chunks.append(first(frame))


def another_round(frame: pb.SiteFrame) -> None:
    frame.answer.round += 1


def another_step(frame: pb.SiteFrame) -> None:
    frame.answer.step = pb.STEP_FINISH


def another_task(frame: pb.SiteFrame) -> None:
    frame.answer.task_digest = bytes(32)


def with_starts(frame: pb.SiteFrame) -> None:
    frame.answer.starts.append(0)


#: At most two of each site, which is let in again each time.
LIES: list[tuple[pb.Step, str, Callable[[pb.SiteFrame], None], str]] = [
    (pb.STEP_MASK, "west", one_byte_more, "expected"),
    (pb.STEP_VERIFY, "north", words, "expected"),
    (pb.STEP_RELEASE, "west", one_array_less, "is missing or incomplete"),
    (pb.STEP_SCORE, "east", another_round, "round: expected at most"),
    (pb.STEP_COMPARE, "north", of_another_site, "was not asked for"),
    (pb.STEP_REVEAL, "east", twice, "does not arrive in order"),
]
MORE_LIES: list[tuple[pb.Step, str, Callable[[pb.SiteFrame], None], str]] = [
    (pb.STEP_MEET, "west", another_shape, "expected"),
    (pb.STEP_COMMIT, "north", another_step, "expected an answer to round, step and starts"),
    (pb.STEP_COMPARE, "west", another_task, "task_digest"),
    (pb.STEP_SETTLE, "east", with_starts, "expected an answer to round, step and starts"),
    (pb.STEP_PROVE, "north", one_byte_more, "expected"),
]


@pytest.mark.parametrize("lies", [LIES, pytest.param(MORE_LIES, marks=pytest.mark.slow)], ids=["some", "others"])
def test_an_answer_that_cannot_be_right_costs_a_site_its_stream_and_nothing_else(
    table: FrameByFrame, lies: list[tuple[pb.Step, str, Callable[[pb.SiteFrame], None], str]]
) -> None:
    for step, site, change, says in lies:
        session, frame = hold_back(table, step, site)
        change(frame)
        table.do(table.machine.received(session, frame, table.now))
        closed, reason = table.closed[-1]
        assert (closed, says in reason) == (site, True), (step, reason)
        assert table.machine.records["job"].state == "running"
        table.connect(site)
    assert len(table.closed) == len(lies)
    table.run()
    assert ended(table) == ("done", "")


def test_who_lies_again_and_again_ends_the_job(table: FrameByFrame) -> None:
    for _ in range(STRIKES):
        session, frame = hold_back(table, pb.STEP_MASK, "west")
        one_byte_more(frame)
        table.do(table.machine.received(session, frame, table.now))
        table.connect("west")
    state, reason = ended(table)
    assert state == "failed"
    assert reason.startswith("west: ")
    assert reason.endswith("(3 times)")


def _state_that_there_is_not(frame: pb.SiteFrame) -> None:
    chunk = array(frame, "state")
    chunk.data = b"\xff" * len(chunk.data)


def _another_share(frame: pb.SiteFrame) -> None:
    chunk = array(frame, "share")
    chunk.data = b"\x55" * len(chunk.data)


def _another_box(frame: pb.SiteFrame) -> None:
    chunk = array(frame, "members")
    chunk.data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]


@pytest.mark.parametrize(
    ("step", "change", "says"),
    [
        (pb.STEP_MEET, _state_that_there_is_not, "west: state: expected how far the job has come"),
        pytest.param(pb.STEP_RELEASE, _another_share, "", marks=pytest.mark.slow),
        pytest.param(pb.STEP_MASK, _another_box, "", marks=pytest.mark.slow),
        pytest.param(pb.STEP_COMPARE, _another_box, "", marks=pytest.mark.slow),
    ],
    ids=["state", "share", "masked rows", "opening"],
)
def test_words_that_turn_out_to_be_wrong_end_the_job_or_a_block(
    table: FrameByFrame, step: pb.Step, change: Callable[[pb.SiteFrame], None], says: str
) -> None:
    session, frame = hold_back(table, step, "west")
    change(frame)
    table.do(table.machine.received(session, frame, table.now))
    table.run()
    state, reason = ended(table)
    assert says in reason
    results = [played.settings.results / "job" / "consensus.csv" for played in table.sites.values()]
    assert state == "failed" or not any(_labelled(path) for path in results)


def _labelled(path: Path) -> bool:
    """Whether a shared object has a label."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return any(line.split(",")[1] for line in lines if line.startswith("o"))


def test_a_site_gives_up_its_block_in_a_way_that_nobody_knows(table: FrameByFrame) -> None:
    """What a site says of its blocks at `score` is one of three numbers; another is as if it had lost them."""
    session, frame = hold_back(table, pb.STEP_SCORE, "west")
    chunk = array(frame, "blocks")
    chunk.data = b"\xff" * len(chunk.data)
    table.do(table.machine.received(session, frame, table.now))
    table.run()
    assert ended(table) == ("done", "")
    assert not _labelled(table.sites["north"].settings.results / "job" / "consensus.csv")


def test_checkpoints_that_a_site_claims_to_have_are_not_asked_for(table: FrameByFrame) -> None:
    while not any(pb.SiteFrame.FromString(frame).WhichOneof("frame") == "ready" for _, frame in table.up):
        assert table.step()
    for at, (session, content) in enumerate(table.up):
        frame = pb.SiteFrame.FromString(content)
        if frame.WhichOneof("frame") == "ready":
            frame.ready.checkpoints.add(origin=1, round=1)
            table.up[at] = (session, frame.SerializeToString())
    while table.step():
        for frames in table.down.values():
            for content in frames:
                task = pb.CoordinatorFrame.FromString(content).task
                assert (task.checkpoint, task.resume) == (0, 0)
    assert ended(table) == ("done", "")


# A coordinator that says something else about columns that a site does not hold.


def _fewer(message: pb.Alignment) -> None:
    del message.other_columns[-1]


def _narrower(message: pb.Alignment) -> None:
    message.other_columns[0].category_count -= 1
    message.sizes.categories -= 1


@pytest.mark.promise("A site finds out if the coordinator says something wrong about columns that it does not hold.")
@pytest.mark.parametrize("change", [_fewer, _narrower], ids=["fewer", "narrower"])
def test_other_columns_are_those_that_their_holders_signed(
    table: FrameByFrame, change: Callable[[pb.Alignment], None]
) -> None:
    while not any(
        pb.CoordinatorFrame.FromString(frame).WhichOneof("frame") == "alignment" for frame in table.down["west"]
    ):
        assert table.step()
    for at, content in enumerate(table.down["west"]):
        frame = pb.CoordinatorFrame.FromString(content)
        if frame.WhichOneof("frame") == "alignment":
            change(frame.alignment)
            table.down["west"][at] = frame.SerializeToString()
    table.run()
    state, reason = ended(table)
    assert state == "failed"
    assert reason.startswith("west: alignment: ")


# Anything at all.


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_site_sends_the_machine_goes_on(table: FrameByFrame, seed: int) -> None:
    """Of the frames of west one in ten is changed, and it comes again when it is cut off: no unexpected error."""
    rng = Random(seed)
    for _ in range(5_000):
        if table.sites["west"].session is None:
            table.connect("west")
        if table.up and table.up[0][0] == table.sites["west"].session and rng.random() < 0.1:
            session, content = table.up.popleft()
            false: Any = mutated(pb.SiteFrame.FromString(content), rng, 1)
            table.do(table.machine.received(session, false, table.now))
        elif not table.step():
            break
    assert not [note for note in table.notes if note.event == "unexpected error"]
    state, _ = ended(table)
    assert state in ("done", "failed", "running", "enrolling", "aligning")
    table.submit(ce.Job(name="next", clusters=2, sites=("east", "north"), privacy="plain").definition(), "next")
    assert table.machine.records["next"].state == "enrolling"
