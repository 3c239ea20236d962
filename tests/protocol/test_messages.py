"""Messages: what is packed comes back, garbage is a typed error, and nobody accepts what was not asked for."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from ce.transport.frames import pack, unpack
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from problems import TOPOLOGIES, deal, problem

from ce.errors import MessageError
from ce.models import BCE, Mixture
from ce.protocol.enrolling import enrolment
from ce.protocol.home import Home
from ce.protocol.messages import Answer, Task
from ce.protocol.site import Site
from ce.protocol.starts import SeededStarts
from ce.protocol.topology import align

ARRAYS = st.dictionaries(
    st.text(max_size=20),
    st.one_of(
        hnp.arrays(np.int64, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)),
        hnp.arrays(
            np.float64,
            hnp.array_shapes(max_dims=3, max_side=4),
            elements=st.floats(allow_nan=False, allow_infinity=False),
        ),
    ),
    max_size=4,
)


@settings(max_examples=100, derandomize=True)
@given(st.dictionaries(st.text(max_size=5).filter(lambda k: k != "arrays"), st.integers()), ARRAYS)
def test_what_is_packed_comes_back(header: dict[str, int], arrays: dict[str, np.ndarray]) -> None:
    again, same = unpack(pack(header, arrays))
    assert again == header
    assert list(same) == list(arrays)
    for name, array in arrays.items():
        assert same[name].dtype == array.dtype
        np.testing.assert_array_equal(same[name], array)


@settings(max_examples=300, derandomize=True)
@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_a_message_error(garbage: bytes, with_prefix: bool) -> None:
    message = b"CEF1" + struct.pack("<I", len(garbage)) + garbage if with_prefix else garbage
    for decode in (unpack, Task.decode, Answer.decode):
        with pytest.raises(MessageError):
            decode(message)


@settings(max_examples=300, derandomize=True)
@given(st.data())
def test_a_damaged_message_is_an_error_or_a_message_of_the_same_kind(data: st.DataObject) -> None:
    task = Task(3, "sums", 0, 2, (0, 2), (2,), {"global/alpha": np.ones((2, 3)), "block/0/message": np.ones((2, 3, 4))})
    message = bytearray(task.encode())
    at = data.draw(st.integers(0, len(message) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "append"])):
        case "flip":
            message[at] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del message[at:]
        case _:
            message += b"x"
    try:
        decoded = Task.decode(bytes(message))
    except MessageError:
        return
    assert set(decoded.retry) <= set(decoded.starts)
    assert all(np.isfinite(array).all() for array in decoded.arrays.values())


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (["a", "f8", [2**39]], "ends before"),
        (["a", "f8", [2**39, 2**39, 2**39]], "ends before"),
        (["a", "f8", [-1]], "sizes"),
        (["a", "f8", [1.5]], "sizes"),
        (["a", "f8", [1] * 9], "short list"),
        (["a", "f4", [1]], "neither"),
        (["a" * 300, "f8", [1]], "short string"),
        (["a"], "entry"),
        ("a", "entry"),
    ],
)
def test_a_lying_header_is_refused_before_anything_is_allocated(entry: object, says: str) -> None:
    text = json.dumps({"arrays": [entry]}).encode()
    with pytest.raises(MessageError, match=says):
        unpack(b"CEF1" + struct.pack("<I", len(text)) + text + b"\0" * 8)


def test_numbers_that_are_not_finite_are_refused_by_name() -> None:
    for bad in (np.nan, np.inf):
        with pytest.raises(MessageError, match="gamma"):
            unpack(pack({}, {"gamma": np.array([1.0, bad])}))


def _job() -> tuple[Home, dict[str, Site]]:
    example = problem(4, k=2, clusterings=4, missing=0.1)
    tables = deal(example.table, TOPOLOGIES["ragged"](example.table, 3, np.random.default_rng(0)))
    model = BCE(2, n_init=2, max_iter=3, tol=0).steps()
    topology, rows = align({site: enrolment(table, votes=False) for site, table in tables.items()})
    sites = {s: Site(s, t, topology, rows[s], model, SeededStarts(0)) for s, t in tables.items()}
    return Home(topology, model), sites


def _exchange(home: Home, sites: dict[str, Site]) -> dict[str, Answer]:
    return {s: Answer.decode(sites[s].answer(task.encode())) for s, task in home.tasks().items()}


def test_the_home_refuses_what_it_did_not_ask_for_and_goes_on() -> None:
    home, sites = _job()
    for _ in range(2):
        answers = _exchange(home, sites)
        first = min(answers)
        good = answers[first]
        name = next(name for name in good.arrays if name.startswith("block"))
        before = {n: total.copy() for n, total in home._totals.items()}
        lies = [
            replace(good, round=good.round + 1),
            replace(good, step="columns"),
            replace(good, arrays={}),
            replace(good, arrays={**good.arrays, "extra": np.zeros(1, dtype=np.int64)}),
            replace(good, arrays={**good.arrays, name: good.arrays[name][..., :-1]}),
            replace(good, arrays={**good.arrays, name: good.arrays[name].astype(np.float64)}),
        ]
        for lie in lies:
            with pytest.raises(MessageError):
                home.add(first, lie)
        with pytest.raises(MessageError):
            home.add("nobody", good)
        # A refused answer leaves no trace in the totals, and the right one is still welcome, once.
        for n, total in home._totals.items():
            np.testing.assert_array_equal(total, before[n])
        with pytest.raises(MessageError):
            home.advance()
        for site, answer in answers.items():
            home.add(site, answer)
        with pytest.raises(MessageError):
            home.add(first, good)
        home.advance()


def test_a_site_refuses_tasks_that_do_not_fit() -> None:
    home, sites = _job()
    for site, answer in _exchange(home, sites).items():
        home.add(site, answer)
    home.advance()
    name, task = next(iter(home.tasks().items()))
    for lie in (
        replace(task, stage=1),
        replace(task, starts=(0,)),
        replace(task, starts=(0, 1, 2)),
        replace(task, arrays={}),
        replace(task, arrays={n: a[:1] for n, a in task.arrays.items()}),
        replace(task, step="finish", starts=(7,)),
    ):
        with pytest.raises(MessageError):
            sites[name].answer(lie.encode())


def test_two_phase_models_take_the_same_care() -> None:
    example = problem(4, k=2, clusterings=4, missing=0.1)
    tables = deal(example.table, TOPOLOGIES["ragged"](example.table, 3, np.random.default_rng(0)))
    model = Mixture(2, n_init=1, max_iter=3, tol=0).steps()
    topology, rows = align({site: enrolment(table, votes=False) for site, table in tables.items()})
    sites = {s: Site(s, t, topology, rows[s], model, SeededStarts(0)) for s, t in tables.items()}
    home = Home(topology, model)
    steps = []
    for _ in range(5):
        steps.append(next(iter(home.tasks().values())).step)
        for site, answer in _exchange(home, sites).items():
            home.add(site, answer)
        home.advance()
    assert steps == ["open", "objects", "columns", "objects", "columns"]
