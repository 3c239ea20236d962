"""The authority, the deny list and the pins of peers."""

from __future__ import annotations

import contextlib
import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from support.certificates import DAY, NOW, OPERATOR, PEM, SITE, laws, mode_of, names, only_files, request

from ce.errors import ConfigError, Refused
from ce.identity import (
    COORDINATOR_SERVER_NAME,
    Authority,
    DenyList,
    Identity,
    Peers,
    check_issuer,
    check_matches_key,
    fingerprint,
    identity_of,
    make_csr,
    make_key,
    pem,
    read_certificate,
    write_key,
)

COORDINATOR = Identity("coordinator", "main")


# --- the authority


def test_an_authority_is_private_opens_again_and_is_never_overwritten(tmp_path: Path) -> None:
    made = Authority.create(tmp_path / "deep" / "ca", NOW, passphrase=b"correct horse")
    directory = made.directory
    assert mode_of(directory) == 0o700
    assert mode_of(directory / "ca.key") == 0o600
    assert only_files(directory) == {"ca.pem", "ca.key"}
    again = Authority.open(directory, b"correct horse")
    assert again.certificate == made.certificate
    with pytest.raises(ConfigError, match="is encrypted: set CE_CA_PASSPHRASE"):
        Authority.open(directory, hint="set CE_CA_PASSPHRASE")
    content = (directory / "ca.key").read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        Authority.create(directory, NOW)
    (directory / "ca.pem").unlink()
    with pytest.raises(ConfigError, match="never overwritten"):
        Authority.create(directory, NOW)
    assert only_files(directory) == {"ca.key"}
    assert (directory / "ca.key").read_bytes() == content


def test_an_authority_with_the_key_of_another_does_not_open(own_ca: Authority) -> None:
    path = own_ca.directory / "ca.key"
    path.unlink()
    write_key(path, make_key())
    with pytest.raises(ConfigError, match="for another private key"):
        Authority.open(own_ca.directory)


@pytest.mark.parametrize("identity", [SITE, OPERATOR, COORDINATOR], ids=str)
def test_a_certificate_says_what_its_role_needs_and_no_more(own_ca: Authority, identity: Identity) -> None:
    key = make_key()
    issued = own_ca.sign(make_csr(key, identity), identity, NOW)
    check_issuer(issued, own_ca.certificate)
    check_matches_key(issued, key)
    assert identity_of(issued) == identity
    assert issued.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert issued.not_valid_after_utc == NOW + 397 * DAY
    assert issued.subject.get_attributes_for_oid(NameOID.COMMON_NAME) == []
    is_coordinator = identity.role == "coordinator"
    values = {type(extension.value): extension.value for extension in issued.extensions}
    assert set(values) == {
        x509.BasicConstraints,
        x509.KeyUsage,
        x509.ExtendedKeyUsage,
        x509.SubjectAlternativeName,
        x509.SubjectKeyIdentifier,
        x509.AuthorityKeyIdentifier,
    }
    assert values[x509.BasicConstraints] == x509.BasicConstraints(ca=False, path_length=None)
    assert list(values[x509.ExtendedKeyUsage]) == [
        ExtendedKeyUsageOID.SERVER_AUTH if is_coordinator else ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    usage = values[x509.KeyUsage]
    assert usage.digital_signature
    assert not any((usage.key_cert_sign, usage.crl_sign, usage.key_agreement, usage.key_encipherment))
    hosts = [x509.DNSName(COORDINATOR_SERVER_NAME)] if is_coordinator else []
    assert list(values[x509.SubjectAlternativeName]) == [x509.UniformResourceIdentifier(identity.uri), *hosts]
    assert own_ca.issued() == {identity: issued}
    assert read_certificate(own_ca.directory / "issued" / f"{identity.role}-{identity.name}.pem") == issued


def test_a_request_gets_none_of_the_rights_it_asks_for(own_ca: Authority) -> None:
    greedy = request(
        make_key(),
        x509.SubjectAlternativeName(
            [
                x509.UniformResourceIdentifier(SITE.uri),
                x509.UniformResourceIdentifier("https://example.org"),
                x509.DNSName(COORDINATOR_SERVER_NAME),
                x509.RFC822Name("a@example.org"),
            ]
        ),
        x509.BasicConstraints(ca=True, path_length=3),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )
    issued = own_ca.sign(greedy, SITE, NOW)
    extensions = issued.extensions
    assert list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value) == [
        x509.UniformResourceIdentifier(SITE.uri)
    ]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert COORDINATOR_SERVER_NAME not in issued.subject.rfc4514_string()


def test_a_request_for_somebody_else_is_refused(own_ca: Authority) -> None:
    with pytest.raises(ConfigError, match="for site hospital-a, not for site hospital-b"):
        own_ca.sign(make_csr(make_key(), SITE), Identity("site", "hospital-b"), NOW)
    assert own_ca.issued() == {}


def test_a_site_does_not_become_an_operator_unasked(own_ca: Authority) -> None:
    for identity in (OPERATOR, COORDINATOR):
        with pytest.raises(ConfigError, match=r"name .* explicitly"):
            own_ca.sign(make_csr(make_key(), identity), None, NOW)
    assert identity_of(own_ca.sign(make_csr(make_key(), SITE), None, NOW)) == SITE
    assert set(own_ca.issued()) == {SITE}


def test_a_request_with_another_kind_of_key_is_refused(own_ca: Authority) -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP256K1())):
        with pytest.raises(ConfigError, match="another kind than EC P-256"):
            own_ca.sign(make_csr(key, SITE), SITE, NOW)


def test_a_name_is_given_to_another_key_only_when_the_operator_says_so(own_ca: Authority) -> None:
    first = own_ca.issue(SITE, make_key(), NOW)
    stranger = make_key()
    with pytest.raises(ConfigError, match="the request may come from another party") as caught:
        own_ca.sign(make_csr(stranger, SITE), SITE, NOW + DAY)
    assert "SHA256:" not in str(caught.value)
    assert own_ca.issued() == {SITE: first}
    replaced = own_ca.sign(make_csr(stranger, SITE), SITE, NOW + DAY, replace=True)
    assert own_ca.issued() == {SITE: replaced}
    assert own_ca.issue(Identity("site", "hospital-b"), make_key(), NOW)
    assert len(own_ca.issued()) == 2


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    young = Authority.create(tmp_path / "ca", NOW, days=30)
    issued = young.issue(SITE, make_key(), NOW)
    assert issued.not_valid_after_utc == young.certificate.not_valid_after_utc
    with pytest.raises(ConfigError, match="the CA's certificate expired"):
        young.issue(SITE, make_key(), NOW + 31 * DAY)
    for days in (0, -1, 10**9):
        with pytest.raises(ConfigError, match="cannot be valid for"):
            young.issue(Identity("site", "b"), make_key(), NOW, days)


def test_a_stray_file_among_the_issued_is_named(own_ca: Authority) -> None:
    own_ca.issue(SITE, make_key(), NOW)
    stray = own_ca.directory / "issued" / "site-copy.pem"
    stray.write_bytes((own_ca.directory / "issued" / "site-hospital-a.pem").read_bytes())
    with pytest.raises(ConfigError, match=str(stray)):
        own_ca.issued()
    stray.write_bytes(b"")
    with pytest.raises(ConfigError, match=str(stray)):
        own_ca.issued()


class Tls:
    """Real TLS 1.3 between two certificates, in memory; ssl.SSLError when one end refuses the other."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.directory = directory
        self.authority = authority

    def context(self, side: int, identity: Identity) -> ssl.SSLContext:
        key = make_key()
        # TLS libraries look at the real clock.
        certificate = self.authority.issue(identity, key, datetime.now(UTC), replace=True)
        chain = self.directory / f"{identity.role}.chain"
        chain.write_bytes(certificate.public_bytes(PEM) + pem(key))
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(self.authority.directory / "ca.pem")
        context.load_cert_chain(chain)
        return context

    def handshake(self, server: Identity, client: Identity) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        serving = self.context(ssl.PROTOCOL_TLS_SERVER, server).wrap_bio(up, down, server_side=True)
        dialling = self.context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_bio(
            down, up, server_hostname=COORDINATOR_SERVER_NAME
        )
        waiting = [dialling, serving]
        for _ in range(6):
            for end in list(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
        assert not waiting


def test_tls_accepts_the_certificates_in_their_roles_only(tmp_path: Path) -> None:
    tls = Tls(tmp_path, Authority.create(tmp_path / "ca", datetime.now(UTC)))
    tls.handshake(COORDINATOR, SITE)
    tls.handshake(COORDINATOR, OPERATOR)
    for impostor in (SITE, Identity("site", COORDINATOR_SERVER_NAME)):
        with pytest.raises(ssl.SSLError):
            tls.handshake(impostor, OPERATOR)
    with pytest.raises(ssl.SSLError):
        tls.handshake(COORDINATOR, Identity("coordinator", "second"))


# --- the deny list


def mark(digit: str) -> str:
    return f"SHA256:{digit * 64}"


def test_the_deny_list_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "denied"
    denied = DenyList(path)
    assert not denied.denies(mark("a"))
    path.write_text(f"# left in May\n\n{mark('a')}  # old key\n{'B' * 64}\r\n")
    assert denied.denies(mark("a"))
    assert denied.denies(mark("b"))
    assert not denied.denies(mark("c"))
    aside = tmp_path / "aside"
    aside.write_text(f"{mark('c')}\n")
    aside.replace(path)
    assert denied.denies(mark("c"))
    assert not denied.denies(mark("a"))
    path.unlink()
    assert not denied.denies(mark("c"))


def test_the_deny_list_reads_an_unchanged_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "denied"
    path.write_text(mark("a"))
    denied = DenyList(path)
    monkeypatch.setattr("ce.identity.denied.read_public", lambda path: pytest.fail("read again"))
    assert denied.denies(mark("a"))


def test_a_slip_in_the_deny_list_lets_nobody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "denied"
    path.write_text(f"{mark('a')}\n")
    denied = DenyList(path)
    path.write_bytes(b"# caf\xe9\nSHA256:aaaa-zzz\n" + mark("b").encode())
    with caplog.at_level(logging.WARNING, "ce.identity.denied"):
        assert denied.denies(mark("b"))
        assert denied.denies(mark("a"))
    assert len(caplog.messages) == 1
    assert f"{path}, line 2: not a fingerprint" in caplog.text
    assert "zzz" not in caplog.text
    path.write_text(f"{mark('b')}\n")
    assert not denied.denies(mark("a"))


def test_a_deny_list_that_cannot_be_read_keeps_denying(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "denied"
    path.write_text(mark("a"))
    denied = DenyList(path)
    path.unlink()
    path.mkdir()
    with caplog.at_level(logging.WARNING, "ce.identity.denied"):
        assert denied.denies(mark("a"))
        assert denied.denies(mark("a"))
    assert len(caplog.messages) == 1
    with pytest.raises(ConfigError, match="not a file"):
        DenyList(path)
    path.rmdir()
    path.write_text(f"# new\n{mark('b')}\n")
    assert denied.denies(mark("b"))
    assert not denied.denies(mark("a"))


@laws
@given(garbage=st.binary(max_size=100))
def test_garbage_in_the_deny_list_undoes_nothing(garbage: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "denied"
    path.unlink(missing_ok=True)
    path.write_bytes(garbage.replace(b"#", b"") + f"\n{mark('a')}\nx".encode())
    assert DenyList(path).denies(mark("a"))


# --- peers


def test_a_pinned_key_passes_and_a_renewal_of_it_too(own_ca: Authority, tmp_path: Path) -> None:
    key = make_key()
    peers = Peers.read(tmp_path / "peers.toml")
    first = own_ca.issue(SITE, key, NOW)
    peers.trust(SITE.name, fingerprint(first).upper())
    peers.check(SITE.name, first)
    peers.check(SITE.name, own_ca.issue(SITE, key, NOW + DAY))
    assert peers.pinned(SITE.name) == fingerprint(first)
    assert Peers.read(tmp_path / "peers.toml").pins == {SITE.name: fingerprint(first)}


def test_an_unpinned_or_changed_peer_is_refused_without_showing_what_it_presented(
    certificate: x509.Certificate, tmp_path: Path
) -> None:
    peers = Peers.read(tmp_path / "peers.toml")
    with pytest.raises(Refused, match=r"ce-client trust hospital-a SHA256:\.\.\.") as unpinned:
        peers.check("hospital-a", certificate)
    assert unpinned.value.rule == "unpinned peer"
    peers.trust("hospital-a", mark("a"))
    with pytest.raises(Refused, match="posing as hospital-a") as changed:
        peers.check("hospital-a", certificate)
    assert changed.value.rule == "changed key of a peer"
    presented = fingerprint(certificate).removeprefix("SHA256:")
    assert presented[:8] not in f"{unpinned.value} {changed.value}"
    with pytest.raises(ConfigError):
        peers.check("../x", certificate)


def test_a_pin_changes_only_when_said_so(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    peers = Peers.read(path)
    peers.trust("a", mark("a"))
    peers.trust("a", mark("a"))
    with pytest.raises(Refused, match="pinned to another key") as caught:
        peers.trust("a", mark("b"))
    assert caught.value.rule == "changed key of a peer"
    assert Peers.read(path).pinned("a") == mark("a") == peers.pinned("a")
    peers.trust("a", mark("b"), replace=True)
    assert Peers.read(path).pinned("a") == mark("b") == peers.pinned("a")
    with pytest.raises(ConfigError, match="the same fingerprint"):
        Peers.read(path).trust("c", mark("b"))


def test_trusting_keeps_everything_else_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "real.toml"
    path.write_bytes(f"# ours\r\n'a.b' = '{mark('a')}' # by telephone\r\n# keep\nc={mark('c')!r}".encode())
    path.chmod(0o640)
    link = tmp_path / "peers.toml"
    link.symlink_to(path)
    peers = Peers.read(link)
    outdated = Peers.read(link)
    peers.trust("d", mark("d"))
    outdated.trust("a.b", mark("b"), replace=True)
    assert path.read_bytes().decode() == (
        f'# ours\r\n"a.b" = "{mark("b")}"\r\n# keep\nc={mark("c")!r}\nd = "{mark("d")}"\n'
    )
    assert mode_of(path) == 0o640
    assert link.is_symlink()
    assert outdated.pins == {"a.b": mark("b"), "c": mark("c"), "d": mark("d")}
    assert only_files(tmp_path) == {"real.toml", "peers.toml"}


@settings(laws, max_examples=15)
@given(pins=st.dictionaries(names, st.binary(min_size=32, max_size=32).map(bytes.hex), max_size=5))
def test_what_is_trusted_is_read_back(pins: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "peers.toml"
    path.unlink(missing_ok=True)
    pins = {name: f"SHA256:{digest}" for digest, name in {digest: name for name, digest in pins.items()}.items()}
    for name, pin in pins.items():
        Peers.read(path).trust(name, pin)
    assert Peers.read(path).pins == pins
    assert not pins or path.read_text().startswith("# The sites that this site works with")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"[peers]\na = {mark('a')!r}", "under no table"),
        (f"a.b = {mark('a')!r}", "quotes around a NAME with dots"),
        (f"A = {mark('a')!r}", "cannot be a name"),
        ("a = 'SHA256:short'", "entry 'a': this is not a fingerprint"),
        ("a = 3", "entry 'a': this is not a fingerprint"),
        (f"a = {mark('a')!r}\nb = {mark('a').lower()!r}", "a and b have the same fingerprint"),
        (f"a = {mark('a')!r}\na = {mark('b')!r}", "Cannot overwrite a value"),
        ("a = " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_peers_file_says_what_is_wrong_with_it(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "peers.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        Peers.read(path)


def test_a_peers_file_that_cannot_be_changed_by_lines_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    text = f'"\\u0061" = {mark("a")!r}\n'
    path.write_text(text)
    peers = Peers.read(path)
    with pytest.raises(ConfigError, match="change it by hand"):
        peers.trust("a", mark("b"), replace=True)
    assert path.read_text() == text
    assert peers.pinned("a") == mark("a")


@laws
@given(garbage=st.one_of(st.binary(max_size=100), st.text(max_size=100).map(str.encode)))
def test_garbage_in_peers_is_an_error_or_pins_nobody(garbage: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage-peers.toml"
    path.write_bytes(garbage)
    with contextlib.suppress(ConfigError):
        assert Peers.read(path).pins == {}
