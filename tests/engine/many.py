"""Runs on many processes: torchrun starts this file, and every process writes a digest of its result."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from fedstride.engine import Engine, Local, Torchrun, store
from tests.crash.child import bits
from tests.crash.scenario import ALGORITHMS, Scenario, draw

LIMIT = store.LIMIT
Digests = dict[str, dict[str, str]]


def every_algorithm() -> dict[str, Scenario]:
    """Return one run per algorithm, with the options it allows: cohorts, faults, BatchNorm, memory on disk."""
    random = Random(7)
    return {name: replace(draw(name, random), rounds=5) for name in ALGORITHMS}


def long(algorithm: str, rounds: int) -> dict[str, Scenario]:
    return {algorithm: Scenario(algorithm, clients=9, cohort=0.7, rounds=rounds, seed=3)}


def digests(scenarios: dict[str, Scenario], engine: Callable[[Local], Engine], folder: Path | None = None) -> Digests:
    found = {}
    for name, scenario in scenarios.items():
        torch.manual_seed(0)
        store.LIMIT = LIMIT  # a scenario may set it
        run = scenario.train(None if folder is None else folder / name, 1, engine)
        found[name] = {k: hashlib.sha256(v).hexdigest() for k, v in bits(run).items()}
    return found


def here(scenarios: dict[str, Scenario]) -> Digests:
    """Run the same without other processes."""
    return digests(scenarios, lambda local: local)


def die_soon(journal: Path, kills: int, algorithm: str) -> None:
    """Kill a random process at a random moment, in every start of the processes but the last."""
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    random = Random(f"{algorithm}/{life}")
    rank, seconds = random.randrange(int(os.environ["WORLD_SIZE"])), random.uniform(0.0, 1.0)

    def die() -> None:
        with journal.open("a") as file:
            file.write(f"{life} {rank} {seconds:.3f}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    if life < kills and rank == int(os.environ["RANK"]):
        threading.Timer(seconds, die).start()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--algorithm")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.kills:
        die_soon(given.out / "deaths", given.kills, given.algorithm)
    chosen = every_algorithm() if given.algorithm is None else long(given.algorithm, given.rounds)
    found = digests(chosen, Torchrun, given.out / "runs")
    (given.out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
