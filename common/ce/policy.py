"""A site's rules (policy.toml), checked before anything is sent. A job that breaks one is refused, by the rule's name.

A daemon reads them from its file; `ce.simulate(policy=...)` applies the same rules on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ce.declarations.registry import built_in_names, find_model, model_names
from ce.errors import ConfigError, Refused
from ce.job import EXACT, LARGEST_COUNT, MOST_RESTARTS, PRIVACY, Job
from ce.service.settings import read_settings, sample, setting, settings_of

ENV_PREFIX = "CE_POLICY_"
#: The most clusters that a job with clusters = "auto" can find.
MOST_COUNTED = 31


@dataclass(frozen=True)
class Policy:
    """The rules of one site: in which jobs it takes part, and with which of its objects and columns."""

    weakest_privacy: str = setting(
        "masked",
        'The weakest mode in which this site takes part: "plain" (the coordinator sees this site\'s sums), "masked" '
        '(it sees totals only), "blind" (it sees nothing) or "sealed" (no total is opened, but noisy tables of pairs '
        "of columns). Sealed jobs satisfy each of them.",
    )
    min_sites: int = setting(
        3,
        "Fewest sites in a job, and in every total to which this site contributes, this site included. In a total of "
        "two sites, each knows the other's part.",
    )
    min_objects: int = setting(
        20,
        "Fewest objects with which a site counts for min_sites in a total: the part of a site with few objects does "
        "not hide the parts of the others.",
    )
    min_foreign_columns: int = setting(
        4,
        "Fewest columns of other sites in the total of an object that several sites hold. A column does not count if "
        "its parameters are known to a site or coordinator that sees the total, which could then compute its labels.",
    )
    min_classifiers: int = setting(
        3, "bc3e: fewest classifiers of other sites that vote on an object that several sites hold."
    )
    below_minimum: Literal["exclude", "refuse"] = setting(
        "exclude",
        'What happens to objects and columns below one of these minimums: "exclude" (they take no part in the job, '
        'and are labelled here afterwards) or "refuse" (this site takes no part in the job).',
    )
    models: tuple[str, ...] = setting(
        built_in_names(),
        "Models that this site takes part in. One of an installed package must be named here before it is used.",
    )
    shared_objects: Literal["sealed", "exclude", "totals"] = setting(
        "sealed",
        'What happens to objects that other sites hold too: "sealed" (they take part in sealed jobs, and in no other), '
        '"exclude" (they take part in no job; in both cases they are labelled here afterwards) or "totals" (totals of '
        "each of them are opened to whoever adds them up: treat such totals as if your labels of these objects could "
        "be read from them).",
    )
    max_epsilon: float = setting(
        2.0,
        "Sealed jobs: how much all of them together may tell about this site's labels of one object (epsilon of "
        "differential privacy, over all label files and job names).",
    )
    max_delta: float = setting(
        1e-6, "Sealed jobs: largest delta, the probability with which more may be told than epsilon says."
    )
    min_collusion: int = setting(
        1, "Sealed jobs: fewest sites that may put together what they know while the noise still hides labels."
    )
    allow_exact: bool = setting(
        False,
        'Whether this site takes part in sealed jobs without noise (epsilon = "exact"): every site of the job then '
        "sees exact tables of pairs of columns.",
    )
    max_definitions: int = setting(
        1,
        "Most different jobs that may open totals of the same object, over all label files and job names. The same job "
        "again costs nothing: its totals are the same. Each further one is one more view of the same labels.",
    )
    max_smoothing: float = setting(
        2.0, "Largest smoothing of a job. A large one makes sums linear in the labels, which can then be solved for."
    )
    max_restarts: int = setting(20, "Most restarts of a job: each is one more view of the same labels.")
    max_local_loops: int = setting(20, "Most local_loops of a job: each is a computation over all labels here.")
    max_clusters: int = setting(100, "Most clusters, or classes, of a job.")
    max_rounds: int = setting(10_000, "Most rounds that this site answers in one job, over all its attempts.")
    coordinators: tuple[str, ...] = setting(
        (), "Names of the coordinators whose jobs are accepted; empty: any coordinator of this CA."
    )
    consent: Literal["auto", "ask"] = setting(
        "auto",
        'Whether a job that breaks no rule begins by itself ("auto"), or waits ("ask") until a person here has read '
        "what would leave (ce-client preview) and approved it (ce-client approve).",
    )
    leave_behind: bool = setting(
        False,
        "Whether a job may go on without a site that stays away. Who sees the totals before and after can subtract "
        "them, and then knows that site's part.",
    )
    min_cluster: int = setting(
        5,
        "Fewest objects of a cluster whose size and parameters the operator gets; those of smaller clusters are "
        "withheld. 1: the operator gets those of every cluster.",
    )
    randomise: float = setting(
        0.0,
        "Probability, from 0 to below 1, with which each label is replaced by one of the declared categories of its "
        "column (labels.categories in client.toml) before anything is computed. The same labels are replaced in every "
        "job. Then no label is certain, whatever leaks; the consensus becomes less accurate. Not possible with soft "
        "labels.",
    )
    randomise_columns: int = setting(
        0,
        "With randomise: how many of the declared columns of each object take part, drawn once for each object; its "
        "other labels are missing. 0: all. Fewer columns allow a smaller probability at the same epsilon of an "
        "object's row.",
    )

    def __post_init__(self) -> None:
        if self.weakest_privacy not in PRIVACY:
            raise ConfigError(f"weakest_privacy is one of {', '.join(PRIVACY)}")
        if set(self.models) - set(built_in_names()) and set(self.models) - set(model_names()):
            raise ConfigError(f"models are among {', '.join(model_names())}: install the package of another one first")
        for key in (
            "min_sites",
            "min_objects",
            "min_cluster",
            "max_rounds",
            "max_definitions",
            "max_restarts",
            "max_local_loops",
            "max_clusters",
        ):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is a whole number of at least 1")
        for key in ("min_foreign_columns", "min_classifiers", "randomise_columns"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{key} is a whole number of at least 0")
        if not 0 <= self.max_epsilon < float("inf"):
            raise ConfigError("max_epsilon is a number of at least 0")
        if not 0 < self.max_delta < 1:
            raise ConfigError("max_delta is a number between 0 and 1")
        if self.min_collusion < 0:
            raise ConfigError("min_collusion is a whole number of at least 0")
        if not 0 <= self.max_smoothing < float("inf"):
            raise ConfigError("max_smoothing is a number of at least 0")
        if not 0 <= self.randomise < 1:
            raise ConfigError("randomise is a number from 0 to below 1: at 1 no label would be left")

    @classmethod
    def read(cls, path: Path) -> Policy:
        return read_settings(cls, path, env_prefix=ENV_PREFIX)

    @classmethod
    def permissive(cls) -> Policy:
        """A policy that allows every job: for a simulation on one machine, which sends nothing."""
        return cls(
            weakest_privacy=PRIVACY[0],
            min_sites=1,
            min_objects=1,
            min_foreign_columns=0,
            min_classifiers=0,
            shared_objects="totals",
            max_definitions=2**63 - 1,
            max_epsilon=LARGEST_COUNT,
            max_delta=0.5,
            min_collusion=0,
            allow_exact=True,
            max_smoothing=LARGEST_COUNT,
            max_restarts=MOST_RESTARTS,
            max_local_loops=LARGEST_COUNT,
            max_clusters=LARGEST_COUNT,
            max_rounds=2**63 - 1,
            leave_behind=True,
            min_cluster=1,
        )

    @classmethod
    def of(cls, source: Policy | Mapping[str, Any] | str | Path | None) -> Policy:
        """A policy from keys of policy.toml or from its path, with defaults for the other keys. None: permissive."""
        if source is None:
            return cls.permissive()
        if isinstance(source, Policy):
            return source
        if isinstance(source, Mapping):
            return settings_of(cls, source)
        return cls.read(Path(source))

    def check(self, job: Job, coordinator: str) -> None:
        """Raises Refused, by the name of the rule, if a job breaks a rule that its definition alone can break."""
        if PRIVACY.index(job.privacy) < PRIVACY.index(self.weakest_privacy):
            raise Refused(
                "weakest_privacy",
                f'the job\'s sums are "{job.privacy}"; this site sends sums only as "{self.weakest_privacy}" or better',
            )
        if len(job.sites) < self.min_sites:
            raise Refused("min_sites", f"the job has {len(job.sites)} sites; this site asks for {self.min_sites}")
        if job.model not in self.models:
            raise Refused("models", f"this site takes no part in {job.model} jobs")
        self._check_ceilings(job)
        if job.sealed:
            self._check_noise(job)
        if job.privacy == "masked" and job.start in find_model(job.model).unanalysed_starts:
            raise Refused(
                f"{job.start} start",
                f"it has not been analysed what a coordinator that sees totals learns from a {job.start} start: use "
                'start = "votes", or privacy = "blind"',
            )
        if self.coordinators and coordinator not in self.coordinators:
            raise Refused("coordinators", f"this site takes no jobs from coordinator {coordinator}")

    def _check_ceilings(self, job: Job) -> None:
        """Raises Refused if the operator asks for more than this site allows."""
        outcome = job.clusters if job.classes is None else job.classes
        clusters = len(outcome) if isinstance(outcome, tuple) else outcome if isinstance(outcome, int) else 0
        if outcome == "auto":
            clusters = MOST_COUNTED
        asked: tuple[tuple[str, float, float], ...] = (
            ("smoothing", job.smoothing, self.max_smoothing),
            ("restarts", job.restarts, self.max_restarts),
            ("local_loops", job.local_loops, self.max_local_loops),
            ("clusters", clusters, self.max_clusters),
        )
        for key, value, most in asked:
            if value > most:
                raise Refused(f"max_{key}", f"the job asks for {value:,g} {key}; this site takes part up to {most:,g}")

    def _check_noise(self, job: Job) -> None:
        """Raises Refused if the tables of a sealed job may tell more than this site allows.

        The epsilon of the job is not all that its tables tell about this site's labels: what they cost depends on the
        columns of all sites, and is added to what other jobs have cost when the columns are known.
        """
        if job.epsilon == EXACT:
            if not self.allow_exact:
                raise Refused(
                    "allow_exact", "the tables of the job have no noise; this site takes part with noise only"
                )
        else:
            epsilon = float(job.epsilon)
            if epsilon > self.max_epsilon:
                raise Refused(
                    "max_epsilon", f"epsilon of the job is {epsilon:g}; this site allows {self.max_epsilon:g}"
                )
            if job.delta > self.max_delta:
                raise Refused("max_delta", f"delta of the job is {job.delta:g}; this site allows {self.max_delta:g}")
            if job.collusion < self.min_collusion:
                raise Refused(
                    "min_collusion",
                    f"the noise of the job hides labels from {job.collusion:,} sites that put together what they know; "
                    f"this site requires {self.min_collusion:,}",
                )

    def check_rounds(self, answered: int) -> None:
        """Raises Refused if a job has taken more rounds than this site answers."""
        if answered > self.max_rounds:
            raise Refused("max_rounds", f"this site answers at most {self.max_rounds:,} rounds of a job")


def sample_policy() -> str:
    """The text of a policy.toml that explains every key."""
    return sample(Policy, "The rules of this site. Nothing is sent that breaks one of them.")
