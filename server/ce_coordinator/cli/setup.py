"""ce-coordinator init and sign: the operator's authority, and certificates for sites."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import click
from cryptography.hazmat.primitives.serialization import Encoding

from ce.cli.options import format_option
from ce.cli.output import say
from ce.errors import ConfigError
from ce.identity.authority import Authority
from ce.identity.certificates import fingerprint
from ce.identity.files import make_directory, write_new
from ce.identity.keys import make_key, write_key
from ce.identity.names import Identity
from ce.identity.requests import read_csr
from ce.settings import sample
from ce_coordinator.cli.options import config_option, read_config
from ce_coordinator.config import (
    AUTHORITY_PASSPHRASE_VARIABLE,
    FILE_NAME,
    PASSPHRASE_VARIABLE,
    CoordinatorSettings,
)

_HEADING = "Configuration of a ce coordinator. Every key is here, with its default."
_PUBLIC = 0o644


@click.command()
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
    port = listen.rpartition(":")[2]
    text = sample(CoordinatorSettings, _HEADING, listen=listen, **{"operator.address": f"localhost:{port}"})
    write_new(directory / FILE_NAME, text.encode(), _PUBLIC)
    CoordinatorSettings.read(directory / FILE_NAME)
    steps = (
        f"ce-coordinator serve --config {directory}",
        f"ce-coordinator sign SITE.csr --config {directory} --out DIR   (for each site; send back what it writes)",
        f"ce-coordinator submit job.toml --config {directory} --watch",
    )
    say(
        format_,
        {"directory": str(directory), "coordinator": name, "operator": operator, "next": list(steps)},
        f"made {directory}: authority, keys and {FILE_NAME}",
        "next:",
        *(f"  {step}" for step in steps),
    )


@click.command()
@click.argument("csr", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where NAME.pem and ca.pem go.  [default: .]")
@click.option("--days", type=click.IntRange(1, 3650), default=397, show_default=True, help="How long it is valid.")
@click.option("--as", "as_", metavar="ROLE/NAME", help="Sign for somebody else than a site, like operator/olga.")
@click.option("--replace", is_flag=True, help="The name may have a certificate for another key: this one replaces it.")
@config_option
@format_option
def sign(
    csr: Path, out: Path | None, days: int, as_: str | None, replace: bool, config: Path, format_: str
) -> None:
    """Sign a site's request. Compare its fingerprint with the site by telephone first.

    \b
    Examples:
      ce-coordinator sign north.csr --config /srv/ce --out to-north
      ce-coordinator sign north.csr --config /srv/ce --replace
    """
    settings = read_config(config)
    expected = None
    if as_ is not None:
        role, _, name = as_.partition("/")
        if role not in ("site", "operator") or not name:
            raise click.UsageError("--as is site/NAME or operator/NAME")
        expected = Identity(role, name)  # type: ignore[arg-type]
    try:
        request = csr.read_bytes()
    except OSError as error:
        raise ConfigError(f"{csr}: cannot be read: {error.strerror}") from error
    asked = read_csr(request)
    hint = f"set {AUTHORITY_PASSPHRASE_VARIABLE}"
    authority = Authority.open(settings.authority, _given(AUTHORITY_PASSPHRASE_VARIABLE), hint=hint)
    certificate = authority.sign(request, expected, datetime.now(UTC), days, replace=replace)
    directory = out or Path()
    make_directory(directory)
    written = [directory / f"{asked.identity.name}.pem", directory / "ca.pem"]
    for path, content in zip(written, (certificate, authority.certificate), strict=True):
        path.unlink(missing_ok=True)
        write_new(path, content.public_bytes(Encoding.PEM), _PUBLIC)
    own = fingerprint(certificate)
    say(
        format_,
        {
            "identity": asked.identity.uri,
            "fingerprint": own,
            "valid_until": certificate.not_valid_after_utc.isoformat(),
            "written": [str(path) for path in written],
        },
        f"signed {asked.identity} until {certificate.not_valid_after_utc:%Y-%m-%d}",
        f"key fingerprint {own}",
        *(f"wrote {path}" for path in written),
    )


def _given(variable: str) -> bytes | None:
    value = os.environ.get(variable)
    return value.encode() if value else None
