"""The example labels: their script makes exactly the files that are here, and they meet the default privacy rules.

The rules (DESIGN, section 7): at least 3 contributors in every total, each with at least 20 objects in that very
array; at least 4 foreign columns, of tables that the viewer does not learn, per object of a shared block; at least 3
foreign classifiers per object for votes.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ce
from ce.labels import LabelTable
from ce.pair_tables import SEALED_TOLERANCE, TableLayout, fit_pairs, log_scores, pair_tables
from ce.privacy.derivation import derive
from ce.privacy.discrete_gaussian import DiscreteGaussian
from ce.privacy.ring_words import Stream
from ce.privacy.zcdp import epsilon_of, noise_of
from ce.protocol.topology.enrolment import enrol
from ce.protocol.topology.topology import Topology, align

EXAMPLES = Path(__file__).parents[3] / "examples"
SITES = ("north", "east", "south", "west")
MIN_SITES = 3
MIN_OBJECTS = 20
MIN_FOREIGN_COLUMNS = 4
MIN_FOREIGN_CLASSIFIERS = 3


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="made", scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    script("make_examples").main(folder)
    return folder


@lru_cache
def tables(folder: Path) -> dict[str, LabelTable]:
    return {site: LabelTable.from_csv(folder / f"{site}.csv") for site in SITES}


@lru_cache
def topology(folder: Path) -> Topology:
    return align({site: enrol(table, True) for site, table in tables(folder).items()})[0]


@lru_cache
def holders(folder: Path) -> dict[str, list[str]]:
    """Which sites know an object, in order of name."""
    known: dict[str, list[str]] = {}
    for site, table in sorted(tables(folder).items()):
        for own in table.ids.tolist():
            known.setdefault(own, []).append(site)
    return known


def test_the_script_makes_the_files_that_are_here(made: Path) -> None:
    names = {path.relative_to(made) for path in made.rglob("*.csv")}
    assert names == {path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*.csv")}
    assert len(names) == 2 * (len(SITES) + 1)
    for name in names:
        assert (made / name).read_bytes() == (EXAMPLES / name).read_bytes(), name


@pytest.mark.parametrize("folder", [EXAMPLES, EXAMPLES / "votes"], ids=["clusterings", "votes"])
def test_what_the_script_says_of_its_customers(folder: Path) -> None:
    """1,200 known to all four sites, 450 more to each; every one of them has a label, and a truth for scoring."""
    known = holders(folder)
    assert sorted(set(map(len, known.values()))) == [1, 4]
    assert sum(len(sites) == 4 for sites in known.values()) == 1200
    for site, table in tables(folder).items():
        assert sum(sites == [site] for sites in known.values()) == 450
        assert table.labelled.mean() > 0.99
    truth = LabelTable.from_csv(folder / "truth.csv")
    assert sorted(truth.ids.tolist()) == sorted(known)
    assert len(truth.columns[0].categories) == (3 if folder.name == "votes" else 5)


def contributions(folder: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Every total that sites form: its name, and how many objects each contributor has in it."""
    own_tables = tables(folder)
    # Sums over all objects (alpha's share, the bound): every site with those that it alone knows.
    known = holders(folder)
    yield "global", {site: sum(sites == [site] for sites in known.values()) for site in SITES}
    shape = topology(folder)
    for block in shape.blocks:
        if block.shared:
            inside = {own for own, sites in known.items() if tuple(sites) == block.members}
            for kind in ("clusterings", "classifiers"):
                counts = {}
                for site in block.members:
                    table = own_tables[site]
                    observed = np.zeros(table.n_objects, dtype=bool)
                    for column in getattr(table, kind):
                        observed |= column.observed
                    counts[site] = len(inside & set(table.ids[observed].tolist()))
                if any(counts.values()):
                    yield f"block {block.index}, {kind}", counts
    for column in shape.clusterings:
        if column.shared:
            counts = {site: int(own_tables[site].column(column.name).observed.sum()) for site in column.holders}
            yield f"column {column.name}", counts


@pytest.mark.parametrize("folder", [EXAMPLES, EXAMPLES / "votes"], ids=["clusterings", "votes"])
def test_every_total_has_enough_contributors(folder: Path) -> None:
    totals = dict(contributions(folder))
    assert len(totals) == (2 + 1 if folder is EXAMPLES else 3)
    for name, counts in totals.items():
        assert sum(count >= MIN_OBJECTS for count in counts.values()) >= MIN_SITES, name
        # Nobody takes part with fewer.
        assert all(count >= MIN_OBJECTS for count in counts.values()), name


@pytest.mark.parametrize("folder", [EXAMPLES, EXAMPLES / "votes"], ids=["clusterings", "votes"])
def test_every_shared_object_has_enough_foreign_columns(folder: Path) -> None:
    """Seen from each site that knows it: columns that its other holders have, whether or not a cell is missing.

    A shared column's table is known to its holders, so it does not count.
    """
    own_tables = tables(folder)
    shape = topology(folder)
    for viewer in SITES:
        for block in shape.blocks:
            if not block.shared or viewer not in block.members:
                continue
            foreign = [c for c in shape.clusterings if not c.shared and viewer not in c.holders]
            held = [c for c in foreign if c.holders[0] in block.members]
            assert len(held) >= MIN_FOREIGN_COLUMNS
            # No shared object has a cell of a shared column, whose table would decode it.
            for column in shape.clusterings:
                if column.shared:
                    for site in set(column.holders) & set(block.members):
                        table = own_tables[site]
                        observed = table.ids[table.column(column.name).observed]
                        shared = [own for own, sites in holders(folder).items() if tuple(sites) == block.members]
                        assert not set(observed.tolist()) & set(shared)


def test_every_shared_object_has_enough_foreign_classifiers() -> None:
    shape = topology(EXAMPLES / "votes")
    assert [c.name for c in shape.classifiers] == sorted(SITES)
    for viewer in SITES:
        for block in shape.blocks:
            if block.shared and viewer in block.members:
                foreign = [c for c in shape.classifiers if viewer not in c.holders and c.holders[0] in block.members]
                assert len(foreign) >= MIN_FOREIGN_CLASSIFIERS


@pytest.mark.parametrize("folder", [EXAMPLES, EXAMPLES / "votes"], ids=["clusterings", "votes"])
def test_missing_cells_leave_every_shared_object_enough_foreign_labels(folder: Path) -> None:
    """The same, counting labels that are there rather than columns that could have one."""
    own_tables = tables(folder)
    shared = [own for own, sites in holders(folder).items() if len(sites) > 1]
    for viewer in SITES:
        labels, votes = Counter[str](), Counter[str]()
        for site, table in own_tables.items():
            if site != viewer:
                for column in table.columns:
                    (labels if column.kind == "clustering" else votes).update(table.ids[column.observed].tolist())
        assert min(labels[own] for own in shared) >= MIN_FOREIGN_COLUMNS
        if folder != EXAMPLES:
            assert min(votes[own] for own in shared) >= MIN_FOREIGN_CLASSIFIERS


@lru_cache
def group_by_id() -> dict[str, int]:
    truth = LabelTable.from_csv(EXAMPLES / "truth.csv")
    return dict(zip(truth.ids.tolist(), truth.columns[0].codes.tolist(), strict=True))


def groups_of(ids: Iterable[str]) -> list[int]:
    return [group_by_id()[own] for own in ids]


def test_the_demo_finds_the_groups() -> None:
    """What `make demo` and the default of docker-compose.yml show: a sealed job under the default policy."""
    result = ce.simulate(ce.Job(model="pairs", clusters=5), tables(EXAMPLES), policy={})
    found: dict[str, int] = {}
    for name, site in result.sites.items():
        assert ce.metrics.ari(groups_of(site.ids), site.labels) > 0.9
        # Every site has the same label of an object, and more than a label only of objects that it alone holds.
        assert all(found.setdefault(own, label) == label for own, label in zip(site.ids, site.labels, strict=True))
        shared = [len(holders_of) > 1 for holders_of in map(holders(EXAMPLES).__getitem__, site.ids.tolist())]
        assert np.isnan(site.memberships).any(axis=1).tolist() == shared, name
    assert ce.metrics.ari(groups_of(found), list(found.values())) > 0.93
    assert (result.layout, result.excluded, result.objects_in_fit) == ("arbitrary", (), 3000)
    assert result.noise_warning == ""


@pytest.mark.slow
def test_a_job_over_totals_finds_the_groups() -> None:
    """What the compose profile `bce` shows, where sites opted in to totals of shared customers."""
    result = ce.simulate(ce.Job(clusters=5, seed=7, restarts=2), tables(EXAMPLES))
    for site in result.sites.values():
        assert ce.metrics.ari(groups_of(site.ids), site.labels) > 0.9
    assert result.layout == "arbitrary"
    assert result.excluded == ()


# Sealed jobs: the noise of the default epsilon.


class Pooled:
    """What a sealed job of the four sites counts: pair tables of all customers, and the noise that they need."""

    def __init__(self) -> None:
        own_tables = tables(EXAMPLES)
        self.holders: dict[str, list[str]] = {}
        categories: dict[str, list[Any]] = {}
        for site, table in own_tables.items():
            for column in table.columns:
                self.holders.setdefault(column.name, []).append(site)
                known = categories.setdefault(column.name, [])
                known += [category for category in column.categories if category not in known]
        names = tuple(sorted(categories))
        self.layout = TableLayout(names, tuple(len(categories[name]) for name in names))
        self.ids = sorted(holders(EXAMPLES))
        row = {own: i for i, own in enumerate(self.ids)}
        self.codes = np.full((len(self.ids), len(names)), -1, dtype=np.int32)
        for table in own_tables.values():
            rows = np.array([row[own] for own in table.ids.tolist()])
            for column in table.columns:
                place = np.array([categories[column.name].index(category) for category in column.categories])
                seen = column.codes >= 0
                self.codes[rows[seen], names.index(column.name)] = place[column.codes[seen]]
        self.tables = pair_tables(self.codes, self.layout)
        job = ce.Job(model="pairs", clusters=5, sites=SITES)
        assert isinstance(job.epsilon, float)
        self.noise = noise_of(
            self.holders, SITES, epsilon=job.epsilon, delta=job.delta, unit="site_row", collusion=job.collusion
        )

    def ari(self, noisy: NDArray[np.float64], sd: float) -> float:
        fit = fit_pairs(noisy, self.layout, 5, sd=sd, tolerance=SEALED_TOLERANCE)
        labels = log_scores(self.codes, self.layout, fit.weights, fit.beta).argmax(axis=1)
        return ce.metrics.ari(groups_of(self.ids), labels)

    def release(self, number: int) -> NDArray[np.float64]:
        """The tables with the noise of four sites, of which each draws its own."""
        draws = DiscreteGaussian(self.noise.site_variance)
        cells = self.layout.packed(self.tables).astype(np.int64)
        for site in SITES:
            cells += draws.sample(Stream(derive(bytes(32), b"a release", site.encode(), bytes([number]))), len(cells))
        return self.layout.unpacked(cells).astype(np.float64)


@pytest.fixture(name="pooled", scope="module")
def _pooled() -> Pooled:
    return Pooled()


def test_no_table_is_too_small_for_the_noise(pooled: Pooled) -> None:
    """A warning would say where the customers of a job, spread over the cells of a table, are few beside the noise."""
    largest = max(pooled.layout.categories)
    assert len(pooled.ids) / largest**2 > pooled.noise.opened_sd / 2
    # Every site pays the whole epsilon of the job: all have as many columns.
    assert all(1.999 < epsilon_of(rho, 1e-6) <= 2.0 for rho in pooled.noise.rho_of_site.values())


@pytest.mark.promise("On the examples the noise of the default epsilon costs less than 0.02 ARI on average.")
def test_noise_hardly_changes_the_consensus(pooled: Pooled) -> None:
    exact = pooled.ari(pooled.tables, 0.0)
    noisy = [pooled.ari(pooled.release(number), pooled.noise.opened_sd) for number in range(20)]
    assert exact > 0.965
    assert np.mean(noisy) > exact - 0.02
    assert min(noisy) > exact - 0.05


@pytest.mark.slow
def test_votes_are_refined() -> None:
    result = ce.simulate(ce.Job(model="bc3e"), tables(EXAMPLES / "votes"))
    truth = LabelTable.from_csv(EXAMPLES / "votes" / "truth.csv")
    column = truth.columns[0]
    known = {own: column.categories[code] for own, code in zip(truth.ids.tolist(), column.codes.tolist(), strict=True)}
    for name, site in result.sites.items():
        table = LabelTable.from_csv(EXAMPLES / "votes" / f"{name}.csv")
        right = np.array([known[own] for own in site.ids])
        proba = table.classifiers[0].probabilities
        heard = np.array(table.classifiers[0].categories)[np.nan_to_num(proba, nan=-1.0).argmax(axis=1)]
        assert (site.labels == right).mean() > (heard == right).mean() + 0.15


# Scripts that show something. Each returns what it has found.


def test_every_script_is_tested_here_or_as_the_demo() -> None:
    lessons = {"fit_on_one_machine", "simulate_four_sites", "audit_your_labels", "classify_with_bc3e"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == lessons | {"demo", "make_examples"}


def test_a_consensus_is_better_than_most_of_what_it_is_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    found = script("fit_on_one_machine").main()
    assert found["consensus"] > found["mean"] + 0.1
    assert found["sure"] > 0.5
    assert "the consensus agrees by 0." in capsys.readouterr().out


@pytest.mark.promise("A distributed run gives the same bits as one site with all labels, for any topology.")
def test_every_layout_and_mode_gives_the_same_bits() -> None:
    same = script("simulate_four_sites").main()
    assert same == dict.fromkeys(("row", "column", "arbitrary", "masked", "blind"), True)


def test_an_audit_tells_plain_from_masked() -> None:
    audit = script("audit_your_labels").main()
    counted = {f.mode: f.recovered for f in audit.worst() if (f.view, f.attack) == ("coordinator", "histograms")}
    assert counted["plain"] > 0.9
    assert counted["masked"] < 0.1
    assert audit.leaks == ()


def test_clusterings_correct_votes_and_more_sites_do_it_better() -> None:
    shares = script("classify_with_bc3e").main()
    assert shares["votes"] + 0.2 < shares["alone"] < shares["together"]
    assert shares["kappa"] > 0.3
