"""The rule "one randomisation per column", and the epsilon that all draws of a site's labels add up to.

Randomised labels are drawn once. Where two draws of the same labels agree, the label is probably the true one. So a
site stores how the labels of each column were randomised when they were first contributed, and refuses another way
(other declared categories, another probability or secret, another choice of columns), until it is allowed here
(`ce-client allow-redraw`). Every way that was used counts: epsilons of independent draws add.

What does not count, because nothing here can tell: the same labels under another name of the column or other ids, and
jobs before labels were first randomised.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ce.errors import Refused
from ce.labels.randomised import Randomisation
from ce_client.state.files import damaged, exclusive, read_json, write_json

FILE_NAME = "randomisations.json"
RULE = "one randomisation per column"


class RecordsRedraws(Protocol):
    """A ledger, as far as it records that another draw of a column is used."""

    def allow_redraw(self, job: str, column: str, epsilon: float | None) -> bytes: ...


@dataclass(frozen=True)
class Draw:
    """One way in which the labels of a column are randomised."""

    column: str
    version: str  # of the draws: see `Randomisation.draw_version`; empty: labels stay as they are
    sampling: str  # of the choice of columns; empty: all take part
    sampled: int  # how many columns of each object take part; 0: all
    epsilon: float | None  # of one label; None: no limit
    job: str = ""  # the first job
    at: float = 0.0

    def is_like(self, other: Draw) -> bool:
        return (self.column, self.version, self.sampling) == (other.column, other.version, other.sampling)


@dataclass(frozen=True)
class AccountedEpsilon:
    """What all draws so far add up to. None: no limit, because labels were sent as they are beside randomised ones."""

    columns: dict[str, float | None]  # of one label, by column
    row: float | None  # of all labels of an object at this site


@dataclass(frozen=True)
class _Content:
    """The content of the file."""

    used: tuple[Draw, ...] = ()
    allowed: tuple[Draw, ...] = ()  # by `ce-client allow-redraw`


def draws_of(how: Randomisation, columns: Iterable[str], secret: bytes) -> tuple[Draw, ...]:
    """How the labels of these columns are randomised now."""
    names, sampling = list(columns), how.sampling_version(secret)
    epsilons = how.epsilons(names)
    sampled = how.sampled if sampling else 0
    return tuple(Draw(name, how.draw_version(name, secret), sampling, sampled, epsilons.get(name)) for name in names)


class Randomisations:
    """How the labels of one site were randomised in its jobs, in its state directory."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE_NAME

    def others(self, draw: Draw) -> tuple[Draw, ...]:
        """The other ways in which this column was randomised; empty if this way was one too."""
        return _others(self._read(), draw)

    def check(self, draws: Iterable[Draw]) -> None:
        """Raises Refused unless the labels may be contributed with these draws."""
        _refuse(self._read(), draws)

    def accounted(self, draws: Iterable[Draw] = ()) -> AccountedEpsilon:
        """What all draws so far, and these, add up to."""
        content = self._read()
        return _accounted(content.used + _new(content, draws))

    def remember(self, draws: Iterable[Draw], job: str, ledger: RecordsRedraws) -> None:
        """Store that labels are contributed with these draws. Call it before anything is sent.

        The first use of a draw that was allowed is recorded in the ledger.
        """
        draws = tuple(draws)
        with exclusive(self._path.parent):
            content = self._read()
            # Once more: another job may have begun since this one was offered.
            _refuse(content, draws)
            new = tuple(replace(draw, job=job, at=time.time()) for draw in _new(content, draws))
            if not new:
                return
            used = content.used + new
            after = _accounted(used)
            for draw in new:
                if any(other.column == draw.column for other in content.used):
                    ledger.allow_redraw(job, draw.column, after.columns[draw.column])
            self._write(_Content(used, content.allowed))

    def allow(self, draw: Draw) -> bool:
        """Allow this draw of a column beside the others. False: that was allowed already."""
        with exclusive(self._path.parent):
            content = self._read()
            if any(draw.is_like(known) for known in content.allowed):
                return False
            self._write(_Content(content.used, (*content.allowed, replace(draw, at=time.time()))))
        return True

    def _read(self) -> _Content:
        """The content. A damaged file is an error: an empty one in its place would allow every draw."""
        written: Any = read_json(self._path)
        if written is None:
            return _Content()
        try:
            return _Content(
                tuple(Draw(**draw) for draw in written["used"]), tuple(Draw(**draw) for draw in written["allowed"])
            )
        except (TypeError, KeyError) as error:
            raise damaged(self._path) from error

    def _write(self, content: _Content) -> None:
        write_json(
            self._path,
            {"used": [vars(draw) for draw in content.used], "allowed": [vars(draw) for draw in content.allowed]},
        )


def _others(content: _Content, draw: Draw) -> tuple[Draw, ...]:
    known = [used for used in content.used if used.column == draw.column]
    return () if any(draw.is_like(used) for used in known) else tuple(known)


def _refuse(content: _Content, draws: Iterable[Draw]) -> None:
    for draw in draws:
        others = _others(content, draw)
        if others and not any(draw.is_like(allowed) for allowed in content.allowed):
            raise Refused(
                RULE,
                f"the labels of column {draw.column!r} were randomised in another way in job {others[0].job!r}: with "
                "other declared categories, another probability, secret or choice of columns. Labels on which two "
                "draws agree are probably true: restore what was (labels.categories and secret in client.toml, "
                "randomise and randomise_columns in policy.toml), or see ce-client allow-redraw COLUMN",
            )


def _new(content: _Content, draws: Iterable[Draw]) -> tuple[Draw, ...]:
    """Those that count and are not in the file. Labels as they are count only beside randomised ones."""
    return tuple(
        draw
        for draw in draws
        if not any(draw.is_like(used) for used in content.used) and (draw.version or _others(content, draw))
    )


def _accounted(used: Iterable[Draw]) -> AccountedEpsilon:
    """Of a label: the sum over different draws. Of a row: for each choice of columns, of which an object shows at most
    so many, the largest columns; and the sum over the choices."""
    used = tuple(used)
    columns: dict[str, dict[str, float]] = {}
    choices: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for draw in used:
        value = math.inf if draw.epsilon is None else draw.epsilon
        columns.setdefault(draw.column, {})[draw.version] = value
        choices.setdefault((draw.sampling, draw.sampled), {}).setdefault(draw.column, {})[draw.version] = value
    row = 0.0
    for (_, sampled), shown in choices.items():
        row += sum(sorted((sum(draws.values()) for draws in shown.values()), reverse=True)[: sampled or None])
    return AccountedEpsilon({name: _limit(sum(draws.values())) for name, draws in columns.items()}, _limit(row))


def _limit(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def epsilon_sentence(columns: Mapping[str, float | None], row: float | None) -> str:
    """Epsilon in words: of one label, by column, and of all labels of an object."""
    listed = ", ".join(f"{epsilon_words(value)} ({name})" for name, value in columns.items())
    return f"epsilon {listed} per label; {epsilon_words(row)} per row, all labels of an object"


def epsilon_words(epsilon: float | None) -> str:
    return "without limit" if epsilon is None else f"{epsilon:.2f}"
