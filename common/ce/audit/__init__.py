"""Audit a job: what its messages tell about labels, to the coordinator and to a curious site.

    audit(job, tables)            run it in every privacy mode, play all attacks, score them
    Audit, Finding                what comes out
    ATTACKS                       names of the attacks
    example_job, example_tables   something to try it on

Attacks see views (`ce.audit.views`) and never labels; only the referee (`ce.audit.truth`) reads those.
"""

from ce.audit.auditing import audit
from ce.audit.example import example_job, example_tables
from ce.audit.findings import Audit, Finding
from ce.audit.playing import ATTACKS

__all__ = ["ATTACKS", "Audit", "Finding", "audit", "example_job", "example_tables"]
