"""The local loop: who is still at work, what is added to the loss, which batches are seen."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

import fedstride as fs
from fedstride.client import local
from fedstride.client.corrected import Corrected
from fedstride.client.local import LocalOptions
from fedstride.client.objective import Terms
from fedstride.core.rows import repeat
from tests.problems import Quadratic, classification, context, learn

d, TAU = 4, (3, 2, 1)
H = 1 + torch.rand(3, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
X = torch.randn(d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def steps(rule=None, terms=None, corr=None, options=None, tau=TAU):
    oracle = Quadratic(H)
    rows = lambda k, n: oracle if n == 3 else oracle.take(list(range(n)))  # noqa: E731
    return local.run(rule or fs.Constant(0.1), rows, X, context(tau), terms or Terms(), corr, options or LocalOptions())


def test_each_client_takes_its_own_number_of_steps():
    out = steps()
    for i, tau in enumerate(TAU):
        torch.testing.assert_close(out.W[i], (1 - 0.1 * H[i]) ** tau * X)
    torch.testing.assert_close(out.total.flatten(), 0.1 * torch.tensor(TAU, dtype=torch.float64))
    torch.testing.assert_close(out.first_loss[:, 0], (H * X**2).sum(1) / 2)


@pytest.mark.parametrize("rule", [fs.Momentum(), fs.Adam(), fs.DeltaSGD(), fs.Armijo(), fs.Polyak(), fs.Adagrad()])
def test_who_has_stopped_keeps_model_and_state(rule):
    uneven = steps(rule)
    for i, tau in enumerate(TAU):
        even = steps(rule, tau=(tau,) * 3)
        assert torch.equal(uneven.W[i], even.W[i])
        assert torch.equal(uneven.total[i], even.total[i])
        assert torch.equal(uneven.state["eta"][i], even.state["eta"][i])


def test_the_start_may_lie_elsewhere():
    start = torch.ones(3, d, dtype=torch.float64)
    out = steps(terms=Terms(start=start), tau=(1, 1, 1))
    torch.testing.assert_close(out.W, start - 0.1 * H)
    assert torch.equal(start, torch.ones_like(start))


def test_every_term_enters_loss_and_gradient():
    """Differences of the corrected loss are its gradient; its value is written out."""
    source = torch.Generator().manual_seed(2)
    center, linear, corr, W, V = (torch.randn(3, d, generator=source, dtype=torch.float64) for _ in range(5))
    oracle = Corrected(Quadratic(H), Terms(curvature=0.7, center=center, linear=linear), corr, weight_decay=0.3)
    expected = (H * W**2).sum(1) / 2 + 0.15 * (W**2).sum(1) + 0.35 * ((W - center) ** 2).sum(1)
    expected += (linear * W).sum(1) + (corr * W).sum(1)
    L, G = oracle.grad(W)
    torch.testing.assert_close(L[:, 0], expected)
    torch.testing.assert_close(oracle.loss(W), L)
    slope = (oracle.loss(W + 1e-6 * V) - oracle.loss(W - 1e-6 * V)) / 2e-6
    torch.testing.assert_close(slope, (G * V).sum(1, keepdim=True), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(oracle.take([2, 0]).loss(W[[2, 0]]), L[[2, 0]])


def test_clipping_comes_before_the_correction():
    W, corr = repeat(X, 3), 100 * torch.ones(3, d, dtype=torch.float64)
    _, G = Corrected(Quadratic(H), Terms(), corr, clip_norm=0.5).grad(W)
    assert torch.linalg.vector_norm(G - corr, dim=1).tolist() == pytest.approx([0.5] * 3, rel=1e-5)


def test_weight_decay_is_part_of_the_recorded_loss():
    out = steps(options=LocalOptions(weight_decay=0.2))
    torch.testing.assert_close(out.first_loss[:, 0], (H * X**2).sum(1) / 2 + 0.1 * (X**2).sum())


class Logged(Dataset):
    """Remembers who was asked for."""

    def __init__(self, pair):
        self.pair, self.seen = pair, []

    def __len__(self):
        return len(self.pair[0])

    def __getitem__(self, i):
        self.seen.append(i)
        return self.pair[0][i], self.pair[1][i]


def seen(**options):
    clients = [Logged(pair) for pair in classification((7, 10))]

    def forget(event):
        if event.round < 2:  # what checks have read, and the first round
            for client in clients:
                client.seen.clear()

    learn(clients=clients, callbacks=[forget], rounds=2, batch_size=3, **options)
    return [client.seen for client in clients]


def test_the_batches_of_an_epoch_hold_every_sample_once():
    for indices, n in zip(seen(epochs=1), (7, 10), strict=True):
        assert sorted(indices) == list(range(n))
        assert indices != list(range(n))


def test_every_epoch_has_an_order_of_its_own():
    for indices, n in zip(seen(epochs=2), (7, 10), strict=True):
        first, second = indices[:n], indices[n:]
        assert sorted(first) == sorted(second) == list(range(n))
        assert first != second


def test_a_fraction_of_an_epoch_is_cut_short():
    indices = seen(epochs=1.5)[1]
    assert sorted(indices[:10]) == list(range(10))
    assert len(indices[10:]) == len(set(indices[10:])) == 6
