"""The software bill of materials of what is installed: ce and all that it needs to run, as CycloneDX 1.5 (JSON).

    python deploy/sbom.py [--extra parquet] > ce.cdx.json

Read from the metadata of the installed distributions, of the environment that this runs in: no network, and the same
bytes for the same environment. What only development needs is not in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

try:
    from packaging.requirements import Requirement
except ImportError:  # not in an environment that only runs ce; pip has its own
    from pip._vendor.packaging.requirements import Requirement  # type: ignore[assignment]

ROOT = "ce"
_SEPARATORS = re.compile(r"[-_.]+")


def normal(name: str) -> str:
    """One spelling of a distribution's name."""
    return _SEPARATORS.sub("-", name).lower()


def requirements(own: Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """What a distribution needs here, with the extras that it asks for."""
    for text in own.requires or ():
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""}) | {""}):
            yield normal(needed.name), frozenset(needed.extras)


def installed(root: str, extras: Iterable[str]) -> tuple[dict[str, Distribution], dict[str, list[str]]]:
    """Every distribution that `root` needs, by name, and what each needs. Raises SystemExit for one that is missing."""
    found: dict[str, Distribution] = {}
    needs: dict[str, set[str]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(normal(root), frozenset(extras))]
    while waiting:
        name, asked = waiting.pop()
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(
                f"{name} is not installed: install ce with all that it needs, then run this again"
            ) from None
        for needed, extra in requirements(found[name], asked):
            needs.setdefault(name, set()).add(needed)
            waiting.append((needed, extra))
    return found, {name: sorted(needs.get(name, ())) for name in found}


def reference(own: Distribution) -> str:
    return f"pkg:pypi/{normal(own.metadata['Name'])}@{own.version}"


def component(own: Distribution, kind: str) -> dict[str, Any]:
    said = own.metadata
    entry: dict[str, Any] = {
        "type": kind,
        "bom-ref": reference(own),
        "name": normal(said["Name"]),
        "version": own.version,
        "purl": reference(own),
    }
    if said.get("Summary"):
        entry["description"] = said["Summary"]
    if licence := said.get("License-Expression"):
        entry["licenses"] = [{"expression": licence}]
    elif licence := licence_name(own):
        entry["licenses"] = [{"license": {"name": licence}}]
    return entry


def licence_name(own: Distribution) -> str:
    """As its classifiers say, else as its first line says: some put the whole text there."""
    named = [
        text.rpartition(" :: ")[2]
        for text in own.metadata.get_all("Classifier") or ()
        if text.startswith("License :: ") and not text.endswith("OSI Approved")
    ]
    first = (own.metadata.get("License") or "").strip().partition("\n")[0]
    return "; ".join(sorted(named)) or first[:100]


def bill(root: str = ROOT, extras: Iterable[str] = ()) -> dict[str, Any]:
    """The whole document."""
    found, needs = installed(root, extras)
    main = normal(root)
    parts = [component(found[name], "library") for name in sorted(found) if name != main]
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(found[main], "application")},
        "components": parts,
        "dependencies": [
            {"ref": reference(found[name]), "dependsOn": [reference(found[needed]) for needed in needs[name]]}
            for name in sorted(found)
        ],
    }
    # A number of its own for each content, and the same for the same: no clock, no chance.
    content = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
    return {"serialNumber": f"urn:uuid:{uuid.UUID(bytes=content[:16], version=5)}", **document}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the software bill of materials of ce, CycloneDX 1.5, JSON.")
    parser.add_argument("--extra", action="append", default=[], help="also what this extra of ce needs, like parquet")
    given = parser.parse_args()
    json.dump(bill(extras=given.extra), sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
