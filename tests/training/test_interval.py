"""evaluate_every="auto": evaluations take at most a tenth of the local work, by a rule that knows sample counts only."""

from __future__ import annotations

import pytest

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from tests.problems import Always, classification, learn, same_bits

CLIENTS = classification((6, 10, 8, 16))  # 10 samples on average
TEST = classification((100,), seed=9)[0]


def chosen(algorithm="fedavg", **options):
    """The interval of a run with 100 test samples, whose evaluations are 1000 in units of the rule."""
    given = {"rounds": 1, "clients": CLIENTS, "test": TEST, "evaluate_every": "auto", **options}
    return learn(algorithm, **given).settings["training"]["evaluate_every"]


@pytest.mark.parametrize(
    ("work", "options"),
    [
        (3 * 40, {}),  # a gradient of all samples of the four clients
        (3 * 40 * 5, {"epochs": 5}),
        (3 * 4 * 7 * 2, {"local_steps": 7, "batch_size": 2}),
        (3 * (6 + 8 + 8 + 8), {"local_steps": 1, "batch_size": 8}),  # the first client has fewer than a batch
        (3 * (3 * 2 + 5 * 2 + 4 * 2 + 8 * 2), {"batch_size": 2}),  # one epoch
        (3 * 10, {"cohort": 1}),
        (3 * 10, {"cohort": fs.Bernoulli(0.25)}),
        (3 * 10 * 2, {"cohort": fs.Weighted(2)}),
        (3 * 10 * 3, {"cohort": Always((0, 1, 2))}),  # a sampler that says nothing about itself
        (3 * (40 + 2 * 40), {"algorithm": "fedlin", "local_steps": 2}),  # gradients first, then steps
        (3 * (40 + 5 * 4), {"algorithm": "fedtrack", "local_steps": 5}),  # the steps take one sample each
    ],
)
def test_the_rule_counts_passes_over_samples(work, options):
    assert chosen(**options) == -(-1000 // work)


@pytest.mark.parametrize("name", RECIPES)
def test_evaluations_take_at_most_a_tenth_of_the_work_in_the_history(name):
    run = learn(name, rounds=1, clients=CLIENTS, test=TEST, evaluate_every="auto", local_steps=3)
    done = 3 * run.history[0]["gradients"] + run.history[0]["forwards"]
    assert run.settings["training"]["evaluate_every"] * done >= 10 * 100


def test_every_round_is_evaluated_if_that_is_cheap():
    assert chosen(test=CLIENTS[0], epochs=5) == 1
    assert chosen(test=None) == 1


def test_the_test_sets_of_all_clients_count():
    tests = classification((30, 10, 20, 40), seed=3)
    assert chosen(test=tests) == chosen()
    assert chosen(test=tests, personal=["head.*"], personal_steps=4) == -(-1000 // (3 * 40 * 5))


def test_steps_may_be_a_function():
    assert chosen(local_steps=lambda round, client: client + 1, batch_size=2) == -(-1000 // (3 * 2 * 10))


def test_the_choice_is_the_same_run_as_the_number(tmp_path):
    options = {"rounds": 20, "clients": CLIENTS, "test": TEST}
    auto = learn(evaluate_every="auto", **options)
    assert [row["round"] for row in auto.history if row["test_loss"] is not None] == [9, 18, 20]
    assert same_bits(auto, learn(evaluate_every=9, **options))

    def interrupt(event):
        return fs.STOP if event.round == 7 else None

    learn(evaluate_every="auto", checkpoint=tmp_path, callbacks=[interrupt], **options)
    assert same_bits(auto, learn(evaluate_every="auto", checkpoint=tmp_path, **options))


def test_other_texts_are_refused():
    with pytest.raises(
        fs.InvalidInput, match=r"evaluate_every='often' is invalid: expected a whole number >= 1, or \"auto\""
    ):
        chosen(evaluate_every="often")
