"""What would leave this site in a job, array by array: written by the daemon, shown by `ce-client preview`.

Names, shapes and sizes only: never a label, an id, a category or a key.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ce_client.state.files import damaged, name_of, read_json, remove, write_json

DIRECTORY = "previews"


@dataclass(frozen=True)
class RuleMet:
    """A minimum of the policy, and what there is."""

    rule: str  # a key of policy.toml
    required: int
    found: int


@dataclass(frozen=True)
class PreviewArray:
    """One array of this site's contributions."""

    name: str
    step: str  # the step of a round that asks for it
    shape: tuple[int, ...]
    mode: str  # "plain", "masked" or "blind"
    contributors: tuple[str, ...]  # whose parts are in the total, this site among them
    rules: tuple[RuleMet, ...] = ()


@dataclass(frozen=True)
class Excluded:
    """Objects or columns that take no part, because a minimum is not met."""

    what: str  # like "objects shared with north and south", or "column income"
    objects: int  # how many of this site's objects
    rule: str
    required: int
    found: int


@dataclass(frozen=True)
class Preview:
    """A job before anything of it has left this site."""

    job: str
    job_digest: str  # hex
    coordinator: str
    epoch: int
    model: str
    privacy: str
    sites: tuple[str, ...]  # the roster, sorted
    rounds_up_to: int
    arrays: tuple[PreviewArray, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    randomise: float = 0.0
    epsilon: dict[str, float] = field(default_factory=dict)  # by column; empty without randomised response
    waits_for_consent: bool = False


class Previews:
    """Those of one site, below its state directory."""

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY

    def write(self, preview: Preview) -> None:
        """Replaces an earlier one of the same job."""
        write_json(self._path(preview.job), asdict(preview))

    def read(self, job: str) -> Preview | None:
        """None: there is none (yet)."""
        written = read_json(self._path(job))
        if written is None:
            return None
        try:
            return _preview(written)
        except (TypeError, KeyError, AttributeError) as error:
            raise damaged(self._path(job)) from error

    def forget(self, job: str) -> bool:
        """Whether there was anything to forget."""
        return remove(self._path(job))

    def _path(self, job: str) -> Path:
        return self._directory / f"{name_of(job)}.json"


def _preview(written: dict[str, Any]) -> Preview:
    """JSON knows lists only."""
    arrays = tuple(
        PreviewArray(
            **{
                **array,
                "shape": tuple(array["shape"]),
                "contributors": tuple(array["contributors"]),
                "rules": tuple(RuleMet(**rule) for rule in array["rules"]),
            }
        )
        for array in written["arrays"]
    )
    excluded = tuple(Excluded(**own) for own in written["excluded"])
    return Preview(**{**written, "sites": tuple(written["sites"]), "arrays": arrays, "excluded": excluded})
