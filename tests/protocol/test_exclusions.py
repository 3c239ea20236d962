"""What sites leave out of a job, in numbers: sent, checked, counted and told."""

from __future__ import annotations

import pytest

from ce.cli.exclusions import not_in_the_fit
from ce.errors import MessageError
from ce.protocol.minimums import Exclusion, exclusion_counts
from ce.protocol.topology.exclusions import NOT_NAMED, ExclusionCount, JobExclusions
from ce.transport.enrolment_codec import LONGEST_RULE, MOST_EXCLUSIONS, read_exclusions
from ce_coordinator.cli.picture import left_out, line, picture
from ce_proto.v1 import operator_pb2 as operator
from ce_proto.v1 import site_pb2 as pb


def test_each_rule_is_counted_once() -> None:
    excluded = (
        Exclusion("shared_objects", 1, 0, objects=5),
        Exclusion("min_sites", 3, 2, columns=("a", "b")),
        Exclusion("min_sites", 3, 1, objects=2, labels=4),
    )
    assert exclusion_counts(excluded) == (
        ExclusionCount("shared_objects", 5),
        ExclusionCount("min_sites", 2, 2, 4),
    )


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([pb.Exclusion(rule="")], "1 to 100 printable"),
        ([pb.Exclusion(rule="r" * (LONGEST_RULE + 1))], "1 to 100 printable"),
        ([pb.Exclusion(rule="min\x1b[31m")], "1 to 100 printable"),
        ([pb.Exclusion(rule="a\nb")], "1 to 100 printable"),
        ([pb.Exclusion(rule="a"), pb.Exclusion(rule="a")], "each of them once"),
        ([pb.Exclusion(rule=str(at)) for at in range(MOST_EXCLUSIONS + 1)], "at most 100"),
    ],
)
def test_what_could_not_be_printed_is_refused(messages: list[pb.Exclusion], sentence: str) -> None:
    with pytest.raises(MessageError, match=sentence):
        read_exclusions(messages)


def test_a_rule_that_is_not_known_here_is_taken_as_it_is() -> None:
    messages = [pb.Exclusion(rule="a rule of tomorrow", objects=2**63, columns=3, labels=7)]
    assert read_exclusions(messages) == (ExclusionCount("a rule of tomorrow", 2**63, 3, 7),)


def test_a_site_cannot_name_more_than_it_has_left_out() -> None:
    for more in (ExclusionCount("x", 11), ExclusionCount("x", 0, 2), ExclusionCount("x", labels=301)):
        job = JobExclusions()
        job.enrolled("north", 100, 3, ())
        with pytest.raises(MessageError, match="no more than the site has left out"):
            job.enrolled("north", 90, 2, (more,))
    with pytest.raises(MessageError):
        JobExclusions().enrolled("north", 100, 3, (ExclusionCount("x", 1),))


def test_what_a_site_does_not_name_is_counted_all_the_same() -> None:
    job = JobExclusions()
    job.enrolled("south", 50, 2, ())
    job.enrolled("north", 100, 3, ())
    job.aligned(150)
    assert list(job) == []
    job.enrolled("north", 90, 2, (ExclusionCount("min_sites", 4),))
    assert list(job) == []  # not before it is aligned
    job.aligned(140)
    assert job.objects == 150
    assert list(job) == [("north", ExclusionCount("min_sites", 4)), ("north", ExclusionCount(NOT_NAMED, 6, 1))]
    job.enrolled("north", 80, 2, (ExclusionCount("min_sites", 20, 1),))
    job.aligned(130)
    assert list(job) == [("north", ExclusionCount("min_sites", 20, 1))]


def test_one_line_says_how_many_objects_of_how_many_and_which_rules() -> None:
    assert not_in_the_fit(850, 850, []) == ""
    shared = {"site": "north", "rule": "shared_objects", "objects": 1200, "columns": 0, "labels": 0}
    assert not_in_the_fit(1850, 1450, [shared, shared | {"site": "south", "objects": 1}]) == (
        "400 of 1,850 are not in the fit (shared_objects: 1,200 objects at north, 1 object at south)"
    )
    column = {"site": "east", "rule": "min_sites", "objects": 0, "columns": 1, "labels": 2}
    assert (
        not_in_the_fit(850, 850, [column])
        == "all 850 are in the fit; left out are single columns or labels (min_sites: 1 column and 2 labels at east)"
    )


def test_a_picture_of_a_job_and_its_line_say_what_is_not_in_the_fit() -> None:
    excluded = [operator.SiteExclusion(site="north", rule="min_objects", objects=3)]
    status = operator.JobStatus(job="demo", state="running", objects=10, objects_in_fit=7, excluded=excluded)
    assert left_out(status) == "3 of 10 are not in the fit (min_objects: 3 objects at north)"
    assert left_out(status) in line(status)
    assert picture(status).renderables
    assert left_out(operator.JobStatus(job="demo", state="enrolling")) == ""
