"""Fine-tuning as an evaluation: a copy of the model adapts to each client before it is tested there."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fedstride as fs
from tests.problems import classification, classifier

CLIENTS, TESTS = classification(), classification(seed=5)


def by_hand(model: nn.Module, data, steps: int, lr: float) -> nn.Module:
    own = copy.deepcopy(model)
    optimiser = torch.optim.SGD(own.parameters(), lr)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(own(data[0]), data[1]).backward()
        optimiser.step()
    return own


def test_fine_tuning_is_gradient_descent_on_each_clients_data():
    model = classifier()
    before = copy.deepcopy(model.state_dict())
    found = fs.evaluate(model, TESTS, fine_tune=fs.FineTune(CLIENTS, steps=3, lr=0.5))
    for i, scores in enumerate(found):
        expected = fs.evaluate(by_hand(model, CLIENTS[i], 3, 0.5), TESTS[i])
        assert scores["loss"] == pytest.approx(expected["loss"], abs=1e-12)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_line_search_needs_no_rate_and_lowers_the_loss():
    tuned = fs.evaluate(classifier(), CLIENTS, fine_tune=fs.FineTune(CLIENTS, steps=5))
    plain = fs.evaluate(classifier(), CLIENTS)
    assert all(a["loss"] < b["loss"] for a, b in zip(tuned, plain, strict=True))


def test_batches_are_those_of_the_seed():
    first, second, again = (
        fs.FineTune(CLIENTS, 3, lr=0.5, batch_size=2, seed=seed).adapted(classifier(), "cross_entropy", CLIENTS[0])
        for seed in (1, 2, 1)
    )
    assert torch.equal(first.head.weight, again.head.weight) and not torch.equal(first.head.weight, second.head.weight)


def test_only_the_chosen_parameters_are_adapted():
    model = classifier()
    tuned = fs.FineTune(CLIENTS, steps=2, lr=0.5, parameters=["head.*"]).adapted(model, "cross_entropy", CLIENTS[0])
    assert torch.equal(tuned.body.weight, model.body.weight) and not torch.equal(tuned.head.weight, model.head.weight)
    assert all(p.requires_grad for p in tuned.parameters())


def test_clients_and_test_sets_are_matched_by_name():
    clients = {"a": CLIENTS[0], "b": CLIENTS[1]}
    found = fs.evaluate(classifier(), {"b": TESTS[1], "a": TESTS[0]}, fine_tune=fs.FineTune(clients, steps=2, lr=0.5))
    expected = fs.evaluate(classifier(), TESTS[:2], fine_tune=fs.FineTune(CLIENTS[:2], steps=2, lr=0.5))
    assert list(found) == ["b", "a"] and [found["a"], found["b"]] == expected


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (lambda: fs.FineTune(CLIENTS), TESTS[0], "one data set"),
        (lambda: fs.FineTune(CLIENTS[:2]), TESTS, "2 clients and 4 test sets"),
        (
            lambda: fs.FineTune(dict(zip("abcd", CLIENTS, strict=True))),
            dict(zip("abce", TESTS, strict=True)),
            "no client 'e'",
        ),
        (lambda: fs.FineTune(CLIENTS, steps=0), TESTS, "whole number"),
        (lambda: fs.FineTune(CLIENTS, lr=-1.0), TESTS, "positive"),
        (lambda: fs.FineTune(CLIENTS, parameters=["tail.*"]), TESTS, "match no trainable parameter"),
        (lambda: 3, TESTS, "expected fs.FineTune"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_makes_no_sense_is_refused(make, data, message):
    with pytest.raises(fs.InvalidInput, match=message):
        fs.evaluate(classifier(), data, fine_tune=make())
