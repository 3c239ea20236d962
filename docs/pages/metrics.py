"""metrics.md: every metric of both daemons, from the declarations that they are counted by."""

from __future__ import annotations

from ce.service.metrics import LABELS, MetricsRegistry
from ce_client.daemon.metrics import SiteMetrics
from ce_coordinator.service.metrics import CoordinatorMetrics
from pages.markdown import head, table

INTRODUCTION = """\
Both daemons can serve what they count to [Prometheus](https://prometheus.io), over plain HTTP: set `metrics` in
`coordinator.toml` or `client.toml` ([configuration.md](configuration.md)), for example to

    metrics = "127.0.0.1:9464"

It is off by default. There is no password: use an address that only your monitoring can reach.

| | |
| --- | --- |
| `GET /metrics` | everything below, in Prometheus' text format |
| `GET /healthz` of a coordinator | 200 and `ok` while it serves; 503 and `stopping` from when it is told to stop |
| `GET /healthz` of a site | 200 while the daemon is alive: `ok: connected`, or `ok: not connected` |

**What metrics reveal.** They contain numbers only: no name of a job, a site, a column or an object, no label and no
key; a test searches for these while jobs run. They reveal how many jobs there are, of which model and mode, how long
they take and how many bytes they send; the network reveals most of that, too. A site's metrics need not leave the
site.

A scraper that misbehaves disturbs no job: a request may have a few kilobytes, a connection may last a few seconds, and
of too many connections the oldest is cut off. Examples of a scrape configuration and of alerts: `deploy/prometheus/`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            head("Metrics"),
            INTRODUCTION,
            "## Coordinator",
            "",
            *_instruments(CoordinatorMetrics().registry),
            "",
            "## Site",
            "",
            *_instruments(SiteMetrics().registry),
            "",
            "## Both",
            "",
            "Of the process itself, on Linux: `..._process_cpu_seconds_total`, `..._process_resident_memory_bytes`,",
            "`..._process_virtual_memory_bytes`, `..._process_start_time_seconds`, `..._process_open_fds` and",
            "`..._process_max_fds`, after `ce_coordinator` or `ce_client`.",
            "",
            *table(("label", "says"), ((f"`{name}`", meaning) for name, meaning in LABELS.items())),
            "",
            "Rules that have a label of their own: [errors.md](errors.md#rules); any other is counted as `other`.",
            "",
        ]
    )


def _instruments(registry: MetricsRegistry) -> list[str]:
    return table(
        ("metric", "type", "labels", "meaning"),
        (
            (f"`{own.name}`", own.kind, ", ".join(f"`{label}`" for label in own.labels), own.meaning)
            for own in registry.declared
        ),
    )
