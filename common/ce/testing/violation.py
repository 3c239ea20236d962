"""The end of a played world in which a promise is broken."""

from __future__ import annotations


class Violation(BaseException):
    """A promise is broken. Not an Exception: no defence of the code under test may catch it."""
