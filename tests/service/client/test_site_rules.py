"""A site's rules, over the whole protocol: what falls below a minimum is left out or refused by name, before anything
computed from labels has left; a job with things left out gives the bits of a simulation under the same rules.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import ce
from ce.ring import Reals
from ce.rules import RULES
from ce.testing import FrameByFrame, make_sites, write_labels
from ce_client.attempt.refusal import CANNOT_GO_ON
from ce_client.state.consents import Consents
from ce_client.state.job_index import JobIndex
from ce_client.state.ledger import FILE_NAME, entries, verify
from ce_client.state.previews import Previews
from ce_client.state.rosters import Rosters
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.machine import Machine
from ce_coordinator.service.job_status import job_status
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "south", "west")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
N = 130


def labels(seed: int, columns: int, missing: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(0).integers(0, 3, N)
    cells = np.where(rng.random((N, columns)) < 0.2, rng.integers(0, 3, (N, columns)), truth[:, None])
    return np.where(rng.random((N, columns)) < missing, -1, cells)


def table(site: str, rows: Any = slice(None), columns: int = 3, votes: int = 0, missing: float = 0.0) -> ce.LabelTable:
    """Columns of the site's own; ids o0, o1, ..."""
    cells = labels(SITES.index(site), columns + votes, missing)[rows]
    names = [f"{site}_{j}" for j in range(columns)] + [f"vote_{site}_{j}" for j in range(votes)]
    ids = [f"o{i}" for i in np.arange(N)[rows]]
    return ce.LabelTable.from_arrays(cells, ids=ids, columns=names, classifiers=("vote_*",) if votes else ())


#: The rules below are about objects that several sites hold, and apply where totals of them are opened.
OPT_IN = 'shared_objects = "totals"\n'


def seated(tmp_path: Path, tables: dict[str, ce.LabelTable], policy: str = "") -> FrameByFrame:
    """Everybody at the table, with the default policy, totals of shared objects and what is given."""
    files = {site: tmp_path / f"{site}.csv" for site in tables}
    for site, own in tables.items():
        write_labels(files[site], own)
    played = FrameByFrame(make_sites(tmp_path, files, SECRETS, policy=policy or OPT_IN))
    played.connect()
    return played


def job_of(played: FrameByFrame, name: str = "job", **keys: Any) -> ce.Job:
    asked: dict[str, Any] = {"clusters": 3, "restarts": 2, "max_iterations": 8} | keys
    if asked.get("model") == "bc3e":
        del asked["clusters"], asked["restarts"]
    return ce.Job(name=name, sites=tuple(played.sites), **asked)


def run(played: FrameByFrame, job: ce.Job) -> Any:
    played.submit(job.definition(), job.name)
    played.run()
    return played.machine.records[job.name]


def memberships(played: FrameByFrame, site: str, job: str) -> tuple[Reals, list[str]]:
    path = played.sites[site].site_files.settings.results / job / "consensus.csv"
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    marks = [row[header.index("excluded")] for row in rows] if "excluded" in header else []
    return np.array([[float(value) for value in row[3:6]] for row in rows]), marks


def answers(played: FrameByFrame) -> list[pb.Answer]:
    frames = map(pb.SiteFrame.FromString, played.up_recording)
    return [frame.answer for frame in frames if frame.WhichOneof("frame") == "answer"]


def assert_as_simulated(
    played: FrameByFrame, job: ce.Job, tables: dict[str, ce.LabelTable], policy: dict[str, Any]
) -> Any:
    """The same bits as on one machine under the same rules; who was left out is said in the same words."""
    read = {site: ce.LabelTable.from_csv(played.sites[site].site_files.settings.labels.file) for site in tables}
    simulated = ce.simulate(job, read, secrets=SECRETS, policy={"shared_objects": "totals"} | policy)
    for site in tables:
        own, _ = memberships(played, site, job.name)
        np.testing.assert_array_equal(own, simulated.sites[site].memberships)
        report = json.loads((played.sites[site].site_files.settings.results / job.name / "report.json").read_text())
        left = [(e["rule"], e["objects"]) for e in report["excluded"]]
        told = [(e.rule, e.objects) for e in simulated.excluded if e.site == site and e.rule in RULES]
        assert left == told
    return simulated


# What is left out.


@pytest.mark.promise("Objects and columns below a minimum are left out, listed, and scored at their own site.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
def test_blocks_below_a_minimum_are_left_out_and_scored_at_home(tmp_path: Path, privacy: str) -> None:
    tables = {
        "east": table("east", np.r_[0:60, 60:85]),
        "north": table("north", np.r_[0:60, 85:105]),
        "south": table("south", np.r_[0:60, 105:125]),
        "west": table("west", np.r_[5:60, 60:65]),  # five objects with the others only, five with east only
    }
    played = seated(tmp_path, tables)
    job = job_of(played, privacy=privacy)
    assert run(played, job).state == "done"
    simulated = assert_as_simulated(played, job, tables, {})
    left = {(e.site, e.rule): e.objects for e in simulated.excluded}
    threes = dict.fromkeys((("east", "min_objects"), ("north", "min_objects"), ("south", "min_objects")), 5)
    assert left == threes | {("east", "min_sites"): 5, ("west", "min_sites"): 5}
    own, marks = memberships(played, "west", job.name)
    assert marks.count("1") == 5
    assert np.isfinite(own).all()
    assert verify(
        played.sites["west"].site_files.settings.state / FILE_NAME, played.sites["west"].site_files.certificate
    ).ok


def test_objects_of_one_site_count_only_among_those_of_other_sites(tmp_path: Path) -> None:
    """Their shares of the globals are sums over them alone: with fewer than three such sites a total is one's own."""
    tables = {site: table(site, np.r_[0:60, 60:90] if site == "east" else np.r_[0:60]) for site in SITES}
    played = seated(tmp_path, tables)
    job = job_of(played)
    assert run(played, job).state == "done"
    simulated = assert_as_simulated(played, job, tables, {})
    assert [(e.site, e.rule, e.objects) for e in simulated.excluded] == [("east", "min_sites", 30)]


@pytest.mark.promise("Objects and columns below a minimum are left out, listed, and scored at their own site.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
def test_objects_with_too_few_labels_are_left_out_once_labels_are_counted(tmp_path: Path, privacy: str) -> None:
    tables = {site: table(site, missing=0.35) for site in SITES}
    played = seated(tmp_path, tables)
    job = job_of(played, privacy=privacy)
    assert run(played, job).state == "done"
    simulated = assert_as_simulated(played, job, tables, {})
    assert sum(e.objects for e in simulated.excluded if e.rule == "min_foreign_columns") > 20


def test_votes_on_objects_with_too_few_ballots_are_left_out(tmp_path: Path) -> None:
    tables = {site: table(site, votes=1) for site in SITES}
    thin = ce.LabelTable.from_arrays(tables["west"], noise="missing")
    codes = thin.columns[-1].codes
    assert codes is not None
    codes[:7] = -1  # west is silent about seven objects: three ballots are left, two of which hide the third
    played = seated(tmp_path, tables)
    write_labels(tmp_path / "west.csv", thin)
    job = job_of(played, model="bc3e", classes=(0, 1, 2), privacy="masked")
    record = run(played, job)
    assert (record.state, record.reason) == ("done", "")
    left = [
        json.loads((played.sites[site].site_files.settings.results / job.name / "report.json").read_text())["excluded"]
        for site in ("east", "north", "south")
    ]
    assert all([(e["rule"], e["objects"]) for e in own] == [("min_classifiers", 7)] for own in left)


@pytest.mark.promise("Objects and columns below a minimum are left out, listed, and scored at their own site.")
def test_shared_columns_below_a_minimum_are_left_out(tmp_path: Path) -> None:
    rows = {site: np.arange(30 * at, 30 * (at + 1)) for at, site in enumerate(SITES)}
    tables = {}
    for site in SITES:
        cells = labels(9, 4)[rows[site]]
        if site == "west":
            cells[3:, 3] = -1  # three labels of west in c3 would stand for themselves
        names = ["c0", "c1", "c2", "c3"]
        tables[site] = ce.LabelTable.from_arrays(cells, ids=[f"o{i}" for i in rows[site]], columns=names)
    played = seated(tmp_path, tables)
    job = job_of(played, privacy="masked")
    assert run(played, job).state == "done"
    simulated = assert_as_simulated(played, job, tables, {})
    assert [(e.site, e.rule, e.columns) for e in simulated.excluded] == [("west", "min_objects", ("c3",))]


# Objects that several sites hold.


def parted() -> dict[str, ce.LabelTable]:
    """30 objects that all four hold, 25 of each alone: 130 in all."""
    return {site: table(site, np.r_[0:30, 30 + 25 * at : 55 + 25 * at]) for at, site in enumerate(sorted(SITES))}


@pytest.mark.promise("Objects that several sites hold take no part in totals, unless the sites that hold them opt in.")
@pytest.mark.promise("Operator and sites are told how many objects take no part in the fit, and which rule says so.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
def test_shared_objects_take_no_part_by_default_and_everybody_is_told(tmp_path: Path, privacy: str) -> None:
    tables = parted()
    played = seated(tmp_path, tables, "min_sites = 3\n")
    job = job_of(played, privacy=privacy)
    record = run(played, job)
    assert (record.state, record.reason) == ("done", "")
    assert_as_simulated(played, job, tables, {"shared_objects": "exclude"})
    sent = {array.name for answer in answers(played) for array in answer.chunks.chunks}
    assert "global/bound" in sent
    assert not [name for name in sent if name.startswith("block/")]
    # The operator, and after a restart.
    for machine in (played.machine, Machine("table", "", Limits(), 5, [record])):
        status = job_status(machine, job.name, 0.0)
        assert (status.objects, status.objects_in_fit) == (130, 100)
        told = [(e.site, e.rule, e.objects, e.columns, e.labels) for e in status.excluded]
        assert told == [(site, "shared_objects", 30, 0, 0) for site in SITES]
    result = json.loads(record.result)
    assert (result["objects"], result["objects_in_fit"]) == (130, 100)
    assert result["excluded"][0] == {"site": "east", "rule": "shared_objects", "objects": 30, "columns": 0, "labels": 0}
    # The sites.
    for site in SITES:
        results = played.sites[site].site_files.settings.results / job.name
        report = json.loads((results / "report.json").read_text())
        assert (report["objects"], report["objects_in_fit"]) == (55, 25)
        assert report["excluded"] == [{"rule": "shared_objects", "objects": 30, "columns": [], "labels": 0}]
        own, marks = memberships(played, site, job.name)
        assert marks.count("1") == 30
        assert np.isfinite(own).all()
        shown = Previews(played.sites[site].site_files.settings.state).read(job.name)
        assert shown is not None
        assert shown.warnings == ()
        assert [(e.rule, e.objects) for e in shown.excluded] == [("shared_objects", 30)]


@pytest.mark.promise("Objects that several sites hold take no part in totals, unless the sites that hold them opt in.")
def test_an_object_that_one_site_leaves_out_stays_in_the_fit_of_those_that_opted_in(tmp_path: Path) -> None:
    played = seated(tmp_path, parted())
    (tmp_path / "west" / "policy.toml").write_text('shared_objects = "exclude"\n')
    record = run(played, job_of(played, privacy="masked"))
    assert (record.state, record.reason) == ("done", "")
    result = json.loads(record.result)
    assert (result["objects"], result["objects_in_fit"]) == (130, 130)
    assert [(e["site"], e["rule"], e["objects"]) for e in result["excluded"]] == [("west", "shared_objects", 30)]


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
def test_a_job_over_shared_objects_alone_is_refused_and_names_the_opt_in(tmp_path: Path) -> None:
    played = seated(tmp_path, {site: table(site) for site in SITES}, "min_sites = 3\n")
    record = run(played, job_of(played))
    assert (record.state, record.rule, record.exit_code) == ("failed", "shared_objects", 6)
    assert 'shared_objects = "totals" in policy.toml' in record.reason
    assert not answers(played)


def test_whoever_opted_in_is_warned_before_totals_of_shared_objects_are_opened(tmp_path: Path) -> None:
    played = seated(tmp_path, parted(), f'{OPT_IN}consent = "ask"\n')
    played.submit(job_of(played).definition(), "job")
    played.run()
    shown = Previews(played.sites["east"].site_files.settings.state).read("job")
    assert shown is not None
    assert shown.waits_for_consent
    [warning] = shown.warnings
    assert "totals of 30 objects that several sites hold would be opened" in warning
    assert "ARI 1.0" in warning
    assert "docs/threat-model.md" in warning
    assert not answers(played)


# What is refused.


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
@pytest.mark.parametrize(
    ("rule", "tables", "policy", "keys"),
    [
        ("min_sites", {s: table(s, columns=6) for s in SITES[:2]}, "", {}),
        ("min_sites", {s: table(s, slice(0, 15), columns=6) for s in SITES}, "", {}),
        ("min_objects", {s: table(s, slice(0, 30) if s != "west" else slice(25, 60), 6) for s in SITES}, "", {}),
        ("min_foreign_columns", {s: table(s, columns=1) for s in SITES}, "", {}),
        ("weakest_privacy", {s: table(s) for s in SITES}, "", {"privacy": "plain"}),
        ("weakest_privacy", {s: table(s) for s in SITES}, 'weakest_privacy = "blind"\n', {}),
        ("models", {s: table(s) for s in SITES}, 'models = ["bce"]\n', {"model": "mixture"}),
        ("coordinators", {s: table(s) for s in SITES}, 'coordinators = ["another"]\n', {}),
    ],
)
def test_a_rule_refuses_by_its_name_before_a_sum_has_left(
    tmp_path: Path, rule: str, tables: dict[str, ce.LabelTable], policy: str, keys: dict[str, Any]
) -> None:
    played = seated(tmp_path, tables, f'{OPT_IN}below_minimum = "refuse"\n{policy}')
    record = run(played, job_of(played, **keys))
    assert (record.state, record.rule, record.exit_code) == ("failed", rule, 6)
    assert not answers(played)


@pytest.mark.promise("After the first masked word every failure of a site is told in the same bytes.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize(
    ("rule", "missing", "policy"),
    [("min_foreign_columns", 0.35, 'below_minimum = "refuse"\n'), ("max_rounds", 0.0, "max_rounds = 5\n")],
)
def test_a_rule_that_refuses_after_the_counts_is_named_at_the_site_only(
    tmp_path: Path, rule: str, missing: float, policy: str, privacy: str
) -> None:
    """Counts are totals, too: the coordinator hears that a site cannot go on, and nothing of the reason."""
    played = seated(tmp_path, {s: table(s, missing=missing) for s in SITES}, OPT_IN + policy)
    record = run(played, job_of(played, privacy=privacy))
    assert (record.state, record.rule, record.exit_code) == ("failed", "", 7)
    frames = [frame.refusal for data in played.up_recording for frame in [pb.SiteFrame.FromString(data)]]
    told = {(refusal.exit_code, refusal.rule, refusal.sentence) for refusal in frames if refusal.job}
    assert told == {(7, "", CANNOT_GO_ON)}
    named = [JobIndex(own.site_files.settings.state).find("job") for own in played.sites.values()]
    assert rule in {entry.rule for entry in named if entry is not None and entry.state == "refused"}
    steps = {answer.step for answer in answers(played)}
    assert rule == "max_rounds" or steps <= {pb.STEP_KEYS, pb.STEP_OPEN, pb.STEP_COUNTS}


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
def test_a_job_of_which_nothing_would_be_left_is_refused(tmp_path: Path) -> None:
    played = seated(tmp_path, {s: table(s, columns=1) for s in SITES})
    record = run(played, job_of(played))
    assert (record.state, record.rule) == ("failed", "min_foreign_columns")
    assert not answers(played)


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
def test_a_diffused_start_is_refused_where_the_coordinator_sees_totals(tmp_path: Path) -> None:
    played = seated(tmp_path, {s: table(s) for s in SITES})
    record = run(played, job_of(played, model="bc3e", classes=("a", "b"), start="diffused"))
    assert (record.state, record.rule) == ("failed", "diffused start")


# One roster per label file.


@pytest.mark.promise("A label file is contributed under one roster unless a person allows another.")
def test_a_label_file_is_contributed_under_one_roster_only(tmp_path: Path) -> None:
    played = seated(tmp_path, {s: table(s) for s in SITES}, OPT_IN + "max_definitions = 2\n")
    assert run(played, job_of(played, "first")).state == "done"
    assert run(played, job_of(played, "again")).state == "done"
    fewer = ce.Job(name="fewer", clusters=3, restarts=1, sites=SITES[:3])
    record = run(played, fewer)
    assert (record.state, record.rule) == ("failed", "one roster per label file")
    for site in SITES[:3]:
        Rosters(played.sites[site].site_files.settings.state).allow(SITES[:3], "allowed")
    allowed = ce.Job(name="allowed", clusters=3, restarts=1, sites=SITES[:3], max_iterations=3)
    assert run(played, allowed).state == "done"
    kinds = [line["kind"] for line in entries(played.sites["east"].site_files.settings.state / FILE_NAME)]
    assert kinds.count("allow-roster") == 1


# Consent.


@pytest.mark.promise("A job waits for consent where the policy asks for it, and consent holds for that job only.")
def test_a_job_waits_for_consent_and_shows_what_would_leave(tmp_path: Path) -> None:
    played = seated(tmp_path, {s: table(s) for s in SITES}, f'{OPT_IN}consent = "ask"\n')
    job = job_of(played, halving=False)
    assert run(played, job).state == "aligning"
    assert not answers(played)
    for site in SITES:
        settings = played.sites[site].site_files.settings
        preview = Previews(settings.state).read("job")
        assert preview is not None
        assert preview.waits_for_consent
        assert {array.name for array in preview.arrays} >= {
            "block/0/sums",
            "global/bound",
            "block/0/labels",
        }
        assert all(array.contributors == SITES and array.mode == "masked" for array in preview.arrays)
        assert all(met.found >= met.required for array in preview.arrays for met in array.rules)
        Consents(settings.state).decide("job", bytes.fromhex(preview.job_digest), preview.sites, "approved")
        for frame in played.sites[site].site_attempts["job"].receive("reconsider", None):
            session = played.sites[site].session
            assert session is not None
            played.up.append((session, frame.SerializeToString()))
    played.run()
    assert played.machine.records["job"].state == "done"
    # What left is what was announced.
    for site in SITES:
        settings = played.sites[site].site_files.settings
        preview = Previews(settings.state).read("job")
        assert preview is not None
        shapes = {array.name: array.shape for array in preview.arrays}
        for line in entries(settings.state / FILE_NAME):
            for name, array in line.get("arrays", {}).items():
                if name == "pseudonyms" or name.startswith("box/"):  # before anything was computed
                    continue
                assert tuple(array["shape"])[-1] == shapes[name][-1]
                assert tuple(array["contributors"]) == SITES


def test_a_declined_job_is_refused(tmp_path: Path) -> None:
    played = seated(tmp_path, {s: table(s) for s in SITES}, f'{OPT_IN}consent = "ask"\n')
    job = job_of(played)
    Consents(played.sites["west"].site_files.settings.state).decide("job", ce_digest(job), SITES, "declined")
    record = run(played, job)
    assert (record.state, record.rule) == ("failed", "consent")


@pytest.mark.promise("A job waits for consent where the policy asks for it, and consent holds for that job only.")
def test_consent_is_to_one_job_and_no_other(tmp_path: Path) -> None:
    played = seated(tmp_path, {s: table(s) for s in SITES}, f'{OPT_IN}consent = "ask"\n')
    for site in SITES:
        other = ce_digest(job_of(played, clusters=4))
        Consents(played.sites[site].site_files.settings.state).decide("job", other, SITES, "approved")
    record = run(played, job_of(played))
    assert (record.state, record.rule) == ("failed", "consent")


def ce_digest(job: ce.Job) -> bytes:
    return hashlib.sha256(job.definition()).digest()


# Broken streams and lost memories.


@pytest.mark.promise("Lost, repeated and late frames, broken and stalled streams change no bit.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize("seed", range(3))
def test_broken_streams_and_lost_memories_change_nothing(tmp_path: Path, privacy: str, seed: int) -> None:
    tables = {site: table(site, missing=0.2) for site in SITES}
    played = seated(tmp_path, tables)
    job = job_of(played, privacy=privacy)
    played.submit(job.definition())
    rng, lost = Random(seed), 0
    while played.step():
        if rng.random() < 0.05 and lost < 12:
            site = rng.choice(SITES)
            played.lose_stream(site)
            if rng.random() < 0.15:
                played.lose_memory(site)
            played.connect(site)
            lost += 1
    assert lost > 3
    assert played.machine.records["job"].state == "done"
    assert_as_simulated(played, job, tables, {})
    for played_site in played.sites.values():
        assert verify(played_site.site_files.settings.state / FILE_NAME, played_site.site_files.certificate).ok
