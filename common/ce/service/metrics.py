"""What a daemon counts: declared once, then counted, shown to Prometheus and documented.

Each daemon has a class of metrics, made from one `MetricsRegistry`. A label only tells how many of a kind there were:
its name is one of `LABELS`, and a value that another party has chosen (a rule, for example) is looked up in a list
before it becomes one. So no metric can hold the name of a job, an object or a site, nor a label of anybody's data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from ce.rules import RULES

#: The labels that there are, and what each may say.
LABELS = {
    "state": "a state, of a job or of a checkpoint",
    "rule": "the rule by whose name a job was refused",
    "phase": "what a job is doing",
    "direction": "in or out, as the daemon sees it",
    "model": "the model of a job",
    "privacy": "the privacy mode of a job",
}
#: A rule that a site names and that is not one of `ce.rules`; no rule at all.
OTHER, NONE = "other", "none"

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Declared(NamedTuple):
    """One row of the documentation's table of metrics."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


class MetricsRegistry:
    """The instruments of one daemon."""

    def __init__(self, prefix: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody asks for
        self.declared: list[Declared] = []
        self._prefix = prefix
        self._registry = CollectorRegistry()
        self._looks: list[Callable[[], None]] = []
        ProcessCollector(namespace=prefix, registry=self._registry)

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Something that only grows while the daemon runs."""
        self._declare(f"{name}_total", "counter", meaning, labels)
        return Counter(f"{self._prefix}_{name}", meaning, labels, registry=self._registry)

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        """Something as it is at the moment."""
        self._declare(name, "gauge", meaning, labels)
        return Gauge(f"{self._prefix}_{name}", meaning, labels, registry=self._registry)

    def before_each_scrape(self, look: Callable[[], None]) -> None:
        """Let gauges be set to what is so now."""
        self._looks.append(look)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        for look in self._looks:
            look()
        return generate_latest(self._registry)

    def _declare(self, name: str, kind: str, meaning: str, labels: tuple[str, ...]) -> None:
        if unknown := set(labels) - LABELS.keys():
            raise ValueError(f"{name}: a metric has no label {', '.join(sorted(unknown))}")
        self.declared.append(Declared(f"{self._prefix}_{name}", kind, labels, meaning))


def known_rule(rule: str) -> str:
    """The rule as a label."""
    return rule if rule in RULES else OTHER if rule else NONE
