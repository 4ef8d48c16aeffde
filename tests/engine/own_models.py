"""Runs with personal parameters and several test sets: torchrun starts this file, and the leader writes down what it got."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from fedstride.engine import Engine, Local, Torchrun
from tests.problems import classification, learn, records

CASES: dict[str, dict[str, Any]] = {
    "personal": {"algorithm": "scaffold", "personal": "head.*", "personal_steps": 1},
    "ditto": {"algorithm": "ditto"},
    "several tests": {"algorithm": "fedavg"},
}


def trained(name: str, engine: Engine, folder: Path | None = None, rounds: int = 4) -> dict[str, Any]:
    """What must be the same on all engines, as JSON."""
    more, tests = {**CASES[name], "rounds": rounds}, classification(seed=5)
    run = learn(more.pop("algorithm"), batch_size=3, cohort=3, test=tests, engine=engine, checkpoint=folder, **more)
    own = {} if run.personal is None else {str(i): _numbers(model) for i, model in run.personal.items()}
    return {"x": run.x.tolist(), "history": records(run), "own": own}


def _numbers(model: Any) -> list[float]:
    return [number for p in model.parameters() for number in p.detach().flatten().tolist()]


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for _rounds in (2, 4):  # the second time they go on from a checkpoint
        found = {name: trained(name, Torchrun(Local(chunk=1)), out / name, _rounds) for name in CASES}
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
