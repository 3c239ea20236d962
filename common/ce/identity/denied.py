"""The deny list: keys that are refused although their certificates are still valid.

A text file with one fingerprint per line; `#` begins a comment. It is read again whenever it has changed, so that
denying a key needs no restart. While a line is not a fingerprint, or the file cannot be read, all keys that were denied
before stay denied.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ce.errors import ConfigError
from ce.identity.certificates import check_fingerprint_text
from ce.identity.files import read_public

_log = logging.getLogger(__name__)

#: The file has changed if any of these has; the last one changes with `chmod`.
_Stamp = tuple[int, int, int, int]


class DenyList:
    """The denied fingerprints of one file. A missing file denies no key.

    Raises ConfigError if the file exists but cannot be read: without it, denied keys would be accepted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # One attribute for both, so that two threads that read at the same time cannot mix stamp and list.
        self._known: tuple[_Stamp | None, frozenset[str]] = (None, frozenset())
        self._warned: str | None = None
        self._read_again()

    def denies(self, fingerprint: str) -> bool:
        """Whether the key of this fingerprint is denied, by the file as it is now."""
        try:
            self._read_again()
        except ConfigError as error:
            if self._warned != str(error):
                _log.warning("%s; keys that were denied before stay denied", error)
                self._warned = str(error)
        else:
            self._warned = None
        denied = self._known[1]
        return bool(denied) and check_fingerprint_text(fingerprint) in denied

    def _read_again(self) -> None:
        stamp = self._stamp_now()
        known, denied = self._known
        if stamp is None:
            self._known = (None, frozenset())
        elif stamp != known:
            # The stamp was taken before reading: a change in between is noticed at the next call.
            text = read_public(self._path).decode("utf-8-sig", errors="replace")
            self._known = (stamp, self._parse(text, denied))

    def _parse(self, text: str, before: frozenset[str]) -> frozenset[str]:
        listed: set[str] = set()
        malformed = False
        for number, line in enumerate(text.split("\n"), start=1):
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            try:
                listed.add(check_fingerprint_text(entry))
            except ConfigError:
                malformed = True
                _log.warning("%s, line %d: not a fingerprint; keys denied before stay denied", self._path, number)
        return frozenset(listed) | before if malformed else frozenset(listed)

    def _stamp_now(self) -> _Stamp | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be read: {error.strerror}") from error
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns
