"""capacity.md: what jobs take, from the formulas of `ce.capacity`, which tests compare with jobs that run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ce import capacity
from ce import sealed_capacity as sealed
from ce.capacity import Size
from ce.cli.output import size as readable
from ce.declarations.registry import BUILT_IN
from pages.markdown import code, head, table

INTRODUCTION = """\
How large the machines, disks and links of a job have to be. The formulas are in `ce.capacity`; `ce capacity` computes
them for your numbers ([commands.md](commands.md#ce-capacity)). Tests compare them with jobs that run: bytes with every
frame that was counted, within 4 %; memory with the arrays that engines hold, within half an array; checkpoints within
2 %; the ledger roughly.

Sites are taken to be alike, and what several hold to be held by all: for other jobs, take the largest site and all that
is shared. All starts are taken to run to the end; in `plain` and `masked` one that has converged costs nothing more, so
that jobs mostly take less.

| | |
| --- | --- |
| s | sites |
| N | objects at each site |
| n | of these, objects that other sites hold, too |
| m, c | columns at each site; categories of each |
| q | categories of all columns that other sites have, too |
| k | clusters or classes |
| r | starts (`restarts`); 1 for bc3e |
| T | iterations |
| **B** | **8 r k: bytes of one number for each start and cluster** |
"""

WIRE = """\
| each site | to it | from it |
| --- | --- | --- |
| to enrol | {position} N + {token} m c + s ({credentials:,} + {claim} m) | {pseudonym} N + {token} m c |
| to count, once | 16 n | 16 n; 8 n more for each shared column where objects are shared, too |
| **an iteration** | **B (n + q)** + 8 r G | **B (n + q)** + 8 r S |
| the results | 8 n (k + 1) | 8 k |

and some 100 bytes for each message and 30 for each array.

G, globals that all sites are sent: {sent}.
S, shares of it, at most: {asked}.

In `blind` totals come down as they went up, 8 r S instead of 8 r G, and with them a decision, of a few numbers for each
start; both ways up to three more arrays, tags of 24 bytes. bc3e counts votes, too: 8 n more to count, and twice 8 k n
more from each site. A mixture with objects and columns that are shared takes two exchanges for an iteration, with as
many bytes.

With `precision = "single"` B n is half as much in both directions, as long as there are at most {short:,} different
clusterings; for mixture only to the site. Column sums and beta, B q, stay as they are, and memory is at most as above.

What only one site holds costs nothing on the wire, beside the {pseudonym} + {position} bytes of each object to enrol.
Counted are messages as gRPC is given them; what HTTP/2, TLS and TCP add comes on top.
"""

MEMORY = """\
At most, for one job; several at once add up. What a daemon takes without a job comes on top.

| where | bytes |
| --- | --- |
| coordinator, `plain` and `masked` | n (A B + 8 r P + {bytes:.0f}) + {at_home} B q |
| coordinator, `blind` | {relayed:.0f} B (n + q) |
| coordinator, while it aligns | s ({aligning} N + {pair} x all different objects), if that is more |
| site, objects of its own | (N - n) (A' B + 8 r P'), if no two have the same labels in all columns; else fewer |
| site, shared objects | {shared:g} B n; in `masked` {masked:g} B n; in `blind` n (A" B + 8 r P") + {at_home} B q |
| each of these but `blind` at the coordinator | {working:.0f} MB at most to work with; bc3e: and 8 k for each object |
| site, labels and beta | N ({label} m + {object} + 4 x characters of an id) + {at_site} B m c |
| site, threads | about 3 MB for each |

A and P, of each kind of place, are how many arrays the object step holds when it holds most:
"""

LIMITS = """\
Limits that refuse a job before memory runs out: `limits.round_bytes` at the coordinator is compared with B (n + q), and
`largest_state` at a site with B (N + m c): one array each. Divide the memory that a job may have by A, or by A'.
"""

DISK = """\
| where | bytes |
| --- | --- |
| a checkpoint at the coordinator | n (K B + {per_start} r + 8 k + 16) + B q; a few bytes in `blind` |
| a checkpoint at a site | (N - n) (K' B + {per_start} r) + B (n + q) + 3 B m c; in `blind` and the line above |
| ledger of a site, an iteration | about {line} + {shares} ({array} + {name} s), for {shares} arrays (`blind`: 3 more) |

K and K': {kept}.

A job has two checkpoints, and a third is written before the oldest is removed: plan for {checkpoints}. All are
removed when the job is over. The ledger only grows, up to `limits.ledger_bytes`.
"""

SEALED = """\
A sealed job (`privacy = "sealed"`) iterates nothing: a site sends the rows of its shared objects once, masked, a share
of the tables once, and then takes part in a tournament of the clusters for each shared object. Its formulas are in
`ce.sealed_capacity`. D is the number of categories of all columns, P of cells of all tables of pairs of columns, w the
bits of a word (22; 32 for jobs with some millions of objects, or many holders of a column), L = log2(k + 1), rounded
up.

| each site | to it | from it |
| --- | --- | --- |
| to enrol | {position} N + {token} m c + s ({credentials:,} + 2 x {claim} m) | {pseudonym} N + {token} m c |
| masked rows | w/8 n m c (s - 1) | w/8 n m c |
| to check the dealer | w/8 (m c)^2 + {check} w/8 n, for each other site, at most | {check} w/8 n, likewise |
| shares and model | w/8 P (s - 1) + 8 k D | w/8 P |
| tournament | {opening:.3f} k n (s - 1); the last member {corrected:.1f} k n more | {opening:.3f} k n |
| labels | n (s - 1) | n |

There are {before} + {level} L + {after} exchanges; {before} where no object is shared.

What the coordinator passes on is encrypted. It goes through files beside the store that have no name and end with their
round, and so do the dealer's words for one level, which say nothing without seeds of all members: the masked rows of
all sites and what checks the dealer, w/8 n (m c s + {check}/2 s (s - 1)), or a level of the tournament,
(k + 1)/2 n ({word} s + {corrected:.1f}), whichever is more. `limits.round_bytes` is compared with it, and
`checkpoints.least_free` stays free. If the store is on a disk in memory (tmpfs), these files are memory.

The coordinator's memory while rounds run is that of the shares and the fit, w/8 P s + 8 x {fit} D^2, or of the sums of
products of all pairs of sites, whichever is more, and of a stretch to work with, of {rows:,} objects or {compared:,}
comparisons: about {per_row} m c s or {drawn} s + {dealt} bytes of each. Further objects take none; messages on their
way take up to 4 MB for each site. Only while it aligns, as in all modes, memory grows with the objects (above).

A site holds the masked rows of the members of its blocks, or the shares and the fit, or the comparisons of the first
level of the tournament, ({held} + {word} s) (k + 1)/2 n, whichever is more; and its labels. There are no
checkpoints: a site keeps its share, the model and {dummies} + n bytes of each block until the job is over.
"""

#: Worked examples: sites, objects, shared ones, columns, shared ones, categories, clusters.
EXAMPLES = {
    "by rows": Size(4, 100_000, 0, 6, 6, 12, 10),
    "by columns": Size(4, 100_000, 100_000, 6, 0, 12, 10),
    "some of both": Size(4, 100_000, 20_000, 6, 3, 12, 10),
    "many sites": Size(50, 10_000, 2_000, 4, 2, 10, 10),
}

#: Of the built-in models.
FACTS = {model.name: model.capacity for model in BUILT_IN if model.capacity is not None}


def page() -> str:
    """The whole page."""
    own = FACTS["bce"]
    return "\n".join(
        [
            head("Capacity"),
            INTRODUCTION,
            "## On the wire",
            "",
            WIRE.format(
                position=capacity.POSITION,
                pseudonym=capacity.PSEUDONYM,
                token=capacity.TOKEN,
                credentials=capacity.CREDENTIALS,
                claim=capacity.CLAIM,
                short=capacity.LARGEST_SHORT,
                sent=_by_model("globals_sent"),
                asked=_by_model("shares_answered"),
            ),
            "## Memory",
            "",
            MEMORY.format(
                bytes=own.at_home.bytes,
                at_home=capacity.BETAS_AT_HOME,
                relayed=capacity.RELAYED.full,
                aligning=capacity.ALIGNING,
                pair=capacity.ALIGNING_PAIR,
                shared=capacity.SHARED_AT_SITE.full,
                masked=capacity.SHARED_AT_SITE.full + capacity.UNDER_MASKS.full,
                label=capacity.LABEL,
                object=capacity.OBJECT,
                at_site=capacity.BETAS_AT_SITE,
                working=capacity.WORD * capacity.STRETCH * max(facts.working for facts in FACTS.values()) / 1e6,
            ),
            *table(
                ("model", "A", "P", "A'", "P'", 'A"', 'P"'),
                (
                    (
                        name,
                        *(f"{count:g}" for count in (*facts.at_home[:2], *facts.private[:2], *facts.blind[:2])),
                    )
                    for name, facts in FACTS.items()
                ),
            ),
            "",
            LIMITS,
            "## Disk",
            "",
            DISK.format(
                per_start=round(8 * own.checkpoint_at_site.per_start),
                kept=", ".join(
                    f"{facts.checkpoint_at_home.full:g} and {facts.checkpoint_at_site.full:g} for {name}"
                    for name, facts in FACTS.items()
                ),
                checkpoints=capacity.CHECKPOINTS,
                line=capacity.LINE,
                array=capacity.LINE_ARRAY,
                name=capacity.LINE_NAME,
                shares=own.shares + 2,
            ),
            "## Examples",
            "",
            f"bce with {EXAMPLES['by rows'].starts} starts, at most: all starts run to the end.",
            "",
            *table(
                ("job", "s, N, n, m, c, q, k", "mode", *_TITLES),
                _examples(),
            ),
            "",
            "## Sealed jobs",
            "",
            SEALED.format(
                position=capacity.POSITION,
                pseudonym=capacity.PSEUDONYM,
                token=capacity.TOKEN,
                credentials=capacity.CREDENTIALS,
                claim=capacity.CLAIM,
                check=sealed.CHECK_COLUMNS,
                opening=sealed.WORD + (2 * sealed.PRODUCTS + 1) / 8,
                corrected=sealed.CORRECTED + sealed.PRODUCTS / 8,
                before=sealed.BEFORE,
                level=sealed.LEVEL,
                after=sealed.AFTER,
                fit=sealed.FIT,
                rows=sealed.ROWS,
                compared=sealed.COMPARED,
                per_row=3 * sealed.WORD,
                drawn=sealed.DRAWN,
                dealt=sealed.DEALT,
                word=sealed.WORD,
                held=sealed.HELD,
                dummies=sealed.DUMMY_ROWS,
            ),
            *table(
                ("job", "s, N, n, m, c, q, k", "exchanges", "a site sends, at most", "all bytes", *_SEALED_TITLES),
                _sealed_examples(),
            ),
            "",
            "## From the command line",
            "",
            *code(
                "ce capacity --sites 4 --objects 100000 --shared 20000 --columns 6 --shared-columns 3 "
                "--categories 12 --clusters 10\n"
                "ce capacity --sites 4 --objects 100000 --shared 20000 --columns 6 --categories 12 --clusters 10 "
                "--model pairs",
                "sh",
            ),
            "",
        ]
    )


_TITLES = (
    "a site sends in an iteration",
    "all bytes of 100 iterations",
    "coordinator's memory",
    "a site's memory",
    "a checkpoint there, and at a site",
)


def _examples() -> Iterator[tuple[str, ...]]:
    for name, size in EXAMPLES.items():
        for privacy in ("masked", "blind"):
            own = replace(size, privacy=privacy, iterations=100)
            numbers = (own.sites, own.objects, own.shared, own.columns, own.categories)
            listed = ", ".join(f"{number:,}" for number in (*numbers, own.shared_categories, own.clusters))
            kept = f"{readable(capacity.coordinator_checkpoint(own))}, {readable(capacity.site_checkpoint(own))}"
            yield (
                name,
                listed,
                privacy,
                readable(capacity.iteration_traffic(own).up),
                readable(capacity.job_traffic(own)),
                readable(capacity.coordinator_memory(own)),
                readable(capacity.site_memory(own)),
                kept,
            )


_SEALED_TITLES = ("coordinator's memory", "its disk", "a site's memory")


def _sealed_examples() -> Iterator[tuple[str, ...]]:
    for name, size in EXAMPLES.items():
        own = replace(size, model="pairs", privacy="sealed")
        shape = sealed.SealedShape.even(own)
        numbers = (own.sites, own.objects, own.shared, own.columns, own.categories, own.shared_categories, own.clusters)
        enrolment = sealed.enrolment_traffic(own)
        last = shape.sites[-1]
        yield (
            name,
            ", ".join(f"{number:,}" for number in numbers),
            f"{sealed.exchanges(shape)}",
            readable(enrolment.up + max(sealed.site_traffic(shape, site).up for site in (shape.sites[0], last))),
            readable(own.sites * enrolment.both + sealed.rounds_traffic(shape)),
            readable(max(sealed.coordinator_memory(shape), capacity.alignment_memory(own))),
            readable(sealed.coordinator_disk(shape)),
            readable(sealed.site_memory(shape, last, own.objects, own.columns)),
        )


def _by_model(what: str) -> str:
    widths = {name: getattr(facts, what) for name, facts in FACTS.items()}
    return ", ".join(f"{_width(*width)} for {name}" for name, width in widths.items())


def _width(times: int, plus: int) -> str:
    return ("" if times == 1 else f"{times} ") + "k" + (f" + {plus}" if plus else "")
