"""nn.Module <-> row: the order of parameters, frozen and tied weights, buffers kept apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from fedstride import InvalidInput
from fedstride.model import Replica, probe
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
    with pytest.raises(InvalidInput, match="model: its parameters are of several kinds"):
        Replica(model)
