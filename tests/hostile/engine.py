"""An engine in which some clients send whatever an attack makes of their uploads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedstride.client.chunk import Chunk
from fedstride.client.exchange import MOMENTS, Exchange, Upload, Work
from fedstride.core.rows import State, Vec
from fedstride.engine import Clients, Engine, Local, Task
from fedstride.engine.admission import message

Row = dict[str, Tensor]
Change = Callable[[Row, int], None]  # changes the fields and metrics of one upload in place; the round


@dataclass(frozen=True)
class Hostile:
    """Wraps an engine; the clients in `who` send what `change` makes of their uploads, from round `start` on."""

    change: Change
    who: tuple[int, ...] = (0,)
    start: int = 0
    kind: str = "updates"
    engine: Engine = field(default_factory=lambda: Local(oracle="loop"))

    @property
    def leads(self) -> bool:
        return True

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> Clients:
        changed = {k: replace(e, work=self.work(e.work)) if k == self.kind else e for k, e in exchanges.items()}
        return self.engine.open(task, changed, fresh)

    def work(self, work: Work) -> Work:
        def false(chunk: Chunk, x: Vec, memory: State) -> Upload:
            upload, replies = work(chunk, x, memory), dict[int, list[bytes]]()
            for row, client in enumerate(chunk.context.clients):
                if client in self.who and (chunk.context.round >= self.start or self.kind == MOMENTS):
                    replies[row] = [self.sent(upload, row, client, chunk.context.round)]
            return replace(upload, replies={**upload.replies, **replies})

        return false

    def sent(self, upload: Upload, row: int, client: int, round: int) -> bytes:
        own: dict[str, Row] = {
            name: {k: v[row : row + 1].clone() for k, v in part.items()}
            for name, part in (("fields", upload.fields), ("metrics", upload.metrics))
        }
        both = {**own["metrics"], **own["fields"]}
        self.change(both, round)
        parts: dict[str, Any] = {name: {k: both[k] for k in part} for name, part in own.items()}
        return message(Upload(parts["fields"], parts["metrics"], {}, []), 0, client, round)


def times(factor: float, *names: str) -> Change:
    """Multiply fields."""

    def change(row: Row, round: int) -> None:
        for name in names or ("update", "raw", "gradient"):
            if name in row:
                row[name] = row[name] * factor

    return change


def becomes(value: float, *names: str) -> Change:
    """Fill fields with a value."""

    def change(row: Row, round: int) -> None:
        for name in names:
            row[name] = torch.full_like(row[name], value)

    return change


def alternating(value: float, *names: str) -> Change:
    """Fill fields with a value whose sign changes from round to round."""
    return lambda row, round: becomes(value if round % 2 == 0 else -value, *names)(row, round)
