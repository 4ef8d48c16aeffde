"""python -m tests.fuzz --inputs 10000: many inputs at random, and what became of them."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

import fedstride
from tests.fuzz.law import Target, judge
from tests.fuzz.targets import TARGETS, share_of

HOME = str(Path(fedstride.__file__).parent)
Counts = dict[str, dict[str, int]]  # by target and outcome
Mistakes = dict[str, dict[str, str]]  # by what was raised and where: the shortest input that does it


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    asked.add_argument("--inputs", type=int, default=int(os.environ.get("FEDSTRIDE_FUZZ", 10000)), help="in all")
    asked.add_argument("--only", default="", help="the targets whose names contain this")
    asked.add_argument("--seed", type=int, default=random.randrange(2**32), help="another one every time, unless given")
    asked.add_argument("--json", type=Path, metavar="FILE", help="merge the counts into this file, under 'fuzz'")
    asked.add_argument("--more", action="store_true", help="add the counts to those in the file")
    options = asked.parse_args()
    chosen = [t for t in TARGETS if options.only in t.name]
    print(f"{options.inputs} inputs, --seed {options.seed}")
    counts: Counts = {}
    mistakes: Mistakes = {}
    start = time.perf_counter()
    for i, target in enumerate(chosen):
        share = share_of(target, options.inputs, chosen)
        counts[target.name] = dict(_tried(target, share, options.seed + i, mistakes))
        seconds = time.perf_counter() - start
        print(f"{target.name:<32}{json.dumps(counts[target.name])}  {seconds:.0f} s", flush=True)
    for what, example in mistakes.items():
        print(f"\n{what}\n  input of {example['target']!r}: {example['input']}\n{example['traceback']}")
    total = sum(sum(c.values()) for c in counts.values())
    print(f"{total} inputs, {len(mistakes)} unexpected exceptions")
    if options.json is not None:
        kept = json.loads(options.json.read_text()) if options.json.exists() else {}
        before = kept.get("fuzz", {}) if options.more else {}
        found = {
            "inputs": total + before.get("inputs", 0),
            "seeds": [*before.get("seeds", []), options.seed],
            "targets": _added(before.get("targets", {}), counts),
            "unexpected": {**before.get("unexpected", {}), **mistakes},
        }
        options.json.write_text(json.dumps({**kept, "fuzz": found}, indent=2) + "\n")
    return 1 if mistakes else 0


def _added(one: Counts, other: Counts) -> Counts:
    return {name: dict(Counter(one.get(name)) + Counter(other.get(name))) for name in {**one, **other}}


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
