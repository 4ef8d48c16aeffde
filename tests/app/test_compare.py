"""run.report() and fs.compare(): what the command line writes, in Python."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedstride as fs
from fedstride.app.cli import app
from fedstride.app.diagnose import findings
from fedstride.app.report import charts
from fedstride.training.stop import STOP
from tests.app.report.figures import check
from tests.app.report.folders import Page
from tests.problems import seeded

NAMES = ("north", "south", "<east>")


def people(n=20, seed=0):
    source = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 4, generator=source)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


CLIENTS = {name: people(20 + 5 * i, i) for i, name in enumerate(NAMES)}
MODEL = seeded(lambda: nn.Linear(4, 3), torch.float32)
OPTIONS = {"rounds": 6, "batch_size": 5, "test": [people(12, i + 9) for i in range(3)], "metrics": ["f1"]}


@pytest.fixture(scope="module")
def run():
    clients = fs.data.Federation(CLIENTS)
    clients.classes = ("none", "one", "both")
    return fs.train(MODEL, "cross_entropy", clients, "auto", **OPTIONS)


def test_a_report_has_everything_that_the_command_line_writes(run, tmp_path):
    path = run.report(tmp_path / "run")
    names = {p.name for p in path.parent.iterdir()}
    assert path == tmp_path / "run" / "report.html" and names >= {
        *("history.jsonl", "model.safetensors", "run.safetensors", "settings.json", "environment.json", "clients.json"),
        "diagnosis.html",
    }
    found = json.loads((path.parent / "clients.json").read_text())
    assert (
        found["names"] == list(NAMES) and found["classes"] == ["none", "one", "both"] and found["sizes"] == [20, 25, 30]
    )
    assert [sum(counts) for counts in found["labels"]] == found["sizes"]
    scores = fs.evaluate(run.model, fs.data.Federation(CLIENTS), "cross_entropy")
    assert found["accuracy"] == [scores[name]["accuracy"] for name in NAMES]
    assert found["loss"] == [scores[name]["loss"] for name in NAMES]
    settings = json.loads((path.parent / "settings.json").read_text())
    assert settings["training"]["batch_size"] == 5 and settings["model"] == {"class": "Linear", "parameters": 15}


def test_names_and_metrics_are_in_the_pages(run, tmp_path):
    folder = run.report(tmp_path).parent
    page = Page(folder / "report.html")
    drawn = page.data["charts"]
    assert page.text("h1") == ["auto on 3 clients"]
    for figure in drawn.values():
        check(figure)
    assert drawn.keys() >= {"metric-f1", "metric-test_worst_decile", "metric-test_spread", "left_behind", "partition"}
    ticks = drawn["left_behind"]["layout"]["xaxis"]["ticktext"]
    assert sorted(ticks) == sorted(["north", "south", "<east>"])
    assert drawn["partition"]["layout"]["xaxis"]["ticktext"] == ["north", "south", "<east>"]
    assert drawn["partition"]["layout"]["yaxis"]["ticktext"] == ["none", "one", "both"]
    assert {"f1", "Worst tenth of the clients"} <= set(page.text("dt"))


def test_the_clients_left_behind_are_named(run, tmp_path):
    folder = run.report(tmp_path).parent
    rows = [{**run.history[-1], "round": i, "train_loss": 1 / i, "test_loss": 1 / i} for i in range(1, 31)]
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    clients = {**json.loads((folder / "clients.json").read_text()), "accuracy": [0.9, 0.2, 0.8]}
    (folder / "clients.json").write_text(json.dumps(clients))
    (found,) = (f for f in findings(folder) if f.name == "clients left behind")
    assert found.says == "The worst tenth of the clients (south) has accuracy 20 %, the median 80 %."
    assert "Worst 20.0 % (south)" in charts.left_behind(clients).note


def test_a_saved_run_gets_the_same_report_from_the_command_line(run, tmp_path):
    path = run.report(tmp_path / "run")
    before = path.read_text()
    assert CliRunner().invoke(app, ["report", str(path.parent)]).exit_code == 0
    assert path.read_text() == before
    assert CliRunner().invoke(app, ["report", str(run.save(tmp_path / "saved"))]).exit_code == 0
    assert Page(tmp_path / "saved" / "report.html").text("h1") == ["auto on 3 clients"]
    loaded = fs.load(path.parent, nn.Linear(4, 3))
    assert Page(loaded.report(tmp_path / "again")).text("h1") == ["auto on 3 clients"]  # without the data


def test_other_folders_and_empty_runs_are_refused(run, tmp_path):
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(fs.InvalidInput, match="the folder of `fedstride run`"):
        run.report(tmp_path)
    empty = fs.train(MODEL, "cross_entropy", CLIENTS, rounds=2, callbacks=[lambda event: STOP])
    with pytest.raises(fs.InvalidInput, match="no finished round"):
        empty.report(tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


def test_clients_loaded_on_demand_are_not_evaluated(tmp_path):
    lazy = fs.data.Lazy([20, 25], lambda i: CLIENTS[NAMES[i]])
    path = fs.train(MODEL, "cross_entropy", lazy, rounds=2).report(tmp_path)
    assert json.loads((path.parent / "clients.json").read_text()) == {"sizes": [20, 25], "names": None}


def test_batches_of_any_structure_are_evaluated_for_each_client(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, values, labels=None):
            logits = self.layer(values)
            return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}

    clients = {name: {"values": x, "labels": y} for name, (x, y) in CLIENTS.items()}
    path = fs.train(Own(), "model", clients, rounds=2).report(tmp_path)
    found = json.loads((path.parent / "clients.json").read_text())
    assert found["names"] == list(NAMES) and len(found["accuracy"]) == 3 and len(found["labels"][0]) == 3


def test_a_comparison_has_a_table_a_frame_and_a_report(tmp_path):
    algorithms = {"auto": "auto", "[b]slow": fs.recipes.fedavg(lr=0.01), "wild": "fedavg(lr=1e38)"}
    with pytest.warns(fs.FedstrideWarning, match="wild, seed 0: The run diverged"):
        found = fs.compare(
            algorithms, MODEL, "cross_entropy", CLIENTS, seeds=2, target=0.5, folder=tmp_path / "c", **OPTIONS
        )
    lines = repr(found).splitlines()
    head = lines[0].split()
    assert head[:4] == ["algorithm", "accuracy", "to", "50"] and {"f1", "worst", "tenth", "spread"} <= set(head)
    assert [line.split()[0] for line in lines[2:5]] == ["auto", "[b]slow", "wild"] and "diverged" in lines[4]
    assert lines[5] == f"report: {tmp_path / 'c' / 'report.html'}"
    frame = found.frame()
    assert list(frame.index) == ["auto", "[b]slow", "wild"] and frame.loc["auto", "runs"] == 2
    last = [run.history[-1]["f1"] for run in found.runs["auto"]]
    assert frame.loc["auto", "f1"] == pytest.approx(sum(last) / 2)
    page = Page(found.report)
    assert page.text("h1") == ["3 algorithms on 3 clients"] and "metric-f1" in page.data["charts"]
    assert (tmp_path / "c" / "auto-s1" / "report.html").is_file()
    assert CliRunner().invoke(app, ["diagnose", str(tmp_path / "c")]).exit_code == 0


def test_a_comparison_runs_what_train_runs():
    found = fs.compare(["fedsls"], MODEL, "cross_entropy", CLIENTS, rounds=2, seeds=[4])
    alone = fs.train(MODEL, "cross_entropy", CLIENTS, "fedsls", rounds=2, seed=4)
    assert torch.equal(found.runs["fedsls"][0].x, alone.x) and found.report is None


def test_an_interrupted_comparison_keeps_the_finished_runs():
    rounds = []

    def interrupt(event):
        rounds.append(event.round)
        if len(rounds) == 5:
            raise KeyboardInterrupt

    with pytest.warns(fs.FedstrideWarning, match="interrupted"):
        found = fs.compare(
            ["auto", "fedsls"], MODEL, "cross_entropy", CLIENTS, rounds=2, seeds=1, callbacks=[interrupt]
        )
    assert list(found.runs) == ["auto"]


BAD = {
    "text": ({"algorithms": "auto"}, "expected a dict of algorithms by name, or a list of texts"),
    "none": ({"algorithms": []}, "got none"),
    "unknown": ({"algorithms": ["auto", "fedevg"]}, "did you mean 'fedavg'"),
    "seeds": ({"seeds": 0}, "seeds=0 is invalid"),
    "seed": ({"seed": 3}, "seed= differs between the runs"),
    "target": ({"target": 90, "test": people()}, "target=90 is invalid"),
    "no test": ({"target": 0.9}, "without test="),
    "names": ({"algorithms": {"a b": "auto", "a_b": "fedavg"}, "folder": "c"}, "their folders would be the same"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_comparisons_are_refused_before_any_work(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given, message = BAD[case]
    options = {"algorithms": ["auto"], "rounds": 1, "callbacks": [lambda event: 1 / 0], **given}
    with pytest.raises(fs.InvalidInput, match=message):
        fs.compare(options.pop("algorithms"), MODEL, "cross_entropy", CLIENTS, **options)
    assert not list(tmp_path.iterdir())
