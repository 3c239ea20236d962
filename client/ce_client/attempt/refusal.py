"""The refusal that a site sends: which rule, and a sentence that gives away nothing that others must not know.

Until masked words have left this site, a refusal names its rule and says why. Afterwards a coordinator could change
what it sends and learn from the reason what the totals are: every failure is then told in the same bytes, whatever
has failed. The log and the records of this site have the error itself.
"""

from __future__ import annotations

from ce.errors import CeError, ConfigError, InputError, JobFailed, Refused
from ce.labels.randomised import RULE as DECLARED
from ce.protocol.attempt import Attempt
from ce_client.state.randomisations import RULE as ONE_RANDOMISATION
from ce_client.state.rosters import RULE as ONE_ROSTER
from ce_proto.v1 import site_pb2 as pb

#: Longest sentence of a refusal, in characters.
LONGEST_SENTENCE = 1000
#: All that a coordinator is told of a failure after masked words have left this site.
CANNOT_GO_ON = "this site cannot go on; its log says why"

#: The sentences of rules whose own sentence is about this site's files and its other jobs.
_SHORT = {
    ONE_ROSTER: "this site has contributed the same labels with other sites",
    DECLARED: "this site randomises labels, and has not declared the categories of all its columns",
    ONE_RANDOMISATION: "this site has contributed the same labels before, randomised in another way",
}


def refusal_frame(attempt: Attempt, error: CeError) -> pb.SiteFrame:
    """The refusal of an attempt because of an error, before anything masked has left."""
    rule = error.rule if isinstance(error, Refused) else ""
    sentence = _sentence(error).removesuffix(f" (rule: {rule})")[:LONGEST_SENTENCE]
    return _frame(attempt, error.exit_code, rule, sentence)


def uniform_refusal_frame(attempt: Attempt) -> pb.SiteFrame:
    """The refusal of an attempt after masked words have left: the same for every error."""
    return _frame(attempt, JobFailed.exit_code, "", CANNOT_GO_ON)


def _frame(attempt: Attempt, exit_code: int, rule: str, sentence: str) -> pb.SiteFrame:
    refusal = pb.Refusal(job=attempt.job, epoch=attempt.epoch, exit_code=exit_code, rule=rule, sentence=sentence)
    return pb.SiteFrame(refusal=refusal)


def _sentence(error: CeError) -> str:
    """The sentence that is sent to the coordinator; nothing about this site's files and its other jobs."""
    if isinstance(error, Refused) and error.rule in _SHORT:
        return _SHORT[error.rule]
    if isinstance(error, InputError):
        return "the labels of this site cannot be used; its log says why"
    if isinstance(error, ConfigError):
        return "the configuration of this site cannot be used; its log says why"
    return str(error)
