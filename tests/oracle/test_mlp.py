"""The closed form of multi-layer perceptrons: the loop's numbers, from matrix products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import fedstride as fs
from fedstride.core.model import Replica
from fedstride.models import MLP, Network
from fedstride.oracle import Loop, Meter, Perceptron, choose, form_of
from fedstride.oracle.choice import Case, step_flops
from fedstride.oracle.linear import gathered
from tests.oracle.test_linear import KINDS, RAGGED, holes, labels
from tests.problems import same_bits, seeded

EXACT = {"rtol": 1e-12, "atol": 1e-12}
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
MODELS = {  # of samples of shape (2, 3)
    "relu": lambda K: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, K)),
    "tanh, no bias": lambda K: nn.Sequential(nn.Flatten(), nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, K, False)),
    "sigmoid": lambda K: nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, K, bias=False)),
    "three layers": lambda K: MLP((2, 3), K, hidden=(5, 4)),
    "two activations": lambda K: nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, K)
    ),
    "nested": lambda K: Network(nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 5), nn.Tanh())), nn.Linear(5, K)),
}  # fmt: skip
CASES = [(m, k, 9 if make in (labels, holes) else 1) for m in MODELS for k, (_, make) in KINDS.items()]


def batches_of(kind, K, sizes=RAGGED):
    source = torch.Generator().manual_seed(5)
    return [(torch.randn(n, 2, 3, generator=source, dtype=torch.float64), KINDS[kind][1](n, K, source)) for n in sizes]


def pair(model, kind, K):
    """(closed form, loop, a point for each client)."""
    module, loss, batches = seeded(lambda: MODELS[model](K)), KINDS[kind][0], batches_of(kind, K)
    form, replica = form_of(module, loss, batches[1]), Replica(module)
    W = torch.randn(len(batches), replica.d, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    known = Perceptron(form, gathered(form, batches), Meter(len(batches)))
    return known, Loop(replica, loss, batches, Meter(len(batches))), W


@pytest.mark.parametrize(("model", "kind", "K"), CASES)
def test_loss_and_gradient_are_the_loops(model, kind, K):
    known, loop, W = pair(model, kind, K)
    for found, expected in zip(known.grad(W), loop.grad(W), strict=True):
        assert_close(found, expected, **EXACT)
    assert_close(known.loss(W), loop.loss(W), **EXACT)
    some = known.take([3, 0]).grad(W[[3, 0]])
    for found, expected in zip(some, loop.take([3, 0]).grad(W[[3, 0]]), strict=True):
        assert_close(found, expected, **EXACT)
    assert vars(known.meter) == vars(loop.meter)


@pytest.mark.parametrize(("model", "kind", "K"), CASES)
def test_descending_is_a_step_along_the_gradient(model, kind, K):
    known, loop, W = pair(model, kind, K)
    eta = torch.tensor([[0.1], [0.7], [2.0], [0.0]], dtype=torch.float64)
    expected = W - eta * loop.grad(W)[1]
    before = loop.grad(W)[0]
    assert known.descend(known.form.views(W), 0 * eta) is None
    assert_close(known.descend(known.form.views(W), eta, valued=True), before, **EXACT)
    assert_close(W, expected, **EXACT)
    assert vars(known.meter) == vars(loop.meter)


def test_the_gradient_of_relu_at_zero_is_that_of_torch():
    known, loop, W = pair("relu", "F.cross_entropy", 3)
    assert_close(known.grad(torch.zeros_like(W))[1], loop.grad(torch.zeros_like(W))[1], **EXACT)


@pytest.mark.parametrize("model", MODELS)
def test_the_rule_and_its_work(model):
    module, batch = seeded(lambda: MODELS[model](3)), batches_of("F.cross_entropy", 3, (8,))[0]
    choice = choose(Case(module, F.cross_entropy, batch, False, ()))
    assert (choice.oracle, choice.why) == ("mlp", "layers, activations and a loss of known derivative")
    assert choice.form.flops(8) == step_flops(module, F.cross_entropy, batch)
    with pytest.raises(fs.Refused, match='oracle="linear"'):
        choose(Case(module, F.cross_entropy, batch, False, ()), "linear")


ALGORITHMS = {
    "fedavg": fs.recipes.fedavg(lr=0.1),
    "fedprox": fs.recipes.fedprox(lr=0.1, mu=0.5),
    "scaffold": fs.recipes.scaffold(lr=0.1),
    "fedsls": fs.recipes.fedsls(),
    "delta_sgd": fs.recipes.delta_sgd(),
    "momentum": fs.Algorithm(fs.Momentum(0.05)),
    "fedlin": fs.recipes.fedlin(lr=0.1),
}


def trained(algorithm, engine, size=3, **options):
    given = {"rounds": 3, "local_steps": (7, 4, 6, 7), "batch_size": size, "seed": 2, **options}
    model, clients = seeded(lambda: MODELS["three layers"](3)), batches_of("F.cross_entropy", 3)
    return fs.train(model, "cross_entropy", clients, ALGORITHMS[algorithm], engine=engine, **given)


@pytest.mark.parametrize("size", [3, None])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_is_that_of_the_loop(algorithm, size):
    found, expected = (trained(algorithm, fs.engine.Local(oracle=o), size) for o in ("auto", "loop"))
    assert found.engine["oracle"] == "mlp"
    assert_close(found.x, expected.x, **CLOSE)
    for name in ("train_loss", "client_step", "drift"):
        assert_close(torch.tensor(found.history[name]), torch.tensor(expected.history[name]), **CLOSE)
    for name in ("trials", "gradients", "forwards"):
        assert found.history[name] == expected.history[name]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsls"])
def test_workers_do_not_change_the_bits(algorithm):
    one, two = (trained(algorithm, fs.engine.Local(workers, chunk=2)) for workers in (1, 2))
    assert same_bits(one, two)


def test_labels_of_bytes():
    batches = [(x, y.to(torch.uint8)) for x, y in batches_of("F.cross_entropy", 3)]
    model = seeded(lambda: MODELS["relu"](3))
    runs = [
        fs.train(model, "cross_entropy", batches, rounds=2, batch_size=4, engine=fs.engine.Local(oracle=o))
        for o in ("auto", "loop")
    ]
    assert_close(runs[0].x, runs[1].x, **CLOSE)
