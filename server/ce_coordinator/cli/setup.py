"""ce-coordinator init, sign and renew: the authority, and certificates of sites, coordinator and operators."""

from __future__ import annotations

import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import click
from cryptography.hazmat.primitives.serialization import Encoding

from ce.cli.output import format_option, say
from ce.errors import ConfigError
from ce.identity.authority import DAYS, Authority
from ce.identity.certificates import check_fingerprint_text, fingerprint, identity_of, read_certificate
from ce.identity.files import make_directory, rewrite, write_new
from ce.identity.keys import make_key, read_key, replace_key, write_key
from ce.identity.names import Identity, Role
from ce.identity.requests import read_csr
from ce.service.settings import check_address, sample
from ce_coordinator.cli.options import config_option, read_config
from ce_coordinator.config import (
    AUTHORITY_PASSPHRASE_VARIABLE,
    FILE_NAME,
    PASSPHRASE_VARIABLE,
    CoordinatorSettings,
    Operator,
)

_HEADING = "Configuration of a ce coordinator. Every key is here, with its default."
_PUBLIC = 0o644


@click.command(short_help="Make a coordinator's directory: authority, keys, configuration.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--name", default="coordinator", show_default=True, help="The coordinator's name in its certificate.")
@click.option("--operator", default="operator", show_default=True, help="The operator's name in its certificate.")
@click.option("--listen", default="0.0.0.0:8443", show_default=True, help="Where the coordinator will listen.")
@format_option
def init(directory: Path, name: str, operator: str, listen: str, format_: str) -> None:
    """Make a coordinator's directory: authority, keys, certificates, configuration.

    Keys are encrypted when CE_COORDINATOR_AUTHORITY_PASSPHRASE (the authority's) and CE_COORDINATOR_KEY_PASSPHRASE
    (the coordinator's and the operator's) are set.

    \b
    Examples:
      ce-coordinator init /srv/ce
      ce-coordinator init /srv/ce --name hub --operator olga --listen 0.0.0.0:9000
    """
    identities = {"coordinator": Identity("coordinator", name), "operator": Identity("operator", operator)}
    address = _dialled(listen)
    # Checked before anything is written: a failed `init` leaves nothing behind.
    CoordinatorSettings(listen=listen, operator=Operator(address=address))
    text = sample(CoordinatorSettings, _HEADING, listen=listen, **{"operator.address": address})
    if (directory / FILE_NAME).exists():
        raise ConfigError(f"{directory} has a coordinator already: choose another directory")
    now = datetime.now(UTC)
    make_directory(directory, mode=0o700)
    authority = Authority.create(directory / "authority", now, passphrase=_given(AUTHORITY_PASSPHRASE_VARIABLE))
    for file, identity in identities.items():
        key = make_key()
        write_key(directory / f"{file}.key", key, _given(PASSPHRASE_VARIABLE))
        certificate = authority.issue(identity, key, now)
        write_new(directory / f"{file}.pem", certificate.public_bytes(Encoding.PEM), _PUBLIC)
    write_new(directory / FILE_NAME, text.encode(), _PUBLIC)
    where = shlex.quote(str(directory))
    steps = (
        f"ce-coordinator serve --config {where}",
        f"ce-coordinator sign SITE.csr --config {where} --out DIR   (for each site; send back what it writes)",
        f"ce-coordinator submit job.toml --config {where} --watch",
    )
    say(
        format_,
        {"directory": str(directory), "coordinator": name, "operator": operator, "next": list(steps)},
        f"made {directory}: authority, keys and {FILE_NAME}",
        "next:",
        *(f"  {step}" for step in steps),
    )


def _dialled(listen: str) -> str:
    """The address under which the operator's commands, on the same machine, reach the coordinator."""
    check_address("--listen", listen)
    host, _, port = listen.rpartition(":")
    return f"localhost:{port}" if host in ("0.0.0.0", "[::]") else listen


@click.command(short_help="Sign a site's request for a certificate.")
@click.argument("csr", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Where NAME.pem and ca.pem go.  [default: .]"
)
@click.option("--show", "only_show", is_flag=True, help="Show who asks and the key's fingerprint; sign nothing.")
@click.option(
    "--fingerprint",
    "read_out",
    metavar="SHA256:...",
    help="The fingerprint that the site read out to you; another key is refused.",
)
@click.option("--days", type=click.IntRange(1, 3650), default=DAYS, show_default=True, help="How long it is valid.")
@click.option("--as", "as_", metavar="ROLE/NAME", help="Sign for another identity than a site, like operator/olga.")
@click.option("--replace", is_flag=True, help="Replace the certificate if the name has one for another key.")
@config_option
@format_option
def sign(
    csr: Path,
    out: Path | None,
    only_show: bool,
    read_out: str | None,
    days: int,
    as_: str | None,
    replace: bool,
    config: Path,
    format_: str,
) -> None:
    """Sign a site's request for a certificate.

    A request proves no identity: let the site read its fingerprint out to you on the telephone, and give it with
    --fingerprint, or compare it with what --show prints.

    \b
    Examples:
      ce-coordinator sign north.csr --show
      ce-coordinator sign north.csr --fingerprint SHA256:5f0c... --config /srv/ce --out to-north
      ce-coordinator sign north.csr --config /srv/ce --replace
    """
    expected = None if as_ is None else _expected(as_)
    try:
        request = csr.read_bytes()
    except OSError as error:
        raise ConfigError(f"{csr}: cannot be read: {error.strerror}") from error
    asked = read_csr(request)
    found = fingerprint(asked.public_key)
    if read_out is not None and check_fingerprint_text(read_out) != found:
        raise ConfigError(
            f"the fingerprint of the request's key is not {read_out}: the request was not made by the site that read "
            "that out to you, or it is not the newest one; ask for the request again"
        )
    if only_show:
        facts = {"identity": asked.identity.uri, "fingerprint": found}
        say(format_, facts, f"{csr} asks for a certificate of {asked.identity}", f"key fingerprint {found}")
        return
    authority = _open_authority(read_config(config))
    directory = out or Path()
    make_directory(directory)
    certificate = authority.sign(request, expected, datetime.now(UTC), days, replace=replace)
    written = [directory / f"{asked.identity.name}.pem", directory / "ca.pem"]
    for path, content in zip(written, (certificate, authority.certificate), strict=True):
        rewrite(path, content.public_bytes(Encoding.PEM))
    say(
        format_,
        {
            "identity": asked.identity.uri,
            "fingerprint": found,
            "valid_until": certificate.not_valid_after_utc.isoformat(),
            "written": [str(path) for path in written],
        },
        f"signed {asked.identity} until {certificate.not_valid_after_utc:%Y-%m-%d}",
        f"key fingerprint {found}",
        *(f"wrote {path}" for path in written),
        f"next: send both to {asked.identity.name}"
        + (", which puts them into its directory as site.pem and ca.pem" if asked.identity.role == "site" else ""),
    )


@click.command(short_help="Renew the coordinator's or the operator's own certificate.")
@click.argument("whose", type=click.Choice(["coordinator", "operator"]))
@click.option("--new-key", is_flag=True, help="Make a new key, too; it replaces the old one.")
@click.option("--days", type=click.IntRange(1, 3650), default=DAYS, show_default=True, help="How long it is valid.")
@config_option
@format_option
def renew(whose: str, new_key: bool, days: int, config: Path, format_: str) -> None:
    """Renew the coordinator's or the operator's own certificate, under the same name. Sites need not be changed.

    A running coordinator uses the old certificate until it is started again. The old certificate stays valid: if its
    key may have been read by others, see docs/operations.md.

    \b
    Examples:
      ce-coordinator renew coordinator --config /srv/ce
      ce-coordinator renew operator --new-key --config /srv/ce
    """
    settings = read_config(config)
    holder = settings if whose == "coordinator" else settings.operator
    identity = identity_of(read_certificate(holder.certificate), str(holder.certificate))
    if identity.role != whose:
        raise ConfigError(f"{holder.certificate} is the certificate of {identity}, not of the {whose}")
    authority, passphrase = _open_authority(settings), _given(PASSPHRASE_VARIABLE)
    key = make_key() if new_key else read_key(holder.key, passphrase, hint=f"set {PASSPHRASE_VARIABLE}")
    certificate = authority.issue(identity, key, datetime.now(UTC), days, replace=True)
    if new_key:
        # If this is interrupted before the certificate is written, run the command again.
        replace_key(holder.key, key, passphrase)
    rewrite(holder.certificate, certificate.public_bytes(Encoding.PEM))
    say(
        format_,
        {
            "identity": identity.uri,
            "fingerprint": fingerprint(certificate),
            "valid_until": certificate.not_valid_after_utc.isoformat(),
            "new_key": new_key,
        },
        f"renewed {identity} until {certificate.not_valid_after_utc:%Y-%m-%d}" + ", with a new key" * new_key,
        f"key fingerprint {fingerprint(certificate)}",
        *(("next: start the coordinator again",) if whose == "coordinator" else ()),
    )


def _open_authority(settings: CoordinatorSettings) -> Authority:
    hint = f"set {AUTHORITY_PASSPHRASE_VARIABLE}"
    return Authority.open(settings.authority, _given(AUTHORITY_PASSPHRASE_VARIABLE), hint=hint)


def _expected(as_: str) -> Identity:
    role, _, name = as_.partition("/")
    if role not in ("site", "operator") or not name:
        raise click.UsageError("--as is site/NAME or operator/NAME")
    return Identity(cast("Role", role), name)


def _given(variable: str) -> bytes | None:
    value = os.environ.get(variable)
    return value.encode() if value else None
