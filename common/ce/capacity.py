"""What a job takes: bytes on the wire, memory and disk, computed from its size, to plan machines and links.

All sites are assumed to be of the same size; what several sites hold is assumed to be held by all. All starts are
assumed to run to the end; in plain and masked a start that has converged costs nothing more. The constants below
describe what the engines hold and send; tests compare them with engines that run. docs/capacity.md has the formulas in
words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ce.errors import ConfigError
from ce.job import MODELS, PRIVACY

WORD = 8
FRAME = 2**20

# On the wire: bytes around an array, a message, and each further frame of a message.
AROUND_ARRAY, AROUND_MESSAGE, AROUND_FRAME = 32, 80, 40
#: An encrypted decision (blind): nonce, tag, and the digest of the state that it follows from.
ENCRYPTED = 60
#: Enrolment: a pseudonym for each object up, its position down; a token for each category.
PSEUDONYM, POSITION, TOKEN = 16, 8, 18
#: What each site is sent about each other site (key, certificate, signatures), and about each of its columns.
CREDENTIALS, CLAIM = 1100, 80


class Arrays(NamedTuple):
    """What is held for each object: numbers of (starts, clusters, objects) and (starts, objects) arrays, and bytes."""

    full: float
    per_start: float = 0.0
    bytes: float = 0.0

    def of(self, objects: int, starts: int, clusters: int) -> float:
        return objects * (WORD * starts * (self.full * clusters + self.per_start) + self.bytes)


class Facts(NamedTuple):
    """What depends on the model. A width (a, b) is the number of values for each start: a k + b."""

    sent: tuple[int, int]  # globals in a task
    asked: tuple[int, int]  # shares of the globals in an answer, at most
    decided: tuple[int, int]  # what the first site sends to the others in blind
    shares: int  # arrays of shares in an answer, at most
    at_home: Arrays  # in memory at the coordinator, for shared objects, at most
    private: Arrays  # in memory at a site, for objects that it alone holds, at most
    blind: Arrays  # in memory at a site that is a home itself, for shared objects, at most
    checkpoint_at_home: Arrays  # in a checkpoint, of shared objects
    checkpoint: Arrays  # in a checkpoint at a site, of objects that it alone holds
    working: int  # temporary arrays for one stretch of objects, at most


FACTS = {
    "bce": Facts(
        sent=(1, 0),
        asked=(2, 4),
        decided=(2, 5),
        shares=4,
        at_home=Arrays(7, 5, 48),
        private=Arrays(7, 5),
        blind=Arrays(11, 2),
        checkpoint_at_home=Arrays(4, 2.13),
        checkpoint=Arrays(5, 2.13),
        working=8,
    ),
    "mixture": Facts(
        sent=(1, 0),
        asked=(1, 2),
        decided=(1, 3),
        shares=3,
        at_home=Arrays(3, 5, 48),
        private=Arrays(3, 5),
        blind=Arrays(9, 2),
        checkpoint_at_home=Arrays(2, 2.13),
        checkpoint=Arrays(2, 2.13),
        working=5,
    ),
    "bc3e": Facts(
        sent=(3, 3),
        asked=(2, 3),
        decided=(3, 6),
        shares=5,
        at_home=Arrays(13, 4, 24),
        private=Arrays(13, 2),
        blind=Arrays(16, 2, 12),
        checkpoint_at_home=Arrays(6, 2.13),
        checkpoint=Arrays(7, 2.13),
        working=31,
    ),
}
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
    model: str = "bce"
    privacy: str = "masked"

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"model is one of {', '.join(MODELS)}")
        if self.privacy not in PRIVACY:
            raise ConfigError(f"privacy is one of {', '.join(PRIVACY)}")
        for key in ("sites", "objects", "columns", "categories", "clusters", "starts"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is a whole number of at least 1")
        if not 0 <= self.shared <= self.objects or not 0 <= self.shared_columns <= self.columns:
            raise ConfigError("shared and shared_columns cannot exceed objects and columns")
        if self.iterations < 0:
            raise ConfigError("iterations is a whole number of at least 0")
        if self.model == "bc3e":
            object.__setattr__(self, "starts", 1)

    @property
    def facts(self) -> Facts:
        return FACTS[self.model]

    @property
    def votes(self) -> bool:
        return self.model == "bc3e"

    @property
    def private(self) -> int:
        return self.objects - self.shared

    @property
    def width(self) -> int:
        """Bytes of one number for each start and cluster."""
        return WORD * self.starts * self.clusters

    @property
    def shared_categories(self) -> int:
        return self.shared_columns * self.categories

    @property
    def twice(self) -> bool:
        """Whether an iteration takes two exchanges."""
        return self.model == "mixture" and self.shared > 0 and self.shared_columns > 0

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
    words = size.width * (size.shared + size.shared_categories)
    arrays = (size.shared > 0) + (size.shared_columns > 0)
    up = _message(words + size.per_start(facts.asked), arrays + facts.shares)
    if size.privacy == "blind":
        # Totals have the size of the sums, and the decision goes from the first site through the coordinator.
        decision = ENCRYPTED + size.per_start(facts.decided) + AROUND_ARRAY
        share = (size.sites - 1) / size.sites
        asks = 2 * AROUND_MESSAGE / size.sites
        down = _message(words + size.per_start(facts.asked), arrays + facts.shares)
        return Traffic(down + decision * share, up + decision * share + asks)
    down = _message(words + size.per_start(facts.sent), arrays + (6 if size.votes else 1))
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
    total = opening + iteration_traffic(size).times(size.iterations + 1)
    # In the first iteration no beta is sent, because sites draw it; for a mixture no message is sent either.
    unsent = size.width * (size.shared_categories + (size.shared if size.model == "mixture" else 0))
    total += Traffic(0 if blind else -unsent, -size.width * size.shared_categories if size.twice else 0)
    if size.votes:
        votes = WORD * k * n
        voting = Traffic(_message(0, 0), _message(votes, some)) + Traffic(_message(0, 0), _message(votes, some + 1))
        total += voting + Traffic(2 * votes if blind else 0, 0)
    if blind:
        return total + Traffic(AROUND_MESSAGE, AROUND_MESSAGE).times(3)
    return total + Traffic(_message(WORD * n * (k + 1), 2 * some + 1), _message(WORD * k, 1))


def enrolment_traffic(size: Size) -> Traffic:
    """What one site sends and is sent before the rounds: keys, pseudonyms, which site shares what."""
    tokens = size.columns * size.categories * TOKEN
    others = size.sites * (CREDENTIALS + size.columns * CLAIM)
    up = size.objects * PSEUDONYM + tokens + size.columns * CLAIM + CREDENTIALS
    return Traffic(size.objects * POSITION + tokens + others, up)


def job_traffic(size: Size) -> float:
    """All bytes of a job, of all sites, both ways."""
    return size.sites * (rounds_traffic(size) + enrolment_traffic(size)).both


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
    private = size.facts.checkpoint.of(size.private, size.starts, size.clusters)
    answer = size.width * (size.shared + size.shared_categories)
    beta = 3 * size.width * size.columns * size.categories
    return private + answer + beta + (_home_checkpoint(size) if size.privacy == "blind" else 0.0)


def _home_checkpoint(size: Size) -> float:
    """State, number of labels and votes of the objects; beta of shared columns."""
    objects = size.facts.checkpoint_at_home.of(size.shared, size.starts, size.clusters)
    return objects + WORD * size.shared * (2 + size.clusters) + size.width * size.shared_categories


def ledger_bytes(size: Size) -> float:
    """What a job adds to a site's ledger: a line for each answer; in blind, of the first site, for each decision."""
    arrays = (size.shared > 0) + (size.shared_columns > 0) + size.facts.shares
    lines = LINE * (1 + size.twice) + arrays * (LINE_ARRAY + LINE_NAME * size.sites)
    if size.privacy == "blind":
        lines += LINE + (size.sites - 1) * (LINE_ARRAY + LINE_NAME)
    return (size.iterations + 1) * lines
