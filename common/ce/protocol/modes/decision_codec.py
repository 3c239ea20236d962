"""What one site decides for all, as bytes: the outcome of a global step. All starts, also those that have stopped, have
room in it, so that its size tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ce.errors import MessageError
from ce.ring import Reals
from ce.steps.model import GlobalDecision, State


def encoded_size(like: State, starts: int) -> int:
    """Bytes of an encoded outcome with globals like these, of so many starts."""
    return 8 * starts * sum(_widths(like))


def encode_decision(decision: GlobalDecision, active: Sequence[int], starts: int) -> bytes:
    """Doubles, little-endian: per start its bound, whether to retry, whether to stop, and its globals by name."""
    stop = np.zeros(len(active)) if decision.stop is None else decision.stop
    columns = [decision.bound, decision.retry, stop, *(decision.globals[name] for name in sorted(decision.globals))]
    rows = np.concatenate([np.reshape(c, (len(active), -1)).astype(np.float64) for c in columns], axis=1)
    whole = np.zeros((starts, rows.shape[1]))
    whole[list(active)] = rows
    return whole.astype("<f8").tobytes()


def decode_decision(content: bytes, active: Sequence[int], starts: int, like: State) -> GlobalDecision:
    """The outcome again; `like` are globals of the same names and shapes."""
    if len(content) != encoded_size(like, starts):
        raise MessageError("decision: of another size")
    rows = np.frombuffer(content, "<f8").reshape(starts, -1)[list(active)]
    bound, retry, stop, *parts = np.split(rows, np.cumsum(_widths(like))[:-1], axis=1)
    globals_: State = {}
    for name, part in zip(sorted(like), parts, strict=True):
        values: Reals = np.ascontiguousarray(part).reshape(len(active), *like[name].shape[1:])
        globals_[name] = values
    return GlobalDecision(np.ascontiguousarray(bound[:, 0]), globals_, retry[:, 0] > 0, stop[:, 0] > 0)


def _widths(like: State) -> list[int]:
    return [1, 1, 1, *(int(np.prod(like[name].shape[1:])) for name in sorted(like))]
