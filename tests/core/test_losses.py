"""Losses by name: values, shapes, mean or sum, right predictions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedstride.core import losses

n = 6
source = torch.Generator().manual_seed(0)
SCORES = torch.randn(n, 1, generator=source, dtype=torch.float64)
LOGITS = torch.randn(n, 3, generator=source, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 2, 1, 0])
BINARY = torch.tensor([0, 1, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("name", "output", "target", "expected"),
    [
        ("cross_entropy", LOGITS, LABELS, F.cross_entropy(LOGITS, LABELS)),
        ("nll", LOGITS, LABELS, F.nll_loss(LOGITS, LABELS)),
        ("mse", SCORES, BINARY.double(), ((SCORES[:, 0] - BINARY) ** 2).mean()),
        ("l1", SCORES, BINARY.double(), (SCORES[:, 0] - BINARY).abs().mean()),
        ("huber", SCORES, BINARY.double(), F.huber_loss(SCORES[:, 0], BINARY.double())),
        ("bce_with_logits", SCORES, BINARY, F.softplus((1 - 2 * BINARY) * SCORES[:, 0]).mean()),
        ("logistic", SCORES, 2 * BINARY - 1, F.softplus((1 - 2 * BINARY) * SCORES[:, 0]).mean()),
    ],
)
def test_named_losses(name, output, target, expected):
    torch.testing.assert_close(losses.resolve(name)(output, target), expected)


@pytest.mark.parametrize("name", ["mse", "l1", "huber", "bce_with_logits", "logistic"])
def test_a_column_and_a_vector_mean_the_same(name):
    loss, target = losses.resolve(name), BINARY.double()
    assert loss(SCORES, target) == loss(SCORES, target[:, None]) == loss(SCORES[:, 0], target[:, None])


def test_the_logistic_loss_is_exact_far_from_the_boundary():
    value = losses.logistic(torch.tensor([30.0], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64))
    torch.testing.assert_close(value, torch.exp(torch.tensor(-30.0, dtype=torch.float64)), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (losses.resolve("cross_entropy"), True),
        (nn.CrossEntropyLoss(label_smoothing=0.1), True),
        (losses.resolve("bce_with_logits"), True),
        (losses.resolve("logistic"), True),
        (losses.resolve("nll"), False),  # of log-probabilities, which nobody checks
        (losses.resolve("mse"), False),  # a closed form may round it below zero
        (lambda o, t: F.cross_entropy(o, t) - 1, False),
    ],
)
def test_losses_that_are_never_negative(loss, expected):
    assert losses.never_negative(loss) is expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (F.cross_entropy, "mean"),
        (nn.CrossEntropyLoss(reduction="sum"), "sum"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "mean"),
        (lambda o, t: F.cross_entropy(o, t, reduction="sum") / 2, "sum"),
        (lambda o, t: F.cross_entropy(o, t) + 1, "mean"),
        (lambda o, t: F.cross_entropy(o, t, reduction="sum") ** 2, None),
        (lambda o, t: F.cross_entropy(o, t, reduction="sum") / len(o) ** 0.5, None),
    ],
)
def test_mean_and_sum_are_told_apart(loss, expected):
    assert losses.reduction(loss, LOGITS, LABELS) == expected


def test_a_perfect_fit_does_not_hide_the_reduction():
    target = torch.zeros(n, 1)
    assert losses.reduction(losses.mse, target, target) == "mean"
    assert losses.reduction(nn.MSELoss(reduction="sum"), target, target) == "sum"


@pytest.mark.parametrize(
    ("output", "target", "right"),
    [
        (torch.tensor([[2.0, 1, 0], [0, 1, 2], [0, 3, 1]]), torch.tensor([0, 1, 1]), 2),
        (torch.tensor([[0.5], [-0.5], [2.0]]), torch.tensor([1, 1, 1]), 2),
        (torch.tensor([0.5, -0.5, 2.0]), torch.tensor([1.0, 0, 0]), 2),
        (torch.tensor([0.5, -0.5, 2.0]), torch.tensor([[1.0], [-1], [-1]]), 2),
        (torch.tensor([0.5, -0.5]), torch.tensor([0.3, 1.7]), None),
        (torch.zeros(2, 3), torch.zeros(2, 3), None),
    ],
    ids=["classes", "0/1 column", "0/1", "-1/+1", "regression", "targets of several numbers"],
)
def test_right_predictions(output, target, right):
    found = losses.correct(output, target)
    assert (found if found is None else int(found)) == right


def test_labels_of_every_pixel():
    output = torch.zeros(2, 3, 4, 4)
    output[:, 1] = 1
    assert int(losses.correct(output, torch.ones(2, 4, 4, dtype=torch.long))) == 32


def test_a_weighted_mean_is_neither_mean_nor_sum():
    """Doubling the batch would not tell: class weights, and labels that are ignored, change a sample's share."""
    output, target = torch.randn(8, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    assert losses.reduction(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 10.0, 100.0])), output, target) is None
    assert losses.reduction(nn.CrossEntropyLoss(ignore_index=2), output, target) is None
    assert losses.reduction(nn.CrossEntropyLoss(), output, target) == "mean"
    assert losses.reduction(nn.CrossEntropyLoss(), output[:1], target[:1]) == "mean"
    assert losses.reduction(nn.CrossEntropyLoss(reduction="sum"), output[:1], target[:1]) == "sum"


def test_accuracy_of_sequences_counts_every_place():
    output, target = torch.randn(5, 4, 6), torch.randint(0, 4, (5, 6))
    assert int(losses.correct(output, target)) == int((output.argmax(1) == target).sum())
    assert losses.correct(torch.randn(5, 2), torch.randint(0, 2, (5, 2))) is None  # two numbers per sample, no class
