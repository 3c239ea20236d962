"""Settings: one declaration is what is read, what the sample shows and what the documentation lists."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ce.errors import ConfigError
from ce.service.settings import REQUIRED, KeyReference, read_settings, reference, sample, setting

PREFIX = "CE_DAEMON"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the daemon accepts.

    This paragraph is for programmers.
    """

    jobs: int = setting(4, "Jobs at the same time, 1 to 100.")
    wait_s: float = setting(2.5, "Seconds to wait, more than 0.")
    sites: tuple[str, ...] = setting(("north", "süd"), "Sites that may connect; none: all.")
    shares: Mapping[str, tuple[int, ...] | tuple[str, ...]] = setting({}, "Disks of each site.")

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= 100:
            raise ConfigError("limits.jobs is from 1 to 100")


@dataclass(frozen=True, kw_only=True)
class Tls:
    certificate: Path = setting(REQUIRED, "The daemon's certificate, PEM.")
    key: Path = setting(REQUIRED, "Its private key, PEM.")


@dataclass(frozen=True, kw_only=True)
class Daemon:
    name: str = setting(REQUIRED, "Name of this daemon.")
    listen: str = setting("0.0.0.0:8443", "Address and port to listen on.")
    limits: Limits = field(default_factory=Limits)
    state: Path = setting(Path("state"), "Where it keeps its records.")
    drain: bool = setting(False, "Start no new job.")
    ratio: float = setting(1e-7, "A share, 0 to 1.")
    log_format: Literal["auto", "text", "json"] = setting("auto", "How logs are written.")
    proxy: str | None = setting(None, "Proxy to dial through.")
    health: int | None = setting(None, "Port of the health endpoint.")
    token: str | None = setting(None, "Shared with the proxy.", secret=True)
    tls: Tls

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ConfigError("ratio is from 0 to 1")


LEAST = 'name = "a"\n[tls]\ncertificate = "c.pem"\nkey = "/etc/k.pem"\n'
GIVEN: dict[str, Any] = {"name": "a", "tls.certificate": "c.pem", "tls.key": "/etc/k.pem"}


def read(directory: Path, text: str = LEAST, also: tuple[str, ...] = (), /, **environ: str) -> Daemon:
    path = directory / "daemon.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings(Daemon, path, env_prefix=PREFIX, environ=environ, also=also)


def refusal(directory: Path, text: str = LEAST, /, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(directory, text, **environ)
    assert caught.value.exit_code == 4
    return str(caught.value)


def defaults(directory: Path) -> Daemon:
    """Paths are relative to the file, those of the declaration too."""
    tls = Tls(certificate=directory / "c.pem", key=Path("/etc/k.pem"))
    return Daemon(name="a", tls=tls, state=directory / "state")


def test_what_a_file_does_not_say_is_the_default(tmp_path: Path) -> None:
    assert read(tmp_path) == defaults(tmp_path)


def test_a_sample_reads_as_the_defaults_commented_out_or_not(tmp_path: Path) -> None:
    text = sample(Daemon, "Settings of a daemon.", **GIVEN)
    assert read(tmp_path, text) == defaults(tmp_path)
    unset = "proxy|health|token"
    active = re.sub(rf"^# (?!(?:{unset}) )(\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert len(tomllib.loads(active)["limits"]) == 4
    assert read(tmp_path, active) == defaults(tmp_path)
    tomllib.loads(re.sub(rf"^# ((?:{unset}) = )", r"\1", active, flags=re.MULTILINE))


def test_a_sample_shows_every_key_once_with_its_comment(tmp_path: Path) -> None:
    text = sample(Daemon, "First line.\n\nSecond paragraph.", **GIVEN, **{"limits.jobs": 9})
    assert text.startswith("# First line.\n#\n# Second paragraph.\n\n# Name of this daemon.\nname = ")
    assert '\n# Address and port to listen on.\n# listen = "0.0.0.0:8443"\n' in text
    assert "\n# What the daemon accepts.\n[limits]\n" in text
    assert "programmers" not in text
    assert "\n# Jobs at the same time, 1 to 100.\njobs = 9\n" in text
    assert '\n# Proxy to dial through. Not set by default.\n# proxy = "..."\n' in text
    for row in reference(Daemon, PREFIX):
        assert len(re.findall(rf"^(?:# )?{row.key.rpartition('.')[2]} = ", text, re.MULTILINE)) == 1
        assert row.comment in text
    assert read(tmp_path, text).limits.jobs == 9


def test_a_sample_needs_what_has_no_default_and_nothing_unknown() -> None:
    with pytest.raises(TypeError, match=r"tls\.key"):
        sample(Daemon, "", name="a", **{"tls.certificate": "c"})
    with pytest.raises(TypeError, match="nmae"):
        sample(Daemon, "", **GIVEN, nmae="a")
    with pytest.raises(ConfigError, match="UTF-8"):
        sample(Daemon, "", **(GIVEN | {"name": "\udcff"}))


@hypothesis_settings(deadline=None, derandomize=True, max_examples=100)
@given(
    name=st.text(st.characters(exclude_categories=["Cs"])),
    ratio=st.floats(0, 1),
    wait_s=st.floats(allow_nan=False),
    sites=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    shares=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.lists(st.integers(-9, 9), max_size=3).map(tuple) | st.lists(st.text("a=\"'\n"), max_size=3).map(tuple),
        max_size=3,
    ),
)
def test_whatever_a_sample_was_given_reads_back(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    ratio: float,
    wait_s: float,
    sites: list[str],
    shares: dict[str, Any],
) -> None:
    more = {"name": name, "ratio": ratio, "limits.wait_s": wait_s, "limits.sites": tuple(sites)}
    more["limits.shares"] = shares
    directory = tmp_path_factory.getbasetemp()
    found = read(directory, sample(Daemon, "x", **(GIVEN | more)))
    assert (found.name, found.ratio) == (name, ratio)
    assert found.limits == Limits(wait_s=wait_s, sites=tuple(sites), shares=shares)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("LISTEN", "[::]:1", {"listen": "[::]:1"}),
        ("LISTEN", "", {"listen": ""}),
        ("STATE", "/var/lib", {"state": Path("/var/lib")}),
        ("DRAIN", "True", {"drain": True}),
        ("RATIO", "0", {"ratio": 0.0}),
        ("LOG_FORMAT", "json", {"log_format": "json"}),
        ("PROXY", "http://p", {"proxy": "http://p"}),
        ("LIMITS_SHARES", '{ a = [1, 2], "b c" = ["x"] }', {"limits": Limits(shares={"a": (1, 2), "b c": ("x",)})}),
        ("HEALTH", "80", {"health": 80}),
        ("HEALTH", "", {"health": None}),
        ("LIMITS_JOBS", "7", {"limits": Limits(jobs=7)}),
        ("LIMITS_WAIT_S", "inf", {"limits": Limits(wait_s=math.inf)}),
        ("LIMITS_SITES", "a, b,", {"limits": Limits(sites=("a", "b"))}),
        ("LIMITS_SITES", "", {"limits": Limits(sites=())}),
    ],
)
def test_the_environment_is_over_the_file(tmp_path: Path, variable: str, text: str, expected: dict[str, Any]) -> None:
    file = 'listen = "x"\nhealth = 1\n' + LEAST + "[limits]\n"
    before = read(tmp_path, file)
    assert before.health == 1
    assert read(tmp_path, file, **{f"{PREFIX}_{variable}": text}) == replace(before, **expected)


def test_a_relative_path_of_the_environment_is_beside_the_file_too(tmp_path: Path) -> None:
    assert read(tmp_path, CE_DAEMON_STATE="x").state == tmp_path / "x"


def test_a_path_is_absolute_also_when_that_of_the_file_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "daemon.toml").write_text(LEAST)
    found = read_settings(Daemon, Path("daemon.toml"), env_prefix=PREFIX, environ={})
    assert found.state == tmp_path / "state"


def test_a_required_key_may_come_from_the_environment(tmp_path: Path) -> None:
    assert read(tmp_path, LEAST.replace('name = "a"\n', ""), CE_DAEMON_NAME="b").name == "b"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("lisen = 1", "unknown key lisen; did you mean listen?"),
        ("jobs = 1", "unknown key jobs; did you mean limits.jobs?"),
        ("zzz = 1", "unknown key zzz; known are name, listen,"),
        ("limit.jobs = 1", "unknown key limit; did you mean limits?"),
        ("limits.job = 1", "unknown key limits.job; did you mean limits.jobs?"),
        ("limits.listen = 1", "unknown key limits.listen; did you mean listen?"),
        ("limits = 3", "limits is a table: write [limits], and its keys below it"),
        ("listen = 8443", "listen is a text, not a whole number"),
        ("drain = 1", "drain is true or false, not a whole number"),
        ('drain = "true"', "drain is true or false, not a text"),
        ("ratio = nan", "ratio is a number"),
        ("ratio = true", "ratio is a number, not true or false"),
        (f"ratio = 1{'0' * 400}", "ratio is a number"),
        ("limits.jobs = 2.0", "limits.jobs is a whole number, not a number"),
        ("limits.jobs = true", "limits.jobs is a whole number, not true or false"),
        ("limits.jobs = 1979-05-27", "limits.jobs is a whole number, not a date or a time"),
        ('limits.sites = ["a", 1]', "limits.sites is a list of texts"),
        ('limits.sites = "a"', "limits.sites is a list of texts, not a text"),
        ('state = ""', "state is a path, not an empty text"),
        ('state = "a\\u0000b"', "state is a path"),
        ("state = { a = 1 }", "state is a path, not a table"),
        ('log_format = "xml"', "log_format is one of auto, text, json"),
        ("health = [1]", "health is a whole number, not a list"),
        ("limits.shares = 1", "limits.shares is a table of lists of whole numbers or of texts, not a whole number"),
        ("limits.shares = { a = 1 }", "limits.shares is a table of lists of whole numbers or of texts, not a table"),
        ("limits.shares.a = [0.5]", "limits.shares is a table of lists of whole numbers or of texts, not a table"),
        ("limits.jobs = 101", "daemon.toml: limits.jobs is from 1 to 100"),
        ("ratio = 2", "ratio is from 0 to 1"),
        ("name = ", "is not TOML"),
        (f"ratio = 1{'0' * 5000}", "is not TOML"),
        ("x = " + "[" * 10000, "is not TOML"),
    ],
)
def test_a_refusal_names_the_file_the_key_and_what_was_expected(tmp_path: Path, line: str, said: str) -> None:
    sentence = refusal(tmp_path, f"{line}\n{LEAST}")
    assert sentence.startswith(str(tmp_path / "daemon.toml"))
    assert said in sentence


def test_bytes_that_are_not_text_are_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "daemon.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_settings(Daemon, path, env_prefix=PREFIX, environ={})


def test_a_missing_key_and_a_missing_file_are_named(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, 'name = "a"\n[tls]\nkey = "k"\n')
    assert sentence.endswith("tls.certificate is missing: add it there, or set CE_DAEMON_TLS_CERTIFICATE")
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        read_settings(Daemon, tmp_path / "nowhere.toml", env_prefix=PREFIX, environ={})


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("CE_DAEMON_LISEN", "x", "unknown environment variable CE_DAEMON_LISEN; did you mean CE_DAEMON_LISTEN?"),
        ("CE_DAEMON_listen", "x", "unknown environment variable CE_DAEMON_listen; did you mean"),
        ("CE_DAEMON_LIMITS_JOBS", "many", "environment variable CE_DAEMON_LIMITS_JOBS is a whole number"),
        ("CE_DAEMON_LIMITS_JOBS", "", "environment variable CE_DAEMON_LIMITS_JOBS is a whole number"),
        ("CE_DAEMON_RATIO", "nan", "environment variable CE_DAEMON_RATIO is a number"),
        ("CE_DAEMON_DRAIN", "yes", "environment variable CE_DAEMON_DRAIN is true or false"),
        ("CE_DAEMON_LOG_FORMAT", "xml", "environment variable CE_DAEMON_LOG_FORMAT is one of auto, text, json"),
        ("CE_DAEMON_LIMITS_JOBS", "0", "daemon.toml (with CE_DAEMON_LIMITS_JOBS): limits.jobs is from 1 to 100"),
    ],
)
def test_a_refusal_of_the_environment_names_the_variable(tmp_path: Path, variable: str, text: str, said: str) -> None:
    assert said in refusal(tmp_path, **{variable: text})


def test_other_variables_are_left_alone(tmp_path: Path) -> None:
    environ = {"CE_DAEMONS": "x", "CE_CLIENT_LISTEN": "x", "PATH": "x", "_CE_DAEMON_COMPLETE": "x"}
    assert read(tmp_path, **environ) == defaults(tmp_path)
    assert read(tmp_path, LEAST, ("CE_DAEMON_CONFIG",), CE_DAEMON_CONFIG="x") == defaults(tmp_path)
    assert "CE_DAEMON_CONFIG" in refusal(tmp_path, CE_DAEMON_CONFIG="x")


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    assert read(tmp_path, CE_DAEMON_TOKEN="swordfish").token == "swordfish"
    assert "swordfish" not in repr(read(tmp_path, CE_DAEMON_TOKEN="swordfish"))
    for text in ("health = 'swordfish'\n", "token = ['swordfish']\n"):
        assert "swordfish" not in refusal(tmp_path, text + LEAST)
    assert "swordfish" not in refusal(tmp_path, CE_DAEMON_HEALTH="swordfish")


def test_the_reference_lists_every_key() -> None:
    rows = {row.key: row for row in reference(Daemon, "CE_DAEMON_")}
    assert rows["limits.jobs"] == KeyReference(
        "limits.jobs", "a whole number", "4", "CE_DAEMON_LIMITS_JOBS", "Jobs at the same time, 1 to 100."
    )
    assert rows["tls.key"].default == "required"
    assert rows["token"][1:3] == ("a text (secret)", "not set")
    assert rows["limits.sites"].default == '["north", "süd"]'
    assert list(rows)[:2] == ["name", "listen"]
    assert len(rows) == 15


def test_what_cannot_be_a_setting_is_a_mistake_of_the_programmer() -> None:
    @dataclass(frozen=True)
    class Bare:
        x: int = 1

    @dataclass(frozen=True)
    class Odd:
        x: bytes = setting(b"", "Bytes.")

    @dataclass(frozen=True)
    class Clash:
        limits_jobs: int = setting(1, "x")
        limits: Limits = field(default_factory=Limits)

    with pytest.raises(TypeError, match=r"Bare\.x is not declared"):
        reference(Bare, PREFIX)
    with pytest.raises(TypeError, match="bytes"):
        reference(Odd, PREFIX)
    with pytest.raises(TypeError, match="same environment variable"):
        read_settings(Clash, Path("/dev/null"), env_prefix=PREFIX, environ={})
