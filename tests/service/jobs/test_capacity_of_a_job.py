"""The formulas of `ce.capacity` against a whole job of daemons on a table: all frames, and the ledger."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine_memory import job_of, tables_of

from ce import capacity
from ce.capacity import Size
from ce.labels import LabelTable
from ce.testing import FrameByFrame, make_sites
from ce_client.state.ledger import FILE_NAME
from ce_coordinator.core.instructions import Instruction, Send


class CountedFrames(FrameByFrame):
    """Counts the bytes that go down; what comes up is recorded anyhow."""

    sent = 0

    def do(self, steps: list[Instruction]) -> None:
        kept = []
        for step in steps:
            if isinstance(step, Send):
                frames = list(step.frames)
                self.sent += sum(len(frame.SerializeToString()) for frame in frames)
                kept.append(replace(step, frames=iter(frames)))
            else:
                kept.append(step)
        super().do(kept)


def written(table: LabelTable, path: Path) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", *(column.name for column in table.columns)])
        columns = [column.codes for column in table.columns]
        for at, own in enumerate(table.ids):
            rows.writerow([own, *("" if c is None or c[at] < 0 else c[at] for c in columns)])
    return path


@pytest.mark.parametrize(("model", "privacy"), [("bce", "masked"), ("mixture", "masked"), ("mixture", "blind")])
def test_the_bytes_of_a_whole_job_and_of_its_ledger(model: str, privacy: str, tmp_path: Path) -> None:
    size = Size(3, 1500, 700, 5, 2, 20, 4, 2, 8, model, privacy)
    files = {site: written(table, tmp_path / f"{site}.csv") for site, table in tables_of(size).items()}
    table = CountedFrames(make_sites(tmp_path, files))
    table.connect()
    table.submit(job_of(size).definition())
    table.run()
    (record,) = table.store.jobs()
    assert record.state == "done", record
    sent = table.sent + sum(map(len, table.up_recording))
    assert 0.98 < capacity.job_traffic(size) / sent < 1.03
    ledger = (table.sites["site0"].settings.state / FILE_NAME).stat().st_size
    # bce has fewer shares while it anneals.
    assert ledger == pytest.approx(capacity.ledger_bytes(size), rel=0.5 if model == "bce" else 0.12)
