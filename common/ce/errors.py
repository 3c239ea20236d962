"""Every error that ce raises on purpose, and the exit code it ends a command with.

    CeError
    ├── InputError (3)        a label file, a table or a parameter that cannot be used
    │   ├── LabelError        ... in a label file or table: names file, row and column
    │   │   └── UnknownColumn ... which has no column of that name
    │   ├── UnknownJob        no job has this name
    │   └── AlreadyExists     another job has this name
    ├── ConfigError (4)       a job.toml, configuration, policy or certificate that cannot be used
    │   ├── UnknownModel      no model of this name is installed here
    │   ├── BrokenModel       an installed package offers a model that cannot be used
    │   ├── NotKnown          the certificate of a caller has no identity
    │   ├── NotAllowed        the identity of a caller may not do this
    │   └── VersionMismatch   both ends have no protocol version in common
    ├── Unreachable (5)       the other end does not answer
    │   ├── Replaced          the same site has connected again
    │   └── LimitReached      a limit is reached: try again later
    ├── Refused (6)           a rule refuses it; `rule` names the rule
    ├── JobFailed (7)         the job ended without a result
    │   ├── NotDone           the job has no result yet
    │   ├── BrokenTotals      totals that no labels can have: masks did not cancel, or sums are false
    │   ├── AlteredTotals     totals that the sites did not add up (blind): their tag is another one
    │   ├── RingOverflow      a value exceeds the limit that was declared for its sum
    │   └── MessageError      a message that the protocol does not allow
    └── Cancelled (8)         the job was cancelled

`ConvergenceWarning` is no error: a fit stopped at its limit of iterations, and its result can be used.

A message says what to do next. It never contains a label, an object id, a key or a payload: rows are named by
number, columns and sites by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

#: Sites that one sentence names.
MOST_NAMED = 10


class CeError(Exception):
    """Base class of all errors that ce raises on purpose.

    Next: see which error it is.
    """

    exit_code: ClassVar[int] = 1


class InputError(CeError, ValueError):
    """A parameter, a table or a file that cannot be used as it is.

    Next: the sentence names what was given and what was expected; correct it and try again.
    """

    exit_code = 3


class LabelError(InputError):
    """A label file or table that cannot be used. The error names the file, row and column.

    `row` is the line in an editor (the header is line 1) for files, and the 0-based index for arrays.

    Next: look at the row and the column that are named; `ce-client check` reads the file as a job would.
    """

    def __init__(
        self, problem: str, *, source: str | None = None, row: int | None = None, column: str | None = None
    ) -> None:
        self.problem = problem
        self.source = source
        self.row = row
        self.column = column
        place = ", ".join(
            part
            for part in (
                source,
                None if row is None else f"row {row}",
                None if column is None else f"column {column!r}",
            )
            if part
        )
        super().__init__(f"{place}: {problem}" if place else problem)


class UnknownColumn(LabelError):
    """A column that the file or table does not have.

    Next: the sentence lists the columns that it has.
    """


class UnknownJob(InputError):
    """No job has this name.

    Next: `ce-coordinator list`, or `ce-client jobs`.
    """


class AlreadyExists(InputError):
    """Another job has this name, or another submission this token.

    Next: choose another name; the name of a job is never used again.
    """


class ConfigError(CeError, ValueError):
    """A job, a configuration, a policy or a certificate that cannot be used.

    Next: the sentence names the file and the key; `ce-coordinator check` and `ce-client check` read all of them.
    """

    exit_code = 4


class UnknownModel(ConfigError):
    """A model that is neither built in nor offered by an installed package.

    Next: the sentence lists those that there are; install the package of the model, at every site and at the
    coordinator, or choose another.
    """


class BrokenModel(ConfigError):
    """A model of an installed package that cannot be used; names the package.

    Next: repair the package, or uninstall it; the built-in models work without it.
    """


class NotKnown(ConfigError):
    """The certificate of a caller has no identity.

    Next: use the certificate that the operator of this coordinator has signed.
    """


class NotAllowed(ConfigError):
    """The identity of a caller may not do what it asks for.

    Next: sites connect, operators submit: use the credentials of the right one, or ask the operator whether the key is
    denied.
    """


class VersionMismatch(ConfigError):
    """Two ends that have no protocol version in common.

    Next: install the same release at both ends.
    """


class Unreachable(CeError, ConnectionError):
    """The other end does not answer.

    Next: check that it runs, that the address is right and that no firewall is in between; then try again.
    """

    exit_code = 5


class Replaced(Unreachable):
    """The same site has connected again; only its newest connection is used.

    Next: stop the second daemon that runs under this name.
    """


class LimitReached(Unreachable):
    """Too many connections, jobs or bytes at once.

    Next: try again later, or ask the operator to raise the limit.
    """


class Refused(CeError):
    """A rule refuses it, before anything is computed or sent; `rule` names the rule.

    Next: look the rule up in the list of rules.
    """

    exit_code = 6

    def __init__(self, rule: str, sentence: str) -> None:
        self.rule = rule
        super().__init__(f"{sentence} (rule: {rule})")


class JobFailed(CeError, RuntimeError):
    """The job ended without a result.

    Next: the sentence says why; correct that, then submit the job under another name.
    """

    exit_code = 7


class NotDone(JobFailed):
    """The job has no result yet.

    Next: wait for it: `ce-coordinator watch`.
    """


class BrokenTotals(JobFailed):
    """A total breaks a law that holds for all labels; `law` names the law, `contributors` the sites of the total.

    Who sent a false number cannot be told from a total. It need not be the site that noticed.

    Next: check that all sites have the same release, then submit the job again. If it happens again, a site sends false
    sums.
    """

    def __init__(self, total: str, law: str, contributors: Sequence[str] = ()) -> None:
        self.law = law
        self.contributors = tuple(contributors)
        super().__init__(
            f"the total of {total} breaks the law '{law}': masks did not cancel, or {somebody(contributors)} sent "
            "false numbers; check that all sites have the same release, then submit the job again"
        )


def somebody(contributors: Sequence[str]) -> str:
    """Who may have sent a false number: one of the contributors to a total, or who added them up."""
    named = ", ".join(contributors[:MOST_NAMED])
    if len(contributors) > MOST_NAMED:
        named += f", {len(contributors) - MOST_NAMED} others"
    return f"one of {named or 'the sites'}, or the coordinator,"


class AlteredTotals(JobFailed):
    """In blind, a total has not the tag that its contributors gave it; found before anything is done with the total.

    Next: check that all sites have the same release, then submit the job again. If it happens again, the coordinator
    changes totals, or sends sites inconsistent views.
    """

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"the totals of {scope} are not those that the sites have added up: the coordinator changed them, or sent "
            "the sites inconsistent views; check that all sites have the same release, then submit the job again"
        )


class RingOverflow(JobFailed):
    """A value exceeds the limit that was declared for its sum. Raised by the sender, before anything is sent.

    Next: report it. It should not happen with labels that ce has read.
    """


class MessageError(JobFailed):
    """A message with a wrong shape, type, size, round or job. The error names the field, never its content.

    Next: check that both ends have the same release; if they have, report it.
    """


class Cancelled(CeError):
    """The job was cancelled.

    Next: ask the operator why; submit it again under another name.
    """

    exit_code = 8


class ConvergenceWarning(UserWarning):
    """A fit stopped at max_iter before it had converged; its result can be used, and `converged_` is False.

    Where scikit-learn is loaded, filters for its warning of the same name catch this one, too.

    Next: raise max_iter, or tol. tol=0 asks for max_iter iterations, and never warns.
    """
