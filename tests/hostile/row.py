"""The outcome of an attack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """Whether fedstride held, and what was seen."""

    held: bool
    text: str
