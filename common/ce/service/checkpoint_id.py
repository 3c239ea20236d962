"""The number of a checkpoint, which the coordinator and every site of a job give to snapshots of the same round.

Apart from the files themselves (ce.service.checkpoints), so that code that never opens a file can name a checkpoint.
"""

from __future__ import annotations

from typing import NamedTuple

#: While the newest checkpoint is being written at one process, all processes still have the one before it.
CHECKPOINTS_PER_JOB = 2


class CheckpointId(NamedTuple):
    """`origin`: the epoch in which the run began from the beginning; `round`: the round that the snapshot opens."""

    origin: int
    round: int
