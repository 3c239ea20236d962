"""promises.md: what ce promises, and the tests that prove it, from the `promise` markers in the sources of the tests.

A test proves a promise when it, or its module, is marked with the promise's text: `@pytest.mark.promise("...")`. The
sources are parsed, not run. A promise without a test, or a marker whose text is not listed here, is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from pages.markdown import head, table

TESTS = Path(__file__).parents[2] / "tests"

INTRODUCTION = """\
Each promise, and the tests that prove it. A test is marked with the promise that it proves
(`@pytest.mark.promise`); `make docs` collects the marks. Run one with `pytest FILE -k NAME`.
"""

#: By heading, in the order of the page.
PROMISES: dict[str, tuple[str, ...]] = {
    "Results": (
        "A distributed run gives the same bits as one site with all labels, for any topology.",
        "The bound never decreases, and is the one of the papers.",
        "Every step of a model maximises the bound over its block.",
        "plain, masked and blind give the same bits.",
        "Compiled kernels and numpy's give the same bits.",
        "Every transport gives the same bits: in process, gRPC, real daemons.",
        "A site written from the documents alone takes part in jobs beside real daemons.",
        "The number of threads, the size of tiles and the order of rows, columns and sites change no bit.",
        "Results are those of the version before, to the bit.",
        "The defaults recover planted clusters and classes.",
        "Pairs finds planted clusters as well as BCE.",
        "Samplers draw from the posterior: as exact enumeration says on tiny problems.",
        "Noise of epsilon 1 leaves the clusters of a thousand objects where they are.",
        "On the examples the noise of the default epsilon costs less than 0.02 ARI on average.",
    ),
    "Sealed jobs": (
        "Without noise, a sealed job gives the pooled tables and the pooled labels, in every topology.",
        "The labels of a sealed job are those of the scores of all labels in one place.",
        "A sealed job cut off anywhere ends with one release, charged once, and labels opened once.",
        "A job taken up again opens labels that may have been opened before byte for byte, or not at all.",
        "An object is labelled together with other sites once for the same own labels, over all jobs.",
        "A dealer whose products are wrong is noticed before any share is opened, and who notices it is charged.",
        "A dealer that shifts one comparison in a hundred is found before a label is opened.",
        "A site of a sealed job scores only with the model that the opened tables give.",
        "Sites that were sent different models cannot read each other.",
        "A site finds out if the coordinator says something wrong about columns that it does not hold.",
        "Seeds and keys of a sealed job are on no disk, rows and openings only encrypted; only the dealer gets seeds.",
        "The memory of a sealed job's coordinator does not grow with the objects once they are aligned.",
        "A whole sealed job is written down byte by byte, and every site sends these bytes again.",
        "Under the default policy no attack of the audit gains more than 0.03 from sealed jobs.",
    ),
    "Privacy": (
        "Masks cancel exactly, and no keystream is used twice.",
        "Nothing but masked sums leaves a site in masked, and nothing but random words in blind.",
        "No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.",
        "If sites are sent inconsistent views, their masks do not cancel.",
        "In blind a total that was changed is refused before anything is decided.",
        "After the first masked word every failure of a site is told in the same bytes.",
        "A site believes only peers whose keys it has pinned, and only what they have signed.",
        "A site finds out if the coordinator says something wrong about which sites hold its objects.",
        "The total of a category that one site alone has never leaves that site.",
        "Sites that were given different job keys do not begin.",
        "A site cannot test a guess of another site's ids or categories against what it is sent.",
        "Only certificates of the authority are let in, over TLS 1.3, each under its own name.",
        "Randomised labels are epsilon-private, by label and by row, whatever leaves the site.",
        "The audit replays every step of the protocol, and has an attack or a reason for every array.",
        "The audit finds planted leaks, and finds none where it says that there are none.",
        "Under the default policy no attack of the audit gains more than 0.05 on any column.",
        "Everything that leaves a site is in its ledger first, and changes to a ledger are detected.",
        "What a site writes is its user's alone to read.",
    ),
    "A site's rules": (
        "Rules of the policy refuse by name before a sum has left the site.",
        "Objects and columns below a minimum are left out, listed, and scored at their own site.",
        "Objects that several sites hold take no part in totals, unless the sites that hold them opt in.",
        "Operator and sites are told how many objects take no part in the fit, and which rule says so.",
        "A job waits for consent where the policy asks for it, and consent holds for that job only.",
        "A label file is contributed under one roster unless a person allows another.",
        "Totals of an object are opened by as many definitions as the policy allows, over all jobs.",
    ),
    "Reliability": (
        "kill -9 of any process at any moment ends with the same bits.",
        "Lost, repeated and late frames, broken and stalled streams change no bit.",
        "Every wait has a deadline, and a job that fails says why.",
        "No computation keeps a daemon from answering, from a cancelled job's end, or from stopping.",
        "A job that is over at a site is not run again, and its results stay as they are.",
        "Results of a job that failed are not on any disk.",
        "Checks of the fault schedules detect planted bugs.",
        "A full disk fails one job with a sentence, or costs its checkpoints, and nothing else.",
        "Files written by the version before open.",
    ),
    "Hostile input": (
        "Hostile frames and files never crash a daemon: they are refused by field.",
        "A site that misbehaves harms its own jobs only.",
        "Every limit has a test at the limit and beyond it.",
        "One site cannot withhold the whole result from the operator unnoticed.",
        "Crowds and slow callers do not keep others out.",
    ),
    "Use": (
        "Every command line of the documentation runs.",
        "Every mistake in a file or a command is a sentence that says what to do, with its exit code.",
        "Known answers of the protocol are computed without this code.",
        "Pages that say what the code declares are up to date.",
        "import ce is quick and brings nothing heavy.",
    ),
}


def page() -> str:
    """The whole page."""
    proofs = collect(TESTS)
    declared = [promise for promises in PROMISES.values() for promise in promises]
    if unknown := sorted(set(proofs) - set(declared)):
        raise SystemExit(f"docs/pages/promises.py does not list the promise of a marker: {unknown[0]}")
    if missing := [promise for promise in declared if promise not in proofs]:
        raise SystemExit(f"no test is marked with the promise: {missing[0]}")
    lines = [head("Promises"), INTRODUCTION]
    for heading, promises in PROMISES.items():
        rows = ((promise, "<br>".join(_links(proofs[promise]))) for promise in promises)
        lines += [f"## {heading}", "", *table(("promise", "tests"), rows), ""]
    return "\n".join(lines)


def collect(directory: Path) -> dict[str, list[tuple[str, str]]]:
    """By promise: the file, relative to `directory`, and the name of each test that is marked with it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(directory.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        for name, promise in _marked(module):
            found.setdefault(promise, []).append((path.relative_to(directory).as_posix(), name))
    return found


def _marked(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of tests and their promises; a mark of the module stands for all of its tests, named by ""."""
    for node in module.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            marks = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
            yield from (("", text) for text in _texts(marks))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from ((node.name, text) for text in _texts(node.decorator_list))


def _texts(marks: Iterable[ast.expr]) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
            (text,) = mark.args
            yield str(ast.literal_eval(text))


def _links(tests: Iterable[tuple[str, str]]) -> Iterator[str]:
    for path, name in tests:
        title = name.removeprefix("test_").replace("_", " ") if name else f"all of {Path(path).name}"
        yield f"[{title}](../tests/{path})"
