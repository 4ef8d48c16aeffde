"""Runs in which nothing was learned are never called fine: against a constant prediction, and by flat curves alone."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedstride as fs
from fedstride.app.diagnose import findings
from fedstride.core import losses
from fedstride.core.files import write_tensors
from tests.app.diagnose.histories import (
    CONSTANT,
    GOOD,
    HALF,
    SMALL,
    STUCK,
    N,
    causes,
    digits,
    judged,
    of,
    rows,
    severities,
)
from tests.app.report.folders import run_folder

pytestmark = pytest.mark.slow

SCALES = {"scales": [["age", 42.0], ["income", 54000.0], ["0", 0.0]]}
ALWAYS = [0.7 + 5 * 0.5**t for t in range(N)]  # falls to the loss of a constant prediction


def against(loss, accuracy, test_loss=None, **constant):
    test = loss if test_loss is None else [*loss[:-10], *[test_loss] * 10]
    return judged(loss, test_loss=test, test_accuracy=accuracy, facts={"constant": {**CONSTANT, **constant}})


def test_an_accuracy_within_chance_of_the_most_frequent_class():
    found = against(ALWAYS, 0.53)
    assert found.outcome.name == "nothing was learned" and causes(found) == ["nothing was learned"]
    assert "53.0 %" in found.outcome.says and "50.0 % (of 1,000 samples)" in found.outcome.says
    assert "normalise=True" in found.outcome.advice[0]
    assert against(ALWAYS, 0.54).outcome.name == "converged"  # two deviations are 3.2 points
    assert against(ALWAYS, 0.54, samples=100).outcome.name == "nothing was learned"  # and 10 points with 100 samples


def test_a_loss_no_better_than_that_of_a_constant():
    found = against(ALWAYS, None, 0.699)
    assert causes(found) == ["nothing was learned"] and "best constant prediction has 0.7" in found.outcome.says
    little = against(ALWAYS, None, 0.69)  # more than chance, which is 0.4 % of the loss
    assert severities(little)["little was learned"] == "watch" and causes(little) == []
    assert severities(against(ALWAYS, None, 0.6))["better than a constant"] == "fine"
    assert "nothing was learned" in severities(against(ALWAYS, None, 0.69, samples=100))


def test_one_figure_that_is_better_is_something():
    frequent = against(GOOD, 0.5)  # as for rare classes
    assert severities(frequent)["most frequent class"] == "watch" and causes(frequent) == []
    sure = against(ALWAYS, 0.8, 0.9)
    assert severities(sure)["overconfident"] == "watch" and "nothing was learned" not in severities(sure)
    assert set(severities(against(GOOD, 0.9)).values()) == {"fine"}


def test_a_loss_that_still_falls_asks_for_rounds_first():
    high = [9.0 - 0.2 * t for t in range(N)]
    found = against(high, 0.5)
    assert (found.outcome.name, found.outcome.severity) == ("nothing learned yet", "watch")
    assert found.outcome.advice[0].startswith("more rounds")


def test_where_a_cause_is_found_it_comes_first():
    found = judged(SMALL, test_accuracy=0.5, facts={"constant": {**CONSTANT, "loss": 1.5}})
    assert causes(found) == ["steps too small"]
    assert (found.outcome.name, found.outcome.severity) == ("nothing was learned", "watch")


def test_too_few_rounds_and_divergence_say_nothing_of_learning():
    facts = {"constant": CONSTANT}
    assert judged([2.0, 1.9, 1.8], test_accuracy=0.5, facts=facts).outcome.name == "too short"
    assert judged([2.0 * 1.2**t for t in range(N)], test_accuracy=0.5, facts=facts).outcome.name == "diverged"


@pytest.mark.parametrize(
    "constant",
    [
        *(None, 3, [], {}, {"samples": "many"}, {"samples": 0, "loss": 9.0}, {"samples": True, "loss": 9.0}),
        *({**CONSTANT, "accuracy": 1.0, "loss": 0.0}, {**CONSTANT, "accuracy": "half", "loss": None}),
        {"samples": 10, "accuracy": 0.9},  # no accuracy is clearly above that
    ],
)
def test_facts_that_say_nothing_are_as_good_as_none(constant):
    assert severities(judged(GOOD, facts={"constant": constant})) == severities(judged(GOOD))


def jitter(loss, by):
    return [v + by * math.sin(7 * t) for t, v in enumerate(loss)]


def test_flat_curves_alone_suffice():
    for flat in ([2.0] * N, jitter([2.0] * N, 0.1), [2.0 - 1e-5 * t for t in range(N)]):
        found = judged(flat, turn=0.0)
        assert found.outcome.name == "nothing was learned" and found.outcome.severity != "fine"
    for moved in (SMALL, HALF, GOOD, STUCK, jitter([2.0 - 0.01 * t for t in range(N)], 0.02)):
        assert judged(moved).outcome.name != "nothing was learned"
    assert (
        judged([2.0] * N, test_loss=GOOD).outcome.name == "converged"
    )  # the training loss is of other clients each time


def test_an_update_that_vanishes_at_once_is_no_convergence():
    still = {"update": [0.5] * 2 + [1e-6] * (N - 2)}
    assert judged([2.0] * N, **still).outcome.name == "nothing was learned"
    assert judged(GOOD, **still).outcome.name == "converged"


def test_an_accuracy_that_never_changes():
    found = judged(GOOD, test_accuracy=0.56)
    assert severities(found)["accuracy never changes"] == "watch" and found.outcome.severity != "fine"
    assert judged([2.0 - 0.01 * t for t in range(N)], test_accuracy=0.56).outcome.name == "nothing was learned"
    assert set(severities(judged(GOOD, test_accuracy=1.0)).values()) == {"fine"}
    assert set(severities(judged(GOOD, test_accuracy=[0.56] * (N - 1) + [0.561])).values()) == {"fine"}
    assert set(severities(against(GOOD, 0.9)).values()) == {"fine"}  # known to be better than a constant


def test_features_that_differ_in_scale():
    found = judged(STUCK, facts=SCALES)
    assert causes(found) == ["features differ in scale"] and "normalise=True" in found.findings[0].advice[0]
    assert "factor of 1,286" in found.findings[0].says and "feature income is 54,000" in found.findings[0].says
    assert severities(judged(GOOD, facts=SCALES))["features differ in scale"] == "watch"
    private = fs.Algorithm(fs.Constant(0.1), privacy=fs.Privacy(clip=1.0, noise=1.0))
    assert "known beforehand" in judged(STUCK, private, facts=SCALES).findings[0].advice[0]  # normalise=True is refused
    for near in ([[0, 1.0], [1, 100.0]], [[0, 0.0], [1, 500.0]], [[0, 500.0]], [], "age", [3], [["a", None], ["b", 9]]):
        assert "features differ in scale" not in severities(judged(STUCK, facts={"scales": near}))


def test_no_advice_to_normalise_what_is_normalised():
    flat = [2.0] * N
    assert any("normalise" in a for a in judged(flat, turn=0.0).outcome.advice)
    assert not any("normalise" in a for a in judged(flat, turn=0.0, facts={"normalised": True}).outcome.advice)


def test_facts_are_read_from_the_folder(tmp_path):
    folder = run_folder(tmp_path, rows(ALWAYS, test_accuracy=0.5), clients=None)
    facts = {"constant": CONSTANT, **SCALES}
    write_tensors(
        folder / "run.safetensors", {"x": torch.zeros(1)}, {"algorithm": "None", "engine": {}, "facts": facts}
    )
    assert {"nothing was learned", "features differ in scale"} <= {f.name for f in findings(folder)}
    (folder / "config.toml").unlink()
    assert {"nothing was learned", "features differ in scale"} <= {f.name for f in findings(folder)}
    write_tensors(folder / "run.safetensors", {"x": torch.zeros(1)}, {"algorithm": "None", "facts": [1]})
    assert "nothing was learned" not in {f.name for f in findings(folder)}


# Real runs


def people(n, seed, raw=True):
    """(age, income) and whether the age is above 40."""
    source = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 2, generator=source)
    X = z * torch.tensor([12.0, 2e4]) + torch.tensor([40.0, 5e4]) if raw else z
    return X, (z[:, 0] > 0).long()


def trained(model, data, test, algorithm, **options):
    return fs.train(model, "cross_entropy", data, algorithm, test=test, rounds=20, batch_size=10, **options)


class Deaf(nn.Module):
    """Its output does not depend on its input."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.bias.expand(len(x), 2) + 0 * x[:, :2]


def layer(inputs, outputs):
    model = nn.Linear(inputs, outputs)
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


@pytest.mark.parametrize("algorithm", [fs.recipes.fedsls(), fs.recipes.fedavg(lr=1e-6)])
def test_raw_columns_at_chance(algorithm):
    run = trained(layer(2, 2), [people(40, s) for s in range(8)], people(400, 99), algorithm)
    found = of(run)
    assert found.outcome.name in ("nothing was learned", "nothing learned yet", "diverged")
    assert found.outcome.severity != "fine"
    assert found.findings[0].name == "features differ in scale"


def test_a_run_records_the_facts_and_saves_them(tmp_path):
    test = people(400, 99)
    with pytest.warns(fs.FedstrideWarning, match="far apart"):
        run = trained(layer(2, 2), [people(40, s) for s in range(8)], test, fs.recipes.fedavg(lr=1e-6))
    assert run.facts["constant"] == losses.constant(F.cross_entropy, test[1])
    assert [name for name, _ in run.facts["scales"]] == [0, 1]
    assert fs.load(run.save(tmp_path)).facts == run.facts
    assert findings(tmp_path) == findings(run)


def test_the_same_columns_normalised_are_learned():
    run = trained(layer(2, 2), [people(40, s, False) for s in range(8)], people(400, 99, False), "fedsls")
    assert causes(of(run)) == [] and severities(of(run))["better than a constant"] == "fine"


@pytest.mark.parametrize("facts", [True, False])
def test_a_model_with_a_constant_output(facts):
    data = [people(40, s, False) for s in range(8)]
    run = trained(Deaf(), data, people(400, 99, False), fs.recipes.fedavg(lr=0.1))
    if not facts:
        run.facts = {}
    assert of(run).outcome.name == "nothing was learned" and of(run).outcome.severity != "fine"


def test_a_gaussian_likelihood_stops_under_polyak_and_goes_on_with_a_lower_minimum():
    def likelihood(output, target):
        m, s = output[:, :1], output[:, 1:]
        return (0.5 * (target - m) ** 2 * torch.exp(-2 * s) + s).mean()

    source = torch.Generator().manual_seed(0)
    w = torch.randn(5, 1, generator=source)
    inputs = [torch.randn(40, 5, generator=source) for _ in range(8)]
    data = [(X, X @ w + 0.05 * torch.randn(40, 1, generator=source)) for X in inputs]

    def run(f_star):
        rule = fs.recipes.fedsps(lr_max=0.05, f_star=f_star)
        return fs.train(layer(5, 2), likelihood, data, rule, rounds=60, batch_size=10, test=data[0])

    stopped, goes_on = run(0.0), run(-3.0)
    assert causes(of(stopped))[0] == "Polyak steps clamped" and of(stopped).outcome.severity != "fine"
    assert "Polyak steps clamped" not in severities(of(goes_on))
    assert goes_on.history["test_loss"][-1] < stopped.history["test_loss"][-1] - 0.5


def test_a_run_that_learned_well_is_clean():
    found = of(digits("auto"))
    assert causes(found) == [] and severities(found)["better than a constant"] == "fine"


# losses.constant

LABELS = torch.tensor([0, 0, 0, 1, 2, 2])
ENTROPY = -(0.5 * math.log(1 / 2) + 1 / 6 * math.log(1 / 6) + 1 / 3 * math.log(1 / 3))
VALUES = torch.tensor([[1.0, 0.0], [3.0, 0.0], [8.0, 3.0]])
BINARY = torch.tensor([1.0, 0.0, 1.0, 1.0])
QUARTER = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))


@pytest.mark.parametrize(
    ("loss", "targets", "accuracy", "value"),
    [
        (F.cross_entropy, LABELS, 0.5, ENTROPY),
        (nn.CrossEntropyLoss(), LABELS.reshape(2, 3), 0.5, ENTROPY),
        (nn.CrossEntropyLoss(ignore_index=0), LABELS, 1 / 3, -(math.log(1 / 3) + 2 * math.log(2 / 3)) / 3),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), LABELS, 0.5, None),
        (nn.CrossEntropyLoss(label_smoothing=0.1), LABELS, 0.5, None),
        (nn.CrossEntropyLoss(reduction="sum"), LABELS, 0.5, None),
        (losses.mse, VALUES, None, (26 / 3 + 2) / 2),
        (nn.MSELoss(), VALUES, None, (26 / 3 + 2) / 2),
        (losses.l1, VALUES, None, (7 + 3) / 6),
        (losses.bce_with_logits, BINARY, 0.75, QUARTER),
        (losses.logistic, 2 * BINARY - 1, 0.75, QUARTER),
        (losses.huber, VALUES, None, None),
        (lambda output, target: output.mean(), VALUES, None, None),
    ],
)
def test_the_figures_of_the_best_constant_prediction(loss, targets, accuracy, value):
    found = losses.constant(loss, targets)
    assert found["samples"] == len(targets)
    assert found.get("accuracy") == (None if accuracy is None else pytest.approx(accuracy))
    assert found.get("loss") == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize("name", ["cross_entropy", "mse", "bce_with_logits", "logistic"])
def test_no_constant_has_a_lower_loss(name):
    targets = {"cross_entropy": LABELS, "mse": VALUES, "bce_with_logits": BINARY, "logistic": 2 * BINARY - 1}[name]
    shape = (3,) if name == "cross_entropy" else targets.shape[1:]
    output = torch.zeros(shape, requires_grad=True)
    optimizer = torch.optim.LBFGS([output], max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = losses.resolve(name)(output.expand(len(targets), *shape), targets)
        value.backward()
        return value

    optimizer.step(closure)
    assert losses.constant(losses.resolve(name), targets)["loss"] == pytest.approx(closure().item(), rel=1e-4)
