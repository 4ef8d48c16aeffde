"""Descriptions of data in a few lines, for people."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Protocol

from fedstride.core.batch import Tree, described, mapped


class Named(Protocol):
    """A federation, as far as it is described."""

    @property
    def sizes(self) -> Sequence[int]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


def federation_text(clients: Named, *more: str) -> str:
    """Describe clients and their sizes, and add further lines."""
    sizes = clients.sizes
    named = f": {listed(clients.names)}" if clients.names else ""
    lines = [
        f"{type(clients).__name__} of {counted(len(sizes), 'client')}{named}",
        f"samples  {spread_of(sizes)}",
        *more,
    ]
    classes = [f"classes  {len(clients.classes)} ({listed(clients.classes)})"] if clients.classes else []
    return "\n  ".join([*lines, *classes])


def spread_of(sizes: Sequence[int]) -> str:
    if min(sizes) == max(sizes):
        return f"{sizes[0]:,} each, in total {sum(sizes):,}"
    return f"min {min(sizes):,}, median {median(sizes):,.0f}, max {max(sizes):,}, in total {sum(sizes):,}"


def structure_of(batch: Tree) -> str:
    """Describe one sample of a batch."""
    one = mapped(lambda v: v[0], batch)
    if isinstance(one, tuple | list) and len(one) == 2:
        return f"inputs {described(one[0])}, targets {described(one[1])}"
    return described(one)


def listed(names: Sequence[str], most: int = 6) -> str:
    """List the first names."""
    return ", ".join([*map(str, names[:most]), *(["..."] if len(names) > most else [])])


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
