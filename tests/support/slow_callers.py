"""Callers that gRPC would not be: HTTP/2 over mutual TLS by hand, a few bytes at a time."""

from __future__ import annotations

import socket
import ssl
import struct
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from ce.identity.names import COORDINATOR_SERVER_NAME
from ce.transport.tls import TlsCredentials

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_HEADERS, ACK = 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name: str, value: str) -> bytes:
    """A header that stands for itself, and is not remembered."""
    assert max(len(name), len(value)) < 127
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def request(path: str) -> bytes:
    given = {
        ":method": "POST",
        ":scheme": "https",
        ":path": path,
        ":authority": COORDINATOR_SERVER_NAME,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(header(name, value) for name, value in given.items())


class Dripping:
    """One connection, with one call on stream 1."""

    def __init__(self, port: int, own: TlsCredentials) -> None:
        context = ssl.create_default_context(cadata=own.authority.decode())
        context.set_alpn_protocols(["h2"])
        with tempfile.TemporaryDirectory() as directory:
            both = Path(directory) / "both.pem"
            both.touch(mode=0o600)
            both.write_bytes(own.key + own.certificate)
            context.load_cert_chain(both)
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket = context.wrap_socket(plain, server_hostname=COORDINATOR_SERVER_NAME)
        self._received = b""
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, content: bytes) -> None:
        self._socket.sendall(content)

    def call(self, path: str) -> None:
        self.send(frame(HEADERS, END_HEADERS, 1, request(path)))

    def next_frame(self, patience_s: float) -> tuple[int, int, bytes] | None:
        """Kind, flags and payload; None: nothing came in that time. Signs of life are answered."""
        self._socket.settimeout(patience_s)
        try:
            while True:
                if len(self._received) >= 9:
                    length = int.from_bytes(self._received[:3], "big")
                    if len(self._received) >= 9 + length:
                        kind, flags = self._received[3], self._received[4]
                        payload = self._received[9 : 9 + length]
                        self._received = self._received[9 + length :]
                        if kind in (PING, SETTINGS) and not flags & ACK:
                            self.send(frame(kind, ACK, 0, payload if kind == PING else b""))
                            continue
                        return kind, flags, payload
                if not (more := self._socket.recv(65536)):
                    return GOAWAY, 0, b""
                self._received += more
        except TimeoutError:
            return None

    def drip(self, bytes_: bytes, pause_s: float) -> tuple[int, bool]:
        """A byte now and then, until the call is ended. How many were sent, and whether it was ended."""
        for sent, byte in enumerate(bytes_):
            while (got := self.next_frame(pause_s)) is not None:
                if got[0] in (HEADERS, RST_STREAM, GOAWAY):
                    return sent, True
            self.send(frame(DATA, 0, 1, bytes([byte])))
        return len(bytes_), False
