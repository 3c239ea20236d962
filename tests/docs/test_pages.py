"""Every command line of the documentation is run, in the order of its page, or listed here with the reason why not."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.page_stage import Stage, bare_environment, link_examples
from support.pages import PROGRAMS, ROOT, Block, blocks, check_mention, is_generated, name_of, pages, spans
from support.processes import Deployment
from support.warm_commands import Warm

import ce
from ce.identity.authority import Authority
from ce.identity.certificates import fingerprint, read_certificate
from ce.identity.keys import read_key
from ce.identity.names import Identity
from ce.identity.peers import Peers
from ce.identity.requests import make_csr
from ce.policy import sample_policy
from ce.testing import make_sites

#: What sites say that hold the same objects and accept that labels can be read from totals of them.
OPT_IN = 'shared_objects = "totals"\n'

_MAKE = "other tests, a build or a check of this repository; that there is such a target is tested"
_DOCKER = "needs docker: `make rehearse` runs the compose file"
_INSTALL = "changes the environment that the tests run in, and may need a network"

#: Commands that are not run, and why.
EXCEPTED: dict[str, str] = {
    "make demo     # a coordinator and four sites, over mutual TLS: a sealed job on the example labels": _MAKE,
    "make test     # the tests": _MAKE,
    "make check   # lint, types, import rules, stubs against the contract, pages against the code, deploy/": _MAKE,
    "make docs    # after a change of a key, a command, an error, a metric or a public name": _MAKE,
    "make test    # under five minutes on two cores": _MAKE,
    "make test-slow   # the statistical promises in full: minutes": _MAKE,
    "make format  # before you commit": _MAKE,
    "docker compose up --detach && docker compose wait operator": _DOCKER,
    "docker compose exec north head -3 results/sealed/consensus.csv": _DOCKER,
    "docker compose exec north ce-client budget --config .": _DOCKER,
    "docker compose exec north ce-client ledger verify --config .": _DOCKER,
    "docker compose down            # and with --volumes everything is gone, keys too": _DOCKER,
    "ce audit   # the built-in example: four organisations": "takes half a minute; tests/audit runs it with one attack",
    ". .venv/bin/activate": "the tests run in that environment",
    "kill %1 %2 %3": "jobs of the reader's own shell; here the stage ends its daemons",
    "pip install '.[fast]'": _INSTALL,
    "/opt/ce/bin/pip install ce-*.whl": _INSTALL,
}


#: Pages in which `ce ...` is what a key or a signature is for.
LABELS = ("docs/ledger.md", "docs/protocol.md", "docs/site-computation.md")


@dataclass(frozen=True)
class Scene:
    """What is there before a page begins, or before one of its commands."""

    prepare: Callable[[Stage], None] = lambda stage: link_examples(stage.directory)
    #: For abbreviated fingerprints: the certificates or requests that they are of.
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, Callable[[Stage], None]] = field(default_factory=dict)


def thin_examples(stage: Stage, one_in: int = 96) -> None:
    """A few objects: attacks on all of them take half a minute, and jobs over totals seconds."""
    for path in (ROOT / "examples").glob("**/*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        thin = stage.directory / path.relative_to(ROOT)
        thin.parent.mkdir(parents=True, exist_ok=True)
        with thin.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *(row for row in rows if int(row[0][1:]) % one_in == 0)])


def own_labels(stage: Stage) -> None:
    thin_examples(stage)
    for name, like in (("north", "north"), ("east", "east"), ("south", "south"), ("labels", "north")):
        (stage.directory / f"{name}.csv").symlink_to(stage.directory / "examples" / f"{like}.csv")


def an_empty_place(stage: Stage) -> None:
    """What is posted to the operator arrives as it is made."""
    link_examples(stage.directory)
    (stage.directory / "north.csr").symlink_to(stage.directory / "north" / "north.csr")


def others_join(stage: Stage) -> None:
    """East and south have done what the page tells north to do."""
    authority = Authority.open(stage.directory / "hub" / "authority")
    labels = {site: stage.directory / "examples" / f"{site}.csv" for site in ("east", "south")}
    make_sites(stage.directory, labels, authority=authority, policy=sample_policy(), coordinator=stage.address)
    own = fingerprint(read_certificate(stage.directory / "north" / "site.pem"))
    for site in labels:
        Peers.read(stage.directory / site / "peers.toml").trust("north", own)
        stage.start(site)


def three_sites_at_work(stage: Stage) -> None:
    """A coordinator and three sites that opted in to totals of shared objects, who have had a job together."""
    thin_examples(stage, 6)
    sites = ("north", "east", "south")
    deployment = Deployment(stage.directory, sites)
    stage.address = deployment.address
    stage.start("hub")
    for site in (*sites, "west"):
        home = stage.directory / site
        (stage.directory / f"{site}.csr").symlink_to(home / f"{site}.csr")
        (stage.directory / f"{site}.csv").symlink_to(stage.directory / "examples" / f"{site}.csv")
        if site in sites:
            (home / f"{site}.csr").write_bytes(make_csr(read_key(home / "site.key"), Identity("site", site)))
            # The page has jobs of two rosters over the same objects, and then a third.
            (home / "policy.toml").write_text(sample_policy() + OPT_IN + "max_definitions = 2\n")
            stage.start(site)
    assert deployment.run(ce.Job(name="customers", clusters=5, restarts=1, sites=sites)).state == "done"


SCENES: dict[str, Scene] = {
    "README.md": Scene(thin_examples),
    "docs/audit.md": Scene(own_labels),
    "docs/quick-start.md": Scene(
        an_empty_place,
        {"SHA256:5f0c...": "north/north.csr", "SHA256:8be1...": "south/site.pem", "SHA256:c3d9...": "east/site.pem"},
        {"ce-client trust east": others_join},
    ),
    "docs/operations.md": Scene(
        three_sites_at_work,
        {
            "SHA256:77ab...": "north/north.csr",
            "SHA256:5f0c...": "north/former/2026.pem",
            "SHA256:91d2...": "west/west.csr",
            "SHA256:c3d9...": "east/site.pem",
            "SHA256:8be1...": "south/site.pem",
        },
    ),
}


@pytest.fixture(scope="module", name="programs")
def _programs() -> Iterator[Path]:
    """Where the commands are found."""
    with Warm(tuple(PROGRAMS), bare_environment()) as warm:
        yield warm.bin


@pytest.mark.promise("Every command line of the documentation runs.")
@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_command_of_a_page_runs(page: Path, programs: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = blocks(text, name_of(page))
    commands = [block for block in found if block.language == "sh"]
    if is_generated(text):
        # Of the examples in --help, which tests of the commands parse as they stand.
        for statement in (statement for block in commands for statement in block.statements):
            plain = re.sub(r'^eval "\$\((.*)\)"$', r"\1", statement)
            check_mention([word for word in re.split(r"\s+", plain) if not re.match(r"[A-Z_]+=", word)])
        return
    asked = [statement for block in commands for statement in block.statements]
    if not set(asked) - set(EXCEPTED):
        return
    scene = SCENES.get(name_of(page), Scene())
    with Stage(tmp_path, programs, scene.fingerprints) as stage:
        scene.prepare(stage)
        assert play(stage, scene, found) == [statement for statement in asked if statement not in EXCEPTED]


def play(stage: Stage, scene: Scene, found: list[Block]) -> list[str]:
    """All blocks of a page: commands are run, files are made, and what is shown is what was said."""
    played: list[str] = []
    last: Block | None = None
    for block in found:
        if block.language == "sh":
            for first, then in scene.before.items():
                if any(statement.startswith(first) for statement in block.statements):
                    then(stage)
            played += stage.play(block, EXCEPTED)
        elif "file" in block.options:
            (stage.directory / block.options["file"]).write_text(block.text + "\n", encoding="utf-8")
        elif block.language == "text" and last is not None and last.language == "sh":
            stage.check_shown(block, last.sites[0])
        last = block
    return played


def test_every_exception_is_needed() -> None:
    every = [
        statement
        for page in pages()
        for block in blocks(page.read_text(encoding="utf-8"), name_of(page))
        if block.language == "sh"
        for statement in block.statements
    ]
    assert [statement for statement in EXCEPTED if statement not in every] == []
    assert all(EXCEPTED.values())


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_commands_that_the_text_names_are_there(page: Path) -> None:
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    text = page.read_text(encoding="utf-8")
    named = [*spans(text), *EXCEPTED] if page.name == "README.md" else list(spans(text))
    for span in named:
        words = span.split()
        if words[0] == "ce" and name_of(page) in LABELS:
            continue
        if words[0] in PROGRAMS and len(words) > 1:
            check_mention(words)
        elif words[0] == "make" and len(words) > 1:
            assert words[1] in targets, f"{name_of(page)}: {span}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# A\n\n    ce fit labels.csv\n", "an indented block"),
        ("# A\n\n```\nce fit labels.csv\n```\n", "say which language"),
        ("# A\n\n```text\nce fit labels.csv\n```\n", "a command in a block that is not sh"),
        ("# A\n\n```sh\nce fit labels.csv\n", "without an end"),
        ("# A\n\nWritten by `x`.\n\n    ce fit labels.csv\n", "a command that nothing runs"),
    ],
)
def test_no_command_can_hide(text: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        blocks(text, "a page")


def test_what_fails_or_says_something_else_is_found(programs: Path, tmp_path: Path) -> None:
    with Stage(tmp_path, programs, {}) as stage:
        with pytest.raises(AssertionError, match="page:7 ended with 3"):
            stage.play(Block("page", 7, "sh", text="ce metrics nowhere.csv nowhere.csv\necho late"), {})
        with pytest.raises(AssertionError, match="page:7 ended with 0"):
            stage.play(Block("page", 7, "sh", {"exit": "6"}, "true"), {})
        assert stage.play(Block("page", 7, "sh", text="echo 3 sites"), {}) == ["echo 3 sites"]
        stage.check_shown(Block("page", 9, "text", text="4 sites\n..."), "north")
        with pytest.raises(AssertionError, match="page:9: nobody says"):
            stage.check_shown(Block("page", 9, "text", text="3 cities"), "north")


def test_a_statement_is_what_a_shell_takes_for_one() -> None:
    lines = [
        "# a comment",
        "a \\",
        "  b",
        "",
        "cat > f <<'END'",
        "x = 1 # y",
        "",
        "END",
        "for s in a b; do",
        "  c $s",
        "done",
    ]
    block = Block("page", 1, "sh", text="\n".join([*lines, "d  # why"]))
    assert block.statements == [
        "a \\\n  b",
        "cat > f <<'END'\nx = 1 # y\n\nEND",
        "for s in a b; do\n  c $s\ndone",
        "d  # why",
    ]


@pytest.mark.parametrize(
    ("span", "complaint"),
    [
        ("ce-client chekc", "no command chekc"),
        ("ce-client check --confg DIR", "no option --confg"),
        ("ce-client ledger verfy", "no command verfy"),
        ("ce-coordinator --log-levle debug list", "no option --log-levle"),
    ],
)
def test_a_wrong_mention_is_found(span: str, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_mention(span.split())
