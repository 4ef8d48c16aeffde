"""The history: rows, columns, and the definition of each figure."""

from __future__ import annotations

import json
import zlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedstride as fs
from fedstride.training.history import COLUMNS, History, unpack
from tests.problems import SIZES, STEPS, classification, classifier, learn

d, item, C, n = 27, 8, 4, sum(SIZES)


def test_rows_columns_and_frame():
    history = learn(test=classification()[0]).history
    assert len(history) == 3
    assert history["round"] == [1, 2, 3]
    assert history["train_loss"] == [row["train_loss"] for row in history]
    assert history[0]["round"] == 1
    assert all(set(row) == set(COLUMNS) for row in history)
    frame = history.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["test_loss"].tolist() == history["test_loss"]


@pytest.mark.parametrize("rounds", [1, 99, 100, 101, 250])
def test_a_long_history_is_the_same_as_a_list(rounds):
    rows = [{"round": i + 1, "loss": 1 / (i + 3), "steps": [0.1, None], "refused": {"late": i}} for i in range(rounds)]
    history = History(rows)
    assert (len(history), list(history), history) == (rounds, rows, rows)
    assert history == History(rows) != History(rows[:-1])
    assert all(history[i] == rows[i] for i in {0, -1, rounds - 1, -rounds, rounds // 2})
    assert all(history[part] == rows[part] for part in (slice(2), slice(-3, None), slice(None, None, 7)))
    assert history["loss"] == [row["loss"] for row in rows]
    assert list(unpack(history.packed())) == rows
    assert [json.loads(line) for line in history.text().splitlines()] == rows
    with pytest.raises(IndexError):
        history[rounds]


@pytest.mark.parametrize(
    "data", [b"x", History([{"a": 1}]).packed()[:-1], zlib.compress(b"[1,"), zlib.compress(b" " * 2**21)]
)
def test_invalid_histories_are_not_unpacked(data):
    with pytest.raises(ValueError, match=r".+"):
        list(unpack(data))


def test_without_a_test_set_there_is_no_score():
    assert learn().history["test_loss"] == [None] * 3
    assert learn().history.frame()["test_accuracy"].isna().all()


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_the_training_loss_is_the_weighted_loss_at_the_start_of_the_round(weights):
    p = torch.tensor([1.0] * C if weights == "uniform" else SIZES, dtype=torch.float64)
    with torch.no_grad():
        losses = torch.stack([F.cross_entropy(classifier()(x), y) for x, y in classification()])
    assert learn(weights=weights).history[0]["train_loss"] == pytest.approx(
        float((p * losses).sum() / p.sum()), rel=1e-12
    )


def updates(algorithm="fedavg", **options):
    """Return Delta_i of every client in the first round, from runs with one client each."""
    start = nn.utils.parameters_to_vector(classifier().parameters()).detach()
    runs = [
        learn(algorithm, clients=[c], rounds=1, local_steps=t, **options)
        for c, t in zip(classification(), STEPS, strict=True)
    ]
    return start, torch.stack([start - run.x for run in runs])


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_drift_is_the_spread_of_the_updates(weights):
    p = torch.tensor([1.0] * C if weights == "uniform" else SIZES, dtype=torch.float64)
    p /= p.sum()
    _, D = updates()
    spread = (p * ((D - p @ D) ** 2).sum(1)).sum().sqrt()
    run = learn(rounds=1, local_steps=STEPS, weights=weights)
    assert run.history[0]["drift"] == pytest.approx(float(spread), rel=1e-9)


def test_the_mean_client_step_is_weighted():
    run = learn(fs.recipes.fedlin(lr=0.6), local_steps=(1, 2, 3, 6), weights="samples")
    expected = sum(s * 0.6 / t for s, t in zip(SIZES, (1, 2, 3, 6), strict=True)) / n
    assert run.history[0]["client_step"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        ("fedavg", [d, d], [d, d]),
        ("fedprox", [d, d], [d, d]),
        ("moon", [d, d], [d, d]),
        ("feddyn", [d, d], [d, d]),
        ("fedexp", [d + 1, d + 1], [d, d]),  # |Delta_i|^2
        ("fednova", [d + 1, d + 1], [d, d]),  # a_i
        ("scaffold", [2 * d, 2 * d], [2 * d, 2 * d]),
        ("scaffold_exp", [2 * d + 1, 2 * d + 1], [2 * d, 2 * d]),
        ("fedlin", [2 * d, 2 * d], [2 * d, 2 * d]),
        ("fedtrack", [2 * d, 2 * d], [2 * d, 2 * d]),
        (
            "auto",
            [d + 6, d + 6],
            [d + 1, d + 10],
        ),  # |Delta_i|^2, a loss and 4 mean squares; the reach, later a target, 4 scales and 4 mean squares
    ],
)
def test_bytes_are_counted_in_both_directions(algorithm, up, down):
    run = learn(algorithm, rounds=2)
    assert run.history["bytes_up"] == [C * item * k for k in up]
    assert run.history["bytes_down"] == [C * item * k for k in down]


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [
        (fs.Algorithm(up=fs.TopK(5)), [d * item, 5 * (item + 4)], [d * item] * 2),
        (fs.Algorithm(up=fs.TopK(5), error_feedback=False), [5 * (item + 4)] * 2, [d * item] * 2),
        (fs.Algorithm(up=fs.RandomK(5)), [d * item, 5 * (item + 4)], [d * item] * 2),
        (fs.Algorithm(up=fs.Quantize(8), error_feedback=False), [d + item] * 2, [d * item] * 2),
        (fs.Algorithm(up=fs.TopK(99), error_feedback=False), [d * item] * 2, [d * item] * 2),
        (fs.recipes.fedlin(up=fs.TopK(5)), [2 * d * item, d * item + 60], [2 * d * item] * 2),
        (fs.recipes.fedlin(down=fs.TopK(5)), [2 * d * item] * 2, [2 * d * item, d * item + 60]),
        (fs.recipes.fedlin(up=fs.TopK(5), down=fs.TopK(5), error_feedback=False), [d * item + 60] * 2, [d * item + 60] * 2),
    ],
)  # fmt: skip
def test_bytes_of_compressed_messages(algorithm, up, down):
    run = learn(algorithm, rounds=2)
    assert run.history["bytes_up"] == [C * b for b in up]
    assert run.history["bytes_down"] == [C * b for b in down]


@pytest.mark.parametrize(("buffers", "moving"), [("average", 7), ("local", 0), ("frozen", 0)])
def test_bytes_of_buffers(buffers, moving):
    run = learn(model=classifier(middle=lambda: nn.BatchNorm1d(3)), buffers=buffers)
    d = 27 + 6
    assert run.history["bytes_up"] == [C * item * (d + moving)] * 3
    assert run.history["bytes_down"] == [C * item * (d + moving)] * 3


def test_bytes_of_single_precision_and_a_small_cohort():
    run = learn(model=classifier(torch.float32), clients=classification(dtype=torch.float32), cohort=3)
    assert run.history["bytes_up"] == run.history["bytes_down"] == [3 * 4 * d] * 3
    assert run.history["participants"] == [3] * 3
    assert run.history["lost"] == [0] * 3


@pytest.mark.parametrize(
    ("algorithm", "options", "gradients", "forwards"),
    [
        ("fedavg", {"local_steps": 3}, 3 * n, 0),
        ("fedavg", {"local_steps": 3, "batch_size": 2}, 6 + 6 + 5 + 6, 0),  # the last batch of five holds one sample
        ("fedavg", {"epochs": 2, "batch_size": 4}, 2 * n, 0),
        ("delta_sgd", {"local_steps": 3}, 5 * n, 0),
        (fs.recipes.delta_sgd(reuse_gradient=True), {"local_steps": 3}, 3 * n, 0),
        ("fedlin", {"local_steps": 3}, 4 * n, 0),
        ("fedtrack", {"local_steps": 3}, n + 2 * C, 0),
        ("fedtrack", {"local_steps": 12}, n + 11 * C, 0),  # beyond one pass over the components
        (fs.recipes.fedsls(lr_max=1e-3), {"local_steps": 3}, 3 * n, 3 * n),  # the first trial succeeds
    ],
)
def test_evaluations_are_counted_in_samples(algorithm, options, gradients, forwards):
    run = learn(algorithm, rounds=1, **options)
    assert (run.history[0]["gradients"], run.history[0]["forwards"]) == (gradients, forwards)


def test_trials_are_per_local_step():
    run = learn(fs.recipes.fedsls(lr_max=1e-3), local_steps=3)
    assert run.history["trials"] == [1.0] * 3
    assert run.history["failed"] == [0] * 3


@pytest.mark.parametrize(("algorithm", "step"), [(fs.recipes.fedavg(server_lr=0.7), 0.7), ("fedsplit", 2.0)])
def test_the_server_step_is_recorded(algorithm, step):
    assert learn(algorithm).history["server_step"] == pytest.approx([step] * 3)


def test_fedexps_step_follows_the_updates():
    _, D = updates()
    mean = D.mean(0)
    expected = max(1.0, float((D**2).sum(1).mean() / (2 * ((mean**2).sum() + 1e-9))))
    run = learn(fs.recipes.fedexp(eps=1e-9), rounds=1, local_steps=STEPS)
    assert run.history[0]["server_step"] == pytest.approx(expected, rel=1e-9)


def moves(algorithm, **options):
    """Return a run, and the moves x_t - x_{t-1} of its model."""
    iterates = []
    run = learn(algorithm, callbacks=[lambda event: iterates.append(event.x)], **options)
    return run, torch.stack(iterates).diff(dim=0)


@pytest.mark.parametrize("algorithm", [fs.recipes.fedavg(server_lr=0.7), "fedexp", "scaffold"])
def test_the_update_is_the_length_of_the_mean_update(algorithm):
    """The model moves by the server's step times the mean update."""
    run, moved = moves(algorithm, cohort=3, batch_size=3)
    steps = torch.tensor(run.history["server_step"], dtype=torch.float64)
    assert run.history["update"] == pytest.approx((moved.norm(dim=1) / steps).tolist(), rel=1e-9)


def test_the_update_of_fednova_is_that_of_the_clients():
    """Its clients upload Delta_i / a_i."""
    _, D = updates()
    run = learn("fednova", rounds=1, local_steps=STEPS)
    assert run.history[0]["update"] == pytest.approx(float(D.mean(0).norm()), rel=1e-9)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavgm", "fedexp", "auto"])
def test_the_turn_is_the_cosine_of_two_moves(algorithm):
    run, moved = moves(algorithm, rounds=5, batch_size=3)
    cosines = torch.cosine_similarity(moved[1:], moved[:-1], dim=1)
    assert run.history["turn"][0] is None
    assert run.history["turn"][1:] == pytest.approx(cosines.tolist(), rel=1e-9)


def test_a_model_that_does_not_move_has_no_turn():
    nothing = [(torch.zeros(3, 2).double(), torch.zeros(3, 1).double())]
    run = learn(model=nn.Linear(2, 1, bias=False).double(), loss="mse", clients=nothing)
    assert run.history["turn"] == [None] * 3
    assert run.history["update"] == [0.0] * 3


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedlin", "auto"])
def test_without_a_compressor_nothing_is_lost(algorithm):
    assert learn(algorithm).history["compression"] == [0.0] * 3


def lost(M, compressor):
    """Return sqrt(sum |m - C(m)|^2 / sum |m|^2) over messages, one per row."""
    return float((M - compressor.compress(M)).norm() / M.norm())


@pytest.mark.parametrize("clients", [1, C])
def test_compression_is_the_relative_error_of_the_messages(clients):
    _, D = updates()
    run = learn(
        fs.Algorithm(up=fs.TopK(5), error_feedback=False),
        clients=classification()[:clients],
        rounds=1,
        local_steps=STEPS[:clients],
    )
    assert run.history[0]["compression"] == pytest.approx(lost(D[:clients], fs.TopK(5)), rel=1e-9)


def test_compression_with_error_feedback_is_that_of_the_corrected_message():
    """The first message is not compressed; the second has no residual, the third has one."""
    only, topk = {"clients": classification()[:1]}, fs.TopK(5)
    run, moved = moves(fs.Algorithm(up=topk), **only)
    second = learn(rounds=2, **only).x - learn(rounds=1, **only).x
    assert run.history["compression"][:2] == [0.0, pytest.approx(lost(second[None], topk), rel=1e-9)]
    residual = second - moved[1]
    other = classifier()
    nn.utils.vector_to_parameters(run.x - moved[2], other.parameters())
    third = residual + learn(model=other, rounds=1, **only).x - (run.x - moved[2])
    assert torch.allclose(moved[2], topk.compress(third[None])[0], rtol=1e-9, atol=1e-15)
    assert run.history["compression"][2] == pytest.approx(lost(third[None], topk), rel=1e-9)


@pytest.mark.parametrize("way", ["up", "down"])
def test_compression_of_exchanged_gradients(way):
    model, (inputs, targets) = classifier(), classification()[0]
    F.cross_entropy(model(inputs), targets).backward()
    G = torch.cat([p.grad.flatten() for p in model.parameters()])[None]
    fedlin = fs.recipes.fedlin(error_feedback=False, **{way: fs.TopK(5)})
    run = learn(fedlin, clients=[(inputs, targets)], rounds=1)
    assert run.history[0]["compression"] == pytest.approx(lost(G, fs.TopK(5)), rel=1e-9)
