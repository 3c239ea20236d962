"""What goes wrong by mistake: each time a sentence that says what to do, the exit code for it, and no traceback.

Nothing here relies on permissions that root does not have: what cannot be written is a file where a directory should
be, or a directory where a file should be.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.commands import (
    CLIENT,
    COORDINATOR,
    Run,
    finished,
    read_until,
    run_fixture,  # noqa: F401 (a fixture)
    started,
    write_job,
)
from support.forged_certificates import SERVER, FalseServer, forge
from support.processes import Deployment, free_port

import ce
from ce.errors import ConfigError
from ce.identity.authority import Authority
from ce.service.settings import check_address
from ce.testing import FrameByFrame, make_sites
from ce.transport.frames import PROTOCOL
from ce.transport.tls import TlsCredentials
from ce_client.config import ClientSettings
from ce_client.daemon.site_files import SiteFiles
from ce_coordinator.core.limits import Limits
from ce_proto.v1 import site_pb2, site_pb2_grpc

SITES = ("east", "north", "south")


def write_labels(path: Path, site: str, n: int = 40, shared_ids: bool = True) -> None:
    rows = [f"{'' if shared_ids else site}object{i},{i % 2},{i % 3}" for i in range(n)]
    path.write_text("\n".join([f"id,{site}_1,{site}_2", *rows]) + "\n")


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("deployment")
    for site in SITES:
        write_labels(directory / f"{site}.csv", site)
    with Deployment(directory, SITES) as deployment:
        yield deployment


@pytest.fixture(name="submit")
def _submit(run: Run, deployment: Deployment, tmp_path: Path) -> Run:
    """Submit a job to the deployment, and watch it to its end."""

    def submit(**keys: Any) -> Any:
        job = write_job(tmp_path / "job.toml", **{"sites": SITES, **keys})
        return run("ce-coordinator", "submit", job, "--watch", "--config", deployment.hub)

    return submit


@pytest.fixture(name="hub")
def _hub(run: Run, tmp_path: Path) -> Path:
    """A directory as `ce-coordinator init` makes it; nothing runs there."""
    listen = f"127.0.0.1:{free_port()}"
    assert run("ce-coordinator", "init", tmp_path / "hub", "--listen", listen).code == 0
    return tmp_path / "hub"


@pytest.fixture(name="north")
def _north(tmp_path: Path) -> Path:
    """The directory of a site that has all that it needs but a coordinator."""
    write_labels(tmp_path / "labels.csv", "north")
    make_sites(tmp_path, {"north": tmp_path / "labels.csv", "south": tmp_path / "labels.csv"})
    return tmp_path / "north"


# Jobs.


@pytest.mark.promise("Every mistake in a file or a command is a sentence that says what to do, with its exit code.")
@pytest.mark.parametrize(
    ("keys", "code", "sentence"),
    [
        (
            {"sites": ("east", "nroth")},
            3,
            "site 'nroth' is not known here; did you mean north?: sites become known",
        ),
        ({"sites": ("east", "atlantis")}, 3, "site 'atlantis' is not known here: sites become known when their"),
        ({"sites": ("East",)}, 4, "'East' cannot be a name: use 1 to 63 lower-case letters"),
        ({"sites": ()}, 4, "sites is missing: name the sites that take part"),
        ({"sites": tuple(f"site{i}" for i in range(201))}, 4, "names more than 200 sites (limits.sites_per_job)"),
        ({"clusers": 3}, 4, "unknown key clusers; did you mean clusters?"),
        ({"deadlines.enrol": 3}, 4, "unknown key deadlines.enrol; did you mean deadlines.enrol_s?"),
        ({"clusters": None}, 4, "clusters is missing: how many consensus clusters should bce find?"),
        ({"clusters": 10**18}, 4, "clusters is a whole number from 1 to 1,000,000"),
        ({"clusters": "5"}, 4, "clusters is a whole number from 1 to 1,000,000"),
        ({"restarts": 10**9}, 4, "restarts is a whole number from 1 to 10,000"),
        ({"max_iterations": 10**12}, 4, "max_iterations is a whole number from 0 to 1,000,000"),
        ({"deadlines.job_s": 1e300}, 4, "deadlines.job_s is a positive number of seconds, at most"),
        ({"model": "bc3e", "clusters": None, "classes": 10**12}, 4, "classes is at least 2, and at most 1,000,000"),
        ({"model": "bc3e", "clusters": None}, 4, "classes is missing: a job over several organisations names"),
        ({"name": "../../etc"}, 4, "name is a text of 1 to 100 printable characters"),
        ({"name": "-rf"}, 4, "name is a text of 1 to 100 printable characters"),
        ({"clusters": 1000}, 3, "1,000 consensus clusters or classes for 40 objects: ask for fewer"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_job_that_cannot_be(submit: Run, keys: dict[str, Any], code: int, sentence: str) -> None:
    refused = submit(**{"name": "impossible", **keys})
    assert refused.code == code
    assert sentence in refused.sentence


def test_a_file_that_is_no_job(run: Run, deployment: Deployment, tmp_path: Path) -> None:
    for name, content, sentence in (
        ("absent.toml", None, "absent.toml: cannot be read: No such file or directory"),
        ("labels.csv", b"id,a\nx,1\n", "labels.csv: is not TOML"),
        ("binary.toml", bytes(range(256)), "binary.toml: is not TOML"),
        ("large.toml", b"# and so on\n" * 2**20, "large.toml: is larger than any job: check that it is the right file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        refused = run("ce-coordinator", "submit", tmp_path / name, "--config", deployment.hub)
        assert refused.code == 4
        assert sentence in refused.sentence
    (tmp_path / "folder.toml").mkdir()
    refused = run("ce-coordinator", "submit", tmp_path / "folder.toml", "--config", deployment.hub)
    assert (refused.code, refused.sentence) == (4, f"{tmp_path / 'folder.toml'}: cannot be read: Is a directory")


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (
            Limits(round_bytes=1_000_000),
            "one round of this job would take 0.1 GB at the coordinator, whose limits.round_bytes is 0.0 GB: fewer "
            "restarts or clusters need less",
        ),
        (Limits(objects_per_site=39), "enrols 40 objects; this coordinator takes 1 to 39 (limits.objects_per_site)"),
        (Limits(columns_per_site=1), "enrols more columns than limits.columns_per_site"),
        (Limits(categories_per_column=2), "has more categories than limits.categories_per_column"),
    ],
)
def test_a_job_that_is_too_large_for_the_coordinator_is_bad_input(
    tmp_path: Path, limits: Limits, sentence: str
) -> None:
    files = {site: tmp_path / f"{site}.csv" for site in SITES}
    for site, path in files.items():
        write_labels(path, site)
    table = FrameByFrame(make_sites(tmp_path, files), limits)
    table.connect()
    table.submit(ce.Job(name="large", clusters=30, restarts=10_000, sites=SITES, privacy="plain").definition())
    table.run()
    record = table.machine.records["large"]
    assert (record.state, record.exit_code) == ("failed", 3)
    assert sentence in record.reason


def test_a_job_that_a_site_has_no_memory_for_is_refused_before_it_is_taken(tmp_path: Path) -> None:
    files = {site: tmp_path / f"{site}.csv" for site in SITES}
    for site, path in files.items():
        write_labels(path, site, shared_ids=False)
    settings = make_sites(tmp_path, files)
    home = tmp_path / "north" / "client.toml"
    home.write_text(f"largest_state = 10_000\n{home.read_text()}")
    settings["north"] = ClientSettings.read(home)
    table = FrameByFrame(settings)
    table.connect()
    table.submit(ce.Job(name="large", clusters=5, restarts=50, sites=SITES, privacy="plain").definition())
    table.run()
    record = table.machine.records["large"]
    assert (record.state, record.exit_code, record.rule) == ("failed", 6, "largest_state")
    assert re.fullmatch(
        r"north: the job would take 0\.0 GB of memory or more here, and this site gives it 0\.0 GB: fewer restarts or "
        r"clusters need less",
        record.reason,
    )


# Keys of files.


@pytest.mark.promise("Every mistake in a file or a command is a sentence that says what to do, with its exit code.")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lsten = 'localhost:1'\n", "unknown key lsten; did you mean listen?"),
        ("level = 'info'\n", "unknown key level; did you mean log.level?"),
        ("[log]\nlevel = 'loud'\n", "log.level is one of debug, info, warning, error"),
        ("[log]\nformat = 'xml'\n", "log.format is one of auto, text, json"),
        ("log = 'info'\n", "log is a table: write [log], and its keys below it"),
        ("threads = '2'\n", "threads is a whole number, not a text"),
        ("threads = 100_000\n", "threads is a whole number from 1 to 1,024"),
        ("min_cluster = 0\n", "min_cluster is a whole number of at least 1"),
        ("listen = 'localhost'\n", "listen is host:port, like hub.example.org:8443"),
        ("[operator]\naddress = 'localhost:'\n", "operator.address is host:port"),
        ("[operator]\ntimeout_s = -1\n", "operator.timeout_s is more than 0 and at most 86,400 seconds"),
        ("[limits]\njobs_at_once = 0\n", "limits.jobs_at_once is a whole number of at least 1"),
        ("listen = \n", "is not TOML"),
    ],
)
def test_a_mistake_in_coordinator_toml(run: Run, hub: Path, text: str, sentence: str) -> None:
    (hub / "coordinator.toml").write_text(text)
    for command in ("serve", "list", "sites"):
        refused = run("ce-coordinator", command, "--config", hub)
        assert refused.code == 4
        assert refused.sentence.startswith(f"{hub}/coordinator.toml")
        assert sentence in refused.sentence
    checked = run("ce-coordinator", "check", "--config", hub, "--format", "json")
    assert checked.code == 4
    assert sentence in checked.json["checks"][0]["sentence"]


@pytest.mark.promise("Every mistake in a file or a command is a sentence that says what to do, with its exit code.")
@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("client.toml", "label = 'x'\n", "unknown key label; did you mean labels?"),
        ("client.toml", "[labels]\nfil = 'x'\n", "unknown key labels.fil; did you mean labels.file?"),
        ("client.toml", "threads = 0\n", "threads is a whole number from 1 to 1,024"),
        ("client.toml", "largest_state = 0\n", "largest_state is a whole number of at least 1"),
        ("policy.toml", "min_site = 2\n", "unknown key min_site; did you mean min_sites?"),
        ("policy.toml", "weakest_privacy = 'none'\n", "weakest_privacy is one of plain, masked, blind"),
        ("policy.toml", "min_sites = 0\n", "min_sites is a whole number of at least 1"),
        ("policy.toml", "models = ['kmeans']\n", "models are among bce, bc3e, mixture"),
        ("policy.toml", None, "cannot be read: No such file or directory"),
        ("peers.toml", "South = 'SHA256:00'\n", "'South' cannot be a name"),
        ("peers.toml", "south = 'SHA256:00'\n", "this is not a fingerprint"),
        ("peers.toml", "south = \n", 'expected lines NAME = "SHA256:..."'),
    ],
)
def test_a_mistake_in_a_file_of_a_site(run: Run, north: Path, file: str, text: str | None, sentence: str) -> None:
    given = 'name = "north"\ncoordinator = "localhost:1"\n' if file == "client.toml" else ""
    (north / file).unlink()
    if text is not None:
        (north / file).write_text(given + text)
    refused = run("ce-client", "run", "--config", north)
    assert refused.code == 4
    assert refused.sentence.startswith(f"{north}/{file}")
    assert sentence in refused.sentence
    checked = run("ce-client", "check", "--config", north, "--format", "json")
    assert checked.code == 4
    assert any(sentence in check["sentence"] for check in checked.json["checks"] if not check["ok"])


def test_a_policy_that_breaks_while_the_daemon_runs_stops_no_other_site(
    submit: Run, run: Run, deployment: Deployment
) -> None:
    policy = deployment.directory / "east" / "policy.toml"
    kept = policy.read_text()
    try:
        policy.write_text("min_sits = 3\n")
        refused = submit(name="broken policy")
    finally:
        policy.write_text(kept)
    assert (refused.code, refused.sentence) == (
        4,
        "east: the configuration of this site cannot be used; its log says why",
    )
    deployment.processes["east"].wait_for("job over", job="broken policy")
    shown = run("ce-client", "show", "broken policy", "--config", deployment.directory / "east").out
    assert "policy.toml: unknown key min_sits; did you mean min_sites?" in shown
    assert submit(name="mended policy", max_iterations=2).code == 0


@pytest.mark.parametrize(
    "address",
    [
        *("", ":", "host", "host:", ":80", "a b:80", "::1:80", "[::1:80", "http://a:80"),
        *("host:0x50", "host:80 ", "host:٣", "host:65536", "host:" + "9" * 5000),
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^key is host:port, like hub\.example\.org:8443$"):
        check_address("key", address)


@pytest.mark.parametrize("address", ["a:1", "127.0.0.1:65535", "[::1]:80", "hub.example.org:8443"])
def test_what_is_an_address(address: str) -> None:
    check_address("key", address)


# Labels that change or vanish between check and run.


def test_labels_that_vanish_or_change_after_the_check(submit: Run, run: Run, deployment: Deployment) -> None:
    labels, north = deployment.directory / "north.csv", deployment.directory / "north"
    kept = labels.read_text()
    assert run("ce-client", "check", "--config", north).code == 0
    mistakes: list[tuple[str, Callable[[], object], str]] = [
        ("gone", labels.unlink, f"{labels}: cannot be read: No such file or directory"),
        ("empty", lambda: labels.write_text(""), f"{labels}"),
        ("ragged", lambda: labels.write_text("id,north_1\na,1,2\n"), f"{labels}, row 2"),
        ("twice", lambda: labels.write_text("id,north_1\na,1\na,2\n"), f"{labels}, row 3"),
        ("no id", lambda: labels.write_text("key,north_1\na,1\n"), f"{labels}"),
        ("binary", lambda: labels.write_bytes(bytes(range(256))), f"{labels}"),
        ("folder", lambda: (labels.unlink(), labels.mkdir()), f"{labels}"),
    ]
    try:
        for name, mistake, where in mistakes:
            mistake()
            refused = submit(name=f"labels {name}")
            assert (refused.code, refused.sentence) == (
                3,
                "north: the labels of this site cannot be used; its log says why",
            )
            deployment.processes["north"].wait_for("job over", job=f"labels {name}")
            own = run("ce-client", "show", f"labels {name}", "--config", north, "--format", "json").json
            assert own["state"] == "refused"
            assert own["reason"].startswith(where)
            checked = run("ce-client", "check", "--config", north, "--format", "json")
            assert checked.code == 3
            assert [check["check"] for check in checked.json["checks"] if not check["ok"]] == ["labels"]
    finally:
        if labels.is_dir():
            labels.rmdir()
        labels.write_text(kept)
    # Others, with other labels of their own making, are no mistake.
    write_labels(labels, "north", n=30)
    assert submit(name="labels changed", max_iterations=2).code == 0
    labels.write_text(kept)


def test_labels_that_vanish_while_a_job_runs_are_not_missed(deployment: Deployment) -> None:
    labels = deployment.directory / "north.csv"
    kept = labels.read_text()
    try:
        job = ce.Job(name="read once", clusters=2, sites=SITES, privacy="plain", tolerance=0, max_iterations=100)
        deployment.submit(job)
        deployment.processes["hub"].wait_for("job running", job="read once")
        labels.unlink()
        assert deployment.wait("read once").state == "done"
    finally:
        labels.write_text(kept)


# Places that cannot be had.


def test_a_port_in_use(run: Run, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("CE_COORDINATOR_LISTEN", address)
        refused = run("ce-coordinator", "serve", "--config", hub)
        sentence = (
            f"cannot listen at {address}: Address already in use: stop what is there, or change listen in the "
            "configuration"
        )
        assert (refused.code, refused.sentence) == (4, sentence)
        checked = run("ce-coordinator", "check", "--config", hub, "--format", "json")
        assert checked.code != 0
        told = {check["check"]: check for check in checked.json["checks"]}
        assert told["listen"]["sentence"] == sentence
    monkeypatch.setenv("CE_COORDINATOR_LISTEN", "192.0.2.1:1")
    refused = run("ce-coordinator", "serve", "--config", hub)
    assert refused.code == 4
    assert "cannot listen at 192.0.2.1:1: Cannot assign requested address" in refused.sentence


def test_a_directory_that_is_a_file(run: Run, hub: Path, north: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept\n")
    for words in (["ce-coordinator", "init"], ["ce-client", "init", "--name", "x"]):
        for directory in (file, file / "below"):
            refused = run(*words, directory)
            assert refused.code == 4
            assert re.search(
                rf"{directory} cannot be made a directory: (File exists|Not a directory)", refused.sentence
            )
    request = tmp_path / "x.csr"
    assert run("ce-client", "init", tmp_path / "x", "--name", "x").code == 0
    shutil.copy(tmp_path / "x" / "x.csr", request)
    refused = run("ce-coordinator", "sign", request, "--config", hub, "--out", file)
    assert refused.code == 4
    assert f"{file} cannot be made a directory" in refused.sentence
    assert not (hub / "authority" / "issued" / "site-x.pem").exists()
    for key in ("results", "state"):
        text = (north / "client.toml").read_text()
        (north / "client.toml").write_text(f'{key} = "{file}"\n{text}')
        refused = run("ce-client", "run", "--config", north)
        assert refused.code == 4
        assert f"{file}: cannot be written: " in refused.sentence
        checked = run("ce-client", "check", "--config", north, "--format", "json")
        assert [c["check"] for c in checked.json["checks"] if not c["ok"] and c["exit_code"] == 4] == [key]
        (north / "client.toml").write_text(text)
    assert file.read_text() == "kept\n"


def test_results_that_have_nowhere_to_go_are_not_computed(submit: Run, run: Run, deployment: Deployment) -> None:
    results = deployment.directory / "south" / "results"
    shutil.rmtree(results, ignore_errors=True)
    try:
        results.write_text("in the way\n")
        refused = submit(name="nowhere")
    finally:
        results.unlink()
    assert (refused.code, refused.sentence) == (
        4,
        "south: the configuration of this site cannot be used; its log says why",
    )
    deployment.processes["south"].wait_for("job over", job="nowhere")
    own = run("ce-client", "show", "nowhere", "--config", deployment.directory / "south").out
    assert f"{results}: cannot be written: File exists: results is a directory that the daemon may write to" in own


def test_a_result_that_cannot_be_written(submit: Run, run: Run, deployment: Deployment, tmp_path: Path) -> None:
    assert submit(name="kept", max_iterations=2).code == 0
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        refused = run("ce-coordinator", "result", "kept", "--out", out, "--config", deployment.hub)
        assert refused.code == 4
        assert f"{out} cannot be made a directory" in refused.sentence
    (tmp_path / "kept.json").mkdir()
    refused = run("ce-coordinator", "result", "kept", "--out", tmp_path, "--config", deployment.hub)
    assert refused.code == 4
    assert f"{tmp_path / 'kept.json'} cannot be written: Is a directory" in refused.sentence


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        (
            "file/store.sqlite",
            "cannot be written: Not a directory; the store needs a directory that the coordinator may",
        ),
        ("nowhere/store.sqlite", "cannot be written: No such file or directory; the store needs a directory"),
        ("file", "is not a database: give the store a path of its own"),
        ("folder", "cannot be written: Is a directory"),
    ],
)
def test_a_store_that_cannot_be_used(
    run: Run, hub: Path, store: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hub / "file").write_text("kept\n")
    (hub / "folder").mkdir()
    monkeypatch.setenv("CE_COORDINATOR_STORE", store)
    refused = run("ce-coordinator", "serve", "--config", hub)
    assert refused.code == 4
    assert refused.sentence.startswith(f"{hub / store}: {sentence}")
    assert (hub / "file").read_text() == "kept\n"
    if store != "nowhere/store.sqlite":  # whose directory could be made
        checked = run("ce-coordinator", "check", "--config", hub, "--format", "json")
        assert [check["check"] for check in checked.json["checks"] if not check["ok"]] == ["store"]


def test_a_second_coordinator_and_the_lock_of_one_that_was_killed(
    run: Run, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(COORDINATOR, "serve", "--config", hub, "--format", "json") as first:
        assert first.stderr is not None
        read_until(first.stderr.fileno(), '"listening"')
        # At the same address, and at another one.
        for listen in (None, f"127.0.0.1:{free_port()}"):
            if listen is not None:
                monkeypatch.setenv("CE_COORDINATOR_LISTEN", listen)
            second = run("ce-coordinator", "serve", "--config", hub)
            assert (second.code, second.sentence) == (
                4,
                f"{hub}/coordinator.sqlite: another coordinator uses this store: stop it, or give this one a store of "
                "its own",
            )
        checked = run("ce-coordinator", "check", "--config", hub, "--format", "json")
        assert "another coordinator uses this store" in checked.json["checks"][-1]["sentence"]
        monkeypatch.undo()
        checked = run("ce-coordinator", "check", "--config", hub)
        assert checked.code == 0
        assert "a coordinator is running there" in checked.out
        first.send_signal(signal.SIGKILL)
        assert finished(first).code == -signal.SIGKILL
    assert (hub / "coordinator.sqlite.lock").exists()
    with started(COORDINATOR, "serve", "--config", hub, "--format", "json") as third:
        assert third.stderr is not None
        read_until(third.stderr.fileno(), '"listening"')
        third.send_signal(signal.SIGTERM)
        assert finished(third).code == 0


# Keys and certificates.


def test_key_files_that_others_can_read(run: Run, hub: Path, north: Path) -> None:
    cases: list[tuple[Path, list[list[object]]]] = [
        (hub / "coordinator.key", [["ce-coordinator", "serve", "--config", hub]]),
        (hub / "operator.key", [["ce-coordinator", command, "--config", hub] for command in ("list", "sites")]),
        (hub / "authority" / "ca.key", [["ce-coordinator", "sign", north / "north.csr", "--config", hub]]),
        (north / "site.key", [["ce-client", command, "--config", north] for command in ("run", "fingerprint")]),
        (north / "secret", [["ce-client", "run", "--config", north]]),
    ]
    assert run("ce-client", "init", hub / "new", "--name", "north").code == 0
    shutil.copy(hub / "new" / "north.csr", north / "north.csr")
    for path, commands in cases:
        path.chmod(0o640)
        for command in commands:
            refused = run(*command)
            assert (refused.code, refused.sentence) == (
                4,
                f"{path} is open to other users: close it with `chmod 600 {path}`",
            )
        path.chmod(0o600)
    (north / "site.key").chmod(0o604)
    checked = run("ce-client", "check", "--config", north, "--format", "json")
    assert "close it with `chmod 600" in checked.json["checks"][1]["sentence"]


def test_an_encrypted_key_without_its_passphrase(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, north = tmp_path / "hub", tmp_path / "north"
    own = ("CE_COORDINATOR_KEY_PASSPHRASE", "CE_COORDINATOR_AUTHORITY_PASSPHRASE", "CE_CLIENT_KEY_PASSPHRASE")
    for variable in own:
        monkeypatch.setenv(variable, "correct horse")
    assert run("ce-coordinator", "init", hub, "--listen", f"127.0.0.1:{free_port()}").code == 0
    assert run("ce-client", "init", north, "--name", "north").code == 0
    cases: list[tuple[str, Path, list[object]]] = [
        (own[0], hub / "coordinator.key", ["ce-coordinator", "serve", "--config", hub]),
        (own[0], hub / "operator.key", ["ce-coordinator", "list", "--config", hub]),
        (own[1], hub / "authority" / "ca.key", ["ce-coordinator", "sign", north / "north.csr", "--config", hub]),
        (own[2], north / "site.key", ["ce-client", "fingerprint", "--config", north]),
        (own[2], north / "site.key", ["ce-client", "run", "--config", north]),
    ]
    for variable, path, command in cases:
        with monkeypatch.context() as patched:
            patched.delenv(variable)
            refused = run(*command)
            assert (refused.code, refused.sentence) == (4, f"{path} is encrypted: set {variable}")
            patched.setenv(variable, "wrong horse")
            refused = run(*command)
            assert refused.code == 4
            assert refused.sentence == f"{path} does not open with this passphrase, or is damaged: set {variable}"
    out = ["--out", tmp_path / "out"]
    assert run("ce-coordinator", "sign", north / "north.csr", "--config", hub, *out).code == 0
    assert run("ce-coordinator", "list", "--config", hub).code == 5, (
        "with the passphrase only the coordinator is missing"
    )
    monkeypatch.setenv(own[0], "correct horse")
    assert run("ce-coordinator", "check", "--config", hub).code == 0


def test_a_passphrase_for_a_key_that_is_not_encrypted(run: Run, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CE_COORDINATOR_KEY_PASSPHRASE", "correct horse")
    refused = run("ce-coordinator", "list", "--config", hub)
    assert refused.code == 4
    assert "operator.key is not encrypted although a passphrase is given" in refused.sentence


@pytest.mark.promise("Every mistake in a file or a command is a sentence that says what to do, with its exit code.")
def test_the_files_of_another_authority(run: Run, deployment: Deployment, hub: Path, tmp_path: Path) -> None:
    """One wrong file is found at home; a whole set of another coordinator's when that one is called."""
    lone = tmp_path / "lone"
    write_labels(tmp_path / "lone.csv", "lone")
    files = {"lone": tmp_path / "lone.csv"}
    make_sites(tmp_path, files, authority=Authority.open(hub / "authority"), coordinator=deployment.address)
    called = run("ce-client", "check", "--config", lone, "--format", "json")
    assert called.code == 4
    told = {check["check"]: check for check in called.json["checks"]}
    assert told["coordinator"]["sentence"] == (
        f"the certificate that {deployment.address} shows is not valid here: is ca.pem the one of this coordinator, "
        "and is the clock of this machine right?"
    )
    shutil.copy(deployment.hub / "authority" / "ca.pem", lone / "ca.pem")
    mixed = run("ce-client", "run", "--config", lone)
    assert (mixed.code, mixed.sentence) == (
        4,
        "the certificate was not signed by this CA: check that it and ca.pem come from the same operator",
    )
    # The operator likewise.
    text = (hub / "coordinator.toml").read_text()
    (hub / "coordinator.toml").write_text(re.sub('address = ".*"', f'address = "{deployment.address}"', text))
    called = run("ce-coordinator", "list", "--config", hub)
    assert called.code == 4
    assert "is ca.pem the one of this coordinator" in called.sentence
    shutil.copy(deployment.hub / "authority" / "ca.pem", hub / "authority" / "ca.pem")
    mixed = run("ce-coordinator", "list", "--config", hub)
    assert mixed.code == 4
    assert "was not signed by this CA" in mixed.sentence


def test_the_certificate_of_somebody_else(run: Run, deployment: Deployment, tmp_path: Path) -> None:
    north = tmp_path / "north"
    shutil.copytree(deployment.directory / "north", north, ignore=shutil.ignore_patterns("state", "results"))
    shutil.copy(deployment.directory / "south" / "site.pem", north / "site.pem")
    refused = run("ce-client", "run", "--config", north)
    assert refused.code == 4
    assert "the certificate is for another private key" in refused.sentence
    shutil.copy(deployment.directory / "south" / "site.key", north / "site.key")
    refused = run("ce-client", "run", "--config", north)
    assert (refused.code, refused.sentence) == (
        4,
        f"{north}/site.pem is the certificate of site south, not of site north",
    )
    hub = tmp_path / "hub"
    shutil.copytree(deployment.hub, hub)
    for ending in ("key", "pem"):
        shutil.copy(north / f"site.{ending}", hub / f"operator.{ending}")
    refused = run("ce-coordinator", "list", "--config", hub)
    assert (refused.code, refused.sentence) == (
        4,
        f"{hub}/operator.pem is the certificate of site south, not of an operator",
    )


# Clocks.


def in_an_hour(authority: Authority, *names: str, **how: Any) -> TlsCredentials:
    """A certificate as it looks to somebody whose clock is an hour behind."""
    return forge(authority, *names, signed_by=authority, from_day=1 / 24, to_day=9, **how)


def test_a_clock_that_is_an_hour_behind_sees_its_own_certificate_too_early(
    run: Run, deployment: Deployment, tmp_path: Path
) -> None:
    north, hub = tmp_path / "north", tmp_path / "hub"
    shutil.copytree(deployment.directory / "north", north, ignore=shutil.ignore_patterns("state", "results"))
    shutil.copytree(deployment.hub, hub)
    # Anything but the store and the address of the deployment itself.
    (hub / "coordinator.toml").write_text(f'listen = "127.0.0.1:{free_port()}"\nstore = "another.sqlite"\n')
    cases: list[tuple[str, Path, str, list[object]]] = [
        ("ce://site/north", north, "site", ["ce-client", "run", "--config", north]),
        ("ce://operator/olga", hub, "operator", ["ce-coordinator", "list", "--config", hub]),
        ("ce://coordinator/hub", hub, "coordinator", ["ce-coordinator", "serve", "--config", hub]),
    ]
    for name, directory, file, command in cases:
        early = in_an_hour(deployment.authority, name)
        (directory / f"{file}.key").write_bytes(early.key)
        (directory / f"{file}.pem").write_bytes(early.certificate)
        refused = run(*command)
        assert refused.code == 4
        assert re.fullmatch(
            rf"the certificate {directory}/{file}\.pem is valid only from .* UTC and here it is .* UTC: is the clock "
            r"of this machine right\?",
            refused.sentence,
        )


def test_a_clock_that_is_an_hour_behind_sees_the_coordinators_certificate_too_early(
    run: Run, deployment: Deployment, tmp_path: Path
) -> None:
    north = tmp_path / "north"
    shutil.copytree(deployment.directory / "north", north, ignore=shutil.ignore_patterns("state", "results"))
    with FalseServer(tmp_path) as server:
        server.show(in_an_hour(deployment.authority, dns=["ce-coordinator"], usage=SERVER))
        text = (north / "client.toml").read_text().replace(deployment.address, server.address)
        (north / "client.toml").write_text(text)
        checked = run("ce-client", "check", "--config", north, "--format", "json")
    assert checked.code == 4
    assert checked.json["checks"][-1]["sentence"].endswith("and is the clock of this machine right?")


class LateClock(site_pb2_grpc.SiteServiceServicer):
    """A coordinator that lets everybody in, and whose clock is wrong."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s
        self.left = threading.Event()

    def Connect(self, frames: Iterator[site_pb2.SiteFrame], context: Any) -> Iterator[site_pb2.CoordinatorFrame]:
        hello = next(frames).hello
        time_s = time.time() + self._ahead_s
        yield site_pb2.CoordinatorFrame(
            welcome=site_pb2.Welcome(coordinator="hub", protocol=PROTOCOL, software="test", time_s=time_s)
        )
        if not hello.probe:
            for frame in frames:
                if frame.WhichOneof("frame") == "goodbye":
                    self.left.set()


@pytest.mark.parametrize(("ahead_s", "which"), [(3600.0, "behind"), (-3600.0, "ahead of")])
def test_a_coordinator_whose_clock_is_an_hour_off(
    run: Run, deployment: Deployment, tmp_path: Path, ahead_s: float, which: str
) -> None:
    north = tmp_path / "north"
    shutil.copytree(deployment.directory / "north", north, ignore=shutil.ignore_patterns("state", "results"))
    own = SiteFiles.open(deployment.sites["north"]).credentials
    key, certificate = ((deployment.hub / f"coordinator.{ending}").read_bytes() for ending in ("key", "pem"))
    server = grpc.server(ThreadPoolExecutor(4))
    service = LateClock(ahead_s)
    site_pb2_grpc.add_SiteServiceServicer_to_server(service, server)
    secure = grpc.ssl_server_credentials([(key, certificate)], own.authority, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", secure)
    server.start()
    try:
        text = (north / "client.toml").read_text().replace(deployment.address, f"127.0.0.1:{port}")
        (north / "client.toml").write_text(text)
        checked = run("ce-client", "check", "--config", north, "--format", "json")
        assert checked.code == 4
        clock = checked.json["checks"][-1]
        assert (clock["check"], clock["ok"]) == ("clock", False)
        assert re.fullmatch(
            rf"this machine's clock is 3,(600|599) s {which} the coordinator's: set the wrong one \(NTP\), or "
            "certificates may seem invalid",
            clock["sentence"],
        )
        with started(CLIENT, "run", "--config", north, "--format", "json") as running:
            assert running.stderr is not None
            read = read_until(running.stderr.fileno(), "clocks of this site and of the coordinator differ")
            running.send_signal(signal.SIGTERM)
            assert finished(running).code == 0
        assert service.left.wait(5)
    finally:
        server.stop(None).wait()
    warned = [json.loads(line) for line in read.splitlines()][-1]
    assert warned["level"] == "warning"
    assert abs(warned["seconds"] - ahead_s) <= 2


# Nobody there.


@pytest.mark.parametrize(
    ("address", "code", "sentence"),
    [
        ("localhost:1", 5, "nothing listens at localhost:1: is the coordinator running, is the port right?"),
        ("nowhere.invalid:8443", 5, "the host in nowhere.invalid:8443 has no address: is its name right?"),
    ],
)
def test_a_coordinator_that_cannot_be_found(
    run: Run, hub: Path, north: Path, address: str, code: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CE_COORDINATOR_OPERATOR_ADDRESS", address)
    called = run("ce-coordinator", "list", "--config", hub)
    assert (called.code, called.sentence) == (code, sentence)
    monkeypatch.setenv("CE_CLIENT_COORDINATOR", address)
    checked = run("ce-client", "check", "--config", north, "--format", "json")
    assert (checked.code, checked.json["checks"][-1]["sentence"]) == (code, sentence)


def test_what_answers_is_not_a_coordinator(
    run: Run, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FalseServer(tmp_path) as server:
        monkeypatch.setenv("CE_COORDINATOR_OPERATOR_ADDRESS", server.address)
        called = run("ce-coordinator", "list", "--config", hub)
    assert (called.code, called.sentence) == (
        4,
        f"what answers at {server.address} does not speak TLS: is this the right port?",
    )


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
def test_a_coordinator_that_does_not_answer_in_time(run: Run, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("CE_COORDINATOR_OPERATOR_ADDRESS", address)
        monkeypatch.setenv("CE_COORDINATOR_OPERATOR_TIMEOUT_S", "0.2")
        called = run("ce-coordinator", "list", "--config", hub)
    assert (called.code, called.sentence) == (5, f"{address} did not answer in time")
