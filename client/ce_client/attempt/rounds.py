"""The third phase of an attempt: from an alignment that may be used to results on the disk.

Every contribution is in the ledger before it can be sent. A round is answered once: the same task again gets the same
answer; an older task, or another task of the same round, is refused.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from ce.cancellation import check_cancelled
from ce.consensus_file import as_it_is, as_text, consensus_labels
from ce.errors import MessageError
from ce.protocol.engine.site import Site
from ce.protocol.engine.starting_parameters import SecretStarts
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Task
from ce.protocol.modes.contributor import Contributor, contributor
from ce.protocol.score_excluded import whole_memberships
from ce.protocol.topology.enrolment import with_tokens
from ce.service.checkpoints import CheckpointFailed, CheckpointId
from ce.service.logs import fields
from ce_client.attempt.admission import Admitted
from ce_client.attempt.recorder import AttemptRecorder
from ce_client.config import ClientSettings
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.results import Results

log = logging.getLogger("ce_client")


def results_of(settings: ClientSettings) -> Results:
    """The result directory of a site, written as its settings say."""
    return Results(settings.results, as_text if settings.for_spreadsheets else as_it_is)


class SiteRounds:
    """One site's engine, its masks, its checkpoints and its results."""

    def __init__(self, admitted: Admitted, site_files: SiteFiles, recorder: AttemptRecorder) -> None:
        prepared, enrolled, aligned = admitted.prepared, admitted.enrolled, admitted.alignment
        offered, key = prepared.offered, prepared.job_key
        settings = site_files.settings
        self.finished = False
        self.participation: dict[str, str | int] = {
            "objects": prepared.labels.n_objects,
            "objects_in_fit": enrolled.labels.n_objects,
        }
        if aligned.excluded:
            self.participation["rules"] = ", ".join(dict.fromkeys(one.rule for one in aligned.excluded))
        self.checkpoint_round = 0  # the last round with a checkpoint; 0: none
        self.failed_checkpoints = 0
        self._offered = offered
        self._excluded = aligned.excluded
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
            offered.model,
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
            offered.model,
            enrolled.enrolment.objects,
            aligned.rows,
            prepared.handshake.pair_keys,
            aligned.enrolment_digest,
        )
        self._last: tuple[int, bytes, Answer] | None = None  # round, digest of the task, answer
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
        answer = self._repeated(task, digest)
        if answer is None:
            self._recorder.next_round()
            answer = self._recorded(self._resumed(task) if task.resume else self._contributor.answer(task))
            if task.checkpoint:
                self._save_checkpoint(task)
            if task.step == "finish":
                self._write_results(task)
            self._last = (task.round, digest, answer)
            self._committed |= task.step not in ("keys", "open", "shares", "counts")
        if task.checkpoint:
            self._recorder.save_rounds()
        return answer

    def _repeated(self, task: Task, digest: bytes) -> Answer | None:
        """The answer to a round that was answered; None for a new round. Raises MessageError for another task."""
        if self._last is None or task.round > self._last[0]:
            return None
        if (task.round, digest) != self._last[:2]:
            raise MessageError(
                "task: of a round that was answered, and not the same: "
                f"expected a round after {self._last[0]}, got {task.round}"
            )
        return self._last[2]

    def _resumed(self, task: Task) -> Answer:
        """Restore a checkpoint, and give the answer that was given when it was saved."""
        if self._last is not None and self._last[2].step != "keys":
            raise MessageError(f"resume: expected before any other round, got it after round {self._last[0]}")
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
        names = [ArrayName(name) for name in answer.arrays]
        contributors = {name: name.contributors(self._view) for name in names}
        mode = self._offered.job.privacy
        modes = {name: "encrypted" if name.kind == "box" else mode for name in names}
        head = self._recorder.contribution(answer.round, answer.arrays, dict(modes.items()), dict(contributors.items()))
        return replace(answer, ledger=head)

    def _write_results(self, task: Task) -> None:
        offered, labels = self._offered, self._all_labels
        order = np.argsort(labels.ids)
        participating = order[np.searchsorted(labels.ids, self._labels.ids, sorter=order)]
        memberships, unlabelled = whole_memberships(self._engine, labels, participating, offered.classes)
        excluded = ~np.isin(labels.ids, self._labels.ids)
        report = {
            "job": offered.job.name,
            "job_digest": offered.attempt.job_digest.hex(),
            "model": offered.job.model,
            "privacy": offered.job.privacy,
            "sites": list(offered.attempt.roster),
            "left_behind": offered.absent,
            "epoch": offered.attempt.epoch,
            "rounds": task.round,
            "objects": labels.n_objects,
            "objects_in_fit": self._labels.n_objects,
            "objects_without_a_label": int(unlabelled.sum()),
            "excluded": [
                {
                    "rule": exclusion.rule,
                    "objects": exclusion.objects,
                    "columns": list(exclusion.columns),
                    "labels": exclusion.labels,
                }
                for exclusion in self._excluded
            ],
            "columns": [column.name for column in self._labels.columns],
        }
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
