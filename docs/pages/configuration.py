"""configuration.md: every key of every file, from the declarations that the daemons read them by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from ce.job import (
    EXACT,
    LARGEST_COUNT,
    LARGEST_EPSILON,
    LONGEST_NAME,
    MODELS,
    MOST_RESTARTS,
    PRIVACY,
    UNITS,
    Deadlines,
    Job,
)
from ce.pair_tables import MOST_CLUSTERS
from ce.policy import ENV_PREFIX as POLICY_PREFIX
from ce.policy import Policy
from ce.service.settings import reference
from ce_client import config as client
from ce_coordinator import config as coordinator
from pages.markdown import head, table

INTRODUCTION = """\
A value is taken from the environment variable, else from the file, else it is the default. Paths are relative to the
directory of the file. Entries of a list in an environment variable are separated by commas. An unknown key or
variable is an error (exit code 4) that names the nearest known one. `ce-coordinator init` and `ce-client init` write
files with every key and its default; `check` reads them and says what is wrong.
"""

PEERS = """\
One line for each other site that this one works with: the name in its certificate, and the SHA-256 fingerprint of its
key, which both sides have compared by telephone or in person (`ce-client fingerprint`, `ce-client trust`). A job with a
site that is not listed, or that has another key, is refused. A name with a dot is quoted. `ce-client trust` adds lines
and leaves comments unchanged. The daemon reads the file for every job.

    south = "SHA256:5f0c1a0e8f6b4f3f6f0f8d8f5b3c7a9d2e4b6c8d0f1a3b5c7d9e0f2a4b6c8d0e"
"""

DENIED = """\
Fingerprints of keys that the coordinator no longer lets in although their certificates are valid, one on a line; `#`
begins a comment. The file is read again whenever it changes. If a line is no fingerprint, the list before the change
stays in force.

    SHA256:5f0c1a0e8f6b4f3f6f0f8d8f5b3c7a9d2e4b6c8d0f1a3b5c7d9e0f2a4b6c8d0e   # the laptop of south, stolen
"""

CONFIG = "The configuration file or its directory, instead of --config."

#: Of each key of a job: its type, its default where that depends, and what it means.
JOB: dict[str, tuple[str, str | None, str]] = {
    "name": (
        "a text",
        None,
        f"The name of the job, which is used once: 1 to {LONGEST_NAME} printable characters without / and \\, "
        "not beginning with a dot or a hyphen. Results are in a directory of this name.",
    ),
    "model": (f"one of {', '.join(MODELS)}", None, "What is fitted."),
    "clusters": (
        'a whole number, or "auto"',
        "required for bce, mixture and pairs",
        f'How many consensus clusters, 1 to {LARGEST_COUNT:,}; pairs: 1 to {MOST_CLUSTERS}, or "auto" (as many as the '
        "tables show).",
    ),
    "classes": (
        "a whole number, or a list of texts or whole numbers",
        "required for bc3e",
        "The classes, by name as the classifiers spell them, or how many (then they are 0, 1, ...).",
    ),
    "sites": ("a list of texts", None, "Who takes part, by the names in their certificates."),
    "restarts": (
        "a whole number",
        "5; 20 for mixture",
        f"Starts, side by side; the best bound wins. 1 to {MOST_RESTARTS:,}.",
    ),
    "seed": (
        "a whole number",
        None,
        "Of the starts in `ce simulate`. Between organisations starts come from secrets and from the whole definition.",
    ),
    "max_iterations": (
        "a whole number",
        "300; 10 for bc3e, 2,000 for pairs",
        "Most iterations of every start; 0: the start itself.",
    ),
    "tolerance": (
        "a number",
        None,
        "Relative change of the bound at which a start has converged; 0: all iterations run.",
    ),
    "privacy": (
        f"one of {', '.join(PRIVACY)}",
        '"masked"; "sealed" for pairs',
        "How sums travel: each site's as they are (plain), under masks that cancel in the total (masked), or so that "
        "the coordinator cannot read the total either (blind). In a sealed job nothing is opened but noisy pair tables "
        "and the labels.",
    ),
    "epsilon": (
        f'a number, or "{EXACT}"',
        None,
        f'pairs: how much the opened tables may tell (differential privacy), at most {LARGEST_EPSILON:g}; "{EXACT}": '
        "tables without noise, which every site must allow.",
    ),
    "delta": ("a number", None, "pairs: the probability with which epsilon may not hold."),
    "collusion": (
        "a whole number",
        None,
        "pairs: so many sites may put together what they know, and the noise of the others still hides labels.",
    ),
    "unit": (
        f"one of {', '.join(UNITS)}",
        None,
        "pairs: what epsilon is about: one site's labels of an object, one label, or all labels of an object.",
    ),
    "schedule": ("one of joint, newton", None, "bce: how alpha is learnt."),
    "local_loops": (
        "a whole number",
        "10 for bce, else 1",
        "Passes per iteration over columns that one site alone holds. More mean more work at the sites and fewer "
        "exchanges; the result then depends on which site holds what.",
    ),
    "smoothing": ("a number", "1 for mixture, else 0.01", "Pseudo-count of every entry of beta."),
    "halving": (
        "true or false",
        "true for mixture; for bce true with local loops where every shared object is at all sites, and no column",
        "Whether hopeless starts are dropped: of bce the worse half, once; of mixture again and again.",
    ),
    "precision": (
        "one of double, single",
        None,
        "Bits of object sums and messages in an iteration: 64, or 32 where sums keep at least 20 fraction bits "
        "([capacity](capacity.md)).",
    ),
    "posterior": ("one of joint, factorised", None, "bc3e: factorised is the paper's, and mutes the clusterings."),
    "start": ("one of votes, diffused", None, "bc3e: the votes as they are, or spread over the clusterings first."),
    "on_dropout": (
        "one of wait, fail, continue",
        None,
        "When a site stays away: wait until deadlines.job_s, fail after deadlines.round_s, or continue without it.",
    ),
    "deadlines.enrol_s": ("a number", None, "Seconds until all sites must have enrolled."),
    "deadlines.round_s": ("a number", None, 'Seconds that a site may take for one answer, unless on_dropout = "wait".'),
    "deadlines.job_s": ("a number", None, "Seconds that the whole job may take."),
}


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            head("Configuration"),
            INTRODUCTION,
            "## coordinator.toml",
            "",
            *_settings(coordinator.CoordinatorSettings, coordinator.ENV_PREFIX),
            "",
            "Beside these:",
            "",
            *table(
                ("environment variable", "meaning"),
                [
                    (f"`{coordinator.CONFIG_VARIABLE}`", CONFIG),
                    (
                        f"`{coordinator.PASSPHRASE_VARIABLE}`",
                        "Passphrase of coordinator.key and operator.key; set when they are made, they are encrypted.",
                    ),
                    (f"`{coordinator.AUTHORITY_PASSPHRASE_VARIABLE}`", "The same for the authority's ca.key."),
                ],
            ),
            "",
            "## denied.txt",
            "",
            DENIED,
            "## client.toml",
            "",
            *_settings(client.ClientSettings, client.ENV_PREFIX),
            "",
            "Beside these:",
            "",
            *table(
                ("environment variable", "meaning"),
                [
                    (f"`{client.CONFIG_VARIABLE}`", CONFIG),
                    (
                        f"`{client.PASSPHRASE_VARIABLE}`",
                        "Passphrase of site.key; set when it is made, it is encrypted.",
                    ),
                ],
            ),
            "",
            "## policy.toml",
            "",
            "The rules of a site, which it checks before it sends anything. The daemon reads the file for every job.",
            "`ce.simulate(policy=...)` takes the same keys, or the file.",
            "",
            *_settings(Policy, POLICY_PREFIX),
            "",
            "## peers.toml",
            "",
            PEERS,
            "## job.toml",
            "",
            "What an operator submits. There are no environment variables for it.",
            "",
            *table(("key", "type", "default", "meaning"), _job_rows()),
            "",
        ]
    )


def _settings(cls: type[Any], prefix: str) -> list[str]:
    return table(
        ("key", "type", "default", "environment variable", "meaning"),
        (
            (f"`{row.key}`", row.type, _default(row.default), f"`{row.variable}`", row.comment)
            for row in reference(cls, prefix)
        ),
    )


def _job_rows() -> Iterable[tuple[str, ...]]:
    declared = {f.name: f.default for f in fields(Job) if f.name != "deadlines"}
    declared |= {f"deadlines.{f.name}": f.default for f in fields(Deadlines)}
    if set(declared) != set(JOB):
        raise SystemExit(
            f"docs/pages/configuration.py and ce.Job differ: {', '.join(sorted(set(declared) ^ set(JOB)))}"
        )
    for key, value in declared.items():
        kind, default, meaning = JOB[key]
        yield f"`{key}`", kind, default or _default(_toml(value)), meaning


def _toml(value: object) -> str:
    if value is MISSING or value is None:
        raise SystemExit("docs/pages/configuration.py: a key without a default needs words for that")
    return f'"{value}"' if isinstance(value, str) else "[]" if value == () else str(value)


def _default(text: str) -> str:
    return text if text in ("required", "not set") else f"`{text}`"
