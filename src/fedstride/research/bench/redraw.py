"""Draw the pictures of records again: python -m fedstride.research.bench.redraw docs/painless.json writes docs/painless.svg."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedstride.core.errors import InvalidInput
from fedstride.research.bench import show, show_painless


def redraw(path: Path) -> Path:
    """Write the picture of a record of `fedstride bench painless` or `bench speed` beside it, and return its path."""
    report = json.loads(path.read_text(encoding="utf-8"))
    drawn = {"ahead": show_painless.svg, "workloads": show.svg}
    found = [draw for key, draw in drawn.items() if key in report]
    if not found:
        raise InvalidInput(f"{path} is not a record of `fedstride bench painless` or `fedstride bench speed`.")
    picture = path.with_suffix(".svg")
    picture.write_text(found[0](report), encoding="utf-8")
    return picture


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(redraw(Path(name)))
