"""Sealed jobs: one noisy release of pair tables, then labels; no total of an object is ever opened."""
