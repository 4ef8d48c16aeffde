"""Try every mutant and print which test and which law noticed: python -m tests.mutants [--only TEXT] [--page FILE]."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.mutant import SOURCE, Mutant
from tests.mutants.table import MUTANTS

ROOT = SOURCE.parents[1]
LIMIT = 300  # seconds for one mutant, after which it counts as not noticed


def attempt(mutant: Mutant, copy: Path) -> dict[str, str | None]:
    """Return the test and the law that noticed."""
    mutant.apply(copy / "fedstride")
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.mutants.child", str(copy), mutant.tests, mutant.laws]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
        found: dict[str, str | None] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        found = {"test": None, "law": None}
    except (json.JSONDecodeError, IndexError):
        raise SystemExit(
            f"{mutant.name}: the tests could not run\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        ) from None
    finally:
        mutant.undo(copy / "fedstride")
    return found


def shown(text: str | None) -> str:
    return "NOT NOTICED" if text is None else text.removeprefix("tests/").replace("|", "\\|")


def page(rows: list[tuple[Mutant, dict[str, str | None]]]) -> str:
    lines = [
        "# Mutants\n",
        "Each row is a copy of the source with one formula broken, the first test that noticed, and the first law of",
        f"[`fedstride verify`](what-we-check.md) that was broken. `make test-mutants` wrote this page: {len(rows)} mutants,",
        f"{sum(f['test'] is not None for _, f in rows)} noticed by a test, {sum(f['law'] is not None for _, f in rows)} by a law.",
        "Mutants without a law are not in an update rule.\n",
        "| file | what is wrong | test | law |",
        "|---|---|---|---|",
    ]
    for mutant, found in rows:
        law = shown(found["law"]) if mutant.laws else ""
        lines.append(f"| `{mutant.file}` | {mutant.name} | {shown(found['test'])} | {law} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name or file contains this text")
    parser.add_argument("--page", type=Path, help="where to write the table")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only.lower() in f"{m.file} {m.name}".lower()]
    rows, survived = [], 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(SOURCE, copy / "fedstride", ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            start = time.monotonic()
            found = attempt(mutant, copy)
            lost = found["test"] is None or (bool(mutant.laws) and found["law"] is None)
            survived += lost
            rows.append((mutant, found))
            print(
                f"{'SURVIVES' if lost else 'noticed ':8} {mutant.file}: {mutant.name} ({time.monotonic() - start:.0f} s)"
            )
            print(
                f"         test: {shown(found['test'])}\n         law:  {shown(found['law']) if mutant.laws else '-'}",
                flush=True,
            )
    if options.page is not None:
        options.page.write_text(page(rows))
    print(f"{len(rows)} mutants, {survived} survive")
    return 1 if survived else 0


if __name__ == "__main__":
    raise SystemExit(main())
