"""Calls of the operator's commands to a coordinator."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from cryptography.hazmat.primitives.serialization import Encoding

from ce.cli.entry import run_async
from ce.errors import ConfigError
from ce.identity.certificates import check_issuer, check_matches_key, check_validity, identity_of, read_certificate
from ce.identity.keys import pem, read_key
from ce_coordinator.config import PASSPHRASE_VARIABLE, CoordinatorSettings

# gRPC is imported where it is used: `serve`, which lives beside these commands, must first say how much it is to log.
if TYPE_CHECKING:
    from ce.transport.tls import Credentials

Result = TypeVar("Result")


def open_credentials(settings: CoordinatorSettings) -> Credentials:
    """The operator's key and certificate. Raises ConfigError with what to do."""
    from ce.transport.tls import Credentials

    operator = settings.operator
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    given = None if passphrase is None else passphrase.encode()
    key = read_key(operator.key, given, hint=f"set {PASSPHRASE_VARIABLE}")
    certificate = read_certificate(operator.certificate)
    authority = read_certificate(settings.authority / "ca.pem")
    check_matches_key(certificate, key)
    check_issuer(certificate, authority)
    check_validity(certificate, datetime.now(UTC), f"the certificate {operator.certificate}")
    identity = identity_of(certificate, str(operator.certificate))
    if identity.role != "operator":
        raise ConfigError(f"{operator.certificate} is the certificate of {identity}, not of an operator")
    roots = authority.public_bytes(Encoding.PEM)
    return Credentials(pem(key), certificate.public_bytes(Encoding.PEM), roots)


@asynccontextmanager
async def coordinator(settings: CoordinatorSettings) -> AsyncIterator[Any]:
    """A stub of OperatorService; what goes wrong comes out as one of our errors."""
    import grpc

    from ce.transport.explain import explain
    from ce.transport.tls import open_channel
    from ce_proto.v1 import operator_pb2_grpc

    address = settings.operator.address
    channel = open_channel(address, open_credentials(settings))
    try:
        yield operator_pb2_grpc.OperatorServiceStub(channel)
    except grpc.aio.AioRpcError as error:
        raise explain(address, error) from error
    finally:
        await channel.close()


def call(settings: CoordinatorSettings, ask: Callable[[Any, float], Coroutine[Any, Any, Result]]) -> Result:
    """One call, from a command that is not asynchronous. `ask` gets the stub and the timeout."""

    async def run() -> Result:
        async with coordinator(settings) as stub:
            return await ask(stub, settings.operator.timeout_s)

    return run_async(run())
