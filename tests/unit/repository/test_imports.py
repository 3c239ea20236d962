"""`import ce` costs little more than the two libraries it is built on, and brings along nothing else that is heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

FLOOR = "import numpy, scipy.special"
# Those that only commands, tests or certain files need.
HEAVY = (
    "sklearn",
    "pandas",
    "polars",
    "pyarrow",
    "click",
    "rich",
    "grpc",
    "google.protobuf",
    "matplotlib",
    "prometheus_client",
)


def run(code: str, settings: dict[str, str]) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], env=settings, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


@pytest.fixture(name="settings", scope="module")
def _settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Both imports with their bytecode cached, as after an installation, wherever the tests run."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    settings["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.mktemp("bytecode"))
    run("import ce", settings)
    return settings


@pytest.mark.promise("import ce is quick and brings nothing heavy.")
def test_import_takes_at_most_half_as_long_again_as_numpy_and_scipy(settings: dict[str, str]) -> None:
    def seconds(code: str) -> float:
        begin = time.perf_counter()
        run(code, settings)
        return time.perf_counter() - begin

    floor, ours = [], []
    # Interleaved, and the best of each: the rest is what else the machine was doing.
    for _ in range(5):
        floor.append(seconds(FLOOR))
        ours.append(seconds("import ce"))
    assert min(ours) <= 1.5 * min(floor), f"{min(ours):.3f} s against {min(floor):.3f} s"


def heavy(code: str, settings: dict[str, str]) -> list[str]:
    """Which of the heavy ones this code brings."""
    loaded = json.loads(run(f"import ce, json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))", settings))
    return [name for name in HEAVY if name in loaded]


@pytest.mark.promise("import ce is quick and brings nothing heavy.")
def test_import_brings_nothing_heavy(settings: dict[str, str]) -> None:
    assert heavy("[getattr(ce, name) for name in ce.__all__]; assert 'ce.simulation' in sys.modules", settings) == []


@pytest.mark.parametrize(
    ("use", "brings"),
    [
        ("ce.models.BCE(2, max_iter=1).fit(table)", []),
        ("ce.simulate(ce.Job(clusters=2, max_iterations=1), {'here': table})", ["google.protobuf"]),
        (
            "ce.simulate(ce.Job(clusters=2, max_iterations=1), {'here': table}, transport='grpc')",
            ["grpc", "google.protobuf"],
        ),
    ],
    ids=["fit", "simulate", "simulate over grpc"],
)
def test_reading_a_csv_file_and_using_it_bring_what_they_need(
    use: str, brings: list[str], settings: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,x\na,1\nb,2\n")
    assert heavy(f"table = ce.LabelTable.from_csv({str(path)!r}); {use}", settings) == brings


def test_the_public_names() -> None:
    import ce

    assert sorted(ce.__all__) == sorted(
        ["Job", "LabelTable", "Simulation", "__version__", "errors", "metrics", "models", "simulate"]
    )
    assert all(hasattr(ce, name) for name in ce.__all__)
    assert all(hasattr(ce.models, name) for name in ("BCE", "BC3E", "Mixture"))
    names = ("micro_precision", "purity", "nmi", "ari", "rand_index", "ami", "vi", "nvi1", "nvi2", "pair_f", "f1_nbce")
    assert all(callable(getattr(ce.metrics, name)) for name in names)
