"""A job: every key is checked once, and an error names the key, in Python as in job.toml."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import ce
from ce.errors import CeError, ConfigError
from ce.job import LATER_KEYS, MODES_OF_TOTALS, SEALED_KEYS, Deadlines, Job
from ce.models.registry import model_without_labels

BC3E: dict[str, Any] = {"model": "bc3e"}
PAIRS: dict[str, Any] = {"model": "pairs", "clusters": 3}

VALID: list[tuple[str, Any]] = [
    ("name", "a"),
    ("name", "x" * 100),
    ("name", "Kunden 2024 (März)"),
    ("name", "ü" * 100),
    ("name", "2024-11.final"),
    ("name", "~"),
    ("name", "a..b"),
    ("model", "bce"),
    ("model", "mixture"),
    ("clusters", 1),
    ("clusters", 1000),
    ("sites", []),
    ("sites", ["north"]),
    ("sites", ("north", "south")),
    ("restarts", 1),
    ("restarts", 10_000),
    ("seed", 0),
    ("seed", 2**70),
    ("max_iterations", 1),
    ("tolerance", 0),
    ("tolerance", 0.5),
    ("tolerance", 10),
    ("privacy", "plain"),
    ("privacy", "masked"),
    ("privacy", "blind"),
    ("schedule", "joint"),
    ("schedule", "newton"),
    ("local_loops", 1),
    ("local_loops", 7),
    ("smoothing", 0.0),
    ("smoothing", 1),
    ("on_dropout", "wait"),
    ("on_dropout", "fail"),
    ("on_dropout", "continue"),
    ("posterior", "joint"),
    ("posterior", "factorised"),
    ("start", "votes"),
    ("start", "diffused"),
    ("deadlines", {}),
    ("deadlines", {"enrol_s": 1}),
    ("deadlines", {"enrol_s": 0.5, "round_s": 2.5, "job_s": 10**6}),
    ("deadlines", Deadlines(round_s=3.0)),
]

INVALID: list[tuple[str, Any]] = [
    ("name", ""),
    ("name", "x" * 101),
    ("name", "a/b"),
    ("name", "a\\b"),
    ("name", "."),
    ("name", ".."),
    ("name", ".hidden"),
    ("name", "../../etc/passwd"),
    ("name", "-rf"),
    ("name", "--help"),
    ("name", " "),
    ("name", " a"),
    ("name", "a "),
    ("name", "a\nb"),
    ("name", "a\tb"),
    ("name", "a\x00b"),
    ("name", "\x1b[2J"),
    ("name", "a\u202eb"),  # would be shown the other way round
    ("name", "a\u00a0b"),
    ("name", "€" * 67),  # 201 bytes
    ("name", 3),
    ("name", None),
    ("model", "kmeans"),
    ("model", "BCE"),
    ("model", 1),
    ("model", []),
    ("clusters", 0),
    ("clusters", -1),
    ("clusters", 1_000_001),
    ("clusters", 2.0),
    ("clusters", "2"),
    ("clusters", True),
    ("clusters", [2]),
    ("sites", "north"),
    ("sites", 3),
    ("sites", None),
    ("sites", ["north", 3]),
    ("sites", ["north", ""]),
    ("sites", ["north", "north"]),
    ("sites", {"north": 1}),
    ("restarts", 0),
    ("restarts", 2.5),
    ("restarts", 10_001),
    ("restarts", False),
    ("seed", 1.0),
    ("seed", "1"),
    ("seed", True),
    ("seed", None),
    ("max_iterations", -1),
    ("max_iterations", 1e3),
    ("max_iterations", True),
    ("tolerance", -1e-9),
    ("tolerance", float("nan")),
    ("tolerance", float("inf")),
    ("tolerance", 10**400),
    ("tolerance", 1_000_001),
    ("tolerance", "small"),
    ("tolerance", True),
    ("privacy", "none"),
    ("privacy", "sealed"),
    ("privacy", None),
    ("schedule", "both"),
    ("local_loops", 0),
    ("local_loops", 1.5),
    ("smoothing", -0.1),
    ("halving", 1),
    ("halving", "true"),
    ("smoothing", 10**400),
    ("on_dropout", "ignore"),
    ("posterior", "mean"),
    ("start", "random"),
    ("deadlines", 60),
    ("deadlines", "1h"),
    ("deadlines", None),
    ("deadlines", [60]),
]

INVALID_CLASSES: list[Any] = [
    0,
    1,
    -3,
    2.5,
    True,
    "benign",  # a text is not a list of its letters
    [],
    ["benign"],
    ["benign", "benign"],
    ["benign", 1],
    ["benign", ""],
    [0.5, 1.5],
    [True, False],
    [["benign"], ["malign"]],
    [1, 1],
    {"benign": 1, "malign": 2},
    1_000_001,
    10**400,
]


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Job(**keys)
    assert caught.value.exit_code == 4
    return str(caught.value)


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "job.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {toml(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def test_defaults() -> None:
    job = Job(clusters=3)
    assert (job.name, job.model, job.clusters, job.classes, job.sites) == ("job", "bce", 3, None, ())
    assert (job.restarts, job.seed, job.max_iterations, job.tolerance) == (5, 0, 300, 1e-6)
    assert (job.privacy, job.schedule, job.local_loops, job.on_dropout) == ("masked", "joint", 10, "wait")
    assert (job.smoothing, job.posterior, job.start) == (0.01, "joint", "votes")
    assert job.deadlines == Deadlines(enrol_s=3600.0, round_s=600.0, job_s=86400.0)
    assert job.halving is None


@pytest.mark.parametrize(
    ("model", "expected"), [("bce", (5, 300, 10, 0.01)), ("mixture", (20, 300, 1, 1.0)), ("bc3e", (5, 10, 1, 0.01))]
)
def test_a_model_declares_what_a_job_does_not_say(model: str, expected: tuple[Any, ...]) -> None:
    keys = ("restarts", "max_iterations", "local_loops", "smoothing")
    outcome: dict[str, Any] = {"classes": 2} if model == "bc3e" else {"clusters": 2}
    for job in (Job(model=model, **outcome), Job(model=model, **outcome, **dict.fromkeys(keys))):
        assert tuple(getattr(job, key) for key in keys) == expected
    given = Job(model=model, **outcome, restarts=3, max_iterations=4, local_loops=2, smoothing=0.5)
    assert tuple(getattr(given, key) for key in keys) == (3, 4, 2, 0.5)


def test_halving_is_written_only_where_it_is_said() -> None:
    assert b"halving" not in Job(clusters=3).definition()
    for halving in (True, False):
        job = Job(clusters=3, halving=halving)
        assert Job.from_definition(job.definition()) == job
        assert job.disclosure_digest != Job(clusters=3).disclosure_digest


@pytest.mark.parametrize(("model", "iterations"), [("bce", 300), ("mixture", 300), ("bc3e", 10)])
def test_each_model_has_its_own_number_of_iterations(model: str, iterations: int) -> None:
    outcome = {"classes": 2} if model == "bc3e" else {"clusters": 2}
    assert Job(model=model, **outcome).max_iterations == iterations
    assert Job(model=model, max_iterations=0, **outcome).max_iterations == 0
    assert Job(model=model, max_iterations=42, **outcome).max_iterations == 42


@pytest.mark.parametrize(("key", "value"), VALID)
def test_valid_values_are_kept(key: str, value: Any, tmp_path: Path) -> None:
    job = Job(**{"clusters": 2, key: value})
    kept = getattr(job, key)
    if key == "sites":
        assert kept == tuple(value)
    elif key == "deadlines":
        assert isinstance(kept, Deadlines)
        given = value if isinstance(value, dict) else dataclasses.asdict(value)
        assert dataclasses.asdict(kept) == dataclasses.asdict(Deadlines()) | given
    else:
        assert kept == value
    if not isinstance(value, Deadlines):
        keys = {"clusters": 2, key: value}
        text = "\n".join(f"{name} = {toml(item)}" for name, item in keys.items())
        assert Job.from_toml(write(tmp_path, text)) == job


@pytest.mark.parametrize(("key", "value"), INVALID)
def test_an_invalid_value_is_refused_by_the_name_of_its_key(key: str, value: Any, tmp_path: Path) -> None:
    sentence = refusal(**{"clusters": 2, key: value})
    assert sentence.startswith(f"{key} ")
    if value is not None:
        keys = {"clusters": 2, key: value}
        path = write(tmp_path, "\n".join(f"{name} = {toml(item)}" for name, item in keys.items()))
        with pytest.raises(ConfigError) as caught:
            Job.from_toml(path)
        assert str(caught.value) == f"{path}: {sentence}"


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        ("privacy", ("plain", "masked", "blind", "sealed")),
        ("schedule", ("joint", "newton")),
        ("posterior", ("joint", "factorised")),
        ("start", ("votes", "diffused")),
        ("on_dropout", ("wait", "fail", "continue")),
    ],
)
def test_a_wrong_choice_is_told_all_choices(key: str, choices: tuple[str, ...]) -> None:
    assert refusal(**{"clusters": 2, key: "wrong"}) == f"{key} is one of {', '.join(choices)}"


@pytest.mark.parametrize(
    ("name", "and_then"),
    [("wrong", "; model wrong is not installed here"), ("no model's name", ""), ("x" * 41, ""), (["bce"], ""), (1, "")],
)
def test_an_unknown_model_is_told_all_models(name: object, and_then: str) -> None:
    assert refusal(clusters=2, model=name) == f"model is one of bce, bc3e, mixture, pairs{and_then}"


def test_clusters_are_for_clusterings_and_classes_for_bc3e() -> None:
    assert "clusters is missing" in refusal()
    assert "clusters is missing" in refusal(model="mixture")
    assert "classes is for bc3e" in refusal(clusters=2, classes=2)
    assert "clusters is for bce and mixture and pairs" in refusal(model="bc3e", clusters=2)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        (2, 2),
        (["benign", "malign"], ("benign", "malign")),
        (("b", "a", "c"), ("b", "a", "c")),
        ([0, 1, 7], (0, 1, 7)),
    ],
)
def test_classes_are_a_number_or_names(given: Any, kept: Any, tmp_path: Path) -> None:
    assert Job(**BC3E, classes=given).classes == kept
    line = "" if given is None else f"classes = {toml(given)}"
    assert Job.from_toml(write(tmp_path, f'model = "bc3e"\n{line}')).classes == kept


@pytest.mark.parametrize("classes", INVALID_CLASSES)
def test_invalid_classes_are_refused(classes: Any) -> None:
    assert refusal(**BC3E, classes=classes).startswith("classes is ")


@pytest.mark.parametrize("key", ["enrol_s", "round_s", "job_s"])
@pytest.mark.parametrize("value", [0, -1, -0.5, float("nan"), float("inf"), 1e10, 10**400, "60", True, None, [60]])
def test_deadlines_are_positive_seconds(key: str, value: Any) -> None:
    expected = f"deadlines.{key} is a positive number of seconds, at most 1,000,000,000"
    assert refusal(clusters=2, deadlines={key: value}) == expected
    with pytest.raises(ConfigError, match=expected):
        Deadlines(**{key: value})


def test_a_name_that_is_no_text_at_all_is_refused() -> None:
    assert refusal(clusters=2, name="\ud800").startswith("name is a text")


def test_what_is_larger_than_any_job_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, "clusters = 2\n" + "# and so on\n" * 100_000)
    with pytest.raises(ConfigError, match="is larger than any job: check that it is the right file"):
        Job.from_toml(path)
    with pytest.raises(ConfigError, match="is larger than any job"):
        Job.from_definition(b'{"clusters": 2' + b" " * 2**20 + b"}")


def test_deadlines_are_a_table_of_the_job_file(tmp_path: Path) -> None:
    job = Job.from_toml(write(tmp_path, "clusters = 4\n[deadlines]\nround_s = 30\n"))
    assert job.deadlines == Deadlines(round_s=30)
    path = write(tmp_path, "clusters = 4\n[deadlines]\nround_s = 0\n")
    with pytest.raises(ConfigError, match=r"job\.toml: deadlines\.round_s is a positive number"):
        Job.from_toml(path)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("cluster", "did you mean clusters?"),
        ("restart", "did you mean restarts?"),
        ("tolerence", "did you mean tolerance?"),
        ("max_iteration", "did you mean max_iterations?"),
        ("on_drop", "did you mean on_dropout?"),
        ("zzz", "known keys: name, model, clusters, classes, sites, restarts, seed"),
    ],
)
def test_an_unknown_key_of_a_job_file_is_told_the_nearest(key: str, hint: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"clusters = 2\n{key} = 1\n")
    with pytest.raises(ConfigError) as caught:
        Job.from_toml(path)
    assert str(caught.value).startswith(f"{path}: unknown key {key}; ")
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"enrol": 1}, "unknown key deadlines.enrol; did you mean deadlines.enrol_s?"),
        ({"rounds": 1}, "unknown key deadlines.rounds; did you mean deadlines.round_s?"),
        ({"zzz": 1}, "unknown key deadlines.zzz; known keys: enrol_s, round_s, job_s"),
        ({1: 1}, "unknown key deadlines.1; known keys: enrol_s, round_s, job_s"),
    ],
)
def test_an_unknown_deadline_is_told_the_nearest(keys: dict[Any, Any], hint: str) -> None:
    assert refusal(clusters=2, deadlines=keys) == hint


def test_an_unknown_key_in_python_is_a_type_error_that_names_it() -> None:
    with pytest.raises(TypeError, match="restart"):
        Job(clusters=2, restart=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "text",
    [
        "clusters = ",
        "clusters 2",
        "clusters = 2\nclusters = 3",
        'name = "never closed',
        "[deadlines\nround_s = 1",
        "clusters = 2\nname = '\x00'",
        b"clusters = 2\nname = '\xff\xfe'",
        "name = " + "[" * 20_000,
        "clusters = " + "9" * 5_000,
    ],
    ids=["no value", "no sign", "twice", "open text", "open table", "nul", "not utf-8", "too deep", "too long"],
)
def test_what_is_not_toml_is_refused_with_its_path(text: str | bytes, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        Job.from_toml(path)
    assert str(caught.value).startswith(f"{path}: is not TOML: ")


def test_a_file_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(ConfigError) as caught:
            Job.from_toml(str(path))
        assert str(caught.value).startswith(f"{path}: cannot be read: ")


def test_an_empty_job_file_lacks_its_clusters(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job\.toml: clusters is missing"):
        Job.from_toml(write(tmp_path, ""))


def test_a_full_job_file(tmp_path: Path) -> None:
    text = """
        name = "churn"
        model = "bc3e"
        classes = ["stays", "leaves"]
        sites = ["north", "south", "east"]
        restarts = 3
        seed = 11
        max_iterations = 20
        tolerance = 1e-8
        privacy = "blind"
        schedule = "newton"
        local_loops = 2
        smoothing = 0.1
        posterior = "factorised"
        start = "diffused"
        on_dropout = "continue"

        [deadlines]
        enrol_s = 10
        round_s = 20.5
        job_s = 30
    """
    assert Job.from_toml(write(tmp_path, text)) == Job(
        name="churn",
        model="bc3e",
        classes=("stays", "leaves"),
        sites=("north", "south", "east"),
        restarts=3,
        seed=11,
        max_iterations=20,
        tolerance=1e-8,
        privacy="blind",
        schedule="newton",
        local_loops=2,
        smoothing=0.1,
        posterior="factorised",
        start="diffused",
        on_dropout="continue",
        deadlines=Deadlines(10, 20.5, 30),
    )


def test_a_job_cannot_change_and_can_be_compared() -> None:
    job = ce.Job(clusters=3, sites=["north", "south"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.clusters = 4  # type: ignore[misc]
    assert job == ce.Job(clusters=3, sites=("north", "south"))
    assert len({job, ce.Job(clusters=3, sites=("north", "south"))}) == 1
    assert dataclasses.replace(job, clusters=4).sites == job.sites


def test_a_bad_job_is_a_ce_error_and_a_value_error() -> None:
    with pytest.raises(CeError):
        Job(clusters=0)
    with pytest.raises(ValueError, match="clusters"):
        Job(clusters=0)


# What determines the totals of a job.


def disclosed(**keys: Any) -> bytes:
    return Job(**{"clusters": 3, "sites": ("north", "south")} | keys).disclosure_digest


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "another"),
        ("privacy", "blind"),
        ("privacy", "plain"),
        ("deadlines", Deadlines(round_s=5.0)),
        ("sites", ("south", "north")),
        ("smoothing", 0.01),
        ("max_iterations", 300),
    ],
)
def test_what_changes_no_total_is_the_same_definition(key: str, value: Any) -> None:
    assert disclosed(**{key: value}) == disclosed()


def test_numbers_are_the_same_however_they_are_written() -> None:
    assert disclosed(smoothing=1, tolerance=0) == disclosed(smoothing=1.0, tolerance=0.0)


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "mixture"},
        {"model": "bc3e", "clusters": None, "classes": 3},
        {"clusters": 4},
        {"sites": ("north", "south", "west")},
        {"restarts": 6},
        {"seed": 1},
        {"max_iterations": 299},
        {"tolerance": 1e-7},
        {"schedule": "newton"},
        {"local_loops": 2},
        {"smoothing": 0.02},
        {"posterior": "factorised"},
        {"start": "diffused"},
        {"on_dropout": "fail"},
        {"precision": "single"},
    ],
    ids=str,
)
def test_every_other_key_makes_another_definition(keys: dict[str, Any]) -> None:
    assert disclosed(**keys) != disclosed()


def test_no_key_is_forgotten() -> None:
    """A key that a later version adds is part of the definition until somebody decides otherwise."""
    known = {field.name for field in dataclasses.fields(Job)} - {"name", "deadlines", "privacy"}
    assert set(json.loads(Job(**PAIRS).disclosure_definition())) == known - set(LATER_KEYS)
    own = known - set(SEALED_KEYS)
    assert set(json.loads(Job(clusters=3).disclosure_definition())) == own - set(LATER_KEYS)
    assert set(json.loads(Job(clusters=3, precision="single", halving=True).disclosure_definition())) == own


# Precision.


def test_the_usual_precision_is_not_written() -> None:
    """So that a definition, and all that follows from its digest, is what it was before the key."""
    assert Job(clusters=3).precision == "double"
    assert Job(clusters=3, precision="double").definition() == Job(clusters=3).definition()
    assert b"precision" not in Job(clusters=3).definition()
    single = Job(clusters=3, precision="single")
    assert b'"precision":"single"' in single.definition()
    assert Job.from_definition(single.definition()) == single


@pytest.mark.parametrize("value", ["half", "Single", "", None, 32, True, ["single"]])
def test_a_precision_that_there_is_not_is_refused_by_name(value: Any) -> None:
    assert "precision is one of double, single" in refusal(clusters=3, precision=value)


@pytest.mark.parametrize(
    "keys", [{"clusters": 3}, {"model": "mixture", "clusters": 3}, {"model": "bc3e", "classes": 3}]
)
def test_models_over_totals_run_in_single_precision(keys: dict[str, Any]) -> None:
    job = Job(**keys, precision="single")
    stage: Any = model_without_labels(job)[0]
    assert stage.precision == "single"
    diffused = Job(model="bc3e", classes=3, start="diffused", precision="single")
    first = model_without_labels(diffused)[0]
    assert [first.precision, first.next_stage().precision] == ["single", "single"]  # type: ignore[union-attr]
    assert model_without_labels(Job(**keys))[0].precision == "double"


def test_short_words_need_smoothing() -> None:
    assert "needs smoothing above 0" in refusal(clusters=3, precision="single", smoothing=0)
    assert Job(clusters=3, precision="single", smoothing=1e-3).precision == "single"


def test_sealed_jobs_have_no_precision() -> None:
    assert 'precision = "single" is for bce and bc3e and mixture; pairs has' in refusal(**PAIRS, precision="single")


# Sealed jobs.


def test_pairs_are_fitted_in_sealed_jobs_and_in_no_other() -> None:
    job = Job(**PAIRS)
    assert (job.privacy, job.sealed, job.clusters) == ("sealed", True, 3)
    assert (job.epsilon, job.delta, job.collusion, job.unit) == (2.0, 1e-6, 1, "site_row")
    assert Job(**PAIRS, privacy="sealed") == job
    assert not Job(clusters=3).sealed
    for privacy in MODES_OF_TOTALS:
        assert "belong together" in refusal(**PAIRS, privacy=privacy)
    for model in ("bce", "mixture"):
        assert "belong together" in refusal(model=model, clusters=3, privacy="sealed")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clusters", 1),
        ("clusters", 31),
        ("clusters", "auto"),
        ("epsilon", 0.1),
        ("epsilon", 4),
        ("epsilon", 100),
        ("epsilon", "exact"),
        ("delta", 1e-12),
        ("collusion", 0),
        ("collusion", 7),
        ("unit", "site_row"),
        ("unit", "label"),
        ("unit", "object"),
    ],
)
def test_keys_of_sealed_jobs_are_kept(key: str, value: Any, tmp_path: Path) -> None:
    job = Job(**PAIRS | {key: value})
    assert getattr(job, key) == value
    keys = "\n".join(f"{name} = {toml(item)}" for name, item in (PAIRS | {key: value}).items())
    assert Job.from_toml(write(tmp_path, keys)) == job
    assert Job.from_definition(job.definition()) == job


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clusters", 0),
        ("clusters", 32),
        ("clusters", "many"),
        ("clusters", ["auto"]),
        ("epsilon", 0),
        ("epsilon", -1.0),
        ("epsilon", 100.5),
        ("epsilon", 10**400),
        ("epsilon", float("nan")),
        ("epsilon", float("inf")),
        ("epsilon", "none"),
        ("epsilon", True),
        ("epsilon", None),
        ("epsilon", [1.0]),
        ("delta", 0),
        ("delta", 1),
        ("delta", 10**400),
        ("delta", float("nan")),
        ("delta", "exact"),
        ("delta", None),
        ("collusion", -1),
        ("collusion", 1.0),
        ("collusion", True),
        ("collusion", "all"),
        ("unit", "row"),
        ("unit", None),
        ("unit", ["label"]),
    ],
)
def test_an_invalid_key_of_a_sealed_job_is_refused_by_its_name(key: str, value: Any) -> None:
    assert refusal(**PAIRS | {key: value}).startswith(f"{key} is ")


def test_the_model_that_counts_clusters_is_named() -> None:
    assert refusal(clusters="auto") == 'clusters = "auto" is for pairs; bce takes a number'
    assert refusal(**PAIRS | {"clusters": 32}) == "clusters is a whole number from 1 to 31"


def test_somebody_must_not_collude() -> None:
    assert Job(**PAIRS, sites=("north", "south"), collusion=1).collusion == 1
    expected = "collusion is at most 1 in a job of 2 sites, got 2: at least one site must not collude"
    assert refusal(**PAIRS, sites=("north", "south"), collusion=2) == expected
    assert "in a job of 1 site, got 1" in refusal(**PAIRS, sites=("north",))
    assert Job(**PAIRS, sites=("north",), collusion=0).sites == ("north",)


@pytest.mark.parametrize(("key", "value"), [("epsilon", 1.0), ("delta", 1e-9), ("collusion", 2), ("unit", "label")])
@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
def test_nobody_can_rely_on_noise_that_is_not_there(privacy: str, key: str, value: Any) -> None:
    assert refusal(clusters=3, privacy=privacy, **{key: value}).startswith(f"{key} is for sealed jobs")


def test_keys_that_pairs_does_not_use_keep_their_defaults() -> None:
    job, other = Job(**PAIRS), Job(clusters=3, local_loops=1)
    for key in ("restarts", "tolerance", "smoothing", "schedule", "local_loops", "posterior", "start", "seed"):
        assert getattr(job, key) == getattr(other, key)


def test_numbers_of_a_sealed_job_are_the_same_however_they_are_written() -> None:
    assert Job(**PAIRS, epsilon=4).definition() == Job(**PAIRS, epsilon=4.0).definition()


@pytest.mark.parametrize(("key", "value"), [("epsilon", 1.0), ("delta", 1e-9), ("collusion", 0), ("unit", "label")])
def test_keys_of_the_noise_make_another_definition(key: str, value: Any) -> None:
    assert Job(**PAIRS, **{key: value}).disclosure_digest != Job(**PAIRS).disclosure_digest


#: As versions before there were sealed jobs wrote them, with their disclosure digests.
BEFORE = [
    (
        b'{"classes":null,"clusters":3,"deadlines":{"enrol_s":3600.0,"job_s":86400.0,"round_s":600.0},"local_loops":1,'
        b'"max_iterations":300,"model":"bce","name":"job","on_dropout":"wait","posterior":"joint","privacy":"masked",'
        b'"restarts":5,"schedule":"joint","seed":0,"sites":["north","south"],"smoothing":0.01,"start":"votes",'
        b'"tolerance":1e-06}',
        "32add15f47ce9d7a2aecf33df222529599e2d75e5ad1290beb387e859694a88b",
    ),
    (
        b'{"classes":["a","b"],"clusters":null,"deadlines":{"enrol_s":3600.0,"job_s":86400.0,"round_s":600.0},'
        b'"local_loops":1,"max_iterations":10,"model":"bc3e","name":"job","on_dropout":"wait","posterior":"joint",'
        b'"privacy":"blind","restarts":5,"schedule":"joint","seed":0,"sites":["n"],"smoothing":0.01,"start":"votes",'
        b'"tolerance":1e-06}',
        "76587a725b2b2c4c1230d833d16c6cfe6253bec13b3e259c903d41ed73ccbb1c",
    ),
]


@pytest.mark.parametrize(("definition", "digest"), BEFORE, ids=["masked", "blind"])
def test_definitions_from_before_sealed_jobs_are_the_same_to_the_byte(definition: bytes, digest: str) -> None:
    job = Job.from_definition(definition)
    assert job.definition() == definition
    assert job.disclosure_digest.hex() == digest
