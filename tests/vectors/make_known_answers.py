"""Makes known_answers.json: what an implementation of the protocol must compute, in any language.

    python tests/vectors/make_known_answers.py

Nothing of ce is imported: every value is computed here a second time from the definitions in docs/protocol.md and
docs/ledger.md, with hashes, HKDF, X25519, AES and ChaCha20-Poly1305 and nothing else. The code is held against the
file, and the file against this program, in tests/unit/test_known_answers.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PATH = Path(__file__).with_name("known_answers.json")
Section = dict[str, Any]

ABOUT = (
    "Known answers of the protocol of ce, version 4 (docs/protocol.md, docs/ledger.md). Bytes are hexadecimal, whole "
    "numbers that may need 64 bits decimal strings, reals the shortest decimal strings that give the same double. "
    "Words are whole numbers modulo 2^64, written as signed. Arrays are flat, row-major, with their shape beside them; "
    "where they are hashed, their elements are little-endian. Texts are UTF-8. A value named in one section has the "
    "same name in the others. Everything is exact, except reals in sections that name a tolerance, which is relative."
)

# The primitives, as docs/protocol.md defines them.


def joined(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">Q", len(part)) + part for part in parts)


def number(value: int) -> bytes:
    return struct.pack(">Q", value)


def hkdf(secret: bytes, *info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=joined(*info)).derive(secret)


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def hmac256(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def aes_ctr(key: bytes, size: int) -> bytes:
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def signed(words: int) -> int:
    """Modulo 2^64, as a signed word."""
    return (words + 2**63) % 2**64 - 2**63


def stream_words(key: bytes, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}q", aes_ctr(key, 8 * count)))


def element_bytes(kind: str, elements: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(elements)}{ {'i': 'q', 'f': 'd', 'u': 'B'}[kind] }", *elements)


# How values are written down.


def texts(values: Sequence[float]) -> list[str]:
    return [repr(value) for value in values]


def array(kind: str, shape: Sequence[int], elements: Sequence[float]) -> Section:
    """kind: i, f or u, as in a task's digest."""
    assert math.prod(shape) == len(elements)
    hashed = blake3(element_bytes(kind, elements)).hexdigest()
    return {"kind": kind, "shape": list(shape), "elements": texts(elements), "blake3": hashed}


# What several sections are about.

SITES = ("east", "north", "south")
JOB = "demo"
DEFINITION = b'{"clusters":2,"model":"bce","name":"demo","privacy":"masked","sites":["east","north","south"]}'
EPOCH = 3
JOB_DIGEST = sha256(DEFINITION)
CONTEXT = (JOB_DIGEST, number(EPOCH), joined(*(site.encode() for site in SITES)))
SECRETS = {site: sha256(b"secret of " + site.encode()) for site in SITES}
PRIVATE_KEYS = {site: sha256(b"ephemeral key of " + site.encode()) for site in SITES}
PUBLIC_KEYS = {site: X25519PrivateKey.from_private_bytes(own).public_key() for site, own in PRIVATE_KEYS.items()}
DISCLOSED = (
    b'{"classes":null,"clusters":2,"halving":true,"local_loops":10,"max_iterations":300,"model":"bce","on_dropout":'
    b'"wait","posterior":"joint","restarts":5,"schedule":"joint","seed":0,"sites":["east","north","south"],"smoothing":'
    b'1.0,"start":"votes","tolerance":1e-06}'
)
DISCLOSURE_DIGEST = sha256(DISCLOSED)
JOB_KEY = hkdf(SECRETS["east"], b"ce job key", DISCLOSURE_DIGEST)
IDS = ("0", "customer 17", "Müller", "\u00e9t\u00e9", "日本")
CATEGORIES: dict[str, tuple[int | str, ...]] = {"age": ("old", "young", "ältlich"), "visits": (1, 2), "rank": (-1, 7)}


def pair_key(one: str, other: str) -> bytes:
    """The key of two sites, from the private key of the first and the public key of the second."""
    first, second = sorted((one, other))
    shared = X25519PrivateKey.from_private_bytes(PRIVATE_KEYS[one]).exchange(PUBLIC_KEYS[other])
    public_keys = sorted(PUBLIC_KEYS[site].public_bytes_raw() for site in (one, other))
    return hkdf(shared, b"ce pair key 1", *public_keys, *CONTEXT, first.encode(), second.encode())


def pseudonym(own: str) -> bytes:
    return hmac256(JOB_KEY, own.encode())[:16]


def spelled(category: int | str) -> str:
    return f"{'int' if isinstance(category, int) else 'str'} {category}"


def token(column: str, category: int | str) -> str:
    return hmac256(JOB_KEY, joined(b"category", column.encode(), spelled(category).encode()))[:16].hex()


# Numbers.


def words() -> Section:
    unit_cases = {
        40: (0.0, 1.0, -1.0, 0.1, -0.1, 1 / 3, 2.0**-41, 3 * 2.0**-41, -(2.0**-41), 2.0**-42, 123456.789, 2.0**22),
        0: (0.5, 1.5, 2.5, -0.5, -1.5, 41.0, -(2.0**62), 2.0**62, 2.0**62 - 512),
        62: (1.0, -1.0, 2.0**-62, 0.7, -math.pi / 4),
    }
    limits = {40: 2.0**22, 0: 2.0**62, 62: 1.0}
    cases = [
        {
            "bits": bits,
            "limit": repr(limits[bits]),
            "values": texts(values),
            "words": texts([round(Fraction(value) * 2**bits) for value in values]),
        }
        for bits, values in unit_cases.items()
    ]
    refused = [
        {"bits": 40, "limit": repr(1.0), "value": value}
        for value in ("1.0000000000000002", "-1.0000000000000002", "inf", "-inf", "nan")
    ]
    return {
        "what": "A term of a sum becomes a word: value * 2^bits, rounded to the nearest whole number, ties to even. A "
        "term that is not finite, or larger than the limit that was declared for the sum, is an error.",
        "cases": cases,
        "refused": refused,
    }


def scales() -> Section:
    cases = []
    for terms, limit in ((1, 1.0), (2, 1.0), (3, 1.0), (1000, 1.0), (1024, 1.0), (1025, 1.0), (10, 0.01), (120, 45.5)):
        largest, exponent = Fraction(terms) * Fraction(limit), 0
        while 2**exponent < largest:
            exponent += 1
        cases.append({"terms": str(terms), "limit": repr(limit), "bits": 62 - exponent})
    return {
        "what": "Fractional bits of a sum of so many terms of at most limit each: 62 - ceil(log2(max(terms * limit, "
        "1))).",
        "cases": cases,
    }


# Bytes out of bytes.


def encodings() -> Section:
    lists = ((), (b"",), (b"", b""), (b"ab", b"c"), (b"a", b"bc"), ("é".encode(), bytes(range(5))))
    return {
        "what": "joined(parts): each part after its length as 8 bytes, big-endian. number(n): n as 8 bytes, "
        "big-endian.",
        "joined": [{"parts": [part.hex() for part in parts], "joined": joined(*parts).hex()} for parts in lists],
        "number": [{"n": str(n), "number": number(n).hex()} for n in (0, 1, 255, 2**32, 2**63, 2**64 - 1)],
    }


def derivation() -> Section:
    cases = [
        {"secret": secret.hex(), "info": [part.hex() for part in info], "key": hkdf(secret, *info).hex()}
        for secret, info in (
            (bytes(32), ()),
            (b"\x0b" * 22, (b"a label", bytes(range(10)))),
            (bytes(range(80)), (b"", b"x")),
        )
    ]
    return {
        "what": "Keys out of keys: HKDF-SHA256 (RFC 5869) with an empty salt, 32 bytes, info = joined(parts).",
        "cases": cases,
    }


def attempt() -> Section:
    return {
        "what": "An attempt at a job. Its context is three parts: the job digest, which is the SHA-256 of the "
        "definition byte for byte; number(epoch); joined(names of the roster in order).",
        "job": JOB,
        "definition": DEFINITION.hex(),
        "epoch": EPOCH,
        "roster": list(SITES),
        "job_digest": JOB_DIGEST.hex(),
        "context": [part.hex() for part in CONTEXT],
    }


def pair_keys() -> Section:
    pairs = []
    for first, second in (("east", "north"), ("east", "south"), ("north", "south")):
        assert pair_key(first, second) == pair_key(second, first)
        shared = X25519PrivateKey.from_private_bytes(PRIVATE_KEYS[first]).exchange(PUBLIC_KEYS[second])
        pairs.append({"sites": [first, second], "x25519": shared.hex(), "pair_key": pair_key(first, second).hex()})
    return {
        "what": "The key of two sites: HKDF(X25519(private key of one, public key of the other); 'ce pair key 1', both "
        "public keys in order of their bytes, the context of the attempt, both names in order). A public key that "
        "gives a shared secret of zeros is refused.",
        "private_keys": {site: own.hex() for site, own in PRIVATE_KEYS.items()},
        "public_keys": {site: own.public_bytes_raw().hex() for site, own in PUBLIC_KEYS.items()},
        "pairs": pairs,
        "refused_public_keys": [bytes(32).hex(), (b"\x01" + bytes(31)).hex(), bytes(31).hex()],
    }


def job_keys() -> Section:
    return {
        "what": "The disclosure definition of a job: its definition without name, deadlines and privacy, sites sorted, "
        "tolerance and smoothing with a fraction; defaults are written out, but for halving, which is there where the "
        "job has it. The job key, made by the first site by name: HKDF(its secret; 'ce job key', SHA-256 of the "
        "disclosure definition).",
        "definition": '{"name":"demo","privacy":"blind","clusters":2,"sites":["south","east","north"],"smoothing":1,'
        '"halving":true}',
        "disclosure_definition": DISCLOSED.decode(),
        "disclosure_digest": DISCLOSURE_DIGEST.hex(),
        "secret": SECRETS["east"].hex(),
        "job_key": JOB_KEY.hex(),
    }


def encryption() -> Section:
    set_keys = sha256(b"set key of east, north, south") + sha256(b"set key of east, south")
    rest = (*CONTEXT, b"east", b"south")
    state = sha256(b"a state")
    cases = []
    for what, content, parts in (
        ("the job key", JOB_KEY, (b"ce job key 1", *rest)),
        ("the keys of sets of sites that the first of them makes", set_keys, (b"ce set keys 1", *rest)),
        ("a decision of round 7", state + bytes(range(64)), (b"ce decision 1", number(7), *rest)),
    ):
        nonce = sha256(what.encode())[:12]
        ciphertext = ChaCha20Poly1305(pair_key("east", "south")).encrypt(nonce, content, joined(*parts))
        cases.append(
            {
                "encrypted": what,
                "associated": [part.hex() for part in parts],
                "content": content.hex(),
                "nonce": nonce.hex(),
                "ciphertext": ciphertext.hex(),
            }
        )
    return {
        "what": "What one site encrypts for another (here east for south): ChaCha20-Poly1305 under their pair key "
        "with a "
        "random nonce of 12 bytes; the associated data are joined(purpose, [number(round) of a decision,] the context, "
        "sender, receiver). Here the nonce is given.",
        "pair_key": pair_key("east", "south").hex(),
        "cases": cases,
    }


# What the job key names and draws.


def names() -> Section:
    return {
        "what": "Pseudonym of an object: first 16 bytes of HMAC-SHA256(job key, id). Token of a category: first 16 "
        "bytes of HMAC-SHA256(job key, joined('category', column, 'int VALUE' or 'str VALUE')).",
        "job_key": JOB_KEY.hex(),
        "ids": list(IDS),
        "pseudonyms": [pseudonym(own).hex() for own in IDS],
        "columns": [
            {
                "column": column,
                "integers": isinstance(categories[0], int),
                "categories": [str(category) for category in categories],
                "tokens": [token(column, category) for category in categories],
            }
            for column, categories in CATEGORIES.items()
        ],
    }


def drawn(key: bytes, column: str, tokens: Sequence[str], starts: int, k: int) -> tuple[list[int], list[float]]:
    """The words, (starts, categories, k), and beta, (starts, k, categories)."""
    found, beta = [], []
    for start in range(starts):
        by_category = []
        for own in tokens:
            material = joined(b"ce start", key, str(start).encode(), column.encode(), f"str {own}".encode())
            by_category.append(struct.unpack(f"<{k}Q", hashlib.shake_256(material).digest(8 * k)))
        found += [word for own in by_category for word in own]
        for h in range(k):
            row = [-math.log(((own[h] >> 11) + 0.5) * 2.0**-53) for own in by_category]
            beta += [value / math.fsum(row) for value in row]
    return found, beta


def starts() -> Section:
    secret, starts_, k = SECRETS["north"], 2, 3
    own_key = hkdf(secret, b"ce start of a column with one holder", DISCLOSURE_DIGEST)
    columns = []
    for column, key, shared in (("age", JOB_KEY, True), ("rank", own_key, False)):
        tokens = sorted(token(column, category) for category in CATEGORIES[column])
        found, beta = drawn(key, column, tokens, starts_, k)
        columns.append(
            {
                "column": column,
                "shared": shared,
                "key": key.hex(),
                "categories": tokens,
                "words": texts(found),
                "words_shape": [starts_, len(tokens), k],
                "beta": texts(beta),
                "beta_shape": [starts_, k, len(tokens)],
            }
        )
    return {
        "what": "Starting parameters (beta). Words: little-endian, unsigned, of SHAKE-256(joined('ce start', key, "
        "start in "
        "decimal, column, 'str TOKEN')), k for each start and category. Entry (start, h, category) of beta is "
        "-ln(((word >> 11) + 0.5) / 2^53), divided by the sum of its row. The key is the job key for a column of "
        "several holders, else HKDF(the holder's secret; 'ce start of a column with one holder', SHA-256 of the "
        "disclosure definition).",
        "secret": secret.hex(),
        "disclosure_digest": DISCLOSURE_DIGEST.hex(),
        "job_key": JOB_KEY.hex(),
        "starts": starts_,
        "k": k,
        "tolerance": "1e-14",
        "columns": columns,
    }


def object_weights() -> Section:
    starts_, k = 2, 3
    per_start = -(-k // 2)
    key = sha256(b"ce object weights 1")
    weights: list[float] = []  # (starts, k, objects)
    for start in range(starts_):
        by_object = []
        for own in IDS:
            first, last = struct.unpack("<QQ", pseudonym(own))
            content = b"".join(
                struct.pack("<QQ", first, last ^ count) for count in range(start * per_start, (start + 1) * per_start)
            )
            encrypted = Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(content)
            words_ = struct.unpack(f"<{2 * per_start}Q", encrypted)[:k]
            drawn_ = [-math.log(((word >> 11) + 0.5) * 2.0**-53) for word in words_]
            by_object.append([value / sum(drawn_) for value in drawn_])
        weights += [own[h] for h in range(k) for own in by_object]
    return {
        "what": "Where shared objects begin (bce: gamma = alpha + labels * weight): AES-256-ECB under the key SHA-256("
        "'ce object weights 1') of the pseudonym, its last eight bytes, little-endian, XOR a counter from start * "
        "ceil(k / 2); the first k little-endian words of these ceil(k / 2) blocks are made normalised exponentials as "
        "starting parameters are.",
        "pseudonyms": [pseudonym(own).hex() for own in IDS],
        "starts": starts_,
        "k": k,
        "tolerance": "1e-14",
        "weights_shape": [starts_, k, len(IDS)],
        "weights": texts(weights),
    }


# What is signed.


def summary_bytes(summary: Section) -> bytes:
    columns = [
        joined(
            own["name"].encode(),
            own["kind"].encode(),
            b"soft" if own["soft"] else b"hard",
            own["written"].encode(),
            number(len(own["tokens"])),
            number(own["labels"]),
        )
        for own in summary["columns"]
    ]
    return joined(
        number(summary["objects"]),
        joined(*columns),
        bytes.fromhex(summary["pseudonym_digest"]),
        number(summary["revision"]),
        bytes.fromhex(summary["key_commitment"]),
        number(summary["min_sites"]),
        number(summary["min_objects"]),
    )


def summaries() -> dict[str, Section]:
    def column(name: str, kind: str, soft: bool, written: str, labels: int) -> Section:
        tokens = sorted(token(name, category) for category in CATEGORIES.get(name, ()))
        return {
            "name": name,
            "kind": kind,
            "soft": soft,
            "written": written,
            "tokens": tokens,
            "labels": labels,
        }

    age, visits = column("age", "clustering", False, "text", 5), column("visits", "clustering", True, "integers", 3)
    rank, doctor = column("rank", "clustering", False, "integers", 4), column("doctor", "classifier", False, "text", 1)
    fewer, nothing = column("age", "clustering", False, "text", 2), column("empty", "clustering", False, "", 0)
    held = {"east": ([age, visits], IDS, 0), "north": ([fewer, rank, doctor], IDS[1:], 2), "south": ([nothing], (), 1)}
    return {
        site: {
            "objects": len(ids),
            "columns": columns,
            "pseudonyms": [pseudonym(own).hex() for own in ids],
            "salt": salt_of(site).hex(),
            "pseudonym_digest": sha256(salt_of(site) + b"".join(map(pseudonym, ids))).hex(),
            "revision": revision,
            "key_commitment": hkdf(JOB_KEY, b"ce key commitment 1", JOB_DIGEST, CONTEXT[2]).hex(),
            "min_sites": 3,
            "min_objects": 20,
        }
        for site, (columns, ids, revision) in held.items()
    }


def salt_of(site: str) -> bytes:
    """Any 16 bytes; these are 16 times the first letter of the site."""
    return site[:1].encode() * 16


#: Objects that no other site holds.
PRIVATE_OBJECTS = {"east": 1, "north": 0, "south": 0}


def digest_of_enrolments(enrolled: dict[str, Section]) -> bytes:
    parts = []
    for site, own in enrolled.items():
        parts += [site.encode(), summary_bytes(own), number(PRIVATE_OBJECTS[site])]
    return sha256(joined(*parts))


def signatures() -> Section:
    def message(purpose: str, content: bytes) -> str:
        return (struct.pack(">I", len(purpose)) + purpose.encode() + content).hex()

    enrolled = summaries()
    public_key = PUBLIC_KEYS["north"].public_bytes_raw()
    share = joined(*CONTEXT, b"north", public_key)
    enrolments = {
        site: message("ce enrolment 3", joined(*CONTEXT, site.encode(), summary_bytes(own)))
        for site, own in enrolled.items()
    }
    return {
        "what": "The bytes that are signed (ECDSA P-256, SHA-256): the purpose after its length as 4 bytes, then the "
        "message. Key share: 'ce key share 1', joined(context, site, public key). Enrolment: 'ce enrolment 3', "
        "joined(context, site, summary), where summary = joined(number(objects), joined(columns), pseudonym digest, "
        "number(revision), key commitment, number(min_sites), number(min_objects)), the pseudonym digest is the "
        "SHA-256 of the salt and the pseudonyms, the key commitment HKDF(job key; 'ce key commitment 1', job digest, "
        "joined(roster)), and a column is joined(name, kind, 'soft' or 'hard', 'integers' or 'text' or nothing, "
        "number(categories), number(labels)), labels being the "
        "number of the site's objects that have one in the column, at most 100. The enrolment digest "
        "is the SHA-256 of joined(site, summary, number(its private objects), ...) in order of the roster.",
        "public_key": public_key.hex(),
        "key_share": {"site": "north", "signed": message("ce key share 1", share)},
        "enrolled": enrolled,
        "private_objects": PRIVATE_OBJECTS,
        "enrolments": enrolments,
        "enrolment_digest": digest_of_enrolments(enrolled).hex(),
    }


# What sites write to each other.


def letters() -> Section:
    """East's letter of the first stage to north, with a secret number that is given."""
    secret = ec.derive_private_key(int.from_bytes(sha256(b"secret number of east"), "big") >> 8, ec.SECP256R1())
    hash_key = hkdf(JOB_KEY, b"ce overlap 1")
    points = []
    for own in IDS:
        attempt = 0
        while True:
            x = hmac.new(hash_key, pseudonym(own) + number(attempt), hashlib.sha256).digest()
            try:
                point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x02" + x)
                break
            except ValueError:
                attempt += 1
        points.append(
            {
                "pseudonym": pseudonym(own).hex(),
                "hashes": attempt + 1,
                "x": x.hex(),
                "blinded": secret.exchange(ec.ECDH(), point).hex(),
            }
        )
    pair_key = sha256(b"pair key of east and north")
    cipher = Cipher(algorithms.AES256(hkdf(pair_key, b"ce overlap sample 1")), modes.ECB()).encryptor()
    tags = [int.from_bytes(cipher.update(pseudonym(own))[:8], "big") for own in IDS]
    enrolled = summaries()
    tokens = next(own["tokens"] for own in enrolled["east"]["columns"] if own["name"] == "age")
    told = joined(b"age", number(1) + bytes.fromhex(tokens[0]).ljust(16 * len(tokens), b"\0"))
    content = joined(number(2**64 - 1), b"".join(sorted(bytes.fromhex(own["blinded"]) for own in points)), told)
    shown = sha256(joined(*(part for site, own in enrolled.items() for part in (site.encode(), summary_bytes(own)))))
    where = (shown, number(2), number(1), b"east", b"north")
    return {
        "what": "Blinded objects: HMAC-SHA256(HKDF(job key; 'ce overlap 1'), pseudonym, number(attempt)) is the x "
        "coordinate of the first attempt that is on P-256; 'blinded' is the x coordinate of that point times the "
        "secret number. Tags: the first 8 bytes of AES-256-ECB under HKDF(pair key; 'ce overlap sample 1'). The "
        "content of a letter of the first stage, to a site that shares the column age, of whose categories one "
        "counts; and the associated data of its encryption, for revision 2.",
        "secret_number": f"{secret.private_numbers().private_value:064x}",
        "points": points,
        "pair_key": pair_key.hex(),
        "tags": [f"{tag:016x}" for tag in tags],
        "content": content.hex(),
        "associated_data": joined(b"ce letter 1", *CONTEXT, *where).hex(),
    }


# Tasks.


def a_task() -> Section:
    return {
        "round": 9,
        "step": "sums",
        "stage": 1,
        "iteration": 4,
        "starts": [0, 2],
        "retry": [2],
        "stop": [1],
        "checkpoint": 0,
        "resume": 0,
        "asked": {"global/bound": [[2], 30], "block/4/sums": [[2, 2, 2], 58], "block/14/sums": [[2, 2, 2], 58]},
        "arrays": {
            "global/alpha": array("f", (2, 2), (0.5, 1.25, 1e-3, 7.0)),
            "block/1/message": array("f", (2, 2, 3), tuple(i / 8 for i in range(12))),
            "block/14/message": array("f", (2, 2, 2), (0.25,) * 8),
            "block/4/message": array("f", (2, 2, 2), tuple(1 - i / 16 for i in range(8))),
            "columns/0/beta": array("f", (2, 2, 5), tuple(0.1 * i for i in range(20))),
            "block/1/labels": array("i", (3,), (4, -1, 2**40)),
            "box/east": array("u", (4,), (0, 1, 254, 255)),
        },
    }


def task_digest(task: Section) -> bytes:
    def listed(values: Sequence[int]) -> str:
        return ",".join(map(str, values))

    where = f"{EPOCH} {task['round']} {task['step']} {task['stage']} {task['iteration']}"
    for key in ("checkpoint", "resume"):
        where += f" {key} {task[key]}" if task[key] else ""
    lines = ["ce task 2", JOB_DIGEST.hex(), where, *(listed(task[key]) for key in ("starts", "retry", "stop"))]
    for name, (shape, bits) in sorted(task["asked"].items()):
        lines.append(f"asked {name} {listed(shape)} {bits}")
    for name, own in sorted(task["arrays"].items()):
        lines.append(f"{name} {own['kind']} {listed(own['shape'])} {own['blake3']}")
    return sha256("\n".join(lines).encode())


def tasks() -> Section:
    lists: Section = {"starts": [], "retry": [], "stop": [], "checkpoint": 0, "resume": 0}
    empty = {"round": 2, "step": "counts", "stage": 0, "iteration": 0, **lists, "asked": {}, "arrays": {}}
    opening = {**empty, "round": 1, "step": "open", "asked": {"global/objects": [[1], 0]}}
    cases = [
        {"task": task, "digest": task_digest(task).hex()}
        for task in (empty, opening, a_task(), {**a_task(), "checkpoint": 2}, {**a_task(), "resume": 2, "arrays": {}})
    ]
    return {
        "what": "A task's digest: SHA-256 of lines of text, separated by line feeds: 'ce task 2'; the job digest; "
        "epoch, round, step, stage, iteration, and where they are not 0 'checkpoint' or 'resume' and the number; "
        "starts; "
        "retry; stop; then for every array that is asked for, by name: 'asked', name, shape, fraction bits; then for "
        "every array of the task, by name: name, kind (i, f or u), shape, SHA-256 of its elements. `asked` has shape "
        "and fraction bits by name.",
        "job_digest": JOB_DIGEST.hex(),
        "epoch": EPOCH,
        "cases": cases,
    }


def view_digest(task: Section, scopes: Sequence[str]) -> bytes:
    header = joined(
        task["step"].encode(),
        number(task["stage"]),
        number(task["iteration"]),
        joined(*map(number, task["starts"])),
        joined(*map(number, task["retry"])),
        *([number(task["resume"])] if task["resume"] else []),
    )
    parts = []
    for name, own in sorted(task["arrays"].items()):
        if name.startswith(("global/", *(f"{scope}/" for scope in scopes))):
            parts += [name.encode(), bytes.fromhex(own["blake3"])]
    return sha256(joined(b"ce view 1", header, *parts))


def view_digests() -> Section:
    task = a_task()
    lists: tuple[tuple[str, ...], ...] = (
        (),
        ("block/1",),
        ("block/14",),
        ("columns/0",),
        ("block/1", "columns/0"),
        ("block/1", "block/14", "block/4"),
        ("block/7",),
    )
    return {
        "what": "What a site was sent about some scopes (blocks or column groups) before it answered: SHA-256 of "
        "joined('ce view 1', header, name and SHA-256 of each array of the task that is global or of one of the "
        "scopes, by name), header = joined(step, number(stage), number(iteration), joined(numbers of starts), joined("
        "numbers of retry), and number(resume) where that is not 0).",
        "task": task,
        "cases": [{"scopes": list(scopes), "view_digest": view_digest(task, scopes).hex()} for scopes in lists],
        "resumed": {"resume": 2, "view_digest": view_digest({**task, "resume": 2, "arrays": {}}, ()).hex()},
    }


# Masks.


def identity(kind: str, members: Sequence[str], *over: bytes) -> bytes:
    return sha256(joined(kind.encode(), joined(*(site.encode() for site in members)), *over))


def mask_context(attempt_: bytes, round_: int, digest: bytes, arrays: Sequence[Sequence[Any]]) -> bytes:
    """`arrays`: identity, name, shape and bits of each."""
    parts = [b"ce mask context 2", attempt_, number(round_), digest]
    for identity_, name, shape, bits in arrays:
        parts += [identity_, name.encode(), joined(*map(number, shape)), number(bits)]
    return sha256(joined(*parts))


#: Members and objects. As text block/14 comes before block/4.
BLOCKS: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {
    1: (SITES, IDS[:3]),
    4: (("east", "south"), IDS[3:]),
    14: (("east", "south"), ("customer 18", "customer 19")),
}
GROUP = ("age", "visits")  # columns 0 and 3, both held by all three
ROUND = 9
ATTEMPT_DIGEST = sha256(joined(*CONTEXT, digest_of_enrolments(summaries())))

#: name, shape, bits, contributors, words of each; those of one round.
ARRAYS: tuple[tuple[str, tuple[int, ...], int, tuple[str, ...], tuple[tuple[int, ...], ...]], ...] = (
    ("global/bound", (2,), 30, SITES, ((2**62, -(2**62)), (1, -1), (2**62 - 5, -(2**62) + 9))),
    (
        "block/1/sums",
        (1, 2, 3),
        58,
        SITES,
        (
            tuple((i + 1) << 50 for i in range(6)),
            tuple(-i * 12345678901 for i in range(6)),
            (2**63 - 1 - 2**50, 0, -(2**63), 0, 1, 7),
        ),
    ),
    (
        "columns/0/sums",
        (1, 2, 5),
        55,
        SITES,
        (tuple(range(10)), tuple(3**i for i in range(10)), tuple(1 << 6 * i for i in range(10))),
    ),
    ("block/4/claims/2", (2,), 0, ("east", "south"), ((1, 0), (0, 1))),
)


def identity_of(name: str, members: Sequence[str]) -> bytes:
    kind = name.split("/")[0]
    if kind == "global":
        return identity(kind, members)
    if kind == "columns":
        over = []
        for column in GROUP:
            tokens = sorted(token(column, category) for category in CATEGORIES[column])
            over += [column.encode(), joined(*(own.encode() for own in tokens))]
        return identity(kind, members, *over)
    objects = objects_digest(int(name.split("/")[1]))
    return identity(kind, members, objects, *([b"rank"] if name.count("/") == 3 else []))


def objects_digest(block: int) -> bytes:
    return sha256(b"".join(map(pseudonym, BLOCKS[block][1])))


def common_blocks(one: str, other: str) -> list[str]:
    return sorted(f"block/{block}" for block, (members, _) in BLOCKS.items() if {one, other} <= set(members))


def blocks_digest(scopes: Sequence[str]) -> bytes:
    parts = []
    for scope in scopes:
        block = int(scope.split("/")[1])
        members = joined(*(site.encode() for site in BLOCKS[block][0]))
        parts.append(joined(scope.encode(), members, objects_digest(block)))
    return sha256(joined(*parts))


def mask_key(one: str, other: str, scopes: Sequence[str]) -> bytes:
    return hkdf(pair_key(one, other), b"ce blocks 1", blocks_digest(scopes))


def mask_keys() -> Section:
    cases = [
        {
            "sites": [one, other],
            "pair_key": pair_key(one, other).hex(),
            "blocks": scopes,
            "blocks_digest": blocks_digest(scopes).hex(),
            "mask_key": mask_key(one, other, scopes).hex(),
        }
        for one, other in pairs_of(SITES)
        for scopes in (common_blocks(one, other), [])
    ]
    return {
        "what": "The key from which the streams of two sites are made: HKDF(pair key; 'ce blocks 1', SHA-256 of joined("
        "a part for each block that both are in)), in order of 'block/b' as text, a part being joined('block/b', "
        "joined(members), SHA-256 of the pseudonyms of the block in their common order). Without such blocks the "
        "SHA-256 is that of nothing. Blocks are those of mask_contexts.",
        "cases": cases,
    }


def own_scope(name: str) -> list[str]:
    return [] if name.startswith("global/") else ["/".join(name.split("/")[:2])]


def pair_scopes(one: str, other: str) -> list[str]:
    """All blocks and groups that both are in."""
    held = {"columns/0": SITES, "columns/2": ("east", "south")}
    return sorted([*common_blocks(one, other), *(scope for scope, own in held.items() if {one, other} <= set(own))])


def pairs_of(members: Sequence[str]) -> list[tuple[str, str]]:
    return [(one, other) for one in members for other in members if one < other]


def mac_of(name: str) -> str:
    kind, number_, *rest = name.split("/")
    return "global/mac" if kind == "global" else "/".join([kind, number_, "mac", *rest[1:]])


#: As in `ARRAYS`, without words: those of one round, in the order of streams: by contributors, then by name.
Asked = tuple[str, tuple[int, ...], int, tuple[str, ...]]


def asked_in(mode: str) -> list[Asked]:
    asked = [array_[:4] for array_ in ARRAYS]
    if mode == "blind":
        asked += {(mac_of(name), (3,), 0, members): 0 for name, _, _, members in asked}
    return sorted(asked, key=lambda one: (one[3], one[0]))


def described(asked: Sequence[Asked]) -> list[tuple[bytes, str, tuple[int, ...], int]]:
    return [(identity_of(name, members), name, shape, bits) for name, shape, bits, members in asked]


def digest_in(mode: str, scopes: Sequence[str]) -> bytes:
    return blind_view_digest(scopes) if mode == "blind" else view_digest(a_task(), scopes)


def of_pair(mode: str, one: str, other: str) -> list[Asked]:
    return [asked for asked in asked_in(mode) if {one, other} <= set(asked[3])]


def pair_context(mode: str, one: str, other: str) -> bytes:
    digest = digest_in(mode, pair_scopes(one, other))
    return mask_context(ATTEMPT_DIGEST, ROUND, digest, described(of_pair(mode, one, other)))


def of_set(members: Sequence[str]) -> list[Asked]:
    return [asked for asked in asked_in("blind") if asked[3] == tuple(members)]


def set_scopes(members: Sequence[str]) -> list[str]:
    return sorted({scope for name, *_ in of_set(members) for scope in own_scope(name)})


def set_context(members: Sequence[str]) -> bytes:
    digest = digest_in("blind", set_scopes(members))
    return mask_context(ATTEMPT_DIGEST, ROUND, digest, described(of_set(members)))


def mask_contexts() -> Section:
    rounds = []
    for mode in ("masked", "blind"):
        pairs = [
            {
                "sites": [one, other],
                "scopes": pair_scopes(one, other),
                "view_digest": digest_in(mode, pair_scopes(one, other)).hex(),
                "arrays": [name for name, *_ in of_pair(mode, one, other)],
                "context": pair_context(mode, one, other).hex(),
            }
            for one, other in pairs_of(SITES)
        ]
        sets = [
            {
                "sites": list(members),
                "scopes": set_scopes(members),
                "view_digest": digest_in(mode, set_scopes(members)).hex(),
                "arrays": [name for name, *_ in of_set(members)],
                "context": set_context(members).hex(),
            }
            for members in (SET_KEYS if mode == "blind" else ())
        ]
        arrays = [
            {
                "name": name,
                "contributors": list(members),
                "shape": list(shape),
                "bits": bits,
                "identity": identity_of(name, members).hex(),
            }
            for name, shape, bits, members in asked_in(mode)
        ]
        rounds.append({"mode": mode, "round": ROUND, "arrays": arrays, "pairs": pairs, "sets": sets})
    return {
        "what": "What the masks of a round are bound to: SHA-256 of joined('ce mask context 2', attempt, "
        "number(round), view digest, and for each array identity, name, joined(numbers of the shape), number(bits)). "
        "The arrays of a pair are those of the round that both contribute to, those of a set the ones with exactly "
        "these contributors; both in order of their contributors, then of their names. The attempt is the SHA-256 of "
        "joined(context, enrolment digest). The identity is the SHA-256 of joined(kind, joined(contributors), ...): of "
        "a global array nothing more; of a block the SHA-256 of its members' pseudonyms in their common order, of "
        "claims on a column (and their mac) its name besides; of a column group each column's name and joined(its "
        "tokens). The view digest of a pair is about all blocks and groups that both are in, that of a set about the "
        "blocks and groups of its arrays, in order of their names as text. In masked the task is that of view_digests; "
        "in blind the view digests are those of view_digests_in_blind, and macs are among the arrays.",
        "enrolment_digest": digest_of_enrolments(summaries()).hex(),
        "attempt": ATTEMPT_DIGEST.hex(),
        "blocks": {
            str(block): {"members": list(members), "pseudonyms": [pseudonym(own).hex() for own in ids]}
            for block, (members, ids) in BLOCKS.items()
        },
        "columns": [
            {
                "index": index,
                "name": name,
                "holders": list(SITES if name in GROUP else ("east", "south")),
                "tokens": sorted(token(name, category) for category in CATEGORIES[name]),
            }
            for index, name in ((0, "age"), (2, "rank"), (3, "visits"))
        ],
        "rounds": rounds,
    }


SET_KEYS = {SITES: sha256(b"set key of all"), ("east", "south"): sha256(b"set key of two")}


def streams() -> Section:
    cases = []
    pair = mask_key("east", "south", common_blocks("east", "south"))
    for kind, purpose, key, context in (
        ("pair", b"ce mask 2", pair, pair_context("masked", "east", "south")),
        ("set", b"ce set mask 2", SET_KEYS[SITES], set_context(SITES)),
    ):
        stream = hkdf(key, purpose, context)
        cases.append(
            {
                "stream": kind,
                "purpose": purpose.decode(),
                "key": key.hex(),
                "context": context.hex(),
                "stream_key": stream.hex(),
                "first_64_bytes": aes_ctr(stream, 64).hex(),
                "first_words": texts(stream_words(stream, 8)),
            }
        )
    return {
        "what": "Streams of mask words: AES-256-CTR over zeros, counter from 0, little-endian words. The key is HKDF("
        "mask key of a pair; 'ce mask 2', mask context) between two sites, HKDF(set key; 'ce set mask 2', mask "
        "context) among all contributors of some totals in blind.",
        "cases": cases,
    }


def seen_after(totals: Sequence[Sequence[int]]) -> bytes:
    """Of one scope: its unmasked totals, by round, then by name."""
    seen = b""
    for total in totals:
        seen = sha256(joined(seen, blake3(element_bytes("i", total)).digest()))
    return seen


STATE = sha256(b"what all have in common")
#: Totals of each scope before the round; of block 14 none.
TOTALS: dict[str, tuple[tuple[int, ...], ...]] = {
    "block/1": ((3, 0, 2), (5 << 50, -1, 2**62, -(2**63), 0, 1)),
    "block/4": ((1, 2),),
    "columns/0": ((2**40, 2**41, 0, 0, 7),),
}


def blind_view_digest(scopes: Sequence[str]) -> bytes:
    parts = [part for scope in scopes for part in (scope.encode(), seen_after(TOTALS.get(scope, ())))]
    return sha256(joined(b"ce view 1", STATE, *parts))


def view_digests_in_blind() -> Section:
    chains = []
    for scope, totals in TOTALS.items():
        seen = [seen_after(totals[:count]).hex() for count in range(len(totals) + 1)]
        chains.append({"scope": scope, "totals": [texts(total) for total in totals], "seen": seen})
    lists: tuple[list[str], ...] = (
        [],
        ["block/1"],
        ["block/14"],
        ["block/1", "columns/0"],
        ["block/1", "block/14", "block/4"],
    )
    return {
        "what": "What a site of a blind job was sent about some scopes: SHA-256 of joined('ce view 1', state, and for "
        "each of the scopes its name and what was seen of it). Seen is nothing at first, then SHA-256 of joined(seen, "
        "elements of a total) for each total of the scope, unmasked, by round, then by name; claims are not among "
        "them, since not all members know their totals.",
        "state": STATE.hex(),
        "chains": chains,
        "cases": [{"scopes": scopes, "view_digest": blind_view_digest(scopes).hex()} for scopes in lists],
    }


P = 2**89 - 1
#: Words of a site by array, in the order of the stream.
Sent = dict[str, dict[str, list[int]]]


def add_stream(sent: Sent, site: str, asked: Sequence[Asked], key: bytes, sign: int) -> None:
    """One stream through arrays of a site."""
    own = iter(stream_words(key, sum(math.prod(shape) for _, shape, *_ in asked)))
    for name, *_ in asked:
        sent[name][site] = [signed(word + sign * next(own)) for word in sent[name][site]]


def hide(mode: str, sent: Sent) -> None:
    """What sites send, in the place of what they have."""
    for one, other in pairs_of(SITES):
        key = hkdf(mask_key(one, other, common_blocks(one, other)), b"ce mask 2", pair_context(mode, one, other))
        for site, sign in ((one, 1), (other, -1)):
            add_stream(sent, site, of_pair(mode, one, other), key, sign)
    for members in SET_KEYS if mode == "blind" else ():
        key = hkdf(SET_KEYS[members], b"ce set mask 2", set_context(members))
        add_stream(sent, members[0], of_set(members), key, 1)


def tag_words(value: int) -> list[int]:
    return [value >> 30 * at & 2**30 - 1 for at in range(3)]


def macs(members: tuple[str, ...], plain: Sent) -> dict[str, Section]:
    """The tags of all arrays with these contributors, by the name that they are sent under."""
    asked = [one for one in of_set(members) if "/mac" not in one[0]]
    own = stream_words(hkdf(SET_KEYS[members], b"ce mac 2", set_context(members)), sum(math.prod(a[1]) for a in asked))
    coefficients = iter(word % 2**64 for word in own)
    found: dict[str, Section] = {}
    for name, shape, *_ in asked:
        c = [next(coefficients) for _ in range(math.prod(shape))]
        mac = found.setdefault(mac_of(name), {"coefficients": {}, "tags": dict.fromkeys(members, 0)})
        mac["coefficients"][name] = c
        for site in members:
            mac["tags"][site] = (mac["tags"][site] + sum(map(int.__mul__, c, plain[name][site]))) % P
    for name, mac in found.items():
        mac["shares_of_zero"] = dict.fromkeys(members, 0)
        for one, other in pairs_of(members):
            key, context = mask_key(one, other, common_blocks(one, other)), pair_context("blind", one, other)
            drawn = int.from_bytes(hkdf(key, b"ce mac share 2", context, name.encode()), "big")
            for site, sign in ((one, 1), (other, -1)):
                mac["shares_of_zero"][site] = (mac["shares_of_zero"][site] + sign * drawn) % P
        assert sum(mac["shares_of_zero"].values()) % P == 0
    return found


def masked_totals() -> Section:
    cases = []
    for mode in ("masked", "blind"):
        sent: Sent = {
            name: {site: list(own) for site, own in zip(members, plain, strict=True)}
            for name, _, _, members, plain in ARRAYS
        }
        plain = {name: {site: texts(own) for site, own in parts.items()} for name, parts in sent.items()}
        totals = {name: [signed(sum(own)) for own in zip(*parts.values(), strict=True)] for name, parts in sent.items()}
        tags: dict[str, Section] = {}
        for members in SET_KEYS if mode == "blind" else ():
            tags |= macs(members, sent)
        for name, mac in tags.items():
            sent[name] = {s: tag_words((tag + mac["shares_of_zero"][s]) % P) for s, tag in mac["tags"].items()}
        hide(mode, sent)
        arrays = []
        for name, shape, bits, _ in asked_in(mode):
            added = [signed(sum(own)) for own in zip(*sent[name].values(), strict=True)]
            assert mode == "blind" or added == totals[name]
            array_ = {"name": name, "shape": list(shape), "bits": bits}
            array_["sent"] = {site: texts(own) for site, own in sent[name].items()}
            array_["sum_of_sent"] = texts(added)
            if name in tags:
                array_["first_coefficients"] = {
                    of: [str(c) for c in coefficients[:2]] for of, coefficients in tags[name]["coefficients"].items()
                }
                for key in ("tags", "shares_of_zero"):
                    array_[key] = {site: str(value) for site, value in tags[name][key].items()}
                array_["tag_of_total"] = str(sum(tags[name]["tags"].values()) % P)
            else:
                array_ |= {"plain": plain[name], "total": texts(totals[name])}
            arrays.append(array_)
        cases.append({"mode": mode, "round": ROUND, "arrays": arrays})
    return {
        "what": "What each contributor sends in one round of several arrays. Masked: its words plus those of the "
        "stream that it shares with every site after it by name, minus those with every site before it, modulo 2^64, "
        "a stream running through all arrays of the pair in order; the sums of what is sent are the totals. Blind: the "
        "first contributor by name of each set adds the stream of the set besides, through all arrays of the set, and "
        "the totals are the sums of what is sent minus the stream of the set. Attempt, blocks and columns are those of "
        "mask_contexts, keys of pairs those of mask_keys. In blind the arrays of a scope travel with a mac. The "
        "coefficients c are the words, without sign, of the stream with the key HKDF(set key; 'ce mac 2', mask context "
        "of the set), which runs through all arrays of the set but macs; the tag of words w is the sum of c w modulo P "
        "= 2^89 - 1, and the tags of arrays with the same mac are added. With each contributor after it by name a site "
        "adds HKDF(mask key of the pair; 'ce mac share 2', mask context of the pair, name of the mac), a big-endian "
        "number, with each before it it subtracts it, modulo P; the result is sent as three words of 30 bits, least "
        "first, masked as other words are, with no fraction bits.",
        "task": a_task(),
        "set_keys": [{"sites": list(sites), "key": key.hex()} for sites, key in SET_KEYS.items()],
        "cases": cases,
    }


# Blind.


def states() -> Section:
    state = sha256(joined(b"ce state 1", *CONTEXT))
    steps = []
    for parts in ((element_bytes("i", (5, -6)), element_bytes("i", (7,))), (bytes(range(24)),)):
        state_after = sha256(joined(b"ce state 1", state, *parts))
        steps.append({"state": state.hex(), "parts": [part.hex() for part in parts], "after": state_after.hex()})
        state = state_after
    return {
        "what": "The state that all sites of a blind job share: at first the SHA-256 of joined('ce state 1', context); "
        "after the totals of an exchange SHA-256 of joined('ce state 1', state, elements of each global total, by "
        "name), after a decision the same with the decision's bytes. The coordinator is sent the first 16 bytes of "
        "HMAC-SHA256(the set key of all sites, state).",
        "first": sha256(joined(b"ce state 1", *CONTEXT)).hex(),
        "steps": steps,
        "set_key": SET_KEYS[SITES].hex(),
        "sent": hmac256(SET_KEYS[SITES], state)[:16].hex(),
    }


def decisions() -> Section:
    running, n_starts = (0, 2, 3, 4, 5), 6
    bound, status = (-12.5, -1e6, -3.25, -7.0, -50.0), (1, 2, 3, 4, 5)
    arrays = {
        "alpha": ((2,), (0.5, 1.5, 0.25, 1e-3, 2.0, 4.0, 8.0, 16.0, 3.0, 3.0)),
        "bound": ((), bound),
        "learning": ((), (3.0, 4.0, 5.0, 6.0, 0.0)),
    }
    content = bytes(status[running.index(start)] if start in running else 0 for start in range(n_starts))
    for name, (shape, values) in sorted(arrays.items()):
        sides = (n_starts, *shape)
        content += struct.pack("<I", len(name)) + name.encode() + struct.pack(f"<I{len(sides)}Q", len(sides), *sides)
        width = math.prod(shape)
        for start in range(n_starts):
            at = running.index(start) * width if start in running else None
            row = [0.0] * width if at is None else values[at : at + width]
            content += struct.pack(f"<{width}d", *row)
    return {
        "what": "A decision: one byte for each start (0 does not run, 1 goes on, 2 goes back, 3 stops because it has "
        "converged, 4 stops at the limit or because the model says so, 5 stops because it is dropped), then the bound "
        "and the globals, by name: length of the name (uint32), name, number of sides (uint32), sides (uint64), "
        "elements (float64), all little-endian. The first side counts all starts, those that do not run are zeros.",
        "starts": n_starts,
        "running": list(running),
        "bound": texts(bound),
        "retry": [own == 2 for own in status],
        "converged": [own == 3 for own in status],
        "stopped": [own == 4 for own in status],
        "dropped": [own == 5 for own in status],
        "globals": {
            name: {"shape": [len(running), *shape], "elements": texts(values)}
            for name, (shape, values) in arrays.items()
            if name != "bound"
        },
        "encoded": content.hex(),
    }


# At a site.


def ledger() -> Section:
    lines: list[dict[str, Any]] = [
        {"kind": "ledger", "version": 1, "site": "north", "n": 1, "time_s": 1700000000.125},
        {
            "kind": "begin",
            "job": "dém\u00f3",
            "epoch": EPOCH,
            "job_digest": JOB_DIGEST.hex(),
            "roster": list(SITES),
            "mode": "masked",
            "randomise": 0.25,
            "epsilon": {"age": 2.302585092994046},
            "epsilon_row": 2.302585092994046,
            "definition": {"clusters": 2, "model": "bce", "name": "dém\u00f3", "smoothing": 0.01, "tolerance": 1e-06},
            "n": 2,
            "time_s": 1700000001.5,
        },
    ]
    head, written = bytes(32), []
    for line in lines:
        body = json.dumps(line, sort_keys=True, separators=(",", ":")).encode("ascii")
        before, head = head, sha256(head + body)
        raw = body[:-1] + b',"hash":"' + head.hex().encode() + b'"}\n'
        written.append({"head_before": before.hex(), "line": raw.decode("ascii"), "head_after": head.hex()})
    end = {"kind": "end", "job": JOB, "epoch": EPOCH, "state": "done", "n": 3, "time_s": 1700000002.0}
    body = json.dumps(end, sort_keys=True, separators=(",", ":")).encode("ascii")
    purpose = b"ce ledger 1"
    to_sign = struct.pack(">I", len(purpose)) + purpose + sha256(head + body)
    return {
        "what": "Lines of a ledger (docs/ledger.md): JSON in ASCII, keys sorted, no spaces, the hash last. The head "
        "after a line is the SHA-256 of the head before it and the line without its hash. An end is signed over the "
        "purpose 'ce ledger 1' after its length and the head that the line would have without its signature.",
        "lines": written,
        "end": {"job": JOB, "epoch": EPOCH, "state": "done", "time_s": "1700000002.0", "signed": to_sign.hex()},
    }


def randomised() -> Section:
    secret, p = SECRETS["south"], 0.5
    purpose = b"ce randomised response 1"
    object_key = hmac256(secret, purpose + b" objects")
    ids = tuple(f"object {i}" for i in range(16))
    columns, ranks = [], {}
    for column, codes in (
        ("age", (0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, 0, 1, 2, 0, 0)),
        ("rank", (1, 1, 0, 0, -1, 1, 1, 1, 0, 0, 1, 1, -1, 1, 0, 1)),
    ):
        categories = CATEGORIES[column]
        named = joined(column.encode(), *(spelled(category).encode() for category in categories))
        column_key = hmac256(secret, purpose + b" column" + struct.pack(">d", p) + named)
        encryptor = Cipher(algorithms.AES256(column_key), modes.ECB()).encryptor()
        after = []
        for own, code in zip(ids, codes, strict=True):
            if code >= 0:
                name = hashlib.blake2b(own.encode(), key=object_key, digest_size=16).digest()
                low, high = struct.unpack("<QQ", name)
                first, second = struct.unpack("<QQ", encryptor.update(struct.pack("<QQ", low, high ^ code)))
                code = second % len(categories) if first < int(p * 2**64) else code
            after.append(code)
        sample_key = hmac256(secret, purpose + b" sample" + joined(column.encode()))
        sampler = Cipher(algorithms.AES256(sample_key), modes.ECB()).encryptor()
        names = [hashlib.blake2b(own.encode(), key=object_key, digest_size=16).digest() for own in ids]
        ranks[column] = [struct.unpack("<QQ", sampler.update(name))[0] for name in names]
        columns.append(
            {
                "column": column,
                "integers": isinstance(categories[0], int),
                "categories": [str(category) for category in categories],
                "key": column_key.hex(),
                "codes": list(codes),
                "codes_after": after,
            }
        )
    for own, other in (columns, columns[::-1]):
        pairs = zip(own["codes_after"], ranks[own["column"]], ranks[other["column"]], strict=True)
        own["codes_after_one_column_each"] = [code if here < there else -1 for code, here, there in pairs]
    return {
        "what": "Randomised response with probability p. An object's name: BLAKE2b of its id, 16 bytes, keyed with "
        "HMAC-SHA256(the site's secret, 'ce randomised response 1 objects'), read as two little-endian words. A "
        "column's key: HMAC-SHA256(secret, 'ce randomised response 1 column', p as a big-endian double, joined(name, "
        "'int VALUE' or 'str VALUE' of each category)). The draw of a label with code c: AES-256 under the column's "
        "key of (first word, second word XOR c). The label is replaced when the first word drawn is below p * 2^64, by "
        "the category of the second word drawn modulo the number of categories. Codes count into the categories; -1 is "
        "no label. With randomise_columns = 1 an object's label is sent in that column only whose draw is smallest: "
        "the first word of AES-256 of the object's name under HMAC-SHA256(secret, 'ce randomised response 1 sample', "
        "joined(name)).",
        "secret": secret.hex(),
        "p": repr(p),
        "ids": list(ids),
        "columns": columns,
    }


SECTIONS = {
    "words": words,
    "scales": scales,
    "encodings": encodings,
    "derivation": derivation,
    "attempt": attempt,
    "pair_keys": pair_keys,
    "job_key": job_keys,
    "encryption": encryption,
    "names": names,
    "starts": starts,
    "object_weights": object_weights,
    "signatures": signatures,
    "letters": letters,
    "tasks": tasks,
    "view_digests": view_digests,
    "mask_keys": mask_keys,
    "mask_contexts": mask_contexts,
    "streams": streams,
    "view_digests_in_blind": view_digests_in_blind,
    "masked_totals": masked_totals,
    "states": states,
    "decisions": decisions,
    "ledger": ledger,
    "randomised": randomised,
}


def known_answers() -> str:
    """The whole file."""
    made = {"about": ABOUT} | {name: make() for name, make in SECTIONS.items()}
    return json.dumps(made, indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(known_answers(), encoding="ascii")
