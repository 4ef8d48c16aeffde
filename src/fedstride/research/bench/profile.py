"""fedstride bench speed --profile: where the time of a client-step goes, and how far it is from its matrix products alone."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedstride.algorithm import recipes
from fedstride.core.losses import LOSSES
from fedstride.engine.local import Local, cores
from fedstride.research.bench.workloads import Workload
from fedstride.training.rounds import Event
from fedstride.training.train import train

KINDS = {  # by the names of torch's operations, the first match counts
    "products": r"b?a?d?d?b?mm_?$|addmv|addmm|convolution|rnn_layer|scaled_dot",
    "fetching and copies": r"index|gather|stack|cat$|copy|clone|contiguous|empty|zeros|ones|full|fill|arange|rand",
    "activations and loss": r"softmax|relu|threshold|gelu|tanh|sigmoid|exp|log|nll|scatter|pool|norm|amax|max|where|eq|ne",
    "update and sums": r"add|sub|mul|div|sum|mean|sqrt|pow|neg|square|foreach",
}
OTHER, PYTHON, WAITING = "other operations", "Python and dispatch", "waiting, and slower side by side"
ROUNDS = 5  # timed rounds, after one that is not
CALLS = 20  # calls of each product alone


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Times every operation of this thread, and keeps one example of every product with its number of calls.

    The clock is that of the thread's work on the processor, so that other programs do not count.
    """

    def __init__(self, cost: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cost = cost  # seconds that recording adds to an operation
        self.clear()

    def clear(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.products: dict[Any, tuple[Callable[[], Any], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        start = time.thread_time()
        found = func(*args, **kwargs)
        seconds = max(0.0, time.thread_time() - start - self.cost)
        kind = kind_of(func._overloadpacket.__name__)
        self.seconds[kind] += seconds
        if kind == "products":
            key = func, *((v.shape, v.stride()) if isinstance(v, Tensor) else str(v) for v in args)
            call, times = self.products.get(key, (lambda: func(*args, **kwargs), 0))
            self.products[key] = call, times + 1
        return found


def kind_of(operation: str) -> str:
    """Return the kind of an operation of torch, such as "bmm" or "index_select"."""
    return next((kind for kind, names in KINDS.items() if re.search(names, operation)), OTHER)


@dataclass(frozen=True)
class Profile:
    """Microseconds of a thread per client-step."""

    parts: dict[str, float]  # by kind of work; they sum to the total
    alone: float  # the same products, called again and again by as many threads
    by_hand: float  # a hand-written loop of plain SGD steps, as many clients at once as there are threads
    workers: int
    oracle: str
    gflops: float  # per second and thread, of the products alone

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def profile(workload: Workload) -> Profile:
    """Measure one workload: with one worker and a recorder, with one worker, and with all workers."""
    steps = workload.clients * workload.steps
    recorder = Recorder(_cost())
    with recorder:
        _seconds(workload, Local(workers=1), recorder.clear)
    one, _ = _seconds(workload, Local(workers=1), clock=time.thread_time)
    wall, about = _seconds(workload, Local(workers=cores()))  # fixed: the search for the best number takes more rounds
    workers = int(about["workers"])
    parts = {kind: recorder.seconds[kind] / ROUNDS for kind in (*KINDS, OTHER)}
    parts[PYTHON] = max(0.0, one - sum(parts.values()))
    parts[WAITING] = max(0.0, workers * wall - sum(parts.values()))
    alone = _alone(recorder, workers) / ROUNDS
    each = {kind: 1e6 * seconds / steps for kind, seconds in parts.items()}
    by_hand = 1e6 * statistics.median(_by_hand(workload, workers) for _ in range(ROUNDS))
    return Profile(each, 1e6 * alone / steps, by_hand, workers, about["oracle"], workload.flops() / alone / 1e9)


def _cost(calls: int = 500) -> float:
    """Return the seconds that recording adds to an operation: those of one that does nothing."""
    nothing = torch.empty(1)
    with Recorder() as recorder:
        for _ in range(calls):
            torch.ops.aten.alias(nothing)
    return float(sum(recorder.seconds.values())) / calls


def _seconds(
    workload: Workload,
    engine: Local,
    started: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, dict[str, Any]]:
    """Return the median seconds of a round after the first, and the description of the engine."""
    times = []

    def note(event: Event) -> None:
        times.append(clock())
        if event.round == 1:
            started()

    run = train(
        workload.build(),
        workload.loss,
        [workload.client(i) for i in range(workload.clients)],
        recipes.fedsls() if workload.algorithm == "fedsls" else getattr(recipes, workload.algorithm)(workload.lr),
        rounds=1 + ROUNDS,
        local_steps=workload.steps,
        batch_size=workload.batch,
        engine=engine,
        callbacks=[note],
    )
    return statistics.median(b - a for a, b in pairwise(times[1:])), run.engine


def _alone(recorder: Recorder, workers: int) -> float:
    """Return the seconds of all recorded products in one thread, while the others compute them too."""
    together = threading.Barrier(workers)

    def seconds(_: int) -> float:
        total = 0.0
        for call, times in recorder.products.values():
            call()
            together.wait()
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            total += times * (time.thread_time() - start) / CALLS
        return total

    with torch.no_grad(), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return statistics.mean(pool.map(seconds, range(workers)))


def _by_hand(workload: Workload, workers: int) -> float:
    """Return the seconds per client-step of a hand-written loop in one thread, while the others run it for other clients."""
    together, loss = threading.Barrier(workers), LOSSES[workload.loss]

    def seconds(client: int) -> float:
        model, (X, y), order = workload.build(), workload.client(client), workload.order(0, client)
        optimizer = torch.optim.SGD(model.parameters(), workload.lr)

        def step(index: Tensor) -> None:
            inputs, targets = (X, y) if workload.batch is None else (X[index], y[index])
            optimizer.zero_grad()
            torch.autograd.backward(loss(model(inputs), targets))
            optimizer.step()

        step(order[0])
        together.wait()
        start = time.perf_counter()
        for _ in range(workload.rounds):
            for index in order:
                step(index)
        return (time.perf_counter() - start) / (workload.rounds * len(order))

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return statistics.mean(pool.map(seconds, range(workers)))


def table(found: Profile) -> list[list[str]]:
    """Return the table, header first."""
    rows = [
        *found.parts.items(),
        ("total", found.total),
        (f"the products alone, at {found.gflops:.0f} GFLOP/s", found.alone),
        (f"a hand-written loop, {found.workers} clients at once", found.by_hand),
    ]
    header = ["time of a thread per client-step", "microseconds", "of the total"]
    return [header, *([name, f"{us:,.0f}", f"{us / found.total:.0%}"] for name, us in rows)]
