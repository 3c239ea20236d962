"""The code blocks of the documentation, and the command lines in them.

Every block is fenced and names its language; one that is only indented is an error, so that no command line can hide.
In `sh` blocks each line is a command that a reader types, and that tests/docs/test_pages.py runs. Words after the
language say how: `at=east,south` on whose machines (else north's), `exit=6` that it ends with that code. A `toml` block
with `file=job.toml` is a file that the reader makes. A `text` block right after an `sh` block is what the reader sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

import ce.cli.main
import ce_client.cli.main
import ce_coordinator.cli.main

ROOT = Path(__file__).parents[2]
#: What code blocks of the documentation are written in.
LANGUAGES = ("sh", "text", "toml", "python", "mermaid")
PROGRAMS: dict[str, click.Group] = {
    "ce": ce.cli.main.cli,
    "ce-client": ce_client.cli.main.cli,
    "ce-coordinator": ce_coordinator.cli.main.cli,
}
#: How a line begins that can only be a command.
_COMMAND = re.compile(
    r"(\$ )?((make|docker|pip|systemctl) [a-z-]|"
    + "|".join(f"{name} ({'|'.join(group.commands)})\\b" for name, group in PROGRAMS.items())
    + ")"
)
_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)(?P<words>.*)")
_HERE_DOCUMENT = re.compile(r"<<-?'?(\w+)'?")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    line: int  # of its first line in the page
    language: str
    options: dict[str, str] = field(default_factory=dict)
    text: str = ""

    @property
    def sites(self) -> list[str]:
        """On whose machines it is typed."""
        return self.options.get("at", "north").split(",")

    @property
    def statements(self) -> list[str]:
        return list(_statements(self.text.splitlines()))


def pages() -> list[Path]:
    """All of the documentation but the changelog, which tells of commands as they were."""
    found = {*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")} - {ROOT / "CHANGELOG.md"}
    return sorted(found, key=name_of)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def is_generated(text: str) -> bool:
    """Whether a script writes the page, from declarations whose examples have tests of their own."""
    return "\n\nWritten by `" in text[:500]


def blocks(text: str, page: str) -> list[Block]:
    """The fenced blocks of a page. Raises AssertionError for what would not be read as the reader reads it."""
    found: list[Block] = []
    lines, generated = text.splitlines(), is_generated(text)
    opened: re.Match[str] | None = None
    begin, before = 0, ""
    for number, line in enumerate(lines, 1):
        fence = _FENCE.fullmatch(line)
        if opened is None and fence is not None:
            opened, begin = fence, number + 1
            assert generated or opened["language"] in LANGUAGES, f"{page}:{number}: say which language: {LANGUAGES}"
        elif opened is not None and line.strip() == "```":
            indent = len(opened["indent"])
            content = "\n".join(own[indent:] for own in lines[begin - 1 : number - 1])
            options = dict(word.split("=", 1) for word in opened["words"].split())
            found.append(Block(page, begin, opened["language"], options, content))
            opened = None
        elif opened is None and line.startswith("    ") and not before.strip():
            assert generated, f"{page}:{number}: an indented block: fence it, and say its language"
            assert not _COMMAND.match(line.strip()), f"{page}:{number}: a command that nothing runs"
        before = line
    assert opened is None, f"{page}:{begin}: a block without an end"
    for block in found:
        if block.language != "sh":
            for own in block.text.splitlines():
                hidden = _COMMAND.match(own) and not (generated and "[OPTIONS]" in own)
                assert not hidden, f"{page}:{block.line}: a command in a block that is not sh: {own}"
    return found


def _statements(lines: Iterable[str]) -> Iterator[str]:
    """What a shell takes for one command: with continued lines, here-documents and loops as a whole."""
    whole: list[str] = []
    until: str | None = None
    loops = 0
    for line in lines:
        words = line.strip()
        if not whole and (not words or words.startswith("#")):
            continue
        whole.append(line)
        if until is not None:
            if words != until:
                continue
            until = None
        elif (here := _HERE_DOCUMENT.search(line)) is not None:
            until = here[1]
            continue
        else:
            loops += len(re.findall(r"(?:^|\s)do(?:\s|$)", words)) - len(re.findall(r"(?:^|\s)done(?:\s|;|$)", words))
            if line.endswith("\\") or loops:
                continue
        yield "\n".join(whole)
        whole = []
    assert not whole, f"a command without an end: {whole}"


def spans(text: str) -> Iterator[str]:
    """Code in running text and in tables."""
    prose = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
    yield from (span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", prose))


def check_mention(words: list[str]) -> None:
    """That a command which the text only names is one, and has the options that are named with it."""
    command: click.Command = PROGRAMS[words[0]]
    options = {"--help", "-h", "--version"} | _options(command)
    rest = words[1:]
    while rest and isinstance(command, click.Group):
        word = rest.pop(0)
        if word.startswith("-"):
            assert word.partition("=")[0] in options, f"{' '.join(words)}: no option {word}"
            if rest and not rest[0].startswith("-") and rest[0] not in command.commands:
                rest.pop(0)  # its value
            continue
        assert word in command.commands, f"{' '.join(words)}: there is no command {word}"
        command = command.commands[word]
        options |= _options(command)
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"{' '.join(words)}: no option {word}"


def _options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}
