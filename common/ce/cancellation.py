"""A computation that is of no use any more ends at its next check: between passes, tiles, stretches of objects or ids.

A daemon computes on a thread and keeps the `Cancellation` that it was started with. It requests the end when the job is
over, when another attempt replaces this one, or when the daemon stops. Without a daemon the checks do nothing.

    with cancellable(cancellation):
        site.answer(task)  # raises ComputationCancelled soon after cancellation.request()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

#: Items of a long loop between two checks.
BATCH = 4096


class ComputationCancelled(Exception):
    """The result of a computation is of no use any more. Not an error: nobody waits for the result."""


class Cancellation:
    """A request to end a computation; made by one thread, seen by another."""

    def __init__(self) -> None:
        self.requested = False

    def request(self) -> None:
        self.requested = True

    def check(self) -> None:
        """Raises ComputationCancelled once the end was requested."""
        if self.requested:
            raise ComputationCancelled


_current: ContextVar[Cancellation | None] = ContextVar("ce_cancellation", default=None)


@contextmanager
def cancellable(cancellation: Cancellation) -> Iterator[None]:
    """What is computed here, on this thread, ends when the cancellation is requested."""
    before = _current.set(cancellation)
    try:
        yield
    finally:
        _current.reset(before)


def check_cancelled() -> None:
    """Raises ComputationCancelled if the computation of this thread is of no use any more."""
    cancellation = _current.get()
    if cancellation is not None:
        cancellation.check()


def checked(items: Iterable[Item]) -> Iterator[Item]:
    """The items, with a check before every `BATCH` of them."""
    for number, item in enumerate(items):
        if not number % BATCH:
            check_cancelled()
        yield item
