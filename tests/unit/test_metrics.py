"""ce.metrics against scikit-learn, examples worked by hand, and the laws of each measure."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.metrics.cluster import contingency_matrix, pair_confusion_matrix

from ce import metrics
from ce.errors import InputError

Labeling = list[int]
Pair = tuple[Labeling, Labeling]
Triple = tuple[Labeling, Labeling, Labeling]
Measure = Callable[[Any, Any], float]

SIMILARITIES: list[Measure] = [
    metrics.micro_precision,
    metrics.purity,
    metrics.nmi,
    metrics.ari,
    metrics.rand_index,
    metrics.ami,
    metrics.pair_f,
    metrics.f1_nbce,
    metrics.cohen_kappa,
]
DISTANCES: list[Measure] = [metrics.vi, metrics.nvi1, metrics.nvi2]
MEASURES = SIMILARITIES + DISTANCES
ASYMMETRIC = {metrics.micro_precision, metrics.purity, metrics.f1_nbce}
AVERAGES: list[Any] = ["arithmetic", "geometric", "min", "max"]

laws = settings(deadline=None, max_examples=50, derandomize=True)


@st.composite
def triples(draw: st.DrawFn) -> Triple:
    """Three labelings of the same 1 to 25 objects, from a single cluster to six."""
    n = draw(st.integers(1, 25))
    objects = st.tuples(*(st.integers(0, draw(st.integers(0, 5))) for _ in range(3)))
    a, b, c = zip(*draw(st.lists(objects, min_size=n, max_size=n)), strict=True)
    return list(a), list(b), list(c)


def pairs() -> st.SearchStrategy[Pair]:
    return triples().map(lambda triple: triple[:2])


@contextmanager
def sklearn_may_warn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TestAgainstScikitLearn:
    @laws
    @given(pairs())
    def test_contingency(self, pair: Pair) -> None:
        table = metrics.contingency(*pair)
        assert table.dtype == np.int64
        with sklearn_may_warn():
            np.testing.assert_array_equal(table, contingency_matrix(*pair))

    @laws
    @given(pairs())
    def test_purity_and_micro_precision(self, pair: Pair) -> None:
        with sklearn_may_warn():
            table = contingency_matrix(*pair)
        expected = table.max(axis=0).sum() / table.sum()
        assert metrics.purity(*pair) == pytest.approx(expected, abs=1e-9)
        assert metrics.micro_precision(*pair) == metrics.purity(*pair)

    @laws
    @given(pairs())
    def test_pair_counting(self, pair: Pair) -> None:
        with sklearn_may_warn():
            assert metrics.ari(*pair) == pytest.approx(sk.adjusted_rand_score(*pair), abs=1e-9)
            assert metrics.rand_index(*pair) == pytest.approx(sk.rand_score(*pair), abs=1e-9)
            (_, only_b), (only_a, both) = pair_confusion_matrix(*pair).tolist()
        joined = 2 * both + only_a + only_b
        assert metrics.pair_f(*pair) == pytest.approx(2 * both / joined if joined else 1.0, abs=1e-9)

    @laws
    @given(pairs())
    def test_nmi(self, pair: Pair) -> None:
        for average in AVERAGES:
            with sklearn_may_warn():
                expected = sk.normalized_mutual_info_score(*pair, average_method=average)
            assert metrics.nmi(*pair, average=average) == pytest.approx(expected, abs=1e-9)

    @laws
    @given(pairs())
    def test_ami(self, pair: Pair) -> None:
        for average in AVERAGES:
            if average == "min" and any(len(set(labels)) == len(labels) for labels in pair):
                continue  # 0 / 0, of which scikit-learn returns the rounding errors: see TestDegenerate.
            with sklearn_may_warn():
                expected = sk.adjusted_mutual_info_score(*pair, average_method=average)
            assert metrics.ami(*pair, average=average) == pytest.approx(expected, abs=1e-9)

    @laws
    @given(pairs())
    def test_cohen_kappa(self, pair: Pair) -> None:
        assume(len(set(pair[0]) | set(pair[1])) > 1)
        with sklearn_may_warn():
            expected = sk.cohen_kappa_score(*pair)
            table = sk.confusion_matrix(*pair)
        assert metrics.cohen_kappa(*pair) == pytest.approx(expected, abs=1e-9)
        assert metrics.kappa_from_table(table) == pytest.approx(expected, abs=1e-9)

    def test_ami_of_many_objects(self) -> None:
        """Large enough for the expectation to leave tails out; clusters from half of all objects to a few."""
        rng = np.random.default_rng(5)
        a = rng.choice(8, 20_000, p=[0.6, 0.2, 0.1, 0.05, 0.03, 0.01, 0.009, 0.001])
        b = np.where(rng.random(20_000) < 0.02, a, rng.choice(9, 20_000))
        assert metrics.ami(a, b) == pytest.approx(sk.adjusted_mutual_info_score(a, b), abs=1e-9)


class TestLaws:
    @laws
    @given(pairs())
    def test_symmetric(self, pair: Pair) -> None:
        a, b = pair
        for measure in MEASURES:
            if measure not in ASYMMETRIC:
                assert measure(a, b) == pytest.approx(measure(b, a), abs=1e-12), measure

    @laws
    @given(pairs(), st.permutations("uvwxyz"), st.randoms(use_true_random=False))
    def test_names_and_order_do_not_matter(self, pair: Pair, names: list[str], order: Random) -> None:
        objects = list(zip(*pair, strict=True))
        order.shuffle(objects)
        a = [names[label] for label, _ in objects]
        b = [label for _, label in objects]
        for measure in MEASURES:
            if measure is not metrics.cohen_kappa:
                assert measure(a, b) == pytest.approx(measure(*pair), abs=1e-12), measure
        renamed_alike = [names[label] for label in b]
        assert metrics.cohen_kappa(a, renamed_alike) == metrics.cohen_kappa(*pair)

    @laws
    @given(pairs())
    def test_similarities_are_at_most_one_and_one_for_equal(self, pair: Pair) -> None:
        least: dict[Measure, float] = {metrics.ari: -0.5, metrics.ami: -math.inf, metrics.cohen_kappa: -1.0}
        for measure in SIMILARITIES:
            assert least.get(measure, 0.0) <= measure(*pair) <= 1.0, measure
            assert measure(pair[0], pair[0]) == 1.0, measure
        for average in [*AVERAGES, "joint"]:
            assert 0.0 <= metrics.nmi(*pair, average=average) <= 1.0
            assert metrics.nmi(pair[0], pair[0], average=average) == 1.0

    @laws
    @given(triples())
    def test_distances_are_metrics(self, triple: Triple) -> None:
        a, b, c = triple
        equal = len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))
        for distance in DISTANCES:
            assert distance(a, a) == 0.0, distance
            assert distance(a, b) == 0.0 if equal else distance(a, b) > 0.0, distance
            assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-12, distance

    @laws
    @given(pairs())
    def test_distances_have_their_ranges_and_their_similarities(self, pair: Pair) -> None:
        assert metrics.vi(*pair) <= math.log(len(pair[0])) + 1e-12
        assert 0.0 <= metrics.nvi1(*pair) <= 1.0
        assert 0.0 <= metrics.nvi2(*pair) <= 1.0
        assert metrics.nvi1(*pair) == pytest.approx(1 - metrics.nmi(*pair, average="joint"), abs=1e-12)
        assert metrics.nvi2(*pair) == pytest.approx(1 - metrics.nmi(*pair, average="max"), abs=1e-12)

    @laws
    @given(pairs(), st.randoms(use_true_random=False), st.sampled_from([None, -1, math.nan]))
    def test_objects_missing_in_either_drop_out_of_both(
        self, pair: Pair, chance: Random, missing: float | None
    ) -> None:
        lost = [(chance.random() < 0.2, chance.random() < 0.2) for _ in pair[0]]
        kept = [i for i, either in enumerate(lost) if not any(either)]
        assume(kept)
        a, b = ([missing if lost[i][side] else label for i, label in enumerate(pair[side])] for side in range(2))
        for measure in MEASURES:
            assert measure(a, b) == measure(*([labels[i] for i in kept] for labels in pair)), measure

    @pytest.mark.parametrize("average", AVERAGES)
    def test_expected_ami_over_all_arrangements_is_zero(self, average: Any) -> None:
        a = [0, 0, 0, 1, 1, 2, 2]
        arrangements = set(itertools.permutations([0, 0, 0, 0, 1, 1, 2]))
        scores = [metrics.ami(a, list(b), average=average) for b in arrangements]
        assert math.fsum(scores) / len(scores) == pytest.approx(0, abs=1e-12)


class TestByHand:
    # Overlaps: classes x, y, z in rows, clusters 0, 1 in columns: (3, 0), (1, 1), (0, 2).
    TRUTH = ("x", "x", "x", "y", "y", "z", "z")
    CLUSTERS = (0, 0, 0, 0, 1, 1, 1)

    def test_contingency(self) -> None:
        np.testing.assert_array_equal(metrics.contingency(self.TRUTH, self.CLUSTERS), [[3, 0], [1, 1], [0, 2]])

    def test_micro_precision(self) -> None:
        assert metrics.micro_precision(self.TRUTH, self.CLUSTERS) == 5 / 7
        assert metrics.micro_precision(self.CLUSTERS, self.TRUTH) == 6 / 7

    def test_f1_nbce(self) -> None:
        # x: 6/7 with 0; y: 2/6 with 0, 2/5 with 1; z: 4/5 with 1. The other way: 6/7 with x, 4/5 with z.
        assert metrics.f1_nbce(self.TRUTH, self.CLUSTERS) == pytest.approx((6 / 7 + 2 / 5 + 4 / 5) / 3, abs=1e-15)
        assert metrics.f1_nbce(self.CLUSTERS, self.TRUTH) == pytest.approx((6 / 7 + 4 / 5) / 2, abs=1e-15)

    def test_pairs(self) -> None:
        # 21 pairs: 5 together in classes, 9 in clusters, 4 in both.
        assert metrics.pair_f(self.TRUTH, self.CLUSTERS) == 8 / 14
        assert metrics.rand_index(self.TRUTH, self.CLUSTERS) == 15 / 21
        assert metrics.ari(self.TRUTH, self.CLUSTERS) == pytest.approx((4 - 45 / 21) / (7 - 45 / 21), abs=1e-15)

    def test_information_of_a_refinement(self) -> None:
        # B halves each of A's two halves: H(A) = ln 2, H(B) = H(A,B) = 2 ln 2, I = ln 2.
        a, b = [0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3]
        assert metrics.vi(a, b) == pytest.approx(math.log(2), abs=1e-15)
        assert metrics.nvi1(a, b) == pytest.approx(1 / 2, abs=1e-15)
        assert metrics.nvi2(a, b) == pytest.approx(1 / 2, abs=1e-15)
        expected = {
            "arithmetic": 2 / 3,
            "geometric": 1 / math.sqrt(2),
            "min": 1,
            "max": 1 / 2,
            "joint": 1 / 2,
        }
        for average, value in expected.items():
            assert metrics.nmi(a, b, average=average) == pytest.approx(value, abs=1e-15)  # type: ignore[arg-type]

    def test_information_of_independent_halves(self) -> None:
        # H(A) = H(B) = ln 2, I = 0, H(A,B) = 2 ln 2.
        a, b = [0, 0, 1, 1], [0, 1, 0, 1]
        assert metrics.vi(a, b) == pytest.approx(2 * math.log(2), abs=1e-15)
        assert metrics.nvi1(a, b) == metrics.nvi2(a, b) == 1.0
        assert metrics.nmi(a, b) == 0.0

    def test_information_of_one_misplaced_object(self) -> None:
        # Table (2, 0), (1, 1): H(A) = ln 2, H(B) = 2 ln 2 - (3/4) ln 3, H(A,B) = (3/2) ln 2.
        a, b = [0, 0, 1, 1], [0, 0, 0, 1]
        mutual = 1.5 * math.log(2) - 0.75 * math.log(3)
        assert metrics.nvi1(a, b) == pytest.approx(1 - mutual / (1.5 * math.log(2)), abs=1e-15)
        assert metrics.nvi2(a, b) == pytest.approx(1 - mutual / math.log(2), abs=1e-15)

    def test_cohen_kappa(self) -> None:
        # 35 of 50 agree; by chance (25 * 30 + 25 * 20) / 50² = 1/2.
        table = [[20, 5], [10, 15]]
        assert metrics.kappa_from_table(table) == pytest.approx(0.4, abs=1e-15)
        assert metrics.kappa_from_table(np.array(table) / 50) == pytest.approx(0.4, abs=1e-12)
        a = ["yes"] * 25 + ["no"] * 25
        b = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
        assert metrics.cohen_kappa(a, b) == pytest.approx(0.4, abs=1e-15)


class TestDegenerate:
    @pytest.mark.parametrize("n", [1, 5])
    def test_both_a_single_cluster(self, n: int) -> None:
        a, b = [0] * n, [3] * n
        for measure in SIMILARITIES:
            assert measure(a, b) == (0.0 if measure is metrics.cohen_kappa else 1.0)
        assert metrics.vi(a, b) == metrics.nvi1(a, b) == metrics.nvi2(a, b) == 0.0
        assert metrics.cohen_kappa(a, a) == 1.0
        assert metrics.kappa_from_table([[0, 0], [0, n]]) == 1.0

    @pytest.mark.parametrize("average", [*AVERAGES, "joint"])
    def test_nmi_of_one_cluster_against_several(self, average: Any) -> None:
        assert metrics.nmi([0, 0, 0, 0], [0, 1, 1, 2], average=average) == 0.0
        assert metrics.nmi([0, 0], [1, 1], average=average) == 1.0

    @pytest.mark.parametrize("average", AVERAGES)
    def test_ami_where_every_arrangement_is_alike(self, average: Any) -> None:
        assert metrics.ami([0, 1, 2, 3], [0, 1, 1, 2], average=average) == 0.0
        assert metrics.ami([0, 0, 0, 0], [0, 1, 1, 2], average=average) == 0.0
        assert metrics.ami([0, 1, 2, 3], [3, 2, 1, 0], average=average) == 1.0

    def test_singletons_join_no_pair(self) -> None:
        assert metrics.pair_f([0, 1, 2], [2, 0, 1]) == 1.0
        assert metrics.ari([0, 1, 2], [2, 0, 1]) == 1.0
        assert metrics.pair_f([0, 1, 2], [0, 0, 1]) == 0.0

    def test_kappa_without_common_labels(self) -> None:
        assert metrics.cohen_kappa(["a", "b", "a"], ["c", "d", "d"]) == 0.0


class TestLabels:
    A = (2, 0, 0, 5, -1, 5, 2, 0)
    B = (1, 1, 0, 0, 1, -3, 0, 0)
    TABLE = ((2, 1), (1, 1), (1, 0))

    @pytest.mark.parametrize(
        "convert",
        [
            list,
            iter,
            np.array,
            lambda v: np.array(v, dtype=np.int8),
            lambda v: np.array([math.nan if x < 0 else x for x in v]),
            lambda v: np.array(v, dtype=np.float32),
            lambda v: np.array([None if x < 0 else x for x in v], dtype=object),
            lambda v: [math.nan if x < 0 else f"c{x}" for x in v],
            lambda v: ["c" * (x + 1) if x >= 0 else None for x in v],
            lambda v: pd.Series([None if x < 0 else x for x in v], dtype="Int64"),
            lambda v: pd.Series([None if x < 0 else f"c{x}" for x in v], dtype="category"),
            lambda v: pd.Series([None if x < 0 else pd.Timestamp(1960 + x, 1, 1) for x in v]),
            lambda v: pl.Series([None if x < 0 else x for x in v]),
            lambda v: pl.Series([None if x < 0 else f"c{x}" for x in v]),
            lambda v: [-1 if x < 0 else (x, "of a tuple") for x in v],
        ],
    )
    def test_every_kind_of_label_and_of_missing(self, convert: Callable[[tuple[int, ...]], Any]) -> None:
        np.testing.assert_array_equal(metrics.contingency(convert(self.A), self.B), self.TABLE)
        np.testing.assert_array_equal(metrics.contingency(self.B, convert(self.A)), np.transpose(self.TABLE))

    def test_string_arrays(self) -> None:
        a = np.array(["u", "v", "u", "nan"])
        np.testing.assert_array_equal(metrics.contingency(a, a), np.diag([1, 2, 1]))
        assert metrics.cohen_kappa(a, a.tolist()) == 1.0

    def test_labels_that_cannot_be_sorted_keep_their_order(self) -> None:
        np.testing.assert_array_equal(metrics.contingency(["b", 1, (), "b"], [0, 0, 1, 1]), [[1, 1], [1, 0], [0, 1]])

    def test_numbers_and_strings_are_different_labels(self) -> None:
        assert metrics.contingency([1, "1", 1], [0, 0, 0]).shape == (2, 1)
        assert metrics.cohen_kappa([1, 2, 3], [1.0, 2.0, 3.0]) == 1.0
        assert metrics.cohen_kappa(np.array([1, 2, 3]), np.array(["1", "2", "3"])) == 0.0

    def test_a_label_seen_only_where_the_other_is_missing_leaves_no_row(self) -> None:
        np.testing.assert_array_equal(metrics.contingency([0, 7, 1], [0, -1, 1]), np.eye(2))


class TestLarge:
    def test_ari_of_ten_million_objects_is_exact(self) -> None:
        table = np.array([[4_000_000, 1, 7], [3, 3_500_000, 250_000], [499_989, 0, 1_750_000]])
        cells = np.repeat(np.arange(9, dtype=np.int8), table.ravel())
        a, b = cells // 3, cells % 3
        assert len(a) == 10_000_000

        def pairs(counts: Any) -> int:
            return sum(math.comb(count, 2) for count in np.ravel(counts).tolist())

        both, in_a, in_b, total = (pairs(x) for x in (table, table.sum(1), table.sum(0), table.sum()))
        chance = Fraction(in_a * in_b, total)
        assert metrics.ari(a, b) == float((both - chance) / (Fraction(in_a + in_b, 2) - chance))

    def test_one_in_a_million_is_seen(self) -> None:
        a = np.repeat([0, 1], 500_000)
        b = a.copy()
        b[0] = 1
        # One object has changed sides: it is joined with or parted from every other one.
        assert 1 - metrics.rand_index(a, b) == pytest.approx(2e-6, rel=1e-5)
        assert 1 - metrics.micro_precision(a, b) == pytest.approx(1e-6, rel=1e-9)
        assert metrics.vi(a, b) == pytest.approx(2e-6 * (1 + math.log(500_000)), rel=1e-5)
        assert 0.9999 < metrics.ami(a, b) < 1


class TestErrors:
    @pytest.mark.parametrize("measure", MEASURES)
    def test_lengths_differ(self, measure: Measure) -> None:
        with pytest.raises(InputError, match=r"differ in length, 3 and 2: both must label the same objects"):
            measure([0, 1, 1], [0, 1])

    @pytest.mark.parametrize("measure", MEASURES)
    @pytest.mark.parametrize(("a", "b"), [([], []), ([-1, 0], [0, None])])
    def test_nothing_to_compare(self, measure: Measure, a: list[Any], b: list[Any]) -> None:
        with pytest.raises(InputError, match=rf"none of the {len(a)} objects is labelled in both"):
            measure(a, b)

    @pytest.mark.parametrize("labels", [np.zeros((3, 1)), np.array(4), "file.csv"])
    def test_not_a_vector(self, labels: Any) -> None:
        with pytest.raises(InputError, match="a labeling is a vector with one label per object"):
            metrics.nmi(labels, [0, 1, 2])

    def test_unhashable_labels(self) -> None:
        with pytest.raises(InputError, match="hashable"):
            metrics.ari([[1], [2]], [0, 1])

    def test_identifiers_instead_of_labels(self) -> None:
        ids = np.arange(10_000)
        with pytest.raises(InputError, match=r"10000 by 10000 labels is too large.* column of ids"):
            metrics.ari(ids, ids)

    def test_unknown_average(self) -> None:
        with pytest.raises(InputError, match=r"no average 'mean': choose one of arithmetic, .*, joint"):
            metrics.nmi([0, 1], [0, 1], average="mean")  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"no average 'joint': choose one of arithmetic, .*, max$"):
            metrics.ami([0, 0], [0, 0], average="joint")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("table", "sentence"),
        [
            ([[1, 2, 3], [4, 5, 6]], r"square table .* not shape \(2, 3\)"),
            ([1, 2], r"square table .* not shape \(2,\)"),
            ([["a", "b"], ["c", "d"]], "table of counts"),
            ([[1, -1], [0, 1]], "non-negative"),
            ([[1.0, math.nan], [0, 1]], "finite"),
            ([[0, 0], [0, 0]], "not all zero"),
        ],
    )
    def test_unusable_kappa_table(self, table: Any, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            metrics.kappa_from_table(table)
