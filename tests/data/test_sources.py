"""The named data sets: the embedded ones exactly, the others if the cache has them."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from typer.testing import CliRunner

import fedstride as fs
from fedstride.app.cli.data import app
from fedstride.data import cache, convert, sources
from tests.data import raw


def sorted_rows(array):
    return array[np.lexsort(array.T)]


def whole(table):
    """Return training and test samples with their labels, sorted, which no split may change."""
    parts = [torch.cat([X.flatten(1).double(), y[:, None]], 1) for X, y in (table.train, table.test)]
    return sorted_rows(torch.cat(parts).numpy())


def test_digits_exactly():
    table = fs.data.load("digits")
    data, target = load_digits(return_X_y=True)
    assert np.array_equal(whole(table), sorted_rows(np.column_stack([data / 16, target])))
    assert torch.bincount(table.train[1]).tolist() == [142, 146, 142, 146, 145, 145, 145, 143, 139, 144]
    assert torch.bincount(table.test[1]).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    assert (float(table.train[0].min()), float(table.train[0].max())) == (0, 1)
    image = load_digits().images[0] / 16
    assert any(np.array_equal(x[0], image) for x in torch.cat([table.train[0], table.test[0]]).double().numpy())


def test_breast_cancer_exactly():
    table = fs.data.load("breast_cancer", standardize=False)
    data, target = load_breast_cancer(return_X_y=True)
    assert np.array_equal(whole(table), sorted_rows(np.column_stack([data.astype(np.float32), target])))
    assert torch.bincount(table.train[1]).tolist() == [170, 285]
    assert torch.bincount(table.test[1]).tolist() == [42, 72]


def test_standardized_by_the_training_samples():
    table, plain = (fs.data.load("breast_cancer", standardize=s) for s in (True, False))
    X = table.train[0].double()
    assert torch.allclose(X.mean(0), torch.zeros(30).double(), atol=1e-6)
    assert torch.allclose(X.std(0, correction=0), torch.ones(30).double(), atol=1e-6)
    mean, deviation = plain.train[0].double().mean(0), plain.train[0].double().std(0, correction=0)
    assert torch.allclose(table.test[0].double(), (plain.test[0].double() - mean) / deviation, atol=1e-5)


@pytest.mark.parametrize("name", ["digits", "breast_cancer"])
def test_the_embedded_sets_are_always_the_same_and_need_no_cache(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRIDE_DATA", str(tmp_path / "none"))
    torch.manual_seed(1)
    np.random.seed(1)
    first = fs.data.load(name)
    assert torch.equal(first.train[0], fs.data.load(name).train[0])
    assert not (tmp_path / "none").exists()


def is_there(name):
    return pytest.param(
        name,
        marks=pytest.mark.skipif(
            fs.data.SOURCES[name].shapes is not None and not cache.path(name).exists(),
            reason=f"{name} is not in the cache: fedstride data get {name}",
        ),
    )


@pytest.mark.parametrize("name", [*map(is_there, fs.data.SOURCES)])
def test_sources_match_their_description(name):
    source, table = fs.data.SOURCES[name], fs.data.load(name)
    (X, y), (Z, z) = table.train, table.test
    assert (len(X), len(Z), table.classes) == (source.train, source.test, source.classes)
    assert X.dtype == (torch.int64 if name == "shakespeare" else torch.float32)
    assert y.dtype == z.dtype == torch.int64
    assert X.shape[1:] == Z.shape[1:]
    assert (table.groups is None) == (source.clients is None)
    if table.groups is not None:
        assert torch.equal(table.groups.unique(), torch.arange(source.clients))
    assert source.licence in table.about


DIGITS = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
HISTOGRAMS = {
    "fashion_mnist": ([6000] * 10, [1000] * 10),
    "mnist": DIGITS,
    "mnist_writers": DIGITS,
    "cifar10": ([5000] * 10, [1000] * 10),
    "covtype": ([169472, 226640, 28603, 2198, 7594, 13894, 16408], [42368, 56661, 7151, 549, 1899, 3473, 4102]),
}
PUBLISHED = {  # mean and deviation of the training pixels, per channel
    "fashion_mnist": ([0.2860], [0.3530]),
    "mnist": ([0.1307], [0.3081]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
}


@pytest.mark.parametrize("name", [*map(is_there, HISTOGRAMS)])
def test_the_labels_of_a_source(name):
    table = fs.data.load(name)
    assert (torch.bincount(table.train[1]).tolist(), torch.bincount(table.test[1]).tolist()) == HISTOGRAMS[name]


@pytest.mark.parametrize("name", [*map(is_there, PUBLISHED)])
def test_the_pixels_of_a_source(name):
    X = fs.data.load(name).train[0]
    mean, deviation = PUBLISHED[name]
    assert X.mean((0, 2, 3)).tolist() == pytest.approx(mean, abs=1e-4)
    assert X.std((0, 2, 3)).tolist() == pytest.approx(deviation, abs=1e-4)


@pytest.mark.parametrize("name", [is_there("mnist_writers")])
def test_writers_have_their_digits(name):
    table = fs.data.load(name)
    sizes = [len(p) for p in fs.data.partition.natural(table.groups)]
    assert (len(sizes), min(sizes), max(sizes)) == (539, 19, 131)


@pytest.mark.parametrize("name", [is_there("shakespeare")])
def test_shakespeare_reads_as_text(name):
    table = fs.data.load(name)
    letters = "".join(map(chr, sources.tensors(name)["alphabet"].tolist()))
    role = "".join(letters[c] for c in table.train[0][table.groups == 0][::8].flatten().tolist())
    assert " the " in role
    assert (table.train[0][1, :70] == table.train[0][0, 10:]).all()
    assert table.train[1][0] == table.train[0][1, 70]


def test_writers_that_do_not_match_mnist_are_refused(tmp_path, monkeypatch):
    rows = np.zeros((3, 8), np.int32)
    rows[:, 0], rows[:, 2] = [1, 2, 3], [70, 12, 70]
    files = {"qmnist-train-labels-idx2-int": raw.idx(rows)}
    (tmp_path / "qmnist-train-labels-idx2-int").write_bytes(*files.values())
    monkeypatch.setattr(sources, "WRITERS", raw.sha256(files))
    for labels, fits in (([1, 2, 3], True), ([1, 3, 2], False)):
        mnist = {"train_labels": torch.tensor(labels)}
        monkeypatch.setattr(sources, "tensors", lambda *a, mnist=mnist: mnist)
        if fits:
            made = sources._mnist_writers(tmp_path, lambda what: None)
            assert made["groups"].tolist() == [1, 0, 1]
        else:
            with pytest.raises(fs.InvalidInput, match="does not match the order of MNIST"):
                sources._mnist_writers(tmp_path, lambda what: None)


def test_cifar_pictures_have_their_channels_first(tmp_path, monkeypatch):
    image = np.arange(6 * 2 * 3072, dtype=np.int64).reshape(6, 2, 1024, 3).astype(np.uint8)
    names = [n for n in convert.CIFAR if n.endswith(".png")]
    files = {n: raw.png(p, [1, 4]) for n, p in zip(names, image, strict=True)}
    files |= {"train_lables.json": json.dumps([*range(10)]).encode(), "test_lables.json": b"[1, 0]"}
    for name, body in files.items():
        (tmp_path / name).write_bytes(body)
    monkeypatch.setattr(convert, "CIFAR", raw.sha256(files))
    made = convert.cifar10(tmp_path, lambda what: None)
    assert made["train"].shape == (10, 3, 32, 32)
    assert made["train_labels"].tolist() == [*range(10)]
    assert made["train"][3, 2, 5, 7] == image[1, 1, 5 * 32 + 7, 2]  # the second image of the second file, blue
    assert made["test"][0, 1, 31, 0] == image[5, 0, 31 * 32, 1]


def test_unknown_names_and_options():
    with pytest.raises(fs.InvalidInput, match="did you mean 'mnist'"):
        fs.data.get("mnits")
    with pytest.raises(fs.InvalidInput, match="digits: unknown option 'standardize'; it has no options"):
        fs.data.load("digits", standardize=True)
    with pytest.raises(fs.InvalidInput, match="breast_cancer: unknown option 'standardise'; did you mean"):
        fs.data.load("breast_cancer", standardise=True)


def test_hugging_face_without_flwr_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(fs.InvalidInput, match="hf:ylecun/mnist needs flwr-datasets: pip install"):
        fs.data.load("hf:ylecun/mnist")


def test_hugging_face_from_a_local_folder(tmp_path, monkeypatch):
    pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for part, rows in (("train", "1,b,0\n2,a,1\n3,b,2\n"), ("test", "4,c,1\n")):
        (tmp_path / f"{part}.csv").write_text("x,who,label\n" + rows)
    table = fs.data.load(f"hf:{tmp_path}", input="x", client="who")
    assert table.train[0].tolist() == [[1], [2], [3]]
    assert (table.train[1].tolist(), table.test[1].tolist(), table.classes) == ([0, 1, 2], [1], 3)
    assert table.groups.tolist() == [1, 0, 1]


def call(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_data_list(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRIDE_DATA", str(tmp_path))
    cache.path("mnist").write_bytes(b"")
    rows = {row["name"]: row for row in json.loads(call("list", "--json").output)}
    assert list(rows) == list(fs.data.SOURCES)
    assert [rows[n]["cached"] for n in ("digits", "mnist", "cifar10")] == ["embedded", "yes", "no"]
    assert rows["mnist_writers"]["clients"] == 539
    shown = call("list").output
    assert all(name in shown for name in fs.data.SOURCES)


def test_data_info_and_get_of_an_embedded_set():
    facts = json.loads(call("info", "digits", "--json").output)
    assert facts["train"]["samples"] == 1437
    assert facts["test"]["labels"] == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]
    assert (facts["classes"], facts["clients"], facts["input"]) == (10, None, [1, 8, 8])
    assert "1,437" in call("info", "digits").output
    assert "nothing to download" in call("get", "digits").output


def test_data_info_of_a_file_with_clients(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    users = {"u": {"x": [[1], [2]], "y": [0, 1]}, "v": {"x": [[3]], "y": [0]}}
    for part in ("train", "test"):
        (tmp_path / part / "a.json").write_text(json.dumps({"users": ["u", "v"], "user_data": users}))
    facts = json.loads(call("info", str(tmp_path), "--json").output)
    assert facts["clients"] == {"number": 2, "smallest": 1, "median": 1, "largest": 2}
    assert "2 natural clients with 1 to 2 samples" in " ".join(call("info", str(tmp_path)).output.split())


def test_data_errors_have_no_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRIDE_DATA", str(tmp_path))
    for arguments in (("get", "nothing"), ("info", "nothing"), ("get", "mnist", "--folder", str(tmp_path))):
        result = call(*arguments)
        assert result.exit_code == 2
        assert "Error: " in result.output
        assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
