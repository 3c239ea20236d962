"""Known-table decode: a total of an object's sums is a sum of table entries, and tables that are known can be searched.

For one object with message m the label r of column c adds phi_h ∝ m_h beta_ch(r), rounded to words exactly as the
engine rounds it. A total over C columns is then one of prod(k_c) sums of words, and a total has some hundred bits:
there is one answer, every label of the object, and meeting in the middle finds it.

It needs the tables: of the starts, where these are public; in any exchange those of shared columns, which the home and
every co-holder are told. That is why starts are secret, and why shared columns do not count as cover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ce.audit.adversary_views import NO_IDEA, NOT_ASKED, CoordinatorView, CuriousSiteView, Guess, Guesses, Question
from ce.audit.attacks.meet_in_the_middle import Meeting, Vectors
from ce.audit.attacks.message_inversion import inferred_totals
from ce.kernels.special import over_clusters
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.messages.task import Array
from ce.protocol.topology.topology import Topology, TopologyColumn, column_groups
from ce.ring import Reals, Scale, Words, encode
from ce.steps.mixture import MixtureSteps, log_or_floor
from ce.steps.model import Model, stage_of

#: So many objects tell as much as all of them.
_SAMPLE = 80
#: A site works totals out of messages, which are exact to the last few bits.
_TOLERANCE = 1e-9
_MISSING = -1
#: Where none of so many objects decodes, none will.
_PATIENCE = 30


def decode_starts(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """The first exchange, with the starting tables: the public ones or, where they are secret, the seed's."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        columns = _columns(view.topology, questions, block)
        first = view.rounds(block)[0]
        model = stage_of(view.model, first.stage)
        starts = view.public_starts or SeededStarts(view.seed)
        tables = {c.index: model.start_table(starts.tables(c, model.n_starts, model.k)) for c in columns}
        scale = view.scale(first.stage, "objects")
        guesses |= _answers(questions, block, _decoded(model, scale, first.message, first.total, tables))
    return guesses


def decode_shared(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """An exchange for which all tables of the block's columns are known, because all are shared."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        columns = _columns(view.topology, questions, block)
        tables_of = {(e.task.stage, e.task.iteration): e for e in view.exchanges if e.step in ("sums", "objects")}
        for round_ in view.rounds(block):
            exchange = tables_of[round_.stage, round_.iteration]
            told = {name: array for task in exchange.tasks.values() for name, array in task.arrays.items()}
            tables = _told_tables(view.topology, told, columns)
            if tables is None:
                continue
            model, scale = stage_of(view.model, round_.stage), view.scale(round_.stage, "objects")
            guesses |= _answers(questions, block, _decoded(model, scale, round_.message, round_.total, tables))
            break
    return guesses


def decode_as_site(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """What the others added, decoded by a site that holds the same columns and so is told their tables."""
    columns = _columns(view.topology, questions, view.block)
    told = {(task.stage, task.iteration): task for task in view.tasks if task.step in ("sums", "objects")}
    for seen in inferred_totals(view):
        task = told.get((seen.stage, seen.iteration))
        if task is None or (seen.message is not None and len(seen.message) < len(task.starts)):
            continue  # a start has stopped, and its tables would have to be left out
        tables = _told_tables(view.topology, task.arrays, columns)
        if tables is not None:
            model, scale = stage_of(view.model, seen.stage), view.scale(seen.stage, "objects")
            return _answers(questions, view.block, _decoded(model, scale, seen.message, seen.residual, tables))
    return {}


def _decoded(
    model: Model, scale: Scale, message: Reals | None, totals: Vectors, tables: Mapping[int, Reals]
) -> dict[int, Guess]:
    """Labels by column, from totals (starts, k, n) of exactly these columns."""
    starts, k, n = totals.shape
    message = np.ones((starts, k, n)) if message is None else message
    alike = model.phases == 2 or not np.ptp(message, axis=-1).any()
    exact = totals.dtype == np.int64
    found = np.full((n, len(tables)), NOT_ASKED, dtype=np.intp)
    meeting: Meeting | None = None
    known: dict[bytes, list[int] | None] = {}
    for i in range(min(n, _SAMPLE)):
        if i == _PATIENCE and (found[:i] == NO_IDEA).all():
            found[i:] = NO_IDEA
            break
        if meeting is None or not alike:
            words = [_options(model, table, message[:, :, i], scale) for table in tables.values()]
            meeting = Meeting([w if exact else w / scale.unit for w in words])
            known = {}
        total: Vectors = np.ascontiguousarray(totals[:, :, i]).reshape(-1)  # type: ignore[assignment]
        if total.tobytes() not in known:
            known[total.tobytes()] = meeting.find(total, 0.0 if exact else _TOLERANCE)
        chosen = known[total.tobytes()]
        if chosen is None:
            found[i] = NO_IDEA
        else:
            found[i] = [_MISSING if c == t.shape[-1] else c for c, t in zip(chosen, tables.values(), strict=True)]
    return {column: found[:, at] for at, column in enumerate(tables)}


def _options(model: Model, table: Reals, message: Reals, scale: Scale) -> Words:
    """(categories + 1, starts * k): the words that each label of an object would add; the last row is no label."""
    starts, k, categories = table.shape
    words = np.zeros((starts, k, categories + 1), dtype=np.int64)
    if model.phases == 2:
        words[..., :-1] = encode(log_or_floor(table) if isinstance(model, MixtureSteps) else table, scale, "sums")
    else:
        # The same operations in the same order as the engine's, so that the same words come out.
        joint = table * message[:, :, None]
        joint *= (scale.unit / over_clusters(joint))[:, None, :]
        words[..., :-1] = np.rint(joint).astype(np.int64)
    return np.ascontiguousarray(words.reshape(starts * k, -1).T)


def _columns(topology: Topology, questions: Sequence[Question], block: int) -> list[TopologyColumn]:
    """The clusterings that have cells in the block; of shared ones the opening's claims tell."""
    asked = {question.column for question in questions if question.block == block}
    return [column for column in topology.clusterings if column.index in asked]


def _told_tables(
    topology: Topology, told: Mapping[str, Array], columns: Sequence[TopologyColumn]
) -> dict[int, Reals] | None:
    """The tables of these columns, if all of them were told. A row of zeros stands for one that was sent before."""
    found: dict[int, Reals] = {}
    for group in column_groups(topology.columns).values():
        tables = told.get(f"columns/{group.index}/beta")
        if tables is not None and tables.dtype == np.float64 and tables.all():
            found |= {index: tables[..., where].astype(np.float64) for index, where in group.slices.items()}
    if any(column.index not in found for column in columns):
        return None
    return {column.index: found[column.index] for column in columns}


def _answers(questions: Sequence[Question], block: int, labels: Mapping[int, Guess]) -> Guesses:
    return {q: [labels[q.column]] for q in questions if q.block == block and q.column in labels}
