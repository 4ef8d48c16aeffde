"""Closed forms: the loop's numbers, from matrix products; and which models and losses have one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torch.utils.data import Dataset

import fedstride as fs
from fedstride.client.chunk import Chunk
from fedstride.core import losses
from fedstride.core.model import Replica
from fedstride.models import Network, Softmax
from fedstride.oracle import Linear, Loop, Meter, form_of
from fedstride.oracle.choice import CHUNK_NUMBERS
from fedstride.oracle.forms import FEW
from fedstride.oracle.linear import gathered
from tests.problems import linear, regression, seeded

RAGGED = (6, 9, 1, 8)
EXACT = {"rtol": 1e-12, "atol": 1e-12}
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def numbers(n, K, source):
    return torch.randn(n, K, generator=source, dtype=torch.float64)


def signs(n, K, source):
    return 2 * torch.randint(2, (n, K), generator=source).double() - 1


def bits(n, K, source):
    return torch.randint(2, (n, K), generator=source).double()


def labels(n, K, source):
    return torch.randint(K, (n,), generator=source)


def holes(n, K, source):
    """Labels, every third of which does not count."""
    return labels(n, K, source).masked_fill(torch.arange(n) % 3 == 1, -100)


KINDS = {
    "mse": (losses.mse, numbers),
    "mse, flat targets": (losses.mse, lambda *a: numbers(*a).flatten() if a[1] == 1 else numbers(*a)),
    "F.mse_loss": (F.mse_loss, numbers),
    "MSELoss": (nn.MSELoss(), numbers),
    "MSELoss, sum": (nn.MSELoss(reduction="sum"), numbers),
    "logistic": (losses.logistic, signs),
    "bce": (losses.bce_with_logits, bits),
    "F.bce": (F.binary_cross_entropy_with_logits, bits),
    "BCE": (nn.BCEWithLogitsLoss(), bits),
    "BCE, sum": (nn.BCEWithLogitsLoss(reduction="sum"), bits),
    "F.cross_entropy": (F.cross_entropy, labels),
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), labels),
    "CrossEntropyLoss, sum": (nn.CrossEntropyLoss(reduction="sum"), labels),
    "holes": (F.cross_entropy, holes),
    "holes, sum": (nn.CrossEntropyLoss(reduction="sum"), holes),
}
MODELS = {  # of samples of shape (2, 3) where they flatten them, and of 6 numbers else
    "plain": lambda K: nn.Linear(6, K),
    "no bias": lambda K: nn.Linear(6, K, bias=False),
    "flattened": lambda K: nn.Sequential(nn.Flatten(), nn.Linear(6, K)),
    "padded": lambda K: nn.Sequential(nn.Identity(), nn.Flatten(), nn.Identity(), nn.Linear(6, K, bias=False)),
    "softmax": lambda K: Softmax((2, 3), K),
}
CASES = [
    (model, kind, K) for model in MODELS for kind, (_, make) in KINDS.items() for K in (1, 3, 9) if K > 1 or make not in (labels, holes)
]  # fmt: skip


def problem(model, kind, K, sizes=RAGGED):
    loss, targets = KINDS[kind]
    source = torch.Generator().manual_seed(5)
    shape = (6,) if model in ("plain", "no bias") else (2, 3)
    batches = []
    for n in sizes:
        batches.append((torch.randn(n, *shape, generator=source, dtype=torch.float64), targets(n, K, source)))
    return seeded(lambda: MODELS[model](K)), loss, batches


def pair(model, kind, K, sizes=RAGGED):
    """(closed form, loop, a point for each client)."""
    module, loss, batches = problem(model, kind, K, sizes)
    form = form_of(module, loss, batches[1])
    assert form is not None
    replica = Replica(module)
    W = torch.randn(len(sizes), replica.d, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    known = Linear(form, gathered(form, batches), Meter(len(sizes)))
    return known, Loop(replica, loss, batches, Meter(len(sizes))), W


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
def test_along_a_direction_the_loss_is_that_of_the_point(model, kind, K):
    known, loop, W = pair(model, kind, K)
    _, D = known.grad(W)
    eta = torch.tensor([[0.1], [0.7], [2.0], [0.0]], dtype=torch.float64)
    ray = known.along(W, D)
    assert_close(ray(eta, [0, 1, 2, 3]), loop.loss(W - eta * D), **EXACT)
    assert_close(ray(eta[[2, 1]], [2, 1]), loop.take([2, 1]).loss((W - eta * D)[[2, 1]]), **EXACT)
    assert known.meter.forwards == loop.meter.forwards
    some = known.take([3, 1])
    assert_close(some.along(W[[3, 1]], D[[3, 1]])(eta[[3, 1]], [0, 1]), loop.take([3, 1]).loss((W - eta * D)[[3, 1]]))
    assert known.meter.forwards == loop.meter.forwards


def test_scores_of_another_point_are_not_kept():
    known, loop, W = pair("plain", "F.cross_entropy", 3)
    eta = torch.full((4, 1), 0.5, dtype=torch.float64)
    _, D = known.grad(W)
    W -= D  # in place: the same object, elsewhere
    assert_close(known.along(W, D)(eta, [0, 1, 2, 3]), loop.loss(W - eta * D), **EXACT)
    known.grad(W)
    V = W.clone()
    V[2] += 1
    assert_close(known.along(V, D)(eta, [0, 1, 2, 3]), loop.loss(V - eta * D), **EXACT)


def test_offsets_belong_to_their_rows():
    known, _, W = pair("no bias", "F.mse_loss", 3)
    known.offset = torch.randn(4, 9, 3, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    L, G = known.grad(W)
    assert_close(known.take([3, 1]).grad(W[[3, 1]]), (L[[3, 1]], G[[3, 1]]), **EXACT)
    eta = torch.full((4, 1), 0.5, dtype=torch.float64)
    assert_close(known.along(W, G)(eta, [0, 1, 2, 3]), known.loss(W - eta * G), **EXACT)


def test_a_batch_without_any_label_gives_what_torch_gives():
    module, loss, batches = problem("plain", "F.cross_entropy", 3)
    batches[1][1].fill_(-100)
    form = form_of(module, loss, batches[1])
    W = Replica(module).row().expand(4, -1).clone()
    found = Linear(form, gathered(form, batches), Meter(4)).loss(W)
    expected = Loop(Replica(module), loss, batches, Meter(4)).loss(W)
    assert_close(found, expected, equal_nan=True, **EXACT)


def test_labels_may_be_bytes():
    module, loss, batches = problem("plain", "F.cross_entropy", 3)
    small = [(inputs, targets.to(torch.uint8)) for inputs, targets in batches]  # torch's loss takes them
    runs = [fs.train(module, loss, data, "fedavg", rounds=1) for data in (batches, small)]
    assert_close(runs[0].x, runs[1].x, **EXACT)


class Squashed(nn.Sequential):
    def forward(self, inputs):
        return torch.tanh(super().forward(inputs))


class Scaled(Network):
    """Its features are more than its body's."""

    def features(self, inputs):
        return 2 * super().features(inputs)


class Wider(nn.Sequential):
    """Has a parameter that its layers know nothing of."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.unused = nn.Parameter(torch.ones(2))


@dataclass
class Mine:
    """A loss that compares by value, so that it has no hash."""

    factor: float

    def __call__(self, output, targets):
        return self.factor * F.mse_loss(output, targets)


def hooked(register):
    layer = nn.Linear(6, 1)
    getattr(layer, register)(lambda *a: None)
    return layer


def frozen(name):
    layer = nn.Linear(6, 1)
    getattr(layer, name).requires_grad_(False)
    return layer


def rebuilt():
    layer = nn.Linear(6, 1)
    layer.forward = lambda inputs: torch.tanh(F.linear(inputs, layer.weight, layer.bias))
    return layer


def tied():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    model[2].weight = model[0].weight
    return model


OTHER_MODELS = {
    "forward hook": lambda: hooked("register_forward_hook"),
    "forward pre-hook": lambda: hooked("register_forward_pre_hook"),
    "backward hook": lambda: hooked("register_full_backward_hook"),
    "backward pre-hook": lambda: hooked("register_full_backward_pre_hook"),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 1)),
    "frozen weight": lambda: frozen("weight"),
    "frozen bias": lambda: frozen("bias"),
    "GELU between": lambda: nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 1)),
    "dropout between": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(), nn.Linear(6, 1)),
    "nothing between": lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1)),
    "two activations": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Tanh(), nn.Linear(6, 1)),
    "the same layer twice": lambda: nn.Sequential(
        layer := nn.Linear(6, 6), nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 1)
    ),
    "a tied weight": tied,
    "nothing": nn.Sequential,
    "ReLU before": lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 1)),
    "sigmoid after": lambda: nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()),
    "bilinear": lambda: nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(6, 1)),
    "a forward of its own": lambda: Squashed(nn.Linear(6, 1)),
    "features of its own": lambda: Scaled(nn.Flatten(), nn.Linear(6, 1)),
    "a parameter of its own": lambda: Wider(nn.Linear(6, 1)),
    "an instance's forward": rebuilt,
}


@pytest.mark.parametrize("model", OTHER_MODELS)
def test_other_models_have_no_closed_form(model):
    batch = torch.ones(4, 6), torch.ones(4, 1)
    assert form_of(nn.Linear(6, 1), F.mse_loss, batch) is not None
    assert form_of(OTHER_MODELS[model](), F.mse_loss, batch) is None


OTHER_LOSSES = {
    "broadcast mse": (F.mse_loss, torch.ones(4)),
    "broadcast MSELoss": (nn.MSELoss(), torch.ones(4)),
    "broadcast over classes": (F.mse_loss, torch.ones(4, 1)),
    "mse of other numbers": (losses.mse, torch.ones(4, 2)),
    "probabilities": (F.cross_entropy, torch.ones(4, 3) / 3),
    "class weights": (nn.CrossEntropyLoss(torch.ones(3)), torch.ones(4).long()),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), torch.ones(4).long()),
    "another mark for holes": (nn.CrossEntropyLoss(ignore_index=0), torch.ones(4).long()),
    "weights of positives": (nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), torch.ones(4, 3)),
    "weights": (nn.BCEWithLogitsLoss(torch.ones(3)), torch.ones(4, 3)),
    "l1": (losses.l1, torch.ones(4, 3)),
    "huber": (losses.huber, torch.ones(4, 3)),
    "a function": (lambda output, targets: F.mse_loss(output, targets), torch.ones(4, 3)),
    "without a hash": (Mine(2.0), torch.ones(4, 3)),
    "a subclass": (type("Half", (nn.MSELoss,), {})(), torch.ones(4, 3)),
}


@pytest.mark.parametrize("kind", OTHER_LOSSES)
def test_other_losses_have_no_closed_form(kind):
    loss, targets = OTHER_LOSSES[kind]
    assert form_of(nn.Linear(6, 3), loss, (torch.ones(4, 6), targets)) is None


def test_inputs_of_more_dimensions_must_be_flattened():
    batch = torch.ones(4, 2, 3), torch.ones(4, 2, 1)
    assert form_of(nn.Linear(3, 1), F.mse_loss, batch) is None
    partly = nn.Sequential(nn.Flatten(2), nn.Linear(3, 1))
    assert form_of(partly, F.mse_loss, batch) is None


# Wide problems with the full batch, in the span of their samples.

d, SIZES, TAU = 40, (6, 9, 5, 8), (2, 4, 3, 3)
WIDE = {
    "regression": ("mse", lambda: nn.Linear(d, 1), numbers, 1),
    "no bias": ("mse", lambda: nn.Linear(d, 1, bias=False), numbers, 1),
    "logistic": ("logistic", lambda: nn.Linear(d, 1), signs, 1),
    "softmax": ("cross_entropy", lambda: Softmax((4, 10), 3), labels, 3),
    "softmax with holes": ("cross_entropy", lambda: nn.Linear(d, 3, bias=False), holes, 3),
    "many classes": ("cross_entropy", lambda: nn.Linear(d, FEW + 1), labels, FEW + 1),
}
RULES = {
    "constant": fs.Constant(0.02),
    "per step": fs.recipes.fedlin(lr=0.02).step,
    "armijo": fs.Armijo(),
    "armijo, max": fs.Armijo(reset="max"),
    "delta_sgd": fs.DeltaSGD(),
    "delta_sgd, reused": fs.DeltaSGD(reuse_gradient=True),
    "polyak": fs.Polyak(lr_max=0.5),
    "momentum": fs.Momentum(0.01),
}
LOOP = fs.engine.Local(oracle="loop")


def wide(problem, dtype=torch.float64, sizes=SIZES):
    loss, make, targets, K = WIDE[problem]
    source = torch.Generator().manual_seed(7)
    shape = (4, 10) if problem == "softmax" else (d,)
    clients = []
    for n in sizes:
        inputs = torch.randn(n, *shape, generator=source, dtype=torch.float64)
        right = targets(n, K, source)
        clients.append((inputs.to(dtype), right.to(dtype) if right.is_floating_point() else right))
    return {"model": seeded(make, dtype), "loss": loss, "clients": clients, "rounds": 3, "local_steps": TAU}


@pytest.fixture
def spans(monkeypatch):
    """Whether each chunk was worked on in the span of its samples, in the order of work."""
    seen, ask = [], Chunk.reduced

    def reduced(self, x, fixed_step):
        found = ask(self, x, fixed_step)
        if self.choice.oracle == "linear":
            seen.append(found is not None)
        return found

    monkeypatch.setattr(Chunk, "reduced", reduced)
    return seen


def agree(algorithm, given, tolerance=CLOSE, **options):
    found, expected = (fs.train(algorithm=algorithm, engine=e, **given, **options) for e in ("auto", LOOP))
    assert found.engine["oracle"] == "linear"
    assert_close(found.x, expected.x, **tolerance)
    for name in ("train_loss", "client_step", "server_step", "drift"):
        assert_close(torch.tensor(found.history[name]), torch.tensor(expected.history[name]), **tolerance)
    for name in ("trials", "gradients", "forwards", "failed"):
        assert found.history[name] == expected.history[name]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("problem", WIDE)
def test_the_span_of_the_samples_is_enough(problem, rule, spans):
    agree(fs.Algorithm(RULES[rule]), wide(problem))
    assert all(spans)


@pytest.mark.parametrize("algorithm", ["auto", "fedsls", "delta_sgd", "fedexp", "fednova"])
@pytest.mark.parametrize("problem", WIDE)
def test_recipes_in_the_span_of_the_samples(problem, algorithm, spans):
    agree(algorithm, wide(problem))
    assert all(spans)


@pytest.mark.parametrize("algorithm", ["auto", "fedavg", "delta_sgd"])
def test_lengths_stay_what_they_are(algorithm, spans):
    agree(algorithm, wide("softmax"), clip_norm=0.3)
    assert all(spans)


def test_some_clients_in_a_span_of_their_own_size(spans):
    agree("fedsls", wide("softmax"), cohort=2)
    agree("fedsls", {**wide("regression"), "batch_size": 9})  # as large as the largest client
    assert all(spans)


NOT = {
    "adam": (fs.Algorithm(fs.Adam(0.01)), {}),
    "weight decay": (fs.Algorithm(fs.Constant(0.02)), {"weight_decay": 0.1}),
    "scaffold": (fs.recipes.scaffold(lr=0.02), {}),
    "fedprox": (fs.recipes.fedprox(lr=0.02, mu=0.5), {}),
    "feddyn": (fs.recipes.feddyn(lr=0.02), {}),
    "fedlin": (fs.recipes.fedlin(lr=0.02), {}),
    "noise": (fs.Algorithm(fs.Constant(0.02), gradient=fs.Noisy(0.1)), {}),
    "batches": (fs.Algorithm(fs.Constant(0.02)), {"batch_size": 3}),
    "one step": (fs.Algorithm(fs.Constant(0.02)), {"local_steps": (2, 3, 1, 2)}),
}


@pytest.mark.parametrize("what", NOT)
def test_what_leaves_the_span_is_done_in_full(what, spans):
    algorithm, options = NOT[what]
    agree(algorithm, {**wide("softmax"), **options})
    assert not any(spans)


def test_narrow_problems_are_done_in_full(spans):
    agree("fedsls", {**wide("regression"), "clients": wide("regression", sizes=(6, 21, 5, 8))["clients"]})
    assert not any(spans)


@pytest.mark.parametrize("rule", ["constant", "armijo", "delta_sgd"])
def test_samples_that_depend_on_each_other(rule, spans):
    given = wide("softmax with holes")
    inputs, targets = given["clients"][1]
    inputs[4], targets[4] = inputs[2], targets[2]
    agree(fs.Algorithm(RULES[rule]), given)
    assert not any(spans)


def test_samples_that_are_zero(spans):
    given = wide("no bias")
    given["clients"][0][0][:] = 0
    agree(fs.Algorithm(fs.Constant(0.02)), given)
    assert not any(spans)


@pytest.mark.parametrize("distance", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_that_nearly_depend_on_each_other(dtype, distance):
    given = wide("softmax with holes", dtype)
    inputs, _ = given["clients"][1]
    inputs[4] = inputs[2] + distance * inputs[4]
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else CLOSE
    found, expected = (fs.train(algorithm=fs.recipes.fedavg(lr=0.1), engine=e, **given) for e in ("auto", LOOP))
    assert_close(found.x, expected.x, **tolerance)


@pytest.mark.parametrize("problem", WIDE)
def test_single_precision_stays_close(problem, spans):
    found, expected = (
        fs.train(algorithm=fs.recipes.fedavg(lr=0.02), **wide(problem, dtype))
        for dtype in (torch.float32, torch.float64)
    )
    assert all(spans)
    assert_close(found.x.double(), expected.x, rtol=1e-4, atol=1e-5)


class Growing(Dataset):
    """Samples that are read anew each time, and may have changed."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets, self.scale = inputs, targets, 1.0

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, i):
        return self.scale * self.inputs[i], self.targets[i]


def test_samples_may_change_from_round_to_round():
    def run(engine):
        given = wide("regression")
        given["clients"] = [Growing(*pair) for pair in given["clients"]]

        def grow(event):
            for client in given["clients"]:
                client.scale = 1.0 + event.round

        return fs.train(algorithm=fs.recipes.fedavg(lr=0.01), engine=engine, callbacks=[grow], **given)

    assert_close(run("auto").x, run(LOOP).x, **CLOSE)


@pytest.mark.parametrize("part", [0, 1], ids=["inputs", "targets"])
def test_samples_may_be_changed_in_place(part, spans):
    def run(engine):
        given = wide("regression")

        def shift(event):
            for pair in given["clients"]:
                pair[part].add_(0.5)

        return fs.train(algorithm=fs.recipes.fedavg(lr=0.01), engine=engine, callbacks=[shift], **given)

    assert_close(run("auto").x, run(LOOP).x, **CLOSE)
    assert all(spans)


def test_a_single_client_and_a_single_sample(spans):
    data = regression((1,), d=5)
    found, expected = (
        fs.train(linear(), "mse", data, "fedsls", rounds=3, local_steps=3, engine=e) for e in ("auto", LOOP)
    )
    assert_close(found.x, expected.x, **CLOSE)
    assert all(spans)


def test_one_large_client_does_not_make_the_others_large(monkeypatch):
    """Small batches make large chunks; whoever asks for all samples at once must not pad them all to the largest client."""
    clients = regression((20_000, *(10,) * 63))
    seen = []

    def spy(form, batches):
        seen.append(gathered(form, batches))
        return seen[-1]

    monkeypatch.setattr("fedstride.client.chunk.gathered", spy)
    fs.train(linear(), "mse", clients, "fedlin", rounds=1, batch_size=2, local_steps=1)
    assert max(s.X.numel() for s in seen) <= CHUNK_NUMBERS


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3, 5, 6])
@pytest.mark.parametrize("problem", [p for p in WIDE if "holes" not in p])  # a batch of holes has no loss
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsls", "delta_sgd"])
def test_batches_fetched_ahead_are_those_of_their_steps(algorithm, problem, size):
    """Through several epochs, whose last batches are smaller."""
    agree(algorithm, {**wide(problem), "rounds": 2, "local_steps": (12, 7, 12, 9)}, batch_size=size)
