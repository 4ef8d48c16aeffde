"""A watch over a run, for its callbacks: seconds by phase, and the exchanges since the last event."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedstride.engine import Clients, Order, Reply

ROUNDS = "rounds"


@dataclass(frozen=True)
class Asked:
    """An exchange as an operator sees it: who was asked, and who was lost, for which reason."""

    kind: str  # "gradients", "updates", or "moments" before the first round
    clients: tuple[int, ...]
    lost: Mapping[int, str]  # client: why its upload was not used


@dataclass
class Watch:
    """Measured by the process that leads a run. Nothing here changes a result."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # rounds, and phases
    exchanges: list[Asked] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of this block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def exchange(self, clients: Clients, order: Order) -> Reply:
        """Run an order, and note who was asked and who was lost."""
        with self.phase("clients"):
            reply = clients.exchange(order)
        self.exchanges.append(Asked(order.kind, tuple(client for client, _ in order.cohort), reply.lost))
        return reply

    def phases(self) -> dict[str, float]:
        """Return the seconds so far by phase; the server has what is left of the rounds."""
        found = {name: self.seconds[name] for name in ("clients", "evaluation", "checkpoints")}
        rest = self.seconds[ROUNDS] - found["clients"] - found["evaluation"]
        return {**found, "server": max(0.0, rest)}

    def taken(self) -> tuple[Asked, ...]:
        """Return the exchanges since the last call."""
        found, self.exchanges = tuple(self.exchanges), []
        return found
