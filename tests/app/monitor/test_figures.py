"""The figures in Prometheus's text format: every line parses, labels are escaped, private runs tell no counts."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.app.monitor.figures import Figures, escaped, number
from fedstride.training.history import COLUMNS

LINE = re.compile(r'(fedstride_\w+)(?:\{(\w+)="((?:[^"\\\n]|\\.)*)"\})? (NaN|[+-]Inf|-?\d+(?:\.\d+)?(?:e-?\d+)?)')
ROW = {**dict.fromkeys(COLUMNS, 0), "client_steps": [], "refused": {}, "attempts": 1, "epsilon": None}


def read(text: str) -> dict[tuple[str, str | None], str]:
    """Parse the format; a line that does not follow it is an error, as is a sample without a type."""
    found, typed = {}, set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            typed.add(line.split(" ")[2])
            continue
        match = LINE.fullmatch(line)
        assert match is not None and match[1] in typed, line
        assert (match[1], match[3]) not in found, line
        found[match[1], match[3]] = match[4]
    return found


def after(*rows: dict, **seconds: float) -> dict[tuple[str, str | None], str]:
    figures = Figures()
    for i, row in enumerate(rows):
        figures.add(fs.Event(i + 1, torch.zeros(1), {**ROW, "round": i + 1, **row}, seconds=seconds))
    return read(figures.text())


def test_counters_add_up_and_gauges_are_of_the_last_round():
    found = after(
        {"train_loss": 2.0, "participants": 3, "bytes_up": 10, "bytes_down": 7, "lost": 1, "refused": {"late": 1}},
        {"train_loss": 0.5, "participants": 4, "bytes_up": 20, "bytes_down": 8, "attempts": 3, "refused": {"late": 2}},
        clients=1.5,
        server=0.25,
    )
    assert found["fedstride_round", None] == found["fedstride_rounds_total", None] == "2"
    assert (found["fedstride_train_loss", None], found["fedstride_participants", None]) == ("0.5", "4")
    assert (found["fedstride_bytes_total", "up"], found["fedstride_bytes_total", "down"]) == ("30", "15")
    assert found["fedstride_refused_messages_total", "late"] == "3"
    assert (found["fedstride_lost_clients_total", None], found["fedstride_repeated_attempts_total", None]) == ("1", "2")
    assert (found["fedstride_seconds_total", "clients"], found["fedstride_seconds_total", "server"]) == ("1.5", "0.25")
    assert ("fedstride_privacy_epsilon", None) not in found


def test_scores_stay_until_the_next_evaluation():
    found = after({"test_loss": 0.5, "test_accuracy": 0.75}, {"test_loss": None, "test_accuracy": None})
    assert (found["fedstride_test_loss", None], found["fedstride_test_accuracy", None]) == ("0.5", "0.75")


@pytest.mark.parametrize("name", ['a"b', "a\\", "a\nb", '\\"} 1\nfedstride_round 9'])
def test_label_values_are_escaped(name):
    found = after({name: 7.0, "refused": {name: 2}})
    assert found["fedstride_metric", escaped(name)] == "7"
    assert found["fedstride_refused_messages_total", escaped(name)] == "2"
    assert found["fedstride_round", None] == "1"
    assert escaped(name).encode().decode("unicode_escape") == name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (3.0, "3"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (True, "1"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text
    assert math.isnan(value) or float(text) == value


def test_a_private_run_does_not_tell_who_took_part():
    found = after({"epsilon": 1.5, "participants": 3, "lost": 1, "refused": {"late": 1}, "bytes_up": 12})
    assert found["fedstride_privacy_epsilon", None] == "1.5"
    told = {name for name, _ in found}
    assert not [name for name in told if re.search("participants|lost|refused|bytes|attempts", name)]


def test_a_run_reports_its_phases():
    figures = Figures()
    clients = [(torch.randn(6, 4), torch.arange(6) % 3)] * 3
    run = fs.train(
        nn.Linear(4, 3), "cross_entropy", clients, rounds=3, test=clients[0], callbacks=[figures.add], checkpoint=None
    )
    found = read(figures.text())
    phases = {label: float(v) for (name, label), v in found.items() if name == "fedstride_seconds_total"}
    assert phases.keys() == {"clients", "server", "evaluation", "checkpoints"}
    assert all(phases[name] > 0 for name in ("clients", "server", "evaluation")) and phases["checkpoints"] == 0
    assert sum(phases.values()) == pytest.approx(sum(run.history["seconds"]), rel=0.5)
    assert float(found["fedstride_bytes_total", "up"]) == sum(run.history["bytes_up"])
