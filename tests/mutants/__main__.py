"""Try every mutant and print which test and which law noticed: python -m tests.mutants [--only TEXT] [--page FILE].

Mutants run in forks of this process, which has imported torch and pytest already and never imports fedstride.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import hypothesis  # noqa: F401
import numpy  # noqa: F401
import torch._dynamo  # noqa: F401 - what optimizers of torch import at first use

from tests.mutants.child import outcome
from tests.mutants.mutant import SOURCE, Mutant
from tests.mutants.table import MUTANTS

LIMIT = 600  # seconds for one mutant, after which it counts as not noticed
Found = dict[str, str | None]


def start(mutant: Mutant, copy: Path) -> int:
    """Fork a process that tries a mutant in a copy of the source, and return its id."""
    mutant.apply(copy / "fedstride")
    child = os.fork()
    if child:
        return child
    signal.alarm(LIMIT)
    log = os.open(copy / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        (copy / "found").write_text(json.dumps(outcome(copy, mutant.tests, mutant.laws)))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def finish(mutant: Mutant, copy: Path, status: int) -> Found:
    """Read what a process found, and restore its copy of the source."""
    mutant.undo(copy / "fedstride")
    if os.WIFSIGNALED(status):
        return {"test": None, "law": None}
    if status:
        raise SystemExit(f"{mutant.file}: {mutant.name} could not be tried\n{(copy / 'log').read_text()[-4000:]}")
    found: Found = json.loads((copy / "found").read_text())
    return found


def tried(mutants: list[Mutant], workers: int) -> Iterator[tuple[Mutant, Found]]:
    """Yield what noticed each mutant, as they finish."""
    left, running = list(reversed(mutants)), dict[int, tuple[Mutant, Path]]()
    with tempfile.TemporaryDirectory() as folder:
        free = [Path(folder) / str(i) for i in range(workers)]
        for copy in free:
            shutil.copytree(SOURCE, copy / "fedstride")
        while left or running:
            while left and free:
                mutant, copy = left.pop(), free.pop()
                running[start(mutant, copy)] = mutant, copy
            child, status = os.wait()
            mutant, copy = running.pop(child)
            yield mutant, finish(mutant, copy, status)
            free.append(copy)


def shown(text: str | None) -> str:
    return "NOT NOTICED" if text is None else text.removeprefix("tests/").replace("|", "\\|")


def page(rows: list[tuple[Mutant, Found]]) -> str:
    tests, laws = (sum(found[kind] is not None for _, found in rows) for kind in ("test", "law"))
    lines = [
        "# Mutants\n",
        "Each row is a copy of the source with one formula broken, the first of the selected tests that failed, and the first law of",
        f"[`fedstride verify`](what-we-check.md) that was broken. `make test-mutants` renews this page: {len(rows)} mutants, {tests} of",
        f"them noticed by a test and {laws} by a law. Mutants without a law are not in the formula of an update rule.\n",
        "| file | what is wrong | test | law |",
        "|---|---|---|---|",
    ]
    for mutant, found in rows:
        law = shown(found["law"]) if mutant.laws else ""
        lines.append(f"| {mutant.file} | {mutant.name} | {shown(found['test'])} | {law} |")
    return "\n".join(lines) + "\n"


def told(path: Path, mutants: list[Mutant]) -> dict[Mutant, Found]:
    """Return what an earlier page tells about mutants."""
    found, lines = dict[Mutant, Found](), path.read_text().splitlines() if path.exists() else []
    for mutant in mutants:
        head = f"| {mutant.file} | {mutant.name} | "
        for line in lines:
            if line.startswith(head):
                cells = line.removeprefix(head).removesuffix(" |").partition(" | ")[::2]
                test, law = (None if cell in ("", shown(None)) else cell.replace("\\|", "|") for cell in cells)
                found[mutant] = {"test": test, "law": law}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="mutants whose name or file contains this text")
    parser.add_argument("--page", type=Path, help="where to write the table; it keeps the rows of other mutants")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only.lower() in f"{m.file}: {m.name}".lower()]
    others = [] if options.page is None else [m for m in MUTANTS if m not in chosen]
    results, survived = {} if options.page is None else told(options.page, others), 0
    for mutant, found in tried(chosen, options.workers):
        results[mutant] = found
        lost = found["test"] is None or (bool(mutant.laws) and found["law"] is None)
        survived += lost
        print(f"{'SURVIVES' if lost else 'noticed '} {mutant.file}: {mutant.name}")
        print(
            f"         test: {shown(found['test'])}\n         law:  {shown(found['law']) if mutant.laws else '-'}",
            flush=True,
        )
        if options.page is not None:
            options.page.write_text(page([(m, results[m]) for m in MUTANTS if m in results]))
    print(f"{len(chosen)} mutants, {survived} survive")
    return 1 if survived else 0


if __name__ == "__main__":
    os.chdir(SOURCE.parents[1])
    raise SystemExit(main())
