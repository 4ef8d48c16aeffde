"""The rule: which oracle a model gets, what is refused, and what a run remembers of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedstride as fs
from fedstride.models import CharLSTM, McMahanCNN, Softmax
from fedstride.oracle.choice import LARGEST_CHUNK, LAUNCH_BOUND, Case, choose, step_flops
from tests.problems import Classifier, classification, classifier, learn, same_bits, seeded

Local = fs.engine.Local


def case(model, loss=F.cross_entropy, shape=(4,), n=8, random=False, moving=(), contrast=False, mixed=False):
    inputs = torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))
    return Case(model.float(), loss, (inputs, torch.arange(n) % 3), random, moving, contrast, mixed)


class Branching(Classifier):
    """Looks at its numbers to decide."""

    def forward(self, inputs):
        output = super().forward(inputs)
        return output if output.sum() > 0 else 2 * output


class Erratic(Classifier):
    """Under vmap it sees a row by itself, and takes its batch for something else."""

    def forward(self, inputs):
        together = torch._C._functorch.maybe_current_level() is not None
        return super().forward(inputs) * (2 if together else 1)


def tokens(n=8):
    inputs = torch.randint(9, (n, 5), generator=torch.Generator().manual_seed(0))
    return Case(seeded(lambda: CharLSTM((5,), 9), torch.float32), F.cross_entropy, (inputs, inputs[:, 0]), False, ())


def big():
    return case(seeded(lambda: McMahanCNN((1, 28, 28), 3), torch.float32), shape=(1, 28, 28), n=16)


def lenet(n):
    features = (
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return case(nn.Sequential(*features, nn.Flatten(), nn.Linear(400, 120), nn.Linear(120, 3)), shape=(1, 28, 28), n=n)


CASES = {
    "linear": (lambda: case(nn.Linear(4, 3)), "linear", "a linear model"),
    "softmax": (lambda: case(Softmax((2, 2), 3), shape=(2, 2)), "linear", "a linear model"),
    "mlp": (lambda: case(classifier()), "vmap", "MFLOP per client-step"),
    "linear, another loss": (lambda: case(nn.Linear(4, 3), nn.CrossEntropyLoss(torch.ones(3))), "vmap", "MFLOP"),
    "linear, mixed": (lambda: case(nn.Linear(4, 3), mixed=True), "vmap", "MFLOP"),
    "dropout": (lambda: case(classifier(middle=nn.Dropout), random=True), "loop", "random numbers"),
    "batch norm": (lambda: case(classifier(middle=lambda: nn.BatchNorm1d(3)), moving=("middle.running_mean",)), "loop", "buffers"),
    "moon": (lambda: case(classifier(), contrast=True), "loop", "features of several models"),
    "linear, moon": (lambda: case(Softmax((4,), 3), contrast=True), "loop", "features of several models"),
    "lstm": (tokens, "loop", "recurrent"),
    "cnn": (big, "loop", "enough to keep a core busy"),
    "lenet, batch 5": (lambda: lenet(5), "vmap", "MFLOP per client-step"),
    "lenet, batch 16": (lambda: lenet(16), "loop", "convolutions"),
    "branching": (lambda: case(seeded(Branching)), "loop", "vmap fails on the model"),
    "erratic": (lambda: case(seeded(Erratic)), "loop", "disagree"),
    "wide": (lambda: case(nn.Sequential(nn.Linear(4, 150_000), nn.Linear(150_000, 3)), n=1), "loop", "cache"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_the_rule(kind):
    make, oracle, why = CASES[kind]
    choice = choose(make())
    assert choice.oracle == oracle
    assert why in choice.why
    assert choose(make()) == choice  # and always the same
    assert choice.chunk == 1 if oracle == "loop" else 2 <= choice.chunk <= LARGEST_CHUNK
    assert (choice.form is not None) == (oracle == "linear")


def test_chunks_are_smaller_where_a_step_is_work_enough():
    sizes = [choose(case(nn.Linear(4 * k, 3), shape=(4 * k,), n=64)).chunk for k in (1, 1000, 10_000)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == LARGEST_CHUNK
    assert sizes[-1] == 1
    two_layers = case(nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)), shape=(784,), n=50)
    assert choose(two_layers).chunk == 4  # 32 MFLOP per client-step, in twice as many operations as a linear model's
    assert step_flops(big().model, F.cross_entropy, big().batch) > LAUNCH_BOUND


@pytest.mark.parametrize("n", [1, 8, 20])
@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_the_work_of_a_closed_form_is_what_would_be_counted(kind, n):
    one = CASES[kind][0]()
    batch = (one.batch[0][:1].repeat(n, *[1] * (one.batch[0].dim() - 1)), torch.zeros(n, dtype=torch.long))
    assert choose(one).form.flops(n) == step_flops(one.model, one.loss, batch) > 0


@pytest.mark.slow
def test_a_linear_model_trains_without_the_half_of_torch_that_counts():
    script = (
        "import sys, torch, fedstride as fs\n"
        "fs.train(torch.nn.Linear(2, 1), 'mse', [(torch.ones(2, 2), torch.ones(2, 1))], rounds=1)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("kind", [k for k, (_, oracle, _) in CASES.items() if oracle != "linear"])
def test_a_closed_form_that_is_not_there_is_refused(kind):
    with pytest.raises(fs.Refused, match='oracle="linear"'):
        choose(CASES[kind][0](), "linear")


@pytest.mark.parametrize("kind", ["dropout", "batch norm", "moon", "lstm", "branching", "erratic"])
def test_vmap_where_it_cannot_be_is_refused(kind):
    make, _, why = CASES[kind]
    with pytest.raises(fs.Refused, match=f'oracle="vmap" cannot be used.*{why}'):
        choose(make(), "vmap")


@pytest.mark.parametrize("kind", ["linear", "softmax", "mlp", "cnn", "wide"])
def test_others_may_be_asked_for(kind):
    for oracle in ("vmap", "loop"):
        choice = choose(CASES[kind][0](), oracle)
        assert (choice.oracle, choice.form, choice.why) == (oracle, None, "requested")
    assert choose(CASES[kind][0](), "auto", 7).chunk == 7


def test_refusals_come_before_any_work():
    events = []
    for algorithm, model, oracle in (("fedavg", classifier(), "linear"), ("moon", classifier(), "vmap")):
        with pytest.raises(fs.Refused, match=oracle):
            learn(algorithm, model=model, engine=Local(oracle=oracle), callbacks=[events.append])
    assert events == []


def test_unknown_oracles_are_refused():
    with pytest.raises(fs.InvalidInput, match="oracle='vmpa' is unknown; did you mean 'vmap'"):
        Local(oracle="vmpa")


def test_choosing_leaves_the_users_random_numbers_alone():
    model = classifier(middle=nn.Dropout)
    before = torch.get_rng_state()
    learn(model=model, engine=Local())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("mode", [True, False])
def test_choosing_leaves_the_model_alone(mode):
    model = classifier(middle=lambda: nn.BatchNorm1d(3)).train(mode)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    learn(model=model)
    assert model.training is mode
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("kind", ["linear", "mlp", "dropout", "batch norm"])
def test_a_run_remembers_how_gradients_were_computed(kind, tmp_path):
    make, oracle, why = CASES[kind]
    run = learn(model=make().model.double(), engine=Local(workers=2))
    assert run.engine["oracle"] == oracle
    assert why in run.engine["why"]
    assert run.engine["workers"] == (1 if kind == "dropout" else 2)
    assert run.engine["chunk"] >= 1
    assert fs.load(run.save(tmp_path)).engine == run.engine


def linear_run(oracle="auto", chunk=None, rounds=4, **options):
    model = seeded(lambda: nn.Linear(4, 3))
    return learn("fedsls", model=model, rounds=rounds, engine=Local(oracle=oracle, chunk=chunk), **options)


@pytest.mark.parametrize("first", ["linear", "vmap", "loop"])
@pytest.mark.parametrize("then", ["linear", "vmap", "loop"])
def test_a_run_goes_on_with_its_own_oracle_only(first, then, tmp_path):
    linear_run(first, rounds=2, checkpoint=tmp_path)
    if first == then:
        assert same_bits(linear_run(then, checkpoint=tmp_path), linear_run(then))
        return
    with pytest.raises(fs.InvalidInput, match=rf"another run: oracle was '{first}.* and is now '{then}"):
        linear_run(then, checkpoint=tmp_path)


@pytest.mark.parametrize("oracle", ["linear", "vmap"])
def test_chunks_are_part_of_what_bits_depend_on(oracle, tmp_path):
    linear_run(oracle, 3, rounds=2, checkpoint=tmp_path)
    with pytest.raises(fs.InvalidInput, match=r"in chunks of 3.* and is .* in chunks of 2"):
        linear_run(oracle, 2, checkpoint=tmp_path)


def test_in_the_loop_chunks_may_change(tmp_path):
    linear_run("loop", 3, rounds=2, checkpoint=tmp_path)
    assert same_bits(linear_run("loop", 2, checkpoint=tmp_path), linear_run("loop"))


@pytest.mark.slow
def test_another_precision_is_another_run(tmp_path, bfloat16):
    options = {"model": classifier(torch.float32), "clients": classification(dtype=torch.float32)}
    learn(rounds=2, checkpoint=tmp_path, precision="bfloat16", **options)
    with pytest.raises(fs.InvalidInput, match="belongs to another run"):
        learn(rounds=3, checkpoint=tmp_path, **options)


class Touchy(Classifier):
    """Breaks on large inputs."""

    def forward(self, inputs):
        if inputs.max() > 100:
            raise ArithmeticError("too large")
        return super().forward(inputs)


def test_an_error_on_the_largest_client_says_where():
    """The rule tries the model on this client's data, before the first round."""
    clients = classification((6, 40, 5))
    clients[1][0][-1] = 1000  # beyond the samples that are tried out at first
    with pytest.raises(ArithmeticError, match="too large") as caught:
        learn(model=seeded(Touchy), clients=clients)
    assert any("1" in note for note in getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("algorithm", [fs.recipes.fedsls(lr_max=5.0), fs.Algorithm(fs.Polyak(lr_max=5.0, growth=2.0))])
def test_in_the_loop_steps_that_grow_do_not_depend_on_chunks(algorithm):
    """2^(3/19) differs in the last bit between torch's scalar and its vectorised power, with AVX-512."""
    given = {"clients": classification([19] * 16), "rounds": 3, "local_steps": 6, "batch_size": 3}
    runs = [learn(algorithm, engine=fs.engine.Local(1, "loop", chunk), **given) for chunk in (1, 16)]
    assert same_bits(*runs)
