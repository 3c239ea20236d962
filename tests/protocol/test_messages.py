"""Messages: what is sent comes back, damage is a typed error, and nobody accepts what was not asked for."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.problems import TOPOLOGIES, deal, problem

from ce.errors import MessageError
from ce.models import BCE, Mixture
from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.engine.aggregator import add_answer, open_totals
from ce.protocol.engine.home import Home
from ce.protocol.engine.site import Site
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.messages.task import Answer, Array, ArrayChunk, Task, array_hash, chunks, task_digest
from ce.protocol.topology.enrolment import enrol
from ce.protocol.topology.topology import align
from ce.transport import array_chunks as parts_module
from ce.transport.array_chunks import CHUNK, LARGEST_FRAME, Collector, chunk_of, chunks_of, to_chunks
from ce.transport.frames import AnswerReader, TaskReader, answer_frames, task_frames
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

ROOM = 2**30
JOB_DIGEST = b"j" * 32

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable() and " " not in name)


def _views(arrays: st.SearchStrategy[np.ndarray]) -> st.SearchStrategy[np.ndarray]:
    """Also seen from behind, every other element, and with the axes turned round."""
    looks = [lambda a: a, lambda a: a.T, lambda a: a[..., ::2] if a.ndim else a, lambda a: a[::-1] if a.ndim else a]
    return st.builds(lambda array, look: look(array), arrays, st.sampled_from(looks))


SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
INTEGERS = _views(hnp.arrays(np.int64, SHAPES))
REALS = _views(hnp.arrays(np.float64, SHAPES, elements=FINITE))
BYTES = _views(hnp.arrays(np.uint8, SHAPES))
SHORT_INTEGERS = _views(hnp.arrays(np.int32, SHAPES))
FINITE_SHORT = st.floats(allow_nan=False, allow_infinity=False, width=32)
SHORT_REALS = _views(hnp.arrays(np.float32, SHAPES, elements=FINITE_SHORT))
ARRAYS = st.dictionaries(NAMES, st.one_of(INTEGERS, REALS, BYTES, SHORT_INTEGERS, SHORT_REALS), max_size=5)


def small_chunks(size: int) -> mock._patch[int]:
    """As if a frame held only so many bytes."""
    return mock.patch.object(parts_module, "CHUNK", size)


def assert_same(got: dict[str, Array], sent: dict[str, np.ndarray]) -> None:
    assert list(got) == list(sent)
    for name, array in sent.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def collect(frames: Iterable[arrays_pb2.ArrayChunks], most: int = ROOM) -> Collector:
    """What the frames of one message hold; they must end it, and no earlier."""
    collector = Collector(most)
    ended = [collector.feed(arrays_pb2.ArrayChunks.FromString(frame.SerializeToString())) for frame in frames]
    assert ended == [False] * (len(ended) - 1) + [True]
    return collector


# Arrays to parts and back.


@settings(max_examples=200, deadline=None, derandomize=True)
@given(ARRAYS, st.integers(8, 200), st.integers(0, 62))
def test_arrays_come_back_in_order_whatever_their_strides_and_however_they_are_split(
    arrays: dict[str, np.ndarray], chunk: int, bits: int
) -> None:
    with small_chunks(chunk):
        collector = collect(to_chunks(arrays, dict.fromkeys(arrays, bits)))
    assert_same(collector.arrays, arrays)
    assert collector.fraction_bits == dict.fromkeys(arrays, bits)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ARRAYS, st.integers(8, 200))
def test_pieces_are_the_array_in_order_without_gaps(arrays: dict[str, np.ndarray], chunk: int) -> None:
    with small_chunks(chunk):
        for frame in to_chunks(arrays):
            assert sum(len(part.data) for part in frame.chunks) <= chunk
        found = [chunk for frame in to_chunks(arrays) for chunk in chunks_of(frame)]
    for name, array in arrays.items():
        own = [chunk for chunk in found if chunk.name == name]
        assert {chunk.shape for chunk in own} == {array.shape}
        assert [p.begin for p in own] == np.cumsum([0, *(len(p.words) for p in own)])[:-1].tolist()
        np.testing.assert_array_equal(np.concatenate([chunk.words for chunk in own]), array.reshape(-1))


def test_large_arrays_go_in_frames_of_a_mebibyte() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "small": np.arange(3),
        "large": rng.standard_normal((3, 160_001)).T,
        "bytes": rng.integers(0, 256, (70_001, 16)).astype(np.uint8),
        "none": np.zeros((0, 5)),
        "words": rng.integers(-(2**63), 2**63, (2, 100_001)),
    }
    total = sum(array.nbytes for array in arrays.values())
    frames = list(to_chunks(arrays))
    assert total // CHUNK + 1 <= len(frames) <= total // CHUNK + 2
    assert all(sum(len(part.data) for part in frame.chunks) <= CHUNK for frame in frames)
    assert {part.name for part in frames[0].chunks} == {"small", "large"}
    assert_same(collect(frames).arrays, arrays)


def test_the_frames_of_a_job_of_many_sites_are_small() -> None:
    sizes = {sites: chunk_of(sites) for sites in (1, 4, 5, 16, 17, 50, 64, 65, 1000)}
    assert sizes[1] == sizes[4] == CHUNK
    assert sizes[16] == CHUNK // 4
    assert sizes[17] == CHUNK // 8
    assert sizes[64] == sizes[65] == sizes[1000] == 2**16
    assert all(sites * size <= 4 * CHUNK for sites, size in sizes.items() if size > 2**16)
    arrays = {"small": np.arange(3), "large": np.random.default_rng(0).standard_normal(100_001)}
    frames = list(to_chunks(arrays, chunk=sizes[50]))
    assert max(sum(len(part.data) for part in frame.chunks) for frame in frames) <= sizes[50]
    assert_same(collect(frames).arrays, arrays)
    assert len(frames) == -(-100_001 * 8 // sizes[50])


def test_no_frame_is_too_large_for_the_stream_however_small_its_arrays() -> None:
    """A site in many small blocks: what surrounds the numbers takes more room than they do."""
    arrays = {f"block/{index}/labels": np.zeros(1, dtype=np.int64) for index in range(40_000)}
    frames = list(to_chunks(arrays))
    assert max(frame.ByteSize() for frame in frames) <= 1.5 * CHUNK < LARGEST_FRAME / 2
    assert len(collect(frames).arrays) == len(arrays)


def test_frames_of_tasks_and_answers_are_the_chunks_and_what_they_belong_to() -> None:
    """Chunks are written into their frames; they must be those that would be copied there."""
    rng = np.random.default_rng(1)
    arrays = {"global/a": np.arange(3.0), "block/0/b": rng.standard_normal((2, 200_001)), "global/c": np.ones(2)}
    expected = list(to_chunks(arrays))
    assert len(expected) == 4
    frames = list(task_frames("job", 7, Task(1, "sums", arrays=arrays), JOB_DIGEST))
    assert frames[0].task.digest == JOB_DIGEST
    assert [frames[0].task.chunks, *(frame.more.chunks for frame in frames[1:])] == expected
    words = {name: array.view(np.int64) for name, array in arrays.items()}
    expected = list(to_chunks(words, dict.fromkeys(words, 5)))
    answers = list(
        answer_frames("job", 7, Answer(1, "sums", arrays=words, fraction_bits=dict.fromkeys(words, 5)), b"d")
    )
    assert answers[0].answer.task_digest == b"d"
    assert [answers[0].answer.chunks, *(frame.more.chunks for frame in answers[1:])] == expected
    for more in (*frames[1:], *answers[1:]):
        assert (more.more.job, more.more.epoch) == ("job", 7)


def test_a_message_without_arrays_is_one_frame() -> None:
    (frame,) = to_chunks({})
    assert frame.last
    assert not frame.chunks
    assert collect([frame]).arrays == {}


# What is refused.


def part(name: str = "a", data: bytes = bytes(16), **fields: object) -> arrays_pb2.ArrayChunk:
    """A piece that is right unless told otherwise: two doubles."""
    given = {"type": arrays_pb2.ELEMENT_TYPE_FLOAT64, "shape": (len(data) // 8,), **fields}
    return arrays_pb2.ArrayChunk(name=name, data=data, **given)  # type: ignore[arg-type]


def message(*found: arrays_pb2.ArrayChunk, last: bool = True) -> arrays_pb2.ArrayChunks:
    return arrays_pb2.ArrayChunks(chunks=found, last=last)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (part(name=""), "name is not 1 to 200"),
        (part(name="n" * 201), "name is not 1 to 200"),
        (part(name="two words"), "without spaces"),
        (part(name="two\nlines"), "without spaces"),
        (part(type=0), "unknown element type"),
        (part(type=6), "unknown element type"),
        (part(type=arrays_pb2.ELEMENT_TYPE_INT32, shape=(4,), offset=2), "not whole elements"),
        (part(type=arrays_pb2.ELEMENT_TYPE_FLOAT32, data=bytes(15), shape=(4,)), "not whole elements"),
        (part(type=arrays_pb2.ELEMENT_TYPE_INT32, shape=(3,)), "longer than its array"),
        (part(shape=(1, 1, 1, 1, 2)), "shape is too long"),
        (part(shape=(2**40,)), "shape is too long or too large"),
        (part(shape=(2**39, 2**39)), "shape is too long or too large"),
        (part(shape=(2**64 - 1, 2**64 - 1, 0), data=b""), "shape is too long or too large"),
        (part(shape=(2**39, 2**39, 0), data=b""), "shape is too long or too large"),
        (part(fraction_bits=63), "more than 62 fractional bits"),
        (part(offset=3), "not whole elements"),
        (part(data=bytes(15), shape=(2,)), "not whole elements"),
        (part(shape=(1,)), "longer than its array"),
        (part(offset=8), "longer than its array"),
        (part(offset=2**64 - 8), "longer than its array"),
        (part(offset=8, shape=(3,)), "do not arrive in order"),
        (part(data=b"", shape=(2,)), "a piece without elements"),
        (part(shape=(3,)), "ends before its arrays do"),
        (part(data=bytes(CHUNK + 8)), "more than 1 MiB in one frame"),
    ],
)
def test_a_piece_that_cannot_be_is_refused(wrong: arrays_pb2.ArrayChunk, says: str) -> None:
    with pytest.raises(MessageError, match=says):
        Collector(ROOM).feed(message(wrong))


@pytest.mark.parametrize(
    ("following", "says"),
    [
        (part("a", offset=16, shape=(5,)), "disagree on its type"),
        (part("a", offset=16, shape=(4,), type=arrays_pb2.ELEMENT_TYPE_INT64), "disagree on its type"),
        (part("a", data=bytes(8), offset=8, shape=(4,), type=arrays_pb2.ELEMENT_TYPE_FLOAT32), "disagree on its type"),
        (part("a", offset=16, shape=(4,), fraction_bits=3), "disagree on its type"),
        (part("a", offset=0, shape=(4,)), "in order"),
        (part("b"), "in order"),
    ],
)
def test_pieces_of_one_array_agree(following: arrays_pb2.ArrayChunk, says: str) -> None:
    collector = Collector(ROOM)
    assert not collector.feed(message(part("a", shape=(4,)), last=False))
    with pytest.raises(MessageError, match=says):
        collector.feed(message(following))


def test_every_array_comes_once_and_nothing_follows_the_end() -> None:
    with pytest.raises(MessageError, match="same name"):
        Collector(ROOM).feed(message(part("a"), part("a")))
    collector = Collector(ROOM)
    assert collector.feed(message(part("a")))
    with pytest.raises(MessageError, match="has ended"):
        collector.feed(message(part("b")))


@pytest.mark.promise("Hostile frames and files never crash a daemon: they are refused by field.")
def test_announced_sizes_are_refused_by_the_limit_before_anything_is_allocated() -> None:
    huge = [part("a", shape=(2**27,)), part("a", shape=(2**13, 2**13, 2**13)), part("a", shape=(2**40 - 1,))]
    tracemalloc.start()
    try:
        for wrong in huge:
            with pytest.raises(MessageError, match="larger than allowed"):
                Collector(2**20).feed(message(wrong, last=False))
        with pytest.raises(MessageError, match="larger than allowed"):
            Collector(2**14).feed(message(*(part(f"a{at}", b"", shape=(0,)) for at in range(2**9)), last=False))
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_message_may_be_as_large_as_the_limit_and_no_larger() -> None:
    """What an entry costs beside its elements counts, too."""
    exact = 16 + 64
    assert Collector(exact).feed(message(part()))
    with pytest.raises(MessageError, match="larger than allowed"):
        Collector(exact - 1).feed(message(part()))


def test_a_shape_of_very_many_sides_is_refused_before_they_are_multiplied() -> None:
    """The product of half a million sides took minutes, on the coordinator's only loop."""
    bomb = part(shape=[2**64 - 1] * 400_000)
    assert bomb.ByteSize() < LARGEST_FRAME
    before = time.process_time()
    with pytest.raises(MessageError, match="shape is too long"):
        list(chunks_of(message(bomb)))
    assert time.process_time() - before < 1.0


def test_a_frame_has_as_many_pieces_as_it_has_room_for_and_no_more() -> None:
    empty = part("a", b"", shape=(0,))
    most = CHUNK // 64 + 1
    assert len(list(chunks_of(message(*[empty] * most)))) == most
    with pytest.raises(MessageError, match="more pieces in one frame"):
        list(chunks_of(message(*[empty] * (most + 1))))


def test_an_array_without_elements_costs_no_memory_whatever_its_other_sides() -> None:
    collector = Collector(1000)
    assert collector.feed(message(part("a", b"", shape=(2**39, 0))))
    assert collector.arrays["a"].shape == (2**39, 0)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_by_name(bad: float, kind: type) -> None:
    collector = collect(to_chunks({"alpha": np.ones(3), "gamma": np.array([1.0, bad], dtype=kind)}))
    with pytest.raises(MessageError, match="gamma: not all numbers are finite"):
        _ = collector.arrays


# Tasks and answers.

TASK = Task(
    3,
    "sums",
    1,
    2,
    (0, 2),
    (2,),
    {"global/alpha": np.arange(6.0).reshape(2, 3), "block/0/message": np.arange(24.0).reshape(2, 3, 4)},
)
ANSWER = Answer(
    3,
    "sums",
    (0, 2),
    {"global/bound": np.arange(2), "block/0/sums": np.arange(24).reshape(2, 3, 4)},
    {"global/bound": 30, "block/0/sums": 62},
)


def digest_of(task: Task, epoch: int = 1) -> bytes:
    return task_digest(JOB_DIGEST, epoch, task, {name: array_hash(array) for name, array in task.arrays.items()})


def read_task(frames: Iterable[pb.CoordinatorFrame], most: int = ROOM) -> Task | None:
    reader: TaskReader | None = None
    task: Task | None = None
    for frame in frames:
        if frame.WhichOneof("frame") == "task":
            reader = TaskReader(frame.task, JOB_DIGEST, most)
            task = reader.feed(frame.task.chunks)
        elif reader is not None:
            task = reader.feed(frame.more.chunks)
    return task


def read_answer(frames: Iterable[pb.SiteFrame], most: int = ROOM) -> Answer | None:
    reader: AnswerReader | None = None
    answer: Answer | None = None
    for frame in frames:
        if frame.WhichOneof("frame") == "answer":
            reader = AnswerReader(frame.answer, most)
            answer = reader.feed(frame.answer.chunks)
        elif reader is not None:
            answer = reader.feed(frame.more.chunks)
    return answer


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    starts = tuple(sorted(draw(st.sets(st.integers(0, 2**32 - 1), max_size=5))))
    retry = tuple(start for start in starts if draw(st.booleans()))
    numbers = st.integers(0, 2**32 - 1)
    step = draw(st.sampled_from(["open", "sums", "objects", "columns", "clusterings_only", "finish"]))
    return Task(draw(numbers), step, draw(numbers), draw(numbers), starts, retry, draw(ARRAYS))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(tasks(), st.integers(8, 200))
def test_tasks_and_answers_come_back(task: Task, chunk: int) -> None:
    answer = Answer(task.round, task.step, task.starts, task.arrays, dict.fromkeys(task.arrays, 7))
    with small_chunks(chunk):
        again = read_task(task_frames("job", 1, task, digest_of(task)))
        same = read_answer(answer_frames("job", 1, answer, bytes(32)))
    assert again is not None
    assert same is not None
    assert replace(again, arrays={}) == replace(task, arrays={})
    assert_same(dict(again.arrays), dict(task.arrays))
    assert replace(same, arrays={}) == replace(answer, arrays={})
    assert_same(dict(same.arrays), dict(answer.arrays))


@pytest.mark.parametrize(
    "other",
    [
        replace(TASK, round=4),
        replace(TASK, step="clusterings_only"),
        replace(TASK, stage=0),
        replace(TASK, iteration=3),
        replace(TASK, starts=(0, 2, 3)),
        replace(TASK, retry=(0,)),
        replace(TASK, retry=()),
        replace(TASK, arrays={**TASK.arrays, "global/alpha": np.arange(6.0).reshape(3, 2)}),
        replace(TASK, arrays={**TASK.arrays, "global/alpha": np.arange(6).reshape(2, 3)}),
        replace(TASK, arrays={**TASK.arrays, "global/alpha": np.arange(1.0, 7.0).reshape(2, 3)}),
        replace(TASK, arrays={**TASK.arrays, "extra": np.zeros(0)}),
        replace(TASK, arrays={"global/alpha": TASK.arrays["global/alpha"]}),
        replace(TASK, arrays={"global/beta": TASK.arrays["global/alpha"], **TASK.arrays}),
    ],
)
def test_a_task_that_is_not_what_its_digest_says_is_refused(other: Task) -> None:
    with pytest.raises(MessageError, match="digest: is not that of the task"):
        read_task(task_frames("job", 1, other, digest_of(TASK)))


def test_a_task_of_another_job_or_epoch_is_refused() -> None:
    with pytest.raises(MessageError, match="digest"):
        read_task(task_frames("job", 2, TASK, digest_of(TASK)))
    with mock.patch(f"{__name__}.JOB_DIGEST", b"k" * 32), pytest.raises(MessageError, match="digest"):
        read_task(task_frames("job", 1, TASK, task_digest(b"j" * 32, 1, replace(TASK, arrays={}), {})))


def test_the_order_of_the_arrays_is_not_part_of_a_task() -> None:
    turned = replace(TASK, arrays=dict(reversed(TASK.arrays.items())))
    assert read_task(task_frames("job", 1, turned, digest_of(TASK))) is not None


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (pb.Task(step=pb.STEP_UNSPECIFIED), "step: unknown"),
        (pb.Task(step=99), "step: unknown"),  # type: ignore[arg-type]
        (pb.Task(step=pb.STEP_SUMS, starts=[1, 0]), "starts: not in increasing order"),
        (pb.Task(step=pb.STEP_SUMS, starts=[1, 1]), "starts: not in increasing order"),
        (pb.Task(step=pb.STEP_SUMS, starts=[1, 2], retry=[2, 1]), "retry: not in increasing order"),
        (pb.Task(step=pb.STEP_SUMS, starts=[1, 2], retry=[3]), "retry: names a start"),
    ],
)
def test_a_header_that_cannot_be_is_refused(header: pb.Task, says: str) -> None:
    with pytest.raises(MessageError, match=says):
        TaskReader(header, JOB_DIGEST, ROOM)
    if not header.retry:
        with pytest.raises(MessageError, match=says):
            AnswerReader(pb.Answer(step=header.step, starts=header.starts), ROOM)


# Garbage and damage.


@pytest.mark.promise("Hostile frames and files never crash a daemon: they are refused by field.")
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_garbage_is_a_message_error_or_a_message(garbage: bytes) -> None:
    for kind in (pb.Task, pb.Answer):
        try:
            header = kind.FromString(garbage)
        except DecodeError:
            continue  # refused before anything of ours sees it
        reader = TaskReader if kind is pb.Task else AnswerReader
        try:
            arguments = (header, JOB_DIGEST, ROOM) if kind is pb.Task else (header, ROOM)
            reader(*arguments).feed(header.chunks)  # type: ignore[arg-type]
        except MessageError:
            continue


@st.composite
def damaged(draw: st.DrawFn, frames: Sequence[bytes]) -> list[bytes]:
    """Frames of one message with bits flipped, cut short, left out, repeated or in another order."""
    found = list(frames)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(found) - 1))
        match draw(st.sampled_from(["flip", "cut", "append", "drop", "repeat", "swap"])):
            case "flip":
                own = bytearray(found[at])
                if own:
                    own[draw(st.integers(0, len(own) - 1))] ^= 1 << draw(st.integers(0, 7))
                found[at] = bytes(own)
            case "cut":
                found[at] = found[at][: draw(st.integers(0, len(found[at])))]
            case "append":
                found[at] += draw(st.binary(min_size=1, max_size=8))
            case "drop" if len(found) > 1:
                del found[at]
            case "repeat":
                found.insert(at, found[at])
            case _:
                other = draw(st.integers(0, len(found) - 1))
                found[at], found[other] = found[other], found[at]
    return found


def parsed(kind: type, frames: Iterable[bytes]) -> Iterator[object]:
    """As gRPC hands them over: what does not parse ends the stream."""
    for frame in frames:
        try:
            yield kind.FromString(frame)  # type: ignore[attr-defined]
        except DecodeError:
            return


@pytest.mark.promise("Hostile frames and files never crash a daemon: they are refused by field.")
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_a_damaged_task_is_refused_or_is_the_same_task(data: st.DataObject) -> None:
    with small_chunks(64):
        frames = [frame.SerializeToString() for frame in task_frames("job", 1, TASK, digest_of(TASK))]
        received = data.draw(damaged(frames))
        try:
            task = read_task(parsed(pb.CoordinatorFrame, received))  # type: ignore[arg-type]
        except MessageError:
            return
    if task is not None:
        assert replace(task, arrays={}) == replace(TASK, arrays={})
        for name, array in TASK.arrays.items():
            np.testing.assert_array_equal(task.arrays[name], array)


@pytest.mark.promise("Hostile frames and files never crash a daemon: they are refused by field.")
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_a_damaged_answer_is_refused_or_is_an_answer(data: st.DataObject) -> None:
    with small_chunks(64):
        frames = [frame.SerializeToString() for frame in answer_frames("job", 1, ANSWER, bytes(32))]
        received = data.draw(damaged(frames))
        try:
            answer = read_answer(parsed(pb.SiteFrame, received), 10_000)  # type: ignore[arg-type]
        except MessageError:
            return
    if answer is not None:
        assert sum(array.nbytes for array in answer.arrays.values()) <= 10_000
        assert answer.arrays.keys() == answer.fraction_bits.keys()
        assert all(np.isfinite(array).all() for array in answer.arrays.values())


# Totals.

ASKED = {
    "block/0/sums": ArraySpec((2, 3, 4), 40),
    "global/bound": ArraySpec((2,), 30),
    "global/objects": ArraySpec((), 0),
    "block/1/sums": ArraySpec((2, 3, 0), 40),
}


def contributions(sites: int, seed: int) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {
        f"site{s}": {name: rng.integers(-(2**63), 2**63, asked.shape) for name, asked in ASKED.items()}
        for s in range(sites)
    }


@st.composite
def split(draw: st.DrawFn, arrays: dict[str, np.ndarray]) -> list[ArrayChunk]:
    """A contribution in pieces: any cuts, arrays in any order."""
    found = []
    for name in draw(st.permutations(sorted(arrays))):
        flat = np.asarray(arrays[name]).reshape(-1)
        cuts = sorted(draw(st.lists(st.integers(0, flat.size), max_size=3)))
        for begin, end in zip([0, *cuts], [*cuts, flat.size], strict=True):
            found.append(ArrayChunk(name, arrays[name].shape, ASKED[name].fraction_bits, begin, flat[begin:end]))
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_however_answers_are_cut_and_interrupted_the_totals_are_the_same(data: st.DataObject) -> None:
    chunks = contributions(3, data.draw(st.integers(0, 1000)))
    totals = Accumulators(ASKED, {site: list(ASKED) for site in chunks})
    going = {site: iter(data.draw(split(arrays))) for site, arrays in chunks.items()}
    for site in going:
        totals.begin(site)
    interruptions = 0
    while going:
        site = data.draw(st.sampled_from(sorted(going)))
        if interruptions < 6 and data.draw(st.integers(0, 4)) == 0:
            interruptions += 1  # the stream broke: it repeats itself, cut in other places perhaps
            going[site] = iter(data.draw(split(chunks[site])))
            totals.begin(site)
        elif (chunk := next(going[site], None)) is not None:
            totals.add(site, chunk)
        else:
            totals.end(site)
            del going[site]
        assert totals.waiting == going.keys()
    with np.errstate(over="ignore"):
        for name in ASKED:
            expected = sum((arrays[name] for arrays in chunks.values()), np.zeros(ASKED[name].shape, dtype=np.int64))
            np.testing.assert_array_equal(totals[name], expected)


def test_totals_refuse_what_was_not_asked_for_and_add_nothing_of_it() -> None:
    asked = {"a": ArraySpec((4,), 10), "b": ArraySpec((2,), 0)}
    totals = Accumulators(asked, {"north": ["a", "b"], "south": ["a"]})
    four = np.arange(1, 5)

    def chunk(**changes: object) -> ArrayChunk:
        return ArrayChunk(**{"name": "a", "shape": (4,), "fraction_bits": 10, "begin": 0, "words": four, **changes})  # type: ignore[arg-type]

    totals.begin("south")
    for wrong in (
        chunk(name="b"),
        chunk(name="c"),
        chunk(shape=(2, 2)),
        chunk(shape=(5,)),
        chunk(fraction_bits=11),
        chunk(words=four.astype(np.float64)),
        chunk(begin=1, words=four[:3]),
        chunk(words=np.arange(5)),
    ):
        with pytest.raises(MessageError, match="south"):
            totals.add("south", wrong)
    with pytest.raises(MessageError, match="a is missing or incomplete"):
        totals.end("south")
    for call in (totals.begin, totals.end, lambda site: totals.add(site, chunk())):
        with pytest.raises(MessageError, match="east: is not awaited"):
            call("east")
    assert totals["a"].tolist() == [0, 0, 0, 0]
    totals.add("south", chunk(words=four[:3]))
    with pytest.raises(MessageError, match="in order"):
        totals.add("south", chunk(begin=2, words=four[2:]))
    with pytest.raises(MessageError, match="incomplete"):
        totals.end("south")
    totals.add("south", chunk(begin=3, words=four[3:]))
    totals.end("south")
    with pytest.raises(MessageError, match="not awaited"):
        totals.begin("south")
    assert totals["a"].tolist() == [1, 2, 3, 4]
    assert list(totals.waiting) == ["north"]


# Home and sites.


def _job(model: object = None) -> tuple[Home, dict[str, Site]]:
    example = problem(4, k=2, clusterings=4, missing=0.1)
    tables = deal(example.table, TOPOLOGIES["ragged"](example.table, 3, np.random.default_rng(0)))
    steps = (model or BCE(2, n_init=2, max_iter=3, tol=0)).steps()  # type: ignore[attr-defined]
    topology, rows = align({site: enrol(table, votes=False) for site, table in tables.items()})
    sites = {s: Site(s, t, topology.view(s), rows[s], steps, SeededStarts(0)) for s, t in tables.items()}
    return Home(topology.whole(), steps), sites


def _exchange(home: Home, sites: dict[str, Site]) -> dict[str, Answer]:
    """Every site's answer, over the wire and back."""
    answers = {}
    for site, task in home.tasks().items():
        received = read_task(task_frames("job", 1, task, digest_of(task)))
        assert received is not None
        answer = read_answer(answer_frames("job", 1, sites[site].answer(received), digest_of(task)))
        assert answer is not None
        answers[site] = answer
    return answers


def _complete(home: Home, sites: dict[str, Site]) -> None:
    """One undisturbed exchange."""
    for site, answer in _exchange(home, sites).items():
        add_answer(home, site, answer)
    home.advance()


def test_the_home_refuses_what_it_did_not_ask_for_and_goes_on() -> None:
    home, sites = _job()
    for step in ("open", "counts", "sums", "sums"):
        assert home.open_round is not None
        assert home.open_round.step == step
        if step == "counts":  # nothing comes up
            _complete(home, sites)
            continue
        answers = _exchange(home, sites)
        first = min(answers)
        good = answers[first]
        name = next(name for name in good.arrays if name.startswith("block"))
        rest = {n: array for n, array in good.arrays.items() if n != name}
        lies = [
            replace(good, round=good.round + 1),
            replace(good, round=good.round - 1),
            replace(good, step="columns"),
            replace(good, starts=(*good.starts, 9)),
            replace(good, arrays={}),
            # The wrong array comes first, so that nothing before it is added.
            replace(good, arrays={"extra": np.zeros(1, dtype=np.int64), **good.arrays}, fraction_bits={"extra": 0}),
            replace(good, arrays={name: good.arrays[name][..., :-1], **rest}),
            replace(good, arrays={name: good.arrays[name].astype(np.float64), **rest}),
            replace(good, fraction_bits={n: bits + 1 for n, bits in good.fraction_bits.items()}),
        ]
        for lie in lies:
            with pytest.raises(MessageError):
                add_answer(home, first, lie)
        with pytest.raises(MessageError):
            add_answer(home, "nobody", good)
        # A refused answer leaves no trace in the totals, and the right one is still welcome, once.
        for n in good.arrays:
            assert not home.open_round.accumulators[n].any()
        with pytest.raises(MessageError, match=f"{len(answers)} sites have not answered"):
            home.advance()
        for site, answer in answers.items():
            add_answer(home, site, answer)
        with pytest.raises(MessageError, match="not awaited"):
            add_answer(home, first, good)
        home.advance()


def test_the_home_adds_an_answer_once_that_broke_off_and_was_repeated() -> None:
    undisturbed, sites = _job()
    disturbed, others = _job()
    while undisturbed.tasks():
        for site, answer in _exchange(undisturbed, sites).items():
            add_answer(undisturbed, site, answer)
        for site, answer in _exchange(disturbed, others).items():
            for enough in range(len(answer.arrays)):
                disturbed.begin(site, answer)
                for chunk, _ in zip(chunks(answer), range(enough), strict=False):
                    open_totals(disturbed).add(site, chunk)
                if enough:
                    with pytest.raises(MessageError, match="missing or incomplete"):
                        open_totals(disturbed).end(site)
            add_answer(disturbed, site, answer)
        undisturbed.advance()
        disturbed.advance()
    assert disturbed.result.paths == undisturbed.result.paths
    np.testing.assert_array_equal(disturbed.result.sizes, undisturbed.result.sizes)


def test_a_site_refuses_tasks_that_do_not_fit() -> None:
    home, sites = _job()
    for _ in ("open", "counts"):
        _complete(home, sites)
    name, task = next(iter(home.tasks().items()))
    for lie in (
        replace(task, stage=1),
        replace(task, starts=(0,)),
        replace(task, starts=(0, 1, 2)),
        replace(task, arrays={}),
        replace(task, arrays={n: a[:1] for n, a in task.arrays.items()}),
        replace(task, arrays={n: a.astype(np.int64) for n, a in task.arrays.items()}),
        replace(task, step="finish", starts=(7,)),
        replace(task, step="finish", starts=(0, 1)),
    ):
        with pytest.raises(MessageError):
            sites[name].answer(lie)


def test_a_site_refuses_a_list_of_arrays_that_is_not_the_one_it_computes() -> None:
    """By the name of the array, with what was expected and what was got."""
    home, sites = _job()
    for _ in ("open", "counts"):
        _complete(home, sites)
    site, task = next(iter(home.tasks().items()))
    name = next(name for name in task.asked if name.startswith("block"))
    spec = task.asked[name]
    finer, wider = (spec.shape, spec.fraction_bits + 1), ((*spec.shape[:-1], spec.shape[-1] + 1), spec.fraction_bits)
    rest = {other: known for other, known in task.asked.items() if other != name}
    for asked, says in (
        (
            {**rest, name: ArraySpec(*finer)},
            f"asked: {name}: expected shape .* with {spec.fraction_bits} .*, got shape",
        ),
        ({**rest, name: ArraySpec(*wider)}, f"asked: {name}: expected shape .*, got shape"),
        (rest, f"asked: expected {name}, shape .*; the task does not ask for it"),
        ({**task.asked, "global/labels": ArraySpec((1,))}, "asked: 1 arrays that this step does not have"),
    ):
        with pytest.raises(MessageError, match=says):
            sites[site].answer(replace(task, asked=asked))
    sites[site].answer(task)


def test_a_site_refuses_other_starts_also_where_the_list_of_arrays_fits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ce.protocol.engine.site.check_asked", lambda asked, expected: None)
    home, sites = _job()
    for _ in ("open", "counts"):
        _complete(home, sites)
    for says in ("starts: expected all 2 at the beginning of a stage", r"starts: expected \(0, 1\) to go on or stop"):
        site, task = next(iter(home.tasks().items()))
        for starts in ((0,), (0, 1, 2)):
            with pytest.raises(MessageError, match=says):
                sites[site].answer(replace(task, starts=starts, retry=()))
        _complete(home, sites)


def test_two_phase_models_take_the_same_care() -> None:
    home, sites = _job(Mixture(2, n_init=1, max_iter=3, tol=0))
    steps = []
    for _ in range(6):
        steps.append(next(iter(home.tasks().values())).step)
        answers = _exchange(home, sites)
        first = min(answers)
        empty = replace(answers[first], arrays={})
        for lie in (replace(answers[first], step="sums"), *([empty] if answers[first].arrays else [])):
            with pytest.raises(MessageError):
                add_answer(home, first, lie)
        for site, answer in answers.items():
            add_answer(home, site, answer)
        home.advance()
    assert steps == ["open", "counts", "objects", "columns", "objects", "columns"]


def test_totals_take_the_memory_of_one_array_however_many_sites_add_to_it() -> None:
    words = np.arange(2**18, dtype=np.int64)  # 2 MiB
    sites = [f"s{s}" for s in range(20)]
    tracemalloc.start()
    try:
        totals = Accumulators({"a": ArraySpec(words.shape, 0)}, dict.fromkeys(sites, ("a",)))
        for site in sites:
            totals.begin(site)
            for begin in range(0, len(words), 2**15):
                totals.add(site, ArrayChunk("a", words.shape, 0, begin, words[begin : begin + 2**15]))
            totals.end(site)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(totals["a"], 20 * words)
    assert peak < 1.5 * words.nbytes
