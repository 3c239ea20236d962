"""Plain, masked and blind give the same bits: who may see what changes nothing about the result.

Labels are spread in every way over several sites; masks are real (keys of pairs and of sets, AES keystreams), and in
blind every site computes for itself from totals that it uncovers.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problems import TOPOLOGIES, Problem, deal, problem
from support.runs import PROBLEMS, assert_equal_runs, fit_in_mode, models

from ce.models import BCE, Mixture
from ce.protocol.engine.starting_parameters import SecretStarts
from ce.protocol.local_run import run
from ce.transport.in_process import InProcess
from ce.transport.loopback import Loopback


@pytest.mark.promise("plain, masked and blind give the same bits.")
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", models(2))
@settings(max_examples=4, deadline=None, derandomize=True)
@given(example=PROBLEMS, sites=st.integers(1, 6), seed=st.integers(0, 2**32), lists_all=st.booleans())
def test_every_mode_gives_the_same_bits(
    name: str, topology: str, example: Problem, sites: int, seed: int, lists_all: bool
) -> None:
    model = models(example.k)[name]
    tables = deal(
        example.table, TOPOLOGIES[topology](example.table, sites, np.random.default_rng(seed)), lists_all=lists_all
    )
    tables = {site: table for site, table in tables.items() if model.uses_votes or table.clusterings}
    if model.uses_votes and not any(table.classifiers for table in tables.values()):
        return
    plain = fit_in_mode(model, tables, "plain", classes=example.classes)
    for privacy in ("masked", "blind"):
        hidden = fit_in_mode(models(example.k)[name], tables, privacy, classes=example.classes, transport_to=InProcess)
        assert_equal_runs(plain, hidden, tables)


@pytest.mark.promise("plain, masked and blind give the same bits.")
@pytest.mark.parametrize("topology", ["rows", "columns", "ragged"])
def test_starts_that_stop_at_different_times_and_secret_starts(topology: str) -> None:
    example = problem(5, k=3, clusterings=6, missing=0.2, n=80)
    tables = deal(example.table, TOPOLOGIES[topology](example.table, 4, np.random.default_rng(5)), lists_all=True)
    key = bytes(32)
    starts = {site: SecretStarts.of(site.encode(), key, b"job") for site in tables}
    model = BCE(3, n_init=4, anneal_iter=10, max_iter=60).steps()
    plain = run(model, tables, starts, job_key=key)
    for privacy in ("masked", "blind"):
        assert_equal_runs(plain, run(model, tables, starts, job_key=key, privacy=privacy), tables)


@pytest.mark.promise("Every transport gives the same bits: in process, gRPC, real daemons.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize("topology", ["rows", "columns", "figure_3"])
def test_over_grpc_too(topology: str, privacy: str) -> None:
    example = problem(7, k=3, clusterings=6, missing=0.2, n=60)
    tables = deal(example.table, TOPOLOGIES[topology](example.table, 4, np.random.default_rng(7)), lists_all=True)
    model = Mixture(3, n_init=2, max_iter=5, tol=0).steps() if topology == "figure_3" else BCE(3, max_iter=15).steps()
    plain = fit_in_mode(model, tables, "plain")
    assert_equal_runs(plain, fit_in_mode(model, tables, privacy, transport_to=Loopback), tables)
