"""The sites that the coordinator knows, and the open stream of each site that is connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ce.errors import MessageError, Replaced
from ce_coordinator.core.instructions import Close, Instruction, SaveSite, Session
from ce_coordinator.core.records import SiteRecord
from ce_proto.v1 import site_pb2 as pb

#: Minimum seconds between writes of a site's last_seen: a site that reconnects all the time must not fill the disk.
SEEN_S = 60.0


#: What an implementation of a site may leave out.
FEATURES = frozenset(
    (pb.FEATURE_CHECKPOINTS, pb.FEATURE_BLIND, pb.FEATURE_SOFT_LABELS, pb.FEATURE_SEALED, pb.FEATURE_SINGLE)
)


def read_lacks(hello: pb.Hello) -> frozenset[int]:
    """The features that a site leaves out. Raises MessageError for one that this version does not know."""
    lacks = frozenset(map(int, hello.lacks))
    if unknown := lacks - FEATURES:
        raise MessageError(f"lacks: expected features from 1 to {max(FEATURES)}, got {min(unknown)}")
    return lacks


@dataclass
class Connection:
    """A site's open stream."""

    session: Session
    site: str
    fingerprint: str
    software: str
    last_seen: float
    closed: bool = False  # by the coordinator; frames that the site sent before it noticed are ignored


class SiteDirectory:
    """Changes with each stream that opens or ends; returns the records to write and the streams to close."""

    def __init__(self, records: Iterable[SiteRecord]) -> None:
        self.records: dict[str, SiteRecord] = {record.name: record for record in records}
        self.connections: dict[str, Connection] = {}  # by site
        self.sessions: dict[str, Session] = {}  # by site
        self.by_session: dict[Session, Connection] = {}
        self.lacks: dict[str, frozenset[int]] = {}  # by site: features that it leaves out, as its last Hello said
        self._written: dict[str, SiteRecord] = {}  # as the store has them, since this process began

    def any_lacks(self, feature: int, sites: Iterable[str]) -> bool:
        """Whether the software of one of these sites leaves out a feature."""
        return any(feature in self.lacks.get(site, ()) for site in sites)

    def add_issued(self, fingerprints: Mapping[str, str]) -> None:
        """Sites that have a certificate are known before they first connect."""
        for name, fingerprint in fingerprints.items():
            self.records.setdefault(name, SiteRecord(name, fingerprint, 0.0, 0.0))

    def connect(
        self, session: Session, site: str, fingerprint: str, software: str, lacks: frozenset[int], now: float
    ) -> list[Instruction]:
        """A site has opened a stream, which replaces one that it had."""
        self.lacks[site] = lacks
        closed: list[Instruction] = []
        former = self.connections.get(site)
        if former is not None:
            del self.by_session[former.session]
            closed.append(Close(former.session, Replaced(f"site {site} has connected again")))
        connection = Connection(session, site, fingerprint, software, now)
        self.connections[site] = self.by_session[session] = connection
        self.sessions[site] = session
        return [*closed, *self._seen(site, fingerprint, now)]

    def disconnect(self, session: Session, now: float) -> tuple[str, list[Instruction]] | None:
        """The site whose stream has ended; None when another stream had replaced that one."""
        connection = self.by_session.pop(session, None)
        if connection is None:
            return None
        site = connection.site
        del self.connections[site], self.sessions[site]
        return site, self._seen(site, connection.fingerprint, now)

    def _seen(self, site: str, fingerprint: str, now: float) -> list[Instruction]:
        known = self.records.get(site)
        record = SiteRecord(site, fingerprint, now if known is None else known.first_seen or now, now)
        self.records[site] = record
        written = self._written.get(site)
        if written is not None and written.fingerprint == fingerprint and now - written.last_seen < SEEN_S:
            return []
        self._written[site] = record
        return [SaveSite(record)]
