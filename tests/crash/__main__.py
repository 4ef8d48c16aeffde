"""python -m tests.crash --kills 100 --seed 0 [--json FILE]: the long form of test_crash.py."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests import record
from tests.crash.harness import LOADED, PROCESSES, Trial, at_random, endure
from tests.crash.scenario import ALGORITHMS, draw
from tests.record import Figures

SLOW = ("sklearn.datasets", "sklearn.model_selection", "torch._dynamo", "dp_accounting")  # to load, and asked for late


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="in all, those in the file included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the result to this file, as 'crash', now and then"
    )
    parser.add_argument("--more", action="store_true", help="go on from what the file says")
    options = parser.parse_args()
    PROCESSES.set_forkserver_preload([*LOADED, *SLOW])
    found = record.read(options.json, "crash") if options.more else {}
    while found.get("kills", 0) < options.kills and not found.get("failures"):
        found = record.added(found, _suffer(options.kills - found.get("kills", 0), options.seed, found.get("runs", 0)))
        print(f"{found['kills']} kills in {found['runs']} runs, {found['seconds']} s", flush=True)
        if options.json:
            record.write(options.json, "crash", found)
    _show(found)
    return 1 if found["failures"] else 0


def _suffer(kills: int, seed: int, first: int) -> Figures:
    """Ten runs, or as many as it takes, killed and resumed; all algorithms in turn, in a random order."""
    names, trials, failures, start = list(ALGORITHMS), list[Trial](), list[str](), time.perf_counter()
    Random(seed).shuffle(names)
    suffered, used = 0, list[str]()
    for number in range(first, first + 10):
        if suffered >= kills:
            break
        random = Random(f"{seed}/{number}")
        used.append(names[number % len(names)])
        scenario = draw(used[-1], random)
        most = min(random.randint(3, 9), kills - suffered)
        with tempfile.TemporaryDirectory(prefix="fedstride-crash-") as home:
            trials.append(endure(scenario, Path(home), random, at_random(random, most)))
        failures += [f"{scenario}, killed at {trials[-1].kills}: {failure}" for failure in trials[-1].failures]
        suffered += len(trials[-1].kills)
    deaths = [kill for trial in trials for kill in trial.kills]
    return {
        **record.about(),
        "seeds": [seed],
        "seconds": round(time.perf_counter() - start),
        "algorithms": used,
        "runs": len(trials),
        "kills": suffered,
        "survived": sum(len(trial.kills) for trial in trials if not trial.failures),
        "moments": dict(sorted(Counter(moment for moment, _ in deaths).items())),
        "phases": dict(sorted(Counter(phase for _, phase in deaths).items())),
        "compared": sum(trial.compared for trial in trials),
        "bits_different": sum(trial.different for trial in trials),
        "failures": failures,
    }


def _show(found: Figures) -> None:
    for title in ("moments", "phases"):
        print(f"{title} of the kills:")
        for name, count in found[title].items():
            print(f"{count:5}  {name}")
    print(
        f"{found['kills']} kills in {found['runs']} runs of {len(found['algorithms'])} algorithms, {found['survived']} survived; "
        f"{found['compared']} results compared, {found['bits_different']} bits different."
    )
    for failure in found["failures"]:
        print(f"FAILED {failure}")


if __name__ == "__main__":
    sys.exit(main())
