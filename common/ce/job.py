"""A job: what the sites compute together. The same keys in job.toml, in `ce.Job(...)` and on the wire.

Every key is checked here, once; an error names the key, what it may be, and the nearest known name of an unknown one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from ce.declarations.declaration import ModelDeclaration
from ce.declarations.registry import BUILT_IN, DEFAULT, find_model, model_names
from ce.errors import ConfigError

if TYPE_CHECKING:
    MODELS: tuple[str, ...]  # all that the registry lists: see `__getattr__`
#: More clusters or iterations than this is a slip of the hand, and more restarts, which run side by side.
LARGEST_COUNT, MOST_RESTARTS = 1_000_000, 10_000
#: A job's name becomes that of a directory, with room for an ending.
LONGEST_NAME, LONGEST_NAME_BYTES = 100, 200
#: Thirty years.
LONGEST_DEADLINE_S = 1e9
#: More says nothing any more.
LARGEST_EPSILON = 100.0
#: A job takes kilobytes; a larger file is another file.
LARGEST_FILE = 1 << 20
#: Modes in which totals over the sites are opened; in the last one nothing is but noisy pair tables and labels.
MODES_OF_TOTALS = ("plain", "masked", "blind")
PRIVACY = (*MODES_OF_TOTALS, "sealed")
#: Whose change the noise of a sealed job hides: one site's labels of an object, one label, all labels of an object.
UNITS = ("site_row", "label", "object")
#: `epsilon` of a sealed job without noise.
EXACT = "exact"
#: Keys that only sealed jobs have; in the definition of another job they are not written.
SEALED_KEYS = ("epsilon", "delta", "collusion", "unit")
#: Keys whose default the model declares.
DECLARED_KEYS = ("restarts", "max_iterations", "local_loops", "smoothing")
_AS_DECLARED: Any = None
#: Keys that are written only where they are not the default: definitions stay what they were before there were any.
LATER_KEYS = ("halving", "precision")
#: Of words and messages in the exchanges of an iteration: 64 bits, or 32 where they suffice (`ce.ring`).
PRECISIONS = ("double", "single")
#: Keys that change no total of a job: what it is called, how long it may take, and who sees its totals.
NOT_IN_TOTALS = ("name", "deadlines", "privacy")


@dataclass(frozen=True)
class Deadlines:
    """Seconds that the coordinator waits: for all sites to enrol, for one round, for the whole job."""

    enrol_s: float = 3600.0
    round_s: float = 600.0
    job_s: float = 86400.0

    def __post_init__(self) -> None:
        for key in ("enrol_s", "round_s", "job_s"):
            value = getattr(self, key)
            if not _is_number(value) or not 0 < value <= LONGEST_DEADLINE_S:
                raise ConfigError(f"deadlines.{key} is a positive number of seconds, at most {LONGEST_DEADLINE_S:,.0f}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to compute. `clusters`, or `classes` (a number or names) of a model on which classifiers vote (bc3e).

    The keys are those of job.toml, which docs/configuration.md explains one by one.
    """

    name: str = "job"
    model: str = DEFAULT
    clusters: int | Literal["auto"] | None = None
    classes: int | tuple[int, ...] | tuple[str, ...] | None = None
    sites: tuple[str, ...] = ()
    restarts: int = _AS_DECLARED  # None: as the model declares it: 5, or 20 for mixture
    seed: int = 0
    max_iterations: int = _AS_DECLARED  # None: as the model declares it: 300, or 10 for bc3e
    tolerance: float = 1e-6
    privacy: str = ""  # "": "masked", or "sealed" for a model that has no other mode
    schedule: str = "joint"
    local_loops: int = _AS_DECLARED  # None: as the model declares it: 10 for bce, else 1
    smoothing: float = _AS_DECLARED  # None: as the model declares it: 1 for mixture, else 0.01
    halving: bool | None = None  # bce, mixture: drop hopeless starts; None: where that loses nothing
    posterior: str = "joint"  # bc3e: "joint" | "factorised"
    start: str = "votes"  # bc3e: "votes" | "diffused"
    precision: str = "double"  # of the exchanges of an iteration: "double" | "single", which halves their bytes
    epsilon: float | Literal["exact"] = 2.0  # sealed: how much the tables may tell; "exact": without noise
    delta: float = 1e-6  # sealed
    collusion: int = 1  # sealed: so many sites may put together what they know
    unit: str = "site_row"  # sealed: what epsilon is about: "site_row" | "label" | "object"
    on_dropout: str = "wait"
    deadlines: Deadlines = field(default_factory=Deadlines)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _is_job_name(self.name):
            raise ConfigError(
                f"name is a text of 1 to {LONGEST_NAME} printable characters (at most {LONGEST_NAME_BYTES} bytes), "
                "without '/' and '\\', that does not begin with '.', '-' or a space, nor end with a space"
            )
        declaration = find_model(self.model)
        if self.privacy == "":
            object.__setattr__(self, "privacy", "sealed" if declaration.sealed else "masked")
        self._choose("privacy", PRIVACY)
        if declaration.sealed != self.sealed:
            named = " or ".join(one.name for one in BUILT_IN if one.sealed)
            raise ConfigError(f'privacy = "sealed" and a model for it ({named}) belong together: each needs the other')
        self._choose("schedule", ("joint", "newton"))
        self._choose("posterior", ("joint", "factorised"))
        self._refuse_start_from_pairs()
        self._choose("start", ("votes", "diffused"))
        self._choose("on_dropout", ("wait", "fail", "continue"))
        for key in DECLARED_KEYS:
            if getattr(self, key) is None:
                object.__setattr__(self, key, getattr(declaration, key))
        self._whole("restarts", 1, MOST_RESTARTS)
        self._whole("max_iterations", 0)
        self._whole("local_loops", 1)
        if not (self.halving is None or isinstance(self.halving, bool)):
            raise ConfigError("halving is true or false")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError("seed is a whole number")
        for key in ("tolerance", "smoothing"):
            if not _is_number(getattr(self, key)) or not 0 <= getattr(self, key) <= LARGEST_COUNT:
                raise ConfigError(f"{key} is a number from 0 to {LARGEST_COUNT:,}")
        self._check_precision(declaration)
        sites: Any = self.sites
        if not isinstance(sites, (list, tuple)) or not all(isinstance(site, str) and site for site in sites):
            raise ConfigError('sites is a list of site names, like ["north", "south"]')
        if len(set(sites)) < len(sites):
            raise ConfigError("sites names a site twice")
        object.__setattr__(self, "sites", tuple(sites))
        deadlines: Any = self.deadlines
        if isinstance(deadlines, Mapping):
            object.__setattr__(self, "deadlines", Deadlines(**_known(Deadlines, deadlines, "deadlines.")))
        elif not isinstance(deadlines, Deadlines):
            raise ConfigError("deadlines is a table of enrol_s, round_s and job_s")
        self._check_outcome(declaration)
        self._check_noise()

    def _check_outcome(self, declaration: ModelDeclaration) -> None:
        """clusters or classes, whichever the model needs."""
        if not declaration.takes_classes:
            if self.clusters is None:
                raise ConfigError(f"clusters is missing: how many consensus clusters should {self.model} find?")
            if self.clusters == "auto":
                if not declaration.counts_clusters:
                    raise ConfigError(f'clusters = "auto" is for {_counting()}; {self.model} takes a number')
            else:
                self._whole("clusters", 1, declaration.most_clusters or LARGEST_COUNT)
            if self.classes is not None:
                raise ConfigError(f"classes is for {_built_in('classes')}; {self.model} takes clusters")
            return
        if self.clusters is not None:
            raise ConfigError(f"clusters is for {_built_in('clusters')}; {self.model} takes classes")
        if self.classes is None or isinstance(self.classes, int):
            most = LARGEST_COUNT
            if isinstance(self.classes, bool) or (self.classes is not None and not 2 <= self.classes <= most):
                raise ConfigError(f"classes is at least 2, and at most {most:,}")
            return
        names: Any = self.classes
        if not isinstance(names, (list, tuple)) or not _are_names(names) or len(set(names)) < max(len(names), 2):
            raise ConfigError('classes is a number, or at least two different names, like ["benign", "malign"]')
        object.__setattr__(self, "classes", tuple(names))

    def _check_precision(self, declaration: ModelDeclaration) -> None:
        self._choose("precision", PRECISIONS)
        if self.precision != "double" and "precision" not in declaration.options:
            able = " and ".join(one.name for one in BUILT_IN if "precision" in one.options)
            raise ConfigError(f'precision = "{self.precision}" is for {able}; {self.model} has 64-bit words only')
        if self.precision != "double" and self.smoothing == 0:
            raise ConfigError(
                f'precision = "{self.precision}" needs smoothing above 0: without it, chances that short words cannot '
                "tell from zero stay zero"
            )

    def _check_noise(self) -> None:
        """The keys of sealed jobs. In another job they would say nothing, and somebody could rely on them."""
        for key in () if self.sealed else SEALED_KEYS:
            if getattr(self, key) != Job.__dataclass_fields__[key].default:
                raise ConfigError(
                    f'{key} is for sealed jobs; in a job with privacy = "{self.privacy}" there is no noise'
                )
        epsilon: Any = self.epsilon
        if epsilon != EXACT:
            if not _is_number(epsilon) or not 0 < epsilon <= LARGEST_EPSILON:
                raise ConfigError(f'epsilon is a number above 0, at most {LARGEST_EPSILON:g}, or "{EXACT}"')
            object.__setattr__(self, "epsilon", float(epsilon))
        if not _is_number(self.delta) or not 0 < self.delta < 1:
            raise ConfigError("delta is a number between 0 and 1")
        self._whole("collusion", 0)
        self._choose("unit", UNITS)
        if self.sealed and self.sites:
            check_collusion(self.collusion, len(self.sites))

    def _refuse_start_from_pairs(self) -> None:
        """Estimators have a start that no job has."""
        for declaration in BUILT_IN:
            if declaration.sealed and self.start == declaration.name:
                raise ConfigError(
                    f"start = {self.start} is for estimators, on one machine: it needs exact tables of pairs of "
                    f'columns, which a job would disclose; take model = "{declaration.name}", whose tables have noise'
                )

    @property
    def sealed(self) -> bool:
        """Whether no total of this job is opened."""
        return self.privacy == "sealed"

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Read a job file."""
        try:
            with Path(path).open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
            if len(content) > LARGEST_FILE:
                raise ConfigError(f"{path}: is larger than any job: check that it is the right file")
            keys = tomllib.loads(content.decode())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ConfigError:
            raise
        except (ValueError, RecursionError) as error:  # also an integer of thousands of digits, tables without end
            raise ConfigError(f"{path}: is not TOML: {error}") from error
        try:
            return cls(**_known(cls, keys, ""))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def definition(self) -> bytes:
        """The job as it travels: JSON with the keys of job.toml, the same bytes for the same job."""
        return json.dumps(self._written(), sort_keys=True, separators=(",", ":")).encode()

    def _written(self) -> dict[str, Any]:
        """All keys, without those that the job does not have: a definition stays what it was before there were any."""
        default = {key: Job.__dataclass_fields__[key].default for key in LATER_KEYS}
        left_out = {key for key in LATER_KEYS if getattr(self, key) == default[key]}
        left_out |= set() if self.sealed else set(SEALED_KEYS)
        return {key: value for key, value in asdict(self).items() if key not in left_out}

    def disclosure_definition(self) -> bytes:
        """What determines the totals of this job: its definition without name, deadlines and privacy.

        Starts follow from it, so that the same job under another name has the same totals, to the bit. JSON like
        `definition`; sites are sorted, tolerance and smoothing have a fraction (1.0), so that one job is written in one
        way.
        """
        keys = {key: value for key, value in self._written().items() if key not in NOT_IN_TOTALS}
        keys |= {"sites": sorted(self.sites), "tolerance": float(self.tolerance), "smoothing": float(self.smoothing)}
        return json.dumps(keys, sort_keys=True, separators=(",", ":")).encode()

    @property
    def disclosure_digest(self) -> bytes:
        """SHA-256 of `disclosure_definition`."""
        return hashlib.sha256(self.disclosure_definition()).digest()

    @classmethod
    def from_definition(cls, definition: bytes) -> Self:
        """Read what `definition` wrote. The sender is not trusted: everything is checked."""
        if len(definition) > LARGEST_FILE:
            raise ConfigError("the job is larger than any job")
        try:
            keys = json.loads(definition)
        except (ValueError, RecursionError) as error:
            raise ConfigError("the job is not JSON") from error
        if not isinstance(keys, dict):
            raise ConfigError("the job is not a JSON object")
        return cls(**_known(cls, keys, ""))

    def _choose(self, key: str, choices: tuple[str, ...]) -> None:
        if getattr(self, key) not in choices:
            raise ConfigError(f"{key} is one of {', '.join(choices)}")

    def _whole(self, key: str, smallest: int, largest: int = LARGEST_COUNT) -> None:
        value = getattr(self, key)
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
            raise ConfigError(f"{key} is a whole number from {smallest} to {largest:,}")


def check_collusion(collusion: int, sites: int) -> None:
    """That the noise of at least one site is left when so many put together what they know."""
    if collusion >= sites:
        few = f"{sites} site{'s' * (sites != 1)}"
        raise ConfigError(
            f"collusion is at most {sites - 1} in a job of {few}, got {collusion}: at least one site must not collude"
        )


def __getattr__(name: str) -> Any:
    """MODELS, when it is asked for: to list the models of installed packages takes time that few commands need."""
    if name == "MODELS":
        return model_names()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _counting() -> str:
    return " and ".join(declaration.name for declaration in BUILT_IN if declaration.counts_clusters)


def _built_in(outcome: str) -> str:
    return " and ".join(declaration.name for declaration in BUILT_IN if declaration.outcome == outcome)


def _known(cls: type, keys: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    names = [f.name for f in fields(cls)]
    for key in keys:
        if key not in names:
            close = difflib.get_close_matches(str(key), names, 1)
            hint = f"; did you mean {prefix}{close[0]}?" if close else f"; known keys: {', '.join(names)}"
            raise ConfigError(f"unknown key {prefix}{key}{hint}")
    return dict(keys)


def _is_job_name(name: str) -> bool:
    """Whether it can be a directory's name, and nobody can take it for a path, an option or something invisible."""
    return (
        0 < len(name) <= LONGEST_NAME
        and name.isprintable()
        and len(name.encode()) <= LONGEST_NAME_BYTES
        and not set(name) & {"/", "\\"}
        and name[0] not in ".-"
        and name == name.strip()
    )


def _are_names(names: Sequence[Any]) -> bool:
    """Texts, or whole numbers: as label files spell classes."""
    return all(type(name) is int for name in names) or all(isinstance(name, str) and name for name in names)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
