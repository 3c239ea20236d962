"""The coordinator's store: every implementation keeps the same promises, and the one on disk keeps them for good."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.errors import CeError, ConfigError, JobFailed
from ce_coordinator.store import (
    JobRecord,
    JobState,
    MemoryStore,
    SiteRecord,
    SqliteStore,
    Store,
    StoreFailed,
    TokenTaken,
)
from ce_coordinator.store import sqlite as layout

CHILD = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def job(name: str = "a", token: str | None = None, **changes: Any) -> JobRecord:
    record = JobRecord(
        name, token or f"token of {name}", "operator", b"\x00definition\xff", "submitted", 1, 10.25, 10.5
    )
    return replace(record, **changes)


NORTH = SiteRecord("north", "SHA256:00", 1.5, 2.5)


class StoreTests:
    """What every store promises."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        raise NotImplementedError

    def test_a_record_comes_back_as_it_was_saved(self, store: Store) -> None:
        full = job(
            state="failed", epoch=2**62, reason="süd stayed away", rule="dropout", exit_code=7, result=b"\x00" * 9
        )
        store.save_job(full)
        store.save_site(NORTH)
        assert store.job("a") == store.job_by_token("token of a") == full
        assert store.jobs() == [full]
        assert store.sites() == [NORTH]

    def test_nothing_is_there_before_it_is_saved(self, store: Store) -> None:
        assert store.job("a") is None
        assert store.job_by_token("token of a") is None
        assert store.jobs() == []
        assert store.sites() == []

    def test_saving_again_replaces(self, store: Store) -> None:
        store.save_job(job())
        for state in get_args(JobState):
            store.save_job(job(state=state))
            assert store.jobs() == [job(state=state)]
        store.save_site(NORTH)
        store.save_site(replace(NORTH, last_seen=9.0))
        assert store.sites() == [replace(NORTH, last_seen=9.0)]

    def test_the_newest_submission_comes_first(self, store: Store) -> None:
        for name, moment in (("b", 1.0), ("c", 3.0), ("a", 1.0), ("d", 2.0)):
            store.save_job(job(name, submitted_at=moment))
        assert [record.name for record in store.jobs()] == ["c", "d", "a", "b"]
        store.save_job(job("b", submitted_at=1.0, changed_at=99.0, state="done"))
        assert [record.name for record in store.jobs()] == ["c", "d", "a", "b"]

    def test_sites_come_by_name(self, store: Store) -> None:
        for name in ("west", "east", "Ost", "österlich", "z"):
            store.save_site(replace(NORTH, name=name))
        assert [site.name for site in store.sites()] == ["Ost", "east", "west", "z", "österlich"]

    def test_a_token_belongs_to_one_job(self, store: Store) -> None:
        store.save_job(job("a", "secret"))
        store.save_job(job("b", "other"))
        for name in ("b", "c"):
            with pytest.raises(TokenTaken, match="new token") as caught:
                store.save_job(job(name, "secret"))
            assert isinstance(caught.value, CeError)
            assert "secret" not in str(caught.value)
        assert store.jobs() == [job("a", "secret"), job("b", "other")]
        store.save_job(job("a", "secret", state="running"))

    def test_a_token_that_was_given_up_is_free(self, store: Store) -> None:
        store.save_job(job("a", "one"))
        store.save_job(job("a", "two"))
        store.save_job(job("b", "one"))
        assert store.job_by_token("one") == job("b", "one")
        assert store.job_by_token("two") == job("a", "two")

    def test_text_is_only_ever_text(self, store: Store) -> None:
        names = ["'; DROP TABLE jobs; --", "%", "?", "a\0b", "a", "", "日本"]
        for name in names:
            store.save_job(job(name))
        assert {record.name for record in store.jobs()} == set(names)
        for name in names:
            assert store.job(name) == job(name)

    def test_threads_may_share_it(self, store: Store) -> None:
        def save(writer: int) -> None:
            for i in range(10):
                store.save_job(job(f"{writer}-{i}"))
                assert store.job(f"{writer}-{i}") is not None

        threads = [Thread(target=save, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.jobs()) == 40

    def test_what_is_closed_says_so(self, store: Store) -> None:
        store.close()
        store.close()
        uses: list[Callable[[], object]] = [
            lambda: store.save_job(job()),
            lambda: store.save_site(NORTH),
            lambda: store.job("a"),
            lambda: store.job_by_token("a"),
            store.jobs,
            store.sites,
        ]
        for use in uses:
            with pytest.raises(StoreFailed, match="closed"):
                use()


class TestMemoryStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return MemoryStore()


class TestSqliteStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with closing(SqliteStore(tmp_path / "store.db")) as store:
            yield store


def test_an_ended_job_is_known_and_what_is_printed_shows_no_token_and_no_payload() -> None:
    ended = [state for state in get_args(JobState) if job(state=state).ended]
    assert ended == ["done", "failed", "cancelled"]
    shown = repr(job(token="swordfish", definition=b"payload", result=b"payload"))
    assert "swordfish" not in shown
    assert "payload" not in shown


names = st.sampled_from("abcd") | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
moments = st.floats(0, 1e10)
job_records = st.builds(
    JobRecord,
    names,
    names,
    names,
    st.binary(max_size=20),
    st.sampled_from(get_args(JobState)),
    st.integers(0, 2**63 - 1),
    moments | st.sampled_from([1.0, 2.0]),
    moments,
    names,
    names,
    st.integers(0, 255),
    st.binary(max_size=20),
)
site_records = st.builds(SiteRecord, names, names, moments, moments)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(records=st.lists(job_records | site_records | st.just("reopen"), max_size=15))
def test_memory_and_sqlite_agree(records: list[JobRecord | SiteRecord | str]) -> None:
    def save(store: Store, record: JobRecord | SiteRecord) -> bool:
        try:
            if isinstance(record, JobRecord):
                store.save_job(record)
            else:
                store.save_site(record)
        except TokenTaken:
            return False
        return True

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        memory, sqlite = MemoryStore(), SqliteStore(path)
        try:
            for record in records:
                if isinstance(record, str):
                    sqlite.close()
                    sqlite = SqliteStore(path)
                else:
                    assert save(memory, record) == save(sqlite, record)
                assert memory.jobs() == sqlite.jobs()
                assert memory.sites() == sqlite.sites()
                for known in memory.jobs():
                    assert memory.job_by_token(known.token) == sqlite.job_by_token(known.token) == known
        finally:
            sqlite.close()


WRITER = """
import sys
from itertools import count
from pathlib import Path
from ce_coordinator.store import JobRecord, SqliteStore
store = SqliteStore(Path(sys.argv[1]))
for i in count():
    store.save_job(JobRecord(f"{i % 50}", f"t{i % 50}", "o", b"x" * 3000, "running", i, 0.0, 0.0))
    print(i, flush=True)
"""

HOLDER = """
import sys
from pathlib import Path
from ce_coordinator.store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def child(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        env=CHILD,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.promise("kill -9 of any process at any moment ends with the same bits.")
def test_after_a_kill_every_record_whose_save_returned_is_there(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    saved = -1
    for _ in range(2):  # the second writer takes over what the first one left
        with child(WRITER, path) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                saved = int(line)
                if saved == 120:
                    break
            writer.send_signal(signal.SIGKILL)
            saved = max([saved, *(int(line) for line in writer.stdout)])
            assert writer.wait() == -signal.SIGKILL
        with closing(SqliteStore(path)) as store:
            epochs = {record.name: record.epoch for record in store.jobs()}
            assert len(epochs) == 50
            for epoch in range(saved - 49, saved + 1):
                # The one that was being saved may or may not have made it.
                assert epochs[f"{epoch % 50}"] in (epoch, saved + 1)


def test_two_coordinators_never_share_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with child(HOLDER, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(ConfigError, match="another coordinator uses this store") as caught:
            SqliteStore(path)
        assert str(caught.value).startswith(str(path))
        holder.communicate()
        assert holder.returncode == 0
    with closing(SqliteStore(path)), pytest.raises(ConfigError, match="another coordinator"):
        SqliteStore(path)
    SqliteStore(path).close()


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with closing(SqliteStore(tmp_path / "store.db")) as store:
            store.save_job(job())
            files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert files == dict.fromkeys(("store.db", "store.db-wal", "store.db-shm", "store.db.lock"), 0o600)


def test_it_is_set_up_to_last(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "store.db")) as store:
        found = [pragma(store._database, name) for name in ("journal_mode", "synchronous", "foreign_keys")]
        assert found == ["wal", 2, 1]
        assert pragma(store._database, "busy_timeout") == 5000
    with closing(sqlite3.connect(tmp_path / "store.db")) as database:
        assert pragma(database, "user_version") == len(layout.MIGRATIONS) == 2
        assert pragma(database, "application_id") == int.from_bytes(b"ceco", "big")


def pragma(database: sqlite3.Connection, name: str) -> Any:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_newer_layout_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="has layout 7, and this coordinator knows layouts up to 2"):
        SqliteStore(path)
    assert path.read_bytes() == before


@pytest.mark.promise("Files written by the version before open.")
def test_an_older_layout_is_brought_up_to_date_or_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    with closing(SqliteStore(path)) as store:
        store.save_job(job())
    with monkeypatch.context() as patch:
        patch.setattr(layout, "MIGRATIONS", [*layout.MIGRATIONS, ["CREATE TABLE more (x)", "CREATE TABLE jobs (x)"]])
        with pytest.raises(ConfigError, match="cannot be opened"):
            SqliteStore(path)
    with closing(SqliteStore(path)) as store:
        assert store.jobs() == [job()]
    monkeypatch.setattr(layout, "MIGRATIONS", [*layout.MIGRATIONS, ["CREATE TABLE more (x)"], ["DROP TABLE more"]])
    for _ in range(2):
        with closing(SqliteStore(path)) as store:
            assert store.jobs() == [job()]
            assert pragma(store._database, "user_version") == 4


def test_what_the_first_layout_kept_is_read_in_the_present_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    columns = (
        "name, token, operator, definition, state, epoch, submitted_at, changed_at, reason, rule, exit_code, result"
    )
    with closing(sqlite3.connect(path)) as database:
        for statement in layout.MIGRATIONS[0]:
            database.execute(statement)
        values = [getattr(job(), name) for name in columns.split(", ")]
        marks = ", ".join("?" * len(values))
        database.execute(f"INSERT INTO jobs ({columns}, result) VALUES ({marks}, ?)", [*values, job().result])
        database.execute(f"PRAGMA application_id = {layout.APPLICATION_ID}")
        database.execute("PRAGMA user_version = 1")
        database.commit()
    with closing(SqliteStore(path)) as store:
        assert store.jobs() == [job()]
        store.save_job(replace(job(), left_behind=("east", "north")))
    with closing(SqliteStore(path)) as store:
        assert store.job(job().name) == replace(job(), left_behind=("east", "north"))


def test_the_database_of_another_program_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    for number, statement in enumerate(
        ("CREATE TABLE theirs (x)", "PRAGMA application_id = 5", "PRAGMA user_version = 1")
    ):
        path = tmp_path / f"{number}.db"
        with closing(sqlite3.connect(path)) as database:
            database.execute(statement)
        before = path.read_bytes()
        with pytest.raises(ConfigError, match="another program"):
            SqliteStore(path)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: b"label,x\n" * 500, "is not a database"),
        (lambda content: b"x", "is not a database"),
        (lambda content: content[: len(content) // 2], "is damaged"),
        (lambda content: content[:4096] + b"\xff" * 8192 + content[12288:], "is damaged"),
        (lambda content: content[:100] + b"\xff" * 400 + content[500:], "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes], said: str) -> None:
    path = tmp_path / "store.db"
    with closing(SqliteStore(path)) as store:
        for i in range(50):
            store.save_job(job(f"{i}", definition=b"x" * 1000))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigError, match=said) as caught:
        SqliteStore(path)
    assert str(caught.value).startswith(f"{path}: ")
    path.unlink()
    SqliteStore(path).close()  # the refusal let go of the lock


def test_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    for path in (tmp_path / "nowhere" / "store.db", tmp_path / "file" / "store.db", tmp_path / "directory"):
        with pytest.raises(ConfigError, match=r"cannot be written: .*; the store needs a directory"):
            SqliteStore(path)


@pytest.fixture(name="locked_directory")
def _locked_directory() -> Iterator[Path]:
    """A directory in which this process may not write, even if it is run by root."""
    directory = Path(tempfile.mkdtemp())
    SqliteStore(directory / "old.db").close()
    (directory / "old.db.lock").chmod(0o666)
    directory.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield directory
    finally:
        os.seteuid(user)
        directory.chmod(0o755)
        shutil.rmtree(directory)


@pytest.mark.parametrize("name", ["new.db", "old.db"])
def test_a_directory_that_is_read_only_is_refused(locked_directory: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: .*the store needs a directory"):
        SqliteStore(locked_directory / name)


@pytest.mark.promise("A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.")
def test_a_full_disk_fails_the_save_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(SqliteStore(path)) as store:
        store.save_job(job())
        store._database.execute(f"PRAGMA max_page_count = {pragma(store._database, 'page_count') + 1}")
        for record in (job(result=b"x" * 100_000), job("b", definition=b"secret" * 20_000)):
            with pytest.raises(StoreFailed, match="SQLITE_FULL") as caught:
                store.save_job(record)
            assert isinstance(caught.value, JobFailed)
            assert caught.value.exit_code == 7
            assert "secret" not in str(caught.value)
        assert store.jobs() == [job()]
        store.save_job(job(state="running"))
        store._database.execute("PRAGMA max_page_count = 1000000")
        store.save_job(job("b", result=b"x" * 100_000))
        assert {record.name for record in store.jobs()} == {"a", "b"}
    with closing(SqliteStore(path)) as store:
        assert store.job("a") == job(state="running")
