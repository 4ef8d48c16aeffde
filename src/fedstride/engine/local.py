"""The local engine: clients on one machine, in worker threads with one intra-op thread each.

Results are bitwise the same for any number of workers, whichever finishes first.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstride.client.chunk import Samples
from fedstride.client.exchange import Exchange
from fedstride.core.errors import InvalidInput, nearest
from fedstride.core.model import Replica
from fedstride.core.rows import State, Vec
from fedstride.engine.admission import Admitted, Rules, admit, rules_of
from fedstride.engine.evaluation import Scores, evaluation_parts, score
from fedstride.engine.protocol import BEFORE, Contents, Order, Recall, Reply, Task
from fedstride.engine.store import store
from fedstride.engine.worker import Worker, context_of
from fedstride.engine.worker_count import WorkerCount
from fedstride.oracle.choice import ORACLES
from fedstride.wire import Aggregator

log = logging.getLogger("fedstride")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one intra-op thread, because the rounding of sums depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory: new pages for every activation cost up to a third of a CNN's time."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in other C libraries
        if mallopt is not None:
            for parameter, size in ((-1, 2**31 - 1), (-3, 2**25)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: maximum
                mallopt(parameter, size)


@dataclass(frozen=True)
class Local:
    """Runs clients in threads on this machine.

    Args:
        workers: number of threads. None: one per core, or fewer if timing shows that to be faster.
        oracle: "linear" or "mlp" (closed forms), "vmap" (clients together), "loop" (one after another), or "auto" (a fixed rule).
        chunk: largest number of clients that share a matrix of rows. None: chosen by the same rule.

    Raises:
        InvalidInput: if a number is not positive, or if the oracle is unknown.

    Example:
        >>> engine = fs.engine.Local(workers=1, oracle="loop")
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, engine=engine)
        >>> run.engine["oracle"]
        'loop'
    """

    workers: int | None = None
    oracle: str = "auto"
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("chunk", self.chunk)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(f"Local: {name}={value!r} is invalid: expected a whole number >= 1.")
        if self.oracle not in ORACLES:
            raise InvalidInput(f"Local: oracle={self.oracle!r} is unknown; {nearest(str(self.oracle), ORACLES)}")

    @property
    def leads(self) -> bool:
        return True

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> LocalClients:
        return LocalClients(self, task, exchanges, fresh)


@dataclass(frozen=True)
class Answer:
    """The answer of a chunk, without its aggregated fields.

    Python floats: small long-lived tensors fragment the allocator.
    """

    positions: list[int]  # positions of the admitted clients in the cohort
    metrics: dict[str, list[float]]
    lost: dict[int, str]
    refused: Counter[str]
    bytes: int


def answer(found: Admitted, positions: Sequence[int], size: int) -> Answer:
    """Return the answer of the clients at these positions of the cohort."""
    metrics = {name: v[:, 0].tolist() for name, v in found.metrics.items()}
    return Answer([positions[row] for row in found.rows], metrics, found.lost, found.refused, size)


class LocalClients:
    """The clients of a federation on this machine."""

    def __init__(
        self, engine: Local, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]
    ) -> None:
        self.task, self.exchanges = task, exchanges
        self.worker = Worker(task, exchanges, engine.oracle, engine.chunk)
        replica, many = Replica(task.model, task.moving), len(task.clients)
        self.origin, self.floor = replica.row(), replica.stats_floor()
        self.store = store(fresh, self.origin, many, task.folder, "memory", task.keep)
        self.statistics = store(
            lambda stats: {"stats": stats}, replica.stats(), many, task.folder, "statistics", task.keep
        )
        self.recalled = False  # whether recall() handed out the stores, which then close when they are released
        self._stores = {"memory": self.store, "statistics": self.statistics}
        self.lock = threading.Lock()
        # Dropout draws from one generator per process, so such models use one worker to be reproducible.
        most = 1 if task.random or self.worker.device.type != "cpu" else engine.workers or cores()
        choice = self.worker.choice
        self.worker_count = WorkerCount(most, fixed=engine.workers is not None or choice.heavy)
        self.pool = ThreadPoolExecutor(most, "fedstride", initializer=torch.set_num_threads, initargs=(1,))
        keep_freed_memory()
        log.info("local engine: %s oracle, chunks of %d: %s", choice.oracle, choice.chunk, choice.why)

    def about(self) -> dict[str, Any]:
        return {"engine": "local", **self.worker.about(), **self.worker_count.about()}

    def exchange(self, order: Order) -> Reply:
        total, parts = self.exchanges[order.kind].total(), self.parts(order)
        answers = self.answers(order, parts, total)
        return replied(answers, *total.finish())

    def rules(self, order: Order, members: Sequence[tuple[int, int]]) -> Rules:
        """Return what the uploads of these (client, steps) pairs must satisfy."""
        exchange = self.exchanges[order.kind]
        sizes = [self.task.clients.sizes[client] for client, _ in members] if exchange.known is not None else []
        known = {} if exchange.known is None else exchange.known(context_of(self.task, order, members, sizes))
        return rules_of(exchange, self.task.loss, self.floor, order.limits, known)

    def parts(self, order: Order) -> list[list[int]]:
        """Return the chunks of the cohort, as lists of positions."""
        return list(chunks(order.cohort, self.worker.choice.chunk))

    def answers(self, order: Order, parts: Sequence[list[int]], total: Aggregator) -> list[Answer]:
        """Compute chunks of the cohort, and add their admitted uploads to the total."""
        answers = dict[int, Answer]()
        cohort = order.cohort
        waiting = list(enumerate(parts))[::-1]

        def one(number: int, positions: list[int]) -> None:
            chunk = [cohort[p] for p in positions]
            clients = [client for client, _ in chunk]
            remembers = self.exchanges[order.kind].remembers
            try:
                samples = [self.task.clients[c] for c in clients]
                stats = self.statistics.rows(clients, order.stats)["stats"] if len(order.stats) else None
                memory = self.store.rows(clients, order.x) if remembers else {}
                upload, new_stats = self.worker.work(order, chunk, samples, memory, stats)
                found = admit(upload, clients, order.round, self.rules(order, chunk))
            except Exception as error:
                error.add_note(f"fedstride: in round {order.round + 1}, while training client(s) {clients}")
                raise
            rows = found.rows
            with self.lock:
                size = sum(n for row, n in enumerate(upload.bytes) if row not in upload.lost)
                answers[number] = answer(found, positions, size)
                kept = upload.memory if len(rows) == len(clients) else {k: v[rows] for k, v in upload.memory.items()}
                here = [clients[row] for row in rows]
                if remembers:
                    self.store.stage(here, kept)
                if new_stats is not None:
                    self.statistics.stage(here, {"stats": new_stats[rows]})
                weights = [self.task.weights[client] for client in here]
                _add(total, answers[number].positions, found.fields, weights)

        def lane() -> None:
            while waiting:
                try:
                    number, positions = waiting.pop()
                except IndexError:  # another lane took the last chunk
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
            waiting.clear()  # start no more chunks after an interruption
            raise
        steps = sum(cohort[p][1] for part in parts for p in part)
        if order.round != BEFORE:
            self.worker_count.record(order.round, time.perf_counter() - start, steps)
        self.worker.forget({tuple(cohort[p][0] for p in part) for part in parts})
        return [answers[i] for i in range(len(parts))]

    def commit(self) -> None:
        for kept in self._stores.values():
            kept.commit()

    def discard(self) -> None:
        for kept in self._stores.values():
            kept.discard()

    def evaluate(self, x: Vec, stats: Vec, test: Samples, scaling: Vec | None = None) -> Scores:
        results = self.outputs(x, stats, test, evaluation_parts(len(test)), scaling)
        return score(self.task.loss, self.task.metrics, results)

    def outputs(
        self, x: Vec, stats: Vec, test: Samples, parts: Sequence[Tensor], scaling: Vec | None = None
    ) -> list[tuple[Any, Any]]:
        """Return (outputs, targets) for parts of the test set."""
        return list(self.pool.map(lambda index: self.worker.outputs(x, stats, test.take(index), scaling), parts))

    def recall(self) -> Recall:
        self.recalled, memory, statistics = True, self.store, self.statistics  # the function must not hold the data
        return lambda client: {**memory.of(client), **statistics.of(client)}

    def state(self) -> dict[str, Tensor]:
        return {f"{prefix}/{k}": v for prefix, kept in self._stores.items() for k, v in kept.state().items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        for prefix, kept in self._stores.items():
            part = {k.removeprefix(f"{prefix}/"): v for k, v in state.items() if k.startswith(f"{prefix}/")}
            kept.restore(part, lambda v: v.to(self.worker.device))

    def remembers(self, client: int) -> bool:
        """Whether a client has memory of its own."""
        return any(kept.has(client) for kept in self._stores.values())

    def memory(self, client: int) -> dict[str, Tensor]:
        """Return the memory of a client, named as in state(); empty if it has none."""
        found: dict[str, Tensor] = {}
        for prefix, kept in self._stores.items():
            if kept.has(client):
                found |= {f"{prefix}/{client}/{k}": v[0] for k, v in kept.rows([client], self.origin).items()}
        return found

    def stage(self, memories: Mapping[str, Tensor]) -> None:
        """Stage new memory of clients, named as in state()."""
        states: dict[tuple[str, int], State] = {}
        for key, v in memories.items():
            prefix, client, name = key.split("/", 2)
            states.setdefault((prefix, int(client)), {})[name] = v.to(self.worker.device)[None]
        for (prefix, number), state in states.items():
            self._stores[prefix].stage([number], state)

    def forget(self, client: int) -> None:
        """Stage the deletion of a client's memory."""
        for kept in self._stores.values():
            kept.stage([client], {})

    def close(self, outcome: Contents | None = None) -> None:
        self.pool.shutdown(cancel_futures=True)
        if not self.recalled:
            for kept in self._stores.values():
                kept.close()

    def _run(self, lane: Callable[[], None], chunks: int) -> None:
        """Run as many lanes as there are workers or chunks; a single lane runs in the caller's thread."""
        lanes = min(self.worker_count.workers, chunks)
        if lanes == 1:
            lane()
            return
        jobs = [self.pool.submit(lane) for _ in range(lanes)]
        for job in jobs:
            job.exception()  # wait for all lanes before raising
        for job in jobs:
            job.result()


def replied(answers: Sequence[Answer], fields: State, weight: float) -> Reply:
    """Combine the answers of all chunks and the aggregate into the reply of a cohort."""
    positions = [p for a in answers for p in a.positions]
    order = sorted(range(len(positions)), key=positions.__getitem__)
    names = dict.fromkeys(name for a in answers for name in a.metrics)
    every = {name: [v for a in answers for v in a.metrics.get(name, ())] for name in names}
    sorted_rows = [[v[i] for i in order] for v in every.values()]
    metrics = dict(zip(names, torch.tensor(sorted_rows, dtype=torch.float64, device="cpu"), strict=True))
    lost = {client: why for a in answers for client, why in a.lost.items()}
    refused = sum((a.refused for a in answers), Counter[str]())
    return Reply(fields, weight, metrics, sum(a.bytes for a in answers), lost, refused)


def _add(total: Aggregator, positions: list[int], fields: State, weights: Sequence[float]) -> None:
    """Add rows at their positions in the cohort, consecutive ones together."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    if order != list(range(len(order))):
        positions, weights = sorted(positions), [weights[i] for i in order]
        fields = {name: v[order] for name, v in fields.items()}
    start = 0
    for end in range(1, len(positions) + 1):
        if end == len(positions) or positions[end] != positions[end - 1] + 1:
            part = fields if end - start == len(positions) else {name: v[start:end] for name, v in fields.items()}
            total.add_rows(positions[start], weights[start:end], part)
            start = end


def chunks(cohort: Sequence[tuple[int, int]], most: int) -> Iterator[list[int]]:
    """Yield the positions of a cohort in chunks of similar size; in each, clients with most steps come first."""
    n = len(cohort)
    count = -(-n // most)
    count = min(n, count + count % 2) if count > 1 else count  # even, so that two workers finish together
    for i in range(count):
        part = range(i * n // count, (i + 1) * n // count)
        yield sorted(part, key=lambda p: -cohort[p][1])
