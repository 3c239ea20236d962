"""Ensembles to attack, and recorded jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ensembles import Tables, by_cells, by_columns, by_rows, digits, noisy, wine

from ce import Job
from ce.audit.adversary_views import CoordinatorView, CuriousSiteView
from ce.audit.recording import Recording, record, secrets_of
from ce.audit.scoring import Truth


class Staged:
    """A recorded job, and what attacks on it are given."""

    def __init__(self, tables: Tables, mode: str, **keys: object) -> None:
        self.tables = tables
        self.job = Job(**{"clusters": 3, "max_iterations": 6, **keys})  # type: ignore[arg-type]
        self.secrets = secrets_of(self.job, tables)
        self.recording = self.record(mode)
        self.truth = Truth(self.recording, tables)
        self.questions = self.truth.questions()
        self.view = CoordinatorView.of(self.recording, self.job.seed)

    def record(self, mode: str) -> Recording:
        return record(self.job, self.tables, mode, self.secrets)

    def site(self, name: str, block: int = 0) -> CuriousSiteView:
        plain = self.recording if self.recording.mode == "plain" else self.record("plain")
        return CuriousSiteView.of(self.recording, plain, name, self.tables[name], block)

    def foreign(self, name: str) -> list:  # type: ignore[type-arg]
        return [question for question in self.questions if question.holder != name]

    def scores(self, guesses: dict) -> list[float]:  # type: ignore[type-arg]
        """One per question that was answered."""
        return [self.truth.score(question, guess) for question, guess in guesses.items()]


@pytest.fixture(scope="session", name="staged")
def _staged() -> Callable[..., Staged]:
    """Records a job once for all tests that need the same one."""
    recorded: dict[tuple[object, ...], Staged] = {}

    def stage(tables: Tables, mode: str, **keys: object) -> Staged:
        key = (id(tables), mode, *sorted(keys.items()))
        if key not in recorded:
            recorded[key] = Staged(tables, mode, **keys)
        return recorded[key]

    return stage


@pytest.fixture(scope="session", name="ensembles")
def _ensembles() -> dict[str, Tables]:
    """Name -> the sites' label tables, made once for all tests."""
    single = noisy(1, 300, 5, 3, 3, 0.3)
    return {
        "five single columns": by_columns(single, 5),
        "wine, five single columns": by_columns(wine([3] * 5), 5),
        "three columns each": by_columns(noisy(6, 200, 9, 3, 4, 0.3), 3),
        "two sites": by_columns(noisy(2, 200, 2, 3, 4, 0.3), 2),
        "cells": by_cells(noisy(3, 150, 5, 3, 4, 0.3, 0.1), 3),
        "rows": by_rows(noisy(4, 400, 5, 3, 4, 0.3, 0.1), [100, 100, 100]),
        # Layouts that satisfy the default rules: at least three sites in every total, at least four foreign columns in
        # every block, and more labels than one exchange of five starts has dimensions.
        "wine, four sites": by_columns(wine([3, 4, 5] * 4), 4),
        "digits": by_columns(digits([10] * 8), 4),
        "noisy, four sites": by_columns(noisy(7, 220, 12, 3, 4, 0.25, 0.05), 4),
        "noisy, five sites": by_columns(noisy(8, 220, 10, 4, 6, 0.4), 5),
        "wine in rows, four sites": by_rows(wine([3, 4, 5, 6, 3]), [45, 45, 45]),
        "noisy in rows, five sites": by_rows(noisy(9, 500, 6, 4, 5, 0.3, 0.1), [100] * 4),
        "many objects": by_columns(noisy(10, 1000, 5, 3, 4, 0.3), 5),
        "many objects, twelve columns": by_columns(noisy(1, 1000, 12, 3, 4, 0.25), 4),
        "small rows": by_rows(noisy(5, 303, 8, 3, 5, 0.4), [1, 2, 100, 100]),
    }
