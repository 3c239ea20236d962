"""Messages of the operator's service as plain values, for --format json."""

from __future__ import annotations

import math
from typing import Any


def plain(message: Any) -> dict[str, Any]:
    """Every field by its name in the contract, whether set or not.

    Not protobuf's own JSON: that writes 64-bit numbers as texts, and numbers that are not finite as words.
    """
    return {
        field.name: [_plain(value) for value in getattr(message, field.name)]
        if field.is_repeated
        else _plain(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _plain(value: Any) -> Any:
    if hasattr(value, "DESCRIPTOR"):
        return plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
