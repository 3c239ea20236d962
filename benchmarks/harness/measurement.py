"""What a measurement is: a declared object. `play` runs it.

    Measurement(
        name="exchange",
        what="one exchange of a job with four sites",
        unit="s",
        subjects=(Subject("ping", ping, "limit"), Subject("plain", exchange)),
        claims=(Ratio("an exchange in pings", "plain", "ping", most=3.0),),
    )

All subjects of a measurement are measured turn by turn in the same run, so that whatever else the machine does meets
all of them. A ratio is the median over turns of the ratio within a turn. Everything here is arithmetic on what subjects
return; only subjects know of time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["ours", "peer", "limit", "before"]
#: By subject, one number per turn.
Values = Mapping[str, Sequence[float]]
KEPT, NOT_KEPT, NOT_MEASURED, NO_PROMISE = "kept", "NOT kept", "not measured", ""


@dataclass(frozen=True)
class Subject:
    """Something that is measured: `turn` does it once and returns a number in the measurement's unit.

    A turn may return several numbers, by name: they are recorded as "subject: name".
    """

    name: str
    turn: Callable[[], float | Mapping[str, float]] = field(repr=False)
    role: Role = "ours"


@dataclass(frozen=True)
class Claim:
    """A number computed from a measurement, and what was promised of it; without `most` and `least`, nothing."""

    what: str
    most: float | None = None
    least: float | None = None
    goal: float | None = None  # beyond the promise, in the same direction

    def subjects(self) -> tuple[str, ...]:
        raise NotImplementedError

    def found(self, values: Values) -> float:
        raise NotImplementedError

    def verdict(self, values: Values) -> Verdict:
        if any(not values.get(name) for name in self.subjects()):
            return Verdict(self, None)
        return Verdict(self, self.found(values))


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    found: float | None  # None: a subject could not be measured

    @property
    def state(self) -> str:
        claim, found = self.claim, self.found
        if claim.most is None and claim.least is None:
            return NO_PROMISE if found is not None else NOT_MEASURED
        if found is None:
            return NOT_MEASURED
        within = (claim.most is None or found <= claim.most) and (claim.least is None or found >= claim.least)
        return KEPT if within else NOT_KEPT

    @property
    def promised(self) -> str:
        claim = self.claim
        words = [f"at most {claim.most:.3g}"] if claim.most is not None else []
        words += [f"at least {claim.least:.3g}"] if claim.least is not None else []
        words += [f"goal {claim.goal:.3g}"] if claim.goal is not None else []
        return ", ".join(words)


@dataclass(frozen=True)
class Ratio(Claim):
    """How many times `of` is `to`: the median over turns. `threads`: CPU time of `to` is spread over so many."""

    of: str = ""
    to: str = ""
    threads: int = 1

    def subjects(self) -> tuple[str, ...]:
        return self.of, self.to

    def found(self, values: Values) -> float:
        return self.threads * median_ratio(values[self.of], values[self.to])


@dataclass(frozen=True)
class Level(Claim):
    """The median of one subject: for bytes, agreement and other numbers that do not depend on the machine's load."""

    of: str = ""

    def subjects(self) -> tuple[str, ...]:
        return (self.of,)

    def found(self, values: Values) -> float:
        return statistics.median(values[self.of])


@dataclass(frozen=True)
class Difference(Claim):
    """The median over turns of `of` minus `to`."""

    of: str = ""
    to: str = ""

    def subjects(self) -> tuple[str, ...]:
        return self.of, self.to

    def found(self, values: Values) -> float:
        return statistics.median(a - b for a, b in zip(values[self.of], values[self.to], strict=True))


@dataclass(frozen=True)
class Growth(Claim):
    """The exponent e of time ~ size^e, by least squares on the logarithms of sizes and medians."""

    sizes: Mapping[str, float] = field(default_factory=dict)  # by subject

    def subjects(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def found(self, values: Values) -> float:
        return exponent(list(self.sizes.values()), [statistics.median(values[name]) for name in self.sizes])


def median_ratio(of: Sequence[float], to: Sequence[float]) -> float:
    """The median over turns of the ratio within a turn."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of ln(time) over ln(size)."""
    return statistics.linear_regression([math.log(n) for n in sizes], [math.log(t) for t in times]).slope


@dataclass(frozen=True)
class Measurement:
    """A question to the machine: subjects that are compared, and what was promised of their ratios."""

    name: str
    what: str
    unit: str
    subjects: tuple[Subject, ...]
    claims: tuple[Claim, ...]
    turns: int = 5
    warm_up: int = 1  # turns that do not count
    missing: Mapping[str, str] = field(default_factory=dict)  # subjects that cannot be measured here, and why
    axis: str = ""  # of a growth: what sizes are
    #: Units of numbers that a subject returns beside others, by their name.
    units: Mapping[str, str] = field(default_factory=dict)

    def unit_of(self, value: str) -> str:
        """The unit of "subject" or "subject: name"."""
        return self.units.get(value.rsplit(": ", 1)[-1], self.unit)


@dataclass(frozen=True)
class Result:
    """A measurement that has been played."""

    measurement: Measurement
    values: dict[str, list[float]]
    roles: dict[str, Role]
    missing: dict[str, str]

    @property
    def verdicts(self) -> list[Verdict]:
        return [claim.verdict(self.values) for claim in self.measurement.claims]

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self.values.items()}

    def line(self) -> dict[str, Any]:
        """As it is written to a file: one JSON object."""
        return {
            "measurement": self.measurement.name,
            "what": self.measurement.what,
            "units": {name: self.measurement.unit_of(name) for name in self.values},
            "values": self.values,
            "roles": self.roles,
            "missing": self.missing,
            "claims": [
                {
                    "what": verdict.claim.what,
                    "found": verdict.found,
                    "promised": verdict.promised,
                    "verdict": verdict.state,
                }
                for verdict in self.verdicts
            ],
        }


def _reason(error: Exception) -> str:
    """One line of it, which fits in a table."""
    lines = [line for line in str(error).replace("|", "/").splitlines() if line.strip()]
    return f"{type(error).__name__}{': ' if lines else ''}{lines[0][:200] if lines else ''}"


def play(measurement: Measurement, turns: int | None = None) -> Result:
    """Measure all subjects turn by turn. A subject that fails is not measured, and the reason is kept.

    Every other turn goes in the opposite order, so that no subject always follows the same one.
    """
    turns = measurement.turns if turns is None else turns
    values: dict[str, list[float]] = {}
    roles: dict[str, Role] = {}
    missing = dict(measurement.missing)
    for turn in range(-measurement.warm_up, turns):
        order = measurement.subjects[::-1] if turn % 2 else measurement.subjects
        for subject in order:
            if subject.name in missing:
                continue
            try:
                found = subject.turn()
            except Exception as error:  # whatever a peer or a changed interface raises: the others are still compared
                missing[subject.name] = _reason(error)
                continue
            named = {subject.name: found} if not isinstance(found, Mapping) else found
            for key, value in named.items():
                name = key if key == subject.name else f"{subject.name}: {key}"
                roles[name] = subject.role
                if turn >= 0:
                    values.setdefault(name, []).append(float(value))
    # A subject that failed after some turns has fewer values than the others: it does not count at all.
    for name in [name for name in values if name.split(": ")[0] in missing]:
        del values[name], roles[name]
    ordered = [name for s in measurement.subjects for name in values if name.split(": ")[0] == s.name]
    return Result(measurement, {n: values[n] for n in ordered}, {n: roles[n] for n in ordered}, missing)
