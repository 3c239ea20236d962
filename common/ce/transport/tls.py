"""Channels and servers over mutual TLS 1.3, the only way in; and the settings that both ends of a stream share.

Why no older TLS can be spoken stands in this package's `__init__`, which has to come before gRPC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from ce.identity.keys import pem
from ce.identity.names import COORDINATOR_SERVER_NAME
from ce.identity.papers import Papers
from ce.transport.parts import LARGEST_FRAME

#: A silent peer is asked for a sign of life this often, and given up after the timeout.
KEEPALIVE_S = 10
KEEPALIVE_TIMEOUT_S = 5

_BOTH_ENDS = (
    ("grpc.max_receive_message_length", LARGEST_FRAME),
    ("grpc.max_send_message_length", LARGEST_FRAME),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True)
class Credentials:
    """What one end shows (key and certificate) and whom it believes (the authority); PEM."""

    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    authority: bytes = field(repr=False)

    @classmethod
    def of(cls, papers: Papers) -> Credentials:
        return cls(pem(papers.key), papers.certificate_pem, papers.authority_pem)


def open_channel(address: str, credentials: Credentials) -> grpc.aio.Channel:
    """A channel to a coordinator. An HTTP proxy of the environment (https_proxy, no_proxy) is honoured by gRPC."""
    return grpc.aio.secure_channel(
        address,
        grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate),
        options=(
            *_BOTH_ENDS,
            ("grpc.ssl_target_name_override", COORDINATOR_SERVER_NAME),
            # Whoever opens channels decides when to try again; a shared pool would keep its own idea of that.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ),
    )


def make_server(credentials: Credentials, address: str, *, most_rpcs: int | None = None) -> tuple[Any, int]:
    """A server that listens at `address` (host:port; port 0 takes a free one) once started, and its port.

    Raises OSError when the address cannot be had.
    """
    server = grpc.aio.server(
        options=(
            *_BOTH_ENDS,
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_S * 500),
            # Two coordinators on one port would each get some of the sites.
            ("grpc.so_reuseport", 0),
        ),
        maximum_concurrent_rpcs=most_rpcs,
    )
    secure = grpc.ssl_server_credentials(
        [(credentials.key, credentials.certificate)], credentials.authority, require_client_auth=True
    )
    try:
        port = server.add_secure_port(address, secure)
    except RuntimeError as error:
        raise OSError(f"cannot listen at {address}") from error
    return server, port
