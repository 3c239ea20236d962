"""What adds up the rounds of a job in each privacy mode."""

from __future__ import annotations

from collections.abc import Callable

from ce.protocol.engine.aggregator import Aggregator, Progress
from ce.protocol.engine.home import Home
from ce.protocol.engine.shared_objects import Pseudonyms
from ce.protocol.modes.blind_coordinator import BlindCoordinator
from ce.protocol.topology.site_view import SiteView
from ce.steps.model import Model


def aggregator_for(
    mode: str,
    view: SiteView,
    model: Model,
    on_progress: Callable[[Progress], None] | None = None,
    pseudonyms: Pseudonyms | None = None,
) -> Aggregator:
    """A home that reads the totals (plain, masked), or a coordinator that cannot (blind)."""
    kind = BlindCoordinator if mode == "blind" else Home
    return kind(view, model, on_progress, pseudonyms=pseudonyms)
