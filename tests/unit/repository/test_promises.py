"""The page of promises names the tests that prove each; one that is not proved or not listed is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import promises

SOURCE = """
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.promise("of the module")]

@pytest.mark.parametrize("x", [1])
@pytest.mark.promise("of a test")
def test_it(x): ...

@pytest.mark.promise("of a test")
@pytest.mark.promise("of the module")
class TestThem: ...

def test_other(): ...
"""


def test_marks_are_collected_from_functions_classes_and_modules(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "test_a.py").write_text(SOURCE)
    (tmp_path / "helper.py").write_text(SOURCE)
    file = "deep/test_a.py"
    assert promises.collect(tmp_path) == {
        "of the module": [(file, ""), (file, "TestThem")],
        "of a test": [(file, "test_it"), (file, "TestThem")],
    }


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        (("of a test",), "does not list .* of the module"),
        (("of a test", "of the module", "more"), "marked with .* more"),
    ],
)
def test_a_promise_that_is_not_proved_or_not_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "test_a.py").write_text(SOURCE)
    monkeypatch.setattr(promises, "TESTS", tmp_path)
    monkeypatch.setattr(promises, "PROMISES", {"A": listed})
    with pytest.raises(SystemExit, match=complaint):
        promises.page()


def test_every_promise_is_on_the_page_with_a_test_that_exists() -> None:
    text = promises.page()
    for heading, texts in promises.PROMISES.items():
        assert f"## {heading}\n" in text
        assert all(f"| {promise} | [" in text for promise in texts)
