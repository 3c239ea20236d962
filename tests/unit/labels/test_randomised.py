"""Randomised response: labels are replaced with probability p, in the same way in every job, and epsilon is right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ce
import ce.labels.randomised
from ce.errors import InputError, LabelError, Refused
from ce.labels.randomised import Randomisation, epsilon, randomise
from ce.labels.table import Categories
from ce.protocol.attempt import Attempt
from ce.protocol.topology.enrolment import enrol
from ce.transport.enrolment_codec import enrolment_frames, enrolment_header

SECRET, OTHER = b"s" * 32, b"t" * 32
KEY = b"k" * 32


def table(n: int, m: int, k: int, seed: int = 0) -> ce.LabelTable:
    """Clusterings and one classifier, with missing labels; every category occurs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, k, (n, m))
    labels[: min(k, n)] = np.arange(min(k, n))[:, None]
    names = [f"c{j}" for j in range(m)]
    return ce.LabelTable.from_arrays(labels, ids=[f"object {i}" for i in range(n)], columns=names, classifiers=["c0"])


def declaring(p: float, labels: ce.LabelTable, k: int, sampled: int = 0) -> Randomisation:
    return Randomisation(p, {column.name: tuple(range(k)) for column in labels.columns}, sampled)


def labels_of(labels: ce.LabelTable) -> dict[tuple[str, str], object]:
    """Every label, by object and column."""
    found: dict[tuple[str, str], object] = {}
    for column in labels.columns:
        assert column.codes is not None
        for name, code in zip(labels.ids.tolist(), column.codes.tolist(), strict=True):
            found[name, column.name] = None if code < 0 else column.categories[code]
    return found


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 6),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 4),
    st.randoms(),
    st.data(),
)
def test_the_order_of_rows_and_columns_changes_nothing(
    n: int, m: int, k: int, p: float, sampled: int, random: Random, data: st.DataObject
) -> None:
    labels = table(n, m, k)
    how = declaring(p, labels, k, sampled)
    rows, names = list(range(n)), [column.name for column in labels.columns]
    random.shuffle(rows)
    random.shuffle(names)
    once = randomise(labels, how, SECRET)
    assert labels_of(randomise(labels.select(rows, names), how, SECRET)) == labels_of(once)
    assert labels_of(randomise(labels, how, SECRET)) == labels_of(once), "the same in every later run"
    some = data.draw(st.lists(st.sampled_from(rows), unique=True, min_size=1))
    assert labels_of(randomise(labels.select(some), how, SECRET)).items() <= labels_of(once).items()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.floats(0.01, 1, exclude_max=True))
def test_what_is_missing_stays_missing_and_the_categories_are_the_declared_ones(n: int, k: int, p: float) -> None:
    labels = table(n, 2, k)
    how = Randomisation(p, {"c0": tuple(range(k)), "c1": tuple(range(k + 3))})
    noisy = randomise(labels, how, SECRET)
    assert noisy.ids is labels.ids
    for before, after in zip(labels.columns, noisy.columns, strict=True):
        assert (before.name, before.kind, how.categories[before.name]) == (after.name, after.kind, after.categories)
        assert np.array_equal(before.observed, after.observed)
        assert after.codes is not None
        assert after.codes.max(initial=-1) < len(after.categories)


@pytest.mark.parametrize(("p", "k"), [(0.1, 2), (0.5, 5), (0.9, 3)])
def test_labels_are_replaced_with_probability_p_and_evenly(p: float, k: int) -> None:
    n = 20_000
    rng = np.random.default_rng(1)
    labels = ce.LabelTable.from_arrays(rng.integers(0, k, (n, 2)))
    for before, after in zip(labels.columns, randomise(labels, declaring(p, labels, k), SECRET).columns, strict=True):
        assert before.codes is not None
        assert after.codes is not None
        changed = before.codes != after.codes
        expected = p * (1 - 1 / k)
        assert abs(changed.mean() - expected) < 5 * math.sqrt(expected * (1 - expected) / n)
        # A replaced label is any other of the column, whatever it was.
        steps = np.bincount((after.codes - before.codes)[changed] % k, minlength=k)[1:]
        assert np.abs(steps - steps.mean()).max() < 5 * math.sqrt(steps.mean())


def test_cells_secrets_columns_and_labels_are_drawn_apart() -> None:
    n, k, p = 5000, 4, 0.5
    same = np.repeat(np.random.default_rng(2).integers(0, k, (n, 1)), 2, axis=1)
    labels = ce.LabelTable.from_arrays(same, columns=["a", "b"])
    how = declaring(p, labels, k)
    mine, theirs = randomise(labels, how, SECRET), randomise(labels, how, OTHER)
    unchanged = [column.codes == same[:, 0] for table in (mine, theirs) for column in table.columns]
    for one in range(4):
        for other in range(one):
            both = np.mean(unchanged[one] & unchanged[other])
            assert abs(both - unchanged[one].mean() * unchanged[other].mean()) < 0.03
    # A label that changes is drawn anew. With the same draw as before, the change would show the true label.
    moved = ce.LabelTable.from_arrays((same + 1) % k, columns=["a", "b"])
    again = randomise(moved, how, SECRET).columns[0].codes == (same[:, 0] + 1) % k
    assert abs(np.mean(unchanged[0] & again) - unchanged[0].mean() * again.mean()) < 0.03


def test_without_noise_the_table_is_unchanged() -> None:
    labels = table(10, 2, 3)
    assert randomise(labels, Randomisation(0.0, {}), SECRET) is labels
    assert Randomisation(0.0, {}).epsilons(["c0", "c1"]) == {}


# Neighbouring tables.


@pytest.mark.promise("Randomised labels are epsilon-private, by label and by row, whatever leaves the site.")
@pytest.mark.parametrize("sampled", [0, 1])
def test_tables_that_differ_in_labels_enrol_the_same_bytes(tmp_path: Path, sampled: int) -> None:
    """One label is the only one of its category, or the only one that is no number."""
    declared: dict[str, Categories] = {"a": ("1", "2", "other"), "b": (0, 1)}
    ids = [f"o{i}" for i in range(30)]
    cells = [["1", 0] for _ in ids]
    neighbour = [["other", 1], *cells[1:]]
    shown = set()
    for rows in (cells, neighbour):
        path = tmp_path / "labels.csv"
        path.write_text("id,a,b\n" + "".join(f"{id_},{a},{b}\n" for id_, (a, b) in zip(ids, rows, strict=True)))
        labels = ce.LabelTable.from_csv(path)
        made = enrol(randomise(labels, Randomisation(0.9, declared, sampled), SECRET), True, KEY)
        attempt = Attempt("job", b"{}", 1, ("north", "south"))
        frames = enrolment_frames(enrolment_header(attempt, made, made.summary(), b"", b"", 1), made)
        shown.add((b"".join(frame.SerializeToString(deterministic=True) for frame in frames), made.summary()))
    assert len(shown) == 1


class PlannedDraws:
    """Draws in place of AES: every outcome of all draws of a table, with its exact probability."""

    def __init__(self, p: Fraction, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._choices = [(word, other, p / k) for word, other in itertools.product((0,), range(k))]
        self._choices += [(2**64 - 1, 0, 1 - p)]
        self._planned: Iterator[tuple[int, int]] = iter(())
        monkeypatch.setattr(ce.labels.randomised, "_drawn", self._drawn)

    def _drawn(self, key: bytes, blocks: NDArray[np.uint64]) -> NDArray[np.uint64]:
        words = [next(self._planned) for _ in range(len(blocks))]
        return np.array(words, dtype=np.uint64).reshape(-1, 2)

    def released(self, labels: ce.LabelTable, how: Randomisation) -> Mapping[tuple[object, ...], Fraction]:
        """The exact distribution of the released table."""
        found: dict[tuple[object, ...], Fraction] = {}
        m, n = len(labels.columns), labels.n_objects
        orders = list(itertools.product(itertools.permutations(range(m)), repeat=n)) if how.samples else [()]
        cells = n * (how.sampled if how.samples else m)
        for order in orders:
            ranks = [(order[i][j], 0) for j in range(m) for i in range(n)] if order else []
            for draws in itertools.product(self._choices, repeat=cells):
                self._planned = itertools.chain(ranks, [draw[:2] for draw in draws])
                noisy = randomise(labels, how, SECRET)
                released = tuple(labels_of(noisy).items())
                weight = math.prod((draw[2] for draw in draws), start=Fraction(1, len(orders)))
                found[released] = found.get(released, Fraction(0)) + weight
        assert sum(found.values()) == 1
        return found


@pytest.mark.promise("Randomised labels are epsilon-private, by label and by row, whatever leaves the site.")
@pytest.mark.parametrize(("k", "m", "sampled"), [(2, 1, 0), (3, 1, 0), (2, 2, 0), (3, 2, 0), (2, 2, 1), (3, 3, 1)])
def test_the_distributions_of_neighbouring_tables_differ_at_most_by_epsilon(
    k: int, m: int, sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By enumeration of all draws, in exact fractions: of one label, and of a whole row. Both limits are reached."""
    p = Fraction(1, 4)
    draws = PlannedDraws(p, k, monkeypatch)
    names = [f"c{j}" for j in range(m)]
    how = Randomisation(float(p), {name: tuple(range(k)) for name in names}, sampled)

    def released(row: list[int]) -> Mapping[tuple[object, ...], Fraction]:
        return draws.released(ce.LabelTable.from_arrays([row], columns=names), how)

    base = released([0] * m)
    per_label, per_row = 1 + k * (1 - p) / p, (1 + k * (1 - p) / p) ** (sampled or m)
    for row in itertools.product(range(k), repeat=m):
        other = released(list(row))
        assert set(other) == set(base), "whatever is released, it may come from any labels"
        ratio = max(base[table] / other[table] for table in base)
        assert ratio <= per_row
        if sum(map(bool, row)) == 1:
            assert ratio == per_label
        if all(row):
            assert ratio == per_row
    epsilons = how.epsilons(names)
    assert list(epsilons.values()) == pytest.approx([math.log(per_label)] * m)
    assert how.row_epsilon(epsilons.values()) == pytest.approx(math.log(per_row))


def test_a_new_object_column_or_category_leaves_all_other_draws_as_they_were() -> None:
    """Also a new category: its column is then drawn in another way, but no other column is."""
    rng = np.random.default_rng(3)
    cells, ids = rng.integers(0, 3, (200, 2)), [f"o{i}" for i in range(201)]
    few = ce.LabelTable.from_arrays(cells, ids=ids[:200], columns=["a", "b"])
    cells = np.vstack([cells, [[3, 3]]])
    one_more = ce.LabelTable.from_arrays(cells, ids=ids, columns=["a", "b"])
    wide = ce.LabelTable.from_arrays(
        np.column_stack([cells, rng.integers(0, 3, 201)]), ids=ids, columns=["a", "b", "c"]
    )
    how = Randomisation(0.5, {"a": tuple(range(4)), "b": tuple(range(4)), "c": (0, 1, 2)})
    before = labels_of(randomise(few, how, SECRET))
    assert before.items() <= labels_of(randomise(one_more, how, SECRET)).items()
    assert before.items() <= labels_of(randomise(wide, how, SECRET)).items()
    declared_later = Randomisation(0.5, {**how.categories, "b": tuple(range(5))})
    after = labels_of(randomise(few, declared_later, SECRET))
    assert all(after[cell] == label for cell, label in before.items() if cell[1] == "a")
    assert how.draw_version("a", SECRET) == declared_later.draw_version("a", SECRET)
    assert how.draw_version("b", SECRET) != declared_later.draw_version("b", SECRET)


# Sampled columns.


def test_of_each_object_as_many_columns_take_part_as_the_policy_says_and_labels_do_not_decide_which() -> None:
    n, m, k = 4000, 4, 3
    rng = np.random.default_rng(5)
    names = [f"c{j}" for j in range(m)]
    full = ce.LabelTable.from_arrays(rng.integers(0, k, (n, m)), columns=names)
    other = ce.LabelTable.from_arrays(rng.integers(0, k, (n, m)), columns=names)
    for sampled in (1, 2, 3):
        seen = np.array([c.observed for c in randomise(full, declaring(0.5, full, k, sampled), SECRET).columns])
        again = np.array([c.observed for c in randomise(other, declaring(0.2, other, k, sampled), SECRET).columns])
        assert np.array_equal(seen, again), "neither labels nor the probability decide"
        assert (seen.sum(axis=0) == sampled).all()
        share = sampled / m
        assert np.abs(seen.mean(axis=1) - share).max() < 5 * math.sqrt(share * (1 - share) / n)
    for sampled in (0, m, m + 1):
        all_take_part = randomise(full, declaring(0.5, full, k, sampled), SECRET)
        assert all(column.observed.all() for column in all_take_part.columns)


def test_a_missing_label_does_not_change_which_columns_take_part() -> None:
    cells = np.zeros((50, 3), dtype=int)
    names = ["a", "b", "c"]
    full = ce.LabelTable.from_arrays(cells, columns=names)
    cells[:, 0] = -1
    without = ce.LabelTable.from_arrays(cells, columns=names)
    how = declaring(0.5, full, 2, 1)
    seen = labels_of(randomise(full, how, SECRET))
    missing = labels_of(randomise(without, how, SECRET))
    assert missing == {cell: None if cell[1] == "a" else label for cell, label in seen.items()}


def test_the_choice_of_columns_and_the_draws_have_versions() -> None:
    declared: dict[str, Categories] = {"a": (0, 1), "b": (0, 1)}
    how = Randomisation(0.5, declared, 1)
    assert Randomisation(0.5, declared).sampling_version(SECRET) == ""
    assert Randomisation(0.5, declared, 2).sampling_version(SECRET) == "", "all columns take part"
    more: dict[str, Categories] = {**declared, "c": (0, 1)}
    versions = {
        how.sampling_version(SECRET),
        how.sampling_version(OTHER),
        Randomisation(0.5, more, 1).sampling_version(SECRET),
        Randomisation(0.5, more, 2).sampling_version(SECRET),
    }
    assert len(versions) == 4
    drawn = {
        Randomisation(p, {"a": categories}).draw_version("a", secret)
        for p in (0.5, 0.4)
        for categories in ((0, 1), (0, 2), (0, 1, 2), ("0", "1"))
        for secret in (SECRET, OTHER)
    }
    assert len(drawn) == 16
    assert how.draw_version("a", SECRET) in drawn, "sampling changes no draw"
    assert Randomisation(0.0, {}).draw_version("a", SECRET) == ""


# Epsilon.


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-6, 1 - 1e-6), st.integers(1, 10_000))
def test_epsilon_is_the_logarithm_of_the_odds(p: float, k: int) -> None:
    assert epsilon(p, k) == pytest.approx(math.log((1 - p + p / k) / (p / k)))
    assert epsilon(p, k + 1) >= epsilon(p, k)
    assert epsilon(p / 2, k) >= epsilon(p, k)


def test_epsilon_at_its_ends() -> None:
    assert epsilon(0.0, 3) == math.inf
    assert epsilon(0.5, 0) == 0.0
    assert epsilon(0.5, 2) == pytest.approx(math.log(3))


def test_epsilon_of_a_row_is_the_sum_over_its_columns_or_over_the_largest_that_take_part() -> None:
    declared: dict[str, Categories] = {"a": (0, 1), "b": tuple(range(7)), "c": ("x", "y", "z")}
    for sampled, expected in ((0, (7, 3, 2)), (1, (7,)), (2, (7, 3)), (3, (7, 3, 2)), (9, (7, 3, 2))):
        how = Randomisation(0.5, declared, sampled)
        epsilons = how.epsilons(declared)
        assert epsilons == {"a": epsilon(0.5, 2), "b": epsilon(0.5, 7), "c": epsilon(0.5, 3)}
        assert how.row_epsilon(epsilons.values()) == pytest.approx(sum(epsilon(0.5, k) for k in expected))


# Refusals.


@pytest.mark.parametrize("p", [-0.1, 1.0, math.nan])
def test_a_number_that_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(InputError, match="randomise: expected a number of at least 0 and below 1"):
        Randomisation(p, {})
    with pytest.raises(InputError, match="randomise_columns: expected a number of at least 0, got -1"):
        Randomisation(0.5, {}, -1)


def test_a_column_without_declared_categories_is_refused_by_name() -> None:
    labels = table(10, 2, 3)
    with pytest.raises(Refused, match=r"the categories of column 'c1' are not declared: list all") as refused:
        randomise(labels, Randomisation(0.5, {"c0": (0, 1, 2)}), SECRET)
    assert refused.value.rule == "declared categories"


def test_a_label_outside_of_the_declared_categories_is_an_error_that_names_the_column_only() -> None:
    labels = ce.LabelTable.from_arrays([["canary"], ["b"]], columns=["a"])
    for declared in (("b", "c"), (1, 2)):
        with pytest.raises(LabelError, match=r"column 'a': has a label that is") as error:
            randomise(labels, Randomisation(0.5, {"a": declared}), SECRET)
        assert "canary" not in str(error.value)


def test_soft_labels_are_refused_by_the_name_of_their_column(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("id,hard,clf:doctor=ill,clf:doctor=well\ncanary,secret,0.5,0.5\nb,x,1,0\n")
    soft = ce.LabelTable.from_csv(tmp_path / "labels.csv")
    with pytest.raises(InputError, match=r"column 'doctor': soft labels cannot be randomised: give") as error:
        randomise(soft, Randomisation(0.1, {}), SECRET)
    assert not {"canary", "secret", "ill"} & set(str(error.value).split())
