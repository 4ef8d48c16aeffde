"""A long run: python -m tests.soak. Memory must not grow, files must not pile up, rounds must not get slower."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import fedstride as fs
from tests import record

LIMIT = 0.05  # growth of the memory from a tenth of the rounds to the last


def resident() -> int:
    """Bytes of this process in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def soak(rounds: int, folder: Path) -> dict[str, object]:
    table = fs.data.load("digits")
    clients = fs.data.federate(table, fs.data.partition.shards(table.train[1], 50, 0, shards=2))
    model = fs.models.build("mlp", (1, 8, 8), 10, hidden=20)
    memory: list[int] = []
    seconds: list[float] = []
    began = time.perf_counter()

    def watch(event: fs.Event) -> None:
        if event.round:
            seconds.append(event.metrics["seconds"])
        if event.round % max(1, rounds // 100) == 0:
            memory.append(resident())
        if event.round % max(1, rounds // 10) == 0:
            print(f"round {event.round:,}: {resident() / 1e6:.0f} MB, {time.perf_counter() - began:.0f} s", flush=True)

    run = fs.train(
        model,
        "cross_entropy",
        clients,
        fs.recipes.scaffold(lr=0.05),
        rounds=rounds,
        cohort=5,
        local_steps=2,
        batch_size=10,
        engine=fs.faults.Faulty(dropout=0.1, nan=0.02, corrupt=0.02),
        checkpoint=fs.Checkpoints(folder, every=10, keep=3),
        callbacks=[watch],
    )
    tenth = len(seconds) // 10
    return {
        "rounds": len(run.history),
        "growth": max(memory[len(memory) // 10 :]) / memory[len(memory) // 10] - 1,
        "megabytes": round(resident() / 1e6),
        "files": len(list(folder.iterdir())),
        "slower": median(seconds[-tenth:]) / median(seconds[:tenth]),
        "seconds": round(time.perf_counter() - began),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="merge the figures into this file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(asked.rounds, Path(folder))
    print(json.dumps(found))
    if asked.json:
        record.write(asked.json, "soak", {**found, **record.about()})
    return int(found["growth"] > LIMIT or found["files"] != 3)  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
