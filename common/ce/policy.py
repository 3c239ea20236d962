"""A site's own rules (policy.toml), checked before anything is sent. A job that breaks one is refused by its name.

A daemon reads them from its file; `ce.simulate(policy=...)` applies the same ones on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ce.declarations.registry import built_in_names, find_model, model_names
from ce.errors import ConfigError, Refused
from ce.job import PRIVACY, Job
from ce.service.settings import read_settings, sample, setting, settings_of

ENV_PREFIX = "CE_POLICY_"


@dataclass(frozen=True)
class Policy:
    """What this site takes part in."""

    weakest_privacy: str = setting(
        "masked",
        'The weakest mode in which this site sends sums: "plain" (the coordinator sees this site\'s own sums), '
        '"masked" (it sees totals only) or "blind" (it sees nothing).',
    )
    min_sites: int = setting(
        3,
        "Fewest sites that a job must have, and that must be in every total to which this site adds its part, this "
        "one included. In a total of two, each knows the other's part.",
    )
    min_objects: int = setting(
        20,
        "Fewest objects with which a site counts for min_sites in a total: a site with hardly any adds nothing that "
        "the others could hide behind.",
    )
    min_foreign_columns: int = setting(
        4,
        "Fewest columns of other sites in the total of an object that several sites hold. Columns whose tables "
        "whoever sees the total knows do not count: their labels can be worked out of it.",
    )
    min_classifiers: int = setting(
        3, "bc3e: fewest classifiers of other sites that vote on an object that several sites hold."
    )
    below_minimum: Literal["exclude", "refuse"] = setting(
        "exclude",
        'What happens to objects and columns below one of these minimums: "exclude" (they are left out of the job, '
        'and labelled here afterwards) or "refuse" (this site takes no part in the job).',
    )
    models: tuple[str, ...] = setting(
        built_in_names(),
        "Models that this site takes part in. One of an installed package must be named here before it is used.",
    )
    max_rounds: int = setting(10_000, "Most rounds that this site answers in one job, over all its attempts.")
    coordinators: tuple[str, ...] = setting(
        (), "Names of the coordinators, as they call themselves, whose jobs are accepted; empty: any of this CA."
    )
    consent: Literal["auto", "ask"] = setting(
        "auto",
        'Whether a job that breaks no rule begins by itself ("auto"), or waits until somebody here has seen what would '
        'leave (ce-client preview) and said ce-client approve ("ask").',
    )
    leave_behind: bool = setting(
        False,
        "Whether a job may go on without a site that stays away. Whoever sees the totals before and after can subtract "
        "them, and then knows that site's part.",
    )
    min_cluster: int = setting(
        5,
        "Smallest cluster of which the operator may learn anything: size and parameters of smaller ones are withheld. "
        "1: of every cluster.",
    )
    randomise: float = setting(
        0.0,
        "Probability, from 0 to below 1, with which each label is replaced by a random one of its column before "
        "anything is computed from it, once and for good: then nobody can be sure of any label, whatever leaks. The "
        "consensus becomes less accurate. Not with soft labels.",
    )

    def __post_init__(self) -> None:
        if self.weakest_privacy not in PRIVACY:
            raise ConfigError(f"weakest_privacy is one of {', '.join(PRIVACY)}")
        if set(self.models) - set(built_in_names()) and set(self.models) - set(model_names()):
            raise ConfigError(f"models are among {', '.join(model_names())}: install the package of another one first")
        for key in ("min_sites", "min_objects", "min_cluster", "max_rounds"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is a whole number of at least 1")
        for key in ("min_foreign_columns", "min_classifiers"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{key} is a whole number of at least 0")
        if not 0 <= self.randomise < 1:
            raise ConfigError("randomise is a number from 0 to below 1: at 1 no label would be left")

    @classmethod
    def read(cls, path: Path) -> Policy:
        return read_settings(cls, path, env_prefix=ENV_PREFIX)

    @classmethod
    def permissive(cls) -> Policy:
        """Everything is allowed: for a simulation, which reveals nothing to anybody."""
        return cls(
            weakest_privacy=PRIVACY[0],
            min_sites=1,
            min_objects=1,
            min_foreign_columns=0,
            min_classifiers=0,
            max_rounds=2**63 - 1,
            leave_behind=True,
            min_cluster=1,
        )

    @classmethod
    def of(cls, source: Policy | Mapping[str, Any] | str | Path | None) -> Policy:
        """None: permissive. Keys of policy.toml, or its path: those rules, and the defaults of the others."""
        if source is None:
            return cls.permissive()
        if isinstance(source, Policy):
            return source
        if isinstance(source, Mapping):
            return settings_of(cls, source)
        return cls.read(Path(source))

    def check(self, job: Job, coordinator: str) -> None:
        """Raises Refused, by the name of the rule, for a job that this site does not take part in."""
        if PRIVACY.index(job.privacy) < PRIVACY.index(self.weakest_privacy):
            raise Refused(
                "weakest_privacy",
                f'the job\'s sums are "{job.privacy}"; this site sends sums only as "{self.weakest_privacy}" or better',
            )
        if len(job.sites) < self.min_sites:
            raise Refused("min_sites", f"the job has {len(job.sites)} sites; this site asks for {self.min_sites}")
        if job.model not in self.models:
            raise Refused("models", f"this site takes no part in {job.model} jobs")
        if job.privacy == "masked" and job.start in find_model(job.model).unanalysed_starts:
            raise Refused(
                f"{job.start} start",
                f"what the rounds of a {job.start} start tell a coordinator that sees totals has not been analysed: "
                'use start = "votes", or privacy = "blind"',
            )
        if self.coordinators and coordinator not in self.coordinators:
            raise Refused("coordinators", f"this site takes no jobs from coordinator {coordinator}")

    def check_rounds(self, answered: int) -> None:
        if answered > self.max_rounds:
            raise Refused("max_rounds", f"this site answers at most {self.max_rounds:,} rounds of a job")


def sample_policy() -> str:
    """policy.toml with every key explained."""
    return sample(Policy, "The rules of this site: what it takes part in. Nothing is sent that breaks one of them.")
