"""Logs of a daemon: one line per event; text on a terminal, one JSON object per line elsewhere.

    log = logging.getLogger(__name__)
    log.info("site connected", extra=fields(site="north", columns=3))

Records of other libraries are formatted in the same way. Of an exception that is not a CeError, the log contains type
and place, and never the message, which could quote a label. `relay_native_stderr` logs what the C library of gRPC
writes to file descriptor 2: only there it says why it refused a connection.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import json
import logging
import math
import os
import queue
import re
import select
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, TextIO

from ce.errors import CeError, ConfigError

Scalar = str | int | float | bool | None

LEVELS = ("debug", "info", "warning", "error")
#: Longest text in a field, in characters; longer ones are cut.
LARGEST_TEXT = 300
#: Most causes of an exception that are named.
LONGEST_CHAIN = 10
#: Names that the formatter itself uses; a field of such a name gets an underscore.
RESERVED = ("time", "level", "logger", "event", "error", "message", "causes", "trace")

#: Size of the pipe of `NativeStderr`: thousands of lines.
PIPE_BYTES = 1 << 20
#: A line of native output that is longer than this is handled in pieces.
LARGEST_LINE = 1 << 16

_FIELDS = "ce_fields"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_COLOURS = {
    "debug": "\x1b[2m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[1;31m",
}


def fields(**values: object) -> dict[str, dict[str, Scalar]]:
    """Fields of an event, for `extra`. Of a value that is no text, number, bool or None, the type's name is logged."""
    return {_FIELDS: {name: _scalar(value) for name, value in values.items()}}


def configure(level: str, stream: TextIO | None = None, *, format: Literal["auto", "text", "json"] = "auto") -> None:
    """Send all logs of this process to a stream; by default to what `sys.stderr` is when an event is logged."""
    if level not in LEVELS:
        raise ConfigError(f"the log level is one of {', '.join(LEVELS)}")
    if stream in (sys.stderr, sys.__stderr__):
        stream = None  # else events would be relayed to themselves once descriptor 2 is relayed
    target = stream or sys.stderr
    terminal = target is not None and target.isatty()
    handler = _Handler(stream)
    if format == "json" or (format == "auto" and not terminal):
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_TextFormatter(colours=terminal and not os.environ.get("NO_COLOR")))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


def _scalar(value: object) -> Scalar:
    if isinstance(value, str):
        return value if len(value) <= LARGEST_TEXT else f"{value[: LARGEST_TEXT - 1]}…"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(float(value))  # JSON has no infinity and no NaN
    if isinstance(value, int) and value.bit_length() <= 64:
        return value
    return type(value).__name__


def _content(record: logging.LogRecord) -> dict[str, Any]:
    """A record without time, level and logger: the event, its fields, its exception."""
    content: dict[str, Any] = {"event": _scalar(_message(record))}
    given = getattr(record, _FIELDS, None)
    if isinstance(given, Mapping):
        content |= {name if name not in RESERVED else f"{name}_": value for name, value in given.items()}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        content |= _describe(error)
    return content


def _describe(error: BaseException) -> dict[str, Any]:
    """An exception: messages of a CeError are safe to log; of others only type and place are."""
    described: dict[str, Any] = {"error": type(error).__name__}
    if isinstance(error, CeError):
        described["message"] = _scalar(str(error))
    else:
        frames = traceback.walk_tb(error.__traceback__)
        described["trace"] = [f"{_place(frame.f_code.co_filename)}:{line}" for frame, line in frames]
    causes: list[str] = []
    cause = _cause(error)
    while cause is not None and len(causes) < LONGEST_CHAIN:
        causes.append(type(cause).__name__)
        cause = _cause(cause)
    if causes:
        described["causes"] = causes
    return described


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _place(filename: str) -> str:
    return "/".join(Path(filename).parts[-2:])


def _message(record: logging.LogRecord) -> str:
    """The record's text, in which messages of exceptions other than CeError are replaced by their type."""
    arguments = record.args
    if isinstance(arguments, tuple):
        arguments = tuple(type(a).__name__ if _is_foreign(a) else a for a in arguments)
    message = str(record.msg) if not _is_foreign(record.msg) else type(record.msg).__name__
    if arguments:
        message = message % arguments
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and _is_foreign(error):
        for quoted in filter(None, (repr(error), str(error))):
            # Whole words only: the exception's message may be a single letter.
            left = r"(?<!\w)" if quoted[0].isalnum() else ""
            right = r"(?!\w)" if quoted[-1].isalnum() else ""
            message = re.sub(f"{left}{re.escape(quoted)}{right}", type(error).__name__, message)
    return message


def _is_foreign(value: object) -> bool:
    return isinstance(value, BaseException) and not isinstance(value, CeError)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        head = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps(head | _content(record))  # ASCII: no character of a field can end the line


class _TextFormatter(logging.Formatter):
    def __init__(self, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        content = _content(record)
        level = record.levelname.lower()
        event = _printable(str(content.pop("event")))
        pairs = " ".join(f"{_printable(name)}={_value(value)}" for name, value in content.items())
        time = _time(record).replace("T", " ")
        if self._colours:
            time, pairs = f"{_DIM}{time}{_PLAIN}", f"{_DIM}{pairs}{_PLAIN}" if pairs else ""
            return f"{time} {_COLOURS.get(level, '')}{level:<7}{_PLAIN} {event} {pairs}".rstrip()
        return f"{time} {level:<7} {event} {pairs}".rstrip()


def _printable(text: str) -> str:
    """The text with escapes for characters that would end the line or control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_printable(item) for item in value)
    if isinstance(value, str) and re.fullmatch(r"[^\s\"=\\]+", value) and value.isprintable():
        return value
    return _printable(json.dumps(value, ensure_ascii=False))


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to the stream it was given, or to what `sys.stderr` is now."""

    def __init__(self, stream: TextIO | None) -> None:
        logging.Handler.__init__(self)
        self._given = stream

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return self._given or sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:
        """Log that a record could not be written, without its arguments, which Python's handler would print."""
        replacement = logging.LogRecord(record.name, logging.ERROR, "", 0, "event could not be logged", None, None)
        replacement.__dict__ |= fields(place=f"{_place(record.pathname)}:{record.lineno}")
        with contextlib.suppress(Exception):  # nothing more can be done
            self.stream.write(self.format(replacement) + self.terminator)


_native = logging.getLogger("ce.native")
#: I1116 05:05:29.897933   22258 ssl_transport_security.cc:2563] Handshake failed ...
_ABSL_LINE = re.compile(r"([IWEF])\d{4} \S+ +\d+ ([^\s:]+:\d+)\] (.*)", re.DOTALL)
_HANDSHAKE_FAILED = re.compile(r"Handshake failed with error .*OPENSSL_internal:([A-Z0-9_]+)(?:: (.+))?")
_REASONS = {
    "self-signed certificate": "self signed certificate",
    "unable to get local issuer certificate": "certificate of another authority",
    "self signed certificate in certificate chain": "certificate of another authority",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no client certificate",
    "NO_SHARED_CIPHER": "older than TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "older than TLS 1.3",
    "HTTP_REQUEST": "not TLS",
    "WRONG_VERSION_NUMBER": "not TLS",
}


def log_native_line(line: str) -> None:
    """Log a line of the C library: a refused connection as warning, an error as error, other lines for `debug`."""
    written = _ABSL_LINE.fullmatch(line)
    severity, source, text = written.groups() if written else ("", "", line)
    if refused := _HANDSHAKE_FAILED.search(text):
        code, detail = refused.groups()
        if code == "CERTIFICATE_VERIFY_FAILED" and detail:
            reason = _REASONS.get(detail, detail)
        else:
            reason = _REASONS.get(code, code.lower().replace("_", " "))
        _native.warning("connection refused", extra=fields(reason=reason))
    elif severity in ("E", "F"):
        _native.error("native error", extra=fields(text=text, source=source))
    elif text.strip():
        _native.debug("native output", extra=fields(text=text, source=source))


def relay_native_stderr(handle_line: Callable[[str], None] = log_native_line) -> NativeStderr:
    """Pass every line written to file descriptor 2 to a function, until it is closed or Python ends.

    `sys.stderr`, and with it the logs and any traceback, is written to where descriptor 2 led before.
    """
    return NativeStderr(handle_line)


class NativeStderr:
    """Descriptor 2 as a pipe, and two threads that empty it.

    One thread only reads, so that a writer never waits for the function, which may itself wait for the writer (for a
    lock of logging, for example). The other thread calls the function, line by line. Only what is written at the moment
    of a crash is lost.
    """

    def __init__(self, handle_line: Callable[[str], None]) -> None:
        self._handle_line = handle_line
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._original = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        self._pipe, write_end = os.pipe()
        if sys.platform == "linux":
            # C code that writes while it holds Python's global lock must find room: the reading thread cannot run then.
            with contextlib.suppress(OSError):
                fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._ending, self._end = os.pipe()
        self._python = sys.stderr
        if _leads_to_2(sys.stderr):
            sys.stderr.flush()
            sys.stderr = self._original
        os.dup2(write_end, 2)
        os.close(write_end)
        if faulthandler.is_enabled():
            faulthandler.enable(self._original)  # a pipe would end with the process
        self._threads = [
            threading.Thread(target=work, name=f"native-stderr-{work.__name__.strip('_')}", daemon=True)
            for work in (self._read, self._handle)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore descriptor 2, and return when every line written before has been handled."""
        if self._original.closed:
            return
        atexit.unregister(self.close)
        gc.collect()  # gRPC's threads may write until its last object is collected
        os.dup2(self._original.fileno(), 2)
        os.close(self._end)
        for thread in self._threads:
            thread.join()
        if sys.stderr is self._original:
            sys.stderr = self._python
        if faulthandler.is_enabled():
            faulthandler.enable(2)
        os.close(self._pipe)
        os.close(self._ending)
        self._original.close()

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._ending, select.POLLIN)
        rest = b""
        # A child process may hold the pipe as its stderr, and then it never ends: hence the second pipe.
        while self._pipe in dict(poll.poll()):
            chunk = os.read(self._pipe, PIPE_BYTES)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LARGEST_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._lines.put(line)
        if rest:
            self._lines.put(rest)
        self._lines.put(None)

    def _handle(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._handle_line(line.decode("utf-8", "backslashreplace"))
            except Exception:
                _native.exception("native output could not be handled")


def _leads_to_2(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.fileno() == 2
    except (OSError, ValueError):  # captured by a test, or closed
        return False
