"""The attacks, one file per attack or family. An attack is given a view and questions, and returns guesses.

`ce.audit.attack_plan` says which adversary plays which of them, and under which name they are reported.
"""
