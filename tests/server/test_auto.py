"""`auto` against a slow twin written from its description, and its promises."""

import math

import pytest
import torch
from torch import nn

import fedstride as fs


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
    """Full participation, so that rho has no part."""
    x = model.weight.detach().clone().reshape(-1)
    cap, cosine, last, mean = 0.3, 0.5, None, None
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
        D = torch.stack(deltas).mean(0)
        S = sum(float(d @ d) for d in deltas) / len(deltas)
        if last is not None:
            cosine = 0.8 * cosine + 0.2 * float(D @ last) / math.sqrt(float(D @ D) * float(last @ last))
        v = sum(votes) / len(votes)
        v = min(v, 0.0) if cosine < -0.1 else v
        v = v - 0.3 if cosine < -0.25 else v
        cap = max(0.3, cap * 1.3**v)
        x = x - max(1.0, S / (2 * float(D @ D))) * D
        mean = x if mean is None else mean + 9 / (t + 9) * (x - mean)
        last = D
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
    assert max(run.history["server_step"]) <= 1 / (2 * 0.1 * 0.5) + 1e-9


def test_the_server_of_auto_needs_its_clients():
    with pytest.raises(fs.Refused, match="vote"):
        fs.Algorithm(step=fs.Constant(), server=fs.Auto())
