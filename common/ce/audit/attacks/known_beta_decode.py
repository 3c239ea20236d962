"""Decode with known column parameters: find the labels whose words add up to an object's total.

For one object with message m the label r of column c adds phi_h ∝ m_h beta_ch(r), rounded to words exactly as the
engine rounds it. A total over C columns is then one of prod(k_c) sums of words. It has some hundred bits, so that only
one choice of labels fits, and a meet-in-the-middle search finds it.

The attack needs beta: that of the starts where these are public, or in any exchange that of shared columns, which the
home and every co-holder are sent. That is why starts are secret, and why `min_foreign_columns` does not count shared
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ce.audit.adversary_views import NO_IDEA, NOT_ASKED, CoordinatorView, CuriousSiteView, Guess, Guesses, Question
from ce.audit.attacks.meet_in_the_middle import SumSearch, Vectors
from ce.audit.attacks.message_inversion import inferred_totals
from ce.kernels.special import over_clusters
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Array
from ce.protocol.topology.site_view import TopologyColumn, column_groups
from ce.protocol.topology.topology import Topology
from ce.ring import Reals, Scale, Words, encode
from ce.steps.mixture import log_or_floor
from ce.steps.model import Model, stage_of

#: At most this many objects are decoded; they show as much as all would.
_SAMPLE = 80
#: A site computes totals from messages, which are exact to the last few bits.
_TOLERANCE = 1e-9
_MISSING = -1
#: The attack gives up when none of the first `_PATIENCE` objects decodes.
_PATIENCE = 30


def decode_starts(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Decode the first exchange with the starting beta: the public one or, where starts are secret, the seed's."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        columns = _columns(view.topology, questions, block)
        first = view.rounds(block)[0]
        model = stage_of(view.model, first.stage)
        starts = view.public_starts or SeededStarts(view.seed)
        betas = {c.index: model.start_beta(starts.beta(c, model.n_starts, model.k)) for c in columns}
        scale = view.scale(first.stage, "objects")
        guesses |= _answers(questions, block, _decoded(model, scale, first.message, first.total, betas))
    return guesses


def decode_shared(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Decode an exchange for which beta of all columns of the block is known, because all are shared."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        columns = _columns(view.topology, questions, block)
        exchanges = {(e.task.stage, e.task.iteration): e for e in view.exchanges if e.step in ("sums", "objects")}
        for round_ in view.rounds(block):
            exchange = exchanges[round_.stage, round_.iteration]
            sent = {name: array for task in exchange.tasks.values() for name, array in task.arrays.items()}
            betas = _sent_beta(view.topology, sent, columns)
            if betas is None:
                continue
            model, scale = stage_of(view.model, round_.stage), view.scale(round_.stage, "objects")
            guesses |= _answers(questions, block, _decoded(model, scale, round_.message, round_.total, betas))
            break
    return guesses


def decode_as_site(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """Decode what the other sites added, as a site that holds the same columns and so is sent their beta."""
    columns = _columns(view.topology, questions, view.block)
    tasks = {(task.stage, task.iteration): task for task in view.tasks if task.step in ("sums", "objects")}
    for seen in inferred_totals(view):
        task = tasks.get((seen.stage, seen.iteration))
        if task is None or (seen.message is not None and len(seen.message) < len(task.starts)):
            continue  # a start has stopped, and its beta would have to be left out
        betas = _sent_beta(view.topology, task.arrays, columns)
        if betas is not None:
            model, scale = stage_of(view.model, seen.stage), view.scale(seen.stage, "objects")
            return _answers(questions, view.block, _decoded(model, scale, seen.message, seen.residual, betas))
    return {}


def _decoded(
    model: Model, scale: Scale, message: Reals | None, totals: Vectors, betas: Mapping[int, Reals]
) -> dict[int, Guess]:
    """Labels by column, from totals (starts, k, n) of exactly these columns."""
    starts, k, n = totals.shape
    message = np.ones((starts, k, n)) if message is None else message
    alike = model.phases == 2 or not np.ptp(message, axis=-1).any()
    exact = totals.dtype == np.int64
    found = np.full((n, len(betas)), NOT_ASKED, dtype=np.intp)
    search: SumSearch | None = None
    known: dict[bytes, list[int] | None] = {}
    for i in range(min(n, _SAMPLE)):
        if i == _PATIENCE and (found[:i] == NO_IDEA).all():
            found[i:] = NO_IDEA
            break
        if search is None or not alike:
            words = [_options(model, beta, message[:, :, i], scale) for beta in betas.values()]
            search = SumSearch([w if exact else w / scale.unit for w in words])
            known = {}
        total: Vectors = np.ascontiguousarray(totals[:, :, i]).reshape(-1)  # type: ignore[assignment]
        if total.tobytes() not in known:
            known[total.tobytes()] = search.find(total, 0.0 if exact else _TOLERANCE)
        chosen = known[total.tobytes()]
        if chosen is None:
            found[i] = NO_IDEA
        else:
            found[i] = [_MISSING if c == b.shape[-1] else c for c, b in zip(chosen, betas.values(), strict=True)]
    return {column: found[:, at] for at, column in enumerate(betas)}


def _options(model: Model, beta: Reals, message: Reals, scale: Scale) -> Words:
    """(categories + 1, starts * k): the words that each label of an object would add; the last row is no label."""
    starts, k, categories = beta.shape
    words = np.zeros((starts, k, categories + 1), dtype=np.int64)
    if model.phases == 2:
        words[..., :-1] = encode(log_or_floor(beta) if model.audit.log_beta else beta, scale, "sums")
    else:
        # The same operations in the same order as the engine's, so that the words are the same.
        joint = beta * message[:, :, None]
        joint *= (scale.unit / over_clusters(joint))[:, None, :]
        words[..., :-1] = np.rint(joint).astype(np.int64)
    return np.ascontiguousarray(words.reshape(starts * k, -1).T)


def _columns(topology: Topology, questions: Sequence[Question], block: int) -> list[TopologyColumn]:
    """The clusterings that have labels in the block."""
    asked = {question.column for question in questions if question.block == block}
    return [column for column in topology.clusterings if column.index in asked]


def _sent_beta(
    topology: Topology, sent: Mapping[str, Array], columns: Sequence[TopologyColumn]
) -> dict[int, Reals] | None:
    """By column, beta of these columns if it was sent for all of them. A row of zeros means "as before"."""
    found: dict[int, Reals] = {}
    for group in column_groups(topology.columns).values():
        beta = sent.get(ArrayName.of_columns(group.index, "beta"))
        if beta is not None and beta.dtype == np.float64 and beta.all():
            found |= {index: beta[..., where].astype(np.float64) for index, where in group.slices.items()}
    if any(column.index not in found for column in columns):
        return None
    return {column.index: found[column.index] for column in columns}


def _answers(questions: Sequence[Question], block: int, labels: Mapping[int, Guess]) -> Guesses:
    return {q: [labels[q.column]] for q in questions if q.block == block and q.column in labels}
