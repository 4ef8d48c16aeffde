"""The partitions of NIID-Bench, and verdicts on made-up results."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

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
