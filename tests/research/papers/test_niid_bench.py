"""The partitions of NIID-Bench, and verdicts on made-up results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import fedstride as fs
from fedstride.research.papers import niid_bench, silos
from fedstride.research.papers.experiment import AGREES, DIFFERS, EXPERIMENTS, IN_KIND, NOT_RUN, UNDECIDED, Lab
from tests.research.papers.made_up import outcome, verdicts

pytestmark = pytest.mark.slow

LABELS = torch.arange(10).repeat_interleave(200)[torch.randperm(2000, generator=torch.Generator().manual_seed(1))]


@pytest.mark.parametrize("split", silos.SPLITS)
def test_a_partition_uses_every_sample_once(split):
    parts = silos.partition(LABELS, split, seed=3)
    assert len(parts) == silos.CLIENTS
    assert sorted(torch.cat(parts).tolist()) == list(range(2000))
    again, other = (silos.partition(LABELS, split, seed) for seed in (3, 4))
    assert all(map(torch.equal, parts, again))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(parts, other, strict=True))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_clients_have_their_number_of_labels_and_labels_are_split_evenly(count):
    parts = [Counter(LABELS[part].tolist()) for part in silos.partition(LABELS, f"labels{count}", seed=0)]
    assert [len(part) for part in parts] == [count] * 10
    assert all(client in part for client, part in enumerate(parts))
    for label in range(10):
        sizes = [part[label] for part in parts if label in part]
        assert sum(sizes) == 200 and max(sizes) - min(sizes) <= 1


def test_dirichlet_gives_nothing_more_to_clients_that_have_their_share():
    parts = silos.partition(LABELS, "dirichlet", seed=0)
    assert min(map(len, parts)) >= silos.LEAST
    for part in parts:
        counts = [int((LABELS[part] == label).sum()) for label in range(10)]
        assert all(sum(counts[:label]) < 200 for label in range(10) if counts[label] > 1)  # 1: rounding


def test_the_network_has_the_size_of_the_benchmarks():
    sizes = [
        sum(p.numel() for p in silos.network(shape, augment=False).parameters()) for shape in ((1, 28, 28), (3, 32, 32))
    ]
    assert sizes == [44426, 62006]


def test_a_run(monkeypatch):
    images = torch.rand(2000, 1, 28, 28, generator=torch.Generator().manual_seed(0)) + (LABELS / 5).view(-1, 1, 1, 1)
    table = silos.Table("mnist", (images, LABELS), (images[:200], LABELS[:200]), 10)
    monkeypatch.setattr(silos, "load", lambda name: table)
    silos._table.cache_clear()
    results = [silos.silos("mnist", "iid", method, 0, 3, 1, 1500) for method in silos.METHODS]
    silos._table.cache_clear()
    for result in results:
        assert result["diverged"] is None and result["history"]["round"] == [1, 2, 3]
    starts = [result["history"]["train_loss"][0] for result in results]
    assert starts[0] == pytest.approx(starts[1]), "methods start from the same model on the same data"


def test_an_interrupted_run_continues_and_its_rounds_count_so_far(monkeypatch, tmp_path):
    images = torch.rand(600, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    table = silos.Table("mnist", (images, LABELS[:600]), (images[:50], LABELS[:50]), 10)
    monkeypatch.setattr(silos, "load", lambda name: table)
    monkeypatch.setitem(niid_bench.SIZES, "paper", {"rounds": 4, "epochs": 1, "samples": 600})
    silos._table.cache_clear()
    lab = Lab("paper", 1, tmp_path, tasks=("mnist-iid",))
    cell = niid_bench._cell(lab, ("mnist", "iid"), "auto", 0)
    whole = silos.silos(**cell.arguments)
    real = silos.train

    def stop(event):
        if event.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(silos, "train", lambda *a, callbacks, **more: real(*a, callbacks=[*callbacks, stop], **more))
    with pytest.raises(KeyboardInterrupt):
        lab.run([cell], workers=1)
    monkeypatch.setattr(silos, "train", real)
    assert [row["round"] for row in lab.begun([cell])[cell.name]] == [1, 2]
    claims = EXPERIMENTS["niid-bench"].measure(Lab("paper", 1, tmp_path, tasks=("none",))).claims
    assert claims[0].verdict == NOT_RUN and "after 2 of 4 rounds" in claims[0].ours
    assert claims[15].ours == "on 0 of 1, 1 of them not complete"
    assert lab.run([cell], workers=1)[cell.name]["history"] == whole["history"]
    assert lab.begun([cell]) == {} and lab.hours > 0
    silos._table.cache_clear()


def test_a_goal_that_is_reached_early_counts(tmp_path):
    for accuracy, verdict in ((0.9991, AGREES), (0.5, NOT_RUN)):
        rounds = [{"round": 1, "test_accuracy": accuracy}, {"round": 2, "test_accuracy": 0.1}]
        assert niid_bench._so_far(Lab("paper", 1, tmp_path), ("mnist", "iid"), rounds).verdict == verdict


def scored(add):
    """Runs whose best round is before their last one; `add` points from the best column, FedAvg as published."""

    def result(work, arguments):
        row = arguments["data"], arguments["split"]
        top = max(niid_bench.PUBLISHED[row]) + add if arguments["method"] == "auto" else niid_bench.PUBLISHED[row][0]
        top += 0.02 * arguments["seed"]
        path = [value / 100 for value in (top - 2, top, top - 1)]
        return {"diverged": None, "history": {"round": [1, 2, 3], "test_accuracy": path}}

    return result


def test_auto_above_the_best_column_agrees(monkeypatch, tmp_path):
    found = outcome(monkeypatch, tmp_path, "niid-bench", scored(0.0), scale="paper", seeds=2)
    of_cifar_1 = [c.what for c in found.claims if c.verdict != AGREES]
    assert of_cifar_1 == ["CIFAR-10, 1 label per client: auto reaches the best column"], "all are near chance there"
    assert len(found.claims) == 15 + 1 + 3
    first = next(c for c in found.claims if c.what.startswith("MNIST, Dirichlet"))
    assert first.paper == "FedAvg 98.89, SCAFFOLD 99.07, FedProx 99.02, FedNova 98.03"
    assert first.ours.startswith("auto 99.08 (last round 98.08), FedAvg 98.90; margin 0.01,")


def test_auto_below_the_best_column_differs_with_several_seeds(monkeypatch, tmp_path):
    for seeds, verdict in ((1, UNDECIDED), (2, DIFFERS)):
        found = outcome(monkeypatch, tmp_path, "niid-bench", scored(-1.0), scale="paper", seeds=seeds)
        assert {c.verdict for c in found.claims if c.what.startswith("MNIST") and "auto" in c.what} == {verdict}
        together = next(c for c in found.claims if "two thirds" in c.what)
        assert (together.verdict, together.ours) == (DIFFERS, "on 0 of 15")


def test_another_protocol_is_noticed(monkeypatch, tmp_path):
    def off(work, arguments):
        return scored(0.0)(work, arguments | {"seed": 1000 + arguments["seed"]})

    found = outcome(monkeypatch, tmp_path, "niid-bench", off, scale="paper", seeds=2)
    assert [c.verdict for c in found.claims if "our FedAvg" in c.what] == [DIFFERS] * 3


def test_the_small_scale_compares_with_our_own_fedavg(monkeypatch, tmp_path):
    found = outcome(monkeypatch, tmp_path, "niid-bench", scored(0.0))
    assert set(verdicts(found)) == {IN_KIND, "no information"} and len(found.claims) == 16


def test_rows_add_up_over_commands(monkeypatch, tmp_path):
    """Rows are run in the order of their value, and a later command shows what an earlier one finished."""
    ran = []

    def work(folder, **arguments):
        ran.append((arguments["data"], arguments["split"], arguments["method"]))
        return scored(0.0)("", arguments)

    monkeypatch.setattr(niid_bench, "silos", work)
    monkeypatch.setattr("fedstride.app.sweep.cores", lambda: 1)
    measure = EXPERIMENTS["niid-bench"].measure
    first = measure(Lab("paper", 1, tmp_path, tasks=("mnist-labels2",))).claims
    assert ran == [("mnist", "labels2", "auto"), ("mnist", "labels2", "FedAvg")]
    assert sum(c.verdict == NOT_RUN for c in first) == 14
    second = measure(Lab("paper", 1, tmp_path, tasks=("fashion_mnist",))).claims
    assert len(ran) == 2 + 6 and ran[2:4] == [
        ("fashion_mnist", "dirichlet", "auto"),
        ("fashion_mnist", "labels2", "auto"),
    ]
    assert sum(c.verdict == NOT_RUN for c in second) == 9


class Asked(Exception):
    """A run that was asked for is not begun."""


@pytest.fixture
def asked(monkeypatch):
    """What `silos` asks `train` for."""

    def ask(data="mnist", method="FedAvg"):
        seen = {}

        def train(model, loss, clients, algorithm, **more):
            seen.update(more, model=model, loss=loss, clients=clients, algorithm=algorithm)
            raise Asked

        shape = (3, 32, 32) if data == "cifar10" else (1, 28, 28)
        table = silos.Table(data, (torch.zeros(2000, *shape), LABELS), (torch.zeros(50, *shape), LABELS[:50]), 10)
        monkeypatch.setattr(silos, "load", lambda name: table)
        monkeypatch.setattr(silos, "train", train)
        silos._table.cache_clear()
        with pytest.raises(Asked):
            silos.silos(data, "dirichlet", method, 3, 50, 10, 1500)
        silos._table.cache_clear()
        return seen

    return ask


def test_the_protocol_is_the_benchmarks(asked):
    """10 clients that all take part, 50 rounds of 10 epochs, batches of 64, SGD with 0.01 and momentum 0.9, decay 1e-5."""
    found = asked()
    assert found["algorithm"] == fs.Algorithm(step=fs.Momentum(lr=0.01, beta=0.9))
    wanted = {"rounds": 50, "epochs": 10, "batch_size": 64, "weights": "samples", "weight_decay": 1e-5, "seed": 3}
    assert {name: found[name] for name in wanted} == wanted
    assert found["loss"] == "cross_entropy" and not {"cohort", "normalise", "clip_norm"} & found.keys()
    assert sum(map(len, found["clients"])) == 1500 and len(found["test"][1]) == 50
    assert asked(method="auto")["algorithm"] == fs.recipes.auto()
    assert niid_bench.SIZES["paper"] == niid_bench.SIZES["medium"] == {"rounds": 50, "epochs": 10, "samples": None}


@pytest.mark.parametrize("data", niid_bench.DATA)
def test_only_colour_images_are_cropped_and_flipped(asked, data):
    parts = [part for part in asked(data)["model"].modules() if isinstance(part, silos.CropFlip)]
    assert [part.border for part in parts] == (["reflect"] if data == "cifar10" else [])


def test_the_dirichlet_partition_is_flowers():
    """Its program, with its seed 42, alpha 0.5 and at least 10 samples, finds the same clients."""
    random, targets, least = np.random.default_rng(42), LABELS.numpy(), 0
    while least < 10:
        mine = [[] for _ in range(10)]
        for c in range(10):
            (of_class,) = np.where(targets == c)
            random.shuffle(of_class)
            p = random.dirichlet(np.repeat(0.5, 10))
            p = np.array([q * (len(one) < 2000 / 10) for q, one in zip(p, mine, strict=True)])
            cuts = (np.cumsum(p / p.sum()) * len(of_class)).astype(int)[:-1]
            mine = [one + piece.tolist() for one, piece in zip(mine, np.split(of_class, cuts), strict=True)]
        least = min(map(len, mine))
    assert [part.tolist() for part in silos.partition(LABELS, "dirichlet", seed=0)] == mine


@pytest.mark.parametrize(("samples", "seed"), [(150, 1), (150, 8), (200, 4), (250, 8)])
def test_a_partition_with_a_client_below_ten_samples_is_drawn_again(monkeypatch, samples, seed):
    least = min(map(len, silos.partition(LABELS[:samples], "dirichlet", seed)))
    monkeypatch.setattr(silos, "LEAST", 1)
    assert min(map(len, silos.partition(LABELS[:samples], "dirichlet", seed))) < 10 <= least


@pytest.mark.parametrize(("good", "verdict"), [(9, DIFFERS), (10, AGREES)])
def test_two_thirds_of_the_rows_are_enough(monkeypatch, tmp_path, good, verdict):
    """A row whose best round is exactly the best column reaches it."""
    reach = list(niid_bench.PUBLISHED)[:good]
    monkeypatch.setattr(niid_bench, "PUBLISHED", dict.fromkeys(niid_bench.PUBLISHED, (50.0,) * 4))

    def result(work, arguments):
        top = 0.5 if (arguments["data"], arguments["split"]) in reach else 0.4
        return {"diverged": None, "history": {"round": [1, 2], "test_accuracy": [top, 0.1]}}

    found = outcome(monkeypatch, tmp_path, "niid-bench", result, scale="paper")
    together = next(c for c in found.claims if "two thirds" in c.what)
    assert (together.ours, together.verdict) == (f"on {good} of 15", verdict)


@pytest.mark.parametrize(
    ("row", "off", "verdict"),
    [
        (("mnist", "labels2"), 0.95, AGREES),  # one point is allowed where two deviations are less
        (("mnist", "labels2"), 1.05, DIFFERS),
        (("fashion_mnist", "labels2"), 4.9, AGREES),  # two deviations of 2.51
        (("fashion_mnist", "labels2"), 5.1, DIFFERS),
    ],
)
def test_our_fedavg_may_be_off_by_two_deviations_or_a_point(tmp_path, row, off, verdict):
    for sign in (1, -1):
        path = [(niid_bench.PUBLISHED[row][0] + sign * off) / 100, 0.1]
        run = {"diverged": None, "history": {"test_accuracy": path}}
        claim = niid_bench._same_protocol(Lab("paper", 2, tmp_path), row, {"FedAvg": {0: run, 1: run}})
        assert claim.verdict == verdict


def test_the_published_table():
    """Sums of the columns, plain and weighted by the row, so that no figure changes by mistake."""
    columns = list(zip(*niid_bench.PUBLISHED.values(), strict=True))
    assert [round(sum(column), 2) for column in columns] == [1032.34, 964.94, 1075.17, 1041.32]
    assert round(sum(i * v for column in columns for i, v in enumerate(column, 1)), 2) == 29180.23
