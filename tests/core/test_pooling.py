"""Max pooling before ReLU: the same bits, and only where nothing reads what lies between them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.core.pooling import can_pool_first, pool_first


def pixels(n: int, side: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 1, side, side, generator=torch.Generator().manual_seed(seed))


def net(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(3)
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), *between, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    return nn.Sequential(*layers)


class Reader(nn.Module):
    """Its output contains what lies between ReLU and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = net(), nn.Linear(144, 3)

    def forward(self, x):
        return self.body(x) + self.head(self.body[:2](x).flatten(1))


class Tapped(nn.Module):
    """Reads an activation by the layer's position, as networks of perceptual losses do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()

    def forward(self, x):
        seen = x.new_zeros(())
        for i, layer in enumerate(self.body):
            x = layer(x)
            seen = seen + x.mean() if i == 1 else seen
        return x + seen


class Inspected(Reader):
    """Reads an activation only when it is evaluated."""

    def forward(self, x):
        return self.body(x) if self.training else super().forward(x)


def hooked() -> nn.Sequential:
    found = net()
    found[1].register_forward_hook(lambda module, given, output: None)
    return found


def test_layers_are_exchanged_and_nothing_else_changes():
    before, after = net(), net()
    assert pool_first(after) == 1
    assert [type(m).__name__ for m in after] == ["Conv2d", "MaxPool2d", "ReLU", "Flatten", "Linear"]
    assert list(after.state_dict()) == list(before.state_dict())
    assert pool_first(after) == 0


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=1, padding=1), nn.MaxPool2d(2, ceil_mode=True)]
)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("value", ["normal", "mostly negative", "ties"])
def test_values_and_gradients_have_the_same_bits(pool, inplace, value):
    x = pixels(n=6, side=9)
    x = {"normal": x, "mostly negative": x - 2, "ties": x.round()}[value]
    layers = [nn.ReLU(inplace), pool]
    found = []
    for order in (layers, layers[::-1]):
        given = x.clone().requires_grad_()
        output = nn.Sequential(nn.Identity(), *order)(given + 0)
        (output * torch.arange(output.numel()).view_as(output)).sum().backward()
        found.append((output.detach(), given.grad))
    (one, g), (other, h) = found
    assert torch.equal(one, other)
    assert torch.equal(g, h)
    assert g.abs().sum() > 0


@pytest.mark.parametrize(
    ("model", "can"),
    [
        (net(), True),
        (net(nn.Dropout(0.5)), False),  # not neighbours
        (net(nn.BatchNorm2d(4)), False),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU()), False),  # already in this order
        (hooked(), False),
        (Reader(), False),
        (Tapped(), False),
        (Inspected(), False),
        (nn.Linear(8, 3), False),
    ],
)
def test_which_models_can(model, can):
    assert can_pool_first(model, pixels(n=2, side=8)) is can


@pytest.mark.parametrize("oracle", ["loop", "vmap"])
def test_training_has_the_same_bits(oracle, monkeypatch):
    clients = [(pixels(n=12, side=8, seed=i), torch.arange(12) % 3) for i in range(4)]

    exchanged = []
    monkeypatch.setattr(
        "fedstride.engine.worker.pool_first", lambda module: exchanged.append(pool_first(module)) or exchanged[-1]
    )

    def trained():
        engine = fs.engine.Local(workers=1, oracle=oracle)
        settings = {"rounds": 3, "batch_size": 4, "epochs": 1, "test": clients[0], "engine": engine}
        return fs.train(net(), "cross_entropy", clients, "fedavg(lr=0.1)", **settings)

    fast = trained()
    assert exchanged
    assert set(exchanged) == {1}
    exchanged.clear()
    monkeypatch.setattr("fedstride.engine.worker.can_pool_first", lambda *given: False)
    slow = trained()
    assert not exchanged
    assert torch.equal(fast.x, slow.x)
    assert [row["test_loss"] for row in fast.history] == [row["test_loss"] for row in slow.history]
    assert [type(m) for m in fast.model] == [type(m) for m in net()]  # the user's order


@pytest.mark.parametrize(("recipe", "exchanges"), [(fs.recipes.moon(lr=0.1), False), (fs.recipes.fedavg(lr=0.1), True)])
def test_features_that_are_compared_stay_as_they_are(recipe, exchanges, monkeypatch):
    count = []
    monkeypatch.setattr("fedstride.engine.worker.pool_first", lambda module: count.append(pool_first(module)))
    clients = [(pixels(n=6, side=8, seed=i), torch.arange(6) % 3) for i in range(2)]
    model = fs.models.Network(net()[:-1], nn.Linear(36, 3))
    fs.train(model, "cross_entropy", clients, recipe, rounds=1, batch_size=3, epochs=1)
    assert bool(count) is exchanges
