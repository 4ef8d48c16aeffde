"""python -m tests.fuzz --inputs 10000: many inputs at random, and what became of them."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

import fedstride
from tests import record
from tests.fuzz.law import Target, judge
from tests.fuzz.targets import TARGETS, share_of
from tests.record import Figures

HOME = str(Path(fedstride.__file__).parent)
MEMORY, PART = Path("/dev/shm"), 1000  # files need no disk; inputs at a time: Hypothesis remembers those before
Mistakes = dict[str, dict[str, str]]  # by what was raised and where: the shortest input that does it


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("--inputs", type=int, default=10000, help="in all, those in the file included")
    asked.add_argument("--only", default="", help="the targets whose names contain this")
    asked.add_argument("--seed", type=int, default=random.randrange(2**32), help="another one every time, unless given")
    asked.add_argument(
        "--json", type=Path, metavar="FILE", help="write the counts to this file, as 'fuzz', now and then"
    )
    asked.add_argument("--more", action="store_true", help="go on from what the file says")
    options = asked.parse_args()
    if MEMORY.is_dir():
        tempfile.tempdir = str(MEMORY)
    chosen = [t for t in TARGETS if options.only in t.name]
    found = record.read(options.json, "fuzz") if options.more else {}
    print(f"{options.inputs} inputs, --seed {options.seed}")
    for target in chosen:
        share, tried = share_of(target, options.inputs, chosen), found.get("targets", {}).get(target.name, {})
        for first in range(sum(tried.values()), share, PART):
            found = record.added(found, _figures(target, min(PART, share - first), first, options.seed))
            if options.json is not None:
                record.write(options.json, "fuzz", found)
        print(f"{target.name:<32}{json.dumps(found['targets'][target.name])}  {found['seconds']:.0f} s", flush=True)
    for what, example in found["unexpected"].items():
        print(f"\n{what}\n  input of {example['target']!r}: {example['input']}\n{example['traceback']}")
    print(f"{found['inputs']} inputs, {len(found['unexpected'])} unexpected exceptions")
    return 1 if found["unexpected"] else 0


def _figures(target: Target, inputs: int, first: int, seed: int) -> Figures:
    mistakes: Mistakes = {}
    start = time.perf_counter()
    counts = _tried(target, inputs, seed + first, mistakes)
    return {
        **record.about(),
        "seconds": round(time.perf_counter() - start),
        "inputs": sum(counts.values()),
        "seeds": [seed],
        "targets": {target.name: dict(counts)},
        "unexpected": mistakes,
    }


def _tried(target: Target, inputs: int, first: int, mistakes: Mistakes) -> Counter[str]:
    counts: Counter[str] = Counter(result=0, error=0)

    @seed(first)
    @settings(
        max_examples=inputs,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def law(value: Any) -> None:
        try:
            counts[judge(target, value)] += 1
        except Exception as error:
            counts["unexpected"] += 1
            shown, (what, last) = repr(value), _where(error)
            if what not in mistakes or len(shown) < len(mistakes[what]["input"]):
                mistakes[what] = {"target": target.name, "input": shown[:2000], "traceback": last}

    law()
    return counts


def _where(error: Exception) -> tuple[str, str]:
    """The kind of an exception with the last line of fedstride's that it passed; and the last lines of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(HOME)] or frames
    place = f"{own[-1].filename.removeprefix(HOME + '/')}:{own[-1].lineno}"
    said = "".join(traceback.format_exception_only(error)).strip()[:400]
    return f"{type(error).__name__} at {place}", "".join(traceback.format_list(own[-3:])) + said


if __name__ == "__main__":
    sys.exit(main())
