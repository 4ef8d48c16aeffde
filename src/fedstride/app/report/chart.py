"""One chart of a page, and the formatting of texts in charts."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chart:
    """A figure with its texts; `about` is the alternative text for screen readers."""

    key: str
    title: str
    note: str
    about: str
    figure: dict[str, Any]
    wide: bool = False


def plain(text: object) -> str:
    """Escape text for plotly, whose labels interpret some HTML tags."""
    return html.escape(str(text))


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def clipped(name: str, length: int = 16) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
