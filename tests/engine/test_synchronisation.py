"""Local steps do not synchronise: on a GPU, each read of a tensor's value stalls the queue."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fedstride as fs
from fedstride.client import exchange, local
from tests.problems import classification, classifier, learn, seeded

pytestmark = pytest.mark.slow

LOOKS = ("tolist", "numpy", "cpu")  # what reads values without an operation of its own, or moves them to be read
OPERATIONS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::equal")


class Operations(TorchDispatchMode):
    """Counts operations that read a value, such as item(), float(), bool() and indexing by masks."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        masks = func.name() == "aten::index.Tensor" and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.count += masks or func.name().partition(".")[0] in OPERATIONS
        return func(*args, **(kwargs or {}))


class Looks(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__name__", "") in LOOKS
        return func(*args, **(kwargs or {}))


@pytest.fixture
def looks(monkeypatch):
    """Return the number of synchronisations of each run of local steps, and its result."""
    seen, run = [], local.run

    def counted(*given):
        with Operations() as operations, Looks() as others:
            out = run(*given)
        seen.append((operations.count + others.count, out))
        return out

    monkeypatch.setattr(exchange.local, "run", counted)
    return seen


RULES = {
    "constant": fs.Constant(0.01),
    "momentum": fs.Momentum(0.01),
    "delta_sgd": fs.DeltaSGD(),
    "delta_sgd, reused": fs.DeltaSGD(reuse_gradient=True),
    "polyak": fs.Polyak(),
    "polyak, growing": fs.Polyak(growth=2.0, lr_max=1.0),
    "adam": fs.Adam(),
    "adagrad": fs.Adagrad(),
    "auto": fs.recipes.auto(),
    "scaffold": fs.recipes.scaffold(),
    "fedprox": fs.recipes.fedprox(),
    "fedlin": fs.recipes.fedlin(lr=0.01),
}
ORACLES = ("loop", "vmap", "linear")


def run(rule, oracle, steps, **options):
    model = seeded(lambda: nn.Linear(4, 3)) if oracle == "linear" else classifier()
    algorithm = rule if isinstance(rule, fs.Algorithm) else fs.Algorithm(rule)
    engine = fs.engine.Local(1, oracle, chunk=4)
    learn(
        algorithm,
        model=model,
        clients=classification((6, 9, 6, 8)),
        local_steps=steps,
        engine=engine,
        rounds=1,
        **options,
    )


def test_synchronisations_are_detected(looks):
    class Nosy(fs.Constant):
        def step(self, W, L, G, state, oracle):
            float(L[0]), L.tolist(), G[G > 0], bool(L[0] > 0), L.cpu()
            return super().step(W, L, G, state, oracle)

    run(Nosy(0.01), "linear", 3)
    assert looks[0][0] == 3 * 5


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"weight_decay": 0.1, "clip_norm": 1.0}], ids=str)
@pytest.mark.parametrize("oracle", ORACLES)
@pytest.mark.parametrize("rule", RULES)
def test_no_rule_synchronises_in_every_step(rule, oracle, options, looks):
    few, many = [2, 3, 2, 2], [7, 9, 5, 5]
    for steps in (few, many):
        run(RULES[rule], oracle, steps, **options)
    (before, _), (after, _) = looks
    assert after == before
    assert before <= (2 if rule == "auto" else 0)  # whose first step asks who tries the cap


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"weight_decay": 0.1}], ids=str)
@pytest.mark.parametrize("oracle", ORACLES)
def test_a_line_search_synchronises_once_per_trial(oracle, options, looks):
    """All clients search together, so the longest search counts; one more read finds the clients that search."""
    steps = 5
    trials = []

    class Counted(fs.Armijo):
        def step(self, W, L, G, state, oracle):
            before = state["trials"].clone()
            move = super().step(W, L, G, state, oracle)
            trials.append((state["trials"] - before).max())
            return move

    run(Counted(lr_max=10.0), oracle, steps, **options)
    most = int(sum(trials))
    assert most > steps
    assert looks[0][0] <= steps + most
