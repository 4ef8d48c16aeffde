"""evaluate_every="auto": a fixed rule from sample counts, never from timing, for reproducibility."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import Sampler
from fedstride.client.chunk import Samples
from fedstride.core.capabilities import declared
from fedstride.core.errors import InvalidInput
from fedstride.core.rows import generator
from fedstride.engine import Task
from fedstride.training.validate import whole

SHARE = 10  # local work of a round for each forward pass of its evaluation
GRADIENT = 3  # forward passes that cost as much as a gradient
LOOKED_AT = 1000  # clients whose work is averaged, evenly spaced


def interval_of(
    given: Any,
    algorithm: Algorithm,
    task: Task,
    cohorts: Sampler,
    steps: Callable[[int, int], int],
    tests: Sequence[Samples],
) -> int:
    """Return the rounds between evaluations; "auto" = evaluations take at most a tenth of the local work, in passes over samples."""
    if not isinstance(given, str):
        return whole("evaluate_every", given)
    if given != "auto":
        raise InvalidInput(f'evaluate_every={given!r} is invalid: expected a whole number >= 1, or "auto".')
    sizes = task.clients.sizes
    some = range(0, len(sizes), math.ceil(len(sizes) / LOOKED_AT))
    work = sum(_work(algorithm, task, sizes[c], steps(0, c)) for c in some) / len(some)
    forwards = sum(len(test) for test in tests)
    return max(1, math.ceil(SHARE * forwards / (work * _participants(cohorts, sizes)) - 1e-9))


def _work(algorithm: Algorithm, task: Task, samples: int, steps: int) -> int:
    """Return the local work of a client in forward passes, without the trials of a line search, which are not known before."""
    rule: Any = algorithm.gradient
    by_components = declared(rule, "by_components")
    of_a_step = min(samples, getattr(rule, "block", 1) if by_components else task.batch_size or samples)
    steps += 0 if task.personal is None else task.personal.first
    at_the_start = samples if by_components or algorithm.exchanges_gradients else 0
    return GRADIENT * (steps * of_a_step + at_the_start)


def _participants(cohorts: Any, sizes: Sequence[int]) -> float:
    """Return the expected number of clients in a round."""
    if declared(cohorts, "sampling") == "poisson":
        return float(cohorts.p * len(sizes))
    size = getattr(cohorts, "size", None)
    return size if isinstance(size, int) else len(cohorts.draw(sizes, generator("evaluate_every")))
