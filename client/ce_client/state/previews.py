"""What would leave this site in a job, array by array: written by the daemon, printed by `ce-client preview`.

A preview contains names, shapes and sizes only: never a label, an id, a category or a key.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ce.protocol.minimums import RuleCheck
from ce_client.state.disclosures import Budget
from ce_client.state.files import damaged, name_of, read_json, remove, write_json
from ce_client.state.releases.accounts import ReleaseCost

DIRECTORY = "previews"
#: How version 0.1.0 named the key `required`.
_FORMER_REQUIRED = "asked"


@dataclass(frozen=True)
class PreviewArray:
    """One array of this site's contributions."""

    name: str
    step: str  # the step whose tasks ask for it
    shape: tuple[int, ...]
    mode: str  # "plain", "masked", "blind" or "sealed"
    contributors: tuple[str, ...]  # the sites whose parts are in the total, this site among them
    rules: tuple[RuleCheck, ...] = ()


@dataclass(frozen=True)
class Excluded:
    """Objects or columns that take no part because a minimum of the policy is not reached."""

    what: str  # like "objects that several sites hold", or "column income"
    objects: int  # how many of this site's objects
    rule: str
    required: int
    found: int


@dataclass(frozen=True)
class PreviewRelease:
    """The tables that a sealed job opens, and what they cost this site's objects."""

    tables: int  # of pairs of columns
    cells: int  # of all tables
    sigma: float | None  # of the noise that is left if colluding sites subtract theirs; None: there is no noise
    opened_sd: float  # standard deviation of the noise in each opened cell
    cost: ReleaseCost

    @property
    def sentence(self) -> str:
        noise = "without noise" if self.sigma is None else f"with noise of standard deviation {self.opened_sd:,.3g}"
        return (
            f"{self.tables:,} tables of pairs of columns, {self.cells:,} cells, are opened to all sites and the "
            f"coordinator, once, {noise}"
        )


@dataclass(frozen=True)
class Preview:
    """A job before anything that was computed from labels has left this site."""

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
    #: Of randomised labels, over all draws so far: of one label by column, of all labels of an object. None: no limit.
    epsilon: dict[str, float | None] = field(default_factory=dict)
    epsilon_row: float | None = None
    waits_for_consent: bool = False
    warnings: tuple[str, ...] = ()  # what to know before this job is approved
    definition: dict[str, Any] = field(default_factory=dict)  # every key of the job
    budget: Budget | None = None  # of definitions; None in previews of version 0.1.0, and of sealed jobs
    release: PreviewRelease | None = None  # of sealed jobs

    def as_dict(self) -> dict[str, Any]:
        """The preview as `ce-client preview --format json` prints it.

        `asked`, the former name of `required`, stays for scripts that read it.
        """
        printed = asdict(self)
        for check in (*printed["excluded"], *(rule for array in printed["arrays"] for rule in array["rules"])):
            check[_FORMER_REQUIRED] = check["required"]
        return printed


class Previews:
    """The previews of one site, below its state directory."""

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY

    def write(self, preview: Preview) -> None:
        """Write a preview; it replaces an earlier one of the same job."""
        write_json(self._path(preview.job), asdict(preview))

    def read(self, job: str) -> Preview | None:
        """The preview of a job; None: there is none yet."""
        content = read_json(self._path(job))
        if content is None:
            return None
        try:
            return _preview(content)
        except (TypeError, KeyError, AttributeError) as error:
            raise damaged(self._path(job)) from error

    def forget(self, job: str) -> bool:
        """Remove the preview; False if there was none."""
        return remove(self._path(job))

    def _path(self, job: str) -> Path:
        return self._directory / f"{name_of(job)}.json"


def _preview(content: dict[str, Any]) -> Preview:
    """A preview from a file; JSON has lists where a preview has tuples."""
    arrays = tuple(
        PreviewArray(
            **{
                **array,
                "shape": tuple(array["shape"]),
                "contributors": tuple(array["contributors"]),
                "rules": tuple(RuleCheck(**_current_keys(rule)) for rule in array["rules"]),
            }
        )
        for array in content["arrays"]
    )
    excluded = tuple(Excluded(**_current_keys(entry)) for entry in content["excluded"])
    budget = Budget(**content["budget"]) if content.get("budget") else None
    release = content.get("release")
    if release:
        release = PreviewRelease(**{**release, "cost": ReleaseCost(**release["cost"])})
    lists = {"sites": tuple(content["sites"]), "warnings": tuple(content.get("warnings", ()))}
    # Version 0.1.0 did not write it; in its jobs all columns of an object took part.
    content = {"epsilon_row": sum(content.get("epsilon", {}).values()), **content}
    return Preview(**{**content, **lists, "arrays": arrays, "excluded": excluded, "budget": budget, "release": release})


def _current_keys(written: dict[str, Any]) -> dict[str, Any]:
    return {"required" if key == _FORMER_REQUIRED else key: value for key, value in written.items()}
