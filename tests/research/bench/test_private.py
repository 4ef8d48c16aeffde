"""bench private: equal epsilons, what counts as the best rate, and how it is shown."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.sampling import Bernoulli
from fedstride.app.cli import app
from fedstride.research.bench import private


def pretend(monkeypatch):
    """Runs without training: the score depends on method, rate and seed."""
    done = []

    def complete(cells, folder, tell):
        done.extend(cell.name for cell in cells)
        return {cell.name: {"accuracy": points(**cell.arguments)} for cell in cells}

    def points(choice, seed, epsilon, **_):
        base = {"auto": 90.0, "fedavg": 85.0, "fedexp": 88.0}[choice["name"]]
        return base - abs(choice.get("lr", 0.3) - 0.3) + seed + epsilon / 10

    monkeypatch.setattr(private, "complete", complete)
    return done


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_the_noise_spends_the_budget_and_no_more(epsilon):
    noise = private.multiplier(epsilon, 10)
    spent = Privacy(noise).epsilon(Bernoulli(private.SHARE), private.CLIENTS, 10)
    assert 0.98 * epsilon < spent <= epsilon * 1.001


def test_rates_are_picked_with_the_first_seed_and_judged_with_all(monkeypatch, tmp_path):
    done = pretend(monkeypatch)
    report = private.measure(tmp_path, seeds=3, models=["softmax"], epsilons=[3.0])
    assert len(done) == 11 + 2 * 3
    (row,) = report["rows"]
    assert row["rates"] == {"fedavg": 0.3, "fedexp": 0.3} and len(row["first seed"]) == 10
    assert row["accuracy"] == pytest.approx({"auto": 91.3, "fedavg": 86.3, "fedexp": 89.3})
    head, line = private.table(report)
    assert line[3:] == ["86.3 (lr=0.3)", "89.3 (lr=0.3)", "91.3", "+5.0 ± 0.0", "+2.0 ± 0.0"] and len(head) == len(line)
    json.dumps(report)


def test_the_command_writes_its_record(monkeypatch, tmp_path):
    pretend(monkeypatch)
    done = CliRunner().invoke(app, ["bench", "private", "--quick", "--markdown", "--out", str(tmp_path)])
    assert done.exit_code == 0 and "| softmax | 3 |" in done.output
    assert json.loads((tmp_path / "private.json").read_text())["rounds"] == 10


@pytest.mark.slow
def test_a_private_run_can_be_repeated(monkeypatch):
    images, labels = private.torch.rand(400, 1, 4, 4), private.torch.arange(400) % 10
    clients = [(images[i : i + 4], labels[i : i + 4]) for i in range(0, 400, 4)]
    monkeypatch.setattr(private, "_federation", lambda data: (clients, (images, labels)))
    monkeypatch.setattr(private, "CLIENTS", 100)
    one, again = (private.trained("none", "softmax", 8.0, {"name": "auto"}, 0, 3) for _ in range(2))
    assert one == again and one["accuracy"] > 0
