"""Certificates and servers that nobody should believe: what an attacker, or a mistake, could bring to a deployment.

They are made here from nothing, because the product makes none of them.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ce.identity.authority import Authority
from ce.identity.keys import read_key
from ce.transport.tls import TlsCredentials

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
#: A connection to a false server that says nothing for so long is given up.
PATIENCE_S = 5.0


def forge(
    believed: Authority,
    *names: str,
    signed_by: Authority | None = None,
    from_day: float = -1.0,
    to_day: float = 1.0,
    usage: x509.ObjectIdentifier = CLIENT,
    dns: Iterable[str] = (),
    curve: ec.EllipticCurve | None = None,
) -> TlsCredentials:
    """A new key and a certificate with these URI names, for somebody who believes an authority.

    Without `signed_by` the certificate is signed with its own key. Days count from now.
    """
    key = ec.generate_private_key(curve or ec.SECP256R1())
    own_name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "nobody")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own_name)
        .issuer_name(own_name if signed_by is None else signed_by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=from_day))
        .not_valid_after(now + timedelta(days=to_day))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    alternative = [*map(x509.UniformResourceIdentifier, names), *map(x509.DNSName, dns)]
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    signing_key = key if signed_by is None else read_key(signed_by.directory / "ca.key")
    return TlsCredentials(
        key.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        builder.sign(signing_key, hashes.SHA256()).public_bytes(Encoding.PEM),
        believed.certificate.public_bytes(Encoding.PEM),
    )


def write_pair(directory: Path, credentials: TlsCredentials) -> tuple[Path, Path]:
    """Certificate and key as files, which is how Python's TLS wants them."""
    certificate, key = directory / "pair.pem", directory / "pair.key"
    certificate.write_bytes(credentials.certificate)
    key.write_bytes(credentials.key)
    return certificate, key


class FalseServer:
    """Listens in a coordinator's place on the loopback interface, until closed; shows what a test gives it.

    `heard` is what callers said to it once they had accepted its certificate, and over which version of TLS.
    """

    def __init__(self, directory: Path) -> None:
        self.heard: list[tuple[str | None, bytes]] = []
        self._directory = directory
        self._context: ssl.SSLContext | None = None  # None: no TLS at all
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def show(self, credentials: TlsCredentials, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        """From the next connection on, this certificate and no newer version of TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = newest
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(*write_pair(self._directory, credentials))
        self._context = context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone would not wake the thread that waits for the next connection.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(PATIENCE_S)
                with contextlib.suppress(OSError):  # the caller hangs up, as it should
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        if self._context is None:
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return
        with self._context.wrap_socket(connection, server_side=True) as secured:
            said = secured.recv(100)
            if said:
                self.heard.append((secured.version(), said))
