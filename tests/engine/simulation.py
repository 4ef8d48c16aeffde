"""A run in Flower's simulation engine, for test_flower_simulation.py: python simulation.py FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

from fedstride.engine import flower

ALGORITHMS = ("scaffold(lr=0.2)", "fedlin(lr=0.2)")  # one that remembers, one with two exchanges
SIZES = (6, 9, 7)


def settings(algorithm: str, folder: Path) -> dict:
    out = str(folder / algorithm.partition("(")[0])
    return {"clients": len(SIZES), "algorithm": algorithm, "rounds": 5, "cohort": 2, "batch-size": 4, "out": out}


def make_model(settings: dict) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def load_data(settings: dict, node: dict) -> tuple[torch.Tensor, torch.Tensor]:
    client = node["partition-id"]
    source = torch.Generator().manual_seed(client)
    inputs = torch.randn(SIZES[client], 4, generator=source, dtype=torch.float64)
    return inputs, (inputs.sum(1) > client - 1).long()


def load_test(settings: dict) -> tuple[torch.Tensor, torch.Tensor]:
    return load_data(settings, {"partition-id": 0})


project = flower.Project(model=make_model, loss="cross_entropy", data=load_data, test=load_test)


def main() -> None:
    folder = Path(sys.argv[1])
    server = ServerApp()

    @server.main()
    def all_in_one_run(grid: Grid, context: Context) -> None:
        for algorithm in ALGORITHMS:
            context.run_config = settings(algorithm, folder)
            flower.server_app(project)(grid, context)

    os.chdir(folder)
    lean = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "include_dashboard": False}}
    run_simulation(server, flower.client_app(project), len(SIZES), backend_config=lean)


if __name__ == "__main__":
    main()
