"""Computes the answers of tiny_job.json a second time, from docs/site-computation.md and docs/protocol.md.

    python tests/vectors/check_tiny_job.py

Nothing of ce is imported, and no array library: plain Python, the standard library, `blake3`, and AES, HKDF and X25519
of `cryptography`. It is the smallest site for bce with hard labels: an example to translate into another language.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PATH = Path(__file__).with_name("tiny_job.json")
#: Relative to the value that a word stands for, and for small values absolute.
TOLERANCE = 1e-9
HOLD, NEWTON = 8, 3  # iterations with alpha held at least, then with Newton's method

Rows = list[list[float]]  # k rows of categories, or of objects
Section = dict[str, Any]


# docs/protocol.md: bytes.


def joined(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">Q", len(part)) + part for part in parts)


def number(value: int) -> bytes:
    return struct.pack(">Q", value)


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def hkdf(secret: bytes, *info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=joined(*info)).derive(secret)


def keyed(key: bytes, content: bytes) -> bytes:
    """The first 16 bytes of HMAC-SHA256."""
    return hmac.new(key, content, hashlib.sha256).digest()[:16]


# docs/site-computation.md, "Accuracy": digamma and trigamma.


def psi(x: float) -> float:
    total = 0.0
    while x < 10:
        total -= 1 / x
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132 - y * 691 / 32760)))))
    return total + math.log(x) - 0.5 / x - series


def trigamma(x: float) -> float:
    total = 0.0
    while x < 10:
        total += 1 / (x * x)
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * (5 / 66 - y * 691 / 2730)))))
    return total + 1 / x + y / 2 + series / x


def log_beta(values: Sequence[float]) -> float:
    return sum(map(math.lgamma, values)) - math.lgamma(sum(values))


def argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda at: (values[at], -at))


# "Words: how reals become integers".


def for_sum(terms: float, limit: float) -> int:
    return 62 - math.ceil(math.log2(max(terms * limit, 1.0)))


def word(value: float, bits: int) -> int:
    return round(math.ldexp(value, bits))  # half to even


def value(word_: int, bits: int) -> float:
    return math.ldexp(word_, -bits)


def disclosure_digest(job: Section) -> bytes:
    """SHA-256 of what determines the totals of a job."""
    keys = {key: entry for key, entry in job.items() if key not in ("name", "deadlines", "privacy")}
    keys |= {"sites": sorted(job["sites"]), "tolerance": float(job["tolerance"]), "smoothing": float(job["smoothing"])}
    return sha256(json.dumps(keys, sort_keys=True, separators=(",", ":")).encode())


class Site:
    """One site of a bce job in `plain`: tasks in, words out."""

    def __init__(self, name: str, job: Section, whole: Section) -> None:
        own = whole["sites"][name]
        self.name, self.k, self.n_starts = name, job["clusters"], job["restarts"]
        self.smoothing, self.loops, self.newton = job["smoothing"], job["local_loops"], job["schedule"] == "newton"
        self.ids: list[str] = own["ids"]
        self.blocks, self.columns = own["blocks"], own["columns"]
        job_key = bytes.fromhex(whole["job_key"])
        start_key = hkdf(bytes.fromhex(own["secret"]), b"ce start of a column with one holder", disclosure_digest(job))
        self.keys = {c["name"]: job_key if len(c["holders"]) > 1 else start_key for c in self.columns}
        self.scales = self._scales(whole["sizes"])
        # Labels as positions among the column's tokens; None where missing.
        self.labels: dict[str, dict[str, int | None]] = {}
        for column in self.columns:
            where = {token: at for at, token in enumerate(column["categories"])}
            self.labels[column["name"]] = {
                object_: None if label is None else where[token(job_key, column["name"], label)]
                for object_, label in zip(self.ids, own["labels"][column["name"]], strict=True)
            }
        by_row = sorted(self.ids, key=lambda object_: pseudonym(job_key, object_))  # as enrolled
        members = {b["index"]: [by_row[row] for row in b["rows"]] for b in self.blocks}
        self.shared = {b["index"]: members[b["index"]] for b in self.blocks if len(b["members"]) > 1}
        everything = [object_ for b in self.blocks if len(b["members"]) == 1 for object_ in members[b["index"]]]
        self.private = [object_ for object_ in everything if self.count(object_)]
        self.groups: dict[int, list[str]] = {}
        for column in sorted(self.columns, key=lambda c: c["index"]):
            if len(column["holders"]) > 1:
                first = next((c for c in self.columns if c["holders"] == column["holders"]), column)
                self.groups.setdefault(first["index"], []).append(column["name"])
        self.starts: dict[int, Start] = {}
        self.stopped: dict[int, Start] = {}

    def _scales(self, sizes: Section) -> dict[str, int]:
        n, c = sizes["objects"], sizes["clusterings"]
        entries = self.k * sizes["categories"] * max(self.smoothing, 1.0)
        return {
            "sums": for_sum(max(n, c), 1.0),
            "bound": for_sum(n * (2 * c + 1) + entries, 1024.0),
            "mean_log": for_sum(n, 132.0),
            "rise": for_sum(n, 132.0),
            "fall": for_sum(n, 132.0**2),
        }

    def count(self, object_: str, alone: bool = False) -> int:
        names = [c["name"] for c in self.columns if not alone or len(c["holders"]) == 1]
        return sum(self.labels[name][object_] is not None for name in names)

    def widths_of_shares(self, iteration: int) -> dict[str, int]:
        """The shares that are asked for in an iteration, beside the bound: the same of all starts."""
        if iteration <= HOLD:
            return {}
        return {"mean_log": self.k} | ({} if self.newton else {"rise": self.k + 1, "fall": self.k + 1})

    def answer(self, task: Section) -> dict[str, list[int]]:
        match task["step"]:
            case "open":
                return self._open()
            case "counts":
                return {}
            case "sums":
                return self._iterate(task)
            case "finish":
                return self._finish(task)
        raise AssertionError(task["step"])

    # "Before the first iteration".

    def _open(self) -> dict[str, list[int]]:
        found = {"global/objects": [len(self.private)]}
        for b in self.blocks:
            index, objects = b["index"], self.shared.get(b["index"])
            if objects is None:
                continue
            found[f"block/{index}/labels"] = [self.count(object_) for object_ in objects]
            found[f"block/{index}/hidden"] = [self.count(object_, alone=True) for object_ in objects]
            for c in self.columns:
                if len(set(c["holders"]) & set(b["members"])) > 1:
                    seen = self.labels[c["name"]]
                    found[f"block/{index}/claims/{c['index']}"] = [
                        int(seen[object_] is not None) for object_ in objects
                    ]
        return found

    # "Iteration".

    def _iterate(self, task: Section) -> dict[str, list[int]]:
        if task["iteration"] == 1:
            self.starts = {start: Start(self, start, task) for start in task["starts"]}
        else:
            for start in task["stop"]:
                self.stopped[start] = self.starts.pop(start)
            for start, state in self.starts.items():
                state.adopt(task, start in task["retry"], received(task, self, start))
        assert list(self.starts) == task["starts"]
        found: dict[str, list[int]] = {}
        for start, state in self.starts.items():
            messages = {
                object_: [part(task, f"block/{index}/message", start, h)[at] for h in range(self.k)]
                for index, objects in self.shared.items()
                for at, object_ in enumerate(objects)
            }
            for name, words in state.contribute(messages, task["iteration"]).items():
                found.setdefault(name, []).extend(words)
        return found

    def _finish(self, task: Section) -> dict[str, list[int]]:
        for start in task["stop"]:
            self.stopped[start] = self.starts.pop(start)
        (winner,) = task["starts"]
        self.winner = self.stopped[winner]
        sizes = [0] * self.k
        for gamma in self.winner.gamma.values():
            sizes[argmax(gamma)] += 1
        return {"global/sizes": sizes}

    def memberships(self, task: Section) -> list[list[float]]:
        """In the order of the label file, after "finish"."""
        found = {object_: [g / sum(gamma) for g in gamma] for object_, gamma in self.winner.gamma.items()}
        for index, objects in self.shared.items():
            rows = rows_of(task["down"][f"block/{index}/memberships"])
            found |= {object_: [row[at] for row in rows] for at, object_ in enumerate(objects)}
        return [found[object_] for object_ in self.ids]


class Start:
    """What a site has of one start."""

    def __init__(self, site: Site, start: int, task: Section) -> None:
        self.site, self.alpha, self.learning = site, alpha(task, start), learning(task, start)
        self.beta = {c["name"]: drawn(site.keys[c["name"]], start, c, site.k) for c in site.columns}
        self.entering = self.beta
        self.gamma = {i: [a + site.count(i) / site.k for a in self.alpha] for i in site.private}
        self.sums: dict[str, list[int]] = {}  # A of the last cell pass, by private object
        self.used: dict[str, list[int]] = {}  # those of the last object step
        self.column_sums: dict[str, list[list[int]]] = {}
        self.moved: list[str] = []

    def adopt(self, task: Section, retry: bool, new: dict[str, Rows]) -> None:
        """Steps 2 to 5: columns, globals, private objects."""
        site = self.site
        for column in site.columns:
            name = column["name"]
            if retry:
                self.beta = {**self.beta, name: self.entering[name]}
            else:
                self._replace(name, new.get(name) or column_step(self.column_sums[name], site))
        self.entering = self.beta
        self.alpha, self.learning = new["alpha"][0], new["learning"][0][0]
        self.used = self.used if retry else self.sums
        before, self.gamma = self.gamma, {}
        for object_, words in self.used.items():
            self.gamma[object_] = [a + value(w, site.scales["sums"]) for a, w in zip(self.alpha, words, strict=True)]
        self.moved = [i for i, gamma in self.gamma.items() if argmax(gamma) != argmax(before[i])]

    def _replace(self, name: str, new: Rows) -> None:
        rows = [row if any(row) else old for row, old in zip(new, self.beta[name], strict=True)]
        self.beta = {**self.beta, name: rows}

    def contribute(self, messages: dict[str, list[float]], iteration: int) -> dict[str, list[int]]:
        """Steps 6 to 10; the words of this start."""
        site, scales = self.site, self.site.scales
        logs = {i: mean_log(gamma) for i, gamma in self.gamma.items()}
        messages = messages | {i: [math.exp(el - max(els)) for el in els] for i, els in logs.items()}
        for _ in range(site.loops - 1):
            self._pass(messages)
            for column in site.columns:
                if len(column["holders"]) == 1:
                    self._replace(column["name"], column_step(self.column_sums[column["name"]], site))
        bound = 0
        for column in site.columns:
            if column["holders"][0] == site.name and site.smoothing > 0:
                entries = (b for row in self.beta[column["name"]] for b in row)
                bound += sum(word(site.smoothing * math.log(b), scales["bound"]) for b in entries)
        sums, cells = self._pass(messages)
        bound += cells
        self.sums = {i: sums[i] for i in site.private}
        shares = {name: [0] * width for name, width in site.widths_of_shares(iteration).items()}
        for i in site.private:
            bound += word(self._bound(i, logs[i]), scales["bound"])
            for name, reals in self._shares(i, logs[i]).items():
                words = [word(real, scales[name]) for real in reals]
                shares[name] = [a + w for a, w in zip(shares[name], words, strict=True)]
        found = {f"global/{name}": words for name, words in shares.items()}
        found |= {"global/bound": [bound], "global/moved": [len(self.moved)]}
        for index, objects in site.shared.items():
            found[f"block/{index}/sums"] = [sums[object_][h] for h in range(site.k) for object_ in objects]
        for group, names in site.groups.items():
            rows = [[w for name in names for w in self.column_sums[name][h]] for h in range(site.k)]
            found[f"columns/{group}/sums"] = [w for row in rows for w in row]
        return found

    def _pass(self, messages: dict[str, list[float]]) -> tuple[dict[str, list[int]], int]:
        """The cell pass: object sums and the cells' part of the bound; column sums."""
        site, bits = self.site, self.site.scales["sums"]
        sums = {object_: [0] * site.k for object_ in site.ids}
        bound = 0
        for column in site.columns:
            name, beta = column["name"], self.beta[column["name"]]
            counts = [[0] * len(column["categories"]) for _ in range(site.k)]
            for object_, r in site.labels[name].items():
                if r is None:
                    continue
                joint = [messages[object_][h] * beta[h][r] for h in range(site.k)]
                bound += word(math.log(sum(joint)), site.scales["bound"])
                for h in range(site.k):
                    phi = word(joint[h] / sum(joint), bits)
                    sums[object_][h] += phi
                    counts[h][r] += phi
            self.column_sums[name] = counts
        return sums, bound

    def _bound(self, object_: str, logs: list[float]) -> float:
        gamma, a = self.gamma[object_], self.alpha
        differences = sum((a[h] - gamma[h]) * logs[h] for h in range(self.site.k))
        return log_beta(gamma) - log_beta(a) + differences + self.site.count(object_) * max(logs)

    def _shares(self, object_: str, logs: list[float]) -> dict[str, list[float]]:
        if self.learning <= 0:
            return {}
        if self.site.newton or self.learning <= NEWTON:
            return {"mean_log": logs}
        new = [value(w, self.site.scales["sums"]) for w in self.sums[object_]]
        pairs = [*zip(self.alpha, new, strict=True), (sum(self.alpha), float(self.site.count(object_)))]
        return {
            "rise": [psi(a + s) - psi(a) for a, s in pairs],
            "fall": [trigamma(a) - trigamma(a + s) for a, s in pairs],
        }


def mean_log(gamma: Sequence[float]) -> list[float]:
    whole = psi(sum(gamma))
    return [psi(g) - whole for g in gamma]


def column_step(sums: list[list[int]], site: Site) -> Rows:
    bits, s = site.scales["sums"], site.smoothing
    rows = []
    for row in sums:
        total = value(sum(row), bits) + s * len(row)
        rows.append([(value(w, bits) + s) / total if total > 0 else 0.0 for w in row])
    return rows


# "Starting parameters", pseudonyms and tokens.


def pseudonym(job_key: bytes, object_: str) -> bytes:
    return keyed(job_key, object_.encode())


def token(job_key: bytes, column: str, category: int | str) -> str:
    spelled = f"{'int' if isinstance(category, int) else 'str'} {category}"
    return keyed(job_key, joined(b"category", column.encode(), spelled.encode())).hex()


def drawn(key: bytes, start: int, column: Section, k: int) -> Rows:
    columns = []
    for token_ in column["categories"]:
        material = joined(b"ce start", key, str(start).encode(), column["name"].encode(), f"str {token_}".encode())
        words = struct.unpack(f"<{k}Q", hashlib.shake_256(material).digest(8 * k))
        columns.append([-math.log(((w >> 11) + 0.5) * 2.0**-53) for w in words])
    rows = [list(row) for row in zip(*columns, strict=True)]
    return [[entry / math.fsum(row) for entry in row] for row in rows]


# Reading tasks out of the file.


def elements(entry: Section) -> list[float]:
    return [float(text) for text in entry["reals"].split()]


def rows_of(entry: Section) -> Rows:
    """The rows of an array with two sides, or with more: of its last side."""
    flat, width = elements(entry), entry["shape"][-1]
    return [flat[at : at + width] for at in range(0, len(flat), width)]


def part(task: Section, name: str, start: int, h: int) -> list[float]:
    entry = task["down"][name]
    return rows_of(entry)[task["starts"].index(start) * entry["shape"][1] + h]


def alpha(task: Section, start: int) -> list[float]:
    return rows_of(task["down"]["global/alpha"])[task["starts"].index(start)]


def learning(task: Section, start: int) -> float:
    """In how many iterations the start has learnt alpha; 0: alpha is held."""
    return elements(task["down"]["global/learning"])[task["starts"].index(start)]


def received(task: Section, site: Site, start: int) -> dict[str, Rows]:
    """By column: the parameters that the home sent; and the globals."""
    found: dict[str, Rows] = {"alpha": [alpha(task, start)], "learning": [[learning(task, start)]]}
    for group, names in site.groups.items():
        rows = [part(task, f"columns/{group}/beta", start, h) for h in range(site.k)]
        at = 0
        for name in names:
            width = next(len(c["categories"]) for c in site.columns if c["name"] == name)
            found[name] = [row[at : at + width] for row in rows]
            at += width
    return found


# docs/protocol.md, "Digests" and "Masks".


def element_hash(entry: Section) -> bytes:
    reals = elements(entry)
    return blake3(struct.pack(f"<{len(reals)}d", *reals)).digest()


def task_digest(whole: Section, task: Section, site: str) -> str:
    def listed(values: Iterable[int]) -> str:
        return ",".join(map(str, values))

    where = f"{whole['epoch']} {task['round']} {task['step']} {task['stage']} {task['iteration']}"
    lines = ["ce task 2", whole["job_digest"], where, *(listed(task[key]) for key in ("starts", "retry", "stop"))]
    for name, entry in sorted(task["up"].items()):
        if site in entry["words"]:
            lines.append(f"asked {name} {listed(entry['shape'])} {entry['fraction_bits']}")
    for name, entry in sorted(task["down"].items()):
        if site in entry["to"]:
            lines.append(f"{name} f {listed(entry['shape'])} {element_hash(entry).hex()}")
    return sha256("\n".join(lines).encode()).hex()


class Masks:
    """The masks of one site in the masked round of the file."""

    def __init__(self, whole: Section, site: str) -> None:
        self.whole, self.site, self.own = whole, site, whole["sites"][site]
        known = whole["masked"]
        self.task = next(task for task in whole["rounds"] if task["round"] == known["round"])
        names = joined(*(name.encode() for name in whole["roster"]))
        context = (bytes.fromhex(whole["job_digest"]), number(whole["epoch"]), names)
        self.pair_keys = {}
        private = X25519PrivateKey.from_private_bytes(bytes.fromhex(known["private_keys"][site]))
        for peer in whole["roster"]:
            if peer != site:
                theirs = X25519PublicKey.from_public_bytes(bytes.fromhex(known["public_keys"][peer]))
                public = sorted(bytes.fromhex(known["public_keys"][name]) for name in (site, peer))
                both = [name.encode() for name in sorted((site, peer))]
                self.pair_keys[peer] = hkdf(private.exchange(theirs), b"ce pair key 1", *public, *context, *both)
        self.blocks = {f"block/{b['index']}": b for b in self.own["blocks"] if len(b["members"]) > 1}
        parts: list[bytes] = []
        for name in whole["roster"]:
            alone = sum(b["size"] for b in whole["sites"][name]["blocks"] if len(b["members"]) == 1)
            parts += [name.encode(), bytes.fromhex(whole["sites"][name]["summary"]), number(alone)]
        self.attempt = sha256(joined(*context, sha256(joined(*parts))))

    def objects(self, block: Section) -> bytes:
        return sha256(b"".join(bytes.fromhex(self.own["enrolled_pseudonyms"][row]) for row in block["rows"]))

    def mask_key(self, peer: str) -> bytes:
        parts = [
            joined(name.encode(), joined(*(m.encode() for m in b["members"])), self.objects(b))
            for name, b in sorted(self.blocks.items())
            if peer in b["members"]
        ]
        return hkdf(self.pair_keys[peer], b"ce blocks 1", sha256(joined(*parts)))

    def contributors(self, name: str) -> list[str]:
        kind, _, rest = name.partition("/")
        if kind == "global":
            return list(self.whole["roster"])
        index = int(rest.split("/")[0])
        if kind == "block":
            return list(self.blocks[f"block/{index}"]["members"])
        return list(next(c["holders"] for c in self.own["columns"] if c["index"] == index))

    def identity(self, name: str) -> bytes:
        kind, members = name.partition("/")[0], self.contributors(name)
        over: list[bytes] = []
        if kind == "block":
            over = [self.objects(self.blocks[name.rpartition("/")[0]])]
        elif kind == "columns":
            for c in self.own["columns"]:
                if c["holders"] == members:
                    over += [c["name"].encode(), joined(*(token_.encode() for token_ in c["categories"]))]
        return sha256(joined(kind.encode(), joined(*(m.encode() for m in members)), *over))

    def view_digest(self, scopes: Sequence[str]) -> bytes:
        task = self.task
        header = joined(
            task["step"].encode(),
            number(task["stage"]),
            number(task["iteration"]),
            joined(*map(number, task["starts"])),
            joined(*map(number, task["retry"])),
        )
        parts: list[bytes] = []
        for name, entry in sorted(task["down"].items()):
            if self.site in entry["to"] and any(name.startswith(f"{scope}/") for scope in ("global", *scopes)):
                parts += [name.encode(), element_hash(entry)]
        return sha256(joined(b"ce view 1", header, *parts))

    def arrays_with(self, peer: str) -> list[str]:
        """What both contribute to, in the order of the stream: by contributors, then by name."""
        up = self.task["up"]
        both = [name for name in up if {self.site, peer} <= set(up[name]["words"])]
        return sorted(both, key=lambda name: (self.contributors(name), name))

    def context(self, peer: str) -> bytes:
        blocks = [scope for scope, b in self.blocks.items() if peer in b["members"]]
        shared = [c for c in self.own["columns"] if peer in c["holders"]]
        groups = {f"columns/{min(d['index'] for d in shared if d['holders'] == c['holders'])}" for c in shared}
        scopes = sorted({*blocks, *groups})
        parts = [b"ce mask context 2", self.attempt, number(self.task["round"]), self.view_digest(scopes)]
        for name in self.arrays_with(peer):
            entry = self.task["up"][name]
            shape = joined(*map(number, entry["shape"]))
            parts += [self.identity(name), name.encode(), shape, number(entry["fraction_bits"])]
        return sha256(joined(*parts))

    def mask(self) -> dict[str, list[int]]:
        """The words of all arrays as the site sends them."""
        up = self.task["up"]
        words = {
            name: [int(t) for t in e["words"][self.site].split()] for name, e in up.items() if self.site in e["words"]
        }
        for peer in self.pair_keys:
            names = self.arrays_with(peer)
            count = sum(len(words[name]) for name in names)
            key = hkdf(self.mask_key(peer), b"ce mask 2", self.context(peer))
            stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * count))
            sign, added = 1 if self.site < peer else -1, iter(struct.unpack(f"<{count}q", stream))
            for name in names:
                words[name] = [signed(word + sign * next(added)) for word in words[name]]
        return words


def signed(word_: int) -> int:
    return (word_ + 2**63) % 2**64 - 2**63


# The check.


def differences(whole: Section) -> list[str]:
    """What differs from the file, one line each; nothing: all is well."""
    found: list[str] = []
    job = json.loads(whole["definition"])
    if sha256(whole["definition"].encode()).hex() != whole["job_digest"]:
        found.append("job_digest")
    first_secret = bytes.fromhex(whole["sites"][whole["roster"][0]]["secret"])
    if hkdf(first_secret, b"ce job key", disclosure_digest(job)).hex() != whole["job_key"]:
        found.append("job_key")
    for name in whole["roster"]:
        found += _differences_of_a_site(name, job, whole)
    return found


def _differences_of_a_site(name: str, job: Section, whole: Section) -> list[str]:
    found: list[str] = []
    job_key, own = bytes.fromhex(whole["job_key"]), whole["sites"][name]
    if sorted(pseudonym(job_key, object_).hex() for object_ in own["ids"]) != own["enrolled_pseudonyms"]:
        found.append(f"{name}: pseudonyms")
    site = Site(name, job, whole)
    for task in whole["rounds"]:
        if task_digest(whole, task, name) != task["digests"][name]:
            found.append(f"{name}: round {task['round']}: digest")
        asked = {array: entry for array, entry in task["up"].items() if name in entry["words"]}
        answer = site.answer(task)
        if set(answer) != set(asked):
            found.append(f"{name}: round {task['round']}: arrays {sorted(set(answer) ^ set(asked))}")
        for array, entry in asked.items():
            words, bits = [int(text) for text in entry["words"][name].split()], entry["fraction_bits"]
            got = answer.get(array, [])
            if len(words) != len(got) or not all(map(_close(bits), got, words)):
                found.append(f"{name}: round {task['round']}: {array}")
    rows = [m for row in site.memberships(whole["rounds"][-1]) for m in row]
    expected = [float(text) for text in whole["results"][name]["memberships"].split()]
    if not all(abs(a - b) <= TOLERANCE for a, b in zip(rows, expected, strict=True)):
        found.append(f"{name}: memberships")
    masked = Masks(whole, name).mask()
    for array, text in whole["masked"]["words"][name].items():
        if masked[array] != [int(word_) for word_ in text.split()]:
            found.append(f"{name}: masked {array}")
    return found


def _close(bits: int) -> Callable[[int, int], bool]:
    """Counts exactly, other words to the tolerance."""
    if not bits:
        return lambda a, b: a == b
    return lambda a, b: abs(a - b) <= TOLERANCE * max(abs(b), 2**bits)


def main() -> None:
    whole = json.loads(PATH.read_text(encoding="ascii"))
    found = differences(whole)
    print("\n".join(found) or f"{len(whole['rounds'])} rounds of {len(whole['roster'])} sites: all equal")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
