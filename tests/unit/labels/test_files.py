"""Label files: what is written is read back; a refusal names file, row and column, but no label and no id."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import string
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.errors import LabelError
from ce.labels import Column, LabelTable

# Ids and labels in the files below contain one of these, and no error message may.
SECRETS = ("SECRET", "137")


def labels_of(column: Column) -> list[int | str | None]:
    assert column.codes is not None
    return [None if code < 0 else column.categories[code] for code in column.codes]


def write(folder: Path, content: str | bytes, name: str = "site.csv") -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(folder: Path, content: str | bytes, name: str = "site.csv", **options: Any) -> LabelTable:
    return LabelTable.from_file(write(folder, content, name), **options)


def refusal(path: Path, **options: Any) -> LabelError:
    """The error that reading the file ends in; it names the file and shows nothing of its content."""
    with pytest.raises(LabelError) as caught:
        LabelTable.from_file(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    # The folder is named after the test, secrets included.
    assert not any(secret in message.removeprefix(str(path)) for secret in SECRETS)
    if caught.value.row is not None:
        assert f"row {caught.value.row}" in message
    if caught.value.column is not None:
        assert repr(caught.value.column) in message
    return caught.value


# What a header means


def test_a_label_file(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "id,kmeans,words,clf:svm,tree\no1,3,x,1,0\n o2 ,,NA,nan,0\no3,-1, y,2,NaN\n\n",
        classifiers=["tr*"],
    )
    assert table.source == str(tmp_path / "site.csv")
    assert table.ids.tolist() == ["o1", "o2", "o3"]
    assert [(column.name, column.kind) for column in table.columns] == [
        ("kmeans", "clustering"),
        ("words", "clustering"),
        ("svm", "classifier"),
        ("tree", "classifier"),
    ]
    assert labels_of(table.column("kmeans")) == [3, None, None]
    assert labels_of(table.column("words")) == ["x", None, "y"]
    assert labels_of(table.column("svm")) == [1, None, 2]
    assert labels_of(table.column("tree")) == [0, 0, None]


def test_the_id_column_can_have_another_name_and_place(tmp_path: Path) -> None:
    table = read(tmp_path, "id,key\n3,a\n4,b\n", id="key")
    assert table.ids.tolist() == ["a", "b"]
    assert labels_of(table.column("id")) == [3, 4]


def test_soft_columns(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "id,clf:v=10,c,clf:v=9,soft:s=b,soft:s=a\no1,.25,1,0.75,1,0\no2,,1,NA,0.333,0.667\no3,1e0,2,0,0.4995,0.4995\n",
    )
    assert [(column.name, column.kind) for column in table.columns] == [
        ("v", "classifier"),
        ("c", "clustering"),
        ("s", "clustering"),
    ]
    votes, soft = table.column("v"), table.column("s")
    assert votes.categories == (9, 10)
    np.testing.assert_array_equal(votes.probabilities, [[0.75, 0.25], [np.nan, np.nan], [0, 1]])
    assert soft.categories == ("a", "b")
    assert soft.probabilities == pytest.approx(np.array([[0, 1], [0.667, 0.333], [0.5, 0.5]]))
    assert table.labelled.tolist() == [True, True, True]


def test_a_soft_clustering_can_be_named_a_classifier(tmp_path: Path) -> None:
    table = read(tmp_path, "id,soft:s=1,soft:s=x\no1,0,1\n", classifiers=["s"])
    assert table.column("s").kind == "classifier"
    assert table.column("s").categories == ("1", "x")


def test_three_times_a_third_with_three_digits_sums_to_one(tmp_path: Path) -> None:
    table = read(tmp_path, "id,clf:v=a,clf:v=b,clf:v=c\no1,0.333,0.333,0.333\n")
    assert table.column("v").probabilities == pytest.approx(np.full((1, 3), 1 / 3))


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [
        (["3", "3.0", "+3", " 3 ", "30e-1", "-0"], [3, 3, 3, 3, 3, 0]),
        (["1", "-2", "-0.0"], [1, None, 0]),
        (["1", "x", "-2", "0.5"], ["1", "x", None, "0.5"]),
        (["1_000", "1"], ["1_000", "1"]),
        (["inf", "x"], ["inf", "x"]),
        (["٣", "1"], ["٣", "1"]),
        (["None", "N/A"], ["None", "N/A"]),
        (["9223372036854775807", "1"], [2**63 - 1, 1]),
        (["9223372036854775808", "1", "-1"], ["9223372036854775808", "1", None]),
        (["1e999999", "1"], ["1e999999", "1"]),
        (["1e99999999999999999999", "1"], ["1e99999999999999999999", "1"]),
        (["0e999999", "1"], [0, 1]),
        (["9" * 5000, "1"], ["9" * 5000, "1"]),
        (["12345678901234567", "12345678901234568.0"], [12345678901234567, 12345678901234568]),
        (["e\u0301", "\u00e9 "], ["\u00e9", "\u00e9"]),
        (["", "NA", "NaN", "nan", "null", "0"], [None, None, None, None, None, 0]),
    ],
)
def test_what_text_means_is_the_same_in_csv_and_parquet(
    tmp_path: Path, tokens: list[str], labels: list[int | str | None]
) -> None:
    table = read(tmp_path, "id,c\n" + "".join(f"o{at},{token}\n" for at, token in enumerate(tokens)))
    assert labels_of(table.column("c")) == labels
    path = tmp_path / "site.parquet"
    pq.write_table(pa.table({"id": range(len(tokens)), "c": tokens}), path)
    assert labels_of(LabelTable.from_file(path).column("c")) == labels


def test_noise_can_be_kept(tmp_path: Path) -> None:
    assert labels_of(read(tmp_path, "id,c\na,-1\nb,2\n", noise="keep").column("c")) == [-1, 2]
    with pytest.raises(LabelError, match="expected 'missing' or 'keep'"):
        read(tmp_path, "id,c\na,-1\nb,2\n", noise="yes")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,c\no1,x\n"),
        ("a.csv", "\ufeffid,c\no1,x\n"),
        ("a.csv", "\r\nid,c\r\no1,x"),
        ("a.csv", 'id,"c"\r"o1",x\r'),
        ("a.CSV.GZ", "id,c\no1,x\n"),
        ("a.tsv", "id\tc\no1\tx\n"),
        ("a.tsv.gz", "id\tc\no1\tx\n"),
        ("a.txt", "id\tc\no1\tx\n"),
        ("a.txt", "id,c\no1,x\n"),
        ("a.txt.gz", "id\tc\no1\tx\n"),
        ("a.labels", "id,c\no1,x\n"),
    ],
)
def test_formats_of_text(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.lower().endswith("gz") else content.encode())
    table = LabelTable.from_csv(str(path))
    assert table.ids.tolist() == ["o1"]
    assert labels_of(table.column("c")) == ["x"]


def test_a_tab_separated_file_may_hold_commas(tmp_path: Path) -> None:
    assert labels_of(read(tmp_path, "id\tc\na,b\tx,y\n", "site.tsv").column("c")) == ["x,y"]


def test_an_id_may_look_missing(tmp_path: Path) -> None:
    assert read(tmp_path, "id,c\nNA,1\nnull,1\n007,2\n").ids.tolist() == ["NA", "null", "007"]


# Refusals of text files


@pytest.mark.parametrize(
    ("content", "row", "column", "problem"),
    [
        ("", None, None, "the file is empty"),
        ("\n \n", None, None, "the file is empty"),
        ("id,c\n", None, None, "no rows below the header"),
        ("id,c\n\n\n", None, None, "no rows below the header"),
        ("id\nSECRET1\n", None, None, "no label columns"),
        (
            "key,c\nSECRET1,1\n",
            None,
            "id",
            "which must be the header",
        ),
        ("SECRET1,1,SECRET2\nSECRET3,2,SECRET4\n", None, "id", "which must be the header"),
        ("SECRET1,,SECRET2\nSECRET3,2,SECRET4\n", None, "id", "which must be the header"),
        ("id;c;SECRET\nSECRET1;1;2\n", None, "id", "check the separator"),
        ("id,c\nSECRET1,1\nSECRET2,1,137\n", 3, None, "3 fields, expected 2"),
        ('id,c\n"SECRET\n\n1",1\n\nSECRET2\n', 6, None, "1 fields, expected 2"),
        ("id,c,\nSECRET1,1,2\n", None, None, "field 3 of the header has an empty name"),
        (",id,c\n0,SECRET1,1\n", None, None, "index=False"),
        ("id,clf:\nSECRET1,1\n", None, None, "field 2 of the header has an empty name"),
        ("id,clf:=a\nSECRET1,1\n", None, None, "field 2 of the header has an empty name"),
        ("id,soft:s=\nSECRET1,1\n", None, None, "field 2 of the header has an empty name"),
        ("id,c, c\nSECRET1,1,2\n", None, "c", "two columns"),
        ("id,id,c\nSECRET1,1,2\n", None, "id", "two columns"),
        ("id,X,clf:X\nSECRET1,1,2\n", None, "X", "two columns"),
        ("id,clf:X=a,X\nSECRET1,1,2\n", None, "X", "two columns"),
        ("id,clf:X=a,soft:X=a\nSECRET1,1,1\n", None, "X", "two columns"),
        ("id,clf:X=1,clf:X=01\nSECRET1,1,0\n", None, "X", "two fields give the same class"),
        ("id,c\na,1\nSECRET1,1\nb,1\n SECRET1 ,2\n", 5, "id", "the same id as in row 3"),
        ("id,c\na,1\n ,1\n", 3, "id", "empty id"),
        ("id,c\na,1\n" + "SECRET" * 1000 + ",1\n", 3, "id", "longer than"),
        ("id,c,d\nSECRET1,1,\nSECRET2,2,NA\n", None, "d", "no label in this column: remove the column"),
        ("id,c,d\nSECRET1,1,-1\nSECRET2,2,-1\n", None, "d", "no label in this column"),
        ("id,c,clf:v=a\nSECRET1,1,\nSECRET2,2,\n", None, "v", "no label in this column"),
        ("id,c\nSECRET1,1\nSECRET2,0.137\nSECRET3,1.137\n", 3, "c", "fractional"),
        ('id,c\n"SECRET\n1",1\n\nSECRET2,0.137\n', 5, "c", "fractional"),
        ("id,c\nSECRET1,1\nSECRET2,99999999999999999137.5\n", 3, "c", "fractional"),
        ("id,c\nSECRET1,1\nSECRET2,1e-400\n", 3, "c", "fractional"),
        ("id,c\nSECRET1,1\n\0SECRET2,2\n", 3, None, "NUL character"),
        ('id,c\nSECRET1,1\nSECRET2,"2\nSECRET3,3\n', 3, None, "quotation marks"),
        ('id,c\nSECRET1,"1"2\n', 2, None, "quotation marks"),
        ("id,c\nSECRET1,1\nSECRET2," + "137" * 50_000, 3, None, "quotation marks"),
        ("id,clf:v=a,clf:v=b\nSECRET1,1,0\nSECRET2,0.137,\n", 3, "clf:v=b", "fill in all or none"),
        ("id,clf:v=a,clf:v=b\nSECRET1,1,0\nSECRET2,1.137,-0.137\n", 3, "clf:v=b", "not a probability"),
        ("id,clf:v=a,clf:v=b\nSECRET1,1,0\nSECRET2,SECRET,0\n", 3, "clf:v=a", "not a probability"),
        ("id,clf:v=a,clf:v=b\nSECRET1,1,0\nSECRET2,1e400,0\n", 3, "clf:v=a", "not a probability"),
        ("id,clf:v=a,clf:v=b\nSECRET1,1,0\nSECRET2,0.5,0.137\n", 3, "v", "must sum to 1"),
        ("id,soft:v=a,soft:v=b\nSECRET1,1,0\nSECRET2,0,0\n", 3, "v", "must sum to 1"),
        ("id,soft:v=a,soft:v=b\nSECRET1,1,0\nSECRET2,0.5,0.502\n", 3, "v", "must sum to 1"),
    ],
)
def test_refusals(tmp_path: Path, content: str, row: int | None, column: str | None, problem: str) -> None:
    error = refusal(write(tmp_path, content))
    assert problem in str(error)
    assert (error.row, error.column) == (row, column)


def test_an_unknown_classifier_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "id,a,clf:b\nSECRET1,1,2\n")
    error = refusal(path, classifiers=["a", "z*"])
    assert error.column == "z*"
    assert "the columns are 'a', 'b'" in str(error)
    # One that is a classifier already is no mistake.
    assert len(LabelTable.from_csv(path, classifiers=["b"]).classifiers) == 1


def test_many_columns_are_not_all_listed(tmp_path: Path) -> None:
    header = "id," + ",".join(f"column{at}" for at in range(500))
    path = write(tmp_path, header + "\n" + "a" + ",1" * 500 + "\n")
    with pytest.raises(LabelError, match="and 480 more"):
        LabelTable.from_csv(path, columns=["other"])


def test_an_infinite_number_among_numbers_is_refused(tmp_path: Path) -> None:
    assert "infinite" in str(refusal(write(tmp_path, "id,c\na,1\nb,-inf\n")))


def test_a_file_without_a_header_shows_nothing_of_its_first_object(tmp_path: Path) -> None:
    message = str(refusal(write(tmp_path, "SECRET1,red,blue\nSECRET2,red,green\n")))
    assert "must be the header" in message
    assert not any(word in message for word in ("SECRET", "red", "blue"))


def test_files_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in (".csv", ".csv.gz", ".parquet"):
        assert "no such file" in str(refusal(tmp_path / f"absent{suffix}"))
        folder = tmp_path / f"folder{suffix}"
        folder.mkdir()
        assert "expected a file" in str(refusal(folder))
    path = write(tmp_path, "id,c\na,1\n")
    for failure, problem in (
        (PermissionError(13, "Permission denied"), "no permission"),
        (OSError(5, "Input/output error"), "cannot be read: Input/output error"),
    ):

        def fail(_: Path, failure: OSError = failure) -> bytes:
            raise failure

        # chmod does not stop root, who runs the tests in a container.
        monkeypatch.setattr(Path, "read_bytes", fail)
        assert problem in str(refusal(path))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_not_utf8_names_the_line_and_the_remedy(tmp_path: Path, encoding: str) -> None:
    error = refusal(write(tmp_path, "id,c\nSECRET1,\u00e9\n".encode(encoding)))
    assert "save the file as UTF-8" in str(error)
    assert error.row == (2 if encoding == "latin-1" else 1)


def test_broken_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(("id,c\n" + "".join(f"o{at},{at % 7}\n" for at in range(500))).encode())
    for at, data in enumerate((b"id,c\nSECRET1,1\n", whole[: len(whole) // 2], whole[:30] + b"\xff" * 30 + whole[60:])):
        path = tmp_path / f"{at}.csv.gz"
        path.write_bytes(data)
        assert "not a complete gzip file" in str(refusal(path))


@given(st.binary(max_size=200), st.sampled_from(["x.csv", "x.tsv.gz", "x.parquet"]))
@settings(max_examples=100, deadline=None)
def test_garbage_is_refused_or_read_but_never_crashes(data: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), b"id,c\n" + data, name)
        with contextlib.suppress(LabelError):
            LabelTable.from_file(path)


# Parquet


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    path = folder / "site.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_types(tmp_path: Path) -> None:
    path = parquet(
        tmp_path,
        {
            "id": [1, 22],
            "int": pa.array([3, None], pa.int16()),
            "float": [2.0, float("nan")],
            "bool": [True, False],
            "text": pa.array(["b", "a"]).dictionary_encode(),
            "bytes": pa.array([b"x", None]),
            "clf:v=1": pa.array([0.5, None]),
            "clf:v=0": pa.array(["0.5", "NA"]),
        },
    )
    table = LabelTable.from_parquet(path)
    assert table.ids.tolist() == ["1", "22"]
    assert labels_of(table.column("int")) == [3, None]
    assert labels_of(table.column("float")) == [2, None]
    assert labels_of(table.column("bool")) == [1, 0]
    assert labels_of(table.column("text")) == ["b", "a"]
    assert labels_of(table.column("bytes")) == ["x", None]
    np.testing.assert_array_equal(table.column("v").probabilities, [[0.5, 0.5], [np.nan, np.nan]])
    path.rename(tmp_path / "site.pq")
    assert LabelTable.from_file(tmp_path / "site.pq").ids.tolist() == ["1", "22"]


@pytest.mark.parametrize(
    ("columns", "row", "column", "problem"),
    [
        ({"id": ["a", None], "c": [1, 2]}, 3, "id", "empty id"),
        ({"id": [137, 137], "c": [1, 2]}, 3, "id", "the same id as in row 2"),
        ({"id": [1.0, 0.137], "c": [1, 2]}, 3, "id", "not an integer"),
        ({"id": [["SECRET"], ["b"]], "c": [1, 2]}, 2, "id", "container"),
        ({"key": ["SECRET", "b"], "c": [1, 2]}, None, "id", "which must be the header"),
        ({"id": ["a", "b"], "c": [1.0, 0.137]}, 3, "c", "fractional"),
        ({"id": ["a", "b"], "c": [1.0, float("inf")]}, 3, "c", "infinite"),
        ({"id": ["a", "b"], "c": [["SECRET"], None]}, 2, "c", "container"),
        ({"id": ["a", "b"], "c": [1, 1], "d": pa.nulls(2)}, None, "d", "no label in this column"),
        (
            {"id": ["a", "b"], "c": [1, 1], "__index_level_0__": [5, 6]},
            None,
            "__index_level_0__",
            "index=False",
        ),
        ({"id": ["a", "b"]}, None, None, "no label columns"),
        ({"id": pa.array([], pa.string()), "c": pa.array([], pa.int8())}, None, None, "no rows"),
        ({"id": ["a", "b"], "clf:v=1": [1.0, 0.5], "clf:v=2": [0.0, 0.137]}, 3, "v", "must sum to 1"),
        (
            {"id": ["a", "b"], "clf:v=1": [1.0, -0.137], "clf:v=2": [0.0, 1.0]},
            3,
            "clf:v=1",
            "not a probability",
        ),
        ({"id": ["a", "b"], "clf:v=1": [[1.0], [0.137]]}, 2, "clf:v=1", "container"),
    ],
)
def test_refusals_of_parquet(
    tmp_path: Path, columns: dict[str, Any], row: int | None, column: str | None, problem: str
) -> None:
    error = refusal(parquet(tmp_path, columns))
    assert problem in str(error)
    assert (error.row, error.column) == (row, column)


def test_not_a_parquet_file(tmp_path: Path) -> None:
    whole = parquet(tmp_path, {"id": ["a"], "c": [1]}).read_bytes()
    for data in (b"", b"id,c\nSECRET1,1\n", whole[:-10], b"PAR1" + whole[4:20] + b"PAR1"):
        assert "not a complete Parquet file" in str(refusal(write(tmp_path, data, "site.parquet")))


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    assert "not UTF-8" in str(refusal(parquet(tmp_path, {"id": ["a"], "c": broken})))


def test_parquet_without_pyarrow_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path, {"id": ["SECRET"], "c": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'ce[parquet]'" in str(refusal(path))


# Round trips

ids = st.text(string.ascii_letters + string.digits + " ,;\"'\t\n\r\u00e9\u0301\u4e2d", min_size=1, max_size=6)
words = st.text(string.ascii_letters + " ,;\"'\t\n\u0301\u4e2d", max_size=5).map(lambda text: f"x{text}")
integers = st.integers(0, 2**63 - 1)


def clean(text: str) -> str:
    return unicodedata.normalize("NFC", text.strip())


@st.composite
def label_files(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Header and columns of a random file: integers, names, votes; None is missing, never a whole column."""
    keys = draw(
        st.lists(ids.filter(lambda text: text.strip() and "\r" not in text), min_size=1, max_size=7, unique_by=clean)
    )
    columns: dict[str, list[Any]] = {"id": keys}
    for at in range(draw(st.integers(1, 4))):
        cells = draw(st.sampled_from([words, integers, st.integers(0, 3)]))
        values = draw(st.lists(st.none() | cells, min_size=len(keys), max_size=len(keys)))
        values[0] = draw(cells)
        columns[draw(st.sampled_from(["", "clf:"])) + f"c{at}"] = values
    if draw(st.booleans()):
        shares = draw(st.lists(st.none() | st.floats(0, 1), min_size=len(keys), max_size=len(keys)))
        shares[0] = 0.25
        columns["soft:s=a"] = shares
        columns["soft:s=b"] = [None if share is None else 1 - share for share in shares]
    return columns


@given(label_files(), st.sampled_from([".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".parquet"]))
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_back(columns: dict[str, list[Any]], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"site{suffix}"
        if suffix == ".parquet":
            pq.write_table(pa.table(columns), path)
        else:
            text = io.StringIO(newline="")
            writer = csv.writer(text, delimiter="\t" if "tsv" in suffix else ",")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
            write(Path(folder), text.getvalue(), path.name)
        table = LabelTable.from_file(path)
    assert table.ids.tolist() == [clean(key) for key in columns.pop("id")]
    if "soft:s=a" in columns:
        shares = [np.array(columns.pop(f"soft:s={name}"), dtype=float) for name in "ab"]
        assert table.column("s").probabilities == pytest.approx(np.column_stack(shares), nan_ok=True)
        assert table.column("s").categories == ("a", "b")
    hard = [column for column in table.columns if not column.soft]
    for (name, values), column in zip(columns.items(), hard, strict=True):
        assert column.name == name.removeprefix("clf:")
        assert column.kind == ("classifier" if "clf:" in name else "clustering")
        assert labels_of(column) == [clean(value) if isinstance(value, str) else value for value in values]
        assert list(column.categories) == sorted(set(labels_of(column)) - {None})  # type: ignore[type-var]
