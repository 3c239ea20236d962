"""Writes docs/metrics.md: every metric of both daemons, from the declarations that they are counted by.

    python docs/make_metrics.py           write it
    python docs/make_metrics.py --check   end with 1 when it is not what would be written

A test runs the check. What a metric means is changed where it is declared, never in the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ce.instruments import LABELS, RULES, Instruments
from ce_client.metering import Meter as ClientMeter
from ce_coordinator.metering import Meter as CoordinatorMeter

PAGE = Path(__file__).with_name("metrics.md")

HEAD = """\
# Metrics

Written by `docs/make_metrics.py` from the declarations in the code: change those, and run it again.

Both daemons can serve what they count to [Prometheus](https://prometheus.io), over plain HTTP: set `metrics` in
`coordinator.toml` or `client.toml` ([configuration.md](configuration.md)), for example to

    metrics = "127.0.0.1:9464"

It is off by default. There is no password: give it an address that only whoever watches the daemon can reach.

| | |
| --- | --- |
| `GET /metrics` | everything below, in Prometheus' text format |
| `GET /healthz` of a coordinator | 200 and `ok` while it serves; 503 and `stopping` from when it is told to stop |
| `GET /healthz` of a site | 200 while the daemon is alive: `ok: connected`, or `ok: not connected` |

**What metrics tell.** Numbers only: no name of a job, a site, a column or an object, no label and no key, which a test
searches for while jobs run. Whoever reads them learns how many jobs there are, of which model and mode, how long they
take and how many bytes they send; the network shows most of that, too. A site's metrics need never leave the site.

A scraper that misbehaves disturbs no job: a request may have a few kilobytes, a connection may last a few seconds, and
of too many connections the oldest is cut off. Examples of a scrape configuration and of alerts: `deploy/prometheus/`.
"""


def page() -> str:
    """The whole page."""
    labels = [f"| `{name}` | {meaning} |" for name, meaning in LABELS.items()]
    return "\n".join(
        [
            HEAD,
            "## Coordinator",
            "",
            *_table(CoordinatorMeter().instruments),
            "",
            "## Site",
            "",
            *_table(ClientMeter().instruments),
            "",
            "## Both",
            "",
            "Of the process itself, on Linux: `..._process_cpu_seconds_total`, `..._process_resident_memory_bytes`,",
            "`..._process_virtual_memory_bytes`, `..._process_start_time_seconds`, `..._process_open_fds` and",
            "`..._process_max_fds`, after `ce_coordinator` or `ce_client`.",
            "",
            "| label | says |",
            "| --- | --- |",
            *labels,
            "",
            "Rules that have a label of their own: " + ", ".join(RULES) + ".",
            "",
        ]
    )


def _table(instruments: Instruments) -> list[str]:
    rows = [
        f"| `{own.name}` | {own.kind} | {', '.join(f'`{label}`' for label in own.labels)} | {own.meaning} |"
        for own in instruments.declared
    ]
    return ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |", *rows]


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
            sys.exit(f"{PAGE} is not up to date: python docs/make_metrics.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
