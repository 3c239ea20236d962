"""The caller's identity, from the certificate of its connection, and whether it may make this call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ce.errors import ConfigError, NotAllowed, NotKnown
from ce.identity.certificates import fingerprint, identity_of, parse_certificate
from ce.identity.denied import DenyList
from ce.identity.names import Role


@dataclass(frozen=True)
class Caller:
    """A peer whose certificate the TLS handshake has accepted."""

    role: Role
    name: str
    fingerprint: str


class Authorisation:
    """Decides who may call what. The deny list is read again whenever it changes: no restart is needed."""

    def __init__(self, denied: DenyList) -> None:
        self._denied = denied

    def admit(self, context: Any, role: Role) -> Caller:
        """The caller of a call that is for this role. Raises NotKnown or NotAllowed."""
        certificates = context.auth_context().get("x509_pem_cert", [])
        if not certificates:
            raise NotKnown("this connection has no certificate")
        try:
            certificate = parse_certificate(certificates[0])
            identity = identity_of(certificate)
        except ConfigError as error:
            raise NotKnown("the certificate of this connection names no identity (no ce:// name)") from error
        try:
            caller = Caller(identity.role, identity.name, fingerprint(certificate))
        except ConfigError as error:
            raise NotKnown("the key in the certificate of this connection is of a kind that ce does not use") from error
        if caller.role != role:
            raise NotAllowed(f"the certificate is that of {identity}: this call is for {role}s")
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raises NotAllowed if the caller's key is on the deny list."""
        if self._denied.denies(caller.fingerprint):
            raise NotAllowed(f"the key of {caller.role} {caller.name} is on the coordinator's deny list")
