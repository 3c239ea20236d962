"""`ce.simulate`: a whole job on one machine, one engine for each site's labels, as the daemons would run it.

In the job's privacy mode, with real masks and keys made on the spot; totals are the same words in every mode, and so
are the results. A simulation reveals nothing to anybody, so no rule applies unless a policy is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.consensus_file import consensus_labels
from ce.declarations.registry import BUILT_IN, find_model
from ce.errors import BrokenModel, ConfigError, InputError
from ce.job import PRIVACY, Job
from ce.labels import LabelTable
from ce.labels.declared import categories_in_use, check_labels, declared_categories
from ce.labels.randomised import Randomisation, randomise
from ce.models.registry import model_of
from ce.policy import Policy
from ce.privacy.derivation import derive
from ce.privacy.pseudonyms import tokens
from ce.privacy.ring_words import Stream
from ce.privacy.zcdp import epsilon_of
from ce.protocol.engine.aggregator import Progress
from ce.protocol.engine.starting_parameters import SecretStarts, SeededStarts, Starts, job_key
from ce.protocol.local_run import Run, TransportTo, run
from ce.protocol.minimums import Exclusion
from ce.protocol.score_excluded import whole_memberships
from ce.protocol.sealed_results import whole_labels
from ce.protocol.sealed_run import run_sealed
from ce.protocol.topology.enrolment import with_tokens
from ce.protocol.topology.site_view import Categories
from ce.protocol.topology.topology import Layout
from ce.ring import Reals

TRANSPORTS = ("inprocess", "grpc")


@dataclass(frozen=True)
class SiteResult:
    """What one site gets: results for the objects it holds, in the order of its table."""

    ids: NDArray[np.str_] = field(repr=False)  # (n,)
    labels: NDArray[Any] = field(repr=False)  # 0-based clusters (-1: no label anywhere), or class names
    memberships: Reals = field(repr=False)  # (n, k)


@dataclass(frozen=True)
class Excluded:
    """Something that took no part, and the rule that says so. Never an id.

    Beside the rules of a policy: "objects without a label", "classifiers in a model without classes".
    """

    site: str
    rule: str
    objects: int = 0
    columns: tuple[str, ...] = ()
    labels: int = 0  # of categories that take no part; their objects and columns do


@dataclass(frozen=True)
class Simulation:
    """The result of a simulated job."""

    job: Job
    sites: dict[str, SiteResult]  # by name
    parameters: dict[str, Any] = field(repr=False)  # "beta" {column: (k, k_c)}, and the globals: "alpha", ...
    bound_path: Reals = field(repr=False)  # the winner's bound after each iteration
    lower_bound: float  # of the winner, at the end
    iterations: int  # of the winner
    converged: bool  # whether the winner stopped by itself
    exchanges: int  # with all sites at once; the last one, which brings the results, is not counted
    bytes_sent: int  # all messages of the rounds, both ways
    layout: Layout  # "one", "row", "column" or "arbitrary"
    privacy: str  # the mode in which it ran
    excluded: tuple[Excluded, ...]  # what took no part, and why
    objects: int  # different objects of all sites
    objects_in_fit: int  # of these, those that no rule has left out at all their sites
    classes: Categories  # of a model with classes: the names of the columns of memberships
    kappa: float | None  # do the clusterings follow the classes? Of objects that one site holds; None if there is none
    #: Of randomised labels, by site: epsilon of one label by column, and of all labels of an object.
    epsilon: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    epsilon_row: Mapping[str, float] = field(default_factory=dict)
    #: Of a sealed job: clusters of the model; by site, epsilon that its rows were charged (infinite: exact); and a
    #: sentence where the noise hides what the tables say. Its `parameters` are the weights alone, its `lower_bound` is
    #: the composite likelihood of the tables, its `bound_path` is empty, and memberships of shared objects are NaN.
    n_clusters: int = 0
    epsilon_spent: Mapping[str, float] = field(default_factory=dict)
    noise_warning: str = ""


def simulate(
    job: Job,
    tables: Mapping[str, LabelTable],
    *,
    privacy: str | None = None,
    transport: str = "inprocess",
    secrets: Mapping[str, bytes] | None = None,
    policy: Policy | Mapping[str, Any] | str | Path | None = None,
    categories: Mapping[str, Iterable[Any]] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Simulation:
    """Run `job` over the sites' tables on this machine.

    `privacy` None is the job's. Starts come from the job's seed or, given `secrets`, from each site's secret as the
    daemons draw them. `policy` (keys of policy.toml, or its path) applies one site's rules at all. With transport
    "grpc" messages go over mutual TLS on this machine's loopback, with throw-away certificates; the results are the
    same bits.

    `categories` {column: all that a label may be} is what sites declare in client.toml, which a daemon needs if its
    policy says `randomise`. None: all that any of the tables has, or the classes; that looks at the labels, as only a
    simulation may.

    The random bytes of a sealed job follow from the job's seed; given `secrets` they are the system's, as at a daemon.
    """
    mode = _mode(job, privacy, transport)
    tables = {site: LabelTable.from_arrays(table) for site, table in tables.items()}
    _check_sites(job, tables)
    rules = None if policy is None else Policy.of(policy)
    model, classes = (None, ()) if job.sealed else model_of(job, list(tables.values()))
    votes = model is not None and model.uses_votes
    randomised: dict[str, _RandomisedTable] = {}
    if categories is not None:
        _check_declared(tables, categories)
    if rules is not None:
        rules.check(replace(job, privacy=mode, sites=tuple(tables)), "")
        if rules.randomise:
            declared = categories_in_use(tables.values(), classes)
            if categories is not None:
                declared = declared_categories(categories)
            randomised = {
                site: _RandomisedTable.of(table, rules, declared, _secret(job, secrets, site), votes)
                for site, table in tables.items()
            }
            tables = {site: found.table for site, found in randomised.items()}
    if model is None:
        return replace(
            _sealed(job, tables, secrets, rules, on_progress, _transport_to(transport)),
            epsilon={site: found.epsilon for site, found in randomised.items()},
            epsilon_row={site: found.epsilon_row for site, found in randomised.items()},
        )
    result = run(
        model,
        tables,
        _starts(job, tables, secrets),
        classes=classes,
        job_key=None if secrets is None else job_key(secrets[min(tables)], job.disclosure_digest),
        privacy=mode,
        policies=None if rules is None else dict.fromkeys(tables, rules),
        on_progress=on_progress,
        transport_to=_transport_to(transport),
    )
    outcome = result.outcome
    path = outcome.paths[outcome.winner]
    sites, unlabelled = {}, {}
    for name, table in tables.items():
        whole = table if secrets is None else with_tokens(table, job_key(secrets[min(tables)], job.disclosure_digest))
        memberships, unlabelled[name] = whole_memberships(
            result.sites[name], whole, np.flatnonzero(result.participating[name]), classes
        )
        labels = consensus_labels(memberships, classes, unlabelled[name])
        sites[name] = SiteResult(table.ids, labels, memberships)
    return Simulation(
        job=job,
        sites=sites,
        parameters=_parameters(job, outcome.globals) | {"beta": _tables(result, tables, secrets, job)},
        bound_path=np.array(path.bounds),
        lower_bound=path.bounds[-1],
        iterations=outcome.iterations,
        converged=path.converged,
        exchanges=result.exchanges,
        bytes_sent=result.bytes_sent,
        layout=result.topology.layout,
        privacy=mode,
        excluded=(*_left_out(result.excluded), *_excluded(tables, unlabelled, model.uses_votes)),
        objects=len(np.unique(np.concatenate([table.ids for table in tables.values()]))),
        objects_in_fit=result.topology.sizes.objects,
        classes=classes,
        kappa=outcome.kappa,
        epsilon={site: found.epsilon for site, found in randomised.items()},
        epsilon_row={site: found.epsilon_row for site, found in randomised.items()},
    )


@dataclass(frozen=True)
class _RandomisedTable:
    """A site's table with randomised labels, and what that is worth."""

    table: LabelTable
    epsilon: dict[str, float]  # of one label, by column
    epsilon_row: float

    @classmethod
    def of(
        cls, table: LabelTable, rules: Policy, declared: Mapping[str, Categories], secret: bytes, votes: bool
    ) -> _RandomisedTable:
        """Columns that the model does not use stay as they are: nothing of them is sent."""
        used = [column.name for column in (table.columns if votes else table.clusterings)]
        known = {name: declared[name] for name in used if name in declared}
        how = Randomisation(rules.randomise, known, rules.randomise_columns)
        noisy = {column.name: column for column in randomise(table.select(columns=used), how, secret).columns}
        epsilon = how.epsilons(used)
        columns = tuple(noisy.get(column.name, column) for column in table.columns)
        return cls(replace(table, columns=columns), epsilon, how.row_epsilon(epsilon.values()))


def _check_declared(tables: Mapping[str, LabelTable], categories: Mapping[str, Iterable[Any]]) -> None:
    """Every declared column must be at a site; labels must be among the declared categories."""
    declared = declared_categories(categories)
    names = {column.name for table in tables.values() for column in table.columns}
    if unknown := sorted(set(declared) - names):
        raise InputError(f"categories: no table has the column {unknown[0]!r}")
    for table in tables.values():
        here = {column.name for column in table.columns}
        check_labels(table, {name: found for name, found in declared.items() if name in here})


def _mode(job: Job, privacy: str | None, transport: str) -> str:
    if privacy is not None and privacy not in PRIVACY:
        raise ConfigError(f"privacy is one of {', '.join(PRIVACY)}")
    if transport not in TRANSPORTS:
        raise ConfigError(f"transport is one of {', '.join(TRANSPORTS)}")
    mode = privacy or job.privacy
    if (mode == "sealed") != job.sealed:
        sealed = " and ".join(one.name for one in BUILT_IN if one.sealed)
        raise ConfigError(f"privacy: sealed is the mode of {sealed}, and of no other model; got {mode} for {job.model}")
    return mode


def _secret(job: Job, secrets: Mapping[str, bytes] | None, site: str) -> bytes:
    """A site's secret; on one machine, without any, one that follows from the seed."""
    return f"seed {job.seed} {site}".encode() if secrets is None else secrets[site]


def _left_out(excluded: Mapping[str, tuple[Exclusion, ...]]) -> list[Excluded]:
    return [
        Excluded(site, found.rule, found.objects, found.columns, found.labels)
        for site, exclusions in excluded.items()
        for found in exclusions
    ]


def _check_sites(job: Job, tables: Mapping[str, LabelTable]) -> None:
    if not tables:
        raise InputError("no site: give at least one table")
    if job.sites and set(job.sites) != set(tables):
        raise InputError(f"the job is for {', '.join(job.sites)}; the tables are of {', '.join(tables)}")


def _starts(job: Job, tables: Mapping[str, LabelTable], secrets: Mapping[str, bytes] | None) -> dict[str, Starts]:
    if secrets is None:
        seeded = SeededStarts.of(job.seed, tables.values())
        return dict.fromkeys(tables, seeded)
    key = _job_key(job, tables, secrets)
    return {site: SecretStarts.of(secrets[site], key, job.disclosure_digest) for site in tables}


def _job_key(job: Job, tables: Mapping[str, LabelTable], secrets: Mapping[str, bytes]) -> bytes:
    """The key of the first site by name. Raises InputError unless every site has a secret."""
    missing = sorted(set(tables) - set(secrets))
    if missing:
        raise InputError(f"no secret for {', '.join(missing)}")
    if not all(isinstance(secret, bytes) and secret for secret in secrets.values()):
        raise InputError("secrets are bytes, and not empty")
    return job_key(secrets[min(tables)], job.disclosure_digest)


def _sealed(
    job: Job,
    tables: Mapping[str, LabelTable],
    secrets: Mapping[str, bytes] | None,
    rules: Policy | None,
    on_progress: Callable[[Progress], None] | None,
    transport_to: TransportTo,
) -> Simulation:
    """A sealed job: its parties on one machine, and what each site has at the end."""
    if odd := sorted(site for site in tables if " " in site or not site.isprintable()):
        raise InputError(
            f"site {odd[0]!r}: the sites of a sealed job have names without spaces; rename it, or its file"
        )
    key = None if secrets is None else _job_key(job, tables, secrets)
    entropy = {site: Stream(derive(_secret(job, None, site), b"ce simulated entropy")).bytes for site in tables}
    result = run_sealed(
        job,
        tables,
        job_key=key,
        policies=None if rules is None else dict.fromkeys(tables, rules),
        on_progress=on_progress,
        transport_to=transport_to,
        entropy=entropy if secrets is None else None,
    )
    sites, unlabelled = {}, {}
    for name, table in tables.items():
        whole = table if key is None else with_tokens(table, key)
        participating = np.flatnonzero(result.participating[name])
        labels, memberships = whole_labels(result.sites[name], result.topology.view(name), whole, participating)
        unlabelled[name] = labels == -1
        sites[name] = SiteResult(table.ids, labels, memberships)
    coordinator, fit = result.coordinator, result.coordinator.fit
    assert fit is not None
    return Simulation(
        job=job,
        sites=sites,
        parameters={"weights": fit.weights},
        bound_path=np.zeros(0),
        lower_bound=fit.log_composite,
        iterations=fit.n_iter,
        converged=fit.converged,
        exchanges=result.exchanges,
        bytes_sent=result.bytes_sent,
        layout=result.topology.layout,
        privacy="sealed",
        excluded=(*_left_out(result.excluded), *_excluded(tables, unlabelled, votes=False)),
        objects=len(np.unique(np.concatenate([table.ids for table in tables.values()]))),
        objects_in_fit=result.topology.sizes.objects,
        classes=(),
        kappa=None,
        n_clusters=coordinator.n_clusters,
        epsilon_spent={site: epsilon_of(rho, job.delta) for site, rho in coordinator.terms.rho.items()},
        noise_warning=coordinator.noise_warning,
    )


def _transport_to(name: str) -> TransportTo:
    """Imported when needed: the library runs without the network's packages, and starts faster for it."""
    if name == "grpc":
        from ce.transport.loopback import Loopback

        return Loopback
    from ce.transport.in_process import InProcess

    return InProcess


def _tables(
    result: Run, tables: Mapping[str, LabelTable], secrets: Mapping[str, bytes] | None, job: Job
) -> dict[str, Reals]:
    """Every clustering's beta, categories in sorted order; where the job used tokens, brought back into that order."""
    beta = result.beta()
    if secrets is None:
        return beta
    key = job_key(secrets[min(tables)], job.disclosure_digest)
    seen: dict[str, set[Any]] = {}
    for table in tables.values():
        for clustering in table.clusterings:
            seen.setdefault(clustering.name, set()).update(clustering.categories)
    for column in result.topology.clusterings:
        where = {token: at for at, token in enumerate(column.categories)}
        named = tokens(key, column.name, sorted(seen[column.name]))
        beta[column.name] = beta[column.name][:, [where[token] for token in named if token in where]]
    return beta


def _parameters(job: Job, globals_: Mapping[str, Reals]) -> dict[str, Any]:
    declaration = find_model(job.model)
    missing = sorted(set(declaration.parameters) - set(globals_))
    if missing:
        raise BrokenModel(f"model {job.model}: declares the parameters {', '.join(missing)}, which its globals lack")
    return {
        name: float(globals_[name][0, 0]) if name in declaration.scalars else globals_[name][0]
        for name in declaration.parameters
    }


def _excluded(
    tables: Mapping[str, LabelTable], unlabelled: Mapping[str, NDArray[np.bool_]], votes: bool
) -> tuple[Excluded, ...]:
    found = []
    for site, table in tables.items():
        if unlabelled[site].any():
            found.append(Excluded(site, "objects without a label", objects=int(unlabelled[site].sum())))
        if table.classifiers and not votes:
            names = tuple(column.name for column in table.classifiers)
            found.append(Excluded(site, "classifiers in a model without classes", columns=names))
    return tuple(found)
