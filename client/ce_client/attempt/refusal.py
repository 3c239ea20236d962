"""The refusal that a site sends: which rule, and a sentence that gives away nothing that others must not know."""

from __future__ import annotations

from ce.errors import BrokenTotals, CeError, ConfigError, InputError, Refused
from ce.protocol.attempt import Attempt
from ce_client.state.rosters import RULE as ONE_ROSTER
from ce_proto.v1 import site_pb2 as pb

#: Longest sentence of a refusal, in characters.
LONGEST_SENTENCE = 1000


def refusal_frame(attempt: Attempt, error: CeError, privacy: str) -> pb.SiteFrame:
    """The refusal of an attempt because of an error; `privacy` is the job's mode, empty if it is not known."""
    rule = error.rule if isinstance(error, Refused) else ""
    if _tells_totals(error, privacy):
        rule = ""
    sentence = _sentence(error, privacy).removesuffix(f" (rule: {rule})")[:LONGEST_SENTENCE]
    return pb.SiteFrame(
        refusal=pb.Refusal(
            job=attempt.job, epoch=attempt.epoch, exit_code=error.exit_code, rule=rule, sentence=sentence
        )
    )


def _tells_totals(error: CeError, privacy: str) -> bool:
    """True if the error tells something about totals that the coordinator of a blind job cannot see."""
    return privacy == "blind" and (isinstance(error, BrokenTotals) or getattr(error, "rule", "") == "overlapping cells")


def _sentence(error: CeError, privacy: str) -> str:
    """The sentence that is sent to the coordinator.

    It says nothing about this site's files and its other jobs, nor about totals that the coordinator cannot see. The
    log of this site has the error itself.
    """
    if isinstance(error, Refused) and error.rule == ONE_ROSTER:
        return "this site has contributed the same labels with other sites"
    if _tells_totals(error, privacy):
        return (
            "the totals cannot be used; the log of this site says why. Any site of the job, or the coordinator, may "
            "have sent a false number"
        )
    if isinstance(error, InputError):
        return "the labels of this site cannot be used; its log says why"
    if isinstance(error, ConfigError):
        return "the configuration of this site cannot be used; its log says why"
    return str(error)
