"""One table of errors and gRPC status codes, read by both ends.

An error travels as its code, its sentence in the status details, and its class and rule in the trailing metadata, and
is raised again on the other side as what it was. What is not in the table travels as INTERNAL without details.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from ce import errors
from ce.errors import CeError, JobFailed, LimitReached, Refused, Unreachable

CODES: dict[type[CeError], grpc.StatusCode] = {
    errors.UnknownJob: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.InputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotKnown: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    errors.VersionMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Replaced: grpc.StatusCode.ABORTED,
    errors.Unreachable: grpc.StatusCode.UNAVAILABLE,
    errors.Refused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.MessageError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.JobFailed: grpc.StatusCode.INTERNAL,
    errors.NotDone: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
}

_CLASSES = {kind.__name__: kind for kind in CODES}
_CLASS_KEY, _RULE_KEY = "ce-error", "ce-rule"

Trailer = tuple[tuple[str, str | bytes], ...]


def to_status(error: BaseException) -> tuple[grpc.StatusCode, str, Trailer]:
    """Code, details and trailing metadata of an error."""
    for kind in type(error).__mro__:
        if kind in CODES:
            trailer = [(_CLASS_KEY, kind.__name__)]
            rule = error.rule if isinstance(error, Refused) else ""
            if rule:
                trailer.append((_RULE_KEY, rule))
            return CODES[kind], str(error), tuple(trailer)
    return grpc.StatusCode.INTERNAL, "an unexpected error; the coordinator's log says more", ()


def from_status(code: grpc.StatusCode, details: str, trailer: Iterable[tuple[str, str | bytes]] | None) -> CeError:
    """The error that the other side raised; an Unreachable where there was no other side, or it had no room."""
    given = {key: value for key, value in trailer or () if isinstance(value, str)}
    kind = _CLASSES.get(given.get(_CLASS_KEY, ""))
    if kind is Refused:
        rule = given.get(_RULE_KEY, "")
        return Refused(rule, details.removesuffix(f" (rule: {rule})"))
    if kind is not None:
        return kind(details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return Unreachable(details or "no answer")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:  # gRPC itself counts streams, before our code is asked
        return LimitReached(f"the other side takes no more calls at once: try again later ({details or 'no details'})")
    return JobFailed(f"{details or 'no details'} ({code.name})")
