"""Strategies in one process, without Ray, for a test that kills it: python -m tests.flower.alone FOLDER RULE..."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import fedstride.flower as flower
from tests.flower.quickstart import Grid, fedstride_client, initial, unchanged_client
from tests.flower.simulation import LOCAL, PAUSE, SEED, save

ROUNDS = 8


def main(folder: Path, rules: list[str]) -> None:
    os.chdir(folder)
    for rule in rules:
        strategy = getattr(flower, rule)(seed=SEED, checkpoint=folder / rule, fraction_evaluate=0.0)
        grid = Grid(unchanged_client() if strategy.unchanged else fedstride_client(**LOCAL))
        result = strategy.start(grid, initial(), num_rounds=ROUNDS, evaluate_fn=lambda n, a: time.sleep(PAUSE))
        save(folder / f"{rule}.npz", result.arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
