"""Errors on their way through gRPC: each comes out as what it was, and gRPC's own words come out as a sentence."""

from __future__ import annotations

import grpc
import pytest

from ce import errors
from ce.errors import BrokenTotals, CeError, ConfigError, JobFailed, LimitReached, NotAllowed, Refused, Unreachable
from ce.transport.call_errors import explain
from ce.transport.grpc_errors import CODES, from_status, to_status

ADDRESS = "hub.example:8443"
SENTENCE = "Größe über 100 %: choose “another” one"


EVERY_ERROR = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CeError) and kind is not CeError
]


def made(kind: type[CeError]) -> CeError:
    if kind in (Refused, BrokenTotals):
        return kind("min_sites", SENTENCE)
    return kind(SENTENCE)


def failed(code: grpc.StatusCode, details: str, *trailer: tuple[str, str]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailer), details)


# The table.


@pytest.mark.parametrize("kind", CODES)
def test_an_error_of_the_table_comes_out_as_what_it_was(kind: type[CeError]) -> None:
    error = made(kind)
    code, details, trailer = to_status(error)
    assert code == CODES[kind]
    for again in (from_status(code, details, trailer), explain(ADDRESS, failed(code, details, *trailer))):
        assert type(again) is kind
        assert (str(again), again.exit_code) == (str(error), error.exit_code)
        assert getattr(again, "rule", None) == getattr(error, "rule", None)


@pytest.mark.promise("Every mistake in a file or a command is a sentence that says what to do, with its exit code.")
@pytest.mark.parametrize("kind", EVERY_ERROR)
def test_every_error_of_ours_keeps_its_sentence_and_its_exit_code(kind: type[CeError]) -> None:
    error = made(kind)
    again = from_status(*to_status(error))
    assert isinstance(error, type(again))
    assert (str(again), again.exit_code) == (str(error), error.exit_code)


def test_a_trailer_is_what_metadata_may_be() -> None:
    for kind in EVERY_ERROR:
        for key, value in to_status(made(kind))[2]:
            assert key == key.lower()
            assert isinstance(value, str)
            assert value.isascii()
            assert value.isprintable()


@pytest.mark.parametrize("error", [RuntimeError("patient 17"), KeyError("patient 17"), CeError("patient 17")])
def test_an_unexpected_error_says_nothing_to_the_other_side(error: Exception) -> None:
    code, details, trailer = to_status(error)
    assert code == grpc.StatusCode.INTERNAL
    assert "17" not in details
    assert trailer == ()
    assert type(from_status(code, details, trailer)) is JobFailed


def test_a_class_that_only_a_newer_version_knows_is_judged_by_its_code() -> None:
    trailer = (("ce-error", "Sleeping"), ("ce-rule-bin", b"\xff"))
    assert type(from_status(grpc.StatusCode.UNAVAILABLE, "asleep", trailer)) is Unreachable
    unknown = from_status(grpc.StatusCode.FAILED_PRECONDITION, "asleep", trailer)
    assert type(unknown) is JobFailed
    assert str(unknown) == "asleep (FAILED_PRECONDITION)"


def test_a_status_of_grpcs_own_that_there_is_no_room_asks_to_try_again() -> None:
    error = from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", None)
    assert type(error) is LimitReached
    assert "try again later" in str(error)


def test_a_status_without_a_word_is_still_a_sentence() -> None:
    assert str(from_status(grpc.StatusCode.UNAVAILABLE, "", None)) == "no answer"
    assert str(from_status(grpc.StatusCode.UNKNOWN, "", None)) == "no details (UNKNOWN)"


# gRPC's own words.

CONNECTING = "failed to connect to all addresses; last error: UNKNOWN: ipv4:192.0.2.1:8443: "
HANDSHAKE = (
    CONNECTING + "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1:SSL routines:OPENSSL_internal:"
)


@pytest.mark.parametrize(
    ("details", "kind", "sentence"),
    [
        (HANDSHAKE + "CERTIFICATE_VERIFY_FAILED: unable to get local issuer", ConfigError, "is ca.pem the one of this"),
        (HANDSHAKE + "CERTIFICATE_VERIFY_FAILED: certificate has expired", ConfigError, "clock of this machine right?"),
        (HANDSHAKE + "CERTIFICATE_VERIFY_FAILED: unsupported certificate purpose", ConfigError, "not a coordinator"),
        (CONNECTING + "Hostname Verification Check failed.", ConfigError, "not a coordinator"),
        (HANDSHAKE + "SSLV3_ALERT_HANDSHAKE_FAILURE: Invalid", ConfigError, "does not speak TLS 1.3"),
        (HANDSHAKE + "TLSV1_ALERT_PROTOCOL_VERSION", ConfigError, "does not speak TLS 1.3"),
        (HANDSHAKE + "WRONG_VERSION_NUMBER: Invalid", ConfigError, "does not speak TLS: is this the right port?"),
        (CONNECTING + "connect failed (111): Connection refused", Unreachable, "nothing listens"),
        ("DNS resolution failed for hub.example:8443: C-ares", Unreachable, "has no address"),
        (CONNECTING + "Network is unreachable", Unreachable, "is this machine online?"),
        (CONNECTING + "No route to host", Unreachable, "a firewall in between?"),
        (CONNECTING + "HTTP proxy returned response code 403", Unreachable, "does not let this machine through"),
        (CONNECTING + "Socket closed", Unreachable, "not accept this certificate (its log says which)"),
        ("recvmsg:Connection reset by peer", Unreachable, "not accept this certificate (its log says which)"),
        ("the moon is in the wrong phase", Unreachable, "is the coordinator running"),
        ("", Unreachable, "is the coordinator running"),
    ],
)
def test_why_nobody_could_be_reached_is_said_in_a_sentence(details: str, kind: type[CeError], sentence: str) -> None:
    error = explain(ADDRESS, failed(grpc.StatusCode.UNAVAILABLE, details))
    assert type(error) is kind
    assert ADDRESS in str(error)
    assert sentence in str(error)
    assert not any(word in str(error) for word in ("SSL", "ipv4:", "OPENSSL", "errno"))


@pytest.mark.parametrize(
    ("code", "details", "sentence"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "did not answer in time"),
        (grpc.StatusCode.INTERNAL, "Internal error from Core", "ended the stream while this side was writing"),
    ],
)
def test_a_call_that_breaks_off_can_be_tried_again(code: grpc.StatusCode, details: str, sentence: str) -> None:
    error = explain(ADDRESS, failed(code, details))
    assert type(error) is Unreachable
    assert str(error).startswith(f"{ADDRESS} {sentence}")


def test_what_the_other_side_says_counts_more_than_what_it_looks_like() -> None:
    code, details, trailer = to_status(Unreachable("stopping; Connection refused is not why"))
    assert str(explain(ADDRESS, failed(code, details, *trailer))) == details
    code, details, trailer = to_status(NotAllowed("not you"))
    assert type(explain(ADDRESS, failed(code, details, *trailer))) is NotAllowed
