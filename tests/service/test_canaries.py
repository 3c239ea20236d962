"""No label and no object id ever reaches the coordinator's process.

Canaries are planted as object ids, labels and class names of a real job. Then everything that the coordinator has is
searched for them: its memory (all of it, while the job runs and when it is done), its store, its logs, and every frame
that it was sent. The search itself is shown to find what the coordinator may know: names of sites and columns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import Deployment, write_labels
from tabletop import Table, make_sites

import ce

SITES = ("north", "east", "south")
N = 120
CANARY = "canary"
# Ids and labels that nothing else in a Python process looks like.
IDS = [f"zq{CANARY}id{i:04d}" for i in range(N)]
LABELS = [f"xw{CANARY}label{r}" for r in range(4)]
NUMBERS = [7_340_033_011 + 7919 * r for r in range(3)]  # integer labels, as text and as words
COLUMN = "columnthatisknown"


def tables() -> dict[str, ce.LabelTable]:
    """Shared objects, a shared text column, a shared integer column, a private text column."""
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, N)
    found = {}
    for at, site in enumerate(SITES):
        rows = np.arange(20 * at, N - 20 * (2 - at))
        own = truth[rows]
        # A cell has one holder: shared columns are dealt by row number, private ones are this site's alone.
        text = np.array(LABELS, dtype=object)[(own + (rng.random(len(rows)) < 0.1)) % 4]
        text[rows % 3 != at] = None
        whole = np.array(NUMBERS, dtype=object)[own]
        whole[rows % 3 != at] = None
        private = np.array(LABELS, dtype=object)[own]
        found[site] = ce.LabelTable.from_arrays(
            np.column_stack([text, whole, private]),
            ids=[IDS[i] for i in rows],
            columns=[COLUMN, "numbers", f"private{site}"],
        )
    return found


def planted(text: bytes) -> list[str]:
    """The canaries that occur, in any of the ways in which a process keeps text and numbers."""
    words = [
        f"{word[:2]} as {encoding}"
        for word in ("zq" + CANARY, "xw" + CANARY)
        for encoding in ("utf-8", "utf-16-le", "utf-32-le")
        if word.encode(encoding) in text
    ]
    return words + ["a number" for n in NUMBERS if str(n).encode() in text or n.to_bytes(8, "little") in text]


def memory_of(pid: int) -> Iterator[bytes]:
    """Everything that a process can have written, in overlapping pieces; what it only maps from files is left out."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            begin, end = (int(part, 16) for part in span.split("-"))
            for at in range(begin, end, 1 << 24):
                try:
                    memory.seek(at)
                    yield memory.read(min((1 << 24) + 256, end - at))
                except (OSError, ValueError, OverflowError):
                    break


def test_a_real_coordinator_never_has_a_label_or_an_id(tmp_path: Path) -> None:
    with Deployment(tmp_path, SITES) as deployment:
        for site, table in tables().items():
            deployment.write_labels(site, table)
        hub = deployment.processes["hub"]
        job = ce.Job(name="canaries", clusters=3, sites=SITES, restarts=2, max_iterations=60, privacy="plain")
        deployment.submit(job)
        hub.wait_for("job running", job="canaries")
        try:
            during = list(memory_of(hub.pid))
        except PermissionError:
            during = None
        assert deployment.wait("canaries").state == "done"
        if during is not None:
            for when, memory in (("during", during), ("after", list(memory_of(hub.pid)))):
                assert any(COLUMN.encode() in piece for piece in memory), f"the search finds nothing {when} the job"
                assert [found for piece in memory for found in planted(piece)] == []
            # The sites themselves know: the same search finds the canaries there.
            assert any(planted(piece) for piece in memory_of(deployment.processes["north"].pid))

        log = "\n".join(hub.raw).encode()
        assert b"canaries" in log
        assert planted(log) == []
        for process in deployment.processes.values():
            assert planted("\n".join(process.raw).encode()) == []
        store = b"".join(path.read_bytes() for path in deployment.hub.glob("coordinator.sqlite*"))
        assert b"canaries" in store
        assert COLUMN.encode() in store
        assert planted(store) == []
        # And the results are where they belong.
        ids, _, _ = deployment.consensus("north", "canaries")
        assert ids == tables()["north"].ids.tolist()
        if during is None:
            pytest.skip("log and store searched; this system does not let a process look at another's memory")


def test_no_frame_to_the_coordinator_has_a_label_or_an_id(tmp_path: Path) -> None:
    paths = {}
    for site, table in tables().items():
        paths[site] = tmp_path / f"{site}.csv"
        write_labels(paths[site], table)
    table = Table(make_sites(tmp_path, paths))
    table.connect()
    job = ce.Job(name="canaries", clusters=3, sites=SITES, restarts=2, max_iterations=20, privacy="plain")
    table.submit(job.definition())
    table.run()
    assert table.machine.records["canaries"].state == "done"
    wire = b"".join(table.up_recording)
    assert COLUMN.encode() in wire
    assert planted(wire) == []
    # Nor a plain hash of one: pseudonyms are keyed.
    for own in (*IDS, *LABELS):
        for digest in (hashlib.sha256(own.encode()).digest(), hashlib.md5(own.encode()).digest()):
            assert digest[:8] not in wire
    assert not re.search(rb"\.csv", wire), "the name of a label file is nobody's business"
