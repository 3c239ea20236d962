"""What a site of a sealed job is told beside its own columns, and letters that compare no objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ce.errors import MessageError
from ce.job import Job
from ce.labels import LabelTable
from ce.privacy.set_intersection import BlindedItems
from ce.protocol.attempt import Attempt
from ce.protocol.keys.letters import COMPARED, FIRST, NOT_COMPARED, SECOND, SiteLetters, box_size, object_lists
from ce.protocol.messages.array_names import rows_array
from ce.protocol.topology.enrolment import Enrolment, EnrolmentSummary, by_pseudonym, enrol
from ce.protocol.topology.other_columns import MOST_CATEGORIES, checked_other_columns
from ce.protocol.topology.site_view import TopologyColumn
from ce.protocol.topology.topology import Topology, align
from ce.protocol.topology.vocabularies import Wishes
from ce.transport.alignment_codec import alignment_frames, read_alignment
from ce.transport.enrolment_codec import pseudonym_bytes
from ce_client.attempt.check_alignment import checked_rows
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "west")
KEY = b"k" * 32
JOB = Job(model="pairs", clusters=3, sites=SITES)
ATTEMPT = Attempt("job", JOB.definition(), 1, SITES)
#: By site: columns and how many categories each has.
COLUMNS = {
    "east": {"everywhere": 2, "zeta": 3},
    "north": {"between": 4, "everywhere": 2},
    "west": {"alpha": 5, "between": 4, "everywhere": 2},
}


def tables() -> dict[str, LabelTable]:
    found = {}
    for at, (site, columns) in enumerate(COLUMNS.items()):
        ids = [f"o{i}" for i in range(10 * at, 10 * at + 40)]
        cells = np.column_stack([np.arange(40) % categories for categories in columns.values()])
        found[site] = LabelTable.from_arrays(cells, ids=ids, columns=list(columns))
    return found


def enrolments() -> dict[str, Enrolment]:
    return {site: enrol(table, votes=False, job_key=KEY) for site, table in tables().items()}


def summaries(wishes: Wishes | None = None) -> dict[str, EnrolmentSummary]:
    return {site: enrolment.summary(wishes=wishes) for site, enrolment in enrolments().items()}


def aligned() -> Topology:
    return align(enrolments())[0]


def sent(topology: Topology, site: str) -> pb.Alignment:
    frames = list(alignment_frames(ATTEMPT, topology.sealed_view(site), {}, dict.fromkeys(SITES, 0), 0))
    return frames[0].alignment


def checked(message: pb.Alignment, topology: Topology, site: str) -> tuple[TopologyColumn, ...]:
    header = read_alignment(message)
    held = topology.view(site).columns
    others, counts = header.other_columns, header.other_category_counts
    return checked_other_columns(others, counts, held, summaries(), topology.sizes.categories)


@pytest.mark.parametrize("site", SITES)
def test_a_site_knows_all_columns_and_only_its_own_categories(site: str) -> None:
    topology = aligned()
    view = topology.sealed_view(site)
    assert checked(sent(topology, site), topology, site) == view.other_columns
    assert [column.name for column in view.all_columns] == ["alpha", "between", "everywhere", "zeta"]
    assert [column.index for column in view.all_columns] == [0, 1, 2, 3]
    assert [len(column.categories) for column in view.all_columns] == [5, 4, 2, 3]
    assert all(column.categories == tuple(range(len(column.categories))) for column in view.other_columns)


def test_other_jobs_are_sent_no_other_columns() -> None:
    view = aligned().view("east")
    frames = list(alignment_frames(ATTEMPT, view, {}, dict.fromkeys(SITES, 0), 0))
    assert not frames[0].alignment.other_columns
    assert read_alignment(frames[0].alignment).other_columns == ()


def test_the_objects_of_a_block_have_one_order() -> None:
    """Blocks of a sealed job are known by their objects in order: another order would be another block."""
    enrolled = {site: enrol(by_pseudonym(table, KEY), votes=False, job_key=KEY) for site, table in tables().items()}
    topology, rows = align(enrolled)
    view = topology.view("north")
    arrays = {rows_array(index): positions.astype(np.int64) for index, positions in rows["north"].items()}
    assert checked_rows(arrays, view, 40, sealed=True).keys() == view.blocks.keys()
    shared = next(index for index, block in view.blocks.items() if block.shared and block.size > 1)
    turned = arrays | {rows_array(shared): arrays[rows_array(shared)][::-1]}
    with pytest.raises(MessageError, match="not in the order of the pseudonyms"):
        checked_rows(turned, view, 40, sealed=True)
    checked_rows(turned, view, 40)  # in other jobs masks would not cancel, and nothing else


def _one_less(message: pb.Alignment) -> None:
    del message.other_columns[0]


def _twice(message: pb.Alignment) -> None:
    message.other_columns.append(message.other_columns[0])


def _in_another_order(message: pb.Alignment) -> None:
    columns = list(message.other_columns)[::-1]
    del message.other_columns[:]
    message.other_columns.extend(columns)


def _of_another_number(message: pb.Alignment) -> None:
    message.other_columns[0].index += 1


def _of_another_name(message: pb.Alignment) -> None:
    message.other_columns[0].name = "aleph"


def _with_another_holder(message: pb.Alignment) -> None:
    message.other_columns[0].holders.append("north")


def _of_another_kind(message: pb.Alignment) -> None:
    message.other_columns[0].kind = pb.COLUMN_KIND_CLASSIFIER


def _with_fewer_categories(message: pb.Alignment) -> None:
    message.other_columns[0].category_count -= 1


def _with_more_categories_than_are_enrolled(message: pb.Alignment) -> None:
    message.other_columns[1].category_count = 9


def _with_categories_that_do_not_add_up(message: pb.Alignment) -> None:
    message.other_columns[1].category_count += 1


@pytest.mark.parametrize(
    "change",
    [
        _one_less,
        _twice,
        _in_another_order,
        _of_another_number,
        _of_another_name,
        _with_another_holder,
        _of_another_kind,
        _with_fewer_categories,
        _with_more_categories_than_are_enrolled,
        _with_categories_that_do_not_add_up,
    ],
)
def test_other_columns_than_those_that_were_signed_are_refused(change: Callable[[pb.Alignment], None]) -> None:
    topology = aligned()
    message = sent(topology, "east")
    change(message)
    with pytest.raises(MessageError, match="alignment: "):
        checked(message, topology, "east")


def test_own_columns_are_numbered_among_all() -> None:
    topology = aligned()
    header = read_alignment(sent(topology, "east"))
    held = [replace(column, index=column.index + 1) for column in topology.view("east").columns]
    with pytest.raises(MessageError, match="order of their names"):
        checked_other_columns(
            header.other_columns, header.other_category_counts, held, summaries(), topology.sizes.categories
        )


def test_what_holders_ask_of_a_category_bounds_their_number() -> None:
    """Two holders of four categories each, both of which must have a category: four at most, not eight."""
    topology = aligned()
    view = topology.sealed_view("east")
    others = [replace(column, categories=()) for column in view.other_columns]
    asked = summaries(Wishes(2, 4))
    assert checked_other_columns(others, [5, 4], view.columns, asked, 14)
    with pytest.raises(MessageError, match="cannot have"):
        checked_other_columns(others, [5, 5], view.columns, asked, 15)


def test_columns_wider_than_any_table_are_refused_before_they_are_numbered() -> None:
    view = aligned().sealed_view("east")
    wide = 1 + MOST_CATEGORIES
    lying = summaries()
    columns = tuple(replace(column, categories=wide) for column in lying["west"].columns)
    lying["west"] = replace(lying["west"], columns=columns)
    others = [replace(column, categories=()) for column in view.other_columns]
    with pytest.raises(MessageError, match="at most 1,048,576"):
        checked_other_columns(others, [wide, 4], view.columns, lying, wide + 9)


def letters_of(site: str) -> SiteLetters:
    pair_keys = {peer: bytes([SITES.index(site) ^ SITES.index(peer)]) * 32 for peer in SITES if peer != site}
    return SiteLetters(ATTEMPT, site, 0, summaries(), pair_keys, KEY, object_lists(JOB))


def test_letters_of_a_sealed_job_agree_on_categories_and_compare_no_objects() -> None:
    letters = {site: letters_of(site) for site in SITES}
    known, said = tables(), summaries()
    first = {}
    for site, own in letters.items():
        objects = pseudonym_bytes(enrolments()[site])
        first[site] = own.begin(BlindedItems(KEY), objects, known[site])
    second = {
        site: own.answer({peer: first[peer][site] for peer in SITES if peer != site}) for site, own in letters.items()
    }
    for site, own in letters.items():
        own.end({peer: second[peer][site] for peer in SITES if peer != site})
        assert all(len(overlap.compared) == len(overlap.common) == 0 for overlap in own.overlaps.values())
    for stage, written in ((FIRST, first), (SECOND, second)):
        for site, boxes in written.items():
            for peer, box in boxes.items():
                assert len(box) == box_size(stage, said[site], said[peer], 2, NOT_COMPARED)
                assert len(box) < box_size(stage, said[site], said[peer], 2, COMPARED)
    assert letters["north"].vocabularies == letters["west"].vocabularies
    assert {name: len(found) for name, found in letters["west"].vocabularies.items()} == {"between": 4, "everywhere": 2}


@pytest.mark.parametrize("cutoff", [0, 7])
def test_a_peer_that_sends_a_list_of_objects_all_the_same_is_refused(cutoff: int) -> None:
    with pytest.raises(MessageError, match="compares none"):
        NOT_COMPARED.answer(cutoff, b"" if cutoff else b"x" * 32, 0)
    with pytest.raises(MessageError, match="compares none"):
        NOT_COMPARED.common(b"x" * 32)


def test_jobs_over_totals_compare_objects() -> None:
    assert object_lists(Job(clusters=3, sites=SITES)) is COMPARED
