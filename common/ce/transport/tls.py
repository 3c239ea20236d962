"""Channels and servers over mutual TLS 1.3, the only way in; and the settings that both ends of a stream share.

Why no older TLS can be spoken stands in this package's `__init__`, which has to come before gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from ce.identity.credentials import Credentials
from ce.identity.keys import pem
from ce.identity.names import COORDINATOR_SERVER_NAME
from ce.transport.array_chunks import LARGEST_FRAME

#: A silent peer is asked for a sign of life this often, and given up after the timeout: a cut link is noticed within
#: three seconds. To give up a stream costs little: the next one goes on where it was.
KEEPALIVE_S = 1.0
KEEPALIVE_TIMEOUT_S = 1.8

#: A connection must have shown its certificate within this, and may be without a call for so long.
HANDSHAKE_S = 10
IDLE_S = 60

#: Bytes that may be on their way to a peer that does not read: a site has one stream, a coordinator one of each site,
#: and memory for each. What a link can carry at most is this much in the time that a signal takes there and back.
WINDOW_OF_SITE, WINDOW_OF_COORDINATOR = 2**23, 2**18

_BOTH_ENDS = (
    ("grpc.max_receive_message_length", LARGEST_FRAME),
    ("grpc.max_send_message_length", LARGEST_FRAME),
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC itself would let what waits to be read grow with the speed of the link, from 16 MiB for each stream on.
    ("grpc.http2.bdp_probe", 0),
)


@dataclass(frozen=True)
class TlsCredentials:
    """What one end shows (key and certificate) and whom it believes (the authority); PEM."""

    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    authority: bytes = field(repr=False)

    @classmethod
    def of(cls, credentials: Credentials) -> TlsCredentials:
        return cls(pem(credentials.key), credentials.certificate_pem, credentials.authority_pem)


def open_channel(address: str, credentials: TlsCredentials) -> grpc.aio.Channel:
    """A channel to a coordinator. An HTTP proxy of the environment (https_proxy, no_proxy) is honoured by gRPC."""
    return grpc.aio.secure_channel(
        address,
        grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate),
        options=(
            *_BOTH_ENDS,
            ("grpc.http2.lookahead_bytes", WINDOW_OF_SITE),
            ("grpc.ssl_target_name_override", COORDINATOR_SERVER_NAME),
            # The caller that opens channels decides when to try again; a shared pool would keep its own idea of that.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ),
    )


def make_server(
    credentials: TlsCredentials,
    address: str,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    *,
    most_streams: int | None = None,
) -> tuple[Any, int]:
    """A server that listens at `address` (host:port; port 0 takes a free one) once started, and its port.

    `most_streams`: on one connection; a caller who asks for more waits. Raises OSError when the address cannot be had.
    """
    server = grpc.aio.server(
        options=(
            *_BOTH_ENDS,
            ("grpc.http2.lookahead_bytes", WINDOW_OF_COORDINATOR),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_S * 500)),
            # Two coordinators on one port would each get some of the sites.
            ("grpc.so_reuseport", 0),
            # Unused connections are closed: those that never show a certificate, those without a call.
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
            ("grpc.max_connection_idle_ms", IDLE_S * 1000),
            *((("grpc.max_concurrent_streams", most_streams),) if most_streams else ()),
        ),
        interceptors=tuple(interceptors),
    )
    secure = grpc.ssl_server_credentials(
        [(credentials.key, credentials.certificate)], credentials.authority, require_client_auth=True
    )
    try:
        port = server.add_secure_port(address, secure)
    except RuntimeError as error:
        raise OSError(f"cannot listen at {address}") from error
    return server, port
