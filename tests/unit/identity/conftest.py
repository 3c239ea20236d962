"""What tests of identities have in common: an authority, and a certificate that it has signed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from support.certificates import NOW

from ce.identity import (
    Authority,
    Identity,
    make_key,
)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority for tests that leave nothing in it that another would trip over."""
    return Authority.create(tmp_path_factory.mktemp("shared-ca"), NOW)


@pytest.fixture
def own_ca(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", NOW)


@pytest.fixture(scope="module")
def certificate(ca: Authority) -> x509.Certificate:
    return ca.issue(Identity("site", "of-fixture"), make_key(), NOW)
