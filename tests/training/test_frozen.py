"""Frozen parameters: they are not saved, and a run belongs to the ones it was trained on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.core.files import read_tensors
from tests.adapters import adapted, clients


def trained(model=None, **settings):
    return fs.train(adapted() if model is None else model, "cross_entropy", clients(), rounds=2, **settings)


def other():
    model = adapted()
    model[0].base_layer.weight.data[0, 0] += 1e-9
    return model


def same(a, b):
    return all(torch.equal(v, b.state_dict()[name]) for name, v in a.state_dict().items())


def test_only_what_was_trained_is_saved(tmp_path):
    run = trained()
    found, _ = read_tensors(run.save(tmp_path) / "model.safetensors")
    assert found.keys() == {name for name, p in run.model.named_parameters() if p.requires_grad}
    assert same(run.model, fs.load(tmp_path, adapted()).model)


def test_frozen_parameters_are_saved_where_they_are_asked_for(tmp_path):
    run = trained()
    run.save(tmp_path, frozen=True)
    assert same(run.model, fs.load(tmp_path).model)
    assert same(run.model, fs.load(tmp_path, other()).model)


def test_another_base_model_is_refused(tmp_path):
    trained().save(tmp_path)
    with pytest.raises(fs.InvalidInput, match="frozen parameters of the model are not those"):
        fs.load(tmp_path, other())


def test_another_model_is_refused(tmp_path):
    trained().save(tmp_path)
    with pytest.raises(fs.InvalidInput, match="do not fit the model"):
        fs.load(tmp_path, nn.Linear(5, 3))


def test_a_run_does_not_go_on_with_another_base_model(tmp_path):
    trained(checkpoint=tmp_path)
    with pytest.raises(fs.InvalidInput, match="another run: frozen parameters"):
        fs.train(other(), "cross_entropy", clients(), rounds=3, checkpoint=tmp_path)


def test_checkpoints_leave_frozen_parameters_out(tmp_path):
    run = trained(algorithm="fedavg", checkpoint=tmp_path)
    tensors, _ = read_tensors(next(tmp_path.glob("checkpoint-*.safetensors")))
    assert sum(v.numel() for v in tensors.values() if v.is_floating_point()) == 3 * len(run.x) + 1  # x, moved, average


def test_the_hash_is_recorded():
    facts = [trained(model).facts["frozen"] for model in (adapted(), adapted(), other())]
    assert facts[0] == facts[1] and facts[0]["sha256"] != facts[2]["sha256"]
    assert facts[0]["numbers"] == 5 * 6 + 6 + 6 * 4
    assert "frozen" not in fs.train(nn.Linear(5, 3).double(), "cross_entropy", clients(), rounds=1).facts


def test_normalised_models_are_saved_without_them_too(tmp_path):
    run = trained(normalise=True)
    run.save(tmp_path)
    assert same(run.model, fs.load(tmp_path, adapted()).model)
    with pytest.raises(fs.InvalidInput, match="frozen parameters"):
        fs.load(tmp_path, other())


def test_auto_trains_factors_that_start_at_zero():
    run = fs.train(adapted(), "cross_entropy", clients(), rounds=15)
    assert run.history[-1]["train_loss"] < 0.7 * run.history[0]["train_loss"]
    assert all(float(run.model[i].product().detach().norm()) > 0.1 for i in (0, 2))
