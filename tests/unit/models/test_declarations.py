"""A model is declared once; packages offer others, and a package that is broken breaks nothing but its own model."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click import Command
from click.testing import CliRunner
from support.model_packages import use, write_package

import ce
from ce.declarations import ModelDeclaration
from ce.declarations.declaration import JOB_OPTIONS
from ce.declarations.registry import (
    BUILT_IN,
    built_in_names,
    find_model,
    look_again,
    model_names,
    package_problems,
)
from ce.errors import BrokenModel, ConfigError, UnknownModel
from ce.models.base import Estimator
from ce.models.registry import model_without_labels
from ce.pair_tables.fit import MOST_CLUSTERS, MOST_ITERATIONS
from ce.policy import Policy
from ce_client.cli.run import check as site_check
from ce_coordinator.cli.serve import check as coordinator_check

SOURCES = Path(__file__).parents[3]
GOOD = """\
from ce.declarations import ModelDeclaration
D = ModelDeclaration(name='good', title='', steps='a:b', estimator='a:c')
"""


@pytest.fixture(name="packages")
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that installs a package with these entry points and modules."""
    with monkeypatch.context() as changes:

        def install(name: str, entry_points: Mapping[str, str], **modules: str) -> None:
            files = {f"{module}.py": text for module, text in modules.items()}
            write_package(tmp_path, name, entry_points, files)
            use(tmp_path, changes)

        yield install
    look_again()


def declared(**changes: Any) -> ModelDeclaration:
    return ModelDeclaration(**{"name": "any", "title": "", "steps": "a:b", "estimator": "a:c", **changes})


def test_the_name_of_a_built_in_model_stands_in_its_declaration_only() -> None:
    quoted = re.compile(f"[\"']({'|'.join(built_in_names())})[\"']")
    found = {
        (path.relative_to(SOURCES).as_posix(), name)
        for package in ("common/ce", "server/ce_coordinator", "client/ce_client")
        for path in (SOURCES / package).rglob("*.py")
        for name in quoted.findall(path.read_text(encoding="utf-8"))
    }
    declarations = {(f"common/ce/declarations/{name}.py", name) for name in built_in_names()}
    # A value of their parameter `init`, which is called like the model.
    assert found == declarations | {("common/ce/models/bce.py", "pairs"), ("common/ce/models/mixture.py", "pairs")}


@pytest.mark.parametrize("model", [model for model in BUILT_IN if not model.sealed], ids=lambda model: model.name)
def test_a_built_in_model_is_what_it_declares(model: ModelDeclaration) -> None:
    asked = {"classes": 3} if model.takes_classes else {"clusters": 3}
    job = ce.Job(model=model.name, **asked)
    steps = model.load_steps()(job, 3)
    assert (steps.uses_votes, steps.max_iter) == (model.takes_classes, model.max_iterations)
    assert model.capacity is not None
    assert model.capacity.phases == steps.phases
    assert set(model.parameters) <= set(steps.broadcast)
    assert issubclass(model.load_estimator(), Estimator)
    assert ce.models.estimator_of(model.name) is model.load_estimator()
    assert steps.n_starts == (job.restarts if "restarts" in model.options else 1)


def test_a_sealed_model_has_an_estimator_and_no_steps() -> None:
    [model] = [model for model in BUILT_IN if model.sealed]
    assert (model.name, model.steps, model.counts_clusters) == ("pairs", "", True)
    assert model.most_clusters == MOST_CLUSTERS
    assert issubclass(model.load_estimator(), Estimator)
    assert model.max_iterations == MOST_ITERATIONS
    with pytest.raises(ConfigError, match="model pairs runs in sealed jobs only"):
        model_without_labels(ce.Job(model=model.name, clusters=3))


def test_a_job_has_at_most_as_many_clusters_as_its_model() -> None:
    assert ce.Job(model="pairs", clusters=MOST_CLUSTERS).clusters == MOST_CLUSTERS
    with pytest.raises(ConfigError, match="clusters is a whole number from 1 to 31"):
        ce.Job(model="pairs", clusters=MOST_CLUSTERS + 1)


def test_a_job_does_not_start_from_exact_pair_tables() -> None:
    with pytest.raises(ConfigError, match=r"start = pairs is for estimators, on one machine: .* would disclose"):
        ce.Job(clusters=3, start="pairs")


def test_options_are_keys_of_a_job() -> None:
    assert set(JOB_OPTIONS) <= {field.name for field in dataclasses.fields(ce.Job)}


def test_models_are_what_the_registry_lists(packages: Any) -> None:
    from ce import job

    assert job.MODELS == model_names() == built_in_names() == ("bce", "bc3e", "mixture", "pairs")
    packages("good", {"good": "good:D"}, good=GOOD)
    assert job.MODELS == model_names() == ("bce", "bc3e", "mixture", "pairs", "good")
    assert built_in_names() == ("bce", "bc3e", "mixture", "pairs")


def test_an_unknown_model_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(
        UnknownModel, match="model is one of bce, bc3e, mixture, pairs; model other is not installed here"
    ):
        find_model("other")
    with pytest.raises(UnknownModel, match=r"model is one of bce, bc3e, mixture, pairs$"):
        find_model("a name\nof two lines")


@pytest.mark.parametrize(
    ("modules", "value", "problem"),
    [
        ({}, "not_there:D", r"package bad 1\.0: its model bad cannot be loaded \(ModuleNotFoundError"),
        ({"bad": "raise RuntimeError('no')"}, "bad:D", r"package bad 1\.0: .*\(RuntimeError: no\)"),
        ({"bad": ""}, "bad:D", r"package bad 1\.0: .*\(AttributeError"),
        ({"bad": "D = 1"}, "bad:D", r"package bad 1\.0: bad:D is not a ce\.declarations\.ModelDeclaration"),
        ({"bad": GOOD}, "bad:D", r"package bad 1\.0: its entry point is called bad, the model that it declares good"),
        ({"bad": GOOD.replace("'good'", "'Bad one'")}, "bad:D", r"package bad 1\.0: .*small letters"),
    ],
    ids=["no module", "raises", "no name", "no declaration", "another name", "no name of a model"],
)
def test_a_broken_package_is_an_error_that_names_it(
    packages: Any, monkeypatch: pytest.MonkeyPatch, modules: dict[str, str], value: str, problem: str
) -> None:
    monkeypatch.delitem(sys.modules, "bad", raising=False)
    packages("bad", {"bad": value}, **modules)
    with pytest.raises(BrokenModel, match=problem):
        find_model("bad")
    with pytest.raises(BrokenModel, match=problem):
        ce.Job(model="bad", clusters=2)
    assert re.search(problem, str(package_problems()[0]))
    assert ce.Job(clusters=2).model == "bce"
    monkeypatch.delitem(sys.modules, "bad", raising=False)


def test_two_packages_with_one_model_are_both_named(packages: Any) -> None:
    packages("one", {"twice": "one:D"})
    packages("other", {"twice": "other:D"})
    assert model_names() == (*built_in_names(), "twice")
    with pytest.raises(BrokenModel, match=r"packages one 1\.0 and other 1\.0 all offer model twice"):
        find_model("twice")


def test_no_package_replaces_a_built_in_model(packages: Any) -> None:
    packages("false", {"bce": "false:D"}, false="raise SystemExit('loaded')")
    assert find_model("bce") is BUILT_IN[0]
    assert model_names() == built_in_names()
    assert [str(problem) for problem in package_problems()] == [
        "package false 1.0 offers model bce, which is built in: it is not used"
    ]


@pytest.mark.parametrize("command", [coordinator_check, site_check])
def test_check_shows_packages_that_cannot_be_used(packages: Any, command: Command, tmp_path: Path) -> None:
    packages("false", {"bce": "false:D"})
    ended = CliRunner().invoke(command, ["--config", str(tmp_path), "--format", "json"])
    [problem] = [line for line in json.loads(ended.stdout)["checks"] if line["check"] == "models"]
    assert problem["sentence"] == "package false 1.0 offers model bce, which is built in: it is not used"
    assert (problem["ok"], problem["exit_code"]) == (False, BrokenModel.exit_code)


def test_a_policy_names_models_of_packages_and_by_default_none(packages: Any) -> None:
    assert Policy().models == built_in_names()
    with pytest.raises(ConfigError, match=r"models are among bce, bc3e, mixture, pairs: install the package"):
        Policy(models=("good",))
    packages("good", {"good": "good:D"}, good=GOOD)
    assert Policy().models == built_in_names()
    assert Policy(models=("good",)).models == ("good",)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "Not one"}, "small letters, digits"),
        ({"steps": "no reference"}, "model any: steps is a text like 'package.module:name'"),
        ({"estimator": "a.b"}, "model any: estimator is a text like 'package.module:name'"),
        ({"outcome": "ranks"}, "outcome is clusters or classes"),
        ({"options": ("restarts", "depth")}, "options are among restarts, .*; got depth"),
        ({"scalars": ("rho",)}, "scalars are among its parameters"),
        ({"sealed": True}, "a sealed model has no steps"),
    ],
)
def test_a_declaration_is_checked_when_it_is_made(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BrokenModel, match=problem):
        declared(**changes)


def test_a_reference_that_leads_nowhere_is_an_error_that_names_the_model() -> None:
    with pytest.raises(BrokenModel, match=r"model any: nowhere:steps cannot be loaded \(ModuleNotFoundError"):
        declared(steps="nowhere:steps").load_steps()


def test_declarations_and_jobs_need_no_numerical_library() -> None:
    code = (
        "import sys, ce.policy, ce.capacity; ce.Job(clusters=2); print(sorted({'numpy', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_steps_of_a_job_need_no_estimator() -> None:
    code = (
        "import sys, ce; from ce.models.registry import model_without_labels\n"
        "[model_without_labels(job) for job in (ce.Job(clusters=2), ce.Job(model='mixture', clusters=2),"
        " ce.Job(model='bc3e', classes=2))]\n"
        "print([name for name in ('ce.models.base', 'ce.models.bce', 'ce.models.bc3e') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
