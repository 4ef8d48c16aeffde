"""Everything that takes input from outside."""

from __future__ import annotations

from tests.fuzz import arguments, configs, files, messages, runs
from tests.fuzz.law import Target

TARGETS = [*configs.TARGETS, *files.TARGETS, *messages.TARGETS, *arguments.TARGETS, *runs.TARGETS]


def share_of(target: Target, inputs: int, among: list[Target] = TARGETS) -> int:
    """How many of the inputs a target gets."""
    return -(-inputs * target.weight // sum(t.weight for t in among))
