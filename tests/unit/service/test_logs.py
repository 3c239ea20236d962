"""Logs: one event is one line whatever it contains, no exception's text gets in, and no native line gets lost."""

from __future__ import annotations

import datetime
import faulthandler
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.errors import ConfigError
from ce.service.logs import PIPE_BYTES, configure, fields, log_native_line, relay_native_stderr

log = logging.getLogger("ce.test")
laws = settings(deadline=None, max_examples=100, derandomize=True)
CHILD = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def logged(write: Callable[[], None]) -> dict[str, Any]:
    """The one event that a call logs, as JSON."""
    stream = io.StringIO()
    configure("debug", stream)
    write()
    [event] = json_lines(stream.getvalue())
    return event


def as_text(write: Callable[[], None]) -> str:
    stream = io.StringIO()
    configure("debug", stream, format="text")
    write()
    assert stream.getvalue().endswith("\n")
    return stream.getvalue()[:-1]


def test_an_event_is_an_object_with_its_fields() -> None:
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    event = logged(lambda: log.info("site connected", extra=fields(site="Zürich", columns=3)))
    moment = event.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
    assert before <= datetime.datetime.fromisoformat(moment) <= datetime.datetime.now(datetime.UTC)
    assert event == {"level": "info", "logger": "ce.test", "event": "site connected", "site": "Zürich", "columns": 3}


def test_people_read_a_line() -> None:
    line = as_text(lambda: log.warning("site %s", "left", extra=fields(site="north", reason="no answer", round=None)))
    assert re.fullmatch(r'[-\d]{10} [:\d]{8}\.\d{3}Z warning site left site=north reason="no answer" round=null', line)


def test_a_terminal_gets_text_and_colours_unless_they_are_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain, chosen = Terminal(), Terminal(), Terminal()
    configure("info", coloured)
    log.info("x", extra=fields(a=1))
    configure("info", chosen, format="json")
    log.info("x", extra=fields(a=1))
    monkeypatch.setenv("NO_COLOR", "1")
    configure("info", plain)
    log.info("x", extra=fields(a=1))
    assert "\x1b[" in coloured.getvalue()
    assert plain.getvalue().endswith(" info    x a=1\n")
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured.getvalue())[24:] == plain.getvalue()[24:]
    assert json_lines(chosen.getvalue())[0]["a"] == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", ""),
        ("x" * 300, "x" * 300),
        ("x" * 301, "x" * 299 + "…"),
        (2**64 - 1, 2**64 - 1),
        pytest.param(10**5000, "int", id="digits"),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (True, True),
        (None, None),
        (b"payload", "bytes"),
        (["label"], "list"),
        (ValueError("label"), "ValueError"),
        (Path("/x"), "PosixPath"),
    ],
)
def test_only_short_plain_values_are_fields(value: object, shown: object) -> None:
    assert logged(lambda: log.info("x", extra=fields(value=value)))["value"] == shown


def test_a_field_cannot_pass_for_what_the_log_itself_says() -> None:
    event = logged(lambda: log.info("x", extra=fields(level="error", event="y", time=0)))
    assert (event["level"], event["event"]) == ("info", "x")
    assert (event["level_"], event["event_"], event["time_"]) == ("error", "y", 0)


@laws
@given(event=st.text(), value=st.text())
def test_whatever_an_event_contains_it_is_one_line(event: str, value: str) -> None:
    def write() -> None:
        log.info("%s", event, extra=fields(value=value))

    stream = io.StringIO()
    configure("info", stream, format="json")
    write()
    assert stream.getvalue()[:-1].isprintable()
    assert json.loads(stream.getvalue())["value"] == (value if len(value) <= 300 else f"{value[:299]}…")
    assert as_text(write).isprintable()


def test_an_error_of_ours_is_quoted_and_that_of_others_is_not() -> None:
    def fail(error: Exception) -> None:
        try:
            try:
                {"": 0}["label-7"]
            except KeyError as cause:
                raise error from cause
        except Exception:
            log.exception("job failed")

    ours = logged(lambda: fail(ConfigError("policy.toml: write it")))
    assert (ours["error"], ours["message"], ours["causes"]) == ("ConfigError", "policy.toml: write it", ["KeyError"])
    theirs = logged(lambda: fail(ValueError("label-8")))
    assert (theirs["error"], theirs["causes"]) == ("ValueError", ["KeyError"])
    assert [place.split(":")[0] for place in theirs["trace"]] == ["service/test_logs.py"]
    assert theirs["trace"][0].split(":")[1].isdigit()
    assert "label" not in json.dumps([ours, theirs]) + as_text(lambda: fail(ValueError("label-8")))


def test_libraries_cannot_bring_in_the_text_of_an_exception() -> None:
    library = logging.getLogger("grpc._server")
    error = ValueError("label 'seven'\n")

    def quote() -> None:
        try:
            raise error
        except ValueError:
            library.exception(f"Exception calling application: {error}")

    event = logged(quote)
    assert (event["logger"], event["event"]) == ("grpc._server", "Exception calling application: ValueError")
    for write in (
        lambda: library.error("task <exception=%r> failed", error),
        lambda: library.error(error),
        lambda: library.error(f"task <exception={error!r}> failed", exc_info=error),
        lambda: library.error("failed: %s", error, exc_info=error),
    ):
        assert "seven" not in json.dumps(logged(write))
    letter = logged(lambda: library.error("a task failed: a", exc_info=ValueError("a")))
    assert letter["event"] == "ValueError task failed: ValueError"


def test_a_call_that_cannot_be_formatted_is_reported_without_its_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers.clear()  # pytest's would raise
    event = logged(lambda: log.info("%d sites", "label-7"))
    assert event["event"] == "event could not be logged"
    assert event["place"].startswith("service/test_logs.py:")
    assert "label-7" not in json.dumps(event) + capfd.readouterr().err


def test_a_stream_that_is_gone_stops_nobody() -> None:
    stream = io.StringIO()
    configure("info", stream)
    stream.close()
    log.info("x")


def test_the_level_holds_and_the_last_configuration_wins() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("debug", first)
    configure("warning", second)
    log.info("x")
    log.error("y")
    assert first.getvalue() == ""
    assert [event["event"] for event in json_lines(second.getvalue())] == ["y"]
    with pytest.raises(ConfigError, match="debug, info, warning, error"):
        configure("loud")


def test_stderr_is_whatever_it_is_when_something_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    for given_stream in (None, sys.stderr):
        configure("info", given_stream)
        later = io.StringIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", later)
            log.info("x")
        assert json_lines(later.getvalue())[0]["event"] == "x"


HANDSHAKE = (
    "I1116 05:05:29.897933   22258 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: "
    "error:1000007d:SSL routines:OPENSSL_internal:"
)
NO_CONTEXT = ": Invalid certificate verification context"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired", "certificate has expired"),
        ("CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", "certificate is not yet valid"),
        ("CERTIFICATE_VERIFY_FAILED: self signed certificate", "self signed certificate"),
        ("CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "certificate of another authority"),
        ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed"),
        (f"PEER_DID_NOT_RETURN_A_CERTIFICATE{NO_CONTEXT}", "no client certificate"),
        (f"NO_SHARED_CIPHER{NO_CONTEXT}", "older than TLS 1.3"),
        (f"UNSUPPORTED_PROTOCOL{NO_CONTEXT}", "older than TLS 1.3"),
        (f"HTTP_REQUEST{NO_CONTEXT}", "not TLS"),
        (f"WRONG_VERSION_NUMBER{NO_CONTEXT}", "not TLS"),
        (f"TLSV1_ALERT_UNKNOWN_CA{NO_CONTEXT}", "tlsv1 alert unknown ca"),
    ],
)
def test_a_refused_connection_is_a_warning_that_says_why(code: str, reason: str) -> None:
    event = logged(lambda: log_native_line(HANDSHAKE + code))
    assert (event["level"], event["event"], event["reason"]) == ("warning", "connection refused", reason)


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        (
            "E1116 05:14:44.902168   23554 ssl_security.cc:1558] Invalid cert chain file.",
            "error",
            "Invalid cert chain file.",
        ),
        ("E0000 00:00:1763269484.902168   23554 a.cc:1] x", "error", "x"),
        ("W1116 05:14:45.119354   23564 log.cc:102] Log level INFO", "debug", "Log level INFO"),
        ("I1116 05:14:45.119354   23564 log.cc:102] started", "debug", "started"),
        ("WARNING: All log messages before", "debug", "WARNING: All log messages before"),
        ("Error: E1116", "debug", "Error: E1116"),
    ],
)
def test_other_native_lines(line: str, level: str, text: str) -> None:
    event = logged(lambda: log_native_line(line))
    assert (event["level"], event["text"]) == (level, text)


@pytest.fixture(name="_no_faulthandler")
def _no_faulthandler_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's own stays as pytest set it up."""
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)


@pytest.mark.usefixtures("_no_faulthandler")
def test_writers_never_wait_for_the_function_and_nothing_is_lost() -> None:
    lines: list[str] = []
    may_handle = threading.Event()

    def handle(line: str) -> None:
        assert may_handle.wait(60)
        lines.append(line)

    def write(writer: int) -> None:
        for batch in range(50):
            text = "".join(f"{writer} {batch} {i} {'x' * 60}\n" for i in range(200)).encode()
            while text:
                text = text[os.write(2, text[:4096]) :]

    # Two megabytes, of which a pipe holds one, while the function handles none.
    with relay_native_stderr(handle):
        writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert lines == []
        os.write(2, b"the end of a line \xff")
        may_handle.set()
    assert len(lines) == 3 * 50 * 200 + 1
    assert "".join(lines[:-1]).count("x") == 3 * 50 * 200 * 60
    assert lines[-1] == "the end of a line \\xff"


@pytest.mark.usefixtures("_no_faulthandler")
def test_a_line_without_end_and_a_function_that_fails_stop_nothing() -> None:
    sizes: list[int] = []
    stream = io.StringIO()
    configure("info", stream)

    def handle(line: str) -> None:
        if line == "fail":
            raise ValueError("label-7")
        sizes.append(len(line))

    with relay_native_stderr(handle):
        os.write(2, b"fail\n")
        for _ in range(3):
            os.write(2, b"x" * PIPE_BYTES)
        os.write(2, b"\nabc\n")
    assert sum(sizes[:-1]) == 3 * PIPE_BYTES
    assert len(sizes) > 2
    assert sizes[-1] == 3
    assert [event["error"] for event in json_lines(stream.getvalue())] == ["ValueError"]
    assert "label-7" not in stream.getvalue()


@pytest.mark.usefixtures("_no_faulthandler")
def test_closing_leads_back_even_while_a_child_holds_the_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = (threading.active_count(), descriptors(), sys.stderr)
    lines: list[str] = []
    for _ in range(2):
        relay = relay_native_stderr(lines.append)
        command = [sys.executable, "-Ssc", "import os, sys; os.write(2, b'child\\n'); print(); sys.stdin.read()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            os.write(2, b"relayed\n")
            relay.close()
            relay.close()
            os.write(2, b"direct\n")
    assert lines == ["child", "relayed"] * 2
    assert capfd.readouterr().err == "direct\n" * 2
    assert (threading.active_count(), descriptors(), sys.stderr) == before


class LastWords:
    """Writes when it is collected, and only the collector ends it: it refers to itself."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        os.write(2, b"last words\n")


@pytest.mark.usefixtures("_no_faulthandler")
def test_what_is_written_by_something_that_only_waits_to_be_collected_is_relayed() -> None:
    """As gRPC is, after calls that were cut off: it ends, and may write so, with the last object that refers to it."""
    lines: list[str] = []
    with relay_native_stderr(lines.append):
        LastWords()
    assert lines == ["last words"]


DAEMON = f"""
import faulthandler, logging, os, sys
from ce.service.logs import configure, fields, relay_native_stderr
faulthandler.enable()
configure("info", sys.stderr)
relay_native_stderr()
logging.getLogger("ce").info("started", extra=fields(n=1))
print("by print", file=sys.stderr)
os.write(2, b"noise\\n{HANDSHAKE}HTTP_REQUEST\\n")
raise RuntimeError("unexpected")
"""


def test_of_a_daemon_logs_tracebacks_and_native_lines_reach_the_original_stderr() -> None:
    """Nobody closes the relay: what was written until the end is logged all the same."""
    done = subprocess.run([sys.executable, "-c", DAEMON], env=CHILD, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    events = json_lines("\n".join(line for line in done.stderr.splitlines() if line.startswith("{")))
    assert {(event["event"], event.get("reason")) for event in events} == {
        ("started", None),
        ("connection refused", "not TLS"),
    }
    assert "\nby print\n" in done.stderr
    assert "\nRuntimeError: unexpected\n" in done.stderr
    assert "noise" not in done.stderr


#: Nothing native is written before the abort: a relayed line could stand between two pieces that faulthandler writes.
CRASH = """
import faulthandler, os, sys
from ce.service.logs import configure, relay_native_stderr
faulthandler.enable()
configure("info", sys.stderr)
relay_native_stderr()
os.abort()
"""


def test_a_crash_is_seen_too() -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], env=CHILD, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode < 0
    assert "Fatal Python error: Aborted" in done.stderr


SERVER = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from ce.service.logs import configure, relay_native_stderr
key, certificate = sys.stdin.read().encode().split(b"--split--")
configure("info")
with relay_native_stderr():
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(key, certificate)], certificate, True)
    print(server.add_secure_port("127.0.0.1:0", credentials), flush=True)
    server.start()
    server.wait_for_termination()
"""


def test_grpc_still_says_it_the_way_we_read_it() -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=CHILD | {"GRPC_VERBOSITY": "info"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with child:
        child.stdin.write(private + b"--split--" + certificate)
        child.stdin.close()
        port = int(child.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            event = json.loads(child.stderr.readline())
        child.terminate()
    assert (event["level"], event["event"], event["reason"]) == ("warning", "connection refused", "not TLS")
