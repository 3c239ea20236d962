"""What engines hold and send while a job runs: made-up labels of a given size, and a job played while it is measured.

Memory is that of arrays: those that can be reached from an engine before a step, and what `tracemalloc` sees it add
at most while it does the step.
"""

from __future__ import annotations

import gc
import tracemalloc
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ce.capacity import Size
from ce.job import Job
from ce.labels import LabelTable
from ce.models.bc3e import BC3E
from ce.models.bce import BCE
from ce.models.mixture import Mixture
from ce.privacy.pair_keys import EphemeralKey
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import add_answer
from ce.protocol.engine.home import Home
from ce.protocol.engine.site import Site
from ce.protocol.engine.starting_parameters import SecretStarts, job_key
from ce.protocol.modes.blind_coordinator import BlindCoordinator
from ce.protocol.modes.contributor import contributor
from ce.protocol.topology.enrolment import enrol, with_tokens
from ce.protocol.topology.topology import align, block_pseudonyms
from ce.service.snapshot_codec import pack
from ce.steps.model import Model

SECRET = bytes(32)
_LEAVES = (type, str, int, float, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def tables_of(size: Size) -> dict[str, LabelTable]:
    """Random labels. Two rows are alike, so that there are weights; hardly any others, so that few are merged. Shared
    objects have no label in shared columns."""
    rng = np.random.default_rng(0)
    tables = {}
    for site in range(size.sites):
        ids = [f"own-{site}-{i}" for i in range(size.private)] + [f"shared-{i}" for i in range(size.shared)]
        names = [f"both-{j}" if j < size.shared_columns else f"own-{site}-{j}" for j in range(size.columns)]
        labels = rng.integers(0, size.categories, (size.objects, size.columns))
        labels[: size.categories] = np.arange(size.categories)[:, None]  # every category, at every site
        labels[size.categories] = labels[0]
        labels[size.private :, : size.shared_columns] = -1
        if size.model == "bc3e":
            votes = rng.integers(0, size.clusters, size.objects)
            votes[size.categories] = votes[0]
            labels, names = np.column_stack([labels, votes]), [*names, f"clf-{site}"]
        tables[f"site{site}"] = LabelTable.from_arrays(
            labels, ids=ids, columns=names, classifiers=names[size.columns :]
        )
    return tables


def job_of(size: Size) -> Job:
    """Of this size: every start runs to the end."""
    many: dict[str, Any] = {"classes" if size.model == "bc3e" else "clusters": size.clusters}
    return Job(
        model=size.model,
        restarts=size.starts,
        max_iterations=size.iterations,
        tolerance=0,
        privacy=size.privacy,
        precision=size.precision,
        halving=False,
        sites=tuple(f"site{site}" for site in range(size.sites)),
        **many,
    )


def model_of(size: Size) -> Model:
    """The same, but without annealing: bce comes to its joint step, which takes most, after ten iterations."""
    k, most = size.clusters, size.iterations
    if size.model == "bce":
        return BCE(k, n_init=size.starts, init="dirichlet", max_iter=most, tol=0).steps()
    if size.model == "mixture":
        return Mixture(k, n_init=size.starts, max_iter=most, tol=0).steps()
    return BC3E(n_classes=k, max_iter=most, tol=0).steps(k)


def held(*roots: object) -> int:
    """Bytes of all arrays that can be reached from here, each counted once."""
    seen: set[int] = set()
    todo: list[Any] = list(roots)
    total = 0
    while todo:
        own = todo.pop()
        if id(own) in seen or isinstance(own, _LEAVES):
            continue
        seen.add(id(own))
        if isinstance(own, np.ndarray):
            if own.base is None:
                total += own.nbytes
            else:
                todo.append(own.base)
        else:
            todo += gc.get_referents(own)
    return total


@dataclass
class Most:
    """The most that was seen."""

    bytes: int = 0

    @contextmanager
    def watch(self, *roots: object) -> Iterator[None]:
        before = held(*roots)
        tracemalloc.reset_peak()
        now, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
        self.bytes = max(self.bytes, before + peak - now)


@dataclass
class Played:
    """What a job took: in memory at home and at one site, and in their largest checkpoints."""

    home: Most
    site: Most
    home_checkpoint: int = 0
    site_checkpoint: int = 0


def play(size: Size, *, keep: bool = False) -> Played:
    """Run a job of this size, as daemons would: objects by pseudonyms, a task as it came, an answer to be repeated."""
    model, tables, key = model_of(size), tables_of(size), job_key(SECRET, b"job")
    model.precision = size.precision
    enrolments = {name: enrol(table, model.uses_votes, key) for name, table in tables.items()}
    topology, rows = align(enrolments)
    attempt = Attempt("job", b"", 1, topology.sites)
    keys = {name: EphemeralKey() for name in tables}
    members = {}
    for name, table in tables.items():
        site = Site(
            name,
            with_tokens(table, key),
            topology.view(name),
            rows[name],
            model,
            SecretStarts.of(SECRET, key, b"job"),
            classes=tuple(range(size.clusters)) if model.uses_votes else (),
        )
        pairs = {p: keys[name].pair_key(own.public, *attempt.context) for p, own in keys.items() if p != name}
        view, objects = topology.view(name), enrolments[name].objects
        members[name] = contributor(size.privacy, attempt, site, view, model, objects, rows[name], pairs)
    known = block_pseudonyms(topology, enrolments, rows)
    home = (BlindCoordinator if size.privacy == "blind" else Home)(topology.whole(), model, pseudonyms=known)
    played = Played(Most(), Most())
    answers: dict[str, Any] = {}
    with _traced():
        while tasks := home.tasks(int(keep and home.begins_iteration)):
            if keep and home.begins_iteration:
                played.home_checkpoint = max(played.home_checkpoint, _packed(home.snapshot()))
            for name, task in tasks.items():
                came = replace(task, arrays={what: array.copy() for what, array in task.arrays.items()})
                own = members[name]
                with played.site.watch(own, tables[name], came, answers.get(name)):
                    answers[name] = own.answer(came)
                if own.checkpoint is not None:
                    played.site_checkpoint = max(played.site_checkpoint, _packed(own.checkpoint))
                    own.checkpoint = None
                del came
            del tasks, task
            with played.home.watch(home):
                assert home.open_round is not None
                for name in tuple(home.open_round.waiting):
                    add_answer(home, name, answers[name])
                home.advance()
                home.tasks()
    return played


def aligning(size: Size) -> int:
    """Bytes that finding out who holds what takes at most, pseudonyms included."""
    tables, key = tables_of(size), job_key(SECRET, b"job")
    enrolments = {name: enrol(table, size.model == "bc3e", key) for name, table in tables.items()}
    most = Most()
    with _traced(), most.watch(enrolments):
        align(enrolments)
    return most.bytes


@contextmanager
def _traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def _packed(snapshot: Mapping[str, Any]) -> int:
    return sum(len(chunk) for chunk in pack(snapshot))
