"""ce.simulate with classifiers: classes and BC3E."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.simulations import (
    CLASSES,
    COLUMNS,
    N_OBJECTS,
    labels,
    table,
    three_sites,
    votes,
)

import ce
from ce.errors import InputError
from ce.labels import LabelTable


def panel_and_clusterings() -> tuple[dict[str, LabelTable], np.ndarray]:
    """A site that holds only classifiers, and two that hold only clusterings of the same and of other objects."""
    cells, truth = labels(seed=8)
    heard = np.column_stack([votes(truth, seed) for seed in (1, 2, 3)])
    tables = {
        "panel": table(heard, slice(0, 40), names=("v0", "v1", "v2")),
        "north": table(cells, slice(None), slice(0, 3)),
        "south": table(cells, slice(20, None), slice(3, 6)),
    }
    return tables, np.array(CLASSES)[truth]


def test_a_site_that_holds_only_classifiers() -> None:
    tables, truth = panel_and_clusterings()
    result = ce.simulate(ce.Job(model="bc3e"), tables)
    assert result.classes == CLASSES
    assert set(result.parameters) == {"mu", "sigma2", "delta2", "beta"}
    assert result.parameters["mu"].shape == result.parameters["sigma2"].shape == (3,)
    assert isinstance(result.parameters["delta2"], float)
    assert set(result.parameters["beta"]) == set(COLUMNS)
    assert result.kappa is None  # the panel and another site hold every object
    assert result.excluded == ()
    for name, own in result.sites.items():
        assert own.labels.tolist() == np.array(CLASSES)[own.memberships.argmax(axis=1)].tolist()
        right = own.labels == truth[[int(i[1:]) for i in tables[name].ids]]
        assert right.mean() > 0.75, name
    assert result.iterations == 10


def test_classes_given_by_number_name_or_not_at_all() -> None:
    tables, _ = panel_and_clusterings()
    found = ce.simulate(ce.Job(model="bc3e"), tables)
    for names in (CLASSES, tuple(reversed(CLASSES))):
        given = ce.simulate(ce.Job(model="bc3e", classes=names), tables)
        assert given.classes == names
        for name, own in given.sites.items():
            assert own.labels.tolist() == found.sites[name].labels.tolist()
    codes = [np.searchsorted(CLASSES, panel) for panel in (votes(labels(seed=8)[1], seed) for seed in (1, 2, 3))]
    tables["panel"] = table(np.column_stack(codes), slice(0, 40), names=("v0", "v1", "v2"))
    for numbered in (ce.Job(model="bc3e"), ce.Job(model="bc3e", classes=3)):
        result = ce.simulate(numbered, tables)
        assert result.classes == (0, 1, 2)
        for name, own in result.sites.items():
            assert own.memberships.tobytes() == found.sites[name].memberships.tobytes()
            assert np.array(CLASSES)[own.labels].tolist() == found.sites[name].labels.tolist()


def test_a_class_that_nobody_votes_for() -> None:
    tables, _ = panel_and_clusterings()
    result = ce.simulate(ce.Job(model="bc3e", classes=(*CLASSES, "never")), tables)
    assert result.classes == (*CLASSES, "never")
    assert result.sites["north"].memberships.shape == (N_OBJECTS, 4)
    assert not any((own.labels == "never").any() for own in result.sites.values())


def test_votes_for_other_classes_are_refused_without_naming_them() -> None:
    tables, _ = panel_and_clusterings()
    with pytest.raises(InputError, match="classifiers use 1 class names that are not among the 2 given") as caught:
        ce.simulate(ce.Job(model="bc3e", classes=("benign", "malign")), tables)
    assert "unsure" not in str(caught.value)
    with pytest.raises(InputError, match="3 class names"):
        ce.simulate(ce.Job(model="bc3e", classes=3), tables)


def test_bc3e_needs_a_classifier() -> None:
    with pytest.raises(InputError, match="no classifier"):
        ce.simulate(ce.Job(model="bc3e", classes=3), three_sites())


def test_an_object_without_label_and_vote_has_no_class() -> None:
    tables, _ = panel_and_clusterings()
    cells = np.full((1, 3), -1)
    stranger = LabelTable.from_arrays(
        np.vstack([cells, labels(seed=8)[0][48:, :3], [[0, 0, 0]]]), ids=["o900", "o901"], columns=COLUMNS[:3]
    )
    result = ce.simulate(ce.Job(model="bc3e"), tables | {"west": stranger})
    assert [(e.site, e.objects) for e in result.excluded] == [("west", 1)]
    assert result.sites["west"].labels[0] == ""
    assert result.sites["west"].labels[1] in CLASSES
    np.testing.assert_allclose(result.sites["west"].memberships.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("keys", [{"posterior": "factorised"}, {"start": "diffused"}, {"local_loops": 2}])
def test_bc3es_own_keys_reach_the_model(keys: dict[str, Any]) -> None:
    tables, _ = panel_and_clusterings()
    plain = ce.simulate(ce.Job(model="bc3e"), tables)
    other = ce.simulate(ce.Job(model="bc3e", **keys), tables)
    # Diffusion takes exchanges of its own, whether or not its outcome is trusted with the start.
    assert (other.bound_path.tobytes(), other.exchanges) != (plain.bound_path.tobytes(), plain.exchanges)


@pytest.mark.parametrize(
    "keys", [{"local_loops": 2}, {"schedule": "newton"}, {"smoothing": 0.5}, {"max_iterations": 15}, {"restarts": 1}]
)
def test_bces_own_keys_reach_the_model(keys: dict[str, Any]) -> None:
    tables = {name: own for name, own in three_sites().items() if name != "south"}
    given: dict[str, Any] = {"clusters": 3, "restarts": 4, "max_iterations": 60, "tolerance": 0}
    plain = ce.simulate(ce.Job(**given), tables)
    other = ce.simulate(ce.Job(**given | keys), tables)
    assert (other.bound_path.tobytes(), other.bytes_sent) != (plain.bound_path.tobytes(), plain.bytes_sent)
    assert (other.iterations, other.converged) == (keys.get("max_iterations", 60), False)
