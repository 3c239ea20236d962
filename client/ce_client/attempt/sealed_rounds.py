"""The third phase of an attempt at a sealed job: from an alignment that may be used to results on the disk.

Like `rounds`, without an engine and without checkpoints: what a later attempt needs is in the site's releases
(`ce_client.state.releases`). Every contribution is in the ledger before it can be sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ce.cancellation import check_cancelled
from ce.privacy.zcdp import epsilon_of
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Task
from ce.protocol.sealed.site import SealedSite
from ce.protocol.sealed.site_input import SiteInput
from ce.protocol.sealed_results import whole_labels
from ce.protocol.topology.enrolment import with_tokens
from ce.service.checkpoints import CheckpointId
from ce_client.attempt.admission import Admitted
from ce_client.attempt.answered_rounds import AnsweredRounds
from ce_client.attempt.recorder import AttemptRecorder
from ce_client.attempt.rounds import participation_of, report_of, results_of, rows_of
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.contributed_arrays import ContributedArrays

#: How the ledger names arrays that only other sites can read, and those that go to the dealer.
_MODES = {"box": "encrypted", "members": "encrypted", "dealer": "dealer"}


class SealedRounds:
    """One site's end of a sealed job, and its results."""

    saves_checkpoints = False
    checkpoint_round = 0
    failed_checkpoints = 0

    def __init__(self, admitted: Admitted, site_files: SiteFiles, recorder: AttemptRecorder) -> None:
        prepared, aligned, key = admitted.prepared, admitted.alignment, admitted.prepared.job_key
        assert admitted.release is not None
        self.finished = False
        self.participation = participation_of(admitted)
        self._admitted = admitted
        self._recorder = recorder
        self._results = results_of(site_files.settings)
        self._all_labels = with_tokens(prepared.labels, key)
        self._labels = with_tokens(aligned.labels, key)  # that take part
        self._release = admitted.release
        self._release.records.keep_open()
        self._site = SealedSite(
            prepared.offered.attempt,
            site_files.settings.name,
            prepared.offered.job,
            aligned.summaries,
            aligned.view,
            SiteInput.of(self._labels, aligned.view, aligned.rows, admitted.enrolled.enrolment.objects),
            prepared.handshake.pair_keys,
            aligned.enrolment_digest,
            admitted.release.records,
            min_foreign_columns=prepared.offered.policy.min_foreign_columns,
        )
        self._answered = AnsweredRounds()

    def close(self) -> None:
        """Close the file of the releases."""
        self._release.records.close()

    @property
    def committed(self) -> bool:
        """True once more was answered than how far the job has come here."""
        return self._answered.last is not None and self._answered.last.step != "meet"

    @property
    def checkpoint_ids(self) -> list[CheckpointId]:
        """Sealed jobs have none."""
        return []

    def answer(self, task: Task, digest: bytes) -> Answer:
        """The answer to a task; to a repeated task the same as before. `digest`: of the task."""
        answer = self._answered.repeated(task, digest)
        if answer is None:
            self._recorder.next_round()
            if task.step == "mask":
                self._recorder.masked_attempt()
            answer = self._recorded(self._site.answer(task))
            if task.step == "finish":
                self._write_results(task)
            self._answered.add(task, digest, answer)
        return answer

    def _recorded(self, answer: Answer) -> Answer:
        """The answer with the head of the ledger after it was recorded there."""
        check_cancelled()  # nothing of an attempt that has ended is recorded
        names = [ArrayName(name) for name in answer.arrays]
        modes: dict[str, str] = {name: _MODES.get(name.kind, "sealed") for name in names}
        receivers: dict[str, tuple[str, ...]] = {
            name: name.contributors(self._admitted.alignment.view) for name in names
        }
        described = ContributedArrays(answer.arrays, modes, receivers)
        return replace(answer, ledger=self._recorder.contribution(answer.round, described, answer.arrays))

    def _write_results(self, task: Task) -> None:
        labels, job = self._all_labels, self._admitted.prepared.offered.job
        view, participating = self._admitted.alignment.view, rows_of(labels, self._labels)
        clusters, memberships = whole_labels(self._site, view, labels, participating)
        excluded = ~np.isin(labels.ids, self._labels.ids)
        report = report_of(self._admitted, task.round, int((clusters < 0).sum())) | self._outcome()
        self._results.write(job, labels.ids, clusters, memberships, (), report, excluded if excluded.any() else None)
        self.finished = True

    def _outcome(self) -> dict[str, Any]:
        """What only reports of sealed jobs say: noise and cost of the tables, clusters that were found, warnings."""
        outcome, terms = self._site.result, self._site.terms
        assert outcome is not None
        assert terms is not None
        offered, blocks = self._admitted.prepared.offered, self._admitted.alignment.view.blocks
        stopped = [blocks[index].size for index in outcome.stopped]
        rho = terms.rho[self._site.name]
        return {
            "clusters": outcome.n_clusters,
            "epsilon": offered.job.epsilon,
            "delta": offered.job.delta,
            "unit": offered.job.unit,
            "collusion": offered.job.collusion,
            "noise_sd": terms.sd,
            "epsilon_site_row": None if offered.exact else epsilon_of(rho, offered.job.delta),
            "blocks_without_labels": len(stopped),
            "objects_in_blocks_without_labels": sum(stopped),
            "warnings": [terms.noise_warning] if terms.noise_warning else [],
        }
