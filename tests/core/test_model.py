"""nn.Module <-> row: the order of parameters, frozen and tied weights, buffers kept apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

import fedstride as fs
from fedstride import InvalidInput
from fedstride.core.model import Replica, likes_channels_last, probe
from tests.problems import classifier, seeded


class Tied(nn.Module):
    """Encoder and decoder share one matrix."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.down.weight = self.up.weight

    def forward(self, inputs):
        return self.down(torch.tanh(self.up(inputs)))


def test_the_row_has_the_order_of_parameters_to_vector():
    model = classifier()
    assert torch.equal(Replica(model).row(), parameters_to_vector(model.parameters()).detach())


def test_the_replica_has_memory_of_its_own():
    model = classifier()
    before = parameters_to_vector(model.parameters()).detach().clone()
    replica = Replica(model)
    replica.bind(torch.zeros(replica.d, dtype=torch.float64))
    assert torch.equal(parameters_to_vector(model.parameters()), before)


def test_bound_parameters_are_views_of_the_row():
    replica = Replica(classifier())
    row = torch.zeros(replica.d, dtype=torch.float64)
    replica.bind(row)
    row += 3
    assert torch.equal(replica.row(), torch.full_like(row, 3.0))


def test_frozen_parameters_stay_out_of_the_row():
    model = classifier()
    model.body.requires_grad_(False)
    replica = Replica(model)
    assert replica.d == 12
    assert torch.equal(replica.row(), parameters_to_vector(model.head.parameters()).detach())


def test_tied_parameters_count_once_and_stay_tied():
    replica = Replica(seeded(Tied))
    assert replica.d == 16
    out = replica.exported(torch.ones(16, dtype=torch.float64), replica.stats())
    assert out.up.weight is out.down.weight
    assert torch.equal(out.up.weight, torch.ones(4, 4, dtype=torch.float64))


def test_an_exported_model_is_independent_and_in_evaluation_mode():
    replica = Replica(classifier())
    row = replica.row()
    out = replica.exported(row, replica.stats())
    row.zero_()
    replica.bind(torch.ones_like(row))
    assert not out.training
    assert torch.equal(parameters_to_vector(out.parameters()), parameters_to_vector(classifier().parameters()))


def test_moving_buffers_are_a_row_of_their_own():
    model = classifier(middle=lambda: nn.BatchNorm1d(3))
    _, moved, random = probe(model, torch.randn(8, 4, dtype=torch.float64))
    assert moved == ("middle.running_mean", "middle.running_var", "middle.num_batches_tracked")
    assert not random
    replica = Replica(model, moved)
    assert replica.stats().tolist() == [0, 0, 0, 1, 1, 1, 0]
    replica.bind_stats(torch.tensor([1, 2, 3, 4, 5, 6, 6.6], dtype=torch.float64))
    assert replica.module.middle.running_var.tolist() == [4, 5, 6]
    assert replica.module.middle.num_batches_tracked.tolist() == 7


def test_probing_changes_neither_model_nor_random_state():
    model = classifier(middle=lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()))
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    _, moved, random = probe(model, torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator()))
    assert len(moved) == 3
    assert random
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_model_of_several_types_is_refused():
    model = classifier()
    model.head.float()
    with pytest.raises(InvalidInput, match="model: parameters of several types or devices"):
        Replica(model)


class Flat(nn.Module):
    """Flattens with view(), which needs the layout it was written for, or with flatten(), which needs none."""

    def __init__(self, view):
        super().__init__()
        self.conv, self.head, self.view = nn.Conv2d(2, 8, 3), nn.Linear(8 * 16, 3), view

    def forward(self, inputs):
        found = torch.relu(self.conv(inputs))
        return self.head(found.view(len(found), -1) if self.view else found.flatten(1))


class Backwards(Flat):
    """Works on its way there and fails on its way back."""

    def __init__(self):
        super().__init__(False)

    def forward(self, inputs):
        return Failing.apply(super().forward(inputs))


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("not this way")


def cnn(dtype=torch.float32, view=False):
    return seeded(lambda: Flat(view), dtype)


def pixels(n=2, dtype=torch.float32, seed=0):
    return torch.randn(n, 2, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


LAYOUTS = {
    "cnn": (cnn, True),
    "double": (lambda: cnn(torch.float64), False),
    "view": (lambda: cnn(view=True), False),
    "no convolution": (lambda: seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), torch.float32), False),
    "few channels, 1 x 1": (lambda: seeded(lambda: nn.Conv2d(2, 8, 1, stride=2), torch.float32), False),
    "more channels, 1 x 1": (
        lambda: seeded(lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.Conv2d(8, 8, 1)), torch.float32),
        True,
    ),
    "fails on its way back": (lambda: seeded(Backwards, torch.float32), False),
    "dropout": (lambda: nn.Sequential(cnn(), nn.Dropout()), True),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_who_likes_channels_last(kind):
    make, likes = LAYOUTS[kind]
    model = make()
    state, before = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    assert likes_channels_last(model, pixels(dtype=next(model.parameters()).dtype)) is likes
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.is_contiguous() for p in model.parameters())


def test_filters_laid_out_anew_have_the_rows_numbers():
    replica = Replica(cnn())
    replica.channels_last = True
    row = torch.randn(replica.d, generator=torch.Generator().manual_seed(1))
    replica.bind(row)
    assert replica.module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not replica.module.conv.weight.is_contiguous()
    assert torch.equal(replica.row(), row)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsls", "scaffold", "fedlin"])
def test_the_layout_of_filters_changes_little(algorithm, monkeypatch):
    clients = [(pixels(n, seed=n), torch.arange(n) % 3) for n in (6, 9)]

    def run():
        engine = fs.engine.Local(oracle="loop")
        return fs.train(
            cnn(), "cross_entropy", clients, algorithm, rounds=2, local_steps=3, batch_size=4, engine=engine
        )

    found = run()
    monkeypatch.setattr("fedstride.engine.worker.likes_channels_last", lambda *given: False)
    expected = run()
    assert (found.engine["channels_last"], expected.engine["channels_last"]) == (True, False)
    torch.testing.assert_close(found.x, expected.x, rtol=1e-4, atol=1e-4)
    assert all(p.is_contiguous() for p in found.model.parameters())
