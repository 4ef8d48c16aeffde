"""Runs of the quickstart app in Flower's simulation: python -m tests.flower.simulation FOLDER CLIENT RULE...

CLIENT is "unchanged" or "fedstride". Every rule leaves RULE.npz in the folder, and checkpoints in the folder RULE.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

import fedstride.flower as flower
from tests.flower.quickstart import SIZES, fedstride_client, initial, unchanged_client

ROUNDS, SEED = 5, 3
LOCAL = {"local_steps": 3}
PAUSE = float(os.environ.get("FEDSTRIDE_PAUSE", 0))  # seconds after each round, in which a test may kill this process


def main(folder: Path, client: str, rules: list[str]) -> None:
    server = ServerApp()

    @server.main()
    def one_after_another(grid: Grid, context: Context) -> None:
        for rule in rules:
            strategy = getattr(flower, rule)(seed=SEED, checkpoint=folder / rule)
            result = strategy.start(grid, initial(), num_rounds=ROUNDS, evaluate_fn=lambda n, a: time.sleep(PAUSE))
            save(folder / f"{rule}.npz", result.arrays)

    os.chdir(folder)
    app = unchanged_client() if client == "unchanged" else fedstride_client(**LOCAL)
    lean = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "include_dashboard": False}}
    run_simulation(server, app, len(SIZES), backend_config=lean)


def save(path: Path, arrays: ArrayRecord) -> None:
    np.savez(path, **{name: array.numpy() for name, array in arrays.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
