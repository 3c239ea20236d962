"""Names of the arrays that tasks and answers carry. They are built and parsed here and nowhere else.

    block/<b>/<what>              objects of a shared block: "labels", "sums", "message", ...
    block/<b>/claims/<c>          which objects of the block have a label of column c at a site
    columns/<g>/<what>            a group of shared clusterings: "sums" up, "beta" down
    global/<what>                 totals over all objects, and the globals of the model
    <scope>/mac                   blind: the tag of all arrays of a block, a group or over all objects, but claims
    block/<b>/mac/<c>             ... of the claims on column c
    box/<site>                    bytes that only one other site can decrypt: up its receiver, down its sender

Of sealed jobs, where everything but the model is bytes, and a name is the same on the way up and down:

    all/<what>/<site>             what a site sends to all others, in the clear: "commitment", "share", ...
    members/<b>/<what>/<site>     what a member of block b sends to the other members, encrypted under the block's key
    dealer/<what>                 up: a site's seeds
    dealer/products/<site>        down: the dealt words of the pair (site, receiver), `site` being the first by name
    dealer/corrections/<b>/<l>    down: what the last member of block b gets of level l of the tournament
    model/<what>                  down: "categories", "weights" and "beta"

`b` is a block's number, `g` a group's (that of its first column), `c` a column's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from ce.errors import MessageError
from ce.protocol.topology.site_view import SiteView
from ce.ring import Scale

Kind = Literal["block", "columns", "global", "box", "all", "members", "dealer", "model"]
_CLAIMS, _MAC = "claims", "mac"
_PRODUCTS, _CORRECTIONS = "products", "corrections"
#: Kinds that are bytes for others, never words of a total.
_RELAYED = ("box", "all", "members", "dealer", "model")
#: Of these, the kinds that the sender encrypts for other sites.
_ENCRYPTED = ("box", "members")


class _Parsed(NamedTuple):
    kind: Kind
    number: int  # of the block or group; 0 for the other kinds
    what: str  # what the array holds; of a box, the site's name
    scope: Scope
    column: int | None = None  # of claims, and of their tag
    site: str = ""  # who sent it, of arrays of sealed jobs that are passed on; of dealt products, the first of the pair
    level: int = 0  # of corrections


class ArrayName(str):
    """One name: a text whose parts can be asked for. MessageError where the parts are asked of another text."""

    __slots__ = ()

    @classmethod
    def of_block(cls, block: int, what: str) -> ArrayName:
        return cls(f"block/{block}/{what}")

    @classmethod
    def of_claims(cls, block: int, column: int) -> ArrayName:
        return cls(f"block/{block}/{_CLAIMS}/{column}")

    @classmethod
    def of_columns(cls, group: int, what: str) -> ArrayName:
        return cls(f"columns/{group}/{what}")

    @classmethod
    def of_all(cls, what: str) -> ArrayName:
        """Over all objects of the job."""
        return cls(f"global/{what}")

    @classmethod
    def of_box(cls, site: str) -> ArrayName:
        return cls(f"box/{site}")

    @classmethod
    def of_broadcast(cls, what: str, site: str) -> ArrayName:
        """Sealed: from a site to all others."""
        return cls(f"all/{what}/{site}")

    @classmethod
    def of_members(cls, block: int, what: str, site: str) -> ArrayName:
        """Sealed: from a member of a block to the other members."""
        return cls(f"members/{block}/{what}/{site}")

    @classmethod
    def to_dealer(cls, what: str) -> ArrayName:
        """Sealed: from a site to the dealer."""
        return cls(f"dealer/{what}")

    @classmethod
    def of_products(cls, first: str) -> ArrayName:
        """Sealed: from the dealer, about the pair of `first` and the receiver."""
        return cls(f"dealer/{_PRODUCTS}/{first}")

    @classmethod
    def of_corrections(cls, block: int, level: int) -> ArrayName:
        """Sealed: from the dealer to the last member of a block."""
        return cls(f"dealer/{_CORRECTIONS}/{block}/{level}")

    @classmethod
    def of_model(cls, what: str) -> ArrayName:
        return cls(f"model/{what}")

    @property
    def mac(self) -> ArrayName:
        """The array with the tag of this one and of all others of the same scope and contributors."""
        return _mac_of(self)

    @property
    def kind(self) -> Kind:
        return _parsed(self).kind

    @property
    def encrypted(self) -> bool:
        """Whether its sender has encrypted it for other sites: it may be written to a file of whoever passes it on."""
        return _parsed(self).kind in _ENCRYPTED

    @property
    def number(self) -> int:
        """Number of the block or of the group."""
        return _parsed(self).number

    @property
    def what(self) -> str:
        return _parsed(self).what

    @property
    def column(self) -> int | None:
        """The column of an array of claims, or of their tag."""
        return _parsed(self).column

    @property
    def site(self) -> str:
        """Sealed: the sender of what is passed on; of dealt products, the first of the pair."""
        return _parsed(self).site

    @property
    def level(self) -> int:
        """Sealed: of corrections."""
        return _parsed(self).level

    @property
    def is_claims(self) -> bool:
        return _parsed(self).what == _CLAIMS

    @property
    def is_mac(self) -> bool:
        return _parsed(self).what == _MAC and _parsed(self).kind not in _RELAYED

    @property
    def scope(self) -> Scope:
        """The block or group that the array belongs to, or everything."""
        return _parsed(self).scope

    def contributors(self, view: SiteView) -> tuple[str, ...]:
        """The sites, in order of name, whose arrays make up the total; of what is passed on, those that it is for."""
        parsed = _parsed(self)
        match parsed.kind:
            case "global" | "all" | "model":
                return view.sites
            case "dealer":
                return ()
            case "members":
                return view.blocks[parsed.number].members
            case "box":
                return (parsed.what,)
            case "columns":
                return view.groups[parsed.number].holders
            case "block":
                members = view.blocks[parsed.number].members
                if parsed.column is None:
                    return members
                holders = view.column(parsed.column).holders
                return tuple(site for site in members if site in holders)

    def fraction_bits(self, scales: Mapping[str, Scale]) -> int:
        """The fixed point of the array's words; 0 for counts and bytes."""
        scale = self._scale(scales)
        return 0 if scale is None else scale.bits

    def word_bits(self, scales: Mapping[str, Scale]) -> int:
        """How wide the array's words are."""
        scale = self._scale(scales)
        return 64 if scale is None else scale.word_bits

    def _scale(self, scales: Mapping[str, Scale]) -> Scale | None:
        """None: counts, or bytes."""
        parsed = _parsed(self)
        scale = {("block", "sums"): "objects", ("columns", "sums"): "columns"}.get(
            (parsed.kind, parsed.what), parsed.what
        )
        counted = parsed.kind in _RELAYED or (parsed.kind, parsed.what) == ("global", "objects")
        return None if counted else scales.get(scale)


class Scope(str):
    """What an array is about: "global", "box", "dealer", "block/<b>" or "columns/<g>"."""

    __slots__ = ()

    @classmethod
    def of_block(cls, block: int) -> Scope:
        return cls(f"block/{block}")

    @classmethod
    def of_columns(cls, group: int) -> Scope:
        return cls(f"columns/{group}")

    @property
    def block(self) -> int:
        """The number of a block's scope."""
        return int(self.removeprefix("block/"))

    @property
    def prefix(self) -> str:
        """What the names of all arrays about it begin with."""
        return f"{self}/"


#: The scope of totals over all objects.
EVERYTHING = Scope("global")
#: The scope of claims on the cells of shared columns, and what the scopes of groups begin with.
COLUMNS = Scope("columns")


def rows_array(block: int) -> str:
    """The array of an alignment with the positions of a block's objects."""
    return f"rows/{block}"


@lru_cache(65_536)
def _mac_of(name: ArrayName) -> ArrayName:
    parsed = _parsed(name)
    if parsed.kind in _RELAYED:
        raise MessageError("arrays: what is passed on has no tag")
    return ArrayName(f"{parsed.scope}/{_MAC}" if parsed.column is None else f"{parsed.scope}/{_MAC}/{parsed.column}")


@lru_cache(65_536)
def _parsed(name: str) -> _Parsed:
    match name.split("/"):
        case ["global", what] if what:
            return _Parsed("global", 0, what, EVERYTHING)
        case ["box", site] if site:
            return _Parsed("box", 0, site, Scope("box"))
        case ["block", index, what] if index.isdecimal() and what:
            return _Parsed("block", int(index), what, Scope.of_block(int(index)))
        case ["block", index, ("claims" | "mac") as what, column] if index.isdecimal() and column.isdecimal():
            return _Parsed("block", int(index), what, Scope.of_block(int(index)), int(column))
        case ["columns", index, what] if index.isdecimal() and what:
            return _Parsed("columns", int(index), what, Scope.of_columns(int(index)))
        case ["all", what, *site] if what and site:
            return _Parsed("all", 0, what, EVERYTHING, site="/".join(site))
        case ["members", index, what, *site] if index.isdecimal() and what and site:
            return _Parsed("members", int(index), what, Scope.of_block(int(index)), site="/".join(site))
        case ["dealer", "corrections", index, level] if index.isdecimal() and level.isdecimal():
            return _Parsed("dealer", int(index), _CORRECTIONS, Scope("dealer"), level=int(level))
        case ["dealer", "products", *site] if site:
            return _Parsed("dealer", 0, _PRODUCTS, Scope("dealer"), site="/".join(site))
        case ["dealer", what] if what:
            return _Parsed("dealer", 0, what, Scope("dealer"))
        case ["model", what] if what:
            return _Parsed("model", 0, what, EVERYTHING)
    raise MessageError("arrays: a name that no array has")
