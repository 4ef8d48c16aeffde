"""Description of a run: the line shown at its start, warnings about defaults, and the settings that are saved with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import Sampler, Uniform
from fedstride.core.losses import inner
from fedstride.data.describe import counted
from fedstride.training.setup import Setup

WITHHELD = "withheld"  # in place of the seeds of private runs
LOOKED_AT = 1000  # number of clients whose local steps are inspected
LARGE = 256  # samples per client above which one full-batch step per round is unusual
UNEQUAL = 10  # ratio of the clients' sizes above which a warning mentions uniform weights


def choices(setup: Setup) -> str:
    """Describe in one line what each round does: cohort, local steps, batch size and weights."""
    task, (low, high) = setup.task, steps_of(setup)
    number = counted(low, "local step") if low == high else f"{low} to {high} local steps"
    batch = "all of its samples" if task.batch_size is None else f"batches of {task.batch_size}"
    cohort = who(setup.sampler, len(setup.sizes))
    return (
        f"{counted(task.rounds, 'round')}, {cohort} in each; {number} per client, on {batch}; "
        f"{weighing(task.weights, setup.sizes)}" + ("; inputs scaled to size 1" if task.normalise == "scale" else "")
    )


def steps_of(setup: Setup) -> tuple[int, int]:
    """Return the smallest and the largest number of local steps in the first round."""
    steps = [setup.steps(0, client) for client in range(min(len(setup.sizes), LOOKED_AT))]
    return min(steps), max(steps)


def who(sampler: Sampler, clients: int) -> str:
    """Describe the cohorts."""
    if sampler == Uniform(clients):
        return "the only client" if clients == 1 else f"all {clients:,} clients"
    if isinstance(sampler, Uniform):
        return f"{sampler.size:,} of {clients:,} clients"
    return f"{sampler} of {clients:,} clients"


def weighing(weights: Sequence[float], sizes: Sequence[int]) -> str:
    """Describe the weights of the clients in every mean."""
    if len(set(weights)) == 1:
        return "equal weights"
    shares = [w / n for w, n in zip(weights, sizes, strict=True)]
    return "weights by samples" if max(shares) <= (1 + 1e-9) * min(shares) else "given weights"


def surprises(given: Mapping[str, Any], algorithm: Algorithm, sizes: Sequence[int]) -> list[str]:
    """Return warnings about defaults: one full-batch step of large clients, and equal weights of very unequal ones.

    Args:
        given: the arguments of fs.train().
        algorithm: its gradient estimator may not take batches, and privacy needs equal weights.
        sizes: number of samples per client.
    """
    found, small, large = [], min(sizes), max(sizes)
    no_steps = all(given[name] is None for name in ("local_steps", "epochs", "batch_size"))
    if no_steps and algorithm.gradient.batches and median(sizes) > LARGE:
        found.append(
            f"batch_size, local_steps and epochs are at their defaults: each client takes one step per round, on all of its "
            f"{median(sizes):,.0f} samples (median). Use batch_size=32 for one step per batch, or local_steps=1 to keep it."
        )
    if given["weights"] is None and algorithm.privacy is None and large > UNEQUAL * small:
        found.append(
            f"weights is at its default: all clients count the same, although they have {small:,} to {large:,} samples. Use "
            'weights="samples" to count samples, as FedAvg does, or weights="uniform" to keep it.'
        )
    return found


def settings_of(setup: Setup, parameters: int) -> dict[str, Any]:
    """Return the settings of a run for its folder and report, as far as they can be written as JSON."""
    task, options = setup.task, setup.options
    low, high = steps_of(setup)
    loss = inner(task.loss)
    more = {
        "stop": None if setup.stop is None else repr(setup.stop),
        "metrics": list(task.metrics) or None,
        "weight_decay": options.weight_decay or None,
        "clip_norm": options.clip_norm,
        "normalise": task.normalise or None,
        "precision": "bfloat16" if task.mixed else None,
    }
    return {
        "name": setup.algorithm.name,
        "algorithm": repr(setup.algorithm),
        "training": {
            "rounds": task.rounds,
            "cohort": str(setup.sampler),
            "local_steps": low if low == high else [low, high],
            "batch_size": task.batch_size,
            "weights": weighing(task.weights, setup.sizes),
            "loss": getattr(loss, "__name__", type(loss).__name__),
            "seed": task.seed if setup.algorithm.privacy is None else WITHHELD,
            "buffers": task.buffers,
            "evaluate_every": setup.evaluate_every,
            **{name: value for name, value in more.items() if value is not None},
        },
        "model": {"class": type(task.model).__name__, "parameters": parameters},
        "data": {
            "clients": len(setup.sizes),
            "samples": sum(setup.sizes),
            "test": [len(test) for test in setup.tests][:LOOKED_AT],
        },
    }
