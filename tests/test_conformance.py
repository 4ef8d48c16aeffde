"""Laws that every algorithm keeps: each recipe of the table, by itself, and a dozen compositions."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch

import fedstride as fs
from fedstride.algorithm.recipes import RECIPES
from tests.problems import (
    STEPS,
    classification,
    classifier,
    hessians,
    learn,
    linear,
    minimiser,
    records,
    regression,
    same_bits,
)
from tests.tiers import slow

COMPOSITIONS = {
    "armijo-fedexp-scaffold": fs.Algorithm(fs.Armijo(), fs.FedExP(), drift=fs.Scaffold()),
    "armijo-proximal-fedexprox": fs.Algorithm(fs.Armijo(reset="keep"), fs.FedExProx(), fs.Proximal(1.0)),
    "armijo-moon": fs.Algorithm(fs.Armijo(reset="max"), objective=fs.Moon()),
    "delta-corrected": fs.Algorithm(fs.DeltaSGD(), drift=fs.GradientCorrection()),
    "delta-feddyn": fs.Algorithm(fs.DeltaSGD(), fs.FedDyn(), fs.FedDynObjective()),
    "delta-iag": fs.Algorithm(fs.DeltaSGD(reuse_gradient=True), gradient=fs.IAG(2)),
    "polyak-scaffold-topk": fs.Algorithm(fs.Polyak(lr_max=1.0, growth=2.0), drift=fs.Scaffold(), up=fs.TopK(5)),
    "momentum-fednova": fs.Algorithm(fs.Momentum(), fs.FedNova()),
    "adam-yogi": fs.Algorithm(fs.Adam(), fs.YogiServer()),
    "adagrad-fedexpm": fs.Algorithm(fs.Adagrad(), fs.FedExPM()),
    "stepwise-adam": fs.Algorithm(fs.Constant(0.1, fs.Stepwise()), fs.AdamServer(bias_correction=True)),
    "quantised": fs.Algorithm(up=fs.Quantize(4), error_feedback=False),
    "random-k-with-feedback": fs.Algorithm(up=fs.RandomK(0.5)),
    "topk-momentum": fs.Algorithm(server=fs.ServerMomentum(), up=fs.TopK(0.2)),
    "fedlin-compressed": fs.recipes.fedlin(up=fs.TopK(5), down=fs.TopK(7)),
    "fedlin-compressed-at-once": fs.recipes.fedlin(
        up=fs.RandomK(9, unbiased=True), down=fs.TopK(7), error_feedback=False
    ),
    "noisy-corrected": fs.Algorithm(fs.PerStep(), gradient=fs.Noisy(), drift=fs.GradientCorrection()),
}
ALL = {name: make() for name, make in RECIPES.items()} | COMPOSITIONS
RANDOM = [n for n, a in ALL.items() if isinstance(a.gradient, fs.Noisy) or isinstance(a.up, fs.RandomK | fs.Quantize)]
WITH_BATCHES = [n for n, a in ALL.items() if a.gradient.batches]

MOST = {*RECIPES, "armijo-fedexp-scaffold", "delta-iag", "fedlin-compressed"}
FEW = {
    "auto",
    "fedavg",
    "fedexp",
    "fedlin",
    "fedsls",
    "delta_sgd",
    "moon",
    "scaffold",
}  # where a case takes 0.2 s or more


def over(names: Iterable[str], fast: set[str] = MOST) -> pytest.MarkDecorator:
    """One case per algorithm; `make test` runs those in `fast`."""
    return pytest.mark.parametrize("name", [n if n in fast else slow(n) for n in names])


everywhere = over(ALL)
WITHOUT_CHANCE = [n for n in ALL if n not in RANDOM]
without_chance = over(WITHOUT_CHANCE)


def work(name: str) -> dict:
    """Unequal tau_i, minibatches and half of the clients, wherever the algorithm has them."""
    partial = None if isinstance(ALL[name].objective, fs.FedSplitProx) else 0.5
    return {"local_steps": STEPS, "batch_size": 3 if ALL[name].gradient.batches else None, "cohort": partial}


def in_chunks(name: str, oracle: str) -> list[fs.Run]:
    """Each client alone, all four together, and two chunks."""
    options = {**work(name), "cohort": None}
    return [learn(ALL[name], engine=fs.engine.Local(oracle=oracle, chunk=c), **options) for c in (1, 4, 3)]


@everywhere
def test_clients_in_one_matrix_get_the_bits_they_get_alone(name):
    """Where gradients are computed one after another: the rules themselves work row by row."""
    alone, together, apart = in_chunks(name, "loop")
    assert same_bits(alone, together)
    assert same_bits(alone, apart)


@over(ALL, FEW)
def test_clients_in_one_matrix_get_what_they_get_alone(name):
    """Products of stacked matrices may be summed in another order than those of single ones."""
    alone, *others = in_chunks(name, "auto")
    for other in others:
        torch.testing.assert_close(other.x, alone.x, rtol=0, atol=1e-10)


@over(ALL, FEW)
def test_the_number_of_workers_changes_no_bit(name):
    options = {**work(name), "cohort": None}
    one, two, three = (learn(ALL[name], engine=fs.engine.Local(workers=n), **options) for n in (1, 2, 3))
    assert same_bits(one, two)
    assert same_bits(one, three)


@over(WITHOUT_CHANCE, FEW)
def test_the_order_of_the_clients_changes_nothing(name):
    there = learn(ALL[name], local_steps=STEPS, weights="samples")
    back = learn(ALL[name], clients=classification()[::-1], local_steps=STEPS[::-1], weights="samples")
    torch.testing.assert_close(back.x, there.x, rtol=0, atol=1e-10)


class Interrupted(Exception):
    pass


@everywhere
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(name, tmp_path):
    def interrupt(event):
        if event.round == 2:
            raise Interrupted

    options = {**work(name), "rounds": 4, "test": classification((7,), seed=5)[0]}
    whole = learn(ALL[name], **options)
    with pytest.raises(Interrupted):
        learn(ALL[name], checkpoint=tmp_path, callbacks=[interrupt], **options)
    seen = []
    resumed = learn(ALL[name], checkpoint=tmp_path, callbacks=[lambda e: seen.append(e.round)], **options)
    assert seen == [3, 4]
    assert same_bits(resumed, whole)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_type_of_the_model_is_kept(name, dtype):
    run = learn(ALL[name], model=classifier(dtype), clients=classification(dtype=dtype), **work(name))
    assert run.x.dtype == dtype
    assert {p.dtype for p in run.model.parameters()} == {dtype}


@without_chance
def test_single_precision_stays_close_to_double(name):
    double = learn(ALL[name], rounds=2, **work(name))
    single = learn(
        ALL[name],
        model=classifier(torch.float32),
        clients=classification(dtype=torch.float32),
        rounds=2,
        **work(name),
    )
    torch.testing.assert_close(single.x.double(), double.x, rtol=1e-3, atol=1e-4)


@without_chance
def test_identical_clients_are_one_client(name):
    (data,) = classification((6,))
    options = {"local_steps": 3, "engine": fs.engine.Local(oracle="loop")}  # bits do not depend on company
    one = learn(ALL[name], clients=[data], **options)
    four = learn(ALL[name], clients=[data] * 4, **options)  # a mean of four equals is exact
    assert torch.equal(one.x, four.x)


@everywhere
def test_the_same_seed_gives_the_same_bits(name):
    assert same_bits(learn(ALL[name], seed=3, **work(name)), learn(ALL[name], seed=3, **work(name)))


@over(WITH_BATCHES, FEW)
def test_another_seed_draws_other_batches(name):
    options = {**work(name), "cohort": None}
    assert not torch.equal(learn(ALL[name], seed=3, **options).x, learn(ALL[name], seed=4, **options).x)


@everywhere
def test_the_users_model_and_random_state_stay_as_they_were(name):
    model, random = classifier(), torch.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    run = learn(ALL[name], model=model, **work(name))
    assert model.training
    assert all(torch.equal(before[k], v) and v is not run.model.state_dict()[k] for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(random, torch.get_rng_state())
    assert not torch.equal(run.x, torch.nn.utils.parameters_to_vector(model.parameters()).detach())


@everywhere
def test_a_round_leaves_finite_figures(name):
    run = learn(ALL[name], **work(name))
    for row in records(run):
        assert all(torch.isfinite(torch.tensor(v)).all() for v in row.values() if v not in (None, {})), row


class Prepared:
    """A local engine whose clients already remember something."""

    leads = True

    def __init__(self, memory):
        self.memory = memory

    def open(self, *given):
        clients = fs.engine.Local().open(*given)
        clients.restore(self.memory)
        return clients


def from_the_minimum(algorithm, weights, **options):
    """(x*, where two rounds from x* lead, gradients of the clients at x*)."""
    data = regression()
    sizes = [float(len(inputs)) for inputs, _ in data]
    x = minimiser(data, sizes if weights == "samples" else [1.0] * len(data))
    gradients = [H @ x - h for H, h in hessians(data)]
    engine = Prepared({f"memory/{i}/control": g for i, g in enumerate(gradients)})
    chosen = {"engine": engine} if isinstance(algorithm.drift, fs.Scaffold) else {}
    run = fs.train(linear(x), "mse", data, algorithm, rounds=2, weights=weights, **chosen, **options)
    return x, run.x


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        (fs.recipes.fedlin(lr=0.05), STEPS),
        (fs.recipes.fedlin(lr=0.05, down=fs.TopK(2)), STEPS),
        (fs.recipes.fedtrack(lr=0.01), STEPS),
        (fs.recipes.fedtrack(lr=0.01, block=2), 12),  # components are visited more than once
        (fs.recipes.scaffold(lr=0.05), STEPS),
        (fs.recipes.scaffold_exp(lr=0.05), STEPS),
        (fs.Algorithm(fs.DeltaSGD(), drift=fs.GradientCorrection()), 3),
        (fs.Algorithm(fs.Armijo(), drift=fs.GradientCorrection()), 3),
    ],
    ids=["fedlin", "fedlin-topk", "fedtrack", "fedtrack-table", "scaffold", "scaffold_exp", "delta", "armijo"],
)
def test_corrected_clients_stay_at_the_minimum(algorithm, steps, weights):
    x, after = from_the_minimum(algorithm, weights, local_steps=steps)
    torch.testing.assert_close(after, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", [fs.recipes.fedsplit(), fs.recipes.fedavg(), fs.recipes.fedprox()])
def test_other_clients_leave_the_minimum(algorithm):
    x, after = from_the_minimum(algorithm, "uniform", local_steps=3)
    assert (after - x).norm() > 1e-3
