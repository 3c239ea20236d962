"""What `ce fit` and `ce simulate` show: progress, and the closing tables or JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ce import metrics
from ce.cli.output import mode_words
from ce.declarations.registry import find_model
from ce.errors import InputError
from ce.job import EXACT
from ce.labels import LabelTable
from ce.models import BCE
from ce.models.convergence import ended_too_early
from ce.protocol.engine.aggregator import Progress as Where
from ce.protocol.messages.sealed_steps import PHASES
from ce.protocol.topology.site_view import Categories
from ce.samplers.chains import SamplerProgress
from ce.simulation import Simulation

#: With a smaller kappa the clusters do not follow the classes, and the votes alone may do better.
LOW_KAPPA = 0.3


@contextmanager
def progress_bar(sealed: bool = False) -> Iterator[Callable[[Where | SamplerProgress], None] | None]:
    """A progress bar with iteration and bound, or with the phase and round of a sealed job, if standard error is a
    terminal; otherwise nothing."""
    # Not console.is_terminal: FORCE_COLOR, which many CI systems set, makes it true for log files, too.
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[bound]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=1, bound="")

        def show(where: Where | SamplerProgress) -> None:
            if isinstance(where, SamplerProgress):
                bound = f"log joint {where.log_joint:,.4f}  {where.chains} chains"
                bar.update(task, description="sweep", completed=where.sweep, total=where.sweeps, bound=bound)
                return
            starts = f"{where.running} start{'s' if where.running != 1 else ''} running"
            bar.update(
                task,
                description=PHASES[where.stage] if sealed else "iteration" if where.has_bound else "diffusing votes",
                completed=where.iteration,
                total=max(where.max_iter, where.iteration, 1),
                bound=f"bound {where.bound:,.4f}  {starts}" if where.has_bound else "",
            )

        yield show


def check_outputs(paths: Sequence[Path], inputs: Sequence[Path | None]) -> None:
    """Raise InputError, before anything is computed, if a path cannot be written or is one of the input files."""
    for path in paths:
        try:
            if not path.name or (path.exists() and not path.is_file()):
                raise InputError(f"{path}: cannot be written: not a file: choose another --out")
            if path.suffix.lower() in (".gz", ".parquet", ".pq", ".tsv"):
                raise InputError(f"{path}: a consensus file is CSV: let its name end in .csv")
            if path.parent.exists() and not path.parent.is_dir():
                raise InputError(f"{path.parent}: not a directory: choose another --out")
            if path.exists() and any(read is not None and path.samefile(read) for read in inputs):
                raise InputError(f"{path}: would overwrite a file that is read: choose another --out")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error


@dataclass(frozen=True)
class Consensus:
    """The results of all sites of a simulation in one table: one row per object."""

    ids: NDArray[np.str_]
    labels: NDArray[Any]
    classes: Categories  # of a model with classes
    columns: dict[str, NDArray[np.intp]]  # base clustering or classifier -> codes aligned with ids, -1 = missing

    @classmethod
    def of(cls, result: Simulation, tables: Mapping[str, LabelTable]) -> Consensus:
        ids = np.concatenate([site.ids for site in result.sites.values()])
        labels = np.concatenate([site.labels for site in result.sites.values()])
        unique, first = np.unique(ids, return_index=True)
        columns: dict[str, NDArray[np.intp]] = {}
        names: dict[str, dict[Any, int]] = {}
        for table in tables.values():
            position = np.searchsorted(unique, table.ids)
            # A model without classes ignores classifiers, whose name may be that of another site's clustering.
            for column in table.columns if result.classes else table.clusterings:
                known = names.setdefault(column.name, {})
                codes = np.array([known.setdefault(c, len(known)) for c in column.categories] or [0])
                all_sites = columns.setdefault(column.name, np.full(len(unique), -1, dtype=np.intp))
                labels_here = column.likeliest.astype(np.intp)
                all_sites[position[labels_here >= 0]] = codes[labels_here[labels_here >= 0]]
        return cls(unique, labels[first], result.classes, columns)

    def agreement(self) -> dict[str, dict[str, float]]:
        """NMI and ARI with each base clustering, over the objects that have both."""
        usable = self._missing_as_minus_one()
        return {
            name: {"nmi": metrics.nmi(codes, usable), "ari": metrics.ari(codes, usable)}
            for name, codes in self.columns.items()
            if ((codes >= 0) & (usable >= 0)).any()
        }

    def scores(self, truth: LabelTable) -> dict[str, float]:
        """Agreement with the truth, over the objects that the truth names."""
        column = truth.columns[0]
        position = {id_: i for i, id_ in enumerate(self.ids)}
        where = np.array([position.get(id_, -1) for id_ in truth.ids])
        if (where < 0).all():
            raise InputError(
                f"{truth.source}: has none of the objects: check that its ids are those of the label files"
            )
        known = column.likeliest.astype(np.intp)[where >= 0]
        found = self._missing_as_minus_one()[where[where >= 0]]
        scores = {
            "ari": metrics.ari(known, found),
            "nmi": metrics.nmi(known, found),
            "micro_precision": metrics.micro_precision(known, found),
        }
        if self.classes:
            names = np.array([str(c) for c in column.categories])
            right = names[known] == self.labels[where[where >= 0]].astype(str)
            scores["accuracy"] = float(right[known >= 0].mean())
        return scores

    def _missing_as_minus_one(self) -> NDArray[np.intp]:
        if self.labels.dtype.kind != "U":
            return self.labels.astype(np.intp)
        _, codes = np.unique(self.labels, return_inverse=True)
        return np.where(self.labels == "", -1, codes)


def summary(result: Simulation, consensus: Consensus, truth: LabelTable | None) -> dict[str, Any]:
    """All that the closing tables show, for --format json."""
    present = consensus.labels[_labelled(consensus.labels)]
    names, sizes = np.unique(present, return_counts=True)
    report: dict[str, Any] = {
        "model": result.job.model,
        "objects": result.objects,
        "objects_in_fit": result.objects_in_fit,
        "sites": {name: len(site.ids) for name, site in result.sites.items()},
        "layout": result.layout,
        "privacy": result.privacy,
        _objective(result.job.model): result.lower_bound,
        "iterations": result.iterations,
        "converged": result.converged,
        "exchanges": result.exchanges,
        "bytes_sent": result.bytes_sent,
        "sizes": {str(name): int(size) for name, size in zip(names, sizes, strict=True)},
        "agreement": consensus.agreement(),
        "excluded": [
            {"site": e.site, "rule": e.rule, "objects": e.objects, "columns": list(e.columns), "labels": e.labels}
            for e in result.excluded
        ],
    }
    if result.kappa is not None:
        report["kappa"] = result.kappa
    if result.privacy == "sealed":
        spent = {site: EXACT if math.isinf(epsilon) else epsilon for site, epsilon in result.epsilon_spent.items()}
        report |= {"n_clusters": result.n_clusters, "epsilon_spent": spent, "noise_warning": result.noise_warning}
    if result.epsilon:
        report["epsilon"] = {site: dict(columns) for site, columns in result.epsilon.items()}
        report["epsilon_row"] = dict(result.epsilon_row)
    if truth is not None:
        report["truth"] = consensus.scores(truth)
    return report


def with_chains(report: Mapping[str, Any], sampled: BCE) -> dict[str, Any]:
    """The summary of a fit by Gibbs sampling: no bound, but what the chains say."""
    used = sampled.chains_used_
    chains = {
        "log_joint": report["lower_bound"],
        "chains": len(used),
        "chains_used": int(used.sum()),
        "r_hat": sampled.r_hat_ if math.isfinite(sampled.r_hat_) else None,
        "effective_draws": sampled.effective_draws_ if math.isfinite(sampled.effective_draws_) else None,
    }
    found: dict[str, Any] = {}
    for key, value in report.items():
        found |= chains if key == "lower_bound" else {key: value}
    return found


def note_early_end(result: Simulation) -> None:
    """A line on standard error, whatever the format, if the limit of iterations ended the fit."""
    job = result.job
    if ended_too_early(
        find_model(job.model), converged=result.converged, max_iter=job.max_iterations, tol=job.tolerance
    ):
        click.echo(
            f"warning: stopped after {job.max_iterations:,} iterations before it had converged: raise --max-iterations",
            err=True,
        )


def show(report: Mapping[str, Any], format_: str, written: Sequence[Path]) -> None:
    """Print a summary as tables or as JSON."""
    if format_ == "json":
        click.echo(json.dumps({**report, "written": [str(path) for path in written]}, indent=2))
        return
    console = Console(emoji=False)
    several = len(report["sites"]) > 1
    facts = Table(title="Consensus", show_header=False, title_justify="left")
    facts.add_row("model", report["model"])
    facts.add_row("objects", f"{report['objects']:,}")
    if several:
        facts.add_row("sites", ", ".join(f"{escape(name)} ({n:,})" for name, n in report["sites"].items()))
    sealed = report["privacy"] == "sealed"
    facts.add_row("layout", f"{report['layout']}, {mode_words(report['privacy'])}")
    facts.add_row("exchanges", f"{report['exchanges']:,} ({_size(report['bytes_sent'])})")
    if "log_joint" in report:
        facts.add_row("sweeps", f"{report['iterations']:,} of each chain")
        facts.add_row("log joint", f"{report['log_joint']:,.4f}, mean over the draws")
        facts.add_row("chains", f"{report['chains_used']} of {report['chains']} used")
        facts.add_row("R-hat", _or_unknown(report["r_hat"], ".3f"))
        facts.add_row("effective draws", _or_unknown(report["effective_draws"], ",.0f"))
    else:
        end = "converged" if report["converged"] else "stopped at the limit"
        facts.add_row("iterations", f"{report['iterations']:,}, {end}")
        objective = _objective(report["model"])
        facts.add_row(objective.replace("_", " "), f"{report[objective]:,.4f}")
    if "kappa" in report:
        facts.add_row("kappa", f"{report['kappa']:.3f} (clusterings' view against the votes)")
    if sealed:
        spent = [epsilon for epsilon in report["epsilon_spent"].values() if epsilon != EXACT]
        facts.add_row("epsilon spent", f"up to {max(spent):.2f} per row of a site" if spent else "exact: no noise")
    if "epsilon" in report:
        label = max(max(columns.values()) for columns in report["epsilon"].values())
        row = max(report["epsilon_row"].values())
        facts.add_row(
            "epsilon", f"up to {label:.2f} per label; up to {row:.2f} per row, all labels of an object at a site"
        )
    console.print(facts)

    sizes = Table(title="Sizes", title_justify="left")
    sizes.add_column("class" if find_model(report["model"]).takes_classes else "cluster")
    sizes.add_column("objects", justify="right")
    for name, size in report["sizes"].items():
        sizes.add_row(escape(name), f"{size:,}")
    console.print(sizes)

    agreement = Table(title="Agreement", title_justify="left")
    for title, justify in (("consensus with", "left"), ("NMI", "right"), ("ARI", "right")):
        agreement.add_column(title, justify=justify)  # type: ignore[arg-type]
    for name, scores in report["agreement"].items():
        agreement.add_row(escape(name), f"{scores['nmi']:.3f}", f"{scores['ari']:.3f}")
    if "truth" in report:
        agreement.add_section()
        truth = report["truth"]
        agreement.add_row("[bold]the truth[/]", f"[bold]{truth['nmi']:.3f}[/]", f"[bold]{truth['ari']:.3f}[/]")
    console.print(agreement)
    if "truth" in report:
        extra = [f"micro-precision {report['truth']['micro_precision']:.3f}"]
        if "accuracy" in report["truth"]:
            extra.append(f"accuracy {report['truth']['accuracy']:.3f}")
        console.print(f"against the truth: {', '.join(extra)}", highlight=False)
    left_out = report["objects"] - report["objects_in_fit"]
    if left_out:
        console.print(f"[yellow]{left_out:,} of {report['objects']:,} objects are not in the fit[/]", highlight=False)
    for excluded in report["excluded"]:
        what = ", ".join(excluded["columns"]) or f"{excluded['objects']:,} of its objects"
        if excluded.get("labels"):
            what = f"{excluded['labels']:,} of its labels"
        what = f"[yellow]left out at {escape(excluded['site'])}:[/] {escape(what)} ({excluded['rule']})"
        console.print(what, highlight=False, soft_wrap=True)
    if report.get("kappa", 1.0) < LOW_KAPPA:
        console.print("[yellow]clusters do not follow classes here (low kappa): the votes alone may do better[/]")
    if report.get("noise_warning"):
        console.print(f"[yellow]warning:[/] {escape(report['noise_warning'])}", highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"wrote {escape(str(path))}", highlight=False, soft_wrap=True)


def _or_unknown(value: float | None, form: str) -> str:
    return "unknown: too few draws, or all alike" if value is None else format(value, form)


def _objective(model: str) -> str:
    """What the number is called that a fit of this model maximises: a sealed model has no bound."""
    return "log_composite" if find_model(model).sealed else "lower_bound"


def _labelled(labels: NDArray[Any]) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = labels != ("" if labels.dtype.kind == "U" else -1)
    return mask


def _size(n_bytes: int) -> str:
    size = float(n_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
