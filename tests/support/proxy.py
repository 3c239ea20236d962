"""A TCP proxy to a port of this machine, with faults: connections can be reset, cut, stalled or slowed down."""

from __future__ import annotations

import socket
import threading
import time
from typing import Self

_RESET = b"\x01\0\0\0\0\0\0\0"  # SO_LINGER: on, 0 s


class Proxy:
    """A relay; with `http`, an HTTP proxy that always leads to the same port."""

    def __init__(self, target: int, *, http: bool = False) -> None:
        self._target = target
        self._http = http
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.requests: list[bytes] = []
        self.delay_s = 0.0
        self._flows = threading.Event()
        self._flows.set()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        self.cut()

    def reset(self) -> None:
        """Both ends of every open connection are told, at once, that it is no more."""
        self._end_all(_RESET)

    def cut(self) -> None:
        """Every open connection is closed, as at the end of a process."""
        self._end_all(None)

    def stall(self) -> None:
        """Nothing gets through, and nobody is told: a link that is down. New connections get nowhere either."""
        self._flows.clear()

    def restore(self) -> None:
        """The link is up again."""
        self._flows.set()

    def _end_all(self, linger: bytes | None) -> None:
        self._flows.set()
        for end in self._open:
            try:
                if linger is not None:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._http:
                request = b""
                while b"\r\n\r\n" not in request:
                    request += near.recv(4096)
                self.requests.append(request)
                near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # nobody listens: neither does this
                near.close()
                continue
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._flows.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
