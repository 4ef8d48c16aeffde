"""The overview: one line per experiment, and what is still to be run."""

from __future__ import annotations

import shlex

import pytest

from fedstride.research.papers import EXPERIMENTS
from fedstride.research.papers.experiment import AGREES, NOT_RUN, UNDECIDED, check_tasks, given_rates
from fedstride.research.papers.overview import FINDINGS, PLANNED, overview, waiting

pytestmark = pytest.mark.slow


def record(name, scale, *claims):
    keys = ("what", "paper", "ours", "verdict")
    return {
        "name": name,
        "scale": scale,
        "seeds": 2,
        "claims": [dict(zip(keys, claim, strict=True)) for claim in claims],
    }


def test_every_experiment_has_a_finding():
    assert set(FINDINGS) == set(EXPERIMENTS)


def test_a_line_shows_the_largest_scale_the_key_claim_and_the_verdicts():
    small = record("fedexp-synthetic", "small", ("loss after 200 rounds", "", "old", AGREES))
    large = record(
        "fedexp-synthetic",
        "paper",
        ("best steps", "", "0.1", AGREES),
        ("loss after 200 rounds", "", "FedExP 1, FedAvg 2; margin 1, interval 0 to 2 (2 seeds)", UNDECIDED),
        ("loss after 50 rounds", "", "1", AGREES),
        ("CIFAR-100", "", "", NOT_RUN),
    )
    _, line = overview([large, small])
    assert line[0] == "fedexp-synthetic" and line[3:] == ["paper", "2", "agrees (2), undecided (1)"]
    assert line[2] == "loss after 200 rounds: FedExP 1, FedAvg 2"
    (_, none) = overview([record("fedlin-J", "small", ("odd", "", "", NOT_RUN))])
    assert none[2] == "nothing yet" and none[-1] == NOT_RUN


def test_a_planned_run_is_listed_until_a_record_shows_it():
    everything = [row[0] for row in waiting([])[1:]]
    assert everything == [planned.what for planned in PLANNED]
    claim = "Delta-SGD's place: MNIST, α = 1", "", ""
    for verdict, missing in ((AGREES, 1), (NOT_RUN, 0)):
        rest = waiting([record("delta-sgd-table1", "paper", (*claim, verdict))])[1:]
        assert len(rest) == len(PLANNED) - missing


@pytest.mark.parametrize("planned", PLANNED, ids=lambda planned: planned.what)
def test_commands_are_valid(planned):
    words = shlex.split(planned.options)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert set(options) <= {"--scale", "--seeds", "--tasks", "--rates"}
    check_tasks(options.get("--tasks"), options.get("--rates"), [EXPERIMENTS[planned.name]])
    given_rates(options.get("--rates"))
