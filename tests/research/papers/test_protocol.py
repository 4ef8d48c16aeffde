"""The papers' protocol: weight decay, clipping, read-outs, scores and targets are those that the papers state."""

from __future__ import annotations

import pytest

from fedstride import InvalidInput
from fedstride.research.papers import delta_sgd, experiment, fedexp, rivals, tuning
from fedstride.research.papers.experiment import Lab
from fedstride.research.papers.tasks import ROUNDS, accuracy, rounds_to


def run(*accuracies):
    """A run whose evaluations are given in per cent; None for rounds that were not evaluated."""
    values = [None if a is None else a / 100 for a in accuracies]
    return {"diverged": None, "history": {"round": list(range(1, len(values) + 1)), "test_accuracy": values}}


def settings(tmp_path, recipe):
    return rivals.trial(Lab("small", 1, tmp_path), "cifar10", recipe, {}).arguments["config"]


@pytest.mark.parametrize(
    ("recipe", "clip", "decayed"), [("fedavg", 10, True), ("fedexp", 10, True), ("fedsls", None, False)]
)
def test_fedexps_protocol(tmp_path, recipe, clip, decayed):
    """Weight decay 1e-4 for all; clipping at 10 and rates that fall by 0.998 for all but line searches; app. D.3."""
    config = settings(tmp_path, recipe)
    assert config["training"]["weight_decay"] == 1e-4
    assert config["training"]["clip_norm"] == clip
    assert config["training"]["readout"] == "last"
    assert config["algorithm"].get("schedule") == ({"part": "Exponential"} if decayed else None)


def test_a_seed_is_that_of_data_model_and_training(tmp_path):
    config = rivals.trial(Lab("small", 1, tmp_path), "cifar10", "fedavg", {}, seed=3).arguments["config"]
    assert (config["data"]["seed"], config["model"]["seed"], config["training"]["seed"]) == (3, 3, 3)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [("fedavg", 10), ("fedsls", 10), ("fedexp", 20), ("scaffold_exp", 20), ("fedexpm", 20), ("fedexpsls", 20)],
)
def test_methods_that_extrapolate_are_judged_by_the_mean_of_two_and_both_are_shown(
    tmp_path, monkeypatch, recipe, expected
):
    history = run(10)["history"] | {"pair_accuracy": [0.2], "test_loss": [2.0], "pair_loss": [1.0]}
    lab = Lab("small", 1, tmp_path)
    cell = rivals.trial(lab, "cifar10", recipe, {})
    assert cell.arguments["pair"] == (1 if expected == 20 else 40)  # the first of 50 rounds with both read-outs
    monkeypatch.setattr(experiment, "complete", lambda *rest: {cell.name: {"diverged": None, "history": history}})
    found = rivals.results(lab, {0: (recipe, cell)})[0]
    assert accuracy(found) == pytest.approx(expected)
    assert found["history"]["test_loss"] == [2.0 if expected == 10 else 1.0]
    assert rivals.read_outs({recipe: [found]}) == {"last iterate": {recipe: 10.0}, "mean of two": {recipe: 20.0}}
    assert ("last 10.0" if expected == 20 else "mean of two 20.0") in rivals.both({recipe: [found]})


def test_a_score_is_the_mean_of_the_last_four_evaluations():
    assert accuracy(run(90, None, 10, 20, 30, None, 40)) == pytest.approx(25)
    assert accuracy({**run(90, 90), "diverged": 2}) == 0


def test_the_rounds_to_a_target():
    assert rounds_to(run(10, 50, 60), 50) == 2
    assert rounds_to(run(10, None, 49.9, 50), 50) == 4
    assert rounds_to(run(10, 20), 50) is None
    assert rivals.needed([run(10, 50), run(10, 20)], 50, 2) == (2 + 3) / 2


def test_the_target_without_the_papers_is_the_mean_of_the_third_quarter():
    assert rivals.target_of([run(1, 2, 3, 4, 50, 70, 100, 100)], 8) == pytest.approx(60)


@pytest.mark.parametrize(
    ("scale", "residual", "model", "options"),
    [
        ("medium", False, "mcmahan_cnn", {}),
        ("medium", True, "resnet18", {"width": 16, "groups": 16}),
        ("paper", False, "resnet18", {}),
    ],
)
def test_medium_is_the_papers_work_with_another_model(tmp_path, scale, residual, model, options):
    plain = Lab(scale, 1, tmp_path, residual=residual)
    augmented = Lab(scale, 1, tmp_path, residual=residual, augment=True)
    makers = [
        lambda lab: rivals.trial(lab, "cifar10", "fedavg", {}, ROUNDS[scale]),
        lambda lab: delta_sgd.trial(lab, delta_sgd.TUNED, {"part": "DeltaSGD"}),
    ]
    for make, rounds, cohort in zip(makers, (500, 2000), (20, 10), strict=True):
        cells = make(plain), make(augmented)
        configs = [cell.arguments["config"] for cell in cells]
        assert [c["model"]["name"] for c in configs] == [model, model]
        assert [c["model"]["options"] for c in configs] == [options, {**options, "augment": True}]
        assert (configs[0]["training"]["rounds"], configs[0]["training"]["cohort"]) == (rounds, cohort)
        assert (configs[0]["data"]["clients"], configs[0]["data"]["samples"]) == (100, 500)
        assert cells[0].name != cells[1].name
    digits = rivals.trial(augmented, "emnist", "fedavg", {}).arguments["config"]["model"]
    assert digits["name"] == ("reddi_cnn" if scale == "paper" else "small_cnn") and "augment" not in digits["options"]
    assert augmented.command("x").endswith("--augment --residual" if residual else "--augment")


def test_the_narrow_resnet_is_for_the_medium_scale(tmp_path):
    with pytest.raises(InvalidInput, match="--residual with --scale small"):
        Lab("small", 1, tmp_path, residual=True)


@pytest.mark.parametrize(
    ("place", "model", "work"),
    [
        ("cifar10", "resnet18", (0.3, 50, 20, 20)),
        ("emnist", "reddi_cnn", (None, 50, 20, 20)),
        ("femnist", "softmax", (None, 50, 20, 20)),
        ("shakespeare", "char_lstm", (None, 50, 20, 20)),
    ],
)
def test_the_work_of_fedexp_and_fedsls(tmp_path, place, model, work):
    """FedExP sec. 6 and app. D.3: 20 clients, 20 local steps, batches of 50, alpha 0.3; 500 rounds and the mean of the last ones."""
    lab = Lab("paper", 1, tmp_path)
    config = rivals.trial(lab, place, "fedavg", {}, ROUNDS["paper"]).arguments["config"]
    data, training = config["data"], config["training"]
    alpha = data["alpha"] if data["partition"] == "dirichlet" else None
    assert (alpha, training["batch_size"], training["cohort"], training["local_steps"]) == work
    assert config["model"]["name"] == model
    assert (training["rounds"], training["evaluate_every"]) == (500, 5)
    assert rivals.trial(lab, place, "fedavg", {}).arguments["config"]["training"]["rounds"] == rivals.TUNED == 50
    assert ROUNDS == {"small": 50, "medium": 500, "paper": 500}


def test_the_targets_and_tables_of_fedexp(tmp_path):
    """Table 1: rounds to 72 % on CIFAR-10, and how the search goes over eta_l and eta_g (app. D.3)."""
    lab = Lab("paper", 1, tmp_path)
    assert fedexp._target(lab, "cifar10", {}) == 72
    assert fedexp.TABLE_1 == {"cifar10": (267, 434, 429, 419), "emnist": (186, 328, 232, 277)}
    assert fedexp.RIVALS == ("fedexp", "fedavg", "scaffold", "fedadagrad")
    five = (-2, -1.5, -1, -0.5, 0)
    assert tuning.axes(lab, "fedavg") == {"lr": five, "server_lr": (-1, -0.5, 0, 0.5, 1)}
    assert tuning.axes(lab, "fedadagrad") == {"lr": five, "server_lr": five}
    assert sorted(tuning.axes(lab, "fedexp")["eps"]) == [-3, -2.5, -2, -1.5, -1]


def test_scores_are_means_over_the_seeds():
    few, many = run(10, 20, 30, 40), run(50, 60, 70, 80)
    assert rivals.score([few, many]) == pytest.approx((25 + 65) / 2)
    assert delta_sgd.final([few, many]) == pytest.approx((30 + 70) / 2), "of the last three evaluations"


def test_the_training_loss_is_the_mean_of_the_last_ten_rounds():
    losses = {"diverged": None, "history": {"round": list(range(1, 13)), "train_loss": [9.0, 9.0, *range(10)]}}
    assert rivals.training_loss([losses]) == pytest.approx(4.5)
    assert rivals.training_loss([{**losses, "diverged": 3}]) == float("inf")


def test_guessing_on_text_is_right_once_in_77_times():
    assert rivals.CHANCES["shakespeare"] == pytest.approx(100 / 77)
    assert {rivals.CHANCES[place] for place in ("cifar10", "emnist", "femnist")} == {10}
