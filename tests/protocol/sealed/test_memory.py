"""What the coordinator of a sealed job holds: no object takes a byte of its memory, files end with their round, nothing
in the clear goes to a file, and a full disk is a sentence."""

from __future__ import annotations

import errno
import gc
import os
import resource
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ce.capacity import Size
from ce.job import Job
from ce.labels import LabelTable
from ce.privacy import dealt_products, secure_argmax
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import open_totals
from ce.protocol.local_alignment import align_tables
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.rooms import Bytes, MemoryRoom, Room, Rooms
from ce.protocol.messages.task import array_hash, digests_of
from ce.protocol.sealed_run import SealedParties, sealed_parties
from ce.protocol.topology.vocabularies import Wishes
from ce.sealed_capacity import SealedShape, coordinator_disk
from ce.transport import array_chunks
from ce.transport.array_chunks import chunks_of, to_chunks
from ce.transport.frames import task_frames
from ce_coordinator.store import relay_files
from ce_coordinator.store.interface import StoreFailed
from ce_coordinator.store.relay_files import RelayFiles

SIZE = Size(3, 1, 1, 2, 0, 3, 3, model="pairs", privacy="sealed")
FEW, MANY = 800, 3_200
#: Bytes of memory for each object more, where what is passed on has some 50: a few frames more or less.
MOST_FOR_AN_OBJECT = 2.5


def parties(objects: int, rooms: Rooms) -> SealedParties:
    rng = np.random.default_rng(3)
    ids = [f"o{i}" for i in range(objects)]
    tables = {}
    for site in ("s000000", "s000001", "s000002"):
        cells = rng.integers(0, SIZE.categories, (objects, SIZE.columns))
        tables[site] = LabelTable.from_arrays(cells, ids=ids, columns=[f"{site}{at}" for at in range(SIZE.columns)])
    job = Job(model="pairs", clusters=SIZE.clusters, sites=tuple(tables))
    aligned = align_tables(False, tables, dict.fromkeys(tables, Wishes()), None)
    return sealed_parties(job, Attempt("job", job.definition(), 1, tuple(tables)), aligned, tables, rooms=rooms)


def rounds(parties: SealedParties) -> Iterator[int]:
    """All rounds, as the daemons make them: after each, the most memory that the coordinator took in it."""
    coordinator = parties.coordinator
    while tasks := coordinator.tasks():
        answers = {site: parties.sites[site].answer(task) for site, task in tasks.items()}
        del tasks
        frames = {site: list(to_chunks(answer.arrays, answer.fraction_bits)) for site, answer in answers.items()}
        tracemalloc.start()
        for site, answer in answers.items():
            coordinator.begin(site, answer)
            for frame in frames[site]:
                for chunk in chunks_of(frame):
                    open_totals(coordinator).add(site, chunk)
            open_totals(coordinator).end(site)
        coordinator.advance()
        following = coordinator.tasks()
        digests = digests_of(following, b"", 1)
        for site, task in following.items():
            for _ in task_frames("job", 1, task, digests[site]):
                pass
        del following
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield peak


def open_files(directory: Path) -> list[int]:
    """Bytes of the files of a directory that are open and have no name."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            link, status = str(entry.readlink()), entry.stat()
        except OSError:  # the descriptor of the listing itself
            continue
        if link.startswith(str(directory)) and link.endswith("(deleted)"):
            found[status.st_ino] = status.st_size
    return list(found.values())


@pytest.fixture(name="small_stretches")
def _small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer objects in a stretch, and fewer bytes in a frame and in a file, so that few objects are many."""
    monkeypatch.setattr(secure_argmax, "STRETCH", 256)
    monkeypatch.setattr(dealt_products, "STRETCH", 256)
    monkeypatch.setattr(array_chunks, "CHUNK", 1024)
    monkeypatch.setattr(relay_files, "SMALLEST_FILE", 1024)


@pytest.mark.promise("The memory of a sealed job's coordinator does not grow with the objects once they are aligned.")
@pytest.mark.usefixtures("small_stretches")
def test_the_coordinators_memory_does_not_grow_with_the_objects(tmp_path: Path) -> None:
    peaks: dict[int, list[int]] = {FEW: [], MANY: []}
    files = 0
    for objects, found in peaks.items():
        party = parties(objects, RelayFiles(tmp_path))
        for peak in rounds(party):
            found.append(peak)
            files = max(files, sum(open_files(tmp_path)))
            assert len(open_files(tmp_path)) <= 3  # of the round before, of the dealer, of this round
        del party
        gc.collect()
        assert open_files(tmp_path) == []
    assert most_more(peaks[MANY], peaks[FEW]) < MOST_FOR_AN_OBJECT * (MANY - FEW)
    most = coordinator_disk(SealedShape.even(replace(SIZE, objects=MANY, shared=MANY)))
    assert 0.95 < files / most <= 1
    assert list(tmp_path.iterdir()) == []
    # The measurement sees what is passed on where it is in memory.
    assert most_more(rounds(parties(FEW, MemoryRoom)), peaks[FEW]) > 10 * MOST_FOR_AN_OBJECT * FEW


def most_more(some: Iterable[int], others: Iterable[int]) -> int:
    """In the round in which it is most."""
    return max(one - other for one, other in zip(some, others, strict=True))


class Written:
    """Rooms in memory that remember what was written."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def __call__(self, size: int) -> Room:
        parts = self.parts

        class Remembered(MemoryRoom):
            def write(self, begin: int, content: bytes | Bytes) -> None:
                parts.append(bytes(content))
                super().write(begin, content)

        return Remembered(size)


@pytest.mark.promise(
    "Seeds and keys of a sealed job are on no disk, rows and openings only encrypted; only the dealer gets seeds."
)
def test_nothing_in_the_clear_goes_to_a_file() -> None:
    """Not a seed of the dealer, which would open what is masked, nor a share, nor a nonce."""
    written = Written()
    party = parties(40, written)
    clear: dict[str, Any] = {}
    coordinator = party.coordinator
    sent = 0
    while tasks := coordinator.tasks():
        for site, task in tasks.items():
            answer = party.sites[site].answer(task)
            coordinator.begin(site, answer)
            for frame in to_chunks(answer.arrays, answer.fraction_bits):
                for chunk in chunks_of(frame):
                    open_totals(coordinator).add(site, chunk)
                    sent += chunk.words.nbytes
                    if not ArrayName(chunk.name).encrypted:
                        clear[f"{task.step} {site} {chunk.name}"] = chunk.words.tobytes()
            open_totals(coordinator).end(site)
        coordinator.advance()
    stored = b"\0".join(written.parts)
    assert len(stored) > sent / 2
    assert {name.split()[2].split("/")[1] for name in clear} >= {"product_seed", "argmax_seed", "share", "nonce"}
    for name, content in clear.items():
        if len(content) >= 16:  # states are a byte or two
            assert content not in stored, name


def resident() -> int:
    """Bytes of mapped files that count as this process's memory."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile:"))


def test_what_was_read_of_a_file_is_not_the_processs_memory(tmp_path: Path) -> None:
    size, part = 24 * 2**20, 2**20
    room = RelayFiles(tmp_path)(size)
    content = np.random.default_rng(1).integers(0, 256, part, dtype=np.uint8)
    for begin in range(0, size, part):
        room.write(begin, content)
    before, most = resident(), 0
    view = room.content[3 : size - 5]
    whole = np.tile(content, size // part)[3 : size - 5]
    assert array_hash(view) == array_hash(whole)
    for beside in (0, 1000, 300_000):  # bytes that go first, so that chunks begin elsewhere
        at = 0
        for frame in to_chunks({"first": content[:beside], "a": view}):
            for chunk in frame.chunks:
                if chunk.name == "a":
                    assert chunk.data == whole[at : at + len(chunk.data)].tobytes()
                    at += len(chunk.data)
            most = max(most, resident() - before)
        assert at == len(view)
    assert most < 4 * part
    assert resident() - before < part  # nor does much stay


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = r"takes 2,097,152 bytes on the coordinator's disk.*\(File too large\): make room, then submit"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))  # a limit that the system keeps, as a full disk is one
    try:
        with pytest.raises(StoreFailed, match=sentence):
            RelayFiles(tmp_path)(2**21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(StoreFailed, match=r"leave fewer than .* bytes free \(checkpoints.least_free\)"):
        RelayFiles(tmp_path, 2**62)(2**21)
    with pytest.raises(StoreFailed, match="No such file or directory"):
        RelayFiles(tmp_path / "nowhere")(2**21)
    room = RelayFiles(tmp_path)(2**21)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreFailed, match="No space left on device"):
        room.write(0, b"bytes")
