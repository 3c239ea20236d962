"""Audit a job: what its messages reveal about labels to the coordinator and to a curious site.

    audit(job, tables)            run the job in every privacy mode, play all attacks, score their guesses
    Audit, Finding                the report
    ATTACKS, SEALED_ATTACKS       names of the attacks, on totals and on sealed jobs
    example_job, example_tables   a job and labels to try it on

Attacks see what an adversary sees (`ce.audit.adversary_views`) and never labels of other sites. Only `ce.audit.scoring`
reads those.
"""

from ce.audit.attack_plan import ATTACKS
from ce.audit.example import example_job, example_tables
from ce.audit.report import Audit, Finding
from ce.audit.run import audit
from ce.audit.sealed.plan import SEALED_ATTACKS

__all__ = ["ATTACKS", "SEALED_ATTACKS", "Audit", "Finding", "audit", "example_job", "example_tables"]
