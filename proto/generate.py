"""Generate the stubs of the wire contract into common/ce_proto, or check that they are what the contract says.

python proto/generate.py            write them
python proto/generate.py --check    compare, and fail when they differ
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
TARGET = PROTO.parent / "common"


def generate(target: Path) -> list[Path]:
    """Write all stubs below `target`; returns their paths, relative to it."""
    sources = sorted(PROTO.glob("ce_proto/v1/*.proto"))
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{PROTO}", *outputs, *map(str, sources)]):
        sys.exit("protoc failed")
    written = []
    for source in sources:
        stem = source.relative_to(PROTO).with_suffix("")
        stubs = [Path(f"{stem}_pb2.py"), Path(f"{stem}_pb2.pyi"), Path(f"{stem}_pb2_grpc.py")]
        if "\nservice " not in source.read_text():
            (target / stubs.pop()).unlink(missing_ok=True)
        written += stubs
    return written


def differences() -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        stubs = generate(fresh)
        known = {path.relative_to(TARGET) for path in (TARGET / "ce_proto" / "v1").glob("*_pb2*")}
        return [
            str(path)
            for path in sorted({*stubs, *known})
            if path not in stubs or path not in known or (fresh / path).read_bytes() != (TARGET / path).read_bytes()
        ]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if changed := differences():
            sys.exit(f"stubs differ from the contract: {', '.join(changed)}; run make proto")
    else:
        generate(TARGET)
