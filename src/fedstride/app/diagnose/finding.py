"""Findings, and the formatting of figures in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedstride.algorithm.recipes import RECIPES
from fedstride.app.diagnose.evidence import Evidence

SEVERITIES = ("cause", "watch", "fine", "unknown")


@dataclass(frozen=True)
class Finding:
    """A finding: what was measured, and what to try."""

    name: str
    severity: str  # one of SEVERITIES; unknown: the history has too little information
    says: str
    advice: tuple[str, ...] = ()


def number(value: float) -> str:
    return f"{value:.3g}"


def share(value: float) -> str:
    if 0 < abs(value) < 1e-4:
        return "less than 0.01 %"
    return f"{100 * value:.2g} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"


AVERAGE = "return an average of the iterates: fs.train(..., readout='average') or --set training.readout=average"


def instead(e: Evidence, old: Any, **new: float) -> str:
    """Suggest another argument, in command-line form if the run has a configuration."""
    rounded = {k: number(float(f"{v:.1g}")) for k, v in new.items()}
    words = ", ".join(f"{k}={v} instead of {_plain(old)}" for k, v in rounded.items())
    given = e.record.config.get("algorithm", {})
    if e.algorithm is None or not isinstance(given, dict) or given.get("name") not in RECIPES:
        return words
    arguments = {**{k: _plain(v) for k, v in given.items() if k != "name"}, **rounded}
    return f"{words}: --algorithm '{given['name']}({', '.join(f'{k}={v}' for k, v in arguments.items())})'"


def _plain(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value).lower()
