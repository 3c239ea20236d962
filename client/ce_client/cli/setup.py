"""ce-client init, request, fingerprint, trust: a site's keys, and the keys of other sites that it trusts."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from ce.cli.output import format_option, say
from ce.errors import ConfigError
from ce.identity.certificates import fingerprint as fingerprint_of
from ce.identity.files import make_directory, rewrite, write_new
from ce.identity.keys import make_key, read_key, write_key, write_secret
from ce.identity.names import Identity
from ce.identity.peers import Peers
from ce.identity.requests import make_csr
from ce.policy import sample_policy
from ce.service.settings import sample
from ce_client.cli.options import config_option, read_config
from ce_client.config import FILE_NAME, PASSPHRASE_VARIABLE, ClientSettings

_HEADING = "Configuration of a ce site. Every key is here, with its default."
_PUBLIC = 0o644


@click.command(short_help="Make a site's directory: key, request, policy, configuration.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="This site's name, as the operator and the other sites know it.")
@click.option("--coordinator", default="localhost:8443", show_default=True, help="Where the coordinator listens.")
@click.option("--labels", type=click.Path(path_type=Path), help="The label file.  [default: labels.csv in DIR]")
@format_option
def init(directory: Path, name: str, coordinator: str, labels: Path | None, format_: str) -> None:
    """Make a site's directory: key, certificate request, secret, policy, configuration.

    The private key is made here and never leaves. It is encrypted when CE_CLIENT_KEY_PASSPHRASE is set.

    \b
    Examples:
      ce-client init /srv/ce-site --name north --coordinator hub.example.org:8443
      ce-client init /srv/ce-site --name north --labels /data/labels.parquet
    """
    identity = Identity("site", name)
    given = {"name": name, "coordinator": coordinator}
    if labels is not None:
        given["labels.file"] = str(labels.absolute())
    # Checked before anything is written: a second try must not find files of the first.
    ClientSettings(name=name, coordinator=coordinator)
    text = sample(ClientSettings, _HEADING, **given)
    if (directory / FILE_NAME).exists():
        raise ConfigError(f"{directory} has a site already: choose another directory")
    make_directory(directory, mode=0o700)
    key = make_key()
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    write_key(directory / "site.key", key, passphrase.encode() if passphrase else None)
    request = directory / f"{name}.csr"
    write_new(request, make_csr(key, identity), _PUBLIC)
    write_secret(directory / "secret")
    write_new(directory / "policy.toml", sample_policy().encode(), _PUBLIC)
    write_new(directory / FILE_NAME, text.encode(), _PUBLIC)
    sha256 = fingerprint_of(key.public_key())
    where = shlex.quote(str(directory))
    steps = (
        f"send {request} to the operator, and read the fingerprint out on the telephone",
        f"put the two files that come back into {directory}: {name}.pem as site.pem, and ca.pem",
        f"exchange fingerprints with the other sites: ce-client trust NAME SHA256:... --config {where}",
        f"ce-client check --config {where}",
        f"ce-client run --config {where}",
    )
    say(
        format_,
        {
            "directory": str(directory),
            "name": name,
            "request": str(request),
            "fingerprint": sha256,
            "next": list(steps),
        },
        f"made {directory}: key, request, secret, policy and {FILE_NAME}",
        f"fingerprint {sha256}",
        "next:",
        *(f"  {step}" for step in steps),
    )


@click.command(short_help="Write the request for a certificate again, for the same key or a new one.")
@click.option("--new-key", is_flag=True, help="Make a new key, beside the one in use: KEY.next.")
@config_option
@format_option
def request(new_key: bool, config: Path, format_: str) -> None:
    """Write the request for a certificate again: NAME.csr beside the configuration, for the operator to sign.

    With --new-key it is for a new key, which is made beside the present one. The daemon uses the present key until the
    certificate of the new one arrives. Every other site then has to pin the new key (ce-client trust --replace).

    \b
    Examples:
      ce-client request --config /srv/ce-site
      ce-client request --new-key --config /srv/ce-site
    """
    settings = read_config(config)
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    given = passphrase.encode() if passphrase else None
    directory = config if config.is_dir() else config.parent
    path, written = settings.key, directory / f"{settings.name}.csr"
    if new_key:
        path, key = settings.key.with_name(f"{settings.key.name}.next"), make_key()
        write_key(path, key, given)
    else:
        key = read_key(path, given, hint=f"set {PASSPHRASE_VARIABLE}")
    rewrite(written, make_csr(key, Identity("site", settings.name)))
    sha256 = fingerprint_of(key.public_key())
    steps = [f"send {written} to the operator, and read the fingerprint out on the telephone"]
    if new_key:
        steps += [
            f"stop the daemon, move {settings.certificate} into {settings.former}, and {path} to {settings.key}",
            f"put what comes back there as {settings.certificate}, and start the daemon",
            "let every other site pin the new key, after comparing it: ce-client trust --replace",
        ]
    else:
        steps.append(f"put what comes back there as {settings.certificate}, and start the daemon again")
    say(
        format_,
        {"name": settings.name, "key": str(path), "request": str(written), "fingerprint": sha256, "next": steps},
        *((f"made {path}",) if new_key else ()),
        f"wrote {written}",
        f"fingerprint {sha256}",
        "next:",
        *(f"  {step}" for step in steps),
    )


@click.command(short_help="Print the fingerprint of this site's key.")
@config_option
@format_option
def fingerprint(config: Path, format_: str) -> None:
    """Print the fingerprint of this site's key, for the other sites to compare.

    \b
    Examples:
      ce-client fingerprint --config /srv/ce-site
    """
    settings = read_config(config)
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    given = passphrase.encode() if passphrase else None
    sha256 = fingerprint_of(read_key(settings.key, given, hint=f"set {PASSPHRASE_VARIABLE}").public_key())
    say(format_, {"name": settings.name, "fingerprint": sha256}, sha256)


@click.command()
@click.argument("name")
@click.argument("sha256", metavar="SHA256:...")
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the pinned key: only after the site has told you, in person, that it made a new key.",
)
@config_option
@format_option
def trust(name: str, sha256: str, replace: bool, config: Path, format_: str) -> None:
    """Pin another site's key. Get the fingerprint by telephone or in person, never through the coordinator.

    \b
    Examples:
      ce-client trust south SHA256:5f0c... --config /srv/ce-site
      ce-client trust --replace south SHA256:77ab... --config /srv/ce-site
    """
    settings = read_config(config)
    if name == settings.name:
        raise ConfigError(f"{name} is this site itself: pin the others")
    peers = Peers.read(settings.peers)
    peers.trust(name, sha256, replace=replace)
    pinned = peers.pinned(name)
    say(format_, {"name": name, "fingerprint": pinned}, f"trusts {name} with {pinned}")
