"""Jobs with precision = "single": half the bytes for shared objects, nearly the same bound, and the same bits in every
mode and transport.

That layouts, modes, stretches and cut runs agree to the bit is tested with all other models, of which `models` lists
some in single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.ensembles import by_cells, by_columns, by_rows, noisy
from support.runs import in_single

import ce
from ce.errors import MessageError
from ce.job import MODES_OF_TOTALS
from ce.labels import LabelTable
from ce.models import BC3E, BCE, Mixture
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.local_run import run
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.messages.task import Answer, Task
from ce.protocol.messages.transport import InMemory
from ce.ring import Scale
from ce.steps.model import Model, Sizes
from ce.steps.precision import SMALLEST_SHORT, as_sent, rounding_of_bound
from ce.transport.frames import task_frames, task_header
from ce_proto.v1 import site_pb2 as pb

LAYOUTS: dict[str, Callable[[Any], dict[str, LabelTable]]] = {
    "columns": lambda labels: by_columns(labels, 3),
    "cells": lambda labels: by_cells(labels, 3),
}
#: A job in single precision takes at most this part of the bytes that double precision takes for shared objects.
HALF = 0.53


def job_of(precision: str, **keys: Any) -> ce.Job:
    return ce.Job(**{"clusters": 4, "restarts": 2, "precision": precision, **keys})


# What it saves, and what it costs.


@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
def test_shared_objects_take_half_the_bytes(privacy: str) -> None:
    tables = by_columns(noisy(1, 600, 12, 4, 5, 0.3), 3)
    sent = {}
    for precision in ("double", "single"):
        job = job_of(precision, max_iterations=15, tolerance=0.0, privacy=privacy)
        result = ce.simulate(job, tables)
        sent[precision] = result.bytes_sent
    assert 0.5 < sent["single"] / sent["double"] < HALF


def test_objects_that_one_site_holds_take_no_fewer_bytes() -> None:
    """Column sums of more objects than 32 bits can add up."""
    tables = by_rows(noisy(1, 300, 12, 4, 5, 0.3), [100, 100])
    sent = [ce.simulate(job_of(p, max_iterations=5, tolerance=0.0), tables).bytes_sent for p in ("double", "single")]
    assert sent[0] <= sent[1] < sent[0] + 30 * 3 * 12  # beside the width in each list of arrays that are asked for


@pytest.mark.parametrize(
    ("layout", "wrong", "keys"),
    [
        ("columns", 0.0, {}),
        ("columns", 0.3, {"tolerance": 1e-10}),
        ("columns", 0.3, {"schedule": "newton"}),
        ("columns", 0.3, {"smoothing": 1e-3}),
        ("columns", 0.3, {"local_loops": 3}),
        ("columns", 0.3, {"model": "mixture"}),
        ("cells", 0.0, {"model": "mixture"}),
        ("cells", 0.3, {}),
    ],
    ids=str,
)
def test_the_bound_is_that_of_double_precision_within_a_millionth(
    layout: str, wrong: float, keys: dict[str, Any]
) -> None:
    tables = LAYOUTS[layout](noisy(3, 400, 15, 4, 6, wrong, 0.1))
    double, single = (ce.simulate(job_of(p, privacy="plain", **keys), tables) for p in ("double", "single"))
    assert single.lower_bound == pytest.approx(double.lower_bound, rel=1e-6)
    assert single.converged
    for site, result in double.sites.items():
        assert np.mean(single.sites[site].labels == result.labels) > 0.99


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
def test_the_bound_of_classes_is_that_of_double_precision_within_a_millionth(posterior: str) -> None:
    labels, votes = noisy(5, 300, 9, 3, 5, 0.3), noisy(5, 300, 3, 3, 3, 0.2)
    tables = {}
    for s in range(3):
        names = [f"c{s}a", f"c{s}b", f"c{s}c", f"v{s}"]
        mine = np.column_stack([labels[:, 3 * s : 3 * s + 3], votes[:, s]])
        tables[f"site{s}"] = LabelTable.from_arrays(mine, columns=names, classifiers=[f"v{s}"])
    found = [ce.simulate(ce.Job(model="bc3e", classes=3, posterior=posterior, precision=p), tables) for p in PRECISIONS]
    np.testing.assert_allclose(found[1].bound_path, found[0].bound_path, rtol=1e-6)


PRECISIONS = ("double", "single")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [0.02, 1.0])
def test_the_bound_does_not_fall(seed: int, alpha: float) -> None:
    """By no more than the square of what is rounded. Were the rounding of messages not in the bound, it would."""
    tables = by_columns(noisy(seed, 150, 10, 3, 5, 0.35), 2)
    model = in_single(BCE(3, n_init=2, learn_alpha=False, alpha=alpha, max_iter=120, tol=0).steps())
    paths = run(model, tables, dict.fromkeys(tables, SeededStarts(seed))).outcome.paths
    for path in paths.values():
        bounds = np.array(path.bounds)
        assert (np.diff(bounds) >= -1e-12 * np.abs(bounds[:-1])).all()


def test_the_bound_is_exact_for_the_phi_that_the_cells_have_taken() -> None:
    rng = np.random.default_rng(2)
    message = rng.random((1, 4, 50)) ** 6
    message /= message.max(axis=1, keepdims=True)
    message[0, 1, :5] = (1e-60, 1e-320, 0.0, 1e-38, 1e-300)
    used = as_sent(message, "single").astype(np.float64)
    beta = rng.dirichlet(np.ones(50), 4)[None]  # each object has a label of its own
    joint = used * beta
    phi = joint / joint.sum(axis=1, keepdims=True)
    logs = np.log(np.maximum(message, np.finfo(float).tiny))
    exact = (phi * (logs + np.log(beta) - np.log(phi))).sum(axis=1)
    np.testing.assert_allclose(
        np.log(joint.sum(axis=1)) + rounding_of_bound(message, phi), exact, rtol=1e-13, atol=1e-13
    )


def test_messages_are_rounded_to_the_nearest_and_never_vanish() -> None:
    message = np.array([1.0, 0.1, 1 / 3, 1e-37, 1e-39, 1e-50, 0.0])
    sent = as_sent(message, "single")
    assert sent.dtype == np.float32
    assert sent[:4].tolist() == message[:4].astype(np.float32).tolist()
    assert sent[4:].tolist() == [SMALLEST_SHORT] * 3
    assert as_sent(message, "double") is message


# Which arrays are short.


def sizes(objects: int, clusterings: int) -> Sizes:
    return Sizes(objects, clusterings, 3, 5 * clusterings)


def test_arrays_that_would_keep_too_few_fraction_bits_are_those_of_double_precision() -> None:
    fine, short = BCE(3).steps(), in_single(BCE(3).steps())
    scales = short.scales(sizes(10**6, 1024))
    assert scales["objects"] == Scale(20, 1.0, 32)
    assert scales["columns"] == Scale(20, 1.0, 64)
    assert short.scales(sizes(10**6, 1025)) == fine.scales(sizes(10**6, 1025))
    assert short.scales(sizes(16, 10))["columns"] == short.scales(sizes(16, 10))["objects"] == Scale(26, 1.0, 32)
    for what in set(fine.scales(sizes(500, 20))) - {"objects", "columns"}:
        assert short.scales(sizes(500, 20))[what] == fine.scales(sizes(500, 20))[what]


def test_sums_of_logarithms_keep_64_bits() -> None:
    fine, short = (model.scales(sizes(5000, 2)) for model in (Mixture(3).steps(), in_single(Mixture(3).steps())))
    assert short == fine
    assert in_single(Mixture(3).steps()).scales(sizes(5000, 1))["objects"].word_bits == 32
    diffusion = in_single(BC3E(start="diffused").steps(3))
    assert [diffusion.scales(sizes(900, 8))[what].word_bits for what in ("objects", "columns")] == [32, 32]
    assert diffusion.scales(sizes(2000, 8))["columns"].word_bits == 64


@pytest.mark.parametrize(
    ("model", "privacy", "sums"),
    [
        (BCE(3, n_init=2, max_iter=3, tol=0), "plain", np.int32),
        (BCE(3, n_init=2, max_iter=3, tol=0), "blind", np.int32),
        (Mixture(3, n_init=2, max_iter=3, tol=0), "masked", np.int64),
    ],
    ids=["bce plain", "bce blind", "mixture masked"],
)
def test_what_travels(model: Any, privacy: str, sums: type) -> None:
    seen: dict[str, set[str]] = {}

    def note(arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            seen.setdefault(ArrayName(name).what, set()).add(array.dtype.name)

    def task_seen(task: Task) -> Task:
        note(task.arrays)
        return task

    def answer_seen(answer: Answer) -> Answer:
        note(answer.arrays)
        return answer

    play(in_single(model.steps()), privacy, task_seen, answer_seen)
    assert seen["sums"] == {np.dtype(sums).name}
    assert ("message" in seen) == (privacy != "blind")
    assert seen.get("message", {"float32"}) == {"float32"}
    assert seen["bound"] == {"int64"}
    if privacy == "blind":
        assert seen["mac"] == {"int64"}


# Who sends another width.


def play(
    model: Model,
    privacy: str,
    on_task: Callable[[Task], Task] = lambda task: task,
    on_answer: Callable[[Answer], Answer] = lambda answer: answer,
) -> None:
    """A job of two sites that share all objects; one of them is sent, and sends, what these functions make of it."""
    tables = by_columns(noisy(4, 40, 6, 3, 4, 0.3), 2)

    class Changed:
        bytes_sent = 0

        def __init__(self, handlers: Mapping[str, Callable[[Task], Answer]]) -> None:
            self._inner = InMemory(handlers)

        def exchange(self, tasks: Mapping[str, Task]) -> Any:
            changed = {site: on_task(task) if site == "site1" else task for site, task in tasks.items()}
            for site, answer in self._inner.exchange(changed):
                yield site, on_answer(answer) if site == "site1" else answer

    starts = dict.fromkeys(tables, SeededStarts(3))
    run(model, tables, starts, privacy=privacy, transport_to=lambda handlers: nullcontext(Changed(handlers)))


def bce() -> Model:
    return in_single(BCE(3, n_init=2, max_iter=3, tol=0).steps())


def retyped(arrays: Mapping[str, Any], what: str, kind: type) -> dict[str, Any]:
    return {n: a.astype(kind) if ArrayName(n).what == what else a for n, a in arrays.items()}


@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
@pytest.mark.parametrize("kind", [np.int64, np.float32, np.uint8])
def test_words_of_another_width_than_asked_for_are_refused_by_name(kind: type, privacy: str) -> None:
    says = f"^site1: block/0/sums: expected words, shape .* in 32-bit words; got {np.dtype(kind).name}"
    with pytest.raises(MessageError, match=says):
        play(bce(), privacy, on_answer=lambda a: replace(a, arrays=retyped(a.arrays, "sums", kind)))


def test_short_words_where_long_ones_are_asked_for_are_refused_by_name() -> None:
    with pytest.raises(MessageError, match=r"^site1: global/bound: expected words, shape .*; got int32, .*32-bit"):
        play(bce(), "plain", on_answer=lambda a: replace(a, arrays=retyped(a.arrays, "bound", np.int32)))
    wide = BCE(3, n_init=2, max_iter=3, tol=0).steps()
    with pytest.raises(MessageError, match=r"^site1: block/0/sums: expected words, .*; got int32"):
        play(wide, "plain", on_answer=lambda a: replace(a, arrays=retyped(a.arrays, "sums", np.int32)))


def test_a_message_of_another_width_is_refused_by_name() -> None:
    with pytest.raises(MessageError, match=r"^block/0/message: expected real numbers of 32 bits of .*, got float64"):
        play(bce(), "plain", lambda t: replace(t, arrays=retyped(t.arrays, "message", np.float64)))
    wide = BCE(3, n_init=2, max_iter=3, tol=0).steps()
    with pytest.raises(MessageError, match=r"^block/0/message: expected real numbers of shape .*, got float32"):
        play(wide, "plain", lambda t: replace(t, arrays=retyped(t.arrays, "message", np.float32)))


def test_a_blind_total_of_another_width_is_refused_by_name() -> None:
    with pytest.raises(MessageError, match=r"^block/0/sums: the total is missing, or not words of .* in 32-bit words"):
        play(bce(), "blind", lambda t: replace(t, arrays=retyped(t.arrays, "sums", np.int64)))


@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
def test_a_task_that_asks_for_another_width_is_refused_by_name(privacy: str) -> None:
    """Before anything is computed: a site never sends words that wrap around."""

    def asks_for_long(task: Task) -> Task:
        return replace(task, asked={name: spec._replace(word_bits=64) for name, spec in task.asked.items()})

    with pytest.raises(
        MessageError, match=r"^asked: block/0/sums: expected shape .*in 32-bit words, got shape .* bits"
    ):
        play(bce(), privacy, asks_for_long)
    with pytest.raises(MessageError, match=r"^asked: block/0/sums: expected shape .*, got shape .* in 32-bit words"):
        play(
            BCE(3, n_init=2, max_iter=3, tol=0).steps(),
            privacy,
            lambda t: replace(t, asked={n: s._replace(word_bits=32) if "sums" in n else s for n, s in t.asked.items()}),
        )


@pytest.mark.parametrize("word_bits", [1, 16, 31, 33, 128, 2**32 - 1])
def test_a_width_that_no_word_has_is_refused_by_name(word_bits: int) -> None:
    asked = pb.AskedArray(name="block/0/sums", shape=[2, 3], fraction_bits=27, word_bits=word_bits)
    with pytest.raises(MessageError, match=f"^asked: block/0/sums: expected words of 32 or 64 bits, got {word_bits}"):
        task_header(pb.Task(round=1, step=pb.STEP_SUMS, asked=[asked]))


def test_the_width_is_written_only_where_it_is_32() -> None:
    specs = {"block/0/sums": ArraySpec((2, 3), 27, 32), "global/bound": ArraySpec((2,), 30)}
    [frame] = task_frames("job", 1, Task(1, "sums", asked=specs), b"")
    assert [(one.name, one.word_bits) for one in frame.task.asked] == [("block/0/sums", 32), ("global/bound", 0)]
    assert task_header(frame.task).asked == specs


def test_a_site_whose_sums_do_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model of a package would whose scale says less than its terms."""
    model = bce()
    scales = model.scales
    monkeypatch.setattr(model, "scales", lambda s: {**scales(s), "objects": replace(scales(s)["objects"], bits=33)})
    with pytest.raises(ce.errors.RingOverflow, match=r"^block/0/sums: a sum does not fit in 32-bit words"):
        play(model, "plain")


# The job's key.


@pytest.mark.promise("plain, masked and blind give the same bits.")
@pytest.mark.parametrize("transport", ["inprocess", "grpc"])
def test_a_simulation_gives_the_same_bits_in_every_mode_and_transport(transport: str) -> None:
    tables = by_cells(noisy(6, 60, 8, 3, 5, 0.3, 0.1), 3)
    secrets = {site: site.encode() for site in tables}
    results = [
        ce.simulate(job_of("single", max_iterations=70), tables, privacy=privacy, transport=transport, secrets=secrets)
        for privacy in MODES_OF_TOTALS
    ]
    first = results[0]
    for other in results[1:]:
        assert other.bound_path.tobytes() == first.bound_path.tobytes()
        for site, result in first.sites.items():
            assert other.sites[site].memberships.tobytes() == result.memberships.tobytes()
