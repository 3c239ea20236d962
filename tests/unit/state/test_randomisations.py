"""One randomisation per column: what a site remembers of its draws, what it refuses, and what epsilons add up to."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from ce.errors import ConfigError, Refused
from ce.labels.randomised import Randomisation, epsilon
from ce.labels.table import Categories
from ce_client.state.randomisations import AccountedEpsilon, Draw, Randomisations, draws_of, epsilon_sentence

SECRET, OTHER = b"s" * 32, b"t" * 32
DECLARED: dict[str, Categories] = {"a": (0, 1), "b": ("canary", "x", "y")}
HOW = Randomisation(0.5, DECLARED)
A, B = epsilon(0.5, 2), epsilon(0.5, 3)


class Notes:
    """A ledger that only remembers what it was told."""

    def __init__(self) -> None:
        self.redrawn: list[tuple[str, str, float | None]] = []

    def allow_redraw(self, job: str, column: str, epsilon: float | None) -> bytes:
        self.redrawn.append((job, column, epsilon))
        return bytes(32)


def draws(how: Randomisation = HOW, columns: tuple[str, ...] = ("a", "b"), secret: bytes = SECRET) -> tuple[Draw, ...]:
    return draws_of(how, columns, secret)


@pytest.mark.promise("Randomised labels are epsilon-private, by label and by row, whatever leaves the site.")
@pytest.mark.parametrize(
    ("how", "secret", "columns"),
    [
        (replace(HOW, categories={**DECLARED, "a": (0, 1, 2)}), SECRET, "a"),
        (replace(HOW, categories={**DECLARED, "a": (0, 2)}), SECRET, "a"),
        (replace(HOW, categories={**DECLARED, "a": ("0", "1")}), SECRET, "a"),
        (replace(HOW, p=0.4), SECRET, "ab"),
        (replace(HOW, p=0.0), SECRET, "ab"),
        (replace(HOW, sampled=1), SECRET, "ab"),
        (HOW, OTHER, "ab"),
    ],
    ids=["a new category", "another category", "text", "probability", "as they are", "sampled columns", "secret"],
)
def test_another_draw_of_a_column_is_refused_until_it_is_allowed_and_then_epsilons_add(
    tmp_path: Path, how: Randomisation, secret: bytes, columns: str
) -> None:
    state, ledger = Randomisations(tmp_path / "state"), Notes()
    state.remember(draws(), "first", ledger)
    state.remember(draws(), "again", ledger)
    before = state.accounted()
    assert before == AccountedEpsilon({"a": A, "b": B}, pytest.approx(A + B))
    later = draws(how, secret=secret)
    for attempt in (lambda: state.check(later), lambda: state.remember(later, "second", ledger)):
        with pytest.raises(Refused, match=r"column 'a' were randomised in another way in job 'first'") as refused:
            attempt()
        assert refused.value.rule == "one randomisation per column"
        assert "canary" not in str(refused.value)
    assert state.accounted() == before, "what was refused is not accounted"
    others = [draw for draw in later if state.others(draw)]
    assert "".join(draw.column for draw in others) == columns
    for draw in others:
        assert state.allow(draw)
        assert not state.allow(draw)
    state.check(later)
    assert ledger.redrawn == []
    for job in ("second", "third"):
        state.remember(later, job, ledger)
    after = state.accounted()
    assert ledger.redrawn == [("second", column, after.columns[column]) for column in columns], "once, at the first use"
    if how.p == 0:
        assert after == AccountedEpsilon({"a": None, "b": None}, None)
    elif how.sampled:
        assert after.columns == before.columns, "the draws of labels are the same"
        assert after.row == pytest.approx(A + B + B), "the other choice shows one column more"
    else:
        new = how.epsilons(columns)
        expected = {"a": A + new.get("a", 0.0), "b": B + new.get("b", 0.0)}
        assert after.columns == pytest.approx(expected)
        assert after.row == pytest.approx(sum(expected.values()))
    state.check(draws())  # what was used before may be used again, and costs nothing
    state.remember(draws(), "fourth", ledger)
    assert state.accounted() == after


def test_a_further_column_is_no_other_draw_of_the_others_but_another_choice_of_columns(tmp_path: Path) -> None:
    state, ledger = Randomisations(tmp_path), Notes()
    more = replace(HOW, categories={**DECLARED, "c": (0, 1)})
    state.remember(draws(), "first", ledger)
    state.remember(draws(more, ("a", "b", "c")), "second", ledger)
    assert state.accounted().row == pytest.approx(2 * A + B)
    sampling = Randomisations(tmp_path / "sampling")
    sampling.remember(draws(replace(HOW, sampled=1)), "first", ledger)
    assert sampling.accounted().row == pytest.approx(B)
    assert sampling.accounted(draws(replace(HOW, sampled=1))).row == pytest.approx(B)
    with pytest.raises(Refused):
        sampling.check(draws(replace(more, sampled=1)))


def test_labels_that_were_never_randomised_need_no_record(tmp_path: Path) -> None:
    state = Randomisations(tmp_path)
    plain = draws(Randomisation(0.0, {}))
    state.check(plain)
    state.remember(plain, "first", Notes())
    assert list(tmp_path.iterdir()) == []
    state.remember(draws(), "second", Notes())


def test_the_file_has_digests_only_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    state = Randomisations(tmp_path)
    state.remember(draws(), "first", Notes())
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert b"canary" not in content
    assert {len(draw["version"]) for draw in json.loads(content)["used"]} == {32}
    for damage in (b"", b"{}", b"[]", b'{"used": [{}], "allowed": []}', b'{"used": [{"more": 1}], "allowed": []}'):
        path.write_bytes(damage)
        with pytest.raises(ConfigError, match="is damaged"):
            state.check(draws())


def test_epsilon_in_words() -> None:
    assert epsilon_sentence({"a": 1.234, "b": None}, None) == (
        "epsilon 1.23 (a), without limit (b) per label; without limit per row, all labels of an object"
    )
