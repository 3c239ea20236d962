"""Transports are interchangeable: what one delivers, every other does, bit for bit, and an error ends each cleanly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import numpy as np
import pytest
from grpc._cython import cygrpc
from support.problems import TOPOLOGIES, deal, problem

import ce
from ce.errors import MessageError, Refused, RingOverflow
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.messages.transport import InMemory, Transport
from ce.transport.in_process import InProcess
from ce.transport.loopback import Loopback
from ce.transport.tls import TlsCredentials, make_server, open_channel

SITES = ("north", "south", "east")
Handler = Callable[[Task], Answer]


def tasks(round_: int, arrays: Mapping[str, Array] | None = None) -> dict[str, Task]:
    return {site: Task(round_, "sums", 0, round_, (0, 3), (3,), arrays or {}) for site in SITES}


def echo(task: Task) -> Answer:
    """All arrays of the task, as they came."""
    return Answer(task.round, task.step, task.starts, task.arrays, dict.fromkeys(task.arrays, 5))


def threads() -> set[str]:
    """Threads of ours; gRPC keeps one of its own for as long as it likes."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("ce ")}


class Contract:
    """What every transport promises."""

    def open(self, sites: Mapping[str, Handler]) -> AbstractContextManager[Transport]:
        raise NotImplementedError

    def test_a_round_reaches_every_site_once_with_its_own_task(self) -> None:
        seen: list[tuple[str, int]] = []

        def handler(site: str) -> Handler:
            def handle(task: Task) -> Answer:
                seen.append((site, task.round))
                assert (task.step, task.stage, task.iteration) == ("sums", 0, task.round)
                assert (task.starts, task.retry) == ((0, 3), (3,))
                return Answer(task.round, task.step, task.starts, {"who": np.array([SITES.index(site)])}, {"who": 0})

            return handle

        with self.open({site: handler(site) for site in SITES}) as transport:
            for round_ in (1, 2, 3):
                answers = list(transport.exchange(tasks(round_)))
                assert sorted(site for site, _ in answers) == sorted(SITES)
                for site, answer in answers:
                    assert (answer.round, answer.step, answer.starts) == (round_, "sums", (0, 3))
                    assert answer.arrays["who"].tolist() == [SITES.index(site)]
        assert sorted(seen) == sorted((site, round_) for site in SITES for round_ in (1, 2, 3))

    def test_a_round_may_be_for_some_of_the_sites(self) -> None:
        with self.open(dict.fromkeys(SITES, echo)) as transport:
            some = {site: task for site, task in tasks(1).items() if site != "south"}
            assert sorted(site for site, _ in transport.exchange(some)) == ["east", "north"]

    def test_arrays_come_back_bit_for_bit(self) -> None:
        rng = np.random.default_rng(1)
        arrays: dict[str, Any] = {
            "block/0/message": rng.standard_normal((2, 3, 7)).transpose(2, 0, 1),
            "column/1/table": np.array([[np.pi, -0.0, 5e-324, 1.7976931348623157e308]]),
            "words": rng.integers(-(2**63), 2**63, (4, 5))[:, ::2],
            "empty": np.zeros((2, 0)),
            "one": np.array(3.5),
        }
        with self.open(dict.fromkeys(SITES, echo)) as transport:
            for _, answer in transport.exchange(tasks(1, arrays)):
                assert list(answer.arrays) == list(arrays)
                assert answer.fraction_bits == dict.fromkeys(arrays, 5)
                for name, array in arrays.items():
                    assert (answer.arrays[name].dtype, answer.arrays[name].shape) == (array.dtype, array.shape)
                    assert answer.arrays[name].tobytes() == array.tobytes()

    def test_arrays_of_several_frames(self) -> None:
        rng = np.random.default_rng(2)
        large = {"a": rng.standard_normal(3 * 2**17 + 1), "b": np.arange(5), "c": rng.integers(0, 9, (2**17 + 3, 3))}
        with self.open(dict.fromkeys(SITES, echo)) as transport:
            for _, answer in transport.exchange(tasks(1, large)):
                for name, array in large.items():
                    assert answer.arrays[name].tobytes() == array.tobytes()

    @pytest.mark.parametrize(
        "error",
        [
            MessageError("starts: there is exactly one winner"),
            Refused("max_rounds", "no more"),
            RingOverflow("bound: a term is not finite"),
            ZeroDivisionError("a defect"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_the_error_of_a_site_is_raised_as_what_it_is_and_leaves_nothing_running(self, error: Exception) -> None:
        before = threads()

        def fail(task: Task) -> Answer:
            if task.round == 2:
                raise error
            return echo(task)

        with self.open({"north": echo, "south": fail, "east": echo}) as transport:
            assert len(list(transport.exchange(tasks(1)))) == 3
            with pytest.raises(type(error)) as caught:
                list(transport.exchange(tasks(2)))
        assert caught.value is error
        assert threads() == before

    def test_a_caller_that_gives_up_leaves_nothing_running(self) -> None:
        before = threads()

        def give_up() -> None:
            with self.open(dict.fromkeys(SITES, echo)) as transport:
                next(iter(transport.exchange(tasks(1))))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            give_up()
        assert threads() == before


class Encoded(Contract):
    """What those promise that encode messages."""

    def test_numbers_that_are_not_finite_reach_nobody(self) -> None:
        def lie(task: Task) -> Answer:
            return Answer(task.round, task.step, task.starts, {"bound": np.array([np.nan])}, {"bound": 0})

        before = threads()
        with (
            pytest.raises(MessageError, match="bound: not all numbers are finite"),
            self.open({"north": echo, "south": lie, "east": echo}) as transport,
        ):
            list(transport.exchange(tasks(1)))
        with (
            pytest.raises(MessageError, match="alpha: not all numbers are finite"),
            self.open(dict.fromkeys(SITES, echo)) as transport,
        ):
            list(transport.exchange(tasks(1, {"alpha": np.array([np.inf])})))
        assert threads() == before


class TestInMemory(Contract):
    def open(self, sites: Mapping[str, Handler]) -> AbstractContextManager[Transport]:
        return nullcontext(InMemory(sites))


class TestInProcess(Encoded):
    def open(self, sites: Mapping[str, Handler]) -> AbstractContextManager[Transport]:
        return InProcess(sites)


class TestLoopback(Encoded):
    def open(self, sites: Mapping[str, Handler]) -> AbstractContextManager[Transport]:
        return Loopback(sites)

    def test_no_handler_of_a_call_outlives_the_event_loop(self) -> None:
        """One that does is collected at any later moment, and raises where nobody expects it."""
        for _ in range(5):
            loopback = Loopback(dict.fromkeys(SITES, echo))
            with loopback:
                list(loopback.exchange(tasks(1)))
            assert not asyncio.all_tasks(loopback._loop)


@pytest.mark.promise("Every transport gives the same bits: in process, gRPC, real daemons.")
def test_both_ways_send_the_same_bytes() -> None:
    rng = np.random.default_rng(3)
    rounds = [
        tasks(1),
        tasks(2, {"small": rng.standard_normal(3), "none": np.zeros((0, 2))}),
        tasks(3, {"large": rng.standard_normal(2**17 + 1)}),
    ]
    counts = {}
    for make in (InProcess, Loopback):
        with make(dict.fromkeys(SITES, echo)) as transport:
            counts[make] = []
            for round_ in rounds:
                assert len(list(transport.exchange(round_))) == len(SITES)
                counts[make].append(transport.bytes_sent)
    assert counts[InProcess] == counts[Loopback]
    assert counts[InProcess][-1] > 2 * len(SITES) * 2**20


def test_every_setting_of_a_stream_is_one_that_grpc_knows() -> None:
    """It says nothing to a misspelt one: the coordinator then took a site's signs of life for an attack."""
    credentials = TlsCredentials(b"", b"", b"")
    with (
        mock.patch.object(grpc.aio, "server") as server,
        mock.patch.object(grpc.aio, "secure_channel") as channel,
        mock.patch.object(grpc, "ssl_server_credentials"),
        mock.patch.object(grpc, "ssl_channel_credentials"),
    ):
        make_server(credentials, "127.0.0.1:0")
        open_channel("127.0.0.1:1", credentials)
    library = Path(cygrpc.__file__).read_bytes()
    for made in (server, channel):
        names = [name for name, _ in made.call_args.kwargs["options"]]
        assert "grpc.keepalive_time_ms" in names
        assert [name for name in names if name.encode() not in library] == []


@pytest.mark.promise("Every transport gives the same bits: in process, gRPC, real daemons.")
@pytest.mark.parametrize(
    ("model", "layout"), [("bce", "rows"), ("mixture", "columns"), ("bc3e", "ragged")], ids=lambda value: value
)
def test_a_simulation_over_grpc_gives_the_same_bits(model: str, layout: str) -> None:
    example = problem(11, k=3, clusterings=5, classifiers=2 if model == "bc3e" else 0, missing=0.1, n=40)
    owner = TOPOLOGIES[layout](example.table, 3, np.random.default_rng(2))
    tables = deal(example.table, owner, lists_all=layout == "columns")
    asked: dict[str, Any] = {"classes": example.classes} if model == "bc3e" else {"clusters": 3, "restarts": 2}
    job = ce.Job(model=model, max_iterations=6, **asked)
    secrets = {site: site.encode() for site in tables}
    first, second = (ce.simulate(job, tables, transport=t, secrets=secrets) for t in ("inprocess", "grpc"))
    assert first.layout == {"rows": "row", "columns": "column", "ragged": "arbitrary"}[layout]
    assert first.bound_path.tobytes() == second.bound_path.tobytes()
    assert (first.exchanges, first.bytes_sent) == (second.exchanges, second.bytes_sent)
    for site in tables:
        assert first.sites[site].memberships.tobytes() == second.sites[site].memberships.tobytes()
        assert first.sites[site].labels.tolist() == second.sites[site].labels.tolist()
    for name, beta in first.parameters["beta"].items():
        assert beta.tobytes() == second.parameters["beta"][name].tobytes()
    assert not threads()
