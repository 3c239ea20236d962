"""The first phase of an attempt: the offer is checked, and the sites agree on keys.

`check_offer` decides whether this site takes part at all. `AttemptSetup` reads the labels and exchanges keys. The phase
ends with a `PreparedAttempt`, which holds the job key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ce.errors import BrokenModel, ConfigError, MessageError, Refused, UnknownModel
from ce.job import EXACT, Job
from ce.labels import LabelTable
from ce.labels.randomised import Randomisation, randomise
from ce.models.registry import model_without_labels
from ce.policy import Policy
from ce.privacy.pair_keys import EncryptedBox
from ce.protocol.attempt import Attempt
from ce.protocol.engine.starting_parameters import job_key
from ce.protocol.keys.handshake import Handshake, KeyShare
from ce.protocol.topology.site_view import Categories
from ce.steps.model import Model
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.randomisations import Randomisations, draws_of
from ce_client.state.results import Results
from ce_client.state.rosters import Rosters, content_digest
from ce_proto.v1 import site_pb2 as pb


@dataclass(frozen=True)
class OfferedJob:
    """An offered job that this site's policy allows, and the policy and labels that it was checked with."""

    attempt: Attempt
    coordinator: str
    job: Job
    policy: Policy
    model: Model | None  # None: a sealed job, which has no steps of a model
    classes: Categories
    labels_digest: bytes  # SHA-256 of the label file
    randomisation: Randomisation

    @property
    def steps(self) -> Model:
        """The model of a job over totals."""
        assert self.model is not None
        return self.model

    @property
    def uses_votes(self) -> bool:
        """Whether classifiers take part."""
        return self.model is not None and self.model.uses_votes

    @property
    def exact(self) -> bool:
        """Whether the tables of a sealed job have no noise."""
        return self.job.sealed and self.job.epsilon == EXACT

    @property
    def subtractable(self) -> bool:
        """Whether totals of this job and of another one can be subtracted: not where each has noise of its own, which
        the budget of epsilon counts."""
        return not self.job.sealed or self.exact

    @property
    def absent(self) -> list[str]:
        """Sites of the job that are not in this attempt, sorted."""
        return sorted(set(self.job.sites) - set(self.attempt.roster))


@dataclass(frozen=True)
class PreparedAttempt:
    """What the first phase hands to the second: the job, this site's labels, the keys."""

    offered: OfferedJob
    labels: LabelTable = field(repr=False)  # all labels of this site; if they are randomised, as they may be sent
    handshake: Handshake = field(repr=False)  # has checked the peers; holds the pair keys
    job_key: bytes = field(repr=False)


def check_offer(attempt: Attempt, coordinator: str, site_files: SiteFiles, results: Results) -> OfferedJob:
    """Check an offer against the policy and this site's results. Raises Refused, by the name of the rule."""
    job = _job_of(attempt)
    policy = site_files.policy()
    policy.check(job, coordinator)
    results.refuse_other(job, attempt.job_digest)
    results.check_writable()
    model, classes = (None, ()) if job.sealed else model_without_labels(job)
    labels = site_files.settings.labels
    return OfferedJob(
        attempt,
        coordinator,
        job,
        policy,
        model,
        classes,
        content_digest(labels.file),
        Randomisation(policy.randomise, labels.declared, policy.randomise_columns),
    )


def _job_of(attempt: Attempt) -> Job:
    """The job in an offer; name and roster of the offer must be those of the job."""
    try:
        job = Job.from_definition(attempt.definition)
    except (UnknownModel, BrokenModel) as error:
        raise Refused("models", str(error)) from error
    except ConfigError as error:
        raise MessageError("definition: not a job that this version knows") from error
    sites = set(job.sites)
    if job.on_dropout == "continue":
        sites &= set(attempt.roster)
    if job.name != attempt.job or tuple(sorted(sites)) != attempt.roster:
        raise MessageError("offer: its name or roster is not that of the job")
    return job


class AttemptSetup:
    """This site's labels and its part of the key exchange, from the offer to the job key."""

    def __init__(self, offered: OfferedJob, site_files: SiteFiles) -> None:
        """Raises Refused if the labels may not be used with this roster, or are of no use in this job."""
        self._offered = offered
        self._site_files = site_files
        self._check_roster()
        self._labels = self._usable_labels()
        self._check_randomisation()
        self._handshake = Handshake(
            offered.attempt, self._site, site_files.key, site_files.certificate_der, site_files.peers()
        )

    @property
    def privacy(self) -> str:
        """The privacy mode of the job."""
        return self._offered.job.privacy

    def key_share(self) -> pb.SiteFrame:
        """The answer to the offer, the same each time."""
        attempt, share = self._offered.attempt, self._handshake.share
        message = pb.KeyShare(
            job=attempt.job,
            epoch=attempt.epoch,
            public_key=share.public_key,
            certificate=share.certificate,
            signature=share.signature,
        )
        return pb.SiteFrame(key_share=message)

    def meet(self, message: pb.Peers) -> PreparedAttempt | None:
        """Check the key shares of all sites.

        The first site of the roster then makes the job key, and is prepared. The others get it encrypted: None.
        """
        shares = {peer.site: KeyShare(peer.public_key, peer.certificate, peer.signature) for peer in message.peers}
        self._handshake.meet(shares)
        if not self._handshake.leads:
            return None
        return self._prepared(job_key(self._site_files.secret, self._offered.job.disclosure_digest))

    def encrypted_keys(self, prepared: PreparedAttempt) -> pb.SiteFrame:
        """The job key, encrypted for each other site."""
        attempt = self._offered.attempt
        keys = [
            pb.EncryptedKey(job=attempt.job, epoch=attempt.epoch, site=peer, nonce=box.nonce, ciphertext=box.ciphertext)
            for peer, box in self._handshake.encrypt_for_all(prepared.job_key).items()
        ]
        return pb.SiteFrame(encrypted_keys=pb.EncryptedKeys(job=attempt.job, epoch=attempt.epoch, keys=keys))

    def open_key(self, message: pb.EncryptedKey) -> PreparedAttempt:
        """Decrypt the job key that the first site made."""
        if self._handshake.leads or message.site != self._site:
            raise MessageError("encrypted_key: is not for this site")
        box = EncryptedBox(message.nonce, message.ciphertext)
        return self._prepared(self._handshake.decrypt_from_first(box))

    @property
    def _site(self) -> str:
        return self._site_files.settings.name

    def _prepared(self, key: bytes) -> PreparedAttempt:
        return PreparedAttempt(self._offered, self._labels, self._handshake, key)

    def _check_roster(self) -> None:
        """Raises Refused unless the labels may be contributed under this roster.

        A job that continues without an absent site has another roster than the job. The policy must allow that.
        """
        offered, settings = self._offered, self._site_files.settings
        rosters = Rosters(settings.state)
        if offered.absent:
            if not offered.policy.leave_behind:
                raise Refused(
                    "leave_behind",
                    f"the job would go on without {', '.join(offered.absent)}; totals with and without a site differ "
                    "by its part: this site takes part in that only if its policy says leave_behind = true",
                )
            rosters.allow(offered.attempt.roster, offered.attempt.job)
        if offered.subtractable:
            rosters.check(settings.labels.file, offered.labels_digest, offered.attempt.roster)

    def _usable_labels(self) -> LabelTable:
        """The labels as they may be sent. From here on nothing of this attempt sees labels that are not randomised.

        Raises Refused if the model has no use for them. The sentences say nothing about the labels.
        """
        offered, labels = self._offered, self._site_files.labels()
        used = labels.columns if offered.uses_votes else labels.clusterings
        if not used:
            raise Refused("usable columns", "this site has no column that this model uses")
        if offered.randomisation.p:
            labels = labels.select(columns=[column.name for column in used])
            labels = randomise(labels, offered.randomisation, self._site_files.secret)
        for column in labels.classifiers if offered.uses_votes else ():
            if set(column.categories) - set(offered.classes):
                raise Refused(
                    "classes of the job", "a classifier of this site uses a class that is not among those of the job"
                )
        return labels

    def _check_randomisation(self) -> None:
        """Raises Refused if these labels were contributed before, randomised in another way."""
        names = [column.name for column in self._labels.columns]
        draws = draws_of(self._offered.randomisation, names, self._site_files.secret)
        Randomisations(self._site_files.settings.state).check(draws)
