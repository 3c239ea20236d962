"""Messages that are nearly right: a field changed, dropped or repeated, or bits flipped on the way."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

#: Stands in every text and in many bytes that are put in: nothing of it may ever be repeated to anybody.
MARK = "canary"

_INTEGERS = {
    FieldDescriptor.TYPE_UINT32: 2**32,
    FieldDescriptor.TYPE_UINT64: 2**64,
    FieldDescriptor.TYPE_ENUM: 2**31,
}


def mutated(message: Message, rng: Random, times: int = 1) -> Message:
    """A copy with that many changes, anywhere inside."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(times):
        _mutate(copy, rng)
    return copy


def damaged(message: Message, rng: Random) -> Message | None:
    """A copy with a few bits flipped, or bytes lost, on the way; None: it cannot be read at all."""
    data = bytearray(message.SerializeToString())
    for _ in range(rng.randint(1, 4)):
        if data and rng.random() < 0.8:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif data:
            del data[rng.randrange(len(data)) :]
    try:
        return type(message).FromString(bytes(data))
    except DecodeError:
        return None


def _mutate(message: Message, rng: Random) -> None:
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.containing_oneof is not None:
        # Which message it is stays; what is in it changes.
        field = message.DESCRIPTOR.fields_by_name[message.WhichOneof(field.containing_oneof.name) or field.name]
    if field.is_repeated:
        _mutate_list(message, field, rng)
    elif field.message_type is not None:
        if rng.random() < 0.1 and field.containing_oneof is None:
            message.ClearField(field.name)
        else:
            _mutate(getattr(message, field.name), rng)
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), rng))


def _mutate_list(message: Message, field: FieldDescriptor, rng: Random) -> None:
    values: Any = getattr(message, field.name)
    what = rng.choice(["drop", "repeat", "swap", "add", "change", "change", "change", "clear"])
    if what == "clear":
        message.ClearField(field.name)
    elif what == "add":
        if field.message_type is None:
            values.append(_value(field, field.default_value or _zero(field), rng))
        else:
            values.add()
    elif not values:
        return
    at, other = rng.randrange(len(values)) if values else 0, rng.randrange(len(values)) if values else 0
    if what == "drop":
        del values[at]
    elif what == "repeat":
        if field.message_type is None:
            values.append(values[at])
        else:
            values.add().CopyFrom(values[at])
    elif what == "swap":
        copies = [value if field.message_type is None else _copy(value) for value in values]
        copies[at], copies[other] = copies[other], copies[at]
        del values[:]
        values.extend(copies)
    elif what == "change":
        if field.message_type is None:
            values[at] = _value(field, values[at], rng)
        else:
            _mutate(values[at], rng)


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _zero(field: FieldDescriptor) -> Any:
    return {FieldDescriptor.TYPE_STRING: "", FieldDescriptor.TYPE_BYTES: b""}.get(field.type, 0)


def _value(field: FieldDescriptor, old: Any, rng: Random) -> Any:
    """Another value for a field."""
    if field.type in _INTEGERS:
        most = _INTEGERS[field.type]
        return rng.choice([0, 1, 2, (old + 1) % most, (old - 1) % most, rng.randrange(64), most - 1, most // 2])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not old
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(["", MARK, f"{MARK}\n\x1b[31m", MARK * 50, old + MARK, old[:-1], "north", "south", "west"])
    if field.type == FieldDescriptor.TYPE_BYTES:
        flipped = bytearray(old or b"\0")
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        return rng.choice(
            [b"", bytes(flipped), bytes(flipped), old[:-1], old + b"\0", bytes(len(old)), old * 2, MARK.encode()]
        )
    return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e300])
