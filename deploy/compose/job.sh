#!/bin/sh
# The operator: submits a job, unless it was before, and watches it. Ends as the job ends (docs/exit-codes.md).
set -eu
ce-coordinator show "$1" --config /srv/operator >/dev/null 2>&1 \
    || ce-coordinator submit "/compose/jobs/$1.toml" --config /srv/operator
ce-coordinator watch "$1" --config /srv/operator
