"""Whether a job can go on without sites that stay away, where it says on_dropout = "continue"."""

from __future__ import annotations

from collections.abc import Sequence

from ce.errors import JobFailed
from ce_coordinator.core.modes.sealed_rounds import SealedRounds

#: A job that begins again without some of its sites needs at least this many others.
FEWEST_SITES = 2


def cannot_go_on(
    absent: Sequence[str], roster: Sequence[str], sealed: SealedRounds | None, opened: bool
) -> JobFailed | None:
    """Why not; None: it can. `opened`: sealed, a share of this or an earlier attempt may have been opened.

    A sealed job whose tables are opened finishes the blocks in which nobody is missing, even at one site. Between the
    first share and that moment it cannot go on: the sum of all shares is what was paid for, and sites refuse another.
    """
    gone = set(absent) | (sealed.absent if sealed is not None else set())
    rest = [site for site in roster if site not in gone]
    if sealed is not None and sealed.stoppable:
        if rest:
            return None
        return JobFailed(f"{listed(absent)} stayed away, and no other site is left: see that the sites run")
    if opened:
        return JobFailed(
            f"{listed(absent)} stayed away after shares of the tables may have been opened: a sealed job then needs "
            "all its sites; see that they run, then submit the job under another name"
        )
    if len(rest) < FEWEST_SITES:
        reason = f"{listed(absent)} stayed away, and {len(rest)} site{'s' * (len(rest) != 1)} cannot go on alone"
        return JobFailed(f"{reason}: see that the sites run, then submit the job under another name")
    return None


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them."""
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] if names else ""
