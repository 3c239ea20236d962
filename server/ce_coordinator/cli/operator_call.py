"""Calls of the operator's commands to a coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ce.cli.entry import run_async
from ce.identity.credentials import Credentials
from ce_coordinator.config import PASSPHRASE_VARIABLE, CoordinatorSettings

# gRPC is imported where it is used: `serve`, a command of the same program, must set the log level of gRPC first.
if TYPE_CHECKING:
    from ce.transport.tls import TlsCredentials

Result = TypeVar("Result")


def open_credentials(settings: CoordinatorSettings) -> TlsCredentials:
    """The operator's key and certificate. Raises ConfigError with what to do."""
    from ce.transport.tls import TlsCredentials

    operator, authority = settings.operator, settings.authority / "ca.pem"
    return TlsCredentials.of(
        Credentials.open(
            operator.key,
            operator.certificate,
            authority,
            role="operator",
            passphrase_variable=PASSPHRASE_VARIABLE,
        )
    )


@asynccontextmanager
async def coordinator(settings: CoordinatorSettings) -> AsyncIterator[Any]:
    """A stub of OperatorService; gRPC errors are raised as CeError."""
    import grpc

    from ce.transport.call_errors import explain
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
    """One call, for a synchronous command. `ask` is called with the stub and the timeout in seconds."""

    async def run() -> Result:
        async with coordinator(settings) as stub:
            return await ask(stub, settings.operator.timeout_s)

    return run_async(run())
