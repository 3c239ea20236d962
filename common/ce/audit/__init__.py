"""Audit a job: what its messages tell about labels, to the coordinator and to a curious site.

    audit(job, tables)            run it in every privacy mode, play all attacks, score them
    Audit, Finding                what comes out
    ATTACKS                       names of the attacks
    example_job, example_tables   something to try it on

Attacks see views (`ce.audit.adversary_views`) and never labels; only the referee (`ce.audit.scoring`) reads those.
"""

from ce.audit.attack_plan import ATTACKS
from ce.audit.example import example_job, example_tables
from ce.audit.report import Audit, Finding
from ce.audit.run import audit

__all__ = ["ATTACKS", "Audit", "Finding", "audit", "example_job", "example_tables"]
