"""What a site writes about one attempt: the history of its job, the roster of its labels, the ledger.

Everything is written before the frame that it is about can be sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ce.errors import CeError, Refused
from ce.identity.certificates import sign
from ce.labels import LabelTable
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Array
from ce.protocol.topology.enrolment import Enrolment
from ce_client.attempt.setup import OfferedJob
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.attempt_history import AttemptHistory
from ce_client.state.contributed_arrays import ContributedArrays
from ce_client.state.disclosures import Budget, Disclosure, Disclosures
from ce_client.state.ledger import PURPOSE, Ledger
from ce_client.state.randomisations import AccountedEpsilon, Draw, Randomisations, draws_of
from ce_client.state.releases.job_records import JobRecords, SealedJob
from ce_client.state.releases.store import Releases
from ce_client.state.rosters import Rosters


class AttemptRecorder:
    """The records of one attempt."""

    def __init__(self, offered: OfferedJob, site_files: SiteFiles, ledger: Ledger) -> None:
        """Raises Refused if labels or policy have changed since an earlier attempt at this job."""
        attempt = offered.attempt
        self._offered = offered
        self._site_files = site_files
        self._ledger = ledger
        self._history = AttemptHistory(site_files.settings.state)
        self._record = self._history.begin(attempt.job, attempt.job_digest, offered.labels_digest, offered.policy)
        self._in_ledger = False  # the ledger has this attempt's beginning, and lacks its end
        self.rounds_answered = self._record.rounds  # over all attempts

    def alignment(self, revision: int, *parts: bytes) -> None:
        """Raises Refused if an alignment of this revision was another one in an earlier attempt."""
        # With other sites absent there are other alignments.
        name = f"{revision}" + "".join(f" without {site}" for site in self._offered.absent)
        self._record = self._history.align(self._offered.attempt.job, self._record, name, *parts)

    def enrolment(self, enrolment: Enrolment, labels: LabelTable) -> None:
        """An enrolment is about to be sent; the first one begins the attempt in the ledger."""
        attempt = self._offered.attempt
        if not self._in_ledger:
            self._begin_in_ledger(labels)
        tokens = enrolment.objects.view(np.uint8).reshape(-1, TOKEN_SIZE)
        columns = [f"column {claim.name}: {len(claim.categories)} categories" for claim in enrolment.columns]
        contributors = {"pseudonyms": attempt.roster}
        self._ledger.record(attempt.job, attempt.epoch, 0, {"pseudonyms": tokens}, "pseudonyms", contributors, columns)

    def letters(self, stage: int, boxes: Mapping[str, Array]) -> None:
        """Letters to the other sites are about to be sent; `boxes` by receiver."""
        attempt = self._offered.attempt
        arrays: dict[str, Array] = {ArrayName.of_box(site): box for site, box in boxes.items()}
        receivers: dict[str, tuple[str, ...]] = {ArrayName.of_box(site): (site,) for site in boxes}
        if arrays:
            notes = [f"letters of stage {stage}"]
            self._ledger.record(attempt.job, attempt.epoch, 0, arrays, "encrypted", receivers, notes)

    def use_of_labels(self) -> None:
        """The labels are about to be contributed under this roster. Raises Refused if another job forbids that."""
        attempt, settings = self._offered.attempt, self._site_files.settings
        rosters = Rosters(settings.state)
        rosters.remember(settings.labels.file, self._offered.labels_digest, attempt.roster, attempt.job, self._ledger)

    def use_of_draws(self, labels: LabelTable) -> None:
        """Something that follows from randomised labels is about to be sent, if only which categories are frequent.

        Raises Refused if another job has sent another draw of them.
        """
        randomisations = Randomisations(self._site_files.settings.state)
        randomisations.remember(self._draws(labels), self._offered.attempt.job, self._ledger)

    def epsilon(self, labels: LabelTable) -> AccountedEpsilon | None:
        """What all draws of these labels add up to, those of this job among them. None: labels are not randomised."""
        if not self._offered.randomisation.p:
            return None
        accounted = Randomisations(self._site_files.settings.state).accounted(self._draws(labels))
        names = [column.name for column in labels.columns]
        return replace(accounted, columns={name: accounted.columns[name] for name in names})

    def _draws(self, labels: LabelTable) -> tuple[Draw, ...]:
        names = [column.name for column in labels.columns]
        return draws_of(self._offered.randomisation, names, self._site_files.secret)

    def budget(self, disclosure: Disclosure) -> Budget:
        """What the totals that would be opened take of the definitions that the policy allows."""
        return Disclosures(self._site_files.settings.state).budget(disclosure, self._offered.policy.max_definitions)

    def disclosure(self, disclosure: Disclosure) -> None:
        """Totals are about to be opened. Raises Refused if the policy allows no further definition."""
        disclosures, most = Disclosures(self._site_files.settings.state), self._offered.policy.max_definitions
        disclosures.record(self._offered.attempt.job, disclosure, most, self._ledger)

    def releases(self, job: SealedJob) -> JobRecords:
        """The durable records of a sealed job."""
        return Releases(self._site_files.settings.state).records(job, self._offered.policy, self._ledger)

    def next_round(self) -> None:
        """Count a round. Raises Refused if the policy allows no further one."""
        self.rounds_answered += 1
        self._offered.policy.check_rounds(self.rounds_answered)

    def masked_attempt(self) -> None:
        """Masked words of a sealed job are about to leave. Raises Refused if they have too often."""
        most = self._site_files.settings.limits.attempts_per_job
        self._record = self._history.mask(self._offered.attempt.job, self._record, most)

    def contribution(self, round: int, described: ContributedArrays, arrays: Mapping[str, Array]) -> bytes:
        """The arrays of an answer are about to be sent. Returns the head of the ledger."""
        attempt = self._offered.attempt
        return self._ledger.contribution(attempt.job, attempt.epoch, round, described, arrays)

    def save_rounds(self) -> None:
        """Write the number of rounds, so that they count even if this process is killed."""
        self._record = self._history.end(self._offered.attempt.job, self._record, self.rounds_answered)

    def end(self, state: str, refusal: CeError | None) -> None:
        """The attempt is over: write its rounds and its refusal, and sign the ledger."""
        attempt, key = self._offered.attempt, self._site_files.key
        refused = "" if refusal is None else type(refusal).__name__
        self._record = self._history.end(attempt.job, self._record, self.rounds_answered, refused)
        if self._in_ledger:
            self._in_ledger = False
            self._ledger.end(attempt.job, attempt.epoch, state, lambda head: sign(key, head, purpose=PURPOSE))

    def _begin_in_ledger(self, labels: LabelTable) -> None:
        most = self._site_files.settings.limits.ledger_bytes
        if self._ledger.size >= most:
            raise Refused(
                "limits.ledger_bytes",
                f"the ledger of this site has {self._ledger.size:,} bytes, and may have {most:,}: its people have to "
                "stop the daemon, move the ledger to an archive, and start again",
            )
        attempt, epsilon = self._offered.attempt, self.epsilon(labels)
        self._ledger.begin(
            attempt.job,
            attempt.epoch,
            attempt.job_digest,
            attempt.roster,
            self._offered.job.privacy,
            self._offered.policy.randomise,
            {} if epsilon is None else epsilon.columns,
            json.loads(self._offered.job.definition()),
            None if epsilon is None else epsilon.row,
        )
        self._in_ledger = True
