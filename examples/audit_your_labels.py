"""What would leak? `python examples/audit_your_labels.py`.

An audit plays known attacks on the messages of a job, with labels that are at hand, and says how much of a column each
attacker recovers beyond what the published result tells anybody. Try it on your own labels before a job with others:
give your own tables instead of the example's. Nothing leaves this machine. Here: a coordinator that sees each site's
own sums can count its labels; one that sees totals cannot.
"""

from __future__ import annotations

from pathlib import Path

import ce
import ce.audit

HERE = Path(__file__).parent
SITES = ("north", "east", "south", "west")


def main() -> ce.audit.Audit:
    # Fewer objects, starts and iterations than a real audit would take, so that it ends in seconds.
    tables = {site: ce.LabelTable.from_csv(HERE / f"{site}.csv") for site in SITES}
    job = ce.Job(clusters=5, restarts=1, seed=0, max_iterations=15)
    audit = ce.audit.audit(job, tables, modes=("plain", "masked"), attacks=("unmixing", "histograms"), max_objects=300)

    print(f"{audit.objects} of {audit.of_objects} objects, layout {audit.layout}")
    for finding in audit.worst():
        print(
            f"{finding.mode:7} {finding.view:12} {finding.attack:11} recovers {finding.recovered:5.2f} of "
            f"{finding.target}, of which the result implies {finding.baseline:.2f}: {finding.verdict}"
        )
    print("the default rules of a site that this layout breaks:", ", ".join(audit.broken_rules) or "none")
    # Nothing found is not a proof: these are the attacks that are known.
    print(f"findings that break what their mode promises: {len(audit.leaks)}")
    return audit


if __name__ == "__main__":
    main()
