"""Attacks on sealed jobs. Each module is one idea; `ce.audit.sealed.plan` says who plays it."""
