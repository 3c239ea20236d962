"""The `ce` command: what it writes and prints, its exit codes, and that no failure shows an id or a label."""

from __future__ import annotations

import csv
import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ce
from ce.cli.main import cli, main
from ce.consensus_file import write_consensus
from ce.errors import ConvergenceWarning
from ce.labels import LabelTable

CE = Path(sys.executable).with_name("ce")
COMMANDS = ("fit", "simulate", "metrics", "capacity", "completion")

# Every id and every label of the files below contains one of these, and no failing command may show any.
ID = "canaryid"
LABEL = "canarylabel"

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
N_OBJECTS = 40
CLUSTERINGS = ("kmeans", "spectral", "ward", "dbscan")
CLASSES = ("high", "low", "middle")

Rows = list[list[str]]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What it complained about, and that it complained properly."""
        assert "Traceback" not in self.err
        assert "--log-level debug" not in self.err
        assert ID not in self.out + self.err
        assert LABEL not in self.out + self.err
        assert not CONTROL.search(self.out + self.err)
        return self.err.strip()


Ce = Callable[..., Ended]


@pytest.fixture(name="ce_")
def _ce(capfd: pytest.CaptureFixture[str]) -> Ce:
    """The command in this process."""

    def run(*arguments: object) -> Ended:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert isinstance(left.value.code, int)
        return Ended(left.value.code, out, err)

    return run


def process(*arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    """The command in a separate process."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "check": False, "text": True} | settings
    return subprocess.run([CE, *map(str, arguments)], **settings)


def write(path: Path, header: list[str], rows: Rows) -> Path:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read(path: Path) -> tuple[list[str], Rows]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def noisy(truth: np.ndarray, wrong: float, rng: np.random.Generator) -> list[int]:
    labels = rng.permutation(3)[truth]
    return np.where(rng.random(len(truth)) < wrong, rng.integers(0, 3, len(truth)), labels).tolist()


@pytest.fixture(name="files", scope="module")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """labels.csv, votes.csv and truth.csv over the same objects; object 0 has no label; one cell in ten is missing."""
    folder = tmp_path_factory.mktemp("labels")
    rng = np.random.default_rng(5)
    truth = rng.integers(0, 3, N_OBJECTS)
    ids = [f"{ID}{i}" for i in rng.permutation(N_OBJECTS)]
    cells = {name: [f"{LABEL}{label}" for label in noisy(truth, 0.2, rng)] for name in CLUSTERINGS}
    for column in cells.values():
        for i in np.flatnonzero(rng.random(N_OBJECTS) < 0.1):
            column[i] = ""
        column[0] = ""
    votes = {f"clf:{name}": [CLASSES[c] for c in truth] for name in ("doctor", "nurse", "model")}
    for column in votes.values():
        for i in np.flatnonzero(rng.random(N_OBJECTS) < 0.2):
            column[i] = CLASSES[rng.integers(3)]

    def table(columns: dict[str, list[str]]) -> tuple[list[str], Rows]:
        return ["id", *columns], [[id_, *(c[i] for c in columns.values())] for i, id_ in enumerate(ids)]

    write(folder / "labels.csv", *table(cells))
    write(folder / "votes.csv", *table(cells | votes))
    write(folder / "truth.csv", ["id", "group"], [[id_, f"{LABEL}{c}"] for id_, c in zip(ids, truth, strict=True)])
    write(folder / "classes.csv", ["id", "class"], [[id_, CLASSES[c]] for id_, c in zip(ids, truth, strict=True)])
    return folder


@pytest.fixture(name="sites", scope="module")
def _sites(files: Path) -> list[Path]:
    """The labels cut into three sites: two share objects, two share columns."""
    header, rows = read(files / "labels.csv")
    folder = files / "sites"
    return [
        write(folder / "north.csv", header[:3], [row[:3] for row in rows[1:25]]),
        write(folder / "east.csv", ["id", *header[3:]], [[row[0], *row[3:]] for row in rows[10:25]]),
        write(folder / "south.csv", header, [row for row in rows[25:] if any(row[1:])]),
    ]


def consensus(path: Path, names: list[str]) -> dict[str, list[str]]:
    """A consensus file, checked against its documented format: each row by its id."""
    data = path.read_bytes()
    assert b"\r" not in data
    assert data.endswith(b"\n")
    header, rows = read(path)
    assert header == ["id", "label", "confidence", *names]
    choices = [name.removeprefix("p:") if name.startswith("p:") else name.removeprefix("p") for name in names]
    for row in rows:
        values = [float(value) for value in row[3:]]
        assert sum(values) == pytest.approx(1.0, abs=1e-9)
        assert float(row[2]) == max(values)
        assert row[1] in ("", choices[values.index(max(values))])
    return {row[0]: row for row in rows}


# Help, version, completion.


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_has_examples(command: str, flag: str, ce_: Ce) -> None:
    ended = ce_(*command.split(), flag)
    assert (ended.code, ended.err) == (0, "")
    examples = ended.out.partition("Examples:\n")[2]
    assert re.search(rf"^ +(eval \"\$\()?ce {command}", examples, re.MULTILINE)
    assert not re.search(r"\x1b|\x08", ended.out)


def test_the_examples_of_the_help_use_options_that_exist() -> None:
    for name in COMMANDS:
        command = cli.commands[name]
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", command.help or "")) <= known | {"--help"}


def test_help_lists_every_command_and_exit_code(ce_: Ce) -> None:
    out = ce_("--help").out
    assert all(f"  {name}  " in out for name in COMMANDS)
    assert all(re.search(rf"\b{code} \w+", out) for code in (0, 2, 3, 4, 6, 7, 8, 130))


def test_version(ce_: Ce) -> None:
    assert ce_("--version") == Ended(0, f"ce, version {ce.__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, ce_: Ce) -> None:
    ended = ce_("completion", shell)
    assert ended.code == 0
    assert f"_CE_COMPLETE={shell}_complete" in ended.out


def test_completion_completes(ce_: Ce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ce si")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert ce_().out == "plain,simulate\n"
    monkeypatch.setenv("COMP_WORDS", "ce fit --mo")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert ce_().out == "plain,--model\n"


# Consensus files.


def test_fit_writes_a_consensus_file(files: Path, tmp_path: Path, ce_: Ce) -> None:
    out = tmp_path / "new" / "folder" / "consensus.csv"
    ended = ce_("fit", files / "labels.csv", "--clusters", 3, "--out", out)
    assert (ended.code, ended.err) == (0, "")
    assert f"wrote {out}" in ended.out
    rows = consensus(out, ["p0", "p1", "p2"])
    given = LabelTable.from_csv(files / "labels.csv")
    assert list(rows) == given.ids.tolist()
    unlabelled = [id_ for id_, row in rows.items() if row[1] == ""]
    assert unlabelled == given.ids[~given.labelled].tolist() == [given.ids[0]]
    assert [path.name for path in out.parent.iterdir()] == ["consensus.csv"]


def test_fit_is_the_model_of_the_library(files: Path, tmp_path: Path, ce_: Ce) -> None:
    out = tmp_path / "consensus.csv"
    ce_("fit", files / "labels.csv", "--clusters", 3, "--seed", 4, "--restarts", 2, "--out", out)
    table = LabelTable.from_csv(files / "labels.csv")
    model = ce.models.BCE(3, n_init=2, random_state=4).fit(table)
    rows = list(consensus(out, ["p0", "p1", "p2"]).values())
    assert [[float(value) for value in row[3:]] for row in rows] == model.memberships_.tolist()
    assert [int(row[1] or -1) for row in rows] == model.labels_.tolist()


def test_bce_by_gibbs_sampling_says_what_its_chains_say(files: Path, tmp_path: Path, ce_: Ce) -> None:
    out = tmp_path / "consensus.csv"
    arguments = ("fit", files / "labels.csv", "--clusters", 3, "--inference", "gibbs", "--seed", 4, "--restarts", 2)
    short = ("--max-iterations", 60)
    ended = ce_(*arguments, *short, "--format", "json", "--out", out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ce.models.BCE(3, inference="gibbs", n_init=2, max_iter=60, random_state=4).fit(
            LabelTable.from_csv(files / "labels.csv")
        )
    report = json.loads(ended.out)
    assert ended.code == 0
    assert {"lower_bound", "bound_path"}.isdisjoint(report)
    assert report["r_hat"] == model.r_hat_
    assert report["effective_draws"] == model.effective_draws_
    assert (report["chains"], report["chains_used"]) == (2, int(model.chains_used_.sum()))
    assert report["iterations"] == model.n_iter_ == 60
    rows = list(consensus(out, ["p0", "p1", "p2"]).values())
    assert [[float(value) for value in row[3:]] for row in rows] == model.memberships_.tolist()
    assert [int(row[1] or -1) for row in rows] == model.labels_.tolist()
    few = ce_(*arguments, "--max-iterations", 2)
    assert "warning: too few draws to say whether the chains agree: raise --max-iterations" in few.err
    for words in ("sweeps", "log joint", "2 of 2 used", "too few draws"):
        assert words in few.out
    (tmp_path / "one.csv").write_text("id,a,b\no0,0,1\n")
    alike = ce_("fit", tmp_path / "one.csv", "--clusters", 2, "--inference", "gibbs", *short, "--format", "json")
    assert "Infinity" not in alike.out
    assert "NaN" not in alike.out
    none = ce_(*arguments, "--max-iterations", 0)
    assert (none.code, none.out) == (2, "")
    refused = ce_(*arguments, "--model", "mixture")
    assert (refused.code, refused.out) == (2, "")
    assert "--inference gibbs is for --model bce" in refused.err


def test_pairs_counts_the_clusters_itself(files: Path, tmp_path: Path, ce_: Ce) -> None:
    out = tmp_path / "consensus.csv"
    arguments = ("fit", files / "labels.csv", "--model", "pairs", "--clusters", "auto", "--seed", 4)
    ended = ce_(*arguments, "--format", "json", "--out", out)
    model = ce.models.Pairs("auto", random_state=4).fit(LabelTable.from_csv(files / "labels.csv"))
    report = json.loads(ended.out)
    assert (ended.code, ended.err, report["log_composite"]) == (0, "", model.log_composite_)
    assert "lower_bound" not in report
    rows = list(consensus(out, [f"p{h}" for h in range(model.n_clusters_)]).values())
    assert [[float(value) for value in row[3:]] for row in rows] == model.memberships_.tolist()
    assert [int(row[1] or -1) for row in rows] == model.labels_.tolist()
    assert "log composite" in ce_(*arguments).out
    assert "warning: stopped after 1 iterations" in ce_(*arguments, "--max-iterations", 1).err


@pytest.mark.parametrize(
    ("model", "clusters", "problem"),
    [
        ("bce", "auto", 'clusters = "auto" is for pairs; bce takes a number'),
        ("pairs", "some", "'some' is neither a whole number nor auto"),
        ("pairs", "32", "clusters is a whole number from 1 to 31"),
    ],
)
def test_another_number_of_clusters_is_a_usage_error(
    files: Path, ce_: Ce, model: str, clusters: str, problem: str
) -> None:
    ended = ce_("fit", files / "labels.csv", "--model", model, "--clusters", clusters)
    assert ended.code == 2
    assert problem in ended.err


def test_bc3e_writes_class_names(files: Path, tmp_path: Path, ce_: Ce) -> None:
    out = tmp_path / "classes.csv"
    ended = ce_("fit", files / "votes.csv", "--model", "bc3e", "--out", out)
    assert (ended.code, ended.err) == (0, "")
    rows = consensus(out, [f"p:{name}" for name in CLASSES])
    assert {row[1] for row in rows.values()} == set(CLASSES)
    with_classes = [argument for name in reversed(CLASSES) for argument in ("--class", name)]
    ce_("fit", files / "votes.csv", "--model", "bc3e", *with_classes, "--out", tmp_path / "given.csv")
    given = consensus(tmp_path / "given.csv", [f"p:{name}" for name in reversed(CLASSES)])
    assert {id_: row[1] for id_, row in given.items()} == {id_: row[1] for id_, row in rows.items()}


def test_bc3e_takes_classes_that_are_numbers(tmp_path: Path, ce_: Ce) -> None:
    rows = [[f"o{i}", str(i % 2), str(10 + 10 * (i % 2))] for i in range(12)]
    path = write(tmp_path / "votes.csv", ["id", "kmeans", "vote"], rows)
    truth = write(tmp_path / "truth.csv", ["id", "class"], [[row[0], row[2]] for row in rows])
    arguments = ("fit", path, "--model", "bc3e", "--classifiers", "vo*", "--class", 10, "--class", 20)
    ended = ce_(*arguments, "--truth", truth, "--format", "json", "--out", tmp_path / "out.csv")
    assert {row[1] for row in consensus(tmp_path / "out.csv", ["p:10", "p:20"]).values()} == {"10", "20"}
    assert json.loads(ended.out)["truth"]["accuracy"] == 1.0


def test_ties_go_to_the_lowest_and_an_object_without_a_label_has_none(tmp_path: Path) -> None:
    ids, labels = np.array(["a", "b"]), np.array([0, -1])
    write_consensus(tmp_path / "tie.csv", ids, labels, np.full((2, 2), 0.5), ())
    assert (tmp_path / "tie.csv").read_text() == "id,label,confidence,p0,p1\na,0,0.5,0.5,0.5\nb,,0.5,0.5,0.5\n"
    # Two clusters that nothing tells apart: every membership is a tie.
    result = ce.simulate(ce.Job(clusters=2), {"here": LabelTable.from_arrays([["x"], ["x"]])})
    assert (result.sites["here"].memberships == 0.5).all()
    assert result.sites["here"].labels.tolist() == [0, 0]


def test_ids_survive_whatever_they_contain(tmp_path: Path, ce_: Ce) -> None:
    ids = ["a,b", 'say "hi"', "two\nlines", "é中", "007", "NA", "=1+1", "[red]x[/red]"]
    path = write(tmp_path / "odd.csv", ["id", "x", "y"], [[id_, str(i % 2), str(i % 2)] for i, id_ in enumerate(ids)])
    assert ce_("fit", path, "--clusters", 2, "--out", tmp_path / "out.csv").code == 0
    assert list(consensus(tmp_path / "out.csv", ["p0", "p1"])) == ids
    assert LabelTable.from_csv(tmp_path / "out.csv", columns=["label"]).ids.tolist() == ids


def test_the_same_seed_gives_the_same_bytes_in_another_process(files: Path, tmp_path: Path, ce_: Ce) -> None:
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        ce_("fit", files / "labels.csv", "--clusters", 3, "--seed", seed, "--out", tmp_path / f"{name}.csv")
    done = process("fit", files / "labels.csv", "--clusters", 3, "--seed=1", "--out", tmp_path / "d.csv", check=True)
    assert done.stderr == ""
    first, again, other, elsewhere = ((tmp_path / f"{name}.csv").read_bytes() for name in "abcd")
    assert first == again == elsewhere
    assert first != other


def test_parquet_and_tabs_are_the_same_labels(files: Path, tmp_path: Path, ce_: Ce) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(files / "labels.csv", dtype=str).rename(columns={"id": "customer"})
    frame.to_parquet(tmp_path / "labels.parquet", index=False)
    frame.to_csv(tmp_path / "labels.tsv.gz", index=False, sep="\t")
    ce_("fit", files / "labels.csv", "--clusters", 3, "--out", tmp_path / "csv.csv")
    for name in ("labels.parquet", "labels.tsv.gz"):
        ended = ce_("fit", tmp_path / name, "--id", "customer", "--clusters", 3, "--out", tmp_path / "other.csv")
        assert ended.code == 0
        assert (tmp_path / "other.csv").read_bytes() == (tmp_path / "csv.csv").read_bytes()


@pytest.mark.parametrize("split", ["rows:4", "columns:4", "blocks:6"])
@pytest.mark.parametrize("model", ["bce", "mixture"])
def test_a_split_gives_every_object_the_row_of_fit(
    split: str, model: str, files: Path, tmp_path: Path, ce_: Ce
) -> None:
    how = ("--clusters", 3, "--model", model, "--seed", 2)
    assert ce_("fit", files / "labels.csv", *how, "--out", tmp_path / "fit.csv").code == 0
    whole = consensus(tmp_path / "fit.csv", ["p0", "p1", "p2"])
    out = ("--out", tmp_path / "split", "--format=json")
    ended = ce_("simulate", files / "labels.csv", "--split", split, *how, "--local-loops", 1, *out)
    summary = json.loads(ended.out)
    n_sites = int(split.partition(":")[2])
    assert list(summary["sites"]) == [f"site{i + 1}" for i in range(n_sites)]
    kind = split.partition(":")[0]
    assert summary["layout"] == {"rows": "row", "columns": "column", "blocks": "arbitrary"}[kind]
    seen = set()
    for name, size in summary["sites"].items():
        rows = consensus(tmp_path / "split" / f"{name}.csv", ["p0", "p1", "p2"])
        assert len(rows) == size
        for id_, row in rows.items():
            assert row == whole[id_]
        seen |= set(rows)
    # Objects without a label go to no site, except that a site of columns lists all objects.
    assert seen == {id_ for id_, row in whole.items() if row[1] or kind == "columns"}


@pytest.mark.parametrize("split", ["rows:3", "columns:3", "blocks:4"])
def test_a_split_of_votes_gives_every_object_the_row_of_fit(split: str, files: Path, tmp_path: Path, ce_: Ce) -> None:
    ce_("fit", files / "votes.csv", "--model", "bc3e", "--out", tmp_path / "fit.csv")
    whole = consensus(tmp_path / "fit.csv", [f"p:{name}" for name in CLASSES])
    ended = ce_("simulate", files / "votes.csv", "--model", "bc3e", "--split", split, "--out", tmp_path / "split")
    assert ended.code == 0
    for path in (tmp_path / "split").iterdir():
        for id_, row in consensus(path, [f"p:{name}" for name in CLASSES]).items():
            assert row == whole[id_]


def test_simulate_names_sites_by_their_files(sites: list[Path], tmp_path: Path, ce_: Ce) -> None:
    ended = ce_("simulate", *sites, "--clusters", 3, "--out", tmp_path / "results", "--format", "json")
    summary = json.loads(ended.out)
    assert list(summary["sites"]) == ["north", "east", "south"]
    assert summary["written"] == [str(tmp_path / "results" / path.name) for path in sites]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["east.csv", "north.csv", "south.csv"]
    found = [consensus(Path(path), ["p0", "p1", "p2"]) for path in summary["written"]]
    for rows, path in zip(found, sites, strict=True):
        assert list(rows) == LabelTable.from_csv(path).ids.tolist()
    assert all(found[0][id_] == row for id_, row in found[1].items())
    # Neither the order of the files nor the way that messages take means anything.
    ce_("simulate", *reversed(sites), "--clusters", 3, "--out", tmp_path / "again")
    assert ce_("simulate", *sites, "--clusters", 3, "--transport", "grpc", "--out", tmp_path / "over grpc").code == 0
    for path in (tmp_path / "results").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
        assert (tmp_path / "over grpc" / path.name).read_bytes() == path.read_bytes()


def test_a_hidden_file_and_a_long_name_are_files_like_others(files: Path, tmp_path: Path, ce_: Ce) -> None:
    hidden, long = tmp_path / ".north.csv", tmp_path / f"{'x' * 240}.csv"
    for path in (hidden, long):
        path.write_bytes((files / "labels.csv").read_bytes())
    ended = ce_("simulate", hidden, "--clusters", 2, "--out", tmp_path / "out", "--format", "json")
    assert list(json.loads(ended.out)["sites"]) == ["north"]
    assert ce_("fit", long, "--clusters", 2, "--out", tmp_path / "out" / long.name).code == 0


# Reports.


def test_fit_as_json(files: Path, tmp_path: Path, ce_: Ce) -> None:
    out = tmp_path / "consensus.csv"
    ended = ce_("fit", files / "labels.csv", "--clusters", 3, "--format", "json", "--out", out)
    assert (ended.code, ended.err) == (0, "")
    summary = json.loads(ended.out)
    labels = [int(row[1]) for row in consensus(out, ["p0", "p1", "p2"]).values() if row[1]]
    expected = {
        "model": "bce",
        "objects": N_OBJECTS,
        "sites": {"here": N_OBJECTS},
        "layout": "one",
        "privacy": "plain",
        "converged": True,
        "sizes": {str(label): labels.count(label) for label in sorted(set(labels))},
        "excluded": [{"site": "here", "rule": "objects without a label", "objects": 1, "columns": [], "labels": 0}],
        "objects_in_fit": N_OBJECTS,
        "written": [str(out)],
    }
    assert {key: summary[key] for key in expected} == expected
    assert 0 < summary["iterations"] <= 300
    assert summary["exchanges"] >= summary["iterations"]
    assert summary["lower_bound"] < 0 < summary["bytes_sent"]
    assert list(summary["agreement"]) == list(CLUSTERINGS)
    table = LabelTable.from_csv(files / "labels.csv", columns=["kmeans"])
    found = [int(row[1] or -1) for row in consensus(out, ["p0", "p1", "p2"]).values()]
    assert summary["agreement"]["kmeans"] == {
        "nmi": ce.metrics.nmi(table.columns[0].codes, found),
        "ari": ce.metrics.ari(table.columns[0].codes, found),
    }
    assert "truth" not in summary
    assert "kappa" not in summary


def test_tables_show_numbers_and_names_of_columns_only(files: Path, sites: list[Path], ce_: Ce) -> None:
    ended = ce_("simulate", *sites, "--clusters", 3, "--truth", files / "truth.csv")
    assert (ended.code, ended.err) == (0, "")
    assert all(name in ended.out for name in (*CLUSTERINGS, "north", "east", "south", "arbitrary", "the truth"))
    assert ID not in ended.out
    assert LABEL not in ended.out
    assert "\x1b" not in ended.out
    assert "accuracy" not in ended.out  # numbers of clusters are no classes


@pytest.mark.parametrize("privacy", ["plain", "masked", "blind"])
def test_a_simulation_says_in_which_mode_it_ran_and_every_mode_writes_the_same(
    sites: list[Path], tmp_path: Path, ce_: Ce, privacy: str
) -> None:
    how = ("simulate", *sites, "--clusters", 3, "--restarts", 1, "--max-iterations", 5)
    ended = ce_(*how, "--privacy", privacy, "--out", tmp_path / privacy)
    assert re.search(rf"layout +│ arbitrary, {privacy} sums", ended.out)
    summary = json.loads(ce_(*how, "--out", tmp_path / "default", "--format", "json").out)
    assert summary["privacy"] == "masked"
    for path in sites:
        assert (tmp_path / privacy / path.name).read_bytes() == (tmp_path / "default" / path.name).read_bytes()


def test_objects_that_a_rule_leaves_out_are_reported_and_get_a_label(
    files: Path, sites: list[Path], tmp_path: Path, ce_: Ce
) -> None:
    header, rows = read(files / "labels.csv")
    east = write(tmp_path / "east.csv", ["id", *header[3:]], [[row[0], *row[3:]] for row in rows[10:40]])
    rules = tmp_path / "rules.toml"
    rules.write_text('min_sites = 1\nmin_objects = 1\nmin_foreign_columns = 9\nshared_objects = "totals"\n')
    how = ("simulate", sites[0], east, "--clusters", 3, "--restarts", 1, "--policy", rules, "--out", tmp_path / "out")
    ended = ce_(*how)
    assert "left out at north: 15 of its objects (min_foreign_columns)" in ended.out
    excluded = json.loads(ce_(*how, "--format", "json").out)["excluded"]
    assert [(entry["site"], entry["rule"], entry["objects"]) for entry in excluded][:2] == [
        ("north", "min_foreign_columns", 15),
        ("east", "min_foreign_columns", 15),
    ]
    # North's are the last of its file; labels of east are of no help to those that have none there.
    found = consensus(tmp_path / "out" / "north.csv", ["p0", "p1", "p2"])
    assert list(found) == [row[0] for row in rows[1:25]]
    assert all((found[row[0]][1] in ("0", "1", "2")) == any(row[1:3]) for row in rows[10:25])


def test_a_simulation_with_randomised_labels_says_their_epsilon_by_label_and_by_row(
    files: Path, tmp_path: Path, ce_: Ce
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("min_sites = 1\nmin_objects = 1\nrandomise = 0.5\n")
    how = ("simulate", files / "labels.csv", "--split", "rows:2", "--clusters", 3, "--restarts", 1, "--policy", rules)
    summary = json.loads(ce_(*how, "--format", "json").out)
    for site, columns in summary["epsilon"].items():
        assert set(columns) == set(CLUSTERINGS)
        assert summary["epsilon_row"][site] == pytest.approx(sum(columns.values()))
    row = max(summary["epsilon_row"].values())
    assert re.search(rf"epsilon +│ up to [0-9.]+ per label; up to {row:.2f} per row", ce_(*how).out)


def test_bc3e_reports_kappa_and_accuracy(files: Path, ce_: Ce) -> None:
    how = ("fit", files / "votes.csv", "--model", "bc3e", "--truth", files / "classes.csv")
    summary = json.loads(ce_(*how, "--format", "json").out)
    assert set(summary["sizes"]) == set(CLASSES)
    assert 0.2 < summary["kappa"] <= 1
    assert 0.8 < summary["truth"]["accuracy"] <= 1
    assert list(summary["agreement"]) == [*CLUSTERINGS, "doctor", "nurse", "model"]
    text = ce_(*how).out
    assert f"accuracy {summary['truth']['accuracy']:.3f}" in text
    assert f"{summary['kappa']:.3f}" in text


def test_classifiers_are_left_out_of_bce_by_name(files: Path, ce_: Ce) -> None:
    ended = ce_("fit", files / "votes.csv", "--clusters", 3, "--classifiers", "w*d")
    assert "left out at here: ward, doctor, nurse, model (classifiers in a model without classes)" in ended.out
    assert "left out at here: 1 of its objects (objects without a label)" in ended.out


def test_truth_scores_the_objects_it_names(files: Path, tmp_path: Path, ce_: Ce) -> None:
    header, rows = read(files / "truth.csv")
    part = write(tmp_path / "part.csv", header, [*rows[5:20], ["somebody else", f"{LABEL}7"], [rows[20][0], ""]])
    out = tmp_path / "consensus.csv"
    how = ("fit", files / "labels.csv", "--clusters", 3, "--format", "json")
    summary = json.loads(ce_(*how, "--truth", part, "--out", out).out)
    found = consensus(out, ["p0", "p1", "p2"])
    known = [int(row[1].removeprefix(LABEL)) for row in rows[5:20]]
    labels = [int(found[row[0]][1]) for row in rows[5:20]]
    assert summary["truth"] == {
        "ari": ce.metrics.ari(known, labels),
        "nmi": ce.metrics.nmi(known, labels),
        "micro_precision": ce.metrics.micro_precision(known, labels),
    }
    assert json.loads(ce_(*how, "--truth", out).out)["truth"]["ari"] == 1.0  # a consensus file is a labeling too


def test_metrics_of_consensus_files(files: Path, tmp_path: Path, ce_: Ce) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        how = ("--clusters", 3, "--restarts", 1, "--seed", seed)
        ce_("fit", files / "labels.csv", *how, "--out", tmp_path / f"{name}.csv")
    same = json.loads(ce_("metrics", tmp_path / "a.csv", tmp_path / "a.csv", "--format", "json").out)
    assert same["objects"] == N_OBJECTS - 1
    assert same["ari"] == same["nmi"] == same["micro_precision"] == same["f1_nbce"] == 1.0
    assert same["vi"] == pytest.approx(0.0, abs=1e-12)
    scores = json.loads(ce_("metrics", files / "truth.csv", tmp_path / "b.csv", "--format", "json").out)
    rows = consensus(tmp_path / "b.csv", ["p0", "p1", "p2"])
    pairs = [(id_, label) for id_, label in read(files / "truth.csv")[1] if rows[id_][1]]
    known, found = [label for _, label in pairs], [int(rows[id_][1]) for id_, _ in pairs]
    codes = np.unique(known, return_inverse=True)[1]
    assert scores.pop("objects") == N_OBJECTS - 1
    measures = [
        "ari",
        "nmi",
        "ami",
        "rand_index",
        "micro_precision",
        "purity",
        "pair_f",
        "f1_nbce",
        "vi",
        "nvi1",
        "nvi2",
    ]
    assert list(scores) == measures
    for name in measures:
        assert scores[name] == pytest.approx(getattr(ce.metrics, name)(codes, found), rel=1e-12), name


def test_metrics_of_columns_and_classes(files: Path, tmp_path: Path, ce_: Ce) -> None:
    ce_("fit", files / "votes.csv", "--model", "bc3e", "--out", tmp_path / "found.csv")
    ended = ce_("metrics", files / "classes.csv", tmp_path / "found.csv")
    assert ended.code == 0
    assert f"{N_OBJECTS} objects" in ended.out
    assert "micro_precision" in ended.out
    two = ce_("metrics", files / "labels.csv", files / "labels.csv", "--column-a", "ward", "--column-b", "kmeans")
    assert (two.code, two.err) == (0, "")
    assert ID not in two.out
    assert LABEL not in two.out


def test_names_with_markup_are_shown_as_they_are(tmp_path: Path, ce_: Ce) -> None:
    names = ["kmeans[k=5]", "x[/bold]", "[red]y", ":smile:", "clf:[/]"]
    rows = [[f"o{i}", *(str(i % 2) for _ in names)] for i in range(10)]
    paths = [
        write(tmp_path / "[bold]a.csv", ["id", *names], rows[:5]),
        write(tmp_path / "b[u].csv", ["id", *names], rows[5:]),
    ]
    ended = ce_("simulate", *paths, "--clusters", 2, "--out", tmp_path / "[i]out")
    assert ended.code == 0
    assert all(name.removeprefix("clf:") in ended.out for name in names)
    assert "[bold]a (5), b[u] (5)" in ended.out
    assert f"wrote {tmp_path}/[i]out/b[u].csv" in ended.out
    missing = ce_("fit", tmp_path / "[none]:smile:.csv", "--clusters", 2)
    assert missing.code == 3
    assert f"{tmp_path}/[none]:smile:.csv: no such file" in missing.sentence


# Failures. Each has its exit code, names the place, and shows no id and no label.

GOOD = f"id,x,y\n{ID}1,{LABEL}1,{LABEL}2\n{ID}2,{LABEL}2,{LABEL}2\n{ID}3,{LABEL}1,{LABEL}1\n"

BAD_FILES: dict[str, tuple[str | bytes, list[str]]] = {
    "empty": ("", ["empty"]),
    "header only": ("id,x\n", ["no rows"]),
    "not utf-8": (f"id,x\n{ID}1,{LABEL}\xff\n".encode("latin-1"), ["row 2", "UTF-8"]),
    "ragged": (GOOD + f"{ID}4,{LABEL}1\n", ["row 5", "2 fields, expected 3"]),
    "too many fields": (GOOD + f"{ID}4,{LABEL}1,{LABEL}1,{LABEL}1\n", ["row 5", "4 fields"]),
    "open quote": (GOOD + f'{ID}4,"{LABEL}1,{LABEL}1\n', ["row 5", "quotation"]),
    "duplicate ids": (GOOD + f"{ID}2,{LABEL}1,{LABEL}1\n", ["row 5", "row 3", "same id", "'id'"]),
    "empty id": (GOOD + f",{LABEL}1,{LABEL}1\n", ["row 5", "empty id"]),
    "fractional label": (f"id,x\n{ID}1,8.125\n{ID}2,1\n", ["row 2", "'x'", "fractional"]),
    "empty column": (f"id,x,y\n{ID}1,{LABEL}1,\n{ID}2,{LABEL}2,NA\n", ["'y'", "no label in this column"]),
    "negative column": (f"id,x,y\n{ID}1,1,-1\n{ID}2,2,-2\n", ["'y'", "no label in this column"]),
    "no label at all": (f"id,x\n{ID}1,\n{ID}2,\n", ["'x'", "no label"]),
    "duplicate column": (f"id,x,x\n{ID}1,{LABEL}1,{LABEL}2\n", ["'x'", "two columns"]),
    "no label column": (f"id\n{ID}1\n", ["no label columns"]),
    "other id column": (GOOD.replace("id,", "customer,", 1), ["'id'", "--id NAME"]),
    "not gzip": (b"id,x\n", ["gzip"]),
    "bad probability": (f"id,clf:v=a,clf:v=b\n{ID}1,0.5,0.75\n{ID}2,0.5,0.5\n", ["row 2", "'v'", "sum to 1"]),
}


# metrics and --truth keep noise: a negative label is a label.
BAD_READS = [
    (command, case)
    for command in ("fit", "simulate", "metrics", "truth")
    for case in BAD_FILES
    if case != "negative column" or command in ("fit", "simulate")
]


@pytest.mark.promise("Every mistake in a file or a command is a sentence that says what to do, with its exit code.")
@pytest.mark.parametrize(("command", "case"), BAD_READS)
def test_bad_files_are_refused(command: str, case: str, tmp_path: Path, ce_: Ce) -> None:
    content, expected = BAD_FILES[case]
    bad = tmp_path / ("bad.csv.gz" if case == "not gzip" else "bad.csv")
    bad.write_bytes(content.encode() if isinstance(content, str) else content)
    good = tmp_path / "good.csv"
    good.write_text(GOOD)
    arguments: dict[str, list[object]] = {
        "fit": ["fit", bad, "--clusters", 2],
        "simulate": ["simulate", good, bad, "--clusters", 2, "--out", tmp_path / "out"],
        "metrics": ["metrics", bad, good, "--column-b", "x"],
        "truth": ["fit", good, "--clusters", 2, "--truth", bad],
    }
    ended = ce_(*arguments[command])
    assert ended.code == 3
    assert ended.out == ""
    assert all(part in ended.sentence for part in (bad.name, *expected)), ended.err
    assert "8.125" not in ended.err
    assert not (tmp_path / "out").exists()


@pytest.fixture(name="good")
def _good(tmp_path: Path) -> Path:
    path = tmp_path / "good.csv"
    path.write_text(GOOD)
    return path


SEALED_PAIR = ["simulate", "{good}", "{other}", "--model", "pairs"]


@pytest.mark.promise("Every mistake in a file or a command is a sentence that says what to do, with its exit code.")
@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], 2, "Usage: ce "),
        (["frobnicate"], 2, "frobnicate"),
        (["--log-level", "loud"], 2, "loud"),
        (["fit"], 2, "LABELS"),
        (["fit", "{good}", "--clusters", "2", "--frobnicate"], 2, "--frobnicate"),
        (["fit", "{good}", "--clusters", "two"], 2, "'two' is neither a whole number nor auto"),
        (["fit", "{good}", "--clusters", "2", "--model", "kmeans"], 2, "kmeans"),
        (SEALED_PAIR, 2, "clusters is missing: how many"),
        (
            [*SEALED_PAIR, "--clusters", "2", "--epsilon", "-1"],
            2,
            'epsilon is a number above 0, at most 100, or "exact"',
        ),
        (
            [*SEALED_PAIR, "--clusters", "auto", "--epsilon", "exact", "--policy", "{noise}"],
            6,
            "this site takes part with noise only (rule: allow_exact)",
        ),
        (["simulate", "{spaced}", "{other}", "--model", "pairs", "--clusters", "2"], 3, "have names without spaces"),
        (["fit", "{good}", "--clusters", "2", "--format", "yaml"], 2, "yaml"),
        (["fit", "{good}", "--clusters", "2", "--seed", "-1"], 2, "--seed"),
        (["fit", "{good}", "{good}", "--clusters", "2"], 2, "unexpected extra argument"),
        (["simulate", "--clusters", "2"], 2, "FILE"),
        (["simulate", "{good}", "{good}", "--split", "rows:2", "--clusters", "2"], 2, "--split takes one file"),
        (["simulate", "{good}", "--clusters", "2", "--privacy", "none"], 2, "none"),
        (["simulate", "{good}", "--clusters", "2", "--transport", "pigeon"], 2, "pigeon"),
        (["metrics", "{good}"], 2, "B"),
        (["completion", "tcsh"], 2, "tcsh"),
        (["fit", "{good}"], 2, "clusters is missing"),
        (["simulate", "{good}"], 2, "clusters is missing"),
        (["fit", "{good}", "--clusters", "0"], 2, "clusters is a whole number from 1 to 1,000,000"),
        (["fit", "{good}", "--clusters", "-3"], 2, "clusters"),
        (["fit", "{good}", "--clusters", "2", "--restarts", "0"], 2, "restarts"),
        (["fit", "{good}", "--clusters", "2", "--max-iterations", "-1"], 2, "max_iterations"),
        (["fit", "{good}", "--clusters", "2", "--class", "a", "--class", "b"], 2, "classes is for bc3e"),
        (["fit", "{good}", "--clusters", "2", "--model", "bc3e"], 2, "clusters is for bce and mixture"),
        (["fit", "{good}", "--model", "bc3e", "--class", "a"], 2, "classes"),
        (["fit", "{good}", "--model", "bc3e", "--class", "a", "--class", "a"], 2, "classes"),
        (["simulate", "{good}", "--clusters", "2", "--policy", "{folder}/absent.toml"], 4, "absent.toml: cannot be"),
        (["simulate", "{good}", "--clusters", "2", "--policy", "{rules}"], 6, "1 sites; this site asks for 3"),
        (["fit", "{folder}/absent.csv", "--clusters", "2"], 3, "absent.csv: no such file"),
        (["fit", "{folder}/absent.parquet", "--clusters", "2"], 3, "absent.parquet: no such file"),
        (["fit", "{folder}", "--clusters", "2"], 3, "a directory: expected a file"),
        (["fit", "{good}/x.csv", "--clusters", "2"], 3, "x.csv: cannot be read: Not a directory"),
        (["fit", "{good}", "--clusters", "2", "--id", "customer"], 3, "'customer'"),
        (["fit", "{good}", "--clusters", "2", "--classifiers", "clf_*"], 3, "'clf_*'"),
        (["fit", "{good}", "--model", "bc3e"], 3, "no classifier"),
        (["fit", "{good}", "--model", "bc3e", "--class", "a", "--class", "b"], 3, "no classifier"),
        (["fit", "{good}", "--clusters", "2", "--classifiers", "*"], 3, "no object has a label"),
        (["simulate", "{good}", "--model", "bc3e"], 3, "no classifier"),
        (["simulate", "{good}", "{folder}/good.tsv", "--clusters", "2"], 3, "two files would be site 'good'"),
        (["simulate", "{good}", "{good}", "--clusters", "2"], 3, "two files would be site 'good'"),
        (["simulate", "{good}", "--clusters", "2", "--split", "diagonal:2"], 2, "rows:N, columns:N or blocks:N"),
        (["simulate", "{good}", "--clusters", "2", "--split", "rows:0"], 2, "rows:N"),
        (["simulate", "{good}", "--clusters", "2", "--split", "rows:4"], 3, "only 3 objects"),
        (["simulate", "{good}", "--clusters", "2", "--split", "columns:3"], 3, "only 2 columns"),
        (["fit", "{good}", "--clusters", "2", "--truth", "{other}"], 3, "other.csv: has none of the objects"),
        (["fit", "{good}", "--clusters", "2", "--truth", "{good}"], 3, "good.csv: which column?"),
        (["metrics", "{good}", "{other}", "--column-a", "x"], 3, "no id in common"),
        (["metrics", "{good}", "{other}"], 3, "good.csv: which column? say --column-a; the columns are x, y"),
        (["metrics", "{other}", "{good}"], 3, "good.csv: which column? say --column-b"),
        (["metrics", "{good}", "{good}", "--column-a", "x", "--column-b", "z"], 3, "'z': unknown column"),
        (["metrics", "{good}", "{silent}", "--column-a", "x"], 3, "nothing to compare"),
        (["fit", "{good}", "--clusters", "2", "--truth", "{silent}"], 3, "nothing to compare"),
        (["fit", "{good}", "--clusters", "2", "--out", "{good}/x.csv"], 3, "good.csv: not a directory"),
        (["fit", "{good}", "--clusters", "2", "--out", "{good}/x/y.csv"], 3, "cannot be written: Not a directory"),
        (["simulate", "{good}", "--clusters", "2", "--out", "{other}"], 3, "other.csv: not a directory"),
        (["fit", "{good}", "--clusters", "2", "--out", "{folder}/x.csv.gz"], 3, "a consensus file is CSV"),
        (["fit", "{good}", "--clusters", "2", "--out", "{folder}"], 3, "cannot be written: not a file"),
        (["fit", "{good}", "--clusters", "2", "--out", ""], 3, "cannot be written: not a file"),
        (["fit", "{good}", "--clusters", "2", "--out", "/"], 3, "cannot be written: not a file"),
        (["fit", "{good}", "--clusters", "2", "--out", "{pipe}"], 3, "cannot be written: not a file"),
        (["fit", "{good}", "--clusters", "2", "--out", "/proc/ce/x.csv"], 3, "cannot be written"),
        (["fit", "{good}", "--clusters", "2", "--out", "{folder}/" + "x" * 300], 3, "File name too long"),
    ],
)
def test_wrong_uses_end_with_a_sentence(
    arguments: list[str], code: int, expected: str, good: Path, tmp_path: Path, ce_: Ce
) -> None:
    (tmp_path / "good.tsv").write_text(GOOD.replace(",", "\t"))
    other = write(tmp_path / "other.csv", ["id", "x"], [[f"{ID}7", f"{LABEL}1"], [f"{ID}8", f"{LABEL}2"]])
    silent = write(tmp_path / "silent.csv", ["id", "x"], [[f"{ID}1", ""], [f"{ID}8", f"{LABEL}2"]])
    rules = tmp_path / "rules.toml"
    rules.write_text("min_sites = 3\n")
    noise = tmp_path / "noise.toml"
    noise.write_text("min_sites = 2\nallow_exact = false\n")
    spaced = write(tmp_path / "my file.csv", ["id", "y"], [[f"{ID}7", f"{LABEL}1"], [f"{ID}8", f"{LABEL}2"]])
    os.mkfifo(tmp_path / "pipe")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    places = {"good": good, "other": other, "silent": silent, "folder": tmp_path, "pipe": tmp_path / "pipe"}
    places |= {"rules": rules, "noise": noise, "spaced": spaced}
    ended = ce_(*(argument.format(**places) for argument in arguments))
    assert ended.code == code
    assert expected in ended.sentence
    assert ended.out == ""
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert (tmp_path / "pipe").is_fifo()


def test_failures_as_json(good: Path, tmp_path: Path, ce_: Ce) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("min_sites = 3\n")
    for arguments, code in (
        (["fit", tmp_path / "absent.csv", "--clusters", 2], 3),
        (["simulate", good, "--clusters", 2, "--policy", tmp_path / "absent.toml"], 4),
        (["simulate", good, "--clusters", 2, "--policy", rules], 6),
        (["metrics", good, good], 3),
    ):
        for format_ in (["--format", "json"], ["--format=json"]):
            ended = ce_(*arguments, *format_)
            error = json.loads(ended.sentence)
            assert (ended.code, ended.out, set(error)) == (code, "", {"error", "exit_code"})
            assert error["exit_code"] == code


def test_label_files_are_never_overwritten(good: Path, tmp_path: Path, ce_: Ce) -> None:
    truth = write(tmp_path / "truth.csv", ["id", "group"], [[f"{ID}1", f"{LABEL}1"]])
    (tmp_path / "link.csv").symlink_to(good)
    for arguments in (
        ["fit", good, "--out", good],
        ["fit", good, "--out", tmp_path / "link.csv"],
        ["fit", good, "--truth", truth, "--out", truth],
        ["simulate", good, "--out", tmp_path],
    ):
        ended = ce_(*arguments, "--clusters", 2)
        assert ended.code == 3
        assert "would overwrite a file that is read" in ended.sentence
    assert good.read_text() == GOOD


def test_an_older_consensus_file_is_replaced(good: Path, tmp_path: Path, ce_: Ce) -> None:
    out = tmp_path / "consensus.csv"
    out.write_text("old\n")
    assert ce_("fit", good, "--clusters", 2, "--out", out).code == 0
    assert list(consensus(out, ["p0", "p1"])) == [f"{ID}1", f"{ID}2", f"{ID}3"]


def test_more_clusters_than_objects_leave_some_empty(good: Path, tmp_path: Path, ce_: Ce) -> None:
    ended = ce_("fit", good, "--clusters", 7, "--out", tmp_path / "out.csv", "--format", "json")
    assert ended.code == 0
    assert len(consensus(tmp_path / "out.csv", [f"p{h}" for h in range(7)])) == 3
    assert sum(json.loads(ended.out)["sizes"].values()) == 3


def test_one_cluster_is_everybody(good: Path, tmp_path: Path, ce_: Ce) -> None:
    assert ce_("fit", good, "--clusters", 1, "--out", tmp_path / "out.csv").code == 0
    assert {tuple(row[1:]) for row in consensus(tmp_path / "out.csv", ["p0"]).values()} == {("0", "1.0", "1.0")}


def test_overlapping_cells_are_refused(tmp_path: Path, ce_: Ce) -> None:
    north = tmp_path / "north.csv"
    south = tmp_path / "south.csv"
    north.write_text(GOOD)
    south.write_text(GOOD.replace(",y", ",ward"))
    ended = ce_("simulate", north, south, "--clusters", 2, "--out", tmp_path / "out")
    assert ended.code == 6
    assert all(part in ended.sentence for part in ("column 'x'", "north and south", "rule: overlapping cells"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("south", "what"),
    [
        (f"id,clf:x\n{ID}7,{LABEL}1\n", "kind: clustering at north, classifier at south"),
        (f"id,soft:x={LABEL}1,soft:x={LABEL}2\n{ID}7,0.5,0.5\n", "labels: hard labels at north, soft labels at south"),
        (f"id,x\n{ID}7,1\n", "categories: text at north, integers at south"),
    ],
)
def test_clashing_columns_are_refused(south: str, what: str, good: Path, tmp_path: Path, ce_: Ce) -> None:
    good.rename(tmp_path / "north.csv")
    (tmp_path / "south.csv").write_text(south)
    classes = ("--model", "bc3e", "--class", f"{LABEL}1", "--class", f"{LABEL}2")
    model = classes if "clf:" in south else ("--clusters", 2)
    ended = ce_("simulate", tmp_path / "north.csv", tmp_path / "south.csv", *model)
    assert ended.code == 6
    assert f"column 'x' differs in its {what}" in ended.sentence
    assert "rule: clashing column" in ended.sentence


def test_classes_that_were_not_given_are_counted_and_not_shown(tmp_path: Path, ce_: Ce) -> None:
    path = write(tmp_path / "votes.csv", ["id", "x", "clf:v"], [[f"{ID}{i}", "1", f"{LABEL}{i}"] for i in range(4)])
    ended = ce_("fit", path, "--model", "bc3e", "--class", f"{LABEL}0", "--class", "other")
    assert ended.code == 3
    assert "classifiers use 3 class names" in ended.err
    mixed = write(tmp_path / "mixed.csv", ["id", "x", "clf:v", "clf:w"], [[f"{ID}1", "1", "1", f"{LABEL}1"]])
    ended = ce_("fit", mixed, "--model", "bc3e")
    assert ended.code == 3
    assert "integers and text" in ended.sentence


def test_an_unexpected_error_ends_with_a_sentence_too(good: Path, ce_: Ce, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError(f"{ID}1 has {LABEL}1")

    monkeypatch.setattr("ce.cli.fit.simulate", crash)
    ended = ce_("fit", good, "--clusters", 2)
    assert ended.code == 1
    assert ended.err == "error: unexpected RuntimeError; --log-level debug shows where\n"

    def exhaust(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("ce.cli.fit.simulate", exhaust)
    ended = ce_("fit", good, "--clusters", 2)
    assert ended.code == 1
    assert "not enough memory" in ended.err


# Interruptions.


class Interrupting(list[str]):
    """Ids that end with the user's Ctrl-C instead of an object."""

    def __iter__(self) -> Any:
        yield from super().__iter__()
        raise KeyboardInterrupt


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "consensus.csv"
    out.write_text("old\n")
    with pytest.raises(KeyboardInterrupt):
        write_consensus(out, Interrupting(["a"]), np.array([0]), np.ones((1, 1)), ())  # type: ignore[arg-type]
    assert out.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_leaves_nothing_behind(good: Path, tmp_path: Path, ce_: Ce, monkeypatch: Any) -> None:
    def full(_: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    ended = ce_("fit", good, "--clusters", 2, "--out", tmp_path / "out" / "x.csv")
    assert ended.code == 3
    assert "x.csv: cannot be written: No space left on device" in ended.sentence
    assert list((tmp_path / "out").iterdir()) == []


def long_fit(folder: Path) -> list[str]:
    """A fit that would run for minutes: labels without structure, and many starts."""
    rng = np.random.default_rng(0)
    rows = [[f"{ID}{i}", *(str(label) for label in labels)] for i, labels in enumerate(rng.integers(0, 9, (2000, 12)))]
    path = write(folder / "long.csv", ["id", *(f"c{j}" for j in range(12))], rows)
    how = ["--clusters", "20", "--restarts", "40", "--max-iterations", "1000000"]
    return [str(CE), "fit", str(path), *how, "--out", str(folder / "out" / "consensus.csv")]


def test_ctrl_c_in_the_middle_of_a_fit_on_a_terminal(tmp_path: Path) -> None:
    """The progress bar shows that the fit has begun; Ctrl-C ends it with 130 and gives the cursor back."""
    main_end, terminal = pty.openpty()
    fit = subprocess.Popen(
        long_fit(tmp_path), stdout=subprocess.PIPE, stderr=terminal, env=os.environ | {"TERM": "xterm"}
    )
    os.close(terminal)
    output = b""
    with fit:
        try:
            while b"iteration" not in output:
                output += os.read(main_end, 4096)
            fit.send_signal(signal.SIGINT)
            output += read_to_end(main_end)
            out = fit.communicate()[0]
        finally:
            fit.kill()
    assert fit.returncode == 130
    assert out == b""
    text = output.decode()
    assert "\x1b[?25l" in text  # the cursor is hidden while the bar moves
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "interrupted" in text
    assert "Traceback" not in text
    assert ID not in text
    assert not (tmp_path / "out").exists()


def read_to_end(terminal: int) -> bytes:
    """What is left to read from a terminal until its last user closes it."""
    data = b""
    try:
        while more := os.read(terminal, 4096):
            data += more
    except OSError as error:
        if error.errno != errno.EIO:  # how Linux says that the other end is closed
            raise
    finally:
        os.close(terminal)
    return data


def test_progress_is_for_terminals(files: Path) -> None:
    arguments = ("fit", files / "labels.csv", "--clusters", 3, "--restarts", 1)
    # FORCE_COLOR asks for colours; a bar in a log file would be something else.
    done = process(*arguments, env=os.environ | {"FORCE_COLOR": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    done = process(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert not CONTROL.search(done.stdout)
    # Only stderr is a terminal: the bar goes there, and the tables stay clean.
    main_end, terminal = pty.openpty()
    done = process(*arguments, stderr=terminal, env=os.environ | {"TERM": "xterm"})
    os.close(terminal)
    output = read_to_end(main_end).decode()
    assert done.returncode == 0
    assert "iteration" in output
    assert "bound" in output
    assert ID not in output
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [
        (["fit", "{labels}", "--clusters", "2", "--restarts", "1"], ""),
        (["fit", "{labels}", "--clusters", "2", "--restarts", "1", "--format", "json"], ""),
        (["fit", "{labels}", "--clusters", "2", "--restarts", "1", "--format", "json"], "1"),
        (["metrics", "{truth}", "{truth}"], ""),
        (["--help"], ""),
    ],
    ids=["tables", "json", "json at once", "metrics", "help"],
)
def test_nobody_reads_the_output(arguments: list[str], unbuffered: str, files: Path) -> None:
    """`ce ... | head`: no complaint, whether that is noticed at the first byte or when the last are flushed."""
    gone, stdout = os.pipe()
    os.close(gone)
    places = {"labels": files / "labels.csv", "truth": files / "truth.csv"}
    given = [argument.format(**places) for argument in arguments]
    done = process(*given, stdout=stdout, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    os.close(stdout)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_a_failure() -> None:
    with Path("/dev/full").open("w") as full:
        done = process("--help", stdout=full, env=os.environ | {"PYTHONUNBUFFERED": ""})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", ["id", "größe", "中"], [["a", "1", "1"], ["b", "2", "2"]])
    done = process("fit", path, "--clusters", 2, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u4e2d" in done.stdout


def test_as_a_process(files: Path, sites: list[Path], tmp_path: Path) -> None:
    """The installed command, once through each way to end."""
    done = process("simulate", *sites, "--clusters", 3, "--truth", files / "truth.csv", "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert ID not in done.stdout
    assert len(list((tmp_path / "out").iterdir())) == 3
    for arguments, code in (
        (("fit", tmp_path / "absent.csv", "--clusters", "2"), 3),
        (("fit", files / "labels.csv"), 2),
        (("fit", "--frobnicate"), 2),
        (("simulate", files / "labels.csv", files / "votes.csv", "--clusters", "2"), 6),
    ):
        done = process(*arguments)
        assert done.returncode == code
        assert Ended(done.returncode, done.stdout, done.stderr).sentence
    done = subprocess.run(
        [sys.executable, "-m", "ce.cli.main", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"ce, version {ce.__version__}\n"


def test_capacity_says_what_a_job_would_take(ce_: Ce) -> None:
    asked = ("capacity", "--sites", 4, "--objects", 1000, "--columns", 5, "--categories", 8, "--clusters", 3)
    ended = ce_(*asked, "--shared", 500, "--iterations", 9)
    assert ended.code == 0
    assert re.search(r"exchanges +12\n", ended.out)
    facts = json.loads(ce_(*asked, "--shared", 500, "--format", "json").out)
    twice = json.loads(ce_(*asked, "--shared", 1000, "--format", "json").out)
    assert 1.9 < twice["from_a_site_each_iteration"] / facts["from_a_site_each_iteration"] < 2.0
    assert ce_(*asked, "--shared", 1001).code == 4


def test_capacity_of_a_sealed_job(ce_: Ce) -> None:
    asked = ("capacity", "--sites", 4, "--objects", 1000, "--columns", 5, "--categories", 8, "--clusters", 3)
    ended = ce_(*asked, "--shared", 500, "--model", "pairs")
    assert re.search(r"exchanges +20\n", ended.out)
    facts = json.loads(ce_(*asked, "--shared", 500, "--model", "pairs", "--privacy", "sealed", "--format", "json").out)
    twice = json.loads(ce_(*asked, "--shared", 1000, "--model", "pairs", "--format", "json").out)
    assert 1.3 < twice["from_a_site_at_most"] / facts["from_a_site_at_most"] < 2.0
    assert ce_(*asked, "--model", "pairs", "--privacy", "masked").code == 4
    assert ce_(*asked, "--privacy", "sealed").code == 4
