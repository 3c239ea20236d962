"""A site's own rules (policy.toml), checked before anything is sent. A job that breaks one is refused by its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ce.errors import ConfigError, Refused
from ce.job import MODELS, PRIVACY, Job
from ce.settings import read_settings, sample, setting


@dataclass(frozen=True)
class Policy:
    """What this site takes part in."""

    weakest_privacy: str = setting(
        "masked",
        'The weakest mode in which this site sends sums: "plain" (the coordinator sees this site\'s own sums), '
        '"masked" (it sees totals only) or "blind" (it sees nothing).',
    )
    min_sites: int = setting(3, "Fewest sites that a job must have, this one included.")
    models: tuple[str, ...] = setting(MODELS, "Models that this site takes part in.")
    max_rounds: int = setting(10_000, "Most rounds that this site answers in one job, over all its attempts.")
    coordinators: tuple[str, ...] = setting(
        (), "Names of the coordinators, as in their certificates, whose jobs are accepted; empty: any of this CA."
    )

    def __post_init__(self) -> None:
        if self.weakest_privacy not in PRIVACY:
            raise ConfigError(f"weakest_privacy is one of {', '.join(PRIVACY)}")
        unknown = set(self.models) - set(MODELS)
        if unknown:
            raise ConfigError(f"models are among {', '.join(MODELS)}")
        if self.min_sites < 1 or self.max_rounds < 1:
            raise ConfigError("min_sites and max_rounds are whole numbers of at least 1")

    @classmethod
    def read(cls, path: Path) -> Policy:
        return read_settings(cls, path, env_prefix="CE_POLICY_")

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
        if self.coordinators and coordinator not in self.coordinators:
            raise Refused("coordinators", f"this site takes no jobs from coordinator {coordinator}")

    def check_rounds(self, answered: int) -> None:
        if answered > self.max_rounds:
            raise Refused("max_rounds", f"this site answers at most {self.max_rounds:,} rounds of a job")


def sample_policy() -> str:
    """policy.toml with every key explained."""
    return sample(Policy, "The rules of this site: what it takes part in. Nothing is sent that breaks one of them.")
