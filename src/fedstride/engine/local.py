"""The local engine: clients on one machine, in worker threads with one intra-op thread each.

The bits of a result depend neither on the number of workers nor on who finishes first.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstride.client.plan import Plan
from fedstride.client.site import Samples, Site, Spans
from fedstride.data.federation import Lazy, TensorClient
from fedstride.engine.door import Admitted, admit
from fedstride.engine.pace import Pace
from fedstride.engine.protocol import Reply, Task
from fedstride.engine.store import store
from fedstride.errors import FedstrideError, InvalidInput, nearest
from fedstride.losses import correct
from fedstride.model import Replica, likes_channels_last
from fedstride.oracle.choice import ORACLES, Case, choose
from fedstride.rows import Col, State, Vec
from fedstride.wire import Aggregator, WeightedMean
from fedstride.work import Upload, Work

SPAN = 256  # most samples of a client whose Gram matrix is worth its making
SPAN_NUMBERS = 2**25  # of all clients' Gram matrices together: they are kept
EVALUATION_CHUNK = 1000  # samples; fixed, so that the bits are
log = logging.getLogger("fedstride")


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


def keep_freed_memory() -> None:
    """Tell glibc to keep what torch frees: fresh pages for every activation cost up to a third of a CNN's time."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            for parameter, size in ((-1, 2**31 - 1), (-3, 2**25)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: its largest
                mallopt(parameter, size)


@dataclass(frozen=True)
class Local:
    """Threads on this machine. `oracle` and `chunk` are chosen by a static rule, the number of workers by timing."""

    workers: int | None = None  # None: one per core, or fewer if that is faster
    oracle: str = "auto"  # or "linear" (closed form), "vmap" (clients together), "loop" (one after another)
    chunk: int | None = None  # most clients that share a matrix of rows; None: by the rule

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("chunk", self.chunk)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(f"Local: {name}={value!r} is not usable; expected a whole number >= 1.")
        if self.oracle not in ORACLES:
            raise InvalidInput(f"Local: oracle={self.oracle!r} is unknown; {nearest(str(self.oracle), ORACLES)}")

    def open(self, task: Task, fresh: Callable[[Vec], State]) -> LocalClients:
        return LocalClients(self, task, fresh)


class LocalClients:
    def __init__(self, engine: Local, task: Task, fresh: Callable[[Vec], State]) -> None:
        self.task = task
        replica = Replica(task.model, task.moving)
        client, (inputs, targets) = self._largest_batch(replica.device)
        case = Case(task.model, task.loss, (inputs, targets), task.random, task.moving, task.contrast, task.mixed)
        self.device = replica.device
        try:
            self.choice = choose(case, engine.oracle, engine.chunk)
        except FedstrideError:
            raise
        except Exception as error:
            error.add_note(f"fedstride: before the first round, on a batch of client {client}, the largest")
            raise
        self.channels_last = self.choice.oracle == "loop" and likes_channels_last(task.model, inputs[:2])
        many = len(task.clients)
        self.store = store(fresh, replica.row(), many, task.folder, "memory", task.keep)
        self.statistics = store(
            lambda stats: {"stats": stats}, replica.stats(), many, task.folder, "statistics", task.keep
        )
        self.spans: Spans | None = {} if self._few_samples() else None
        self.here = threading.local()
        self.lock = threading.Lock()
        # Dropout draws from one generator per process: such models take one worker, for the sake of the bits.
        most = 1 if task.random or self.device.type != "cpu" else engine.workers or cores()
        self.pace = Pace(most, fixed=engine.workers is not None or self.choice.heavy)
        self.pool = ThreadPoolExecutor(most, "fedstride", initializer=torch.set_num_threads, initargs=(1,))
        self.default = torch.get_default_device()
        keep_freed_memory()
        log.info("local engine: %s oracle, chunks of %d: %s", self.choice.oracle, self.choice.chunk, self.choice.why)

    def about(self) -> dict[str, Any]:
        return {"engine": "local", **self.choice.about(), "channels_last": self.channels_last, **self.pace.about()}

    def exchange(
        self,
        work: Work,
        x: Vec,
        stats: Vec,
        broadcast: State,
        round: int,
        cohort: Sequence[tuple[int, int]],
        limit: float = math.inf,
        total: Aggregator | None = None,
    ) -> Reply:
        aggregate = total or WeightedMean()
        answers = dict[int, tuple[Admitted, int]]()
        parts = list(chunks(cohort, self.choice.chunk))
        weights = [self.task.weights[client] for client, _ in cohort]
        waiting = list(enumerate(parts))[::-1]

        def one(number: int, positions: list[int]) -> None:
            clients = [cohort[p][0] for p in positions]
            try:
                with self._surroundings():
                    upload, new_stats = self._work(work, x, stats, broadcast, round, [cohort[p] for p in positions])
                    answer = admit(upload, clients, round, limit)
            except Exception as error:
                error.add_note(f"fedstride: in round {round + 1}, while working for client(s) {clients}")
                raise
            with self.lock:
                answers[number] = answer, sum(n for row, n in enumerate(upload.bytes) if row not in upload.lost)
                here = [clients[row] for row in answer.rows]
                kept = upload.memory
                if len(here) < len(clients):
                    kept = {k: v[answer.rows] for k, v in kept.items()}
                self.store.stage(here, kept)
                if new_stats is not None:
                    self.statistics.stage(here, {"stats": new_stats[answer.rows]})
                _add(aggregate, [positions[row] for row in answer.rows], answer.fields, weights)

        def lane() -> None:
            while waiting:
                try:
                    number, positions = waiting.pop()
                except IndexError:  # another lane was faster
                    return
                try:
                    one(number, positions)
                except BaseException:
                    waiting.clear()
                    raise

        start = time.perf_counter()
        try:
            self._run(lane, len(waiting))
        except BaseException:
            waiting.clear()  # an interrupted round ends with the chunks in work
            raise
        self.pace.took(round, time.perf_counter() - start, sum(tau for _, tau in cohort))
        fields, weight = aggregate.finish()
        done = [answers[i] for i in range(len(answers))]
        positions = [part[row] for part, (a, _) in zip(parts, done, strict=True) for row in a.rows]
        order = sorted(range(len(positions)), key=positions.__getitem__)
        metrics = {name: torch.cat([a.metrics[name] for a, _ in done])[:, 0] for name in done[0][0].metrics}
        if order != list(range(len(order))):
            metrics = {name: values[order] for name, values in metrics.items()}
        self._forget({tuple(cohort[p][0] for p in part) for part in parts})
        lost = {client: why for a, _ in done for client, why in a.lost.items()}
        refused = sum((a.refused for a, _ in done), Counter[str]())
        return Reply(fields, weight, metrics, sum(size for _, size in done), lost, refused)

    def commit(self) -> None:
        self.store.commit()
        self.statistics.commit()

    def discard(self) -> None:
        self.store.discard()
        self.statistics.discard()

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
        for prefix, kept in (("memory/", self.store), ("statistics/", self.statistics)):
            part = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            kept.restore(part, lambda v: v.to(self.device))

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.store.close()
        self.statistics.close()

    def _run(self, lane: Callable[[], None], chunks: int) -> None:
        """The work in as many lanes as are worth it; alone, in the caller's thread."""
        lanes = min(self.pace.workers, chunks)
        if lanes == 1:
            lane()
            return
        jobs = [self.pool.submit(lane) for _ in range(lanes)]
        for job in jobs:
            job.exception()  # all come to an end first
        for job in jobs:
            job.result()

    def _largest_batch(self, device: torch.device) -> tuple[int, tuple[Tensor, Tensor]]:
        task = self.task
        sizes = task.clients.sizes
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        most = sizes[largest] if task.full else min(sizes[largest], task.batch_size or sizes[largest])
        inputs, targets = task.clients[largest].take(torch.arange(most, device="cpu"))
        return largest, (inputs.to(device), targets.to(device))

    def _forget(self, chunks: set[tuple[int, ...]]) -> None:
        """Keep of the spans those of single clients and of this round's chunks."""
        spans = self.spans or {}
        for clients in list(spans):
            if len(clients) > 1 and clients not in chunks:
                del spans[clients]

    def _few_samples(self) -> bool:
        """True if the full-batch problems of wide linear models may be worked on in the span of their samples."""
        form, sizes, batch = self.choice.form, self.task.clients.sizes, self.task.batch_size
        if form is None or (batch is not None and batch < max(sizes)):
            return False
        if isinstance(self.task.clients, Lazy) or not isinstance(self.task.clients[0], TensorClient):
            return False  # samples that may be others at every look
        return 2 * max(sizes) <= form.inputs and max(sizes) <= SPAN and sum(n * n for n in sizes) <= SPAN_NUMBERS

    def _work(
        self, work: Work, x: Vec, stats: Vec, broadcast: State, round: int, chunk: Sequence[tuple[int, int]]
    ) -> tuple[Upload, Tensor | None]:
        """What the chunk uploads, and the statistics that stay with its clients, if any do."""
        task, clients = self.task, tuple(c for c, _ in chunk)
        samples = [task.clients[c] for c in clients]
        sizes = [len(s) for s in samples]
        batch = [n if task.batch_size is None else min(n, task.batch_size) for n in sizes]
        steps = tuple(tau for _, tau in chunk)
        replica = self._replica()
        shapes = tuple(replica.shapes)
        site = Site(
            Plan(task.seed, round, task.rounds, clients, steps, _col(x, sizes), _col(x, batch), broadcast, shapes),
            samples,
            replica,
            task.loss,
            task.reduction,
            task.batch_size,
            task.random,
            buffers=task.buffers,
            choice=self.choice,
            spans=self.spans,
        )
        if len(stats):
            site.stats = self.statistics.rows(clients, stats)["stats"]
        site.replica.train()
        upload = work(site, x, self.store.rows(clients, x))
        return upload, site.stats if task.buffers == "local" else None

    def _outputs(self, x: Vec, stats: Vec, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        replica = self._replica()
        replica.bind(x)
        replica.bind_stats(stats)
        replica.module.eval()
        inputs, targets = (t.to(replica.device) for t in batch)
        with self._surroundings(), torch.no_grad():
            return replica(inputs), targets

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """What is a thread's own in torch: gradients on, the default device and mixed precision as the user wants them."""
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            if self.default.type != "cpu":  # asked for only where it is needed, because it costs
                stack.enter_context(self.default)
            if self.task.mixed:
                stack.enter_context(torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False))
            yield

    def _replica(self) -> Replica:
        if not hasattr(self.here, "replica"):
            task = self.task
            with self.lock:
                self.here.replica = Replica(task.model, task.moving, task.buffers == "frozen")
                self.here.replica.channels_last = self.channels_last
        replica: Replica = self.here.replica
        return replica


def _add(total: Aggregator, positions: list[int], fields: State, weights: Sequence[float]) -> None:
    """Rows go to their positions in the cohort; neighbours together."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    if order != list(range(len(order))):
        positions, fields = sorted(positions), {name: v[order] for name, v in fields.items()}
    start = 0
    for end in range(1, len(positions) + 1):
        if end == len(positions) or positions[end] != positions[end - 1] + 1:
            part = fields if end - start == len(positions) else {name: v[start:end] for name, v in fields.items()}
            total.add_rows(positions[start], [weights[p] for p in positions[start:end]], part)
            start = end


def chunks(cohort: Sequence[tuple[int, int]], most: int) -> Iterator[list[int]]:
    """Positions in the cohort, in chunks of like size; in each, those with most steps first."""
    n = len(cohort)
    count = -(-n // most)
    for i in range(count):
        part = range(i * n // count, (i + 1) * n // count)
        yield sorted(part, key=lambda p: -cohort[p][1])
