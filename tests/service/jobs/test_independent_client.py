"""A site that was written from the documents alone (tests/independent) takes part in jobs beside real daemons.

It imports nothing of ce. What every site writes is what a simulation with the same secrets gives.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support.processes import PATIENCE_S, Deployment, free_port

import ce
from ce.transport.frames import PROTOCOL
from ce_proto.v1 import site_pb2, site_pb2_grpc

INDEPENDENT = Path(__file__).parents[2] / "independent"
DAEMONS = ("north", "south")
SITES = ("east", *DAEMONS, "west")  # east and west are the independent site: first by name, and last
SECRETS = {site: hashlib.sha256(f"independent {site}".encode()).digest() for site in SITES}
OBJECTS, COLUMNS = 40, 6


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("independent"), SITES, SECRETS)
    try:
        deployment.start("hub")
        for site in DAEMONS:
            deployment.start(site)
        for site in DAEMONS:
            deployment.processes[site].wait_for("connected")
        yield deployment
    finally:
        deployment.close()


class IndependentSite:
    """A process of the independent client under the name of one site of a deployment."""

    def __init__(self, deployment: Deployment, site: str, **more: Any) -> None:
        home = deployment.directory / site
        files = {
            "key": "site.key",
            "certificate": "site.pem",
            "ca": "ca.pem",
            "peers": "peers.toml",
            "secret": "secret",
        }
        config = {
            "site": site,
            "coordinator": deployment.address,
            "labels": str(deployment.directory / f"{site}.csv"),
            "consensus": str(home / "consensus.csv"),
            **{key: str(home / file) for key, file in files.items()},
            **more,
        }
        (home / "config.json").write_text(json.dumps(config))
        command = [sys.executable, str(INDEPENDENT / "site_client.py"), str(home / "config.json")]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> IndependentSite:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> tuple[int, str, str]:
        """Exit code, output and errors."""
        output, errors = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, output, errors


def owners(layout: str, sites: int, rng: np.random.Generator, objects: int) -> np.ndarray:
    """Which site holds each cell."""
    if layout == "row":
        return np.tile(rng.integers(0, sites, (objects, 1)), (1, COLUMNS))
    if layout == "column":
        return np.tile(np.arange(COLUMNS) % sites, (objects, 1))
    return rng.integers(0, sites, (objects, COLUMNS))


def label_files(
    directory: Path,
    layout: str,
    roster: tuple[str, ...],
    seed: int,
    ids: str = "objet nº {} é",
    objects: int = OBJECTS,
) -> dict[str, ce.LabelTable]:
    """Noisy labels of three groups, a fifth of them missing, one object without any; half of the columns are text."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, objects)
    labels = rng.integers(0, 4, (COLUMNS, 3))[:, truth].T
    noisy = rng.random(labels.shape) < 0.35
    labels[noisy] = rng.integers(0, 4, noisy.sum())
    labels[rng.random(labels.shape) < 0.2] = -1
    labels[7] = -1
    owner = owners(layout, len(roster), rng, objects)
    tables = {}
    for s, site in enumerate(roster):
        # In the column layout every site lists every object, also those without a label there.
        listed = rng.permutation(np.flatnonzero((owner == s).any(axis=1)))
        held = np.flatnonzero(((owner == s) & (labels >= 0)).any(axis=0))
        path = directory / f"{site}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *(f"c{c}" for c in held)])
            for i in listed:
                cells = [labels[i, c] if owner[i, c] == s else -1 for c in held]
                spelled = ["" if x < 0 else f"é{x}" if c % 2 else str(x) for c, x in zip(held, cells, strict=True)]
                row = [ids.format(i), *spelled]
                # The same letters, as another system writes them.
                writer.writerow(row if site in DAEMONS else [unicodedata.normalize("NFD", cell) for cell in row])
        tables[site] = ce.LabelTable.from_csv(path)
    return tables


def consensus(deployment: Deployment, site: str, job: str) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """Ids, labels and memberships, without objects that a rule left out; and which were, of all."""
    home = deployment.directory / site
    path = home / "results" / job / "consensus.csv" if site in DAEMONS else home / "consensus.csv"
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    assert header[:6] == ["id", "label", "confidence", "p0", "p1", "p2"]
    left_out = np.array(["excluded" in header and row[6] == "1" for row in rows])
    rows = [row for row, out in zip(rows, left_out, strict=True) if not out]
    memberships = np.array([[float(p) for p in row[3:6]] for row in rows])
    return [row[0] for row in rows], [row[1] for row in rows], memberships, left_out


@pytest.mark.promise("A site written from the documents alone takes part in jobs beside real daemons.")
# Seeds of which the three starts stop in different rounds and steps are taken back. The winner stops before another
# one; where starts are dropped, it is the last one.
@pytest.mark.parametrize(
    ("layout", "independent", "seed", "drops", "more"),
    [
        ("column", "west", 32, False, {"local_loops": 2, "halving": False}),
        ("column", "west", 4, True, {}),
        ("row", "east", 28, False, {}),
        ("arbitrary", "west", 42, False, {}),
    ],
)
def test_every_result_is_that_of_a_simulation(
    deployment: Deployment, layout: str, independent: str, seed: int, drops: bool, more: Mapping[str, Any]
) -> None:
    roster = tuple(sorted((*DAEMONS, independent)))
    tables = label_files(deployment.directory, layout, roster, seed)
    deployment.allow(*roster)
    name = f"independent-{layout}-{seed}"
    job = ce.Job(name=name, clusters=3, restarts=3, sites=roster[::-1], max_iterations=90, **more)
    with IndependentSite(deployment, independent) as client:
        status = deployment.run(job)
        assert (status.state, status.reason, status.layout) == ("done", "", layout)
        code, output, errors = client.end()
    assert (code, errors) == (0, "")
    passed = json.loads(output.splitlines()[-1])
    assert passed["retries"] > 0, "a step must be taken back"
    # The dropped ones stop together.
    assert len(set(passed["stopped"])) == (2 if drops else job.restarts), "starts must stop in different rounds"
    last = passed["stopped"][passed["winner"]] == passed["rounds"]
    assert last == drops, "without dropped starts, the end must go back to a state that was put aside before"
    simulated = ce.simulate(job, tables, privacy="plain", secrets=SECRETS)
    for site in roster:
        check(deployment, site, job.name, simulated.sites[site])


def check(deployment: Deployment, site: str, job: str, expected: Any) -> None:
    """Compare what a site has written, objects that a rule left out excepted."""
    ids, labels, memberships, _ = consensus(deployment, site, job)
    assert ids == expected.ids.tolist()
    assert labels == ["" if label == -1 else str(label) for label in expected.labels.tolist()]
    np.testing.assert_allclose(memberships, expected.memberships, rtol=0, atol=1e-9)


@pytest.mark.promise("A site written from the documents alone takes part in jobs beside real daemons.")
# As the last member of blocks, which gets the dealer's corrections, and as the first, which draws their keys.
@pytest.mark.parametrize(
    ("layout", "independent", "seed"),
    [("arbitrary", "west", 8), pytest.param("column", "east", 11, marks=pytest.mark.slow)],
)
def test_labels_of_a_sealed_job_are_the_same_at_all_sites(
    deployment: Deployment, layout: str, independent: str, seed: int
) -> None:
    roster = tuple(sorted((*DAEMONS, independent)))
    tables = label_files(deployment.directory, layout, roster, seed, f"sealed {layout} {{}} é", 600)
    deployment.allow(*roster)
    job = ce.Job(name=f"sealed-{layout}", model="pairs", clusters=3, sites=roster, epsilon=100.0)
    with IndependentSite(deployment, independent) as client:
        status = deployment.run(job)
        assert (status.state, status.reason) == ("done", "")
        code, output, errors = client.end()
    assert (code, errors) == (0, "")
    assert json.loads(output.splitlines()[-1]) == {"rounds": 6 + 5 * 2 + 5, "revision": 0}
    written = {site: sealed_consensus(deployment, site, job.name) for site in roster}
    assert {site: list(found) for site, found in written.items()} == {s: t.ids.tolist() for s, t in tables.items()}
    holders: dict[str, list[str]] = {}
    for site, found in written.items():
        for id_ in found:
            holders.setdefault(id_, []).append(site)
    together = [id_ for id_, sites in holders.items() if len(sites) > 1 and independent in sites]
    assert len(together) > 200
    for id_, sites in holders.items():
        assert len({written[site][id_][0] for site in sites}) == 1, "members of a block have one label"
        # Memberships of what a site alone holds; of shared objects the label is all that it knows.
        assert {written[site][id_][1] == "" for site in sites} == {len(sites) > 1}
    assert len({label for label, _ in written[independent].values()} - {""}) > 1
    assert written[roster[0]].get(f"sealed {layout} 7 é", ("", ""))[0] == "", "it has no label anywhere"


def sealed_consensus(deployment: Deployment, site: str, job: str) -> dict[str, tuple[str, str]]:
    """Label and confidence by id, in the order of the file, once the site has heard that the job is done."""
    home = deployment.directory / site
    if site in DAEMONS:
        deployment.processes[site].wait_for("job over", job=job, state="done")
    path = home / "results" / job / "consensus.csv" if site in DAEMONS else home / "consensus.csv"
    with path.open(newline="", encoding="utf-8") as file:
        _, *rows = list(csv.reader(file))
    return {row[0]: (row[1], row[2]) for row in rows}


def test_sites_are_aligned_again_when_a_daemon_leaves_out_objects(deployment: Deployment) -> None:
    roster = ("north", "south", "west")
    tables = label_files(deployment.directory, "column", roster, seed=11)
    job = ce.Job(name="independent-again", clusters=3, restarts=2, sites=roster, max_iterations=20)
    policy = deployment.directory / "north" / "policy.toml"
    before = policy.read_text()
    policy.write_text(before.replace("min_foreign_columns = 0", "min_foreign_columns = 3"))
    try:
        with IndependentSite(deployment, "west") as client:
            status = deployment.run(job)
            assert (status.state, status.reason) == ("done", "")
            code, output, errors = client.end()
    finally:
        policy.write_text(before)
    assert (code, errors) == (0, "")
    assert json.loads(output.splitlines()[-1])["revision"] == 1
    left_out = consensus(deployment, "north", job.name)[3]
    assert 0 < left_out.sum() < OBJECTS
    tables["north"] = tables["north"].select(np.flatnonzero(~left_out))
    simulated = ce.simulate(job, tables, privacy="plain", secrets=SECRETS)
    for site in roster:
        check(deployment, site, job.name, simulated.sites[site])


def test_the_independent_site_refuses_a_peer_with_another_key_than_the_pinned_one(deployment: Deployment) -> None:
    roster = ("north", "south", "west")
    label_files(deployment.directory, "column", roster, seed=11)
    pins = deployment.directory / "west" / "other-peers.toml"
    pins.write_text(
        re.sub(r'south = "SHA256:.*"', f'south = "SHA256:{"0" * 64}"', (pins.parent / "peers.toml").read_text())
    )
    with IndependentSite(deployment, "west", peers=str(pins)) as client:
        status = deployment.run(ce.Job(name="independent-pins", clusters=3, sites=roster))
        code, _, errors = client.end()
    assert (status.state, status.rule) == ("failed", "changed key of a peer")
    assert code == 6  # docs/exit-codes.md: a rule refused
    assert errors.startswith("refused: the key of south is not the pinned one\n")


def test_a_site_of_another_version_is_refused_by_number_before_anything_is_offered(deployment: Deployment) -> None:
    with IndependentSite(deployment, "west", protocol=2) as client:
        code, output, errors = client.end()
    assert (code, output) == (5, "")
    assert errors.startswith("FAILED_PRECONDITION: ")
    assert "2" in errors
    assert f"version {PROTOCOL}" in errors


class OldCoordinator(site_pb2_grpc.SiteServiceServicer):
    """Answers Hello with another version, and remembers what else a site sends."""

    def __init__(self) -> None:
        self.frames: list[str] = []

    def Connect(self, request_iterator: Iterator[site_pb2.SiteFrame], context: Any) -> Iterator[Any]:
        self.frames.append(next(request_iterator).WhichOneof("frame"))
        yield site_pb2.CoordinatorFrame(welcome=site_pb2.Welcome(coordinator="hub", protocol=1))
        try:
            self.frames += [frame.WhichOneof("frame") for frame in request_iterator]
        except grpc.RpcError:
            self.frames.append("cancelled")


def test_a_coordinator_of_another_version_is_sent_nothing_but_hello(deployment: Deployment) -> None:
    key, chain = ((deployment.hub / f"coordinator.{end}").read_bytes() for end in ("key", "pem"))
    authority = (deployment.directory / "west" / "ca.pem").read_bytes()
    coordinator, port = OldCoordinator(), free_port()
    server = grpc.server(ThreadPoolExecutor(2))
    site_pb2_grpc.add_SiteServiceServicer_to_server(coordinator, server)
    credentials = grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    try:
        with IndependentSite(deployment, "west", coordinator=f"127.0.0.1:{port}") as client:
            code, _, errors = client.end()
    finally:
        server.stop(None).wait()
    assert (code, errors) == (4, "protocol: this site speaks 4, the coordinator 1\n")
    assert [frame for frame in coordinator.frames if frame != "cancelled"] == ["hello"]


def test_the_independent_site_imports_nothing_of_ce() -> None:
    own = {path.stem for path in INDEPENDENT.glob("*.py")}
    allowed = {*sys.stdlib_module_names, "blake3", "cryptography", "grpc", "numpy", "ce_proto", *own}
    for path in INDEPENDENT.glob("*.py"):
        imported = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(node.module or "")
        assert {name.split(".")[0] for name in imported} <= allowed, path.name
        assert not imported & {"importlib"}, path.name
