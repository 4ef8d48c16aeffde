"""`auto` against a slow twin written from its description, and its promises."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.client.step.capped_polyak import _lift


def problem(scale: float = 1.0, clients: int = 6):
    source = torch.Generator().manual_seed(1)
    A = [torch.randn(12, 5, generator=source, dtype=torch.float64) for _ in range(clients)]
    target = [a @ torch.randn(5, generator=source, dtype=torch.float64) for a in A]
    model = nn.Linear(5, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(0.3)
    return model, [(scale * a, b[:, None]) for a, b in zip(A, target, strict=True)]


def loss_and_gradient(data, y):
    a, b = data
    r = a @ y - b[:, 0]
    return float((r**2).mean()), 2 * a.T @ r / len(a)


def twin(model, clients, rounds, steps):
    """Full participation, so that rho has no part; one tensor, so that nothing is lifted."""
    x = model.weight.detach().clone().reshape(-1)
    cap, v, s, mean = 0.3, torch.zeros_like(x), 0.0, None
    xs, outputs, caps = [x], [], []
    for t in range(rounds):
        deltas, votes = [], []
        for data in clients:
            y, own, vote = x.clone(), cap, 0.0
            for k in range(steps):
                f, g = loss_and_gradient(data, y)
                polyak = f / (0.5 * float(g @ g) + 1e-8)
                if k == 0 and polyak > own:
                    enough = loss_and_gradient(data, y - own * g)[0] <= f - 0.5 * own * float(g @ g)
                    vote, own = (1.0, own) if enough else (-3.0, own / 2)
                y = y - min(polyak, own) * g
            deltas.append(x - y)
            votes.append(vote)
        v = torch.stack(deltas).mean(0) + 0.5 * v
        s = sum(float(d @ d) for d in deltas) / len(deltas) + 0.25 * s
        eta = max(0.5, min(s / (3 * float(v @ v)), math.sqrt(s / float(v @ v))))
        cap = max(0.3, cap * 1.3 ** (sum(votes) / len(votes)))
        x = x - eta * v
        mean = x if mean is None else mean + 9 / (t + 9) * (x - mean)
        xs.append(x)
        outputs.append(mean)
        caps.append(cap)
    return xs, outputs, caps


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_auto_equals_its_twin(scale):
    model, clients = problem(scale)
    xs = []
    run = fs.train(model, "mse", clients, rounds=12, local_steps=4, callbacks=[lambda e: xs.append(e.x)])
    expected, outputs, caps = twin(model, clients, 12, 4)
    for mine, theirs in zip(xs, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(run.model.weight.detach()[0], outputs[-1], rtol=1e-9, atol=1e-12)
    if scale < 1:
        assert max(caps) > 0.3, "the cap must move on this problem, or the test sees nothing of the votes"


def test_auto_is_the_default():
    model, clients = problem()
    named = fs.train(model, "mse", clients, "auto", rounds=2)
    assert torch.equal(fs.train(model, "mse", clients, rounds=2).x, named.x)


def test_extrapolation_is_bounded_under_partial_participation():
    model, clients = problem()
    run = fs.train(model, "mse", clients, rounds=30, cohort=3, local_steps=4)
    assert max(run.history["server_step"]) <= 1 / (3 * 0.1 * 0.5) + 1e-9


def test_no_move_is_longer_than_the_clients_are():
    """Clients without a common solution: |Dbar| falls to 0, S does not, and S / |Dbar|^2 has no bound."""
    model, clients = problem()
    xs = []
    options = {"rounds": 60, "local_steps": 20}
    run = fs.train(model, "mse", clients, **options, callbacks=[lambda e: xs.append(e.x)])
    moves = [float((b - a).norm()) for a, b in pairwise(xs)]
    S = [d**2 + u**2 for d, u in zip(run.history["drift"], run.history["update"], strict=True)]
    s = 0.0
    for move, square, eta in zip(moves, S, run.history["server_step"], strict=True):
        s = square + 0.25 * s
        assert move <= math.sqrt(s) * (1 + 1e-9) or eta == 0.5
    assert max(run.history["server_step"]) > 1, "nothing was extrapolated, so nothing was bounded"


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def labelled(scale):
    source = torch.Generator().manual_seed(2)
    X = torch.randn(6, 30, 6, generator=source, dtype=torch.float64)
    y = (X @ torch.randn(6, 3, generator=source, dtype=torch.float64)).argmax(-1)
    return [(scale * a, b) for a, b in zip(X, y, strict=True)]


def test_a_starved_layer_is_lifted():
    """With inputs of a far too small scale the first layer gets next to no gradient, and no step size helps."""
    options = {"rounds": 40, "local_steps": 5, "batch_size": 10}
    final = {
        (name, scale): fs.train(network(), "cross_entropy", labelled(scale), name, **options).history[-1]["train_loss"]
        for name in ("auto", "fedsps")
        for scale in (1.0, 0.01)
    }
    assert final["auto", 0.01] < 0.5 < 0.9 < final["fedsps", 0.01]
    assert final["auto", 1.0] < 0.5


def test_vectors_and_well_fed_matrices_are_left_alone():
    shapes = (torch.Size((4, 3)), torch.Size((4,)), torch.Size((2, 4)))
    assert _lift(torch.tensor([1.0, 1e-9, 2.0]), shapes) is None
    lift = _lift(torch.tensor([1e-3, 1.0, 2.0]), shapes)
    expected = torch.cat([torch.full((12,), 3.001 / 3 / 1e-3), torch.ones(12)])
    torch.testing.assert_close(lift, expected, rtol=1e-6, atol=0)  # a mean in float32, in any order


def test_a_drift_correction_is_refused():
    with pytest.raises(fs.Refused, match="Auto with Scaffold"):
        fs.Algorithm(step=fs.CappedPolyak(), server=fs.Auto(), drift=fs.Scaffold())


def test_the_server_of_auto_needs_its_clients():
    with pytest.raises(fs.Refused, match="vote"):
        fs.Algorithm(step=fs.Constant(), server=fs.Auto())
