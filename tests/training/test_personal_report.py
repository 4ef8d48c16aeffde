"""Does federation help each client? Alone, with the shared model, and personalised."""

from __future__ import annotations

import json

import pytest

import fedstride as fs
from fedstride.core.rows import generator
from tests.problems import STEPS, classification, learn, linear, regression

CLIENTS, TESTS = dict(zip(("north", "south", "east", "west"), classification(), strict=True)), classification(seed=5)


def scores(model, i):
    return fs.evaluate(model, TESTS[i])["accuracy"]


def test_every_column_is_what_it_says():
    """Four rounds, each client in two of them or so; unequal local steps."""
    options = {"local_steps": STEPS, "batch_size": 3, "seed": 4, "rounds": 4}
    run = learn("fedavg(lr=0.5)", clients=CLIENTS, personal=["head.*"], cohort=2, **options)
    report = fs.personal_report(run, TESTS)
    shared = learn("fedavg(lr=0.5)", clients=CLIENTS, cohort=2, **options).model
    drawn = [i for t in range(4) for i in fs.Uniform(2).draw([6, 9, 5, 8], generator(4, t, "cohort"))]
    for i, row in enumerate(report.rows):
        alone = learn(
            "fedavg(lr=0.5)",
            clients=[classification()[i]],
            **{**options, "local_steps": STEPS[i], "rounds": max(1, drawn.count(i))},
        )
        assert row["client"] == list(CLIENTS)[i] and row["samples"] == (6, 9, 5, 8)[i]
        assert (row["alone"], row["shared"]) == (scores(alone.model, i), scores(shared, i))
        assert row["personalised"] == scores(run.personal[i], i)
        assert row["gain"] == row["personalised"] - row["alone"]
    assert report.metric == "accuracy"
    assert report.gaining == sum(row["gain"] > 0 for row in report.rows)
    assert report.means["alone"] == pytest.approx(sum(row["alone"] for row in report.rows) / 4)
    assert "north" in str(report) and f"{report.gaining} of 4 clients gain" in str(report)


def test_plain_runs_are_fine_tuned():
    run = learn("fedavg", clients=CLIENTS, rounds=2)
    tuning = fs.FineTune(CLIENTS, steps=3, lr=0.5)
    report = fs.personal_report(run, dict(zip(CLIENTS, TESTS, strict=True)), fine_tune=tuning)
    tuned = fs.evaluate(run.model, TESTS, fine_tune=fs.FineTune(classification(), steps=3, lr=0.5))
    assert [row["personalised"] for row in report.rows] == [s["accuracy"] for s in tuned]
    assert [row["shared"] for row in report.rows] == [scores(run.model, i) for i in range(4)]


def test_dittos_models_and_losses(tmp_path):
    """A lower loss is a gain."""
    data = regression()
    run = fs.train(linear(), "mse", data, "ditto(lr=0.05)", rounds=3)
    report = fs.personal_report(run, data)
    assert report.metric == "loss"
    for i, row in enumerate(report.rows):
        assert row["client"] == i
        assert row["personalised"] == pytest.approx(fs.evaluate(run.personal[i], data[i], "mse")["loss"])
        assert row["gain"] == row["alone"] - row["personalised"]
    found = json.loads(report.save(tmp_path).read_text())
    assert found == {"metric": "loss", "rows": report.rows}


def test_without_data_there_is_no_answer(tmp_path):
    run = learn("fedavg", rounds=1)
    with pytest.raises(fs.InvalidInput, match="one for each of the 4 clients"):
        fs.personal_report(run, TESTS[0])
    with pytest.raises(fs.InvalidInput, match="got 3 sets"):
        fs.personal_report(run, TESTS[:3])
    with pytest.raises(fs.InvalidInput, match="has no data"):
        fs.personal_report(fs.load(run.save(tmp_path)), TESTS)
