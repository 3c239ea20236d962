"""What was asked of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from harness.measurement import Measurement


@dataclass(frozen=True)
class Options:
    full: bool = False
    out: Path = field(default_factory=lambda: Path("build/bench"))
    before: Path | None = None  # the python of another version's environment
    data: Path | None = None  # a folder of data sets
    no_install: bool = False  # other frameworks are measured only where they are installed already

    def turns(self, few: int, many: int) -> int:
        """Repetitions in a short run and in a full one."""
        return many if self.full else few


#: A part sets up what it needs, hands out its measurements, and takes everything down again.
Part = Callable[[Options], AbstractContextManager[list[Measurement]]]
