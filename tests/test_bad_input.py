"""Bad input: an error that names the argument, before any work is done."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedstride as fs
from fedstride.client.local import LocalOptions
from fedstride.engine import Task
from fedstride.training import validate
from tests.problems import Classifier, classification, classifier, seeded

NAN, INF = float("nan"), float("inf")


class Counted(Classifier):
    """Counts its forward passes, those of its copies too."""

    calls: list[int] = []  # noqa: RUF012 (shared on purpose)

    def forward(self, inputs):
        self.calls.append(len(inputs))
        return super().forward(inputs)


def attempt(**changes):
    """Train with some arguments changed; no callback may be called and the model is tried once at most."""
    events = []
    given = {
        "model": seeded(Counted),
        "loss": "cross_entropy",
        "clients": classification(),
        "algorithm": "fedavg",
        "rounds": 2,
        "callbacks": [events.append],
        **changes,
    }
    Counted.calls.clear()
    try:
        fs.train(given.pop("model"), given.pop("loss"), given.pop("clients"), given.pop("algorithm"), **given)
    finally:
        assert len(Counted.calls) <= 1
        assert events == []


def data(client=2, inputs=None, targets=None, sizes=(6, 9, 5, 8)):
    """The clients, one of them changed."""
    pairs = classification(sizes)
    x, y = pairs[client]
    pairs[client] = (x if inputs is None else inputs(x), y if targets is None else targets(y))
    return pairs


def put(value, at=3):
    def change(t):
        t = t.clone()
        t[at] = value
        return t

    return change


class Mute(Classifier):
    def forward(self, inputs):
        return super().forward(inputs).detach()


class Pairs(Classifier):
    def forward(self, inputs):
        return super().forward(inputs), inputs


def frozen():
    return classifier().requires_grad_(False)


def broken():
    model = classifier()
    model.head.weight.data[0, 0] = NAN
    return model


def dropout():
    return classifier(middle=nn.Dropout)


def normalised():
    return classifier(middle=lambda: nn.BatchNorm1d(3))


class Plain(nn.Sequential):
    """No `features` method."""

    def __init__(self):
        super().__init__(nn.Linear(4, 3))


INVALID = {
    # data
    "nan inputs": ({"clients": data(inputs=put(NAN))}, r"clients\[2\]: inputs contain NaN or infinite.*sample 3"),
    "infinite inputs": ({"clients": data(inputs=put(INF))}, r"clients\[2\]: inputs contain NaN or infinite"),
    "nan in the test set": ({"test": data(inputs=put(NAN))[2]}, "test: inputs contain NaN or infinite"),
    "empty client": ({"clients": data(inputs=lambda x: x[:0], targets=lambda y: y[:0])}, r"clients\[2\]: .*no samples"),
    "no clients": ({"clients": []}, "clients: the federation is empty"),
    "no federation": ({"clients": None}, "clients: got NoneType"),
    "empty test set": ({"test": (torch.zeros(0, 4).double(), torch.zeros(0).long())}, "test: no samples"),
    "test set of another shape": (
        {"test": (torch.zeros(2, 5).double(), torch.zeros(2).long())},
        r"test: inputs of \[5\] float64 per sample differ",
    ),
    "test targets of another dtype": (
        {"test": (torch.zeros(2, 4).double(), torch.zeros(2).double())},
        r"test: targets of \[\] float64 per sample differ",
    ),
    "labels of logistic": (
        {"loss": "logistic", "model": nn.Linear(4, 1).double()},
        r"clients\[0\]: target .* -1 or \+1",
    ),
    "labels of bce": (
        {"loss": "bce_with_logits", "model": nn.Linear(4, 1).double()},
        r"clients\[\d\]: target 2 .* 0 to 1",
    ),
    "device": ({"device": "nowhere"}, "device='nowhere'"),
    "lazy model": ({"model": nn.LazyLinear(3)}, "model: lazy parameters"),
    "shapes differ": ({"clients": data(inputs=lambda x: x[:, :2])}, r"clients\[2\]: input shape \(2,\) differs"),
    "dtypes differ": ({"clients": data(inputs=lambda x: x.float())}, r"clients\[2\]: input dtype"),
    "label too large": ({"clients": data(targets=put(3))}, r"clients\[2\]: label 3 is out of range"),
    "label negative": ({"clients": data(targets=put(-1))}, r"clients\[2\]: label -1 is out of range"),
    "label, loss as a module": (
        {"clients": data(targets=put(3)), "loss": nn.CrossEntropyLoss()},
        r"clients\[2\]: label 3 is out of range",
    ),
    "label, loss as a function": (
        {"clients": data(targets=put(3)), "loss": lambda o, t: F.cross_entropy(o, t)},
        r"clients\[2\]: label 3 is out of range",
    ),
    "label in the test set": ({"test": data(targets=put(7))[2]}, "test: label 7 is out of range"),
    # model and loss
    "no module": ({"model": torch.nn.functional.relu}, "model: got builtin_function_or_method|model: got function"),
    "nothing to train": ({"model": frozen()}, "model: no trainable parameters"),
    "no parameters": ({"model": nn.Flatten()}, "model: no trainable parameters"),
    "parameters not finite": ({"model": broken()}, "model: its initial parameters contain NaN"),
    "model fails": (
        {"model": nn.Linear(7, 3).double()},
        r"model: it fails on clients\[\d\]'s inputs of shape \(\d, 4\)",
    ),
    "model returns a pair": ({"model": seeded(Pairs)}, "model: it returns .* without logits"),
    "model without gradient": ({"model": seeded(Mute)}, "gradient"),
    "loss of every sample": (
        {"loss": nn.CrossEntropyLoss(reduction="none")},
        r"loss: it returns a tensor of shape \(\d,\)",
    ),
    "loss is a number": ({"loss": lambda o, t: 1.0}, "loss: it returns float"),
    "loss without gradient": (
        {"loss": lambda o, t: (o.argmax(1) == t).double().mean()},
        "loss: its value has no gradient",
    ),
    "loss fails": ({"loss": lambda o, t: o @ t}, "loss: it fails"),
    "loss is nothing": ({"loss": None}, "loss=None is invalid"),
    "loss unknown": ({"loss": "cross_entropi"}, "loss='cross_entropi' is unknown; did you mean 'cross_entropy'"),
    # rounds
    "rounds 0": ({"rounds": 0}, "rounds=0"),
    "rounds -1": ({"rounds": -1}, "rounds=-1"),
    "rounds 2.0": ({"rounds": 2.0}, r"rounds=2\.0"),
    "rounds True": ({"rounds": True}, "rounds=True"),
    "rounds None": ({"rounds": None}, "rounds=None"),
    "seed": ({"seed": -1}, "seed=-1"),
    "seed of text": ({"seed": "x"}, "seed='x'"),
    "seed None": ({"seed": None}, "seed=None"),
    "batch size 0": ({"batch_size": 0}, "batch_size=0"),
    "batch size 2.5": ({"batch_size": 2.5}, r"batch_size=2\.5"),
    "cohort 0": ({"cohort": 0}, "cohort=0"),
    "cohort 5": ({"cohort": 5}, "cohort=5 .*from 1 to 4"),
    "cohort 1.5": ({"cohort": 1.5}, r"cohort=1\.5"),
    "cohort True": ({"cohort": True}, "cohort=True"),
    "cohort of text": ({"cohort": "half"}, "cohort='half'"),
    "sampler too large": ({"cohort": fs.Weighted(5)}, "cohort=5"),
    "bernoulli": ({"cohort": fs.Bernoulli(1.5)}, r"p=1\.5"),
    "steps and epochs": ({"local_steps": 2, "epochs": 1}, "local_steps=2 and epochs=1"),
    "steps 0": ({"local_steps": 0}, "local_steps=0"),
    "steps 1.5": ({"local_steps": 1.5}, r"local_steps=1\.5"),
    "steps of three clients": ({"local_steps": [1, 2, 3]}, r"local_steps=\[1, 2, 3\].*one per client \(4\)"),
    "steps with a zero": ({"local_steps": [1, 2, 0, 3]}, r"local_steps\[2\]=0"),
    "steps with a half": ({"local_steps": torch.tensor([1, 2, 0.5, 3])}, r"local_steps\[0\]"),
    "epochs 0": ({"epochs": 0}, "epochs=0"),
    "epochs -1": ({"epochs": -1.0}, r"epochs=-1\.0"),
    "epochs nan": ({"epochs": NAN}, "epochs=nan"),
    "epochs of text": ({"epochs": "2"}, "epochs='2'"),
    "weights unknown": ({"weights": "sampled"}, "weights='sampled' is unknown; did you mean 'samples'"),
    "weights of three": ({"weights": [1, 2, 3]}, r"weights: got 3 numbers.*\(4\)"),
    "weights negative": ({"weights": [1, 2, -3, 4]}, "weights: .*positive"),
    "weights zero": ({"weights": [1, 2, 0, 4]}, "weights: .*positive"),
    "weights a number": ({"weights": 1.0}, "weights"),
    "weights of text": ({"weights": ["a", "b", "c", "d"]}, "weights"),
    "callback is no function": ({"callbacks": [3]}, r"callbacks\[0\]=3 is not callable"),
    "callbacks is a function": ({"callbacks": print}, "callbacks"),
    "callbacks None": ({"callbacks": None}, "callbacks"),
    "weight decay": ({"weight_decay": -0.1}, r"weight_decay=-0\.1"),
    "clip norm": ({"clip_norm": 0.0}, r"clip_norm=0\.0"),
    "buffers unknown": ({"buffers": "averaged"}, "buffers='averaged' is unknown; did you mean 'average'"),
    "readout unknown": ({"readout": "avarage"}, "readout='avarage' is unknown; did you mean 'average'"),
    "readout is a number": ({"readout": 1}, "readout=1 is unknown; expected one of: average, last, server"),
    "evaluate every 0": ({"evaluate_every": 0}, "evaluate_every=0"),
    "evaluate every 1.5": ({"evaluate_every": 1.5}, r"evaluate_every=1\.5"),
    "evaluate every text": ({"evaluate_every": "1"}, "evaluate_every='1'"),
    "evaluate every None": ({"evaluate_every": None}, "evaluate_every=None"),
    "engine unknown": ({"engine": "lokal"}, "engine='lokal' is unknown; did you mean 'local'"),
    "engine is a number": ({"engine": 2}, "engine=2 is invalid"),
    "algorithm unknown": ({"algorithm": "fedavgg"}, "algorithm='fedavgg' is unknown; did you mean .*'fedavg'"),
    "algorithm is a recipe": ({"algorithm": fs.recipes.fedavg}, "algorithm=.*is invalid"),
    "algorithm is a step": ({"algorithm": fs.Armijo()}, "algorithm=.*is invalid"),
    "checkpoint is a number": ({"checkpoint": 3}, "checkpoint"),
}


@pytest.mark.parametrize("case", INVALID)
def test_bad_input_is_named_before_any_work(case):
    changes, message = INVALID[case]
    with pytest.raises(fs.InvalidInput, match=message):
        attempt(**changes)


REFUSED = {
    "fedsplit, partial": ({"algorithm": "fedsplit", "cohort": 2}, "FedSplit with partial participation"),
    "fedsplit, bernoulli": (
        {"algorithm": "fedsplit", "cohort": fs.Bernoulli(0.5)},
        "FedSplit with partial participation",
    ),
    "moon without features": ({"algorithm": "moon", "model": Plain().double()}, "Moon needs a model with a `features"),
    "iag with dropout": ({"algorithm": "fedtrack", "model": dropout()}, "IAG with dropout"),
    "iag with batch norm": ({"algorithm": "fedtrack", "model": normalised()}, "IAG with BatchNorm"),
    "iag with batches": ({"algorithm": "fedtrack", "batch_size": 2}, "batch_size=2 with IAG"),
    "noise with batches": (
        {"algorithm": fs.Algorithm(gradient=fs.Noisy()), "batch_size": 2},
        "batch_size=2 with Noisy",
    ),
    "iag with an odd loss": (
        {"algorithm": "fedtrack", "loss": lambda o, t: F.cross_entropy(o, t, reduction="sum") ** 2},
        "IAG needs a loss that is a mean or a sum",
    ),
    "armijo with clipping": ({"algorithm": "fedsls", "clip_norm": 1.0}, "Armijo with clip_norm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_the_algorithm_is_refused_before_any_work(case):
    changes, message = REFUSED[case]
    with pytest.raises(fs.Refused, match=message):
        attempt(**changes)


def test_the_table_of_iag_has_a_memory_limit():
    tight = fs.Algorithm(gradient=fs.IAG(table_gib=1e-9))
    with pytest.raises(fs.InvalidInput, match="table_gib"):
        attempt(algorithm=tight, local_steps=20)


@pytest.mark.parametrize(("typo", "meant"), [("grown", "grow"), ("MAX", "max"), ("kept", "keep")])
def test_an_unknown_reset_gets_the_nearest_one(typo, meant):
    with pytest.raises(fs.InvalidInput, match=f"reset='{typo}' is unknown; did you mean '{meant}'"):
        fs.recipes.fedsls(reset=typo)


def test_a_function_that_asks_for_no_steps_is_named():
    with pytest.raises(fs.InvalidInput, match=r"local_steps\(1, 2\)=0"):
        fs.train(
            classifier(),
            "cross_entropy",
            classification(),
            "fedavg",
            rounds=2,
            local_steps=lambda round, client: 0 if (round, client) == (1, 2) else 1,
        )


def lazy(pairs):
    """A federation that is loaded when needed, and who was."""
    calls = []

    def load(i):
        calls.append(i)
        return pairs[i]

    return fs.data.Lazy([len(inputs) for inputs, _ in pairs], load), calls


@pytest.mark.parametrize(
    ("loss", "model", "message"),
    [
        ("cross_entropy", classifier(), r"clients\[2\]: label 3 is out of range"),
        ("bce_with_logits", nn.Linear(4, 1).double(), r"clients\[2\]: target 3 is out of range; this loss expects"),
    ],
)
def test_labels_of_a_lazy_federation_are_checked_as_they_are_loaded(loss, model, message):
    pairs = [(inputs, (targets > 0).long()) for inputs, targets in data(targets=put(3))]
    pairs[2][1][3] = 3
    clients, calls = lazy(pairs)
    checked = validate.try_out(model, loss, clients, ()).clients
    assert set(calls) == {0, 1}  # the first, and the largest
    assert len(checked[1]) == 9
    with pytest.raises(fs.InvalidInput, match=message):
        checked[2]


def test_labels_of_the_client_that_tries_out_the_model_are_checked():
    clients, _ = lazy(data(1, targets=put(3)))
    with pytest.raises(fs.InvalidInput, match=r"clients\[1\]: label 3 is out of range"):
        validate.try_out(classifier(), "cross_entropy", clients, ())


@pytest.mark.parametrize(("algorithm", "model"), [("fedtrack", classifier), ("fedavg", normalised)])
def test_what_is_asked_of_all_clients_is_asked_of_their_sizes(algorithm, model):
    """Nobody is loaded to find out whether the algorithm fits."""
    clients, calls = lazy(classification())
    probed = validate.try_out(model(), "cross_entropy", clients, ())
    task = Task(
        **{f.name: None for f in fields(Task)}
        | {
            "model": model(),
            "loss": probed.loss,
            "reduction": probed.reduction,
            "clients": probed.clients,
            "buffers": "average",
            "random": False,
            "moving": (),
        }
    )
    calls.clear()
    validate.fits(
        validate.algorithm_of(algorithm), task, LocalOptions(), fs.Uniform(2), lambda round, client: 1, tested=False
    )
    assert calls == []


def test_a_label_to_be_ignored_is_no_mistake():
    run = fs.train(classifier(), nn.CrossEntropyLoss(), data(targets=put(-100)), "fedavg", rounds=1)
    assert torch.isfinite(run.x).all()


def test_iag_with_frozen_statistics_is_fine():
    run = fs.train(normalised(), "cross_entropy", classification(), "fedtrack", rounds=1, buffers="frozen")
    assert torch.isfinite(run.x).all()


def test_labels_are_only_checked_where_they_are_labels():
    """Counts may exceed the number of outputs of a model whose loss is no classification."""
    loss = lambda output, target: F.poisson_nll_loss(output[:, 0], target.double())  # noqa: E731
    counts = [(inputs, 5 * targets) for inputs, targets in classification()]
    assert torch.isfinite(fs.train(classifier(), loss, counts, "fedavg", rounds=1).x).all()


def test_statistics_that_stay_with_the_clients_cannot_be_tested():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    with pytest.raises(fs.Refused, match='buffers="local" with test='):
        fs.train(model, "cross_entropy", classification(), rounds=1, buffers="local", test=classification()[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda value: fs.FedExP(exact=value),
        lambda value: fs.FedExP(last_two=value),
        lambda value: fs.FedExPM(last_two=value),
        lambda value: fs.AdamServer(bias_correction=value),
        lambda value: fs.DeltaSGD(reuse_gradient=value),
        lambda value: fs.RandomK(2, unbiased=value),
    ],
)
@pytest.mark.parametrize("value", ["no", None, torch.zeros(2, 2)])
def test_switches_are_true_or_false(make, value):
    with pytest.raises(fs.InvalidInput, match="expected True or False"):
        make(value)


def test_a_schedule_that_fails_is_named():
    with pytest.raises(fs.InvalidInput, match=r"schedule=.* fails for round 0 of 1 \(ValueError.*expected a function"):
        attempt(algorithm=fs.recipes.fedavg(lr=0.1, schedule=int))


@pytest.mark.parametrize("value", [torch.zeros(0), torch.zeros(2, 2), "0.9", None])
def test_the_momentum_of_fednova_is_a_number(value):
    with pytest.raises(fs.InvalidInput, match=r"(?s)fednova: beta=.* expected a number in \[0, 1\)"):
        fs.recipes.fednova(beta=value)
