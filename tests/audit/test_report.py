"""`ce.audit.audit` and `ce audit`: the report, its formats, and that it names no object and no label."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ce import Job
from ce.audit import ATTACKS, Audit, Finding, audit, example_job, example_tables
from ce.audit.html import page, summary
from ce.audit.report import ALLOWED, LEAKS, NOTHING, Score, verdict
from ce.cli.main import main
from ce.errors import ConfigError, InputError


@pytest.fixture(scope="module", name="found")
def _found(ensembles: dict[str, Any]) -> Audit:
    job = Job(name="a <b>job", model="mixture", clusters=3, max_iterations=3)
    return audit(job, ensembles["five single columns"], attacks=("distinct rows", "unmixing"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["audit", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


def test_findings_name_adversary_attack_and_recovery(found: Audit) -> None:
    assert found.layout == "column"
    assert found.objects == found.of_objects == 300
    by_key = {(f.view, f.attack, f.mode): f for f in found.findings}
    plain = by_key["coordinator", "distinct rows", "plain"]
    assert plain.recovered == pytest.approx(1.0)
    assert plain.verdict == ALLOWED
    assert 0.0 < plain.baseline < 0.9
    assert by_key["coordinator", "distinct rows", "masked"].verdict == NOTHING
    assert by_key["coordinator", "unmixing", "masked"].verdict == "ruled out: min_foreign_columns"
    assert found.leaks == ()
    # `worst` has the site that gained most, once per mode.
    assert len([f for f in found.worst() if f.adversary == "site"]) == 2
    assert len([f for f in found.findings if f.adversary == "site"]) == 10


@pytest.mark.parametrize(
    ("recovered", "baseline", "view", "mode", "expected"),
    [
        (0.60, 0.58, "coordinator", "masked", NOTHING),
        (0.64, 0.58, "coordinator", "masked", LEAKS),
        (0.90, 0.58, "site north", "blind", LEAKS),
        (1.00, 0.90, "site north", "masked", LEAKS),
        (1.00, 0.50, "coordinator", "plain", ALLOWED),
    ],
)
def test_verdicts(recovered: float, baseline: float, view: str, mode: str, expected: str) -> None:
    assert verdict(Score(recovered, baseline), view, mode, None, ()) == expected
    if expected == LEAKS:
        assert verdict(Score(recovered, baseline), view, mode, None, ("min_sites",)) == "ruled out: min_sites"


def test_findings_in_a_layout_that_rules_refuse_are_ruled_out(ensembles: dict[str, Any]) -> None:
    job = Job(clusters=3, max_iterations=3)
    found = audit(job, ensembles["two sites"], modes=("masked",), attacks=("subtraction",))
    assert found.broken_rules["global"] == ("min_sites",)
    assert {finding.verdict for finding in found.findings} == {"ruled out: min_sites"}
    assert found.leaks == ()


def test_the_same_audit_has_the_same_findings(ensembles: dict[str, Any]) -> None:
    def once() -> tuple[Finding, ...]:
        job = Job(clusters=3, max_iterations=3)
        return audit(job, ensembles["cells"], modes=("plain",), attacks=("trajectories", "histograms")).findings

    assert once() == once()


def test_large_jobs_are_sampled(ensembles: dict[str, Any]) -> None:
    job = Job(clusters=3, max_iterations=2)
    found = audit(job, ensembles["rows"], modes=("plain",), attacks=("histograms",), max_objects=200)
    assert (found.objects, found.of_objects) == (200, 400)
    assert found.findings[0].recovered == 1.0


def test_wrong_arguments_are_refused(ensembles: dict[str, Any]) -> None:
    job = Job(clusters=3)
    with pytest.raises(ConfigError, match="did you mean 'unmixing'"):
        audit(job, ensembles["cells"], attacks=("unmixin",))
    with pytest.raises(ConfigError, match="modes are among"):
        audit(job, ensembles["cells"], modes=("secret",))
    with pytest.raises(InputError, match="at least two sites"):
        audit(job, {"one": ensembles["cells"]["site0"]})


def test_the_page_is_self_contained(found: Audit) -> None:
    text = page(found)
    assert "<script" not in text
    assert not re.search(r"(?i)https?://|src=|@import|url\(", text)
    assert "a &lt;b&gt;job" in text
    plots = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(plots) == 3
    for plot in plots:
        ElementTree.fromstring(plot)
    assert summary(found)[0].startswith("Where mode and rules promise it, no attack found more")
    assert "lattice reduction" in summary(found)[1]
    leaking = replace(found, findings=tuple(replace(finding, verdict=LEAKS) for finding in found.findings[:2]))
    assert summary(leaking)[0].startswith("2 findings go beyond")
    assert 'class="leak"' in page(leaking)


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
def test_nothing_names_an_object_or_a_label(found: Audit) -> None:
    assert "object " not in page(found).replace("the last object", "")
    assert "object 1" not in json.dumps(found.as_dict())
    assert "object 1" not in repr(found)


def test_the_command_audits_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for site, table in example_tables().items():
        names = [column.name for column in table.columns]
        rows = ["".join(["id", *(f",{name}" for name in names)])]
        for i, object_id in enumerate(table.ids):
            codes = [column.likeliest[i] for column in table.columns]
            rows.append(",".join([object_id, *("" if c < 0 else str(c) for c in codes)]))
        (tmp_path / f"{site}.csv").write_text("\n".join(rows))
    files = [str(tmp_path / f"{site}.csv") for site in example_job().sites]
    html = tmp_path / "new" / "audit.html"
    common = ("--clusters", "4", "--max-iterations", "2", "--privacy", "masked", "--attack", "histograms")
    code, out, _ = run(capsys, *files, *common, "--html", str(html))
    assert code == 0
    assert "coordinator" in out
    assert "histograms" in out
    assert "K1" not in out + html.read_text()
    code, out, _ = run(capsys, *files, *common, "--format", "json")
    report = json.loads(out)
    assert (code, report["modes"], report["layout"]) == (0, ["masked"], "arbitrary")
    assert {finding["attack"] for finding in report["findings"]} == {"histograms"}


def test_the_command_has_an_example_and_splits_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(
        capsys, "--max-iterations", "1", "--privacy", "plain", "--attack", "distinct rows", "--format", "json"
    )
    assert code == 0
    assert json.loads(out)["sites"] == dict.fromkeys(["east", "north", "south", "west"], 300)
    labels = tmp_path / "labels.csv"
    labels.write_text("id,a,b,c\n" + "\n".join(f"x{i},{i % 2},{i % 3},{i % 5}" for i in range(60)))
    code, out, _ = run(
        capsys,
        *(str(labels), "--split", "columns:3", "--clusters", "2", "--privacy", "plain"),
        *("--attack", "phi inversion", "--format", "json"),
    )
    assert code == 0
    assert json.loads(out)["findings"][0]["recovered"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--attack", "magic"), "unknown attack"),
        (("--split", "columns:3"), "takes one file"),
        (("--model", "bc3e"), "no classifiers"),
        (("--split", "diagonal", "x.csv"), "rows:N"),
        (("--truth", "x.csv"), "No such option"),
    ],
)
def test_wrong_use_is_an_error(arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert sentence in err


def test_help_has_examples_and_the_attacks_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "ce audit labels.csv --split columns:5" in out
    assert len(ATTACKS) == len(set(ATTACKS)) == 29


def test_a_sealed_job_is_audited_in_its_only_mode(ensembles: dict[str, Any]) -> None:
    job = Job(name="sealed", model="pairs", clusters=3)
    found = audit(job, ensembles["three columns each"], attacks=("exact tables", "dealer and site"))
    assert found.modes == ("sealed",)
    assert found.margin == 0.03
    assert set(found.superseded) == set(ATTACKS)
    assert found.leaks == ()
    written = json.loads(json.dumps(found.as_dict()))
    assert written["margin"] == 0.03
    assert written["superseded"].keys() == set(ATTACKS)
    assert {finding["mode"] for finding in written["findings"]} == {"sealed"}
    lines = summary(found)
    assert "margin 0.03" in lines[0]
    assert any("stated" in line and "dealer and site" in line for line in lines)
    assert any("nothing to work on" in line and "reset and probe" in line for line in lines)
    shown = page(found)
    assert "epsilon 2.0" in shown
    assert "stated limit" in shown
    with pytest.raises(ConfigError, match="modes are among sealed"):
        audit(job, ensembles["three columns each"], modes=("masked",))
    with pytest.raises(ConfigError, match="did you mean 'winners'"):
        audit(job, ensembles["three columns each"], attacks=("winner",))


def test_the_command_audits_a_sealed_job(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", "pairs", "--attack", "dealer and site", "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert found["modes"] == ["sealed"]
    assert {finding["verdict"] for finding in found["findings"]} == {"stated limit"}
