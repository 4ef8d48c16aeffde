"""The local engine: clients on one machine, in worker threads with one intra-op thread each.

The bits of a result depend neither on the number of workers nor on who finishes first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstride.client.plan import Plan
from fedstride.client.site import Samples, Site
from fedstride.engine.protocol import Reply, Task
from fedstride.engine.store import Store
from fedstride.errors import InvalidInput
from fedstride.losses import correct
from fedstride.model import Replica
from fedstride.rows import Col, State, Vec
from fedstride.wire import WeightedMean
from fedstride.work import Upload, Work

EVALUATION_CHUNK = 1000  # samples; fixed, so that the bits are


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _col(like: Tensor, values: Sequence[int]) -> Col:
    return like.new_tensor(values)[:, None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums split over threads would depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Local:
    """Threads on this machine."""

    workers: int | None = None  # None: one per core
    chunk: int = 1  # clients that share a matrix of rows

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("chunk", self.chunk)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(f"Local: {name}={value!r} is not usable; expected a whole number >= 1.")

    def open(self, task: Task, fresh: Callable[[Vec], State]) -> LocalClients:
        return LocalClients(self, task, fresh)


class LocalClients:
    def __init__(self, engine: Local, task: Task, fresh: Callable[[Vec], State]) -> None:
        self.task, self.chunk = task, engine.chunk
        self.store = Store(fresh)
        self.statistics = Store(lambda stats: {"stats": stats})
        self.here = threading.local()
        self.lock = threading.Lock()
        # Dropout draws from one generator per process: such models take one worker, for the sake of the bits.
        on_cpu = next(task.model.parameters()).device.type == "cpu"
        workers = 1 if task.random or not on_cpu else engine.workers or cores()
        self.pool = ThreadPoolExecutor(workers, "fedstride", initializer=torch.set_num_threads, initargs=(1,))
        self.default = torch.get_default_device()

    def exchange(
        self, work: Work, x: Vec, stats: Vec, broadcast: State, round: int, cohort: Sequence[tuple[int, int]]
    ) -> Reply:
        total, uploads = WeightedMean(), dict[int, Upload]()
        places: dict[int, tuple[int, int]] = {}  # position in the cohort -> (chunk, row)

        def one(number: int, positions: list[int]) -> None:
            clients = [cohort[p][0] for p in positions]
            try:
                with self._default_device():
                    upload = self._work(work, x, stats, broadcast, round, [cohort[p] for p in positions])
            except Exception as error:
                error.add_note(f"fedstride: in round {round + 1}, while working for client(s) {clients}")
                raise
            with self.lock:
                uploads[number] = Upload({}, upload.metrics, {}, upload.bytes)
                self.store.stage(clients, upload.memory)
                for row, position in enumerate(positions):
                    places[position] = number, row
                    fields = {name: v[row] for name, v in upload.fields.items()}
                    total.add(position, self.task.weights[cohort[position][0]], fields)

        jobs = [self.pool.submit(one, i, chunk) for i, chunk in enumerate(self._chunks(cohort))]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
        fields, weight = total.finish()
        order = [places[p] for p in range(len(cohort))]
        names = uploads[0].metrics
        metrics = {name: torch.cat([uploads[i].metrics[name][row] for i, row in order]) for name in names}
        return Reply(fields, weight, metrics, sum(sum(u.bytes) for u in uploads.values()))

    def commit(self) -> None:
        self.store.commit()
        self.statistics.commit()

    def evaluate(self, x: Vec, stats: Vec, test: Samples) -> tuple[float, float | None]:
        n, size = len(test), EVALUATION_CHUNK
        parts = [torch.arange(i, min(i + size, n), device="cpu") for i in range(0, n, size)]
        results = list(self.pool.map(lambda index: self._outputs(x, stats, test.take(index)), parts))
        output, targets = (torch.cat(part) for part in zip(*results, strict=True))
        right = correct(output, targets)
        return float(self.task.loss(output, targets)), None if right is None else float(right) / targets.numel()

    def state(self) -> dict[str, Tensor]:
        kept = {f"memory/{k}": v for k, v in self.store.state().items()}
        return kept | {f"statistics/{k}": v for k, v in self.statistics.state().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        device = next(self.task.model.parameters()).device
        for prefix, store in (("memory/", self.store), ("statistics/", self.statistics)):
            part = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            store.restore(part, lambda v: v.to(device))

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def _chunks(self, cohort: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        for i in range(0, len(cohort), self.chunk):
            yield sorted(range(i, min(i + self.chunk, len(cohort))), key=lambda p: -cohort[p][1])

    def _work(
        self, work: Work, x: Vec, stats: Vec, broadcast: State, round: int, chunk: Sequence[tuple[int, int]]
    ) -> Upload:
        task, clients = self.task, tuple(c for c, _ in chunk)
        sizes = [len(task.clients[c]) for c in clients]
        batch = [n if task.batch_size is None else min(n, task.batch_size) for n in sizes]
        steps = tuple(tau for _, tau in chunk)
        site = Site(
            Plan(task.seed, round, task.rounds, clients, steps, _col(x, sizes), _col(x, batch), broadcast),
            [task.clients[c] for c in clients],
            self._replica(),
            task.loss,
            task.reduction,
            task.batch_size,
            task.random,
            buffers=task.buffers,
        )
        if len(stats):
            site.stats = self.statistics.rows(clients, stats)["stats"]
        site.replica.train()
        upload = work(site, x, self.store.rows(clients, x))
        if site.stats is not None and task.buffers == "local":
            with self.lock:
                self.statistics.stage(clients, {"stats": site.stats})
        return upload

    def _outputs(self, x: Vec, stats: Vec, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        replica = self._replica()
        replica.bind(x)
        replica.bind_stats(stats)
        replica.module.eval()
        inputs, targets = (t.to(replica.device) for t in batch)
        with torch.no_grad(), self._default_device():
            return replica.module(inputs), targets

    def _default_device(self) -> AbstractContextManager[Any]:
        """Torch's default device is a thread's own; asked for only where it is not the CPU, because it costs."""
        return nullcontext() if self.default.type == "cpu" else self.default

    def _replica(self) -> Replica:
        if not hasattr(self.here, "replica"):
            task = self.task
            with self.lock:
                self.here.replica = Replica(task.model, task.moving, task.buffers == "frozen")
        replica: Replica = self.here.replica
        return replica
