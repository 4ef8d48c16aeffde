"""Readers of the user's files: LIBSVM, CSV, Parquet, LEAF."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import re

import pytest
import torch

import fedstride as fs

SVM = "+1 1:0.5 3:2\n-1 2:1\n+1 1:1 2:1 3:1\n-1 3:-4\n" * 5


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows(table):
    """Return all samples with their labels, sorted, which no split may change."""
    return sorted((x.tolist(), y) for X, t in (table.train, table.test) for x, y in zip(X, t.tolist(), strict=True))


@pytest.mark.parametrize(
    "name, pack", [("a", bytes), ("a.txt", bytes), ("a.bz2", bz2.compress), ("a.gz", gzip.compress)]
)
def test_libsvm_plain_and_packed(write, name, pack):
    table = fs.data.load(write(name, pack(SVM.encode())))
    one = [([0.5, 0, 2], 1), ([0, 1, 0], 0), ([1, 1, 1], 1), ([0, 0, -4], 0)]
    assert rows(table) == sorted(one * 5)
    assert (len(table.train[0]), len(table.test[0]), table.classes, table.groups) == (16, 4, 2, None)
    assert (table.train[0].dtype, table.train[1].dtype) == (torch.float32, torch.int64)
    assert torch.bincount(table.test[1]).tolist() == [2, 2]


def test_libsvm_with_a_test_file_that_knows_other_features(write):
    test = write("a.t", "-1 5:1\n")
    table = fs.data.load(write("a", SVM), test=test)
    assert table.train[0].shape == (20, 5)
    assert table.test[0].tolist() == [[0, 0, 0, 0, 1]]
    assert table.test[1].tolist() == [0]


def test_libsvm_regression(write):
    table = fs.data.load(write("a", "0.5 1:1\n1.5 1:2\n2.5 1:3\n"), regression=True)
    assert table.classes is None
    assert table.train[1].dtype == torch.float32
    assert rows(table) == [([1.0], 0.5), ([2.0], 1.5), ([3.0], 2.5)]


def test_the_split_is_seeded(write):
    path = write("a", "".join(f"{i % 2} 1:{i}\n" for i in range(50)))
    first, again, other = (fs.data.load(path, seed=s).test[0].flatten().tolist() for s in (0, 0, 1))
    assert first == again != other


CSV = "who,a,b,kind\nzoe,1,2,cat\nbob,3,4,dog\nzoe,5,6,cat\namy,7,8,dog\nbob,9,10,cat\n"


def test_csv_with_a_client_column(write):
    test = write("t.csv", "b,kind,a\n2,dog,1\n")
    table = fs.data.load(write("d.csv", CSV), label="kind", client="who", test=test)
    assert table.train[0].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    assert table.train[1].tolist() == [0, 1, 0, 1, 0]
    assert table.groups.tolist() == [2, 1, 2, 0, 1]
    assert table.test[0].tolist() == [[1, 2]]
    assert table.test[1].tolist() == [1]
    assert table.classes == 2
    assert "cat, dog" in table.about


def test_numeric_clients_keep_their_order(write):
    table = fs.data.load(
        write("d.csv", "c,x,label\n10,1,0\n2,2,1\n10,3,0\n"), client="c", test=write("t.csv", "x,label\n1,0\n")
    )
    assert table.groups.tolist() == [1, 0, 1]


def test_the_groups_follow_the_split(write):
    path = write("d.csv", "c,x,label\n" + "".join(f"{i % 7},{i},{i % 2}\n" for i in range(70)))
    table = fs.data.load(path, client="c", test=0.3)
    assert table.train[0].shape == (49, 1)
    assert table.groups.tolist() == [int(x) % 7 for x in table.train[0]]
    federation = fs.data.federate(table, fs.data.partition.natural(table.groups))
    assert len(federation) == 7


def test_csv_packed_with_chosen_features_and_a_folder(write, tmp_path):
    write("d.csv.gz", gzip.compress(CSV.encode()))
    table = fs.data.load("d.csv.gz", folder=tmp_path, label="a", features=["b"], regression=True)
    assert rows(table) == [([2.0], 1.0), ([4.0], 3.0), ([6.0], 5.0), ([8.0], 7.0), ([10.0], 9.0)]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_reports_what_to_install(write):
    with pytest.raises(fs.InvalidInput, match="pip install pyarrow"):
        fs.data.load(write("d.parquet", b"PAR1"))


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet(tmp_path):
    import pandas as pd

    pd.DataFrame({"x": [1.0, 2.0, 3.0], "label": [0, 1, 0]}).to_parquet(tmp_path / "d.parquet")
    assert rows(fs.data.load(tmp_path / "d.parquet")) == [([1.0], 0), ([2.0], 1), ([3.0], 0)]


def leaf(users):
    data = {u: {"x": x, "y": y} for u, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(d["y"]) for d in data.values()], "user_data": data})


def test_leaf_with_numbers(write, tmp_path):
    write("train/a.json", leaf({"u": ([[1, 2, 3, 4], [5, 6, 7, 8]], [3, 9]), "v": ([[0, 0, 0, 1]], [3])}))
    write("train/b.json", leaf({"w": ([[2, 2, 2, 2]], [9]), "u": ([[1, 1, 1, 1]], [3])}))
    write("test/a.json", leaf({"u": ([[4, 3, 2, 1]], [9])}))
    table = fs.data.load(tmp_path, shape=(1, 2, 2))
    assert table.train[0].shape == (5, 1, 2, 2)
    assert table.train[0][1].tolist() == [[[5, 6], [7, 8]]]
    assert table.train[1].tolist() == [0, 1, 0, 1, 0]
    assert table.groups.tolist() == [0, 0, 1, 2, 0]
    assert table.test[1].tolist() == [1]
    assert table.classes == 2
    with pytest.raises(fs.InvalidInput, match=re.escape(str(tmp_path))):  # five inputs of 4 numbers are not one of 20
        fs.data.load(tmp_path, shape=(20,))


def test_leaf_with_text(write, tmp_path):
    write("train/a.json", leaf({"u": (["abc", "bca"], ["a", "b"])}))
    write("test/a.json", leaf({"u": (["cab"], ["c"])}))
    table = fs.data.load(tmp_path)
    assert table.train[0].tolist() == [[0, 1, 2], [1, 2, 0]]
    assert table.train[1].tolist() == [0, 1]
    assert table.test[0].tolist() == [[2, 0, 1]]
    assert (table.test[1].tolist(), table.classes, table.train[0].dtype) == ([2], 3, torch.int64)


BAD_FILES = {
    "no such thing": ("digit", {}, "did you mean 'digits'"),
    "no such file": ("nowhere/a.csv", {}, "is not a data set, file or folder"),
    "empty LIBSVM": (("a", ""), {}, "has no samples"),
    "text as LIBSVM": (("a", "To be, or not to be\n"), {}, "not a readable LIBSVM file"),
    "cut bz2": (("a.bz2", bz2.compress(SVM.encode())[:-9]), {}, "not a readable LIBSVM file"),
    "damaged gz": (("d.csv.gz", gzip.compress(CSV.encode())[:-12]), {}, "not a readable table"),
    "too few features": (("a", SVM), {"features": 2}, "not a readable LIBSVM file"),
    "too large when dense": (("a", "1 2000000000:1\n" * 9), {}, "GiB as a dense table"),
    "fractional classes": (("a", "0.5 1:1\n1 1:2\n"), {}, "0.5 are not classes; use regression=True"),
    "test label unseen": (
        ("a", SVM),
        {"test": ("t", "7 1:1\n")},
        "test label '7.0' does not occur in the training samples",
    ),
    "test file missing": (("a", SVM), {"test": "nowhere"}, "nowhere: not a readable LIBSVM file"),
    "test share": (("a", SVM), {"test": 1.0}, "test=1.0"),
    "one sample": (("a", "1 1:1\n"), {}, "one sample"),
    "unknown option": (("a", SVM), {"labell": "x"}, "unknown option 'labell'"),
    "near option": (("d.csv", CSV), {"labels": "kind"}, "did you mean 'label'"),
    "empty CSV": (("d.csv", ""), {}, "not a readable table"),
    "head only": (("d.csv", "a,label\n"), {}, "has no rows"),
    "label column": (
        ("d.csv", CSV),
        {},
        "label='label' is not a column; name the column .*--label.*: expected one of: who, a, b, kind",
    ),
    "client column": (("d.csv", CSV), {"label": "kind", "client": "whom"}, "client='whom' is not a column"),
    "feature column": (("d.csv", CSV), {"label": "kind", "features": ["c"]}, "features='c' is not a column"),
    "text as a feature": (("d.csv", CSV), {"label": "kind"}, "column 'who' contains 'zoe'"),
    "no features": (("d.csv", "label\n1\n0\n"), {}, "no feature columns"),
    "empty cell": (("d.csv", "x,label\n1,0\n,1\n"), {}, "column 'x' is empty in row 1"),
    "infinite": (("d.csv", "x,label\n1,0\ninf,0\n2,1\n"), {"test": ("t.csv", "x,label\n1,1\n")}, "NaN or infinite"),
    "text as a number": (("d.csv", "x,label\n1,a\n2,b\n"), {"regression": True}, "labels are not numbers"),
    "no json": (("train/readme", ""), {"as": "folder"}, "no .json files"),
    "json of another kind": (("train/a.json", "[1]"), {"as": "folder"}, "not a LEAF file"),
    "cut json": (("train/a.json", leaf({"u": ([[1]], [0])})[:-9]), {"as": "folder"}, "not a LEAF file"),
    "uneven user": (
        ("train/a.json", leaf({"u": ([[1]], [0, 1])})),
        {"as": "folder"},
        "'u' has different numbers of x and y",
    ),
    "ragged": (("train/a.json", leaf({"u": ([[1], [1, 2]], [0, 1])})), {"as": "folder"}, "do not form a table"),
    "no users": (("train/a.json", leaf({})), {"as": "folder"}, "inputs .* are invalid"),
    "one number each": (("train/a.json", leaf({"u": ([1, 2], [0, 1])})), {"as": "folder"}, "inputs .* are invalid"),
    "labels in rows": (("train/a.json", leaf({"u": ([[1]], [[0]])})), {"as": "folder"}, "labels .* are invalid"),
    "labels of nothing": (("train/a.json", leaf({"u": ([[1]], [None])})), {"as": "folder"}, "labels .* are invalid"),
    "numbers too large": (("train/a.json", leaf({"u": ([[10**400]], [0])})), {"as": "folder"}, "do not form a table"),
    "deep json": (("train/a.json", "[" * 100000), {"as": "folder"}, "not a LEAF file"),
    "label of no name": (("d.csv", CSV), {"label": ["kind"]}, r"label=\['kind'\] is not a column"),
    "label of nothing": (("d.csv", CSV), {"label": None}, "label=None is not a column"),
    "features of no list": (("d.csv", CSV), {"label": "kind", "features": 3}, "features=3 is invalid"),
    "seed": (("a", SVM), {"seed": -1}, "seed=-1 is invalid"),
    "infinite target": (("a", "1e300 1:1\n2 1:1\n"), {"regression": True}, "labels contain NaN or infinite"),
    "words and numbers": (
        ("d.csv", "x,label\n1,a\n2,b\n"),
        {"test": ("t.csv", "x,label\n1,0\n")},
        "training labels are .*, test labels int64",
    ),
    "index too large": (("a", f"1 {10**30}:1\n"), {}, "not a readable LIBSVM file"),
    "name too long": ("a" * 5000, {}, "path: 'aaa.* is invalid"),
    "home of nobody": ("~nobody-of-that-name/a", {}, "is invalid"),
    "unknown character": (
        ("train/a.json", leaf({"u": (["ab"], ["z"])})),
        {"as": "folder"},
        "'z' does not occur in the training",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_invalid_files_are_refused_with_their_name(write, tmp_path, case):
    given, options, message = BAD_FILES[case]
    options = dict(options)
    path = given if isinstance(given, str) else write(*given)
    if isinstance(options.get("test"), tuple):
        options["test"] = write(*options["test"])
    if options.pop("as", None):
        path = tmp_path
        write("test/a.json", leaf({"u": ([[1]], [0])}))
    with pytest.raises(fs.InvalidInput, match=message):
        fs.data.load(path, **options)
