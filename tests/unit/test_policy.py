"""A site's rules: what policy.toml may say, what each default is, and what a simulation makes of them."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ce.errors import ConfigError, Refused
from ce.job import Job
from ce.policy import ENV_PREFIX, Policy, sample_policy
from ce.service.settings import reference


def test_the_defaults_are_those_that_are_promised() -> None:
    policy = Policy()
    assert (policy.weakest_privacy, policy.min_sites, policy.min_objects) == ("masked", 3, 20)
    assert (policy.min_foreign_columns, policy.min_classifiers, policy.min_cluster) == (4, 3, 5)
    assert (policy.consent, policy.below_minimum, policy.leave_behind) == ("auto", "exclude", False)
    assert policy.shared_objects == "sealed"
    assert (policy.max_epsilon, policy.max_delta, policy.min_collusion, policy.allow_exact) == (2.0, 1e-6, 1, False)
    assert "pairs" in policy.models
    assert policy.randomise == 0.0
    assert (policy.max_definitions, policy.max_smoothing, policy.max_restarts) == (1, 2.0, 20)
    assert (policy.max_local_loops, policy.max_clusters) == (20, 100)


def test_a_sample_says_every_key_and_means_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(sample_policy())
    assert Policy.read(path) == Policy()
    path.write_text(re.sub(r"(?m)^# (\w+ = .*)$", r"\1", sample_policy()))
    assert set(tomllib.loads(path.read_text())) == {field.name for field in dataclasses.fields(Policy)}
    assert Policy.read(path) == Policy()
    for row in reference(Policy, ENV_PREFIX):
        assert len(row.comment.split()) > 4, row.key


def test_no_policy_allows_everything() -> None:
    policy = Policy.of(None)
    assert policy == Policy.permissive()
    assert (policy.weakest_privacy, policy.min_sites, policy.min_objects) == ("plain", 1, 1)
    assert (policy.min_foreign_columns, policy.min_classifiers, policy.min_cluster, policy.randomise) == (0, 0, 1, 0)
    for privacy in ("plain", "masked", "blind"):
        policy.check(Job(clusters=2, sites=("here",), privacy=privacy), "anybody")
    for epsilon in (100.0, "exact"):
        policy.check(Job(model="pairs", clusters="auto", sites=("here",), epsilon=epsilon, collusion=0), "anybody")
    policy.check_rounds(10**12)


def test_keys_a_file_or_a_policy_are_its_rules(tmp_path: Path) -> None:
    keys = {"min_sites": 2, "models": ["bce"], "coordinators": ("hub",), "randomise": 0, "consent": "ask"}
    policy = Policy.of(keys)
    assert policy == Policy(min_sites=2, models=("bce",), coordinators=("hub",), consent="ask")
    assert isinstance(policy.randomise, float)
    (tmp_path / "policy.toml").write_text('min_sites = 2\nmodels = ["bce"]\ncoordinators = ["hub"]\nconsent = "ask"\n')
    assert Policy.of(tmp_path / "policy.toml") == Policy.of(str(tmp_path / "policy.toml")) == policy
    assert Policy.of(policy) is policy
    assert Policy.of({}) == Policy()


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy.toml").write_text("min_objects = 7\n")
    monkeypatch.setenv("CE_POLICY_MIN_OBJECTS", "50")
    monkeypatch.setenv("CE_POLICY_LEAVE_BEHIND", "true")
    policy = Policy.read(tmp_path / "policy.toml")
    assert (policy.min_objects, policy.leave_behind) == (50, True)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("min_site", 2, "unknown key min_site; did you mean min_sites?"),
        ("min_sites", 0, "min_sites is a whole number of at least 1"),
        ("min_objects", 0, "min_objects is a whole number of at least 1"),
        ("min_cluster", 0, "min_cluster is a whole number of at least 1"),
        ("max_rounds", 0, "max_rounds is a whole number of at least 1"),
        ("max_definitions", 0, "max_definitions is a whole number of at least 1"),
        ("max_restarts", 0, "max_restarts is a whole number of at least 1"),
        ("max_local_loops", 0, "max_local_loops is a whole number of at least 1"),
        ("max_clusters", 0, "max_clusters is a whole number of at least 1"),
        ("max_smoothing", -1, "max_smoothing is a number of at least 0"),
        ("max_smoothing", float("inf"), "max_smoothing is a number of at least 0"),
        ("max_epsilon", -1, "max_epsilon is a number of at least 0"),
        ("max_epsilon", float("nan"), "max_epsilon is a number"),
        ("max_delta", 0.0, "max_delta is a number between 0 and 1"),
        ("max_delta", 1.0, "max_delta is a number between 0 and 1"),
        ("min_collusion", -1, "min_collusion is a whole number of at least 0"),
        ("allow_exact", 1, "allow_exact is true or false"),
        ("shared_objects", "open", "shared_objects is one of sealed, exclude, totals"),
        ("min_foreign_columns", -1, "min_foreign_columns is a whole number of at least 0"),
        ("min_classifiers", -1, "min_classifiers is a whole number of at least 0"),
        ("min_objects", 2.5, "min_objects is a whole number, not a number"),
        ("min_objects", True, "min_objects is a whole number, not true or false"),
        ("min_objects", None, "min_objects is a whole number, not nothing"),
        ("weakest_privacy", "naked", "weakest_privacy is one of plain, masked, blind"),
        ("models", ["kmeans"], "models are among bce, bc3e, mixture"),
        ("models", "bce", "models is a list of texts, not a text"),
        ("consent", "maybe", "consent is one of auto, ask"),
        ("below_minimum", "ignore", "below_minimum is one of exclude, refuse"),
        ("leave_behind", 1, "leave_behind is true or false, not a whole number"),
        ("randomise", 1.0, "randomise is a number from 0 to below 1"),
        ("randomise", -0.1, "randomise is a number from 0 to below 1"),
        ("randomise", float("nan"), "randomise is a number"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_in_a_sentence(key: str, value: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}"):
        Policy.of({key: value})


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
def test_a_job_that_breaks_a_rule_is_refused_by_its_name() -> None:
    policy = Policy(models=("bce",), coordinators=("hub",), max_rounds=3)
    sites = ("east", "north", "south")
    for rule, job, coordinator in (
        ("weakest_privacy", Job(clusters=2, sites=sites, privacy="plain"), "hub"),
        ("min_sites", Job(clusters=2, sites=sites[:2]), "hub"),
        ("models", Job(clusters=2, sites=sites, model="mixture"), "hub"),
        ("coordinators", Job(clusters=2, sites=sites), "nobody"),
    ):
        with pytest.raises(Refused) as refused:
            policy.check(job, coordinator)
        assert refused.value.rule == rule
    policy.check(Job(clusters=2, sites=sites), "hub")
    policy.check_rounds(3)
    with pytest.raises(Refused, match="rule: max_rounds"):
        policy.check_rounds(4)


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
@pytest.mark.parametrize(
    ("rule", "most", "beyond"),
    [
        ("max_smoothing", {"smoothing": 2}, {"smoothing": 2.001}),
        ("max_restarts", {"restarts": 20}, {"restarts": 21}),
        ("max_local_loops", {"local_loops": 20}, {"local_loops": 21}),
        ("max_clusters", {"clusters": 100}, {"clusters": 101}),
        ("max_clusters", {"model": "bc3e", "classes": 100}, {"model": "bc3e", "classes": 101}),
        (
            "max_clusters",
            {"model": "bc3e", "classes": tuple(range(100))},
            {"model": "bc3e", "classes": tuple(range(101))},
        ),
    ],
    ids=str,
)
def test_ceilings_are_what_an_operator_may_ask_for_at_most(
    rule: str, most: dict[str, Any], beyond: dict[str, Any]
) -> None:
    def job(keys: dict[str, Any]) -> Job:
        outcome = {} if "classes" in keys else {"clusters": 2}
        return Job(**{"sites": ("east", "north", "south")} | outcome | keys)

    Policy().check(job(most), "hub")
    with pytest.raises(Refused) as refused:
        Policy().check(job(beyond), "hub")
    assert refused.value.rule == rule
    Policy.permissive().check(job(beyond), "hub")


def sealed_job(**keys: Any) -> Job:
    return Job(**{"model": "pairs", "clusters": 3, "sites": ("east", "north", "south")} | keys)


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
@pytest.mark.parametrize("weakest", ["plain", "masked", "blind", "sealed"])
def test_a_sealed_job_satisfies_every_weakest_privacy(weakest: str) -> None:
    Policy(weakest_privacy=weakest).check(sealed_job(), "hub")
    if weakest == "sealed":
        with pytest.raises(Refused, match="rule: weakest_privacy"):
            Policy(weakest_privacy=weakest).check(Job(clusters=3, sites=("a", "b", "c"), privacy="blind"), "hub")


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
@pytest.mark.parametrize(
    ("rule", "policy", "most", "beyond"),
    [
        ("max_epsilon", {}, {"epsilon": 2.0}, {"epsilon": 2.01}),
        ("max_epsilon", {"max_epsilon": 0.5}, {"epsilon": 0.5}, {"epsilon": 1}),
        ("max_delta", {}, {"delta": 1e-6}, {"delta": 2e-6}),
        ("min_collusion", {}, {"collusion": 1}, {"collusion": 0}),
        ("min_collusion", {"min_collusion": 2}, {"collusion": 2}, {"collusion": 1}),
        ("allow_exact", {}, {}, {"epsilon": "exact"}),
        ("models", {"models": ("bce", "pairs")}, {}, None),
        ("max_clusters", {"max_clusters": 31}, {"clusters": "auto"}, None),
        ("max_clusters", {"max_clusters": 30}, {"clusters": 30}, {"clusters": "auto"}),
        ("min_sites", {}, {}, {"sites": ("east", "north")}),
    ],
    ids=str,
)
def test_what_the_tables_of_a_sealed_job_may_tell_is_bounded_by_name(
    rule: str, policy: dict[str, Any], most: dict[str, Any], beyond: dict[str, Any] | None
) -> None:
    rules = Policy(**policy)
    rules.check(sealed_job(**most), "hub")
    if beyond is not None:
        with pytest.raises(Refused) as refused:
            rules.check(sealed_job(**beyond), "hub")
        assert refused.value.rule == rule


def test_a_site_that_allows_tables_without_noise_takes_them_whatever_its_epsilon() -> None:
    Policy(allow_exact=True, max_epsilon=0.0).check(sealed_job(epsilon="exact"), "hub")
    with pytest.raises(Refused, match="rule: max_epsilon"):
        Policy(allow_exact=True, max_epsilon=0.0).check(sealed_job(epsilon=0.1), "hub")


def test_a_job_over_totals_knows_nothing_of_noise() -> None:
    Policy(max_epsilon=0.0, min_collusion=5).check(Job(clusters=3, sites=("a", "b", "c")), "hub")
