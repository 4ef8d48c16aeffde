"""The oracle: loss and gradient by automatic differentiation, one batch, mask and set of statistics per object."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fedstride.core.model import Replica
from fedstride.oracle import Loop, Meter
from tests.problems import SIZES, classification, classifier

C = len(SIZES)
# Products may depend on where in memory their factors are, and kernels on whether gradients are on.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def oracle(model=None, **options):
    return Loop(Replica(model or classifier()), F.cross_entropy, classification(), Meter(C), **options)


def points():
    return 0.3 * torch.randn(C, 27, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_gradients_are_those_of_a_plain_backward_pass():
    W = points()
    L, G = oracle().grad(W)
    for i, (inputs, targets) in enumerate(classification()):
        model = classifier()
        nn.utils.vector_to_parameters(W[i], model.parameters())
        value = F.cross_entropy(model(inputs), targets)
        value.backward()
        torch.testing.assert_close(L[i, 0], value.detach(), **CLOSE)
        torch.testing.assert_close(G[i], torch.cat([p.grad.flatten() for p in model.parameters()]), **CLOSE)


def test_the_gradient_is_the_slope_of_the_loss():
    o, W = oracle(), points()
    V = torch.randn(C, 27, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h = 1e-6
    slope = (o.loss(W + h * V) - o.loss(W - h * V)) / (2 * h)
    torch.testing.assert_close(slope, (o.grad(W)[1] * V).sum(1, keepdim=True), rtol=1e-6, atol=1e-8)


def test_some_rows_get_the_bits_they_get_among_all():
    o, W = oracle(), points()
    L, G = o.grad(W)
    some_L, some_G = o.take([3, 1]).grad(W[[3, 1]])
    assert torch.equal(some_L, L[[3, 1]])
    assert torch.equal(some_G, G[[3, 1]])
    torch.testing.assert_close(o.take([2]).loss(W[2:3]), L[2:3], **CLOSE)  # without gradients


def test_an_unused_parameter_has_gradient_zero():
    model = classifier()
    model.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
    W = torch.cat([torch.ones(C, 2, dtype=torch.float64), points()], 1)  # own parameters come before those of layers
    _, G = oracle(model).grad(W)
    assert not G[:, :2].any()
    torch.testing.assert_close(G[:, 2:], oracle().grad(points())[1], **CLOSE)


def test_evaluations_are_counted_in_samples():
    o, W = oracle(), points()
    o.grad(W)
    o.loss(W)
    o.take([1, 2]).loss(W[[1, 2]])
    assert o.meter.gradients == list(SIZES)
    assert o.meter.forwards == [6, 18, 10, 8]


def test_every_evaluation_of_a_step_has_the_same_dropout_mask():
    o, W = oracle(classifier(middle=lambda: nn.Dropout(0.5)), seeds=[1, 2, 3, 4]), points()
    first = o.loss(W)
    assert torch.equal(o.loss(W), first)
    torch.testing.assert_close(o.grad(W)[0], first, **CLOSE)
    assert torch.equal(o.take([2]).loss(W[2:3]), first[2:3])
    other = oracle(classifier(middle=lambda: nn.Dropout(0.5)), seeds=[5, 6, 7, 8])
    assert not torch.equal(other.loss(W), first)


def test_only_the_first_gradient_moves_the_statistics():
    replica = Replica(classifier(middle=lambda: nn.BatchNorm1d(3)), ("middle.running_mean",))
    stats = torch.zeros(C, 3, dtype=torch.float64)
    W = torch.cat([points(), points()[:, :6]], 1)
    o = Loop(replica, F.cross_entropy, classification(), Meter(C), stats=stats)
    o.loss(W)
    assert not stats.any()
    o.grad(W)
    once = stats.clone()
    o.grad(W + 1)
    o.take([0]).grad(W[:1])
    assert torch.equal(stats, once)
    means = torch.stack(
        [F.linear(x, w[:12].view(3, 4), w[12:15]).mean(0) for w, (x, _) in zip(W, classification(), strict=True)]
    )
    torch.testing.assert_close(once, 0.1 * means)
