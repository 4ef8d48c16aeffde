"""Exact aggregation of low-rank updates: the mean of the products, for every engine, refused where it makes no sense."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedstride as fs
from fedstride.core.lora import pairs_of
from tests.adapters import Adapted, Transposed, adapted, clients

EXACT = fs.Algorithm(step=fs.Constant(0.3), aggregate=fs.ExactLoRA())
PLAIN = fs.Algorithm(step=fs.Constant(0.3))


def products(model):
    """The dense products, with the frozen weights, of both adapted layers."""
    first, second = model[0], model[2]
    return [first.dense(), second.base_layer.weight.T + second.product().detach()]


def trained(algorithm, rounds=1, model=None, data=None, **settings):
    model = adapted() if model is None else model
    return fs.train(model, "cross_entropy", data or clients(), algorithm, rounds=rounds, local_steps=5, **settings)


def error(run, weights=(1.0, 1.0, 1.0, 1.0), start=None):
    """Largest distance from the mean of the models that the clients have by themselves after the round."""
    alone = [products(trained(PLAIN, model=start, data=[client]).model) for client in clients()]
    total = sum(weights)
    means = [
        sum(w * layer for w, layer in zip(weights, layers, strict=True)) / total for layers in zip(*alone, strict=True)
    ]
    return max(float((a - b).abs().max()) for a, b in zip(products(run.model), means, strict=True))


def test_the_next_model_is_the_mean_of_the_products():
    assert error(trained(EXACT)) < 1e-12


def test_the_mean_of_the_factors_is_not():
    assert error(trained(PLAIN)) > 1e-4


def test_it_is_exact_for_weighted_clients():
    weights = [1.0, 2.0, 3.0, 4.0]
    assert error(trained(EXACT, weights=weights), weights) < 1e-12


def test_it_is_exact_in_later_rounds():
    first = trained(EXACT).model
    assert error(trained(EXACT, model=first), start=first) < 1e-12
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            products(trained(EXACT, rounds=2).model), products(trained(EXACT, model=first).model), strict=True
        )
    )


def test_what_is_not_a_product_is_averaged_as_ever():
    exact, plain = trained(EXACT), trained(PLAIN)  # by different oracles, which round differently on some processors
    torch.testing.assert_close(exact.model[4].weight, plain.model[4].weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(exact.x, plain.x, rtol=0, atol=1e-12)


def test_clients_send_factors_and_receive_the_frozen_weights():
    exact, plain = trained(EXACT).history[0], trained(PLAIN).history[0]
    assert exact["bytes_up"] == plain["bytes_up"]
    assert exact["bytes_down"] - plain["bytes_down"] == 4 * 8 * (5 * 6 + 6 * 4)


def test_the_users_model_is_not_changed():
    model = adapted()
    trained(EXACT, model=model)
    assert torch.equal(model[0].base_layer.weight, adapted()[0].base_layer.weight)


def test_workers_do_not_change_the_bits():
    runs = [trained(EXACT, rounds=3, engine=fs.engine.Local(workers=w, chunk=c)) for w, c in ((1, 4), (2, 1))]
    assert all(torch.equal(a, b) for a, b in zip(*(products(run.model) for run in runs), strict=True))


def test_a_resumed_run_is_the_same(tmp_path):
    trained(EXACT, rounds=2, checkpoint=tmp_path)
    runs = [trained(EXACT, rounds=4, checkpoint=tmp_path), trained(EXACT, rounds=4)]
    assert all(torch.equal(a, b) for a, b in zip(*(products(run.model) for run in runs), strict=True))


def test_saved_weights_include_those_that_the_server_changed(tmp_path):
    run = trained(EXACT, rounds=2)
    assert run.facts["frozen"]["changed"] == ["0.base_layer.weight", "2.base_layer.weight"]
    again = fs.load(run.save(tmp_path), adapted())
    assert all(torch.equal(a, b) for a, b in zip(products(again.model), products(run.model), strict=True))


@pytest.mark.parametrize("server", [fs.FedExP(), fs.AdamServer(), fs.ServerMomentum()], ids=repr)
def test_other_server_rules_move_the_factors_on(server):
    run = trained(replace(EXACT, server=server), rounds=3, data=clients())
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]


def test_auto_trains_with_it():
    auto = replace(fs.recipes.auto(), aggregate=fs.ExactLoRA())
    history = trained(auto, rounds=15).history
    assert history[-1]["train_loss"] < 0.7 * history[0]["train_loss"]


REFUSED = {
    "a compressor": {"up": fs.TopK(k=3)},
    "Privacy": {"privacy": fs.Privacy(clip=1.0, noise=1.0)},
    "FedNova": {"server": fs.FedNova()},
}


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_make_products_wrong_are_refused(name):
    with pytest.raises(fs.Refused, match=f"ExactLoRA with {name}"):
        fs.Algorithm(aggregate=fs.ExactLoRA(), **REFUSED[name])


def without_adapters():
    return nn.Linear(5, 3).double()


def half_frozen():
    model = adapted()
    for layer in (model[0], model[2]):
        layer.lora_A.requires_grad_(False)
    return model


def shared():
    model = adapted()
    model.add_module("5", nn.Linear(3, 3).double())
    model[0], model[2] = Adapted(5, 5).double(), Adapted(5, 5).double()
    model[2].base_layer.weight = model[0].base_layer.weight
    return model


def unfrozen():
    model = adapted()
    model[0].base_layer.requires_grad_(True)
    return model


def other_type():
    model = adapted()
    model[0].base_layer.float()
    return model


def variant():
    model = adapted()
    model[0].lora_variant = {"default": object()}
    return model


MODELS = {
    without_adapters: "it averages their products",
    half_frozen: "it averages their products",
    shared: "shared with others",
    unfrozen: "trained",
    other_type: "type torch.float32",
    variant: "a variant of LoRA",
}


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_models_without_such_products_are_refused(make):
    with pytest.raises(fs.Refused, match=MODELS[make]):
        pairs_of(make())


def test_statistics_that_clients_would_upload_are_refused():
    model = nn.Sequential(Adapted(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    with pytest.raises(fs.Refused, match="BatchNorm"):
        trained(EXACT, model=model)
    assert len(trained(EXACT, model=model, buffers="frozen").history) == 1


def test_a_frozen_factor_makes_the_mean_exact():
    assert error(trained(PLAIN, model=half_frozen()), start=half_frozen()) < 1e-12


def test_transposed_weights_are_found():
    assert [pair.transposed for pair in pairs_of(adapted())] == [False, True]
    assert isinstance(adapted()[2].base_layer, Transposed)
