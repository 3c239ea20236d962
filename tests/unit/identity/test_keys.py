"""Names of identities, keys and secrets on a disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import example, given
from hypothesis import strategies as st
from support.certificates import laws, mode_of, names, only_files

from ce.errors import ConfigError
from ce.identity import (
    Identity,
    check_name,
    make_csr,
    make_key,
    pem,
    read_certificate,
    read_csr,
    read_key,
    read_secret,
    write_key,
    write_secret,
)
from ce.identity.keys import PrivateKey

# --- names


@laws
@given(role=st.sampled_from(["coordinator", "site", "operator"]), name=names)
def test_an_identity_survives_its_uri_and_a_certificate(role: str, name: str) -> None:
    identity = Identity(role, name)
    assert Identity.from_uri(identity.uri) == identity
    assert read_csr(make_csr(make_key(), identity)).identity == identity


@laws
@given(text=st.text())
@example("ce://site/")
@example("ce://site/a/b")
@example("ce://site/a\n")
@example("ce://root/a")
@example("CE://site/a")
@example("ce://site/a?b")
@example("site/a")
def test_what_is_no_uri_of_ours_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Identity.from_uri(text)


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", "-a", "a-", "A", "a/b", "a b", "a\n", "ä", "a" * 64, "a\0b"])
def test_names_that_a_path_or_a_shell_would_misread_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a name: use 1 to 63 lower-case letters"):
        check_name(name)
    with pytest.raises(ConfigError):
        Identity("site", name)


# --- keys and secrets


def test_a_key_is_private_from_its_first_moment_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    key = make_key()
    before = os.umask(0)
    try:
        write_key(path, key)
    finally:
        os.umask(before)
    assert mode_of(path) == 0o600
    assert pem(read_key(path)) == pem(key)
    assert only_files(tmp_path) == {"site.key"}


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    write_key(path, make_key())
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        write_key(path, make_key())
    assert path.read_bytes() == content
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="never overwritten"):
        write_key(dangling, make_key())
    assert only_files(tmp_path) == {"site.key", "dangling"}


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_key(tmp_path / "site.key", make_key())
    assert only_files(tmp_path) == set()


@pytest.mark.parametrize("write", [lambda path: write_key(path, make_key()), write_secret], ids=["key", "secret"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, write: Callable[[Path], object], mode: int) -> None:
    path = tmp_path / "private"
    write(path)
    path.chmod(mode)
    for read in (read_key, read_secret):
        with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
            read(path)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.key"
    write_key(path, make_key())
    if os.geteuid() == 0:
        os.chown(path, 4242, 4242)
    else:
        another = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_key(path)


def test_an_encrypted_key_needs_its_passphrase(tmp_path: Path) -> None:
    path = tmp_path / "site.key"
    key = make_key()
    write_key(path, key, b"correct horse")
    assert b"ENCRYPTED" in path.read_bytes()
    assert pem(read_key(path, b"correct horse")) == pem(key)
    for nothing in (None, b""):
        with pytest.raises(ConfigError, match="is encrypted: set CE_KEY_PASSPHRASE"):
            read_key(path, nothing, hint="set CE_KEY_PASSPHRASE")
    with pytest.raises(ConfigError, match="does not open with this passphrase") as caught:
        read_key(path, b"wrong donkey")
    assert "donkey" not in str(caught.value)


def test_a_passphrase_for_a_key_without_one_is_not_ignored(tmp_path: Path) -> None:
    write_key(tmp_path / "site.key", make_key())
    with pytest.raises(ConfigError, match="is not encrypted although"):
        read_key(tmp_path / "site.key", b"correct horse")
    for unusable in (b"", b"x" * 1024):
        with pytest.raises(ConfigError, match="a passphrase has 1 to 1023 bytes"):
            write_key(tmp_path / "another.key", make_key(), unusable)


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()])
def test_only_p256_keys_are_keys(tmp_path: Path, key: PrivateKey) -> None:
    path = tmp_path / "other.key"
    path.touch(0o600)
    path.write_bytes(pem(key))
    with pytest.raises(ConfigError, match="another kind than EC P-256"):
        read_key(path)


@laws
@given(garbage=st.binary(max_size=200))
@example(garbage=b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
@example(garbage=b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
@example(garbage=b"ab" * 31)
@example(garbage=b"ab " * 32)
def test_garbage_is_neither_a_key_nor_a_secret(garbage: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage"
    path.touch(0o600)
    path.write_bytes(garbage)
    for read in (read_key, lambda path: read_key(path, b"word"), read_secret):
        with pytest.raises(ConfigError):
            read(path)


def test_what_is_not_there_or_not_a_file_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "large").touch(0o600)
    os.truncate(tmp_path / "large", 1 << 21)
    for read in (read_key, read_secret, read_certificate):
        with pytest.raises(ConfigError, match="does not exist"):
            read(tmp_path / "nothing")
        with pytest.raises(ConfigError, match="not a file"):
            read(tmp_path)
        with pytest.raises(ConfigError, match="not a file"):
            read(tmp_path / "pipe")
        with pytest.raises(ConfigError, match="larger than"):
            read(tmp_path / "large")
    with pytest.raises(ConfigError, match="its directory does not exist"):
        write_key(tmp_path / "no" / "site.key", make_key())


def test_a_secret_is_random_private_and_comes_back(tmp_path: Path) -> None:
    secret = write_secret(tmp_path / "one")
    assert len(secret) == 32
    assert read_secret(tmp_path / "one") == secret != write_secret(tmp_path / "two")
    assert mode_of(tmp_path / "one") == 0o600
    with pytest.raises(ConfigError, match="never overwritten"):
        write_secret(tmp_path / "one")
