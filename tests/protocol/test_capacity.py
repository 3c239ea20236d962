"""The formulas of `ce.capacity` against jobs that run: what is sent to a few percent, what is held to half an array.

Half an array, of one number for each start, cluster and object: an engine that holds one more, or one fewer, than the
formula says is found. Sizes are such that arrays outweigh everything else.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine_memory import aligning, job_of, play, tables_of

import ce
from ce import capacity
from ce.capacity import Size
from ce.declarations.registry import find_model
from ce.errors import ConfigError
from ce.job import MODES_OF_TOTALS
from ce.protocol.engine import object_state as objects
from ce.ring import Scale
from ce.steps.model import CELL_BOUND

#: Sites, objects and columns; which of them are shared.
LAYOUTS = {
    "row": Size(3, 150, 0, 5, 5, 20, 5, 3, 8),
    "column": Size(3, 200, 200, 4, 0, 10, 5, 3, 8),
    "arbitrary": Size(4, 300, 200, 5, 3, 20, 5, 3, 8),
}
SENT = [
    *(("bce", layout, privacy) for layout in LAYOUTS for privacy in ("plain", "masked", "blind")),
    *(("mixture", *rest) for rest in (("row", "masked"), ("arbitrary", "plain"), ("arbitrary", "blind"))),
    *(("bc3e", *rest) for rest in (("column", "masked"), ("arbitrary", "plain"), ("arbitrary", "blind"))),
]
#: Objects that outweigh everything else; shared, or not, as a test says.
LARGE = {
    "bce": Size(3, 2500, 0, 6, 0, 12, 8, 3, 11),
    "mixture": Size(3, 2500, 0, 6, 0, 12, 8, 3, 2, "mixture"),
    "bc3e": Size(3, 6000, 0, 6, 0, 12, 6, 1, 1, "bc3e"),
}
HALF_AN_ARRAY = 0.5


@pytest.mark.parametrize(("model", "layout", "privacy"), SENT)
def test_the_bytes_of_all_rounds(model: str, layout: str, privacy: str) -> None:
    size = replace(LAYOUTS[layout], model=model, privacy=privacy)
    result = ce.simulate(job_of(size), tables_of(size))
    assert result.layout in (layout, "arbitrary")
    assert result.exchanges == capacity.exchanges(size)
    assert 0.99 < size.sites * capacity.rounds_traffic(size).both / result.bytes_sent < 1.04


@pytest.mark.parametrize(
    ("model", "layout", "privacy"),
    [
        *(("bce", layout, privacy) for layout in ("column", "arbitrary") for privacy in MODES_OF_TOTALS),
        *(("mixture", "arbitrary", privacy) for privacy in MODES_OF_TOTALS),
        ("bce", "row", "masked"),
        ("bc3e", "column", "masked"),
    ],
)
def test_the_bytes_of_all_rounds_in_single_precision(model: str, layout: str, privacy: str) -> None:
    size = replace(LAYOUTS[layout], model=model, privacy=privacy, precision="single")
    result = ce.simulate(job_of(size), tables_of(size))
    assert result.exchanges == capacity.exchanges(size)
    assert 0.99 < size.sites * capacity.rounds_traffic(size).both / result.bytes_sent < 1.04


def test_where_sums_are_short() -> None:
    """The formulas do not import the ring."""
    for terms in (capacity.LARGEST_SHORT, capacity.LARGEST_SHORT + 1):
        size = Size(1, 2, 0, terms, 0, 3, 2, precision="single")
        bits = Scale.for_sum(terms, 1.0, "single").word_bits
        assert size.sums_width * 8 == bits * size.starts * size.clusters
    assert find_model("mixture").capacity.largest_term == CELL_BOUND  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="model pairs has no jobs with precision"):
        Size(3, 9, 9, 2, 0, 3, 2, model="pairs", privacy="sealed", precision="single")
    with pytest.raises(ConfigError, match="precision is one of"):
        Size(3, 9, 9, 2, 0, 3, 2, precision="half")  # type: ignore[arg-type]


@pytest.mark.usefixtures("narrow_tiles")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize("model", ["bce", "mixture", "bc3e"])
def test_memory_in_single_precision_is_no_more(model: str, privacy: str) -> None:
    size = replace(LARGE[model], shared=LARGE[model].objects, privacy=privacy, precision="single")
    played = play(size)
    assert played.home.bytes < capacity.engine_memory(size) + HALF_AN_ARRAY * size.width * size.objects
    assert played.site.bytes < capacity.site_memory(size) + HALF_AN_ARRAY * size.width * size.objects


@pytest.fixture(name="narrow_tiles")
def _narrow_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread works on at a time does not grow with the objects; here it would outweigh them."""
    monkeypatch.setattr("ce.protocol.engine.cell_passes._TILE_ENTRIES", 2048)
    monkeypatch.setattr("ce.protocol.engine.object_state.STRETCH", 2048)
    monkeypatch.setattr("ce.capacity.STRETCH", 2048)


def test_a_stretch_is_one() -> None:
    assert capacity.STRETCH == objects.STRETCH


def arrays_off(measured: float, said: float, size: Size) -> float:
    """By how many arrays, of one number for each start, cluster and object, a formula is wrong."""
    return abs(measured - said) / (size.width * size.objects)


@pytest.mark.usefixtures("narrow_tiles")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize("model", LARGE)
def test_memory_of_objects_that_all_sites_hold(model: str, privacy: str) -> None:
    size = replace(LARGE[model], shared=LARGE[model].objects, privacy=privacy)
    played = play(size)
    assert arrays_off(played.home.bytes, capacity.engine_memory(size), size) < HALF_AN_ARRAY
    assert arrays_off(played.site.bytes, capacity.site_memory(size), size) < HALF_AN_ARRAY


@pytest.mark.usefixtures("narrow_tiles")
@pytest.mark.parametrize("model", LARGE)
def test_memory_of_objects_that_one_site_holds(model: str) -> None:
    size = replace(LARGE[model], shared_columns=6)
    played = play(size)
    assert arrays_off(played.site.bytes, capacity.site_memory(size), size) < HALF_AN_ARRAY
    assert played.home.bytes < capacity.engine_memory(size) + 50_000


@pytest.mark.usefixtures("narrow_tiles")
def test_memory_where_there_are_many_classes() -> None:
    """Of bc3e: what compares classes with clusters grows with their square."""
    shared = Size(3, 1500, 1500, 6, 0, 12, 20, 1, 1, "bc3e")
    assert arrays_off(play(shared).home.bytes, capacity.engine_memory(shared), shared) < HALF_AN_ARRAY
    private = replace(shared, shared=0, shared_columns=6)
    assert arrays_off(play(private).site.bytes, capacity.site_memory(private), private) < 2 * HALF_AN_ARRAY


@pytest.mark.usefixtures("narrow_tiles")
def test_some_objects_of_both_kinds_take_no_more_than_both_would() -> None:
    size = replace(LARGE["bce"], objects=1200, shared=600, shared_columns=2, privacy="blind")
    played = play(size)
    assert 0.5 < played.site.bytes / capacity.site_memory(size) <= 1


@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize("model", LARGE)
def test_checkpoints(model: str, privacy: str) -> None:
    size = replace(LARGE[model], objects=1000, shared=500, shared_columns=2, privacy=privacy)
    played = play(size, keep=True)
    assert played.site_checkpoint == pytest.approx(capacity.site_checkpoint(size), rel=0.02)
    assert played.home_checkpoint == pytest.approx(capacity.coordinator_checkpoint(size), rel=0.02, abs=1000)


@pytest.mark.parametrize("sites", [3, 20])
def test_memory_of_an_alignment(sites: int) -> None:
    size = Size(sites, 2000, 1000, 2, 0, 3, 3)
    assert aligning(size) == pytest.approx(capacity.alignment_memory(size), rel=0.1)
