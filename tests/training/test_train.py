"""fs.train: its arguments and its results."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import TensorDataset

import fedstride as fs
from tests.core.test_model import Tied
from tests.problems import (
    SIZES,
    STEPS,
    classification,
    classifier,
    learn,
    linear,
    regression,
    same_bits,
    seeded,
)

C = len(SIZES)


def start():
    return parameters_to_vector(classifier().parameters()).detach()


def update(i, **options):
    """Return Delta_i of a single full-batch client."""
    return start() - learn(clients=[classification()[i]], rounds=1, **{"local_steps": STEPS[i], **options}).x


# --- what comes back ---------------------------------------------------------------------------------------------------


def test_the_default_algorithm_is_auto():
    clients = [(inputs, inputs[:, :3].argmax(1)) for inputs, _ in classification((20, 30, 10, 25))]
    run = fs.train(classifier(), "cross_entropy", clients, rounds=20, local_steps=5, test=clients[0])
    assert run.algorithm == fs.recipes.auto()
    assert run.history["test_loss"][-1] < 0.5 * run.history["train_loss"][0]


def test_the_model_holds_the_returned_weights():
    run = learn()
    assert torch.equal(parameters_to_vector(run.model.parameters()), run.x)
    assert not run.model.training
    assert len(run.history) == 3


def test_fedexp_returns_the_mean_of_the_last_two_iterates():
    xs = []
    run = learn("fedexp", callbacks=[lambda e: xs.append(e.x)])
    assert torch.equal(run.x, xs[-1])
    assert torch.equal(parameters_to_vector(run.model.parameters()), (xs[-1] + xs[-2]) / 2)


def test_one_client_is_central_training():
    model = classifier()
    inputs, targets = classification((6,))[0]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    run = learn(clients=[(inputs, targets)], local_steps=3, rounds=2, weight_decay=0.01)
    torch.testing.assert_close(run.x, parameters_to_vector(model.parameters()).detach(), rtol=0, atol=1e-12)


# --- callbacks ---------------------------------------------------------------------------------------------------------


def test_callbacks_see_the_start_and_every_round():
    events = []
    run = learn(callbacks=[events.append])
    assert [e.round for e in events] == [0, 1, 2, 3]
    assert torch.equal(events[0].x, start())
    assert torch.equal(events[-1].x, run.x)
    assert [e.metrics for e in events[1:]] == list(run.history)


def test_a_callback_cannot_change_the_run():
    assert same_bits(learn(callbacks=[lambda e: e.x.zero_()]), learn())


def test_an_error_in_a_callback_ends_the_run_and_its_threads():
    def fail(event):
        raise KeyError(event.round)

    before = threading.active_count()
    with pytest.raises(KeyError):
        learn(callbacks=[fail])
    assert threading.active_count() == before


# --- work of a round ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        list(STEPS),
        np.array(STEPS),
        torch.tensor(STEPS),
        lambda round, client: STEPS[client],
        lambda round, client: np.int64(STEPS[client]),
    ],
    ids=["list", "numpy", "tensor", "function", "function of numpy"],
)
def test_local_steps_per_client_in_any_form(steps):
    assert same_bits(learn(local_steps=steps, batch_size=3), learn(local_steps=STEPS, batch_size=3))


@pytest.mark.parametrize("steps", [np.int64(3), torch.tensor(3), np.array(3)], ids=["np.int64", "tensor", "array"])
def test_one_number_of_local_steps_in_any_form(steps):
    assert same_bits(learn(local_steps=steps), learn(local_steps=3))


def test_local_steps_may_change_from_round_to_round():
    asked = set()
    run = learn(local_steps=lambda round, client: asked.add((round, client)) or round + 1)
    assert asked == {(t, i) for t in range(3) for i in range(C)}
    assert run.history["gradients"] == [sum(SIZES) * t for t in (1, 2, 3)]


@pytest.mark.parametrize(
    ("epochs", "steps"),
    [
        (None, (2, 3, 2, 3)),
        (1, (2, 3, 2, 3)),
        (0.5, (1, 2, 1, 2)),
        (2.5, (5, 8, 5, 8)),
        (0.01, (1, 1, 1, 1)),
        (np.float64(2), (4, 6, 4, 6)),
    ],
)
def test_epochs_are_steps(epochs, steps):
    assert same_bits(learn(epochs=epochs, batch_size=3), learn(local_steps=steps, batch_size=3))


@pytest.mark.parametrize(("epochs", "steps"), [(0.28, 7), (0.56, 14), (1.12, 28), (1.1, 28)])
def test_fractional_epochs_of_twenty_five_batches(epochs, steps):
    """0.28 of 25 batches are 7 to the user, and 7.000000000000001 to the machine."""
    run = learn(clients=classification((25,)), epochs=epochs, batch_size=1, rounds=1)
    assert run.history[0]["gradients"] == steps


def test_a_batch_larger_than_a_client_is_its_full_batch():
    assert same_bits(learn(batch_size=100, local_steps=2), learn(local_steps=2))


@pytest.mark.parametrize(("weights", "p"), [("uniform", [1] * C), ("samples", SIZES), ([3, 1, 2, 5], [3, 1, 2, 5])])
def test_the_next_model_is_the_weighted_mean(weights, p):
    run = learn(local_steps=STEPS, weights=weights, rounds=1)
    mean = sum(w * update(i) for i, w in enumerate(p)) / sum(p)
    torch.testing.assert_close(run.x, start() - mean, rtol=0, atol=1e-12)


class Only:
    """A sampler that always draws the same clients."""

    def __init__(self, *rounds):
        self.rounds, self.drawn = rounds, 0

    def draw(self, sizes, source):
        self.drawn += 1
        return list(self.rounds[(self.drawn - 1) % len(self.rounds)])

    def check(self, clients):
        pass


def test_weights_sum_to_one_over_the_cohort():
    run = learn(local_steps=STEPS, weights="samples", rounds=1, cohort=Only([3, 1]))
    mean = (9 * update(1) + 8 * update(3)) / 17
    torch.testing.assert_close(run.x, start() - mean, rtol=0, atol=1e-12)
    assert run.history[0]["participants"] == 2


@pytest.mark.parametrize(("cohort", "sizes"), [(2, {2}), (0.75, {3}), (fs.Weighted(3), {3}), (None, {4})])
def test_cohorts(cohort, sizes):
    assert set(learn(cohort=cohort, rounds=6).history["participants"]) == sizes


def test_bernoulli_cohorts_vary():
    taken = learn(cohort=fs.Bernoulli(0.5), rounds=40).history["participants"]
    assert len(set(taken)) > 2
    assert abs(sum(taken) / 40 - 2) < 4.5 * (4 * 0.25 / 40) ** 0.5 + 0.2  # an empty round, 6 %, is drawn again


def test_clipping_shortens_the_gradient():
    one = [classification()[0]]
    free, clipped = learn(clients=one, rounds=1), learn(clients=one, rounds=1, clip_norm=1e-3)
    g = (start() - free.x) / 0.1
    torch.testing.assert_close(start() - clipped.x, 0.1 * g * (1e-3 / (g.norm() + 1e-6)), rtol=1e-9, atol=0)


# --- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedavgm", "fedsls", "fedlin"])
def test_frozen_parameters_stay(algorithm):
    model = classifier()
    model.body.requires_grad_(False)
    run = learn(algorithm, model=model)
    assert torch.equal(run.model.body.weight, classifier().body.weight)
    assert not run.model.body.weight.requires_grad
    assert torch.equal(run.x, parameters_to_vector(run.model.head.parameters()))


def test_tied_parameters_stay_tied_and_train_as_in_torch():
    inputs = classification()[0][0]
    model = seeded(Tied)
    run = fs.train(model, "mse", [(inputs, inputs)], "fedavg", rounds=1, local_steps=3)
    assert run.model.up.weight is run.model.down.weight
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
    torch.testing.assert_close(run.model.up.weight, model.up.weight, rtol=0, atol=1e-12)


def normalised():
    return classifier(middle=lambda: nn.BatchNorm1d(3))


@pytest.mark.parametrize(("weights", "p"), [("uniform", [1] * C), ("samples", SIZES)])
def test_averaged_statistics_are_the_mean_of_the_clients(weights, p):
    run = learn(model=normalised(), rounds=1, local_steps=1, weights=weights, buffers="average")
    with torch.no_grad():
        inside = [normalised().body(inputs) for inputs, _ in classification()]
    mean = sum(w * z.mean(0) for w, z in zip(p, inside, strict=True)) / sum(p)
    var = sum(w * z.var(0) for w, z in zip(p, inside, strict=True)) / sum(p)
    torch.testing.assert_close(run.model.middle.running_mean, 0.1 * mean)
    torch.testing.assert_close(run.model.middle.running_var, 0.9 + 0.1 * var)
    assert run.model.middle.num_batches_tracked == 1


class Watched:
    """A local engine that exposes its clients."""

    leads = True

    def open(self, *given):
        self.clients = fs.engine.Local().open(*given)
        return self.clients


def test_local_statistics_stay_with_the_clients():
    engine = Watched()
    run = learn(model=normalised(), rounds=1, local_steps=1, buffers="local", engine=engine)
    for name in ("running_mean", "running_var"):
        assert torch.equal(getattr(run.model.middle, name), getattr(normalised().middle, name))
    for i, (inputs, _) in enumerate(classification()):
        with torch.no_grad():
            z = normalised().body(inputs)
        torch.testing.assert_close(engine.clients.memory(i)[f"statistics/{i}/stats"][:3], 0.1 * z.mean(0))


def test_local_statistics_move_on_from_round_to_round():
    engine = Watched()
    learn(model=normalised(), rounds=3, local_steps=2, cohort=Only([0, 1], [0], [0]), buffers="local", engine=engine)
    kept = engine.clients.state()
    assert kept["statistics/clients"].tolist() == [0, 1]
    assert kept["statistics/stats"][:, -1].tolist() == [6, 2]  # num_batches_tracked


def test_frozen_statistics_do_not_move_and_are_what_training_uses():
    run = learn(model=normalised(), rounds=2, local_steps=2, buffers="frozen")
    assert torch.equal(run.model.middle.running_mean, torch.zeros(3, dtype=torch.float64))
    assert run.model.middle.num_batches_tracked == 0
    model = normalised().eval()
    with torch.no_grad():
        losses = [F.cross_entropy(model(x), y) for x, y in classification()]
    assert run.history[0]["train_loss"] == pytest.approx(float(sum(losses)) / C, rel=1e-12)


class Masked(nn.Dropout):
    """Dropout that keeps its masks."""

    masks: ClassVar[list[Any]] = []

    def forward(self, z):
        mask = super().forward(torch.ones_like(z))
        self.masks.append(mask.flatten().tolist())
        return z * mask


def test_dropout_differs_by_client_step_round_and_seed():
    drawn = []
    for seed in (0, 1):
        learn(model=classifier(middle=Masked), clients=[classification()[0]] * 2, rounds=2, local_steps=2, seed=seed)
        drawn += Masked.masks[-8:]
    assert len(set(map(tuple, drawn))) == 16


def test_line_search_uses_the_same_dropout_for_all_trials():
    run = learn("fedsls", model=classifier(middle=lambda: nn.Dropout(0.5)), rounds=4, local_steps=4)
    assert run.history["failed"] == [0] * 4


def test_moon_starts_a_new_client_from_the_global_model():
    """Not from the first model of the run: a client that joins in round 2 trains as if the run began there."""
    xs = []
    run = learn("moon", rounds=2, local_steps=2, cohort=Only([0], [1]), callbacks=[lambda e: xs.append(e.x)])
    model = classifier()
    nn.utils.vector_to_parameters(xs[1], model.parameters())
    begun_there = learn("moon", model=model, rounds=1, local_steps=2, cohort=Only([1]))
    assert torch.equal(run.x, begun_there.x)


# --- the test set ------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_returned_model():
    inputs, targets = classification((50,), seed=9)[0]
    for algorithm in ("fedavg", "fedexp"):
        for test in ((inputs, targets), TensorDataset(inputs, targets)):
            run = learn(algorithm, test=test)
            with torch.no_grad():
                output = run.model(inputs)
            assert run.history[-1]["test_loss"] == pytest.approx(float(F.cross_entropy(output, targets)), rel=1e-12)
            assert run.history[-1]["test_accuracy"] == float((output.argmax(1) == targets).double().mean())


@pytest.mark.parametrize(("loss", "labels"), [("bce_with_logits", (0, 1)), ("logistic", (-1, 1))])
def test_accuracy_of_two_classes(loss, labels):
    low, high = labels
    data = [(A, torch.where(A[:, :1] > 0, float(high), float(low)).double()) for A, _ in regression((30, 30))]
    run = fs.train(linear(), loss, data, fs.recipes.fedavg(lr=1.0), rounds=10, local_steps=5, test=data[0])
    with torch.no_grad():
        right = (run.model(data[0][0]) > 0) == (data[0][1] > 0)
    assert run.history[-1]["test_accuracy"] == float(right.double().mean()) > 0.8


def test_a_regression_has_no_accuracy():
    run = fs.train(linear(), "mse", regression(), "fedavg", rounds=1, test=regression()[0])
    assert run.history[0]["test_accuracy"] is None
    assert run.history[0]["test_loss"] > 0


# --- divergence --------------------------------------------------------------------------------------------------------


def test_a_diverged_run_names_the_round_and_keeps_the_last_finite_model():
    xs = []
    with pytest.raises(fs.Diverged, match=r"round \d+.*client \d") as caught:
        fs.train(
            linear(),
            "mse",
            regression(),
            fs.recipes.fedavg(lr=1e30),
            rounds=20,
            local_steps=2,
            callbacks=[lambda e: xs.append(e.x)],
        )
    error = caught.value
    assert error.round == len(xs) > 1
    assert set(error.clients) <= set(range(C))
    assert error.clients
    assert torch.equal(error.run.x, xs[-1])
    assert torch.isfinite(parameters_to_vector(error.run.model.parameters())).all()
    assert error.run.history["round"] == list(range(1, error.round))


def test_a_diverged_server_step_is_reported():
    with pytest.raises(fs.Diverged, match=r"round \d+: the server step") as caught:
        fs.train(linear(), "mse", regression(), fs.recipes.fedavg(lr=1e3, server_lr=1e38), rounds=9)
    assert torch.isfinite(caught.value.run.x).all()


def test_a_diverged_run_can_be_saved(tmp_path):
    with pytest.raises(fs.Diverged) as caught:
        fs.train(linear(), "mse", regression(), fs.recipes.fedavg(lr=1e30), rounds=9, local_steps=3)
    caught.value.run.save(tmp_path)
    assert torch.equal(fs.load(tmp_path, linear()).x, caught.value.run.x)


# --- saved runs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [classifier, normalised, lambda: seeded(Tied)], ids=["plain", "buffers", "tied"])
def test_a_saved_run_can_be_loaded(make, tmp_path):
    inputs = classification()[0][0]
    data = [(inputs, torch.zeros(len(inputs), dtype=torch.long))]
    run = fs.train(make(), "cross_entropy", data, "fedexp", rounds=2, test=data[0])
    folder = run.save(tmp_path / "new" / "folder")
    assert (folder / "model.safetensors").is_file()
    given = make()
    back = fs.load(folder, given)
    assert same_bits(back, run)
    assert back.history == run.history
    assert torch.equal(back.model(inputs), run.model(inputs))
    assert not torch.equal(parameters_to_vector(given.parameters()), parameters_to_vector(back.model.parameters()))


def test_a_saved_run_does_not_fit_another_model(tmp_path):
    learn().save(tmp_path)
    with pytest.raises(fs.InvalidInput, match="do not fit the model"):
        fs.load(tmp_path, linear())


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(fs.InvalidInput, match=r"does not contain model\.safetensors"):
        fs.load(tmp_path, classifier())
