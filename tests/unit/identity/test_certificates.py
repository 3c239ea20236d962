"""Certificates and signatures: what is accepted, what is refused and why."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.utils import CryptographyDeprecationWarning
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.certificates import DAY, NOW, OPERATOR, PEM, SITE, laws, request

from ce.errors import ConfigError, MessageError
from ce.identity import (
    Authority,
    Identity,
    check_fingerprint_text,
    check_issuer,
    check_matches_key,
    check_validity,
    fingerprint,
    identity_of,
    make_csr,
    make_key,
    parse_certificate,
    read_certificate,
    read_csr,
    sign,
    verify,
)
from ce.identity.keys import PrivateKey

SIGNER = make_key()


def uris(*values: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(value) for value in values])


def self_signed(key: PrivateKey, *extensions: x509.ExtensionType) -> x509.Certificate:
    name = x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + DAY)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256())


# --- certificates


def test_a_renewed_certificate_keeps_its_fingerprint(own_ca: Authority) -> None:
    key = make_key()
    first = own_ca.issue(SITE, key, NOW)
    renewed = own_ca.issue(SITE, key, NOW + 300 * DAY)
    assert first.serial_number != renewed.serial_number
    assert fingerprint(first) == fingerprint(renewed) == fingerprint(key.public_key())
    assert fingerprint(first) != fingerprint(make_key().public_key())
    assert own_ca.issued() == {SITE: renewed}


@laws
@given(digest=st.binary(min_size=32, max_size=32), upper=st.booleans(), prefix=st.booleans(), gap=st.sampled_from(": "))
def test_a_fingerprint_is_recognised_as_people_write_it(digest: bytes, upper: bool, prefix: bool, gap: str) -> None:
    plain = f"SHA256:{digest.hex()}"
    written = ("SHA256:" if prefix else "") + digest.hex(gap)
    assert check_fingerprint_text(f" {written.upper() if upper else written.lower()}\n") == plain
    assert check_fingerprint_text(plain) == plain


@laws
@given(text=st.text())
@example("SHA256:" + "0" * 63)
@example("SHA256:" + "0" * 65)
@example("SHA1:" + "0" * 40)
@example("SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")
@example("٣" * 64)
def test_other_text_is_no_fingerprint_and_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_fingerprint_text(text)
    assert len(text) < 20 or text not in str(caught.value)


def test_a_certificate_reads_the_same_from_pem_der_and_file(certificate: x509.Certificate, tmp_path: Path) -> None:
    as_pem = certificate.public_bytes(PEM)
    (tmp_path / "site.pem").write_bytes(as_pem)
    assert parse_certificate(as_pem) == certificate == read_certificate(tmp_path / "site.pem")
    assert parse_certificate(certificate.public_bytes(serialization.Encoding.DER)) == certificate
    with pytest.raises(ConfigError, match="2 certificates: expected one"):
        parse_certificate(as_pem * 2)


@laws
@given(garbage=st.binary(max_size=200))
@example(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
def test_garbage_is_no_certificate_and_no_request(garbage: bytes) -> None:
    with pytest.raises(ConfigError):
        parse_certificate(garbage)
    with pytest.raises(ConfigError):
        read_csr(garbage)


# Old habits of the x509 library about odd serial numbers: a warning there is no error of ours.
@pytest.mark.filterwarnings(f"ignore::{CryptographyDeprecationWarning.__module__}.CryptographyDeprecationWarning")
@settings(laws, max_examples=150)
@given(at=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_damaged_certificate_is_refused_or_at_least_not_trusted(
    ca: Authority, certificate: x509.Certificate, at: int, value: int
) -> None:
    whole = certificate.public_bytes(serialization.Encoding.DER)
    at %= len(whole)
    damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
    if damaged == whole:
        return
    with pytest.raises(ConfigError):  # noqa: PT012 - each of these may be the one that notices, the last must
        found = parse_certificate(damaged)
        identity_of(found)
        fingerprint(found)
        check_validity(found, NOW, "the certificate")
        check_issuer(found, ca.certificate)


@settings(laws, max_examples=150)
@given(at=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_damaged_request_is_refused(at: int, value: int) -> None:
    whole = x509.load_pem_x509_csr(make_csr(SIGNER, SITE)).public_bytes(serialization.Encoding.DER)
    at %= len(whole)
    damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
    if damaged == whole:
        return
    label = b"CERTIFICATE REQUEST-----\n"
    with pytest.raises(ConfigError):
        read_csr(b"-----BEGIN " + label + base64.encodebytes(damaged) + b"-----END " + label)


@pytest.mark.parametrize(
    "extensions",
    [
        [],
        [x509.SubjectAlternativeName([x509.DNSName("hospital-a")])],
        [uris(SITE.uri, OPERATOR.uri)],
        [uris(SITE.uri, SITE.uri)],
        [uris(SITE.uri, "CE://operator/anna")],
        [uris("ce://site/UPPER")],
        [uris("ce://site/a/../b")],
        [uris("https://site/hospital-a")],
    ],
)
def test_anything_but_one_identity_is_refused(extensions: list[x509.ExtensionType]) -> None:
    key = make_key()
    with pytest.raises(ConfigError):
        identity_of(self_signed(key, *extensions))
    with pytest.raises(ConfigError):
        read_csr(request(key, *extensions))


def test_validity_is_that_of_the_clock_it_is_given(certificate: x509.Certificate) -> None:
    check_validity(certificate, NOW, "it")
    check_validity(certificate, NOW - timedelta(minutes=4), "it")
    check_validity(certificate, NOW.astimezone(None), "it")
    with pytest.raises(ConfigError, match=r"this site's certificate expired on 2031-06-18 12:00 UTC"):
        check_validity(certificate, NOW + 398 * DAY, "this site's certificate")
    with pytest.raises(ConfigError, match="is the clock of this machine right"):
        check_validity(certificate, NOW - timedelta(minutes=6), "this site's certificate")


def test_an_issuer_is_a_ca_that_signed(ca: Authority, own_ca: Authority, certificate: x509.Certificate) -> None:
    check_issuer(certificate, ca.certificate)
    with pytest.raises(ConfigError, match="not signed by this CA"):
        check_issuer(certificate, own_ca.certificate)
    with pytest.raises(ConfigError, match="not that of a CA"):
        check_issuer(certificate, certificate)
    key = make_key()
    plain = self_signed(key)
    with pytest.raises(ConfigError, match="not that of a CA"):
        check_issuer(plain, plain)


def test_a_certificate_goes_with_its_own_key_only(ca: Authority) -> None:
    key = make_key()
    mine = ca.issue(Identity("site", "matching"), key, NOW)
    check_matches_key(mine, key)
    with pytest.raises(ConfigError, match="for another private key"):
        check_matches_key(mine, make_key())


# --- signatures


SIGNED_BY = self_signed(SIGNER, uris(SITE.uri))


@laws
@given(message=st.binary(max_size=100), purpose=st.text(max_size=20))
def test_a_signature_holds_for_its_message_and_purpose_only(message: bytes, purpose: str) -> None:
    signature = sign(SIGNER, message, purpose=purpose)
    verify(SIGNED_BY, signature, message, purpose=purpose, field="offer")
    # The last two are the same bytes in a row, cut elsewhere.
    for other_message, other_purpose in (
        (message + b"x", purpose),
        (message, purpose + "x"),
        (b"x" + message, purpose.removesuffix("x") + "y"),
        (purpose.encode() + message, ""),
    ):
        if (other_message, other_purpose) != (message, purpose):
            with pytest.raises(MessageError, match=r"^offer: "):
                verify(SIGNED_BY, signature, other_message, purpose=other_purpose, field="offer")


@laws
@given(signature=st.binary(max_size=80))
def test_garbage_is_no_signature(signature: bytes) -> None:
    with pytest.raises(MessageError, match=r"^offer: "):
        verify(SIGNED_BY, signature, b"message", purpose="test", field="offer")


def test_a_signature_of_another_key_is_refused() -> None:
    signature = sign(make_key(), b"message", purpose="test")
    with pytest.raises(MessageError):
        verify(SIGNED_BY, signature, b"message", purpose="test", field="offer")
    other_kind = self_signed(ec.generate_private_key(ec.SECP384R1()), uris(SITE.uri))
    with pytest.raises(MessageError):
        verify(other_kind, signature, b"message", purpose="test", field="offer")
