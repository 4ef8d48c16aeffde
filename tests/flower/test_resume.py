"""A strategy continues from its checkpoint, to the same bits."""

from __future__ import annotations

import pytest
import torch

import fedstride as fs

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, MetricRecord

import fedstride.flower as flower
from tests.flower.quickstart import Grid, fedstride_client, initial, make_model, row, unchanged_client
from tests.tiers import slow

CASES = {
    "FedExP": unchanged_client,
    "FedAdam": unchanged_client,
    "Auto": fedstride_client,
    "Scaffold": fedstride_client,
    "FedLin": fedstride_client,
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Stopped(Exception):
    pass


def length(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"length": float(row(arrays).norm())})


@pytest.mark.parametrize("name", [name if name in ("FedExP", "Scaffold") else slow(name) for name in CASES])
def test_a_run_that_stopped_continues_to_the_same_bits(name, tmp_path):
    make, client = getattr(flower, name), CASES[name]
    whole = make(seed=2).start(Grid(client()), initial(), num_rounds=5, evaluate_fn=length)

    def stops(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number == 3:
            raise Stopped
        return length(number, arrays)

    with pytest.raises(Stopped):
        make(seed=2, checkpoint="saved").start(Grid(client()), initial(), num_rounds=5, evaluate_fn=stops)
    called = []
    # In a simulation, nodes have other numbers after a restart.
    grid = Grid(client(), ids=(2, 9, 4)) if client is unchanged_client else Grid(client())
    rest = make(seed=2, checkpoint="saved").start(
        grid, initial(), num_rounds=5, evaluate_fn=lambda n, a: called.append(n) or length(n, a)
    )
    assert called == [3, 4, 5]
    assert torch.equal(row(rest.arrays), row(whole.arrays))
    assert rest.evaluate_metrics_serverapp == whole.evaluate_metrics_serverapp
    assert list(rest.train_metrics_clientapp) == [1, 2, 3, 4, 5]


def test_a_finished_run_is_returned_and_may_be_longer():
    first = flower.FedExP(checkpoint="saved").start(Grid(unchanged_client()), initial(), num_rounds=2)
    grid = Grid(unchanged_client())
    again = flower.FedExP(checkpoint="saved").start(grid, initial(), num_rounds=2)
    assert not grid.sent and torch.equal(row(again.arrays), row(first.arrays))
    longer = flower.FedExP(checkpoint="saved").start(grid, initial(), num_rounds=4)
    whole = flower.FedExP().start(Grid(unchanged_client()), initial(), num_rounds=4)
    assert torch.equal(row(longer.arrays), row(whole.arrays))
    with pytest.raises(fs.InvalidInput, match=r"num_rounds=3, and the checkpoint in saved has 4 rounds"):
        flower.FedExP(checkpoint="saved").start(grid, initial(), num_rounds=3)


def test_a_checkpoint_of_another_rule_or_model_is_refused():
    flower.FedExP(checkpoint="saved").start(Grid(unchanged_client()), initial(), num_rounds=1)
    with pytest.raises(fs.InvalidInput, match="belongs to another run: algorithm was"):
        flower.FedAvgM(checkpoint="saved").start(Grid(unchanged_client()), initial(), num_rounds=2)
    other = ArrayRecord(make_model().fc1.state_dict())
    with pytest.raises(fs.InvalidInput, match="belongs to another run: parameters was 43 and is now 25"):
        flower.FedExP(checkpoint="saved").start(Grid(unchanged_client()), other, num_rounds=2)
