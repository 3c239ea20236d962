"""Pins of what images are built from: `python deploy/pin.py hashes` (make pin-hashes), `... images` (make pin-images).

`hashes` fetches the wheels of the versions in deploy/constraints.txt and deploy/build-constraints.txt, for the machines
that images are made for, and writes their SHA-256 behind each version: a build takes no other file. `images` asks the
registry for the digest of the base image and writes it into deploy/Dockerfile. Both change files of the repository:
look at the difference, then commit it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent
FILES = (DEPLOY / "constraints.txt", DEPLOY / "build-constraints.txt")
DOCKERFILE = DEPLOY / "Dockerfile"
PYTHON = "3.11"
#: For pip: the platforms of wheels that the images can use, by architecture.
PLATFORMS = {
    machine: [f"manylinux_2_{minor}_{machine}" for minor in (34, 28, 27, 17)] + [f"manylinux2014_{machine}"]
    for machine in ("x86_64", "aarch64")
}
_VERSION = re.compile(r"(?m)^([A-Za-z0-9._-]+==[^\s\\]+)")
_BASE = re.compile(r"(?m)^ARG BASE=([^\s@]+)(@sha256:[0-9a-f]{64})?$")


def pin_hashes() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        versions = _VERSION.findall(text)
        hashes = _hashes(versions)
        lines = [
            " \\\n    ".join([version, *(f"--hash=sha256:{digest}" for digest in hashes[_name(version)])]) + "\n"
            for version in versions
        ]
        path.write_text(comment + "".join(lines), encoding="utf-8")


def _hashes(versions: list[str]) -> dict[str, list[str]]:
    """By normalised name of the package: the SHA-256 of its wheels."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for platforms in PLATFORMS.values():
        with tempfile.TemporaryDirectory() as directory:
            words = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", PYTHON, "--dest", directory]
            words += [word for platform in platforms for word in ("--platform", platform)]
            subprocess.run([sys.executable, "-m", "pip", "download", *words, *versions], check=True)
            for wheel in Path(directory).glob("*.whl"):
                found[_name(wheel.name.split("-")[0])].add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    if lacking := {_name(version) for version in versions} - found.keys():
        sys.exit(f"no wheel of {', '.join(sorted(lacking))}")
    return {name: sorted(digests) for name, digests in found.items()}


def _name(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package.partition("==")[0]).lower()


def pin_images() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    found = _BASE.search(text)
    if found is None:
        sys.exit(f"{DOCKERFILE}: no line ARG BASE=IMAGE")
    image = found[1]
    digest = _digest(image)
    DOCKERFILE.write_text(_BASE.sub(f"ARG BASE={image}@{digest}", text), encoding="utf-8")
    print(f"{image}@{digest}")


def _digest(image: str) -> str:
    """The digest of the list of images of all architectures, as the registry gives it now."""
    words = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", image]
    asked = subprocess.run(words, capture_output=True, text=True, check=False)
    digest = asked.stdout.strip()
    if asked.returncode or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        sys.exit(f"no digest of {image}: is a registry reachable from here? {asked.stderr.strip()}")
    return digest


if __name__ == "__main__":
    commands = {"hashes": pin_hashes, "images": pin_images}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        sys.exit(f"usage: python deploy/pin.py {'|'.join(commands)}")
    commands[sys.argv[1]]()
