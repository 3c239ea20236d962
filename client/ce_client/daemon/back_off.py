"""How long a daemon waits before it connects again, and when it logs why it is not connected.

A coordinator that cannot be reached is tried about once a second: it may be back any moment. One that refuses this site
(a denied key, a wrong certificate, another version) will go on to do so until a person changes something: each try
waits twice as long as the one before, up to a minute.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from ce.errors import CeError, ConfigError, Unreachable
from ce.service.logs import fields

log = logging.getLogger("ce_client")

#: Shortest and longest pause before the next connection, in seconds.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
#: The same after a refusal.
FIRST_REFUSED_S, LONGEST_REFUSED_S = 1.0, 64.0
#: Seconds after which the same reason for not being connected is logged again.
REPEAT_REASON_S = 60.0


class BackOff:
    """The pauses of one daemon."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pause, self._refused = FIRST_PAUSE_S, 0.0
        self._reason, self._reason_at = "", 0.0

    def connected(self) -> None:
        """The coordinator has let this site in."""
        self._pause, self._refused = FIRST_PAUSE_S, 0.0
        self._reason = ""

    def failed(self, error: CeError) -> float:
        """Seconds to wait after this error, drawn so that many sites do not connect at the same time; logs it."""
        if isinstance(error, ConfigError):
            self._refused = min(2 * self._refused, LONGEST_REFUSED_S) or FIRST_REFUSED_S
            pause = self._refused
            log.error("not connected; trying again", extra=fields(reason=str(error), after_s=round(pause)))
            self._reason = str(error)
        else:
            self._refused = 0.0
            pause = self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
            self._log(error)
        return pause * random.uniform(0.7, 1.0)

    def _log(self, error: CeError) -> None:
        """At once if the reason is new, else once in `REPEAT_REASON_S`."""
        now = self._clock()
        if str(error) != self._reason or now - self._reason_at > REPEAT_REASON_S:
            self._reason, self._reason_at = str(error), now
            level = logging.WARNING if isinstance(error, Unreachable) else logging.ERROR
            log.log(level, "not connected; trying again", extra=fields(reason=str(error)))
