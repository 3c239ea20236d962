"""The computing half of a site's part in an attempt: from an alignment that breaks no rule to results on the disk.

Every contribution is in the ledger before anybody can send it. A round is answered once: the same task again gets the
same answer, an older one or another one of the same number gets none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ce.errors import MessageError, Refused
from ce.job import Job
from ce.labels import LabelTable
from ce.models.base import hard_labels
from ce.models.bc3e import class_labels
from ce.protocol.engine.score_excluded import whole_memberships
from ce.protocol.engine.site import OnCounts, Site
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.keys.handshake import Attempt
from ce.protocol.messages.task import Answer, Task
from ce.protocol.minimums import Exclusion
from ce.protocol.modes.contributor import Contributor, member
from ce.protocol.topology.topology import Categories, Enrolment, Rows, SiteView
from ce.service.checkpoints import CheckpointFailed, CheckpointId, Checkpoints
from ce.service.logs import fields
from ce.steps.model import Model
from ce_client.state.ledger import Ledger
from ce_client.state.results import Results

log = logging.getLogger("ce_client")


@dataclass(frozen=True)
class Part:
    """What a site brings into an attempt: the job, its labels as far as they take part, and where everything is."""

    attempt: Attempt
    job: Job
    model: Model
    classes: Categories
    whole: LabelTable = field(repr=False)  # all objects of the site, with tokens for categories
    table: LabelTable = field(repr=False)  # those that take part
    enrolment: Enrolment = field(repr=False)
    excluded: tuple[Exclusion, ...]


class SiteRounds:
    """One site's engine, its masks, its ledger and its results."""

    def __init__(
        self,
        part: Part,
        site: str,
        view: SiteView,
        rows: Mapping[int, Rows],
        starts: Starts,
        pair_keys: Mapping[str, bytes],
        enrolment_digest: bytes,
        ledger: Ledger,
        results: Results,
        threads: int,
        on_counts: OnCounts,
        checkpoints: Checkpoints,
        context: bytes,
    ) -> None:
        """`context`: a digest of all that a checkpoint of this job is only good for."""
        self.finished = False
        self.checkpoint_round = 0  # the last one whose state was kept
        self.not_kept = 0  # states that could not be
        self._checkpoints = checkpoints
        self._context = context
        self._part = part
        self._view = view
        self._ledger = ledger
        self._results = results
        self._site = Site(
            site, part.table, view, rows, part.model, starts, classes=part.classes, threads=threads, on_counts=on_counts
        )
        mode, objects = part.job.privacy, part.enrolment.objects
        self._member: Contributor = member(
            mode, part.attempt, self._site, view, part.model, objects, rows, pair_keys, enrolment_digest
        )
        self._last: tuple[int, bytes, Answer] | None = None  # round, digest, answer
        self._committed = False

    def close(self) -> None:
        self._site.close()

    @property
    def committed(self) -> bool:
        """Whether anything beyond counts was answered."""
        return self._committed

    def repeats(self, task: Task, digest: bytes) -> bool:
        """Whether this round was answered. Raises MessageError when it was another task that was."""
        if self._last is None or task.round > self._last[0]:
            return False
        if (task.round, digest) != self._last[:2]:
            raise MessageError("task: of a round that was answered, and not the same")
        return True

    def answer(self, task: Task, digest: bytes) -> Answer:
        """The answer to a task, new or as before."""
        if not self.repeats(task, digest):
            answer = self._recorded(self._resumed(task) if task.resume else self._member.answer(task))
            if task.checkpoint:
                self._keep(task)
            if task.step == "finish":
                self._write_results(task)
            self._last = (task.round, digest, answer)
            self._committed |= task.step not in ("keys", "open", "shares", "counts")
        assert self._last is not None
        return self._last[2]

    @property
    def labels(self) -> list[CheckpointId]:
        """The states of this job, under this alignment, that this site could go on from."""
        return self._checkpoints.ids(self._part.job.name, self._context)

    def _resumed(self, task: Task) -> Answer:
        """Go on from a state that was kept, and answer as then."""
        if self._last is not None and self._last[2].step != "keys":
            raise MessageError("resume: the rounds have begun")
        label = CheckpointId(task.resume, task.round)
        return self._member.resume(task, self._checkpoints.load(self._part.job.name, self._context, label))

    def _keep(self, task: Task) -> None:
        """Before the answer leaves: when all have answered, all have this state. A job can go on without."""
        kept, self._member.kept = self._member.kept, None
        if kept is None:
            raise MessageError("keep: not a step that begins an iteration")
        try:
            self._checkpoints.save(self._part.job.name, self._context, CheckpointId(task.checkpoint, task.round), kept)
            self.checkpoint_round = task.round
        except CheckpointFailed as error:
            self.not_kept += 1
            log.warning("checkpoint not kept", extra=fields(job=self._part.job.name, reason=str(error)))

    def _recorded(self, answer: Answer) -> Answer:
        part = self._part
        contributors = {
            name: (name.removeprefix("box/"),) if name.startswith("box/") else self._view.contributors(name)
            for name in answer.arrays
        }
        modes = {name: "sealed" if name.startswith("box/") else part.job.privacy for name in answer.arrays}
        head = self._ledger.record(
            part.attempt.job, part.attempt.epoch, answer.round, answer.arrays, modes, contributors
        )
        return replace(answer, ledger=head)

    def _write_results(self, task: Task) -> None:
        part = self._part
        order = np.argsort(part.whole.ids)
        took_part = order[np.searchsorted(part.whole.ids, part.table.ids, sorter=order)]
        memberships, unlabelled = whole_memberships(self._site, part.whole, took_part, part.classes)
        kept = np.isin(part.whole.ids, part.table.ids)
        if part.classes:
            labels: Any = class_labels(memberships, part.classes, unlabelled)
        else:
            labels = hard_labels(memberships, unlabelled)
        report = {
            "job": part.job.name,
            "job_digest": part.attempt.job_digest.hex(),
            "model": part.job.model,
            "privacy": part.job.privacy,
            "sites": list(part.attempt.roster),
            "left_behind": sorted(set(part.job.sites) - set(part.attempt.roster)),
            "epoch": part.attempt.epoch,
            "rounds": task.round,
            "objects": part.whole.n_objects,
            "objects_without_a_label": int(unlabelled.sum()),
            "excluded": [
                {"rule": own.rule, "objects": own.objects, "columns": list(own.columns)} for own in part.excluded
            ],
            "columns": [column.name for column in part.table.columns],
        }
        if part.job.privacy == "blind":
            report |= self._blind_outcome()
        excluded = None if kept.all() else ~kept
        self._results.write(part.job, part.whole.ids, labels, memberships, part.classes, report, excluded)
        self.finished = True

    def _blind_outcome(self) -> dict[str, Any]:
        """What nobody but the sites knows."""
        outcome = self._member.home.outcome  # type: ignore[attr-defined]
        path = outcome.paths[outcome.winner]
        return {
            "lower_bound": path.bounds[-1],
            "bound_path": list(path.bounds),
            "iterations": outcome.iterations,
            "converged": path.converged,
            **({} if outcome.kappa is None else {"kappa": outcome.kappa}),
        }


def refuse_too_large(model: Model, view: SiteView, objects: int, most: int) -> None:
    """Before the memory is asked for: a system may give what it does not have, and then end the daemon."""
    numbers = objects + sum(len(column.categories) for column in view.columns)
    needed = 8 * model.n_starts * model.k * numbers
    if needed > most:
        raise Refused(
            "largest_state",
            f"the job would take {needed / 1e9:,.1f} GB of memory or more here, and this site gives it "
            f"{most / 1e9:,.1f} GB: fewer restarts or clusters need less",
        )
