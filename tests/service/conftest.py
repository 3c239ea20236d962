"""What holds for all tests of the service."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _environment_as_it_was() -> Iterator[None]:
    """`serve` tells gRPC through the environment to say more; a test that runs it here must not tell other tests."""
    before = os.environ.get("GRPC_VERBOSITY")
    yield
    if before is None:
        os.environ.pop("GRPC_VERBOSITY", None)
    else:
        os.environ["GRPC_VERBOSITY"] = before
