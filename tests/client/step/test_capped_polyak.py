"""The steps of `auto`: biases and stretched weights, gradients that grow, and the cap over rounds."""

import pytest
import torch
from torch import nn

from fedstride.client.context import Context
from fedstride.client.step.capped_polyak import CappedPolyak, balanced, biases, radii, started

CPU = torch.device("cpu")


def found(model):
    return biases([p.shape for p in model.parameters()], CPU).tolist()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), [1, 1, 3, 3]),
        (nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3, bias=False)), [0, 1]),
        (nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5)), [1, 1, 2, 3]),
        (nn.LSTM(4, 6), [2, 2, 2, 3]),
        (nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), [0, 2, 2]),
    ],
    ids=["linear", "no bias", "convolution", "lstm", "embedding"],
)
def test_a_bias_has_one_entry_per_output_and_follows_its_matrices(model, expected):
    assert found(model) == expected


def test_weights_of_small_inputs_are_stretched_until_they_count_as_much_as_the_bias():
    radii, sizes, pair = torch.tensor([0.1, 0.1]), torch.tensor([64.0, 4.0]), torch.tensor([1, 1])
    for inputs, factor in ((1.0, 1.0), (0.1, 2.5), (1e-6, 20.0)):  # 16 inputs: the weights' effect is 4 x inputs
        q = torch.tensor([inputs, 1.0])
        torch.testing.assert_close(balanced(radii, q, sizes, pair), torch.tensor([0.1 * factor, 0.1]))


def test_nothing_is_stretched_without_a_gradient():
    radii, sizes, pair = torch.tensor([0.1, 0.1]), torch.tensor([64.0, 4.0]), torch.tensor([1, 1])
    assert torch.equal(balanced(radii, torch.tensor([0.0, 1.0]), sizes, pair), radii)


@pytest.mark.parametrize(
    ("model", "steps", "caps"),
    [
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), 5, (0.006, 0.06 / 1.9**0.5, 0.03)),  # rises over ten rounds
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), 40, (0.006, 0.03 / 1.9**0.5, 0.015)),  # in five
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), 1000, (0.006, 0.006 / 1.9**0.5, 0.003)),  # not at all
        (nn.Linear(2, 3), 5, (0.12, 0.12 / 1.9**0.5, 0.06)),
        (nn.Linear(2, 3), 40, (0.06, 0.06 / 1.9**0.5, 0.03)),
    ],
    ids=["network", "many steps", "very many steps", "linear", "linear, many steps"],
)
def test_the_cap_of_rounds_1_10_and_31(model, steps, caps):
    x, shapes = nn.utils.parameters_to_vector(model.parameters()).detach(), tuple(p.shape for p in model.parameters())
    one = torch.ones(1, 1)
    for t, cap in zip((0, 9, 30), caps, strict=True):
        state = CappedPolyak().init(x, Context(0, t, 50, (0,), (steps,), one, one, {}, shapes))
        assert float(state["cap"]) == pytest.approx(cap)


def test_a_gradient_that_grows_a_hundredfold_moves_a_tensor_by_at_most_twice_the_cap():
    x, one, shapes = torch.full((6,), 0.5), torch.ones(1, 1), (torch.Size([2, 2]), torch.Size([2]))
    rule = CappedPolyak()
    state = rule.init(x, Context(0, 30, 50, (0,), (5,), one, one, {}, shapes))
    for factor, moved in ((1.0, 1.0), (1.5, 1.5), (100.0, 2.0), (0.0, 0.0)):
        g = 1e-3 * torch.tensor([1.0, 1.0, 1.0, 1.0, factor, factor])
        move = rule.step(x[None], 1e3 * one, g[None], state, None)
        torch.testing.assert_close(-move[0, 4:], 0.06 * 0.5 * moved * torch.ones(2))


def test_vectors_and_zero_matrices_have_at_least_the_geometric_mean_of_the_matrices_sizes():
    shapes = [torch.Size(s) for s in ((3, 2), (2, 2), (2,), (2,), (2, 2))]
    x = torch.tensor([1.0] * 6 + [-4.0] * 4 + [0.0] * 2 + [3.0] * 2 + [0.0] * 4)
    torch.testing.assert_close(radii(x, shapes), torch.tensor([1.0, 4.0, 2.0, 3.0, 2.0]))


def test_where_all_weights_are_zero_the_radii_are_the_lengths_of_polyaks_step():
    """2 f / |g|^2 along g_j / q_j, where |g_j|^2 = n_j q_j^2: 2 f / (n_j q_j)."""
    loss, q, sizes = torch.tensor(-3.0), torch.tensor([0.5, 2.0]), torch.tensor([4.0, 3.0])
    torch.testing.assert_close(started(torch.zeros(2), loss, q, sizes), torch.tensor([3.0, 1.0]))
    some = torch.tensor([0.0, 0.1])
    assert torch.equal(started(some, loss, q, sizes), some)
