"""Worker: computes the uploads of chunks of clients, with its own copies of the model and an oracle."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedstride.client.chunk import Chunk, Samples, Spans
from fedstride.client.context import Context
from fedstride.client.exchange import Exchange, Upload
from fedstride.core.batch import Batch, leaves, moved, selected
from fedstride.core.errors import FedstrideError
from fedstride.core.model import Replica, likes_channels_last
from fedstride.core.normalise import INPUTS, scaled, scaled_by_itself
from fedstride.core.pooling import can_pool_first, pool_first
from fedstride.core.rows import Col, Rows, State, Vec
from fedstride.data.clients import TensorClient
from fedstride.data.federation import Lazy
from fedstride.engine import processor
from fedstride.engine.protocol import Order, Task
from fedstride.oracle.choice import Case, choose

SPAN = 256  # samples per client up to which computing a Gram matrix pays off
SPAN_NUMBERS = 2**25  # entries of all clients' Gram matrices together, which stay in memory
SCALED_NUMBERS = 2**27  # entries of all clients' inputs together, up to which normalised copies are kept


@dataclass(frozen=True)
class Scaled:
    """Samples whose inputs are normalised when they are taken."""

    samples: Samples
    scaling: Vec

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, index: Tensor | None = None) -> Batch:
        inputs, targets = self.samples.take(index)
        return scaled(inputs, self.scaling), targets


@dataclass(frozen=True)
class Kept:
    """The normalised samples of a client, and the inputs and scaling that they were computed from."""

    inputs: Tensor
    version: int
    scaling: Vec
    samples: TensorClient

    def belongs_to(self, inputs: Tensor, scaling: Vec) -> bool:
        same = inputs is self.inputs and inputs._version == self.version
        return same and (scaling is self.scaling or torch.equal(scaling, self.scaling))


class Worker:
    """Executes orders for chunks of clients. Threads may share it: each has its own replica of the model."""

    def __init__(self, task: Task, exchanges: Mapping[str, Exchange], oracle: str = "auto", chunk: int | None = None):
        self.task, self.exchanges = task, exchanges
        replica = Replica(task.model, task.moving)
        self.device = replica.device
        client, (inputs, targets) = self._largest_batch()
        case = Case(task.model, task.loss, (inputs, targets), task.random, task.moving, task.contrast, task.mixed)
        try:
            self.choice = choose(case, oracle, chunk)
        except FedstrideError:
            raise
        except Exception as error:
            error.add_note(f"fedstride: before the first round, on a batch of client {client}, the largest")
            raise
        few = selected(inputs, slice(2))
        self.channels_last = self.choice.oracle == "loop" and likes_channels_last(task.model, few)
        outputs_only = self.choice.form is None and not task.contrast  # a contrast also reads features
        self.pools_first = outputs_only and can_pool_first(task.model, few)
        self.spans: Spans | None = {} if self._few_samples() else None
        numbers = sum(task.clients.sizes) * sum(v[:1].numel() for v in leaves(inputs))
        self.kept: dict[int, Kept] | None = {} if numbers <= SCALED_NUMBERS else None
        self.here = threading.local()
        self.lock = threading.Lock()
        self.default = torch.get_default_device()

    def about(self) -> dict[str, Any]:
        about = {**self.choice.about(), "channels_last": self.channels_last}
        limited = self.task.mixed and self.device.type == "cpu" and processor.bfloat16_limit()
        return {**about, processor.LIMIT: limited} if limited else about

    def work(
        self,
        order: Order,
        members: Sequence[tuple[int, int]],
        samples: Sequence[Samples],
        memory: State,
        stats: Rows | None,
    ) -> tuple[Upload, Rows | None]:
        """Return the upload of a chunk of (client, steps) pairs, and its statistics if buffers="local"."""
        task, clients = self.task, tuple(c for c, _ in members)
        sizes = [len(s) for s in samples]
        if INPUTS in order.broadcast:
            scaling = order.broadcast[INPUTS]
            samples = [self._scaled(c, s, scaling) for c, s in zip(clients, samples, strict=True)]
        x, replica = order.x, self._replica()
        context = context_of(task, order, members, sizes, tuple(replica.shapes))
        chunk = Chunk(
            context,
            samples,
            replica,
            task.loss,
            task.reduction,
            task.batch_size,
            task.random,
            stats=stats,
            buffers=task.buffers,
            personal=task.personal,
            choice=self.choice,
            spans=self.spans,
        )
        replica.train()
        with self._thread_state():
            upload = self.exchanges[order.kind].work(chunk, x, memory)
        return upload, chunk.stats if task.buffers == "local" else None

    def outputs(self, x: Vec, stats: Vec, batch: Batch, scaling: Vec | None = None) -> tuple[Any, Any]:
        """Return a model's outputs for a batch, and the targets."""
        replica = self._replica()
        replica.bind(x)
        replica.bind_stats(stats)
        replica.module.eval()
        inputs, targets = (moved(part, replica.device) for part in batch)
        inputs = inputs if scaling is None else scaled(inputs, scaling)
        with self._thread_state(), torch.no_grad():
            return replica(inputs), targets

    def forget(self, chunks: set[tuple[int, ...]]) -> None:
        """Delete the spans of all chunks but this round's; those of single clients stay."""
        spans = self.spans or {}
        for clients in list(spans):
            if len(clients) > 1 and clients not in chunks:
                del spans[clients]

    def _largest_batch(self) -> tuple[int, Batch]:
        task = self.task
        sizes = task.clients.sizes
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        most = sizes[largest] if task.full else min(sizes[largest], task.batch_size or sizes[largest])
        inputs, targets = task.clients[largest].take(torch.arange(most, device="cpu"))
        inputs = (
            scaled_by_itself(inputs, task.normalise) if task.normalise else inputs
        )  # vmap is tested on these values
        return largest, (moved(inputs, self.device), moved(targets, self.device))

    def _scaled(self, client: int, samples: Samples, scaling: Vec) -> Samples:
        """Normalise samples. Those of clients in memory are cached, because spans identify samples by their tensors."""
        if not isinstance(samples, TensorClient):
            return Scaled(samples, scaling)
        kept = None if self.kept is None else self.kept.get(client)
        if kept is not None and kept.belongs_to(samples.inputs, scaling):
            return kept.samples
        made = TensorClient(scaled(samples.inputs, scaling), samples.targets)
        if self.kept is not None and not isinstance(self.task.clients, Lazy):
            self.kept[client] = Kept(samples.inputs, samples.inputs._version, scaling, made)
        return made

    def _few_samples(self) -> bool:
        """Whether to solve full-batch problems of wide linear models in the span of their samples."""
        form, sizes, batch = self.choice.form, self.task.clients.sizes, self.task.batch_size
        if form is None or form.hidden or (batch is not None and batch < max(sizes)):
            return False
        if isinstance(self.task.clients, Lazy) or not isinstance(self.task.clients[0], TensorClient):
            return False  # the samples may differ each time they are read
        return 2 * max(sizes) <= form.inputs and max(sizes) <= SPAN and sum(n * n for n in sizes) <= SPAN_NUMBERS

    @contextmanager
    def _thread_state(self) -> Iterator[None]:
        """Set torch's thread-local state: gradients on, the user's default device, and mixed precision."""
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            if self.default.type != "cpu":  # a device context is slow, so it is entered only if needed
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
                if self.pools_first:
                    pool_first(self.here.replica.module)
        replica: Replica = self.here.replica
        return replica


def context_of(
    task: Task,
    order: Order,
    members: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    shapes: tuple[torch.Size, ...] = (),
) -> Context:
    """Return the context of (client, steps) pairs, whose clients have these numbers of samples."""
    size, most = _col(order.x, sizes), task.batch_size
    return Context(
        seed=task.seed,
        round=order.round,
        rounds=task.rounds,
        clients=tuple(client for client, _ in members),
        steps=tuple(tau for _, tau in members),
        size=size,
        batch=size if most is None else size.clamp(max=most),
        broadcast=order.broadcast,
        shapes=shapes,
        call=order.call,
    )


def _col(like: Tensor, values: Sequence[int]) -> Col:
    return like.new_tensor(values)[:, None]
