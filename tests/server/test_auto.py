"""`auto` against a slow twin written from its description, and its promises."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import fedstride as fs


def problem(scale: float = 1.0, clients: int = 6):
    source = torch.Generator().manual_seed(1)
    A = [torch.randn(12, 5, generator=source, dtype=torch.float64) for _ in range(clients)]
    target = [a @ torch.randn(5, generator=source, dtype=torch.float64) for a in A]
    model = nn.Linear(5, 1).double()
    with torch.no_grad():
        model.weight.fill_(0.3)
        model.bias.fill_(0.0)
    return model, [(scale * a, b[:, None]) for a, b in zip(A, target, strict=True)]


def loss_and_gradient(data, y, below):
    """Mean squares less a constant, of a linear model: five weights and a bias."""
    a, b = data
    r = a @ y[:5] + y[5] - b[:, 0]
    return float((r**2).mean()) - below, torch.cat([2 * a.T @ r, 2 * r.sum()[None]]) / len(a)


def rms(v):
    return math.sqrt(float((v**2).mean()))


def twin(model, clients, rounds, steps, below):
    """Full participation, so that rho has no part. Two tensors: a matrix of five weights and a bias."""
    x = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    v, s, mean, q, first, lowest, reach = torch.zeros_like(x), 0.0, None, None, None, math.inf, 1.0
    size = [rms(x[:5]), max(abs(float(x[5])), rms(x[:5]))]  # the bias has at least the matrix's
    xs, outputs, farthest, stretched, sudden, extrapolated = [x], [], 1.0, 0, 0, 0
    for t in range(rounds):
        now = [max(size[0], rms(x[:5])), max(size[1], abs(float(x[5])), rms(x[:5]))]
        deltas, losses, squares = [], [], []
        for data in clients:
            cap = reach * 0.06 * 2 / (1 + t / 10) ** 0.5 * (10 / max(10, steps)) ** 0.5  # one matrix: no rise
            y, seen = x.clone(), []
            for k in range(steps):
                f, g = loss_and_gradient(data, y, below)
                seen.append([float((g[:5] ** 2).mean()), float(g[5] ** 2)])
                if k == 0:
                    losses.append(f)
                    lowest_yet = lowest - max(first - lowest, -lowest) if t > 0 and lowest < 0 else 0.0
                    target = min(0.0, 2 * f) if t == 0 else lowest_yet
                    used = [math.sqrt(square) for square in (seen[0] if t == 0 else q)]
                    stretch = min(20.0, max(1.0, now[1] * used[1] / (now[0] * used[0] * 5**0.5)))
                    stretched += stretch > 1
                size_of = [max(usual, math.sqrt(square) / 2) for usual, square in zip(used, seen[-1], strict=True)]
                sudden += any(large > usual for large, usual in zip(size_of, used, strict=True))
                u = torch.cat([stretch * now[0] / size_of[0] * g[:5], now[1] / size_of[1] * g[5:]])
                y = y - min(2 * max(f - target, 0.0) / float(g @ u), cap) * u
            deltas.append(x - y)
            squares.append([sum(column) / steps for column in zip(*seen, strict=True)])
        delta = torch.stack(deltas).mean(0)
        c = float(delta @ v / (delta.norm() * v.norm())) if t > 0 else 0.0
        reach = min(4.0, max(1.0, reach * math.exp((c - 0.3) / 2 if c > 0.3 else c - 0.3)))
        farthest = max(farthest, reach)
        share = math.sqrt(100 / max(100, steps))
        beta = 0.8 * share
        v = delta + beta * v
        s = sum(float(d @ d) for d in deltas) / len(deltas) + beta**2 * s
        eta = max(1.0, min(s / (3 * float(v @ v)), math.sqrt(s / float(v @ v))))
        extrapolated += eta > 1
        x = x - (1 + share * (eta - 1)) * v
        new = [sum(column) / len(clients) for column in zip(*squares, strict=True)]
        q = new if q is None else [0.9 * old + 0.1 * one for old, one in zip(q, new, strict=True)]
        loss = sum(losses) / len(losses)
        first, lowest = loss if first is None else first, min(lowest, loss)
        mean = x if mean is None else mean + 9 / (t + 9) * (x - mean)
        xs.append(x)
        outputs.append(mean)
    return xs, outputs, farthest, stretched, sudden, extrapolated


@pytest.mark.parametrize(
    ("scale", "below", "steps"), [(0.1, 0.0, 4), (1.0, 0.0, 4), (1.0, 6.0, 4), (1.0, 0.0, 14), (1.0, 0.0, 150)]
)
def test_auto_equals_its_twin(scale, below, steps):
    model, clients = problem(scale)
    xs = []
    loss = "mse" if below == 0 else lambda output, target: nn.functional.mse_loss(output, target) - below
    options = {"rounds": 12, "local_steps": steps, "normalise": False}
    run = fs.train(model, loss, clients, **options, callbacks=[lambda e: xs.append(e.x)])
    expected, outputs, reach, stretched, sudden, extrapolated = twin(model, clients, 12, steps, below)
    for mine, theirs in zip(xs, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    output = nn.utils.parameters_to_vector(run.model.parameters()).detach()
    torch.testing.assert_close(output, outputs[-1], rtol=1e-9, atol=1e-12)
    assert below == 0 or run.history[-1]["train_loss"] < 0, "the target must move"
    assert reach > 1, "the cap was not stretched, so nothing was compared"
    assert extrapolated, "the server step was 1 in every round"
    assert sudden, "no gradient was much larger than usual, so nothing was limited"
    assert (stretched > 0) == (scale < 1), "inputs are small in one case only"


def test_auto_is_the_default():
    model, clients = problem()
    named = fs.train(model, "mse", clients, "auto", rounds=2)
    assert torch.equal(fs.train(model, "mse", clients, rounds=2).x, named.x)


def test_extrapolation_is_bounded_under_partial_participation():
    model, clients = problem()
    run = fs.train(model, "mse", clients, rounds=30, cohort=3, local_steps=4)
    assert max(run.history["server_step"]) <= 1 / (3 * 0.1 * 0.5) + 1e-9


def test_no_extrapolated_move_is_longer_than_the_clients_are():
    """Clients without a common solution: |Dbar| falls to 0, S does not, and S / |Dbar|^2 has no bound."""
    model, clients = problem()
    xs = []
    run = fs.train(model, "mse", clients, rounds=60, local_steps=20, callbacks=[lambda e: xs.append(e.x)])
    moves = [float((b - a).norm()) for a, b in pairwise(xs)]
    S = [d**2 + u**2 for d, u in zip(run.history["drift"], run.history["update"], strict=True)]
    s = 0.0
    for move, square, eta in zip(moves, S, run.history["server_step"], strict=True):
        s = square + 0.64 * s
        assert move <= math.sqrt(s) * (1 + 1e-9) or eta == 1
    assert max(run.history["server_step"]) > 1, "nothing was extrapolated, so nothing was bounded"


class Scaled(nn.Module):
    """A network in other units: of its inputs, of its loss, and of its first and last matrices."""

    def __init__(self, inputs=1.0, first=1.0, last=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 16).double(), nn.Linear(16, 3).double()
        self.inputs, self.first, self.last = inputs, first, last
        with torch.no_grad():
            self.a.weight /= first
            self.b.weight /= last

    def forward(self, x):
        h = torch.relu(nn.functional.linear(x * self.inputs, self.first * self.a.weight, self.a.bias))
        return nn.functional.linear(h, self.last * self.b.weight, self.b.bias)


def labelled(scale=1.0):
    source = torch.Generator().manual_seed(2)
    X = torch.randn(6, 30, 6, generator=source, dtype=torch.float64)
    y = (X @ torch.randn(6, 3, generator=source, dtype=torch.float64)).argmax(-1)
    return [(scale * a, b) for a, b in zip(X, y, strict=True)]


def trained(model, clients, factor=1.0, rounds=40):
    def loss(output, target):
        return factor * nn.functional.cross_entropy(output, target)

    history = fs.train(model, loss, clients, rounds=rounds, local_steps=5, batch_size=10).history
    return history[-1]["train_loss"] / factor


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e-6, 0.01, 100, 1e6])
def test_the_unit_of_the_loss_does_not_matter(factor):
    assert trained(Scaled(), labelled(), factor) == pytest.approx(trained(Scaled(), labelled()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"first": 0.01}, {"last": 100.0}])
def test_the_unit_of_a_matrix_hardly_matters(given):
    """Its own steps are the same; those of the biases are measured by all matrices, and so is diversity."""
    assert trained(Scaled(**given), labelled()) < 1.5 * trained(Scaled(), labelled()) + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.05, 20.0])
def test_the_unit_of_the_inputs_costs_little(scale):
    assert trained(Scaled(), labelled(scale)) < 2 * trained(Scaled(), labelled()) + 0.1


def test_a_model_of_zeros_is_trained():
    model = nn.Linear(6, 3).double()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    for scale in (1e-3, 1.0, 1e3):
        assert trained(model, labelled(scale)) < 0.6, "from log 3 = 1.1"


def test_low_rank_factors_of_which_one_is_zero_are_trained():
    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.A = nn.Parameter(torch.randn(2, 6, dtype=torch.float64))
            self.B = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))

        def forward(self, x):
            return x @ self.A.T @ self.B.T

    assert trained(Factors(), labelled()) < 0.6


def test_it_asks_for_one_gradient_a_step_and_no_forward_pass():
    history = fs.train(Scaled(), "cross_entropy", labelled(), rounds=5, local_steps=3, batch_size=10).history
    assert sum(history["gradients"]) == 5 * 6 * 3 * 10
    assert sum(history["forwards"]) == 0


def test_a_drift_correction_is_refused():
    with pytest.raises(fs.Refused, match="CappedPolyak with Scaffold"):
        fs.Algorithm(step=fs.CappedPolyak(), drift=fs.Scaffold())


def test_the_server_of_auto_needs_its_clients():
    with pytest.raises(fs.Refused, match="loss"):
        fs.Algorithm(step=fs.Constant(), server=fs.Auto())
