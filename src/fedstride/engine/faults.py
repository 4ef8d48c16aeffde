"""Fault injection, for testing fault tolerance: an engine that damages or drops the uploads of another engine.

Faults are seeded by (seed, round, call of the round, client), so they do not depend on workers, chunks or resuming.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from fedstride.client.chunk import Chunk
from fedstride.client.exchange import Exchange, Upload, Work
from fedstride.core.errors import InvalidInput, not_negative, positive
from fedstride.core.rows import State, Vec, generator
from fedstride.engine import Clients, Engine, Task, engine
from fedstride.engine.admission import message

__all__ = ["Faulty"]
ABSENT = {"dropout": "no answer", "crash": "crashed", "late": "late"}
DAMAGED = ("nan", "infinite", "exploding", "shape", "stale", "duplicate", "corrupt")
DRAWN = ("dropout", "crash", *DAMAGED)  # a client has at most one of these faults; without one it may still be late


@dataclass(frozen=True)
class Faulty:
    """Wraps an engine and makes its clients fail at random. A client has at most one fault per exchange.

    Args:
        engine: the engine to wrap, or its name.
        dropout: probability that a client does not answer.
        crash: probability that local training fails.
        spread: a client's time is exp(spread * N(0, 1)) times the usual time.
        deadline: clients that take more than this many usual times are late.
        nan: probability that one number of the update is NaN.
        infinite: probability that one number of the update is infinite.
        exploding: probability that the update is multiplied by 1e12.
        shape: probability that a field has the wrong length.
        stale: probability that the upload carries the number of the previous round.
        duplicate: probability that the upload arrives twice; it counts once.
        corrupt: probability that one bit of the message is flipped.
        seed: seed of the faults.

    Raises:
        InvalidInput: if a probability is not in [0, 1], their sum exceeds 1, or `spread` is given without `deadline`.

    Example:
        >>> engine = fs.faults.Faulty(dropout=0.3, seed=1)
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, engine=engine)
        >>> run.history["lost"]
        [0, 2]
    """

    engine: str | Engine = "auto"
    dropout: float = 0.0
    crash: float = 0.0
    spread: float = 0.0
    deadline: float | None = None
    nan: float = 0.0
    infinite: float = 0.0
    exploding: float = 0.0
    shape: float = 0.0
    stale: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        chances = {kind: getattr(self, kind) for kind in DRAWN}
        for kind, p in chances.items():
            if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
                raise InvalidInput(f"Faulty: {kind}={p!r} is invalid: expected a probability in [0, 1].")
        not_negative(self, spread=self.spread)
        positive(self, deadline=self.deadline)
        total = math.fsum(chances.values())
        if total > 1 + 1e-9:
            given = ", ".join(f"{kind}={p!r}" for kind, p in chances.items() if p)
            raise InvalidInput(
                f"Faulty: {given} add up to {total:g}; expected at most 1, because a client has at most one fault."
            )
        if self.spread > 0 and self.deadline is None:
            raise InvalidInput(
                f"Faulty: spread={self.spread!r} needs a deadline; give deadline=, in multiples of the usual time."
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InvalidInput(f"Faulty: seed={self.seed!r} is invalid: expected a whole number.")

    @property
    def leads(self) -> bool:
        return engine(self.engine).leads

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> Clients:
        failing = {kind: replace(e, work=failing_work(self, e.work)) for kind, e in exchanges.items()}
        return cast(Clients, FaultyClients(self, engine(self.engine).open(task, failing, fresh)))

    def fault(self, source: torch.Generator) -> str | None:
        """Draw the fault of a client, None for no fault."""
        luck = float(torch.rand((), generator=source, dtype=torch.float64, device="cpu"))
        log_time = self.spread * float(torch.randn((), generator=source, dtype=torch.float64, device="cpu"))
        for kind in DRAWN:
            luck -= getattr(self, kind)
            if luck < 0:
                return kind
        return "late" if self.deadline is not None and log_time > math.log(self.deadline) else None


class FaultyClients:
    """The clients of another engine, with faults; see Faulty."""

    def __init__(self, faulty: Faulty, inner: Clients) -> None:
        self.faulty, self.inner = faulty, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def about(self) -> dict[str, Any]:
        given = {k: v for k, v in vars(self.faulty).items() if k != "engine" and v}
        return {**self.inner.about(), "faults": given}


def failing_work(faulty: Faulty, work: Work) -> Work:
    """Wrap the work of an exchange, and inject faults into its uploads."""

    def failing(chunk: Chunk, x: Vec, memory: State) -> Upload:
        upload, context = work(chunk, x, memory), chunk.context
        lost, replies = dict(upload.lost), dict(upload.replies)
        for row, client in enumerate(context.clients):
            # The call makes a repeated round draw new faults; otherwise it could never succeed.
            source = generator(faulty.seed, context.round, context.call, client, "fault")
            kind = faulty.fault(source)
            if kind is None or row in upload.lost or row in upload.replies:
                continue
            if kind in ABSENT:
                lost[row] = ABSENT[kind]
            else:
                replies[row] = damaged(kind, upload, row, client, context.round, source)
        return replace(upload, lost=lost, replies=replies)

    return failing


def damaged(kind: str, upload: Upload, row: int, client: int, round: int, source: torch.Generator) -> list[bytes]:
    """Return the messages that arrive in place of a row; the upload itself does not change."""

    def any_of(count: int) -> int:
        return int(torch.randint(count, (), generator=source, device="cpu"))

    fields = {name: v[row : row + 1].clone() for name, v in upload.fields.items()}
    main = max(fields, key=lambda name: (fields[name].shape[1], name == "update"))
    if kind in ("nan", "infinite"):
        fields[main][0, any_of(fields[main].shape[1])] = math.nan if kind == "nan" else math.inf
    elif kind == "exploding":
        fields[main] *= 1e12
    elif kind == "shape":
        name = sorted(fields)[any_of(len(fields))]
        fields[name] = fields[name].repeat(1, 2)
    metrics = {name: v[row : row + 1] for name, v in upload.metrics.items()}
    sent = message(Upload(fields, metrics, {}, []), 0, client, round - 1 if kind == "stale" else round)
    if kind == "corrupt":
        bit = any_of(8 * len(sent))
        flipped = bytearray(sent)
        flipped[bit // 8] ^= 1 << bit % 8
        sent = bytes(flipped)
    return [sent, sent] if kind == "duplicate" else [sent]
