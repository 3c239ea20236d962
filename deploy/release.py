"""Everything of one release, into dist/: `make release`.

Wheel and sdist, a list of what they are made of (by deploy/sbom.py, where there is one), images where there is docker,
and the checksums of all files. The version is the one of `common/ce/__init__.py`, and stands nowhere else. The same
commit gives the same files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ce

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
IMAGES = {"coordinator": "ce-coordinator", "client": "ce-client"}


def main() -> None:
    version = ce.__version__
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:
        print("note: there are changes that are not committed, and they are in this release")
    shutil.rmtree(DIST, ignore_errors=True)
    # Times in archives are those of the commit.
    when = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": when.stdout.strip()}
    run("-m", "hatchling", "build", "-d", str(DIST), environment=environment)
    expected = {f"ce-{version}-py3-none-any.whl", f"ce-{version}.tar.gz"}
    if (made := {path.name for path in DIST.iterdir()}) != expected:
        sys.exit(f"expected {', '.join(sorted(expected))}, and found {', '.join(sorted(made))}")
    if (ROOT / "deploy" / "sbom.py").exists():
        (DIST / f"ce-{version}.cdx.json").write_text(run("deploy/sbom.py", environment=environment))
    else:
        print("skipped the list of components: there is no deploy/sbom.py")
    build_images(version)
    files = sorted(path for path in DIST.iterdir() if path.is_file())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (DIST / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def run(*words: str, environment: dict[str, str]) -> str:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def build_images(version: str) -> None:
    """Tagged with the version; where they are pushed to is whoever releases' business."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        print("skipped the images: there is no docker here")
        return
    for target, image in IMAGES.items():
        tag = f"{image}:{version}"
        words = [docker, "build", "--file", "deploy/Dockerfile", "--target", target, "--tag", tag]
        words += ["--label", f"org.opencontainers.image.version={version}", "."]
        subprocess.run(words, cwd=ROOT, check=True)
        print(f"image {tag}")


if __name__ == "__main__":
    main()
