"""The third phase of an attempt: from an alignment that may be used to results on the disk.

Every contribution is in the ledger before it can be sent. A round is answered once: the same task again gets the same
answer; an older task, or another task of the same round, is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ce.cancellation import check_cancelled
from ce.consensus_file import as_it_is, as_text, consensus_labels
from ce.errors import MessageError
from ce.labels import LabelTable
from ce.protocol.engine.site import Site
from ce.protocol.engine.starting_parameters import SecretStarts
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.modes.contributor import Contributor, contributor
from ce.protocol.score_excluded import whole_memberships
from ce.protocol.topology.enrolment import with_tokens
from ce.protocol.topology.topology import Rows
from ce.service.checkpoints import CheckpointFailed, CheckpointId
from ce.service.logs import fields
from ce_client.attempt.admission import Admitted
from ce_client.attempt.answered_rounds import AnsweredRounds
from ce_client.attempt.recorder import AttemptRecorder
from ce_client.config import ClientSettings
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.contributed_arrays import ContributedArrays
from ce_client.state.results import Results

log = logging.getLogger("ce_client")


def results_of(settings: ClientSettings) -> Results:
    """The result directory of a site, written as its settings say."""
    return Results(settings.results, as_text if settings.for_spreadsheets else as_it_is)


def participation_of(admitted: Admitted) -> dict[str, str | int]:
    """How many objects of this site take part, of how many, and the rules that left out others."""
    found: dict[str, str | int] = {
        "objects": admitted.prepared.labels.n_objects,
        "objects_in_fit": admitted.enrolled.labels.n_objects,
    }
    if admitted.alignment.excluded:
        found["rules"] = ", ".join(dict.fromkeys(one.rule for one in admitted.alignment.excluded))
    return found


def rows_of(labels: LabelTable, participating: LabelTable) -> Rows:
    """The positions in a table of the objects of another one, in its order."""
    order = np.argsort(labels.ids)
    return order[np.searchsorted(labels.ids, participating.ids, sorter=order)]


def report_of(admitted: Admitted, rounds: int, unlabelled: int) -> dict[str, Any]:
    """What every report says."""
    offered, aligned = admitted.prepared.offered, admitted.alignment
    return {
        "job": offered.job.name,
        "job_digest": offered.attempt.job_digest.hex(),
        "model": offered.job.model,
        "privacy": offered.job.privacy,
        "sites": list(offered.attempt.roster),
        "left_behind": offered.absent,
        "epoch": offered.attempt.epoch,
        "rounds": rounds,
        "objects": admitted.prepared.labels.n_objects,
        "objects_in_fit": aligned.labels.n_objects,
        "objects_without_a_label": unlabelled,
        "excluded": [
            {
                "rule": exclusion.rule,
                "objects": exclusion.objects,
                "columns": list(exclusion.columns),
                "labels": exclusion.labels,
            }
            for exclusion in aligned.excluded
        ],
        "columns": [column.name for column in aligned.labels.columns],
    }


class SiteRounds:
    """One site's engine, its masks, its checkpoints and its results."""

    saves_checkpoints = True

    def __init__(self, admitted: Admitted, site_files: SiteFiles, recorder: AttemptRecorder) -> None:
        prepared, enrolled, aligned = admitted.prepared, admitted.enrolled, admitted.alignment
        offered, key = prepared.offered, prepared.job_key
        settings = site_files.settings
        self.finished = False
        self.participation = participation_of(admitted)
        self.checkpoint_round = 0  # the last round with a checkpoint; 0: none
        self.failed_checkpoints = 0
        self._admitted = admitted
        self._offered = offered
        self._view = aligned.view
        self._recorder = recorder
        self._results = results_of(settings)
        self._checkpoints = site_files.checkpoints
        self._checkpoint_context = aligned.checkpoint_context
        self._all_labels = with_tokens(prepared.labels, key)
        self._labels = with_tokens(aligned.labels, key)  # that take part
        self._engine = Site(
            settings.name,
            self._labels,
            aligned.view,
            aligned.rows,
            offered.steps,
            SecretStarts.of(site_files.secret, key, offered.job.disclosure_digest),
            classes=offered.classes,
            threads=settings.threads,
            on_counts=aligned.check_counts,
        )
        self._contributor: Contributor = contributor(
            offered.job.privacy,
            offered.attempt,
            self._engine,
            aligned.view,
            offered.steps,
            enrolled.enrolment.objects,
            aligned.rows,
            prepared.handshake.pair_keys,
            aligned.enrolment_digest,
        )
        self._answered = AnsweredRounds()
        self._described = self._describe({})  # the arrays of the last answer
        self._committed = False

    def close(self) -> None:
        self._engine.close()

    @property
    def committed(self) -> bool:
        """True once more than counts was answered."""
        return self._committed

    @property
    def checkpoint_ids(self) -> list[CheckpointId]:
        """The checkpoints of this job, under this alignment, that this site can resume from."""
        return self._checkpoints.ids(self._offered.job.name, self._checkpoint_context)

    def answer(self, task: Task, digest: bytes) -> Answer:
        """The answer to a task; to a repeated task the same as before. `digest`: of the task.

        Raises TooFewLabels when the counts show that objects have to be excluded.
        """
        answer = self._answered.repeated(task, digest)
        if answer is None:
            self._recorder.next_round()
            answer = self._recorded(self._resumed(task) if task.resume else self._contributor.answer(task))
            if task.checkpoint:
                self._save_checkpoint(task)
            if task.step == "finish":
                self._write_results(task)
            self._answered.add(task, digest, answer)
            self._committed |= task.step not in ("keys", "open", "shares", "counts")
        if task.checkpoint:
            self._recorder.save_rounds()
        return answer

    def _resumed(self, task: Task) -> Answer:
        """Restore a checkpoint, and give the answer that was given when it was saved."""
        last = self._answered.last
        if last is not None and last.step != "keys":
            raise MessageError(f"resume: expected before any other round, got it after round {last.round}")
        checkpoint_id = CheckpointId(task.resume, task.round)
        snapshot = self._checkpoints.load(self._offered.job.name, self._checkpoint_context, checkpoint_id)
        return self._contributor.resume(task, snapshot)

    def _save_checkpoint(self, task: Task) -> None:
        """Save a checkpoint before the answer leaves: once all sites have answered, all have it.

        A failure is logged; the job goes on without this checkpoint.
        """
        snapshot, self._contributor.checkpoint = self._contributor.checkpoint, None
        if snapshot is None:
            raise MessageError(f"checkpoint: expected a step that begins an iteration, got {task.step}")
        job, checkpoint_id = self._offered.job.name, CheckpointId(task.checkpoint, task.round)
        try:
            self._checkpoints.save(job, self._checkpoint_context, checkpoint_id, snapshot)
            self.checkpoint_round = task.round
        except CheckpointFailed as error:
            self.failed_checkpoints += 1
            log.warning("checkpoint not saved", extra=fields(job=job, round=task.round, reason=str(error)))

    def _recorded(self, answer: Answer) -> Answer:
        """The answer with the head of the ledger after it was recorded there."""
        check_cancelled()  # nothing of an attempt that has ended is recorded
        if not self._described.fits(answer.arrays):
            self._described = self._describe(answer.arrays)
        return replace(answer, ledger=self._recorder.contribution(answer.round, self._described, answer.arrays))

    def _describe(self, arrays: Mapping[str, Array]) -> ContributedArrays:
        """What the ledger says of the arrays of an answer: under which mode, and into totals with whom."""
        names, mode = [ArrayName(name) for name in arrays], self._offered.job.privacy
        modes: dict[str, str] = {name: "encrypted" if name.kind == "box" else mode for name in names}
        contributors: dict[str, tuple[str, ...]] = {name: name.contributors(self._view) for name in names}
        return ContributedArrays(arrays, modes, contributors)

    def _write_results(self, task: Task) -> None:
        offered, labels = self._offered, self._all_labels
        participating = rows_of(labels, self._labels)
        memberships, unlabelled = whole_memberships(self._engine, labels, participating, offered.classes)
        excluded = ~np.isin(labels.ids, self._labels.ids)
        report = report_of(self._admitted, task.round, int(unlabelled.sum()))
        if offered.job.privacy == "blind":
            report |= self._blind_outcome()
        self._results.write(
            offered.job,
            labels.ids,
            consensus_labels(memberships, offered.classes, unlabelled),
            memberships,
            offered.classes,
            report,
            excluded if excluded.any() else None,
        )
        self.finished = True

    def _blind_outcome(self) -> dict[str, Any]:
        """The outcome of a blind job, which only the sites know."""
        outcome = self._contributor.outcome
        assert outcome is not None
        path = outcome.paths[outcome.winner]
        return {
            "lower_bound": path.bounds[-1],
            "bound_path": list(path.bounds),
            "iterations": outcome.iterations,
            "converged": path.converged,
            **({} if outcome.kappa is None else {"kappa": outcome.kappa}),
        }
