"""Every error that ce raises on purpose, and the exit code it ends a command with.

    CeError
    ├── InputError (3)        a label file, a table or a parameter that cannot be used
    │   ├── LabelError        ... in a label file or table: names file, row and column
    │   │   └── UnknownColumn ... which has no column of that name
    │   ├── UnknownJob        no job has this name
    │   └── AlreadyExists     another job has this name
    ├── ConfigError (4)       job.toml, a configuration, a policy
    │   ├── UnknownModel      no model of this name is installed here
    │   ├── BrokenModel       an installed package offers a model that cannot be used
    │   ├── NotKnown          a caller without a name in its certificate
    │   ├── NotAllowed        a certificate that may not do this
    │   └── VersionMismatch   both ends speak versions that do not meet
    ├── Unreachable (5)       nobody answers
    │   ├── Replaced          the site has connected again, elsewhere
    │   └── LimitReached      too many of something: try again later
    ├── Refused (6)           a rule says no; `rule` names it
    ├── JobFailed (7)         the job ended without a result
    │   ├── NotDone           the job has no result yet
    │   ├── BrokenTotals      totals that no labels can have: masks that did not cancel, or false sums
    │   ├── RingOverflow      a value exceeds the bound that was declared for its sum
    │   └── MessageError      a message that cannot be what its sender should have sent
    └── Cancelled (8)         somebody asked it to stop

`ConvergenceWarning` is no error: a fit stopped at its limit of iterations, and its result can be used.

A message says what to do next. It never contains a label, an object id, a key or a payload: rows are named by
number, columns and sites by name.
"""

from __future__ import annotations

from typing import ClassVar


class CeError(Exception):
    """Base class: catch this to catch everything that ce raises on purpose.

    Next: see which error it is.
    """

    exit_code: ClassVar[int] = 1


class InputError(CeError, ValueError):
    """A parameter, a table or a file that cannot be used as it is.

    Next: the sentence names what was given and what was expected; mend it and try again.
    """

    exit_code = 3


class LabelError(InputError):
    """A label file or table that cannot be used; says where.

    `row` is the line a person sees in an editor (the header is line 1) for files, and the 0-based index for arrays.

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

    Next: the sentence lists those that there are.
    """


class UnknownJob(InputError):
    """No job has this name.

    Next: `ce-coordinator list`, or `ce-client jobs`.
    """


class AlreadyExists(InputError):
    """Another job has this name, or another submission this token.

    Next: choose another name: results go by it, for ever.
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
    """A caller whose certificate does not say who it is.

    Next: use the certificate that the operator of this coordinator has signed.
    """


class NotAllowed(ConfigError):
    """A certificate that may not do what its owner asks for.

    Next: sites connect, operators submit: use the papers of the right one, or ask the operator whether the key is
    denied.
    """


class VersionMismatch(ConfigError):
    """Two ends whose protocol versions do not meet.

    Next: install the same release at both ends.
    """


class Unreachable(CeError, ConnectionError):
    """The other side does not answer.

    Next: see that it runs, that the address is right and that no firewall is in between; try again.
    """

    exit_code = 5


class Replaced(Unreachable):
    """The same site has connected again; only its newest stream counts.

    Next: stop the second daemon that runs under this name.
    """


class LimitReached(Unreachable):
    """Too many streams, jobs or bytes at once.

    Next: try again later, or ask the operator for a larger limit.
    """


class Refused(CeError):
    """A rule says no, before anything was computed or sent; `rule` names it.

    Next: look the rule up in the list of rules.
    """

    exit_code = 6

    def __init__(self, rule: str, sentence: str) -> None:
        self.rule = rule
        super().__init__(f"{sentence} (rule: {rule})")


class JobFailed(CeError, RuntimeError):
    """The job ended without a result.

    Next: the sentence says why; submit the job under another name when that is mended.
    """

    exit_code = 7


class NotDone(JobFailed):
    """The job has no result yet.

    Next: wait for it: `ce-coordinator watch`.
    """


class BrokenTotals(JobFailed):
    """A total breaks a law that holds for all labels; `law` names it.

    Next: see that all sites have the same release, then submit the job again; if it happens again a site sends false
    sums.
    """

    def __init__(self, total: str, law: str) -> None:
        self.law = law
        super().__init__(
            f"the total of {total} breaks the law '{law}': masks did not cancel, or a site sent false sums; see that "
            "all sites have the same release, then submit the job again"
        )


class RingOverflow(JobFailed):
    """A value exceeds the bound declared for its sum: raised by the sender, before anything is sent.

    Next: report it: with labels that were read by ce it should not happen.
    """


class MessageError(JobFailed):
    """A message with a wrong shape, type, size, round or job; names the field, never its content.

    Next: see that both ends have the same release; if they have, report it.
    """


class Cancelled(CeError):
    """Somebody asked the job to stop.

    Next: ask who did; submit it again under another name.
    """

    exit_code = 8


class ConvergenceWarning(UserWarning):
    """A fit stopped at max_iter before it had converged; its result can be used, and `converged_` is False.

    Where scikit-learn is loaded, filters for its warning of the same name catch this one, too.

    Next: raise max_iter, or tol. tol=0 asks for max_iter iterations, and never warns.
    """
