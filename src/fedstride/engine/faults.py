"""Clients that fail, for tests of what a run survives: an engine that lets any other engine's answers go wrong.

Draws are seeded by (seed, round, call of the round, client): the same for all workers and chunks, and after a resume.
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

ABSENT = {"dropout": "no answer", "crash": "crashed", "late": "late"}
DAMAGED = ("nan", "infinite", "exploding", "shape", "stale", "duplicate", "corrupt")
DRAWN = ("dropout", "crash", *DAMAGED)  # of these a client suffers one at most; whoever is spared may still be late


@dataclass(frozen=True)
class Faulty:
    """An engine whose clients fail, each with the given probability per exchange; at most one fault each."""

    engine: str | Engine = "auto"
    dropout: float = 0.0  # no answer
    crash: float = 0.0  # local work breaks off
    spread: float = 0.0  # stragglers: a client takes exp(spread * N(0, 1)) times the usual time ...
    deadline: float | None = None  # ... and is late if that is more than this
    nan: float = 0.0  # one number of the update is NaN
    infinite: float = 0.0  # one number of the update is infinite
    exploding: float = 0.0  # the update times 1e12
    shape: float = 0.0  # a field of another length
    stale: float = 0.0  # the answer carries the number of the round before
    duplicate: float = 0.0  # the answer comes twice: counts once
    corrupt: float = 0.0  # one bit of the message is flipped
    seed: int = 0

    def __post_init__(self) -> None:
        chances = {kind: getattr(self, kind) for kind in DRAWN}
        for kind, p in chances.items():
            if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= 1:
                raise InvalidInput(f"Faulty: {kind}={p!r} is not usable; expected a probability in [0, 1].")
        not_negative(self, spread=self.spread)
        positive(self, deadline=self.deadline)
        total = math.fsum(chances.values())
        if total > 1 + 1e-9:
            given = ", ".join(f"{kind}={p!r}" for kind, p in chances.items() if p)
            raise InvalidInput(
                f"Faulty: {given} add up to {total:g}; expected at most 1, because a client suffers one fault at most."
            )
        if self.spread > 0 and self.deadline is None:
            raise InvalidInput(
                f"Faulty: spread={self.spread!r} without a deadline makes nobody late; give deadline=, in usual times."
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InvalidInput(f"Faulty: seed={self.seed!r} is not usable; expected a whole number.")

    @property
    def leads(self) -> bool:
        return engine(self.engine).leads

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> Clients:
        failing = {kind: replace(e, work=failing_work(self, e.work)) for kind, e in exchanges.items()}
        return cast(Clients, FaultyClients(self, engine(self.engine).open(task, failing, fresh)))

    def fault(self, source: torch.Generator) -> str | None:
        """The kind that befalls a client, if any."""
        luck = float(torch.rand((), generator=source, dtype=torch.float64, device="cpu"))
        log_time = self.spread * float(torch.randn((), generator=source, dtype=torch.float64, device="cpu"))
        for kind in DRAWN:
            luck -= getattr(self, kind)
            if luck < 0:
                return kind
        return "late" if self.deadline is not None and log_time > math.log(self.deadline) else None


class FaultyClients:
    """Clients of another engine, whose work ends with faults."""

    def __init__(self, faulty: Faulty, inner: Clients) -> None:
        self.faulty, self.inner = faulty, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def about(self) -> dict[str, Any]:
        given = {k: v for k, v in vars(self.faulty).items() if k != "engine" and v}
        return {**self.inner.about(), "faults": given}


def failing_work(faulty: Faulty, work: Work) -> Work:
    """The work, with faults in its uploads."""

    def failing(chunk: Chunk, x: Vec, memory: State) -> Upload:
        upload, context = work(chunk, x, memory), chunk.context
        lost, replies = dict(upload.lost), dict(upload.replies)
        for row, client in enumerate(context.clients):
            # A round that is tried again asks again, and must not meet the same faults for ever.
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
    """What arrives in the row's place; the upload's own rows stay as they are."""

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
