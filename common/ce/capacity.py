"""What a job takes: bytes on the wire, memory and disk, computed from its size, to plan machines and links.

All sites are assumed to be of the same size; what several sites hold is assumed to be held by all. All starts are
assumed to run to the end; in plain and masked a start that has converged costs nothing more. The constants below
describe what the engines hold and send; tests compare them with engines that run. docs/capacity.md has the formulas in
words. Sealed jobs have formulas of their own: `ce.sealed_capacity`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ce.declarations.capacity_facts import WORD, Arrays, CapacityFacts
from ce.declarations.declaration import ModelDeclaration
from ce.declarations.registry import DEFAULT, find_model
from ce.errors import ConfigError
from ce.job import PRECISIONS, PRIVACY
from ce.privacy.list_lengths import POINT_SIZE, list_length

FRAME = 2**20

# On the wire: bytes around an array, a message, each further frame of a message; and of an array that a task asks for.
AROUND_ARRAY, AROUND_MESSAGE, AROUND_FRAME, ASKED = 32, 80, 40, 28
#: Bytes of a word or a message in single precision, and the largest total of such words (`ce.ring`).
SHORT, LARGEST_SHORT = 4, 2**10
#: A tag that travels with the words of a scope (blind).
TAG = 24
#: An encrypted decision (blind): nonce, tag, and the digest of the state that it follows from.
ENCRYPTED = 60
#: Enrolment: a pseudonym for each object up, its position down; a token for each category.
PSEUDONYM, POSITION, TOKEN = 16, 8, 18
#: What each site is sent about each other site (key, certificate, signatures), and about each of its columns.
CREDENTIALS, CLAIM = 1100, 80


#: Numbers of an array that the object step computes at a time.
STRETCH = 2**16
#: At a site, for each shared object: its message and its sums, the task as it was received, and the last answer, which
#: may have to be repeated; in masked also a masked copy.
SHARED_AT_SITE, UNDER_MASKS = Arrays(4), Arrays(1)
#: What the coordinator holds in blind: the totals that it is adding up, and the last ones, which it sends.
RELAYED = Arrays(2)
#: Bytes of a label and of an object at a site. Ids are extra: four bytes a character.
LABEL, OBJECT = 28, 85
#: Arrays of (starts, clusters, categories): of all columns at a site, of the shared ones at home.
BETAS_AT_SITE, BETAS_AT_HOME = 7, 6
#: Bytes at the coordinator for each object of each site, and for each pair of an object and a site, during alignment.
#: They are freed before the first iteration.
ALIGNING, ALIGNING_PAIR = 70, 9
#: On disk: a line of the ledger, each array in it, each name of a contributor to that.
LINE, LINE_ARRAY, LINE_NAME = 230, 190, 12
#: Checkpoints of a job on the disk: two, and a third one while it is written.
CHECKPOINTS = 3


@dataclass(frozen=True)
class Size:
    """How large a job is; `objects` and `columns` at each site, `categories` of each column."""

    sites: int
    objects: int
    shared: int  # of the objects, those that all sites hold
    columns: int
    shared_columns: int  # of the columns, those that all sites have
    categories: int
    clusters: int  # or classes
    starts: int = 5
    iterations: int = 300
    model: str = DEFAULT
    privacy: str = "masked"
    precision: Literal["double", "single"] = "double"

    def __post_init__(self) -> None:
        if self.privacy not in PRIVACY:
            raise ConfigError(f"privacy is one of {', '.join(PRIVACY)}")
        if self.declaration.sealed != (self.privacy == "sealed"):
            raise ConfigError(f'model {self.model} has no jobs with privacy = "{self.privacy}"')
        if self.declaration.capacity is None and not self.declaration.sealed:
            raise ConfigError(f"model {self.model} does not declare what a job of it takes (capacity)")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision is one of {', '.join(PRECISIONS)}")
        if self.precision != "double" and "precision" not in self.declaration.options:
            raise ConfigError(f'model {self.model} has no jobs with precision = "{self.precision}"')
        for key in ("sites", "objects", "columns", "categories", "clusters", "starts"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is a whole number of at least 1")
        if not 0 <= self.shared <= self.objects or not 0 <= self.shared_columns <= self.columns:
            raise ConfigError("shared and shared_columns cannot exceed objects and columns")
        if self.iterations < 0:
            raise ConfigError("iterations is a whole number of at least 0")
        if "restarts" not in self.declaration.options:
            object.__setattr__(self, "starts", 1)

    @property
    def declaration(self) -> ModelDeclaration:
        return find_model(self.model)

    @property
    def facts(self) -> CapacityFacts:
        assert self.declaration.capacity is not None
        return self.declaration.capacity

    @property
    def votes(self) -> bool:
        return self.declaration.takes_classes

    @property
    def private(self) -> int:
        return self.objects - self.shared

    @property
    def width(self) -> int:
        """Bytes of one number for each start and cluster."""
        return WORD * self.starts * self.clusters

    @property
    def message_width(self) -> int:
        """Bytes of the message of one object, for all starts."""
        return self.width if self.precision == "double" else SHORT * self.starts * self.clusters

    @property
    def sums_width(self) -> int:
        """Bytes of the sums of one object; short where what its labels in all columns add up to is small enough."""
        short = self.all_columns * self.facts.largest_term <= LARGEST_SHORT
        return self.message_width if short else self.width

    @property
    def column_sums_width(self) -> int:
        """Bytes of the sums of one category. Those of few objects are short, too: of models with one pass over the
        cells, if they need no more bits than object sums do."""
        most: float = LARGEST_SHORT
        if self.facts.phases == 1:
            most = 2.0 ** math.ceil(math.log2(self.all_columns)) if self.all_columns <= LARGEST_SHORT else 0.0
        return self.message_width if self.shared + self.sites * self.private <= most else self.width

    @property
    def all_columns(self) -> int:
        return self.shared_columns + self.sites * (self.columns - self.shared_columns)

    @property
    def shared_categories(self) -> int:
        return self.shared_columns * self.categories

    @property
    def twice(self) -> bool:
        """Whether an iteration takes two exchanges."""
        return self.facts.phases == 2 and self.shared > 0 and self.shared_columns > 0

    def per_start(self, width: tuple[int, int]) -> int:
        return WORD * self.starts * (width[0] * self.clusters + width[1])


class Traffic(NamedTuple):
    """Bytes to a site, and from it."""

    down: float
    up: float

    def __add__(self, other: object) -> Traffic:
        assert isinstance(other, Traffic)
        return Traffic(self.down + other.down, self.up + other.up)

    def times(self, count: int) -> Traffic:
        return Traffic(self.down * count, self.up * count)

    @property
    def both(self) -> float:
        return self.down + self.up


# On the wire.


def exchanges(size: Size) -> int:
    """The number of exchanges before the results are sent."""
    votes, blind = size.votes, size.privacy == "blind"
    # Counts and their totals; votes, and clusterings alone; in blind keys, and decisions.
    around = 2 + 2 * votes + blind
    return around + (size.iterations + 1) * (1 + blind) + size.iterations * size.twice


def iteration_traffic(size: Size) -> Traffic:
    """One iteration of one site."""
    facts = size.facts
    words = size.sums_width * size.shared + size.column_sums_width * size.shared_categories
    arrays = (size.shared > 0) + (size.shared_columns > 0)
    up = _message(words + size.per_start(facts.shares_answered), arrays + facts.shares)
    if size.privacy == "blind":
        # One for each scope: shared objects, shared columns, everything; a second exchange has those of columns.
        tags = _tags(arrays + 1)
        # Totals have the size of the sums, and the decision goes from the first site through the coordinator.
        decision = ENCRYPTED + size.per_start(facts.decision) + AROUND_ARRAY
        share = (size.sites - 1) / size.sites
        asks = 2 * AROUND_MESSAGE / size.sites
        down = _message(words + size.per_start(facts.shares_answered), arrays + facts.shares)
        asked = ASKED * (2 * arrays + 1 + facts.shares + share)
        return Traffic(down + tags + decision * share + asked, up + tags + decision * share + asks)
    reals = size.message_width * size.shared + size.width * size.shared_categories
    down = _message(reals + size.per_start(facts.globals_sent), arrays + sum(facts.globals_sent))
    down += ASKED * (arrays + facts.shares)
    return Traffic(down, up) + Traffic(AROUND_MESSAGE, AROUND_MESSAGE).times(int(size.twice))


def rounds_traffic(size: Size) -> Traffic:
    """All rounds of one site, from the first count to the results."""
    n, k = size.shared, size.clusters
    # Before the first iteration: how many labels each shared object has, how many of them are hidden, and which site
    # has a label in a column that several members hold; the totals are sent back.
    counted = WORD * n * (2 + size.votes)
    claims = WORD * n * size.shared_columns
    some = int(n > 0)
    blind = size.privacy == "blind"
    opening = Traffic(
        _message(counted + claims * blind, some * (2 + size.votes + size.shared_columns * blind)) + AROUND_MESSAGE,
        _message(counted + claims, 1 + some * (2 + size.votes + size.shared_columns)) + AROUND_MESSAGE,
    )
    if blind:
        opening += Traffic(*2 * [_tags(1 + some * (1 + size.shared_columns))])
    total = opening + iteration_traffic(size).times(size.iterations + 1)
    # In the first iteration no beta is sent, because sites draw it; a two-phase model is sent no message either.
    unsent = size.width * size.shared_categories + (size.message_width * size.shared if size.facts.phases == 2 else 0)
    total += Traffic(0 if blind else -unsent, -size.column_sums_width * size.shared_categories if size.twice else 0)
    if size.votes:
        votes, agreement = WORD * k * n, WORD * k**2
        voting = Traffic(_message(0, 0), _message(votes, some)) + Traffic(_message(0, 0), _message(agreement, 1))
        total += voting + Traffic(votes + agreement if blind else 0, 0)
        total += Traffic(*2 * [_tags(some + 1) if blind else 0])
    if blind:
        return total + Traffic(AROUND_MESSAGE, AROUND_MESSAGE).times(3)
    return total + Traffic(_message(WORD * n * (k + 1), 2 * some + 1), _message(WORD * k, 1))


def enrolment_traffic(size: Size) -> Traffic:
    """What one site sends and is sent before the rounds: keys, pseudonyms, letters, which site shares what."""
    peers = size.sites - 1
    points = 2 * POINT_SIZE * list_length(size.objects, peers)
    letters = peers * (points + size.shared_columns * size.categories * TOKEN)
    others = size.sites * (CREDENTIALS + size.columns * CLAIM)
    up = size.objects * PSEUDONYM + size.columns * CLAIM + CREDENTIALS + letters
    return Traffic(size.objects * POSITION + others + letters, up)


def job_traffic(size: Size) -> float:
    """All bytes of a job, of all sites, both ways."""
    return size.sites * (rounds_traffic(size) + enrolment_traffic(size)).both


def _tags(count: int) -> float:
    return count * (TAG + AROUND_ARRAY)


def _message(content: float, arrays: int) -> float:
    return content + arrays * AROUND_ARRAY + AROUND_MESSAGE + AROUND_FRAME * (content // FRAME)


# In memory, at most, in addition to what the process takes without a job.


def home_memory(size: Size) -> float:
    """The object step of the shared objects and beta of the shared columns, where the home runs."""
    objects = _object_step(size.facts.at_home, size.shared, size)
    return objects + BETAS_AT_HOME * size.width * size.shared_categories


def coordinator_memory(size: Size) -> float:
    """One job at the coordinator: alignment or the engine, whichever takes more."""
    return max(alignment_memory(size), engine_memory(size))


def engine_memory(size: Size) -> float:
    """At the coordinator, while rounds run."""
    if size.privacy == "blind":
        return RELAYED.of(size.shared + size.shared_categories, size.starts, size.clusters)
    return home_memory(size)


def alignment_memory(size: Size) -> float:
    """At the coordinator, during alignment."""
    objects = size.shared + size.sites * size.private
    return size.sites * (size.objects * ALIGNING + objects * ALIGNING_PAIR)


def site_memory(size: Size) -> float:
    """One job at a site, its labels included."""
    total = _object_step(size.facts.private, size.private, size)
    if size.privacy == "blind":
        total += _object_step(size.facts.blind, size.shared, size)
        total += BETAS_AT_HOME * size.width * size.shared_categories
    else:
        total += SHARED_AT_SITE.of(size.shared, size.starts, size.clusters)
    if size.privacy == "masked":
        total += UNDER_MASKS.of(size.shared, size.starts, size.clusters)
    total += size.objects * (size.columns * LABEL + OBJECT)
    return total + BETAS_AT_SITE * size.width * size.columns * size.categories


def _object_step(arrays: Arrays, objects: int, size: Size) -> float:
    """The most that is held for this many objects: their arrays, temporary arrays, and votes."""
    if not objects:
        return 0.0
    working = size.facts.working * WORD * min(STRETCH, size.starts * size.clusters * objects)
    return arrays.of(objects, size.starts, size.clusters) + working + size.votes * WORD * size.clusters * objects


# On the disk.


def coordinator_checkpoint(size: Size) -> float:
    """One checkpoint of a job at the coordinator; next to nothing in blind."""
    return 0.0 if size.privacy == "blind" else _home_checkpoint(size)


def site_checkpoint(size: Size) -> float:
    """One checkpoint of a job at a site: its state, and its last answer."""
    private = size.facts.checkpoint_at_site.of(size.private, size.starts, size.clusters)
    answer = size.sums_width * size.shared + size.column_sums_width * size.shared_categories
    beta = 3 * size.width * size.columns * size.categories
    return private + answer + beta + (_home_checkpoint(size) if size.privacy == "blind" else 0.0)


def _home_checkpoint(size: Size) -> float:
    """State, number of labels and votes of the objects; beta of shared columns."""
    objects = size.facts.checkpoint_at_home.of(size.shared, size.starts, size.clusters)
    return objects + WORD * size.shared * (2 + size.clusters) + size.width * size.shared_categories


def ledger_bytes(size: Size) -> float:
    """What a job adds to a site's ledger: a line for each answer; in blind, of the first site, for each decision."""
    scopes = (size.shared > 0) + (size.shared_columns > 0)
    arrays = scopes + size.facts.shares + (scopes + 1 if size.privacy == "blind" else 0)  # with the tags of blind
    lines = LINE * (1 + size.twice) + arrays * (LINE_ARRAY + LINE_NAME * size.sites)
    if size.privacy == "blind":
        lines += LINE + (size.sites - 1) * (LINE_ARRAY + LINE_NAME)
    return (size.iterations + 1) * lines
