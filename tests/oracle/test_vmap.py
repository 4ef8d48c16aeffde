"""All clients together: the loop's numbers, also where vmap gives up on the way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import fedstride as fs
from fedstride.core.model import Replica
from fedstride.oracle import Loop, Meter, Vmap
from tests.problems import SIZES, STEPS, Classifier, classification, classifier, learn, seeded

RAGGED = (6, 9, 6, 1, 9)
EXACT = {"rtol": 1e-12, "atol": 1e-12}
VMAP, LOOP = fs.engine.Local(oracle="vmap"), fs.engine.Local(oracle="loop")


class Tied(nn.Module):
    """Encoder and decoder share one matrix; the head is frozen."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.Linear(4, 3)
        self.down.weight = self.up.weight
        self.head.requires_grad_(False)

    def forward(self, inputs):
        return self.head(torch.relu(self.down(torch.tanh(self.up(inputs)))))


class Spare(Classifier):
    """One of its parameters is never used."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(2))


MODELS = {
    "classifier": Classifier,
    "tied and frozen": Tied,
    "unused": Spare,
    "scaled": lambda: Classifier(nn.LayerNorm(3)),
}


def pair(model, sizes=RAGGED, loss=F.cross_entropy):
    replica, batches = Replica(seeded(MODELS[model])), classification(sizes)
    W = replica.row() + 0.3 * torch.randn(
        len(sizes), replica.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return Vmap(replica, loss, batches, Meter(len(sizes))), Loop(replica, loss, batches, Meter(len(sizes))), W


def same(some, other):
    for found, expected in zip(some, other, strict=True):
        assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("sizes", [RAGGED, (5, 5, 5), (7,)])
@pytest.mark.parametrize("model", MODELS)
def test_loss_and_gradient_are_the_loops(model, sizes):
    together, loop, W = pair(model, sizes)
    same(together.grad(W), loop.grad(W))
    assert_close(together.loss(W), loop.loss(W), **EXACT)
    assert vars(together.meter) == vars(loop.meter)


@pytest.mark.parametrize("rows", [[4, 0], [3], [1, 2, 0], [4, 3, 2, 1, 0]])
def test_some_rows(rows):
    together, loop, W = pair("classifier")
    some, alone = together.take(rows), loop.take(rows)
    same(some.grad(W[rows]), alone.grad(W[rows]))
    some, alone = some.take([0]), alone.take([0])
    assert_close(some.loss(W[rows[:1]]), alone.loss(W[rows[:1]]), **EXACT)
    assert vars(together.meter) == vars(loop.meter)


class Tiring:
    """Cross entropy that looks at its numbers from some call on, which vmap cannot follow."""

    def __init__(self, good):
        self.good, self.calls = good, 0

    def __call__(self, output, targets):
        self.calls += 1
        value = F.cross_entropy(output, targets)
        return value * (1.0 if self.calls <= self.good or value.item() > -1 else 2.0)


@pytest.mark.parametrize("good", range(6))
def test_where_vmap_gives_up_the_rows_go_one_by_one(good):
    """Three groups of clients: it may happen in any of them."""
    together, loop, W = pair("classifier", loss=Tiring(good))
    for _ in range(2):
        same(together.grad(W), loop.grad(W))
        assert_close(together.loss(W), loop.loss(W), **EXACT)
    assert vars(together.meter) == vars(loop.meter)
    assert not torch._C._functorch.maybe_current_level()  # nothing of vmap is left behind


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsls", "delta_sgd", "auto"])
def test_training_goes_on_where_vmap_gives_up(algorithm):
    options = {"local_steps": STEPS, "rounds": 2, "batch_size": 3}
    found = learn(algorithm, loss=Tiring(40), engine=fs.engine.Local(oracle="vmap", workers=1), **options)
    expected = learn(algorithm, engine=LOOP, **options)
    assert found.engine["oracle"] == "vmap"
    assert_close(found.x, expected.x, rtol=1e-10, atol=1e-10)
    for name in ("gradients", "forwards", "trials"):
        assert found.history[name] == expected.history[name]


class Picky(Classifier):
    def forward(self, inputs):
        if inputs.shape[0] == 5:
            raise RuntimeError("five samples are too few")
        return super().forward(inputs)


def test_an_error_of_the_model_is_its_own():
    with pytest.raises(RuntimeError, match="five samples") as caught:
        learn(model=seeded(Picky), engine=VMAP)
    assert SIZES[2] == 5
    assert any("round 1" in note and "2" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsls", "scaffold", "fedlin", "fedtrack", "fedsplit", "auto"])
def test_models_with_frozen_and_tied_parameters_train(algorithm):
    found, expected = (learn(algorithm, model=seeded(Tied), local_steps=2, engine=e) for e in (VMAP, LOOP))
    assert_close(found.x, expected.x, rtol=1e-10, atol=1e-10)
    assert torch.equal(found.model.head.weight, seeded(Tied).head.weight)


def test_the_replica_keeps_its_parameters():
    together, _, W = pair("classifier")
    before = together.replica.row()
    together.grad(W)
    together.loss(W)
    assert torch.equal(together.replica.row(), before)
    assert torch.equal(before, Replica(classifier()).row())


@pytest.mark.parametrize("ignored", [(), (0, 3)], ids=["every label", "ignored labels"])
def test_cross_entropy_has_the_bits_that_torch_computes_under_vmap(ignored):
    def torchs_own(output, target):
        return F.cross_entropy(output, target)

    batches = classification((7, 7, 7))
    for _, targets in batches:
        targets[list(ignored)] = -100
    replica = Replica(seeded(Classifier))
    W = replica.row() * torch.tensor([[1.0], [0.5], [-2.0]], dtype=torch.float64)
    ours, theirs = (Vmap(replica, loss, batches, Meter(3)).together(W) for loss in (F.cross_entropy, torchs_own))
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_cross_entropy_of_probabilities_and_of_sequences_is_torchs_own():
    generator = torch.Generator().manual_seed(0)
    for output, target in [
        (torch.randn(5, 3, generator=generator), torch.rand(5, 3, generator=generator)),
        (torch.randn(5, 3, 4, generator=generator), torch.randint(3, (5, 4), generator=generator)),
    ]:
        model = nn.Unflatten(1, output.shape[1:])
        replica = Replica(nn.Sequential(nn.Linear(1, output[0].numel()), model))
        batches = [(torch.randn(5, 1, generator=generator), target)] * 2
        W = replica.row().repeat(2, 1)
        found, expected = (kind(replica, F.cross_entropy, batches, Meter(2)).grad(W) for kind in (Vmap, Loop))
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
