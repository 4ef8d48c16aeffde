"""One chart of a page, and the formatting of texts in charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chart:
    """A figure in plotly's format with its texts; `about` is the alternative text for screen readers."""

    key: str
    title: str
    note: str
    about: str
    figure: dict[str, Any]
    wide: bool = False

    @property
    def positive(self) -> bool:
        """Whether a logarithmic scale can show it: lines over positive values."""
        layout = self.figure["layout"]
        if layout.get("hovermode") != "x unified" or layout["yaxis"].get("tickformat") == ".0%":
            return False
        lines = [t for t in self.figure["data"] if t["type"] == "scatter" and t.get("mode") != "markers"]
        return bool(lines) and all(v is None or v > 0 for t in lines for v in t["y"])


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def clipped(name: str, length: int = 16) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"
