"""The line of the ledger about a contribution: all but the hashes of its arrays is the same in most rounds of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ce.protocol.messages.task import Array, array_hash
from ce_client.state.hash_chain import canonical_text

#: Makes a line, without its hash, of its number and of the time.
Body = Callable[[int, float], bytes]

#: Types of words, of encrypted bytes and of reals. `dtype.name` takes longer than the hash of a small array.
_TYPE_NAMES = {"i8": "int64", "u1": "uint8", "f8": "float64", "i4": "int32", "f4": "float32"}


class ContributedArrays:
    """What the ledger says of the arrays of a contribution, beside their hashes."""

    def __init__(
        self, arrays: Mapping[str, Array], mode: str | Mapping[str, str], contributors: Mapping[str, tuple[str, ...]]
    ) -> None:
        """`mode` is that of all arrays or of each, `contributors` are the sites whose parts are in each array's
        total."""
        self._kinds = _kinds(arrays)
        self._around_hashes: list[tuple[str, str, str]] = []  # name, the text before its hash, the text after it
        for name, array in sorted(arrays.items()):
            of_array = mode if isinstance(mode, str) else mode[name]
            sites, shape = canonical_text(contributors[name]), canonical_text(array.shape)
            before = f'{canonical_text(name)}:{{"blake3":"'
            after = f'","contributors":{sites},"mode":{canonical_text(of_array)},"shape":{shape},'
            after += f'"type":{canonical_text(_TYPE_NAMES[array.dtype.str[1:]])}}}'
            self._around_hashes.append((name, before, after))

    def fits(self, arrays: Mapping[str, Array]) -> bool:
        """Whether these arrays have the names, shapes and types of those that this was made from."""
        return _kinds(arrays) == self._kinds

    def line(self, job: str, epoch: int, round: int, arrays: Mapping[str, Array], notes: Sequence[str] = ()) -> Body:
        """The line about a contribution of arrays that this fits: canonical JSON, as of `hash_chain.canonical`."""
        of_arrays = ",".join(b + array_hash(arrays[name]).hex() + a for name, b, a in self._around_hashes)
        of_job, of_notes = canonical_text(job), canonical_text(notes) if notes else "[]"

        def body(number: int, time_s: float) -> bytes:
            line = f'{{"arrays":{{{of_arrays}}},"epoch":{epoch},"job":{of_job},"kind":"contribution","n":{number},'
            return f'{line}"notes":{of_notes},"round":{round},"time_s":{time_s!r}}}'.encode()

        return body


def _kinds(arrays: Mapping[str, Array]) -> list[tuple[object, ...]]:
    return [(name, array.shape, array.dtype) for name, array in arrays.items()]
