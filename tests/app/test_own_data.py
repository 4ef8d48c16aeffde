"""The command line on the user's own files, models and functions."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import fedstride as fs
from fedstride.app import loggers, run_folder
from fedstride.app.cli import app
from fedstride.app.config import resolve, to_toml
from fedstride.app.presets import name_of

HOSPITALS = ("east", "north", "west")


def call(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "100"})


def patients(n=90):
    source = torch.Generator().manual_seed(0)
    age, pressure = (40 * torch.rand(2, n, generator=source) + 30).tolist()
    rows = zip(age, pressure, range(n), strict=True)
    return pd.DataFrame(
        {
            "age": a,
            "pressure": b,
            "smoker": "ny"[i % 2],
            "diagnosis": "ill" if a > b else "well",
            "hospital": HOSPITALS[i % 3],
        }
        for a, b, i in rows
    )


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    patients().to_csv("patients.csv", index=False)
    yield tmp_path
    sys.modules.pop("mine", None)


def only_run():
    (folder,) = Path("runs").iterdir()
    return folder


def test_a_table_gets_a_model_and_a_report_with_its_own_names():
    done = call("run", "patients.csv", "--label", "diagnosis", "--client", "hospital", "--rounds", 20)
    assert done.exit_code == 0, done.output
    folder = only_run()
    assert folder.name.startswith("patients-auto-")
    assert {p.name for p in folder.iterdir()} >= {"history.jsonl", "model.safetensors", "report.html", "diagnosis.html"}
    clients = json.loads((folder / "clients.json").read_text())
    assert (clients["names"], clients["classes"]) == (list(HOSPITALS), ["ill", "well"])
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["test_accuracy"] > 0.8 and rows[-1]["participants"] == 3
    assert "auto on patients" in (folder / "report.html").read_text()
    assert "clients  3 (east, north, west)" in done.output and "classes  2 (ill, well)" in done.output
    assert "\nNext: " in done.output and f"report: {folder / 'report.html'}" in done.output
    pages = [p.read_text() for p in folder.iterdir() if p.suffix in (".toml", ".json", ".jsonl")]
    assert all("digits" not in text for text in (done.output, *pages))


def test_the_configuration_of_a_folder_reads_back():
    job = run_folder.prepare(resolve("patients.csv", settings={"data.options.label": "diagnosis"}))
    Path("c.toml").write_text(to_toml(job.config))
    again = resolve(file=Path("c.toml"))
    assert again == job.config and again.task == "patients"
    assert (again.training.cohort, again.training.batch_size, again.model.name) == (None, 16, "softmax")
    assert again.normalise
    Path("patients.csv").unlink()
    assert resolve(file=Path("c.toml")) == job.config, "a report can be written without the data"


def test_settings_that_the_user_gives_are_kept():
    given = {"data.options.label": "diagnosis", "training.cohort": 2, "training.batch_size": 5, "model.name": "mlp"}
    config = run_folder.prepare(resolve("patients.csv", settings=given)).config
    assert (config.training.cohort, config.training.batch_size, config.model.name) == (2, 5, "mlp")


def test_without_a_client_column_rows_are_dealt_at_random_and_this_is_said():
    done = call("run", "patients.csv", "--label", "diagnosis", "--rounds", 1)
    assert "names no clients: its rows were dealt at random to 10 clients" in done.output and "--client" in done.output


def test_many_numbers_as_labels_are_a_regression():
    done = call("run", "patients.csv", "--label", "pressure", "--client", "hospital", "--rounds", 2, "--quiet")
    assert done.exit_code == 0 and "r2" in done.output and "mae" in done.output and "accuracy" not in done.output
    table = fs.data.load("patients.csv", label="pressure", encode=True, regression=True)
    start = run_folder.prepare(resolve("patients.csv", settings={"data.options.label": "pressure"})).model.head.bias
    assert start.item() == pytest.approx(float(table.train[1].mean()), rel=0.05)


def test_other_formats(monkeypatch):
    Path("small.svm").write_text("\n".join(f"{i % 2} 1:{i % 2} 2:{i}" for i in range(60)))
    assert run_folder.prepare(resolve("small.svm")).classes == 2
    for part in ("train", "test"):
        folder = Path("words") / part
        folder.mkdir(parents=True)
        user = {"x": ["abcab", "bcabc"], "y": ["c", "a"]}
        text = json.dumps({"users": ["u", "v"], "user_data": {"u": user, "v": user}, "num_samples": [2, 2]})
        (folder / "a.json").write_text(text)
    job = run_folder.prepare(resolve("words"))
    assert job.config.model.name == "char_lstm" and job.clients.names == ("u", "v") and job.config.task == "words"
    frame = pd.read_csv("patients.csv")
    Path("patients.parquet").write_bytes(b"")
    monkeypatch.setattr(pd, "read_parquet", lambda path: frame)
    settings = {"data.options.label": "diagnosis", "data.options.client": "hospital"}
    assert run_folder.prepare(resolve("patients.parquet", settings=settings)).clients.names == HOSPITALS


MINE = """
import torch
from torch import nn

def clients():
    return {name: (torch.randn(20, 4), torch.arange(20) % 3) for name in ("a", "b")}

def both():
    return clients(), (torch.randn(9, 4), torch.arange(9) % 3)

def net(shape, classes, width=5):
    return nn.Sequential(nn.Linear(*shape, width), nn.ReLU(), nn.Linear(width, classes))

def fixed():
    return nn.Linear(4, 3)

def broken():
    raise OSError("no disk")
"""


@pytest.mark.parametrize("model", ["mine:net", "mine:fixed", "mlp"])
def test_functions_of_the_user_give_clients_and_models(model):
    Path("mine.py").write_text(MINE)
    done = call("run", "--data", "mine:both", "--model", model, "--rounds", 2, "--quiet")
    assert done.exit_code == 0, done.output
    folder = only_run()
    assert folder.name.startswith("mine-auto-") and "test accuracy" in done.output
    assert json.loads((folder / "clients.json").read_text())["names"] == ["a", "b"]
    again = call("run", "--out", folder, "--resume", "--rounds", 3, "--quiet")
    assert again.exit_code == 0 and "3 rounds" in again.output


def test_clients_without_a_test_set_are_trained_on():
    Path("mine.py").write_text(MINE)
    done = call("run", "--data", "mine:clients", "--rounds", 2, "--quiet")
    assert done.exit_code == 0 and "training loss" in done.output and "test loss" not in done.output.splitlines()[0]
    assert "expected one" in call("run", "--data", "mine:clients", "--rounds", 2, "--alone").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["patient.csv"], "patient.csv: no such file or folder; did you mean 'patients.csv'"),
        (["patients.csv"], "name the column to predict"),
        (["patients.csv", "--label", "diagnosi"], "did you mean 'diagnosis'"),
        (["patients.csv", "--label", "diagnosis", "--client", "ward"], "client='ward' is not a column"),
        (["patients.csv", "--label", "diagnosis", "--model", "mpl"], "did you mean 'mlp'"),
        (["patients.csv", "--label", "diagnosis", "--model", "nowhere:f"], "--model 'nowhere:f' cannot be imported"),
        (["patients.csv", "--label", "diagnosis", "--model", "mine:broken"], "fails when called: OSError: no disk"),
        (["patients.csv", "--label", "diagnosis", "--model", "mine:clients"], "returns dict; expected an nn.Module"),
        (["patients.csv", "--label", "diagnosis", "--set", "training.cohort=99"], "cohort=99 is invalid"),
        (["patients.csv", "--label", "diagnosis", "--logger", "wand"], "did you mean 'wandb'"),
        (["patients.csv", "--data", "mine:both"], "expected one of them"),
        (["digis"], "did you mean 'digits'"),
    ],
)
def test_mistakes_are_named_and_leave_nothing_behind(arguments, message):
    Path("mine.py").write_text(MINE)
    before = {p.name for p in Path().iterdir()}
    done = call("run", *arguments, "--out", "a/b/c")
    assert done.exit_code == 2 and message in done.output.replace("\n", " ")
    assert {p.name for p in Path().iterdir()} - {"__pycache__"} == before


def test_names_of_data():
    assert name_of("x/patients.csv.gz") == "patients" and name_of("a9a.t") == "a9a.t"
    assert name_of("digits.csv") == "digits.csv", "not the name of a preset"
    assert name_of("mine:make") == "mine" and name_of("hf:ylecun/other") == "other"


def test_seed_and_logger(monkeypatch):
    logged = []

    class Fake:
        def __init__(self, project, run_name):
            self.about = (project, run_name)

        def __call__(self, event):
            logged.append(event.round)

        def close(self):
            logged.append(self.about)

    monkeypatch.setattr(loggers, "Wandb", Fake)
    monkeypatch.setattr(loggers, "check_installed", lambda name: None)
    arguments = ("run", "patients.csv", "--label", "diagnosis", "--rounds", 2, "--quiet", "--seed", 7)
    assert call(*arguments, "--logger", "wandb", "--out", "x").exit_code == 0
    assert logged == [0, 1, 2, ("patients", "x")]
    config = resolve(file=Path("x/config.toml"))
    assert (config.training.seed, config.model.seed, config.data.seed) == (7, 7, 0)


def test_a_logger_that_is_not_installed_is_named_before_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    done = call("run", "patients.csv", "--label", "diagnosis", "--logger", "wandb", "--out", "x")
    assert done.exit_code == 2 and "--logger wandb is not installed" in done.output and not Path("x").exists()


def test_compare_on_a_table():
    done = call(
        *("compare", "patients.csv", "--label", "diagnosis", "--client", "hospital", "--rounds", 2, "--seeds", 1),
        *("--quiet", "--out", "c"),
    )
    assert done.exit_code == 0, done.output
    assert json.loads(Path("c/compare.json").read_text())["task"] == "patients" and "test loss" in done.output
