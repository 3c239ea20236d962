"""Looks for known vulnerabilities in what ce needs to run, with pip-audit, which asks a database on the network.

    python deploy/audit.py

Ends with 1 only when there are some: where pip-audit or the database cannot be had, it says so, and that is all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import sbom

#: A database that does not answer within this is one that cannot be reached.
PATIENCE_S = 120


def pinned() -> str:
    """All distributions that are installed for ce, as pip-audit reads them."""
    found, _ = sbom.installed(sbom.ROOT, ["fast", "parquet"])
    return "".join(f"{name}=={own.version}\n" for name, own in sorted(found.items()) if name != sbom.ROOT)


def ask(requirements: Path) -> str | None:
    """What pip-audit answers; None, and why on standard output, when it has no answer."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "--format", "json", "--requirement", str(requirements)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        print("not audited: the database of vulnerabilities did not answer in time")
        return None
    if "No module named pip_audit" in done.stderr:
        print(f"not audited: pip-audit is not installed: {sys.executable} -m pip install pip-audit")
        return None
    if not done.stdout.lstrip().startswith("{"):
        why = next(iter(reversed(done.stderr.strip().splitlines())), "no reason given")
        print(f"not audited: the database of vulnerabilities cannot be reached ({why[:200]})")
        return None
    return done.stdout


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        requirements = Path(directory) / "requirements.txt"
        requirements.write_text(pinned())
        answer = ask(requirements)
    if answer is None:
        return 0
    audited = json.loads(answer)["dependencies"]
    known = [(own["name"], own["version"], found["id"]) for own in audited for found in own.get("vulns", ())]
    for name, version, number in known:
        print(f"{name} {version}: {number}")
    print(f"{len(audited)} distributions audited, {len(known)} known vulnerabilities")
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main())
