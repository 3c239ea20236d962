"""ce-client ledger: what has left this site, and whether the ledger is as it was written."""

from __future__ import annotations

import difflib
import json
import math
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ce.cli.output import ago, fact_table, format_option, list_table, mode_words, say, show_table, size
from ce.errors import InputError, UnknownJob
from ce.identity.certificates import read_certificate
from ce_client.cli.options import config_option, read_config
from ce_client.daemon.site_files import former_certificates
from ce_client.state import ledger as ledgers
from ce_client.state.hash_chain import NO_LINES
from ce_client.state.randomisations import epsilon_sentence, epsilon_words
from ce_client.state.releases.accounts import epsilon_words as release_words

WORD_BYTES = {"int64": 8, "float64": 8, "uint8": 1, "int32": 4, "float32": 4}


@click.group(short_help="What has left this site, contribution by contribution.")
def ledger() -> None:
    """What has left this site: state/ledger.jsonl, one line per contribution, chained and signed.

    It proves which bytes were sent, when, in which job and into totals with which sites. It does not prove that they
    were computed correctly from this site's labels.

    \b
    Examples:
      ce-client ledger list --config /srv/ce-site
      ce-client ledger show demo --config /srv/ce-site
      ce-client ledger verify --config /srv/ce-site
    """


@ledger.command("list", short_help="List the jobs in which something has left.")
@config_option
@format_option
def list_(config: Path, format_: str) -> None:
    """List the jobs in which something has left, the newest first.

    \b
    Examples:
      ce-client ledger list --config /srv/ce-site
      ce-client ledger list --config /srv/ce-site --format json
    """
    path = read_config(config).state / ledgers.FILE_NAME
    found = _by_job(ledgers.entries(path))
    if format_ == "json" or not found:
        say(format_, found, "nothing has left this site yet")
        return
    table = list_table("job", "attempts", "contributions", "sent", "mode", "sites", "ended", "last")
    for entry in found:
        table.add_row(
            Text(entry["job"]),
            str(entry["attempts"]),
            f"{entry['contributions']:,}",
            size(entry["bytes"]),
            entry["mode"],
            ", ".join(entry["roster"]),
            entry["state"] or "not yet",
            ago(time.time() - entry["last_s"]),
        )
    show_table(table)


@ledger.command(short_help="Show what has left in one job, array by array.")
@click.argument("job")
@config_option
@format_option
def show(job: str, config: Path, format_: str) -> None:
    """Show what has left in one job, array by array; with --format json, every line of the ledger about it.

    \b
    Examples:
      ce-client ledger show demo --config /srv/ce-site
      ce-client ledger show demo --config /srv/ce-site --format json
    """
    path = read_config(config).state / ledgers.FILE_NAME
    lines = [line for line in ledgers.entries(path) if line.get("job") == job]
    if not lines:
        known = sorted({str(line["job"]) for line in ledgers.entries(path) if "job" in line})
        close = difflib.get_close_matches(job, known, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UnknownJob(
            f"nothing has left this site in a job named {job!r}{hint}: ce-client ledger list lists all jobs"
        )
    if format_ == "json":
        click.echo(json.dumps(lines, indent=2))
        return
    facts = fact_table()
    for line in lines:
        if line["kind"] != "contribution":
            facts.add_row(f"{datetime.fromtimestamp(line['time_s'], UTC):%Y-%m-%d %H:%M:%S} UTC", Text(_sentence(line)))
    show_table(facts)
    arrays = list_table("array", "type", "shape", "mode", "in a total with", "times", "rounds")
    for (name, kind, shape, mode, contributors), rounds in _by_array(lines).items():
        words = " x ".join(f"{length:,}" for length in shape) or "1"
        span = f"{min(rounds)} to {max(rounds)}" if len(rounds) > 1 else str(rounds[0])
        arrays.add_row(Text(name), kind, words, mode, ", ".join(contributors), f"{len(rounds):,}", span)
    if arrays.rows:
        click.echo()
        show_table(arrays)


@ledger.command(short_help="Check that every line is as it was written.")
@click.option(
    "--certificate",
    "certificates",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Certificate of the key that signed; may be repeated.  [default: this site's, and its former ones]",
)
@click.option("--head", help="A head that was noted elsewhere, 64 hex digits: check that it is still in the chain.")
@config_option
@format_option
def verify(certificates: tuple[Path, ...], head: str | None, config: Path, format_: str) -> None:
    """Check that every line of the ledger is as it was written: offline, with this site's certificate.

    Finds every line that was changed, moved, removed or inserted. Lines that were cut off at the end are found with
    --head only, if a later head was noted; contributions without a signed end are counted.

    \b
    Examples:
      ce-client ledger verify --config /srv/ce-site
      ce-client ledger verify --certificate site.pem --certificate former.pem --config /srv/ce-site --format json
    """
    settings = read_config(config)
    path = settings.state / ledgers.FILE_NAME
    if not path.exists():
        say(format_, {"ok": True, **asdict(ledgers.Verification())}, "nothing has left this site yet")
        return
    if certificates:
        signers = [read_certificate(certificate) for certificate in certificates]
    else:
        signers = [read_certificate(settings.certificate), *former_certificates(settings)]
    found = ledgers.verify(path, *signers, head=None if head is None else _head(head))
    say(format_, {"ok": found.ok, **asdict(found)}, *([found.sentence, f"head {found.head}"] if found.ok else ()))
    if not found.ok:
        raise InputError(f"{path}, {found.sentence}")


def _head(text: str) -> bytes:
    try:
        head = bytes.fromhex(text)
    except ValueError:
        head = b""
    if len(head) != len(NO_LINES):
        raise click.UsageError("a head is 64 hex digits, as ce-client ledger verify prints it")
    return head


def _by_job(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per job, the newest first."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        if "job" not in line:
            continue
        new = {"job": line["job"], "attempts": 0, "contributions": 0, "bytes": 0, "mode": "", "roster": [], "state": ""}
        # Put last, because times of two lines may be equal: the reversed list has the newest first.
        entry = found[line["job"]] = found.pop(line["job"], new)
        entry["last_s"] = line["time_s"]
        if line["kind"] == "begin":
            entry |= {"attempts": entry["attempts"] + 1, "mode": line["mode"], "roster": line["roster"], "state": ""}
        elif line["kind"] == "contribution":
            entry["contributions"] += 1
            entry["bytes"] += sum(map(_bytes, line["arrays"].values()))
        elif line["kind"] == "end":
            entry["state"] = line["state"]
    return list(reversed(found.values()))


def _by_array(lines: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], list[int]]:
    """The rounds in which each array was sent with the same type, shape, mode and contributors."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for line in lines:
        for name, array in line.get("arrays", {}).items():
            key = (name, array["type"], tuple(array["shape"]), array["mode"], tuple(array["contributors"]))
            found.setdefault(key, []).append(line["round"])
    return found


def _bytes(array: dict[str, Any]) -> int:
    words: int = math.prod(array["shape"])
    return words * WORD_BYTES.get(array["type"], 8)


def _sentence(line: dict[str, Any]) -> str:
    """A line that is no contribution, as a sentence."""
    match line["kind"]:
        case "begin":
            text = f"attempt {line['epoch']} begins: {mode_words(line['mode'])} with {', '.join(line['roster'])}"
            if line["randomise"]:
                # Lines of version 0.1.0 have no epsilon of a row; in its jobs all columns took part.
                row = line["epsilon_row"] if "epsilon_row" in line else sum(line["epsilon"].values())
                text += f"; each label replaced with probability {line['randomise']:g}, "
                text += epsilon_sentence(line["epsilon"], row)
            if line.get("definition"):
                keys = line["definition"].items()
                text += f"; {', '.join(f'{key} {json.dumps(value)}' for key, value in keys if value is not None)}"
            return text
        case "disclosure":
            return (
                f"totals of {line['objects']:,} objects that several sites hold are opened, {line['mode']}, by "
                f"definition {line['definition'][:8]}"
            )
        case "allow-definition":
            return f"definition {line['definition'][:8]} is allowed, {line['mode']}, beside those before it"
        case "charge":
            why = "opened" if line["state"] == "opening" else "not opened: the words of the dealer were wrong"
            return (
                f"tables are {why}; charged to {line['objects']:,} objects, of which one has epsilon "
                f"{release_words(line['epsilon'])} now, at delta {line['delta']:g}"
            )
        case "release":
            return f"this site's share of the tables, made in attempt {line['epoch']}: {size(line['size'])}"
        case "model":
            return f"model {line['sha256'][:8]} is accepted"
        case "labelling":
            return f"labels of {line['objects']:,} objects are opened to their other holders"
        case "allow-release":
            return f"one release of definition {line['definition'][:8]} is allowed, beyond the policy"
        case "end":
            return f"attempt {line['epoch']} ends: {line['state']}; signed"
        case "allow-roster":
            return f"totals with {', '.join(line['roster'])} are allowed, beside those with others"
        case "allow-redraw":
            epsilon = epsilon_words(line["epsilon"])
            return f"labels of column {line['column']} are drawn again, as allowed: epsilon of a label is now {epsilon}"
        case other:
            return str(other)
