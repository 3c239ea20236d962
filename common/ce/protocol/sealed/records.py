"""The durable memory of one site of one sealed job: what must survive a crash so that nothing is opened twice.

`SealedSite` calls it; a daemon implements it on its disk (`ce_client.state.releases`), `MemoryRecords` in memory, for
simulations and tests. Every method that returns has its effect on the disk: a share is opened only after `open`
returned, and labels only after `enter` did. Seeds, masked rows and openings of the tournament are never recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from ce.errors import Refused
from ce.protocol.topology.topology import Rows

#: "committed": written, never sent; may be deleted. "opening": charged, and sent or about to be.
#: "failed": the dealer's words were wrong; charged, and this site answers no further attempt of the job.
ReleaseState = Literal["committed", "opening", "failed"]
#: "settled": written, never sent. "entered": in the ledger; only these bytes may be sent, in any attempt.
LabelState = Literal["settled", "entered"]


@dataclass(frozen=True)
class ReleaseRequest:
    """What a site is about to spend in a job, for all objects that it brings into it."""

    rho: float  # by the noise of this job, for one row of this site; infinite: without noise
    delta: float
    rows: Rows = field(repr=False)  # positions in the site's input of all objects: each is charged rho
    shared: Rows = field(repr=False)  # of these, the objects that get a label together with other sites, once


@dataclass(frozen=True)
class ReleaseRecord:
    """A site's share of the tables."""

    origin: int  # the epoch in which it was made
    context: bytes = field(repr=False)  # what it is a share of: terms, roster, enrolments
    state: ReleaseState
    nonce: bytes = field(default=b"", repr=False)
    share: bytes = field(default=b"", repr=False)  # packed words, exactly what is sent
    commitments: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # of all sites, from "opening" on
    model: bytes = field(default=b"", repr=False)  # the model that this site has accepted; empty: none


@dataclass(frozen=True)
class LabelRecord:
    """A site's share of the winners of one block."""

    origin: int  # the epoch in which it was made
    state: LabelState
    share: bytes = field(repr=False)  # one byte per row, dummies too
    key: bytes = field(repr=False)  # of the order of the rows and of the dummies
    nonce: bytes = field(repr=False)
    commitments: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # of all members, once "entered"
    n_clusters: int = 0  # of the model that was scored


class Records(Protocol):
    """One site's records of one job, over all its attempts."""

    def reserve(self, request: ReleaseRequest) -> None:
        """Reserve rho and the one labelling of each shared object, under one lock. Raises Refused, naming the rule,
        where a budget or a labelling is spent. Again for the same job: replaces the reservation."""

    def release(self) -> ReleaseRecord | None:
        """The share of this job; None: there is none."""

    def commit(self, origin: int, context: bytes, nonce: bytes, share: bytes) -> None:
        """Write a finished share. Only where there is none."""

    def open(self, commitments: Mapping[str, bytes]) -> None:
        """Charge what is reserved and turn the share to "opening", atomically. Nothing where it is so already."""

    def discard(self) -> None:
        """Delete a share that was never opened, and free the reservation."""

    def fail(self, origin: int, context: bytes) -> None:
        """Charge what is reserved: the dealer's words were wrong, and that a check failed may tell something."""

    def accept_model(self, model: bytes) -> None:
        """Write the model that this site has accepted. Only after `open`, and once."""

    def labels(self, block: bytes) -> LabelRecord | None:
        """The share of the winners of a block, by its digest; None: there is none."""

    def settle(self, block: bytes, origin: int, share: bytes, key: bytes, nonce: bytes, n_clusters: int) -> None:
        """Write a finished share of winners. Only where there is none."""

    def enter(self, block: bytes, rows: Rows, commitments: Mapping[str, bytes]) -> None:
        """Enter these objects in the ledger and turn the share to "entered", atomically. Nothing where it is so
        already. Raises Refused where one of them was labelled in another job and no person has allowed it, or in
        another block of this job."""

    def discard_labels(self, block: bytes) -> None:
        """Delete a share of winners that was never entered."""


@dataclass
class MemoryRecords:
    """Records of one job in memory, with a budget of their own; counts what was charged."""

    most_rho: float = float("inf")
    charged: list[float] = field(default_factory=list)  # one entry for each charge
    entered: list[bytes] = field(default_factory=list)  # blocks, one entry for each time that a block was entered
    _reserved: ReleaseRequest | None = None
    _release: ReleaseRecord | None = None
    _labels: dict[bytes, LabelRecord] = field(default_factory=dict)
    _labelled: set[int] = field(default_factory=set)  # rows of the site's input

    def reserve(self, request: ReleaseRequest) -> None:
        if sum(self.charged) + request.rho > self.most_rho:
            raise Refused("max_epsilon", "the budget of this site's objects is spent")
        self._reserved = request

    def release(self) -> ReleaseRecord | None:
        return self._release

    def commit(self, origin: int, context: bytes, nonce: bytes, share: bytes) -> None:
        assert self._release is None
        assert self._reserved is not None
        self._release = ReleaseRecord(origin, context, "committed", nonce, share)

    def open(self, commitments: Mapping[str, bytes]) -> None:
        assert self._release is not None
        if self._release.state == "committed":
            self._charge()
            self._release = replace(self._release, state="opening", commitments=dict(commitments))

    def discard(self) -> None:
        assert self._release is None or self._release.state == "committed"
        self._release = self._reserved = None

    def fail(self, origin: int, context: bytes) -> None:
        assert self._release is None
        self._charge()
        self._release = ReleaseRecord(origin, context, "failed")

    def accept_model(self, model: bytes) -> None:
        assert self._release is not None
        assert self._release.state == "opening"
        assert not self._release.model
        self._release = replace(self._release, model=model)

    def labels(self, block: bytes) -> LabelRecord | None:
        return self._labels.get(block)

    def settle(self, block: bytes, origin: int, share: bytes, key: bytes, nonce: bytes, n_clusters: int) -> None:
        assert block not in self._labels
        self._labels[block] = LabelRecord(origin, "settled", share, key, nonce, n_clusters=n_clusters)

    def enter(self, block: bytes, rows: Rows, commitments: Mapping[str, bytes]) -> None:
        record = self._labels[block]
        if record.state == "settled":
            if not self._labelled.isdisjoint(rows.tolist()):
                raise Refused("one labelling", "another block of this job has labelled some of the same objects")
            self._labelled.update(rows.tolist())
            self.entered.append(block)
            self._labels[block] = replace(record, state="entered", commitments=dict(commitments))

    def discard_labels(self, block: bytes) -> None:
        record = self._labels.pop(block, None)
        assert record is None or record.state == "settled"

    def _charge(self) -> None:
        assert self._reserved is not None
        self.charged.append(self._reserved.rho)
