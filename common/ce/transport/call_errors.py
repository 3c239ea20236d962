"""Why a call failed, as a sentence that says what to do: gRPC's own words are for its developers."""

from __future__ import annotations

import grpc

from ce.errors import CeError, ConfigError, Unreachable
from ce.transport.grpc_errors import from_status

_NOT_A_COORDINATOR = "what answers at {address} is not a coordinator: its certificate has another name or purpose"
_NOT_TLS_1_3 = (
    "what answers at {address} does not speak TLS 1.3: is this the right port, or is something else in between?"
)

#: The first that is found counts.
_SIGNS: tuple[tuple[str, type[CeError], str], ...] = (
    # A site's key in the coordinator's place.
    ("unsupported certificate purpose", ConfigError, _NOT_A_COORDINATOR),
    ("Hostname Verification Check failed", ConfigError, _NOT_A_COORDINATOR),
    (
        "CERTIFICATE_VERIFY_FAILED",
        ConfigError,
        "the certificate that {address} shows is not valid here: is ca.pem the one of this coordinator, and is the "
        "clock of this machine right?",
    ),
    ("ALERT_HANDSHAKE_FAILURE", ConfigError, _NOT_TLS_1_3),
    ("ALERT_PROTOCOL_VERSION", ConfigError, _NOT_TLS_1_3),
    ("WRONG_VERSION_NUMBER", ConfigError, "what answers at {address} does not speak TLS: is this the right port?"),
    ("Connection refused", Unreachable, "nothing listens at {address}: is the coordinator running, is the port right?"),
    ("DNS resolution failed", Unreachable, "the host in {address} has no address: is its name right?"),
    ("hostname lookup error", Unreachable, "the host in {address} has no address: is its name right?"),
    ("Name or service not known", Unreachable, "the host in {address} has no address: is its name right?"),
    ("Network is unreachable", Unreachable, "there is no way to {address} from here: is this machine online?"),
    ("No route to host", Unreachable, "there is no way to {address} from here: is a firewall in between?"),
    ("HTTP proxy returned response code", Unreachable, "the HTTP proxy does not let this machine through to {address}"),
    (
        "Socket closed",
        Unreachable,
        "{address} closed the connection: it may be stopping, or not accept this certificate (its log says which)",
    ),
    (
        "Connection reset",
        Unreachable,
        "{address} closed the connection: it may be stopping, or not accept this certificate (its log says which)",
    ),
)


#: gRPC for Python says this instead of the status that a stream has ended with, when a write comes too late.
LOST = "Internal error from Core"


def explain(address: str, error: grpc.aio.AioRpcError) -> CeError:
    """The error that a call to `address` ended with."""
    details = error.details() or ""
    trailer = list(error.trailing_metadata() or ())
    if error.code() == grpc.StatusCode.UNAVAILABLE and not any(key == "ce-error" for key, _ in trailer):
        for sign, kind, sentence in _SIGNS:
            if sign.lower() in details.lower():
                return kind(sentence.format(address=address))
        return Unreachable(f"{address} cannot be reached: is the coordinator running, is a firewall in between?")
    if error.code() == grpc.StatusCode.INTERNAL and details == LOST:
        return Unreachable(f"{address} ended the stream while this side was writing (its log says why)")
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable(f"{address} did not answer in time")
    return from_status(error.code(), details, trailer)
