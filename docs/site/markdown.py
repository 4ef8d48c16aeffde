"""Small pieces of Markdown: tables and their cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1]


def cell(text: object) -> str:
    """Return text for a cell of a table."""
    return " ".join(str(text).replace("|", "\\|").split())


def plain(text: str) -> str:
    """Return a docstring's text on one line, with characters that Markdown would interpret escaped, except in code."""
    pieces = " ".join(text.split()).split("`")
    escaped = [
        piece if i % 2 else re.sub(r"([*_\[\]])", r"\\\1", piece).replace("<", "&lt;") for i, piece in enumerate(pieces)
    ]
    return "`".join(escaped)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table, or nothing if it has no rows."""
    lines = ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines, ""]) if lines else ""


def rows(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table of a page under docs whose first line starts with this."""
    lines = (DOCS / page).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(head)) + 2
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("|")), len(lines))
    return [[text.strip() for text in line.strip("|").split(" | ")] for line in lines[start:end]]
