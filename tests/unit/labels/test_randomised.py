"""Randomised response: labels are replaced with probability p, in the same way in every job, and epsilon is right."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ce
from ce.errors import InputError
from ce.labels.randomised import epsilon, epsilons, randomise

SECRET, OTHER = b"s" * 32, b"t" * 32


def table(n: int, m: int, k: int, seed: int = 0) -> ce.LabelTable:
    """Clusterings and one classifier, with missing labels; every category occurs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, k, (n, m))
    labels[: min(k, n)] = np.arange(min(k, n))[:, None]
    names = [f"c{j}" for j in range(m)]
    return ce.LabelTable.from_arrays(labels, ids=[f"object {i}" for i in range(n)], columns=names, classifiers=["c0"])


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
    st.integers(1, 40), st.integers(1, 4), st.integers(1, 6), st.floats(0, 1, exclude_max=True), st.randoms(), st.data()
)
def test_the_order_of_rows_and_columns_changes_nothing(
    n: int, m: int, k: int, p: float, random: Random, data: st.DataObject
) -> None:
    labels = table(n, m, k)
    rows, names = list(range(n)), [column.name for column in labels.columns]
    random.shuffle(rows)
    random.shuffle(names)
    once = randomise(labels, p, SECRET)
    assert labels_of(randomise(labels.select(rows, names), p, SECRET)) == labels_of(once)
    assert labels_of(randomise(labels, p, SECRET)) == labels_of(once), "the same in every later run"
    some = data.draw(st.lists(st.sampled_from(rows), unique=True, min_size=1))
    assert labels_of(randomise(labels.select(some), p, SECRET)).items() <= labels_of(once).items()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.floats(0, 1, exclude_max=True))
def test_what_is_missing_stays_missing_and_nothing_new_appears(n: int, k: int, p: float) -> None:
    labels = table(n, 2, k)
    noisy = randomise(labels, p, SECRET)
    assert noisy.ids is labels.ids
    for before, after in zip(labels.columns, noisy.columns, strict=True):
        assert (before.name, before.kind, before.categories) == (after.name, after.kind, after.categories)
        assert np.array_equal(before.observed, after.observed)
        assert after.codes is not None
        assert after.codes.max(initial=-1) < len(before.categories)


@pytest.mark.parametrize(("p", "k"), [(0.1, 2), (0.5, 5), (0.9, 3)])
def test_labels_are_replaced_with_probability_p_and_evenly(p: float, k: int) -> None:
    n = 20_000
    rng = np.random.default_rng(1)
    labels = ce.LabelTable.from_arrays(rng.integers(0, k, (n, 2)))
    for before, after in zip(labels.columns, randomise(labels, p, SECRET).columns, strict=True):
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
    mine, theirs = randomise(labels, p, SECRET), randomise(labels, p, OTHER)
    unchanged = [column.codes == same[:, 0] for table in (mine, theirs) for column in table.columns]
    for one in range(4):
        for other in range(one):
            both = np.mean(unchanged[one] & unchanged[other])
            assert abs(both - unchanged[one].mean() * unchanged[other].mean()) < 0.03
    # A label that changes is drawn anew. With the same draw as before, the change would show the true label.
    moved = ce.LabelTable.from_arrays((same + 1) % k, columns=["a", "b"])
    again = randomise(moved, p, SECRET).columns[0].codes == (same[:, 0] + 1) % k
    assert abs(np.mean(unchanged[0] & again) - unchanged[0].mean() * again.mean()) < 0.03


def test_without_noise_the_table_is_unchanged() -> None:
    labels = table(10, 2, 3)
    assert randomise(labels, 0.0, SECRET) is labels
    assert epsilons(labels, 0.0) == {}


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
    assert epsilons(table(10, 2, 3), 0.5) == {"c0": epsilon(0.5, 3), "c1": epsilon(0.5, 3)}


@pytest.mark.parametrize("p", [-0.1, 1.0, math.nan])
def test_a_number_that_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(InputError, match="randomise: expected a number of at least 0 and below 1"):
        randomise(table(3, 1, 2), p, SECRET)


def test_soft_labels_are_refused_by_the_name_of_their_column(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("id,hard,clf:doctor=ill,clf:doctor=well\ncanary,secret,0.5,0.5\nb,x,1,0\n")
    soft = ce.LabelTable.from_csv(tmp_path / "labels.csv")
    for refused in (lambda: randomise(soft, 0.1, SECRET), lambda: epsilons(soft, 0.1)):
        with pytest.raises(InputError, match=r"column 'doctor': soft labels cannot be randomised: give") as error:
            refused()
        assert not {"canary", "secret", "ill"} & set(str(error.value).split())
