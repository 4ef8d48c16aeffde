"""python -m tests.crash --kills 100 --seed 0 [--json FILE]: the long form of test_crash.py."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import torch

import fedstride as fs
from tests.crash.harness import LOADED, PROCESSES, Trial, at_random, endure
from tests.crash.scenario import ALGORITHMS, draw

SLOW = ("sklearn.datasets", "sklearn.model_selection", "torch._dynamo", "dp_accounting")  # to load, and asked for late


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the result to this file, as 'crash'")
    options = parser.parse_args()
    PROCESSES.set_forkserver_preload([*LOADED, *SLOW])
    found = _suffer(options.kills, options.seed)
    _show(found)
    if options.json:
        merged = json.loads(options.json.read_text()) if options.json.exists() else {}
        options.json.write_text(json.dumps(merged | {"crash": found}, indent=2) + "\n")
    return 1 if found["failures"] else 0


def _suffer(kills: int, seed: int) -> dict[str, Any]:
    """Runs, killed and resumed, until there were so many kills; all algorithms in turn, in a random order."""
    names, trials, failures, start = list(ALGORITHMS), list[Trial](), list[str](), time.perf_counter()
    Random(seed).shuffle(names)
    suffered = 0
    while suffered < kills and len(failures) < 10:
        random = Random(f"{seed}/{len(trials)}")
        scenario = draw(names[len(trials) % len(names)], random)
        most = min(random.randint(1, 4), kills - suffered)
        with tempfile.TemporaryDirectory(prefix="fedstride-crash-") as home:
            trials.append(endure(scenario, Path(home), random, at_random(random, most)))
        failures += [f"{scenario}, killed at {trials[-1].kills}: {failure}" for failure in trials[-1].failures]
        before, suffered = suffered, sum(len(trial.kills) for trial in trials)
        if suffered // 10 > before // 10:
            seconds = time.perf_counter() - start
            print(f"{suffered} kills in {len(trials)} runs, {len(failures)} failures, {seconds:.0f} s", flush=True)
    deaths = [kill for trial in trials for kill in trial.kills]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"fedstride": fs.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "seed": seed,
        "seconds": round(time.perf_counter() - start),
        "algorithms": min(len(trials), len(names)),
        "runs": len(trials),
        "kills": suffered,
        "survived": sum(len(trial.kills) for trial in trials if not trial.failures),
        "moments": dict(sorted(Counter(moment for moment, _ in deaths).items())),
        "phases": dict(sorted(Counter(phase for _, phase in deaths).items())),
        "compared": sum(trial.compared for trial in trials),
        "bits_different": sum(trial.different for trial in trials),
        "failures": failures,
    }


def _show(found: dict[str, Any]) -> None:
    for title in ("moments", "phases"):
        print(f"{title} of the kills:")
        for name, count in found[title].items():
            print(f"{count:5}  {name}")
    print(
        f"{found['kills']} kills in {found['runs']} runs of {found['algorithms']} algorithms, {found['survived']} survived; "
        f"{found['compared']} results compared, {found['bits_different']} bits different."
    )
    for failure in found["failures"]:
        print(f"FAILED {failure}")


if __name__ == "__main__":
    sys.exit(main())
