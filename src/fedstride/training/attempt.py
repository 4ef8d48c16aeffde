"""The record of an attempt at a round: its costs, the clients that were lost, and why it failed."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from fedstride.engine import Reply


@dataclass(frozen=True, eq=False)
class Attempt:
    """An attempt at a round. Its costs include those of the failed attempts at the same round before it."""

    number: int = 1
    started: float = field(default_factory=lambda: time.perf_counter())  # start of the first attempt
    calls: int = 0  # number of exchanges
    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0
    forwards: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # unusable messages, by reason
    releases: int = 0  # number of released private sums
    rollbacks: int = 0  # 1 if a server step was rolled back
    limits: Mapping[str, float] = field(default_factory=dict)  # largest norms by field, if some messages exploded

    # This attempt alone:
    asked: tuple[int, ...] = ()  # the clients of the cohort
    lost: Mapping[int, str] = field(default_factory=dict)  # client: reason
    norms: Mapping[str, float] = field(
        default_factory=dict
    )  # root mean square norms over the cohort, by kind of message
    medians: Mapping[str, float] = field(default_factory=dict)  # median norms over the cohort, by field
    compression: float = 0.0  # largest relative error of compressed messages
    exploded: bool = False  # whether messages were far longer than others, so that the next attempt has other limits
    wild_step: float | None = None  # the server step that was rolled back

    @property
    def seconds(self) -> float:
        """Seconds since the start of the first attempt."""
        return time.perf_counter() - self.started

    def send(self, size: int, clients: int, error: float = 0.0) -> Attempt:
        """Count a message of `size` bytes to each of `clients` clients; error: relative error of its compression."""
        sent = self.bytes_down + size * clients
        return replace(self, bytes_down=sent, compression=max(self.compression, error))

    def receive(self, reply: Reply) -> Attempt:
        """Count the costs and losses of an exchange."""
        metrics, error = reply.metrics, 0.0
        if "error" in metrics:
            error = relative_error(metrics["error"].sum(), metrics["message"].sum())
        return replace(
            self,
            calls=self.calls + 1,
            bytes_up=self.bytes_up + reply.bytes_up,
            gradients=self.gradients + int(metrics["gradients"].sum()),
            forwards=self.forwards + int(metrics["forwards"].sum()),
            refused=self.refused + reply.refused,
            lost={**self.lost, **reply.lost},
            compression=max(self.compression, error),
        )

    def again(self) -> Attempt:
        """Return the next attempt at the same round."""
        number = self.number + 1
        return replace(
            self,
            number=number,
            asked=(),
            lost={},
            norms={},
            medians={},
            compression=0.0,
            exploded=False,
            wild_step=None,
        )


class FailedAttempt(Exception):
    """Internal: an attempt at a round failed. Caught by retry.complete_round."""

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(f"attempt {attempt.number}")
        self.attempt = attempt


def relative_error(square: Tensor, of: Tensor) -> float:
    """Return the relative error of a message from the squared norms of the error and of the message."""
    return math.sqrt(float(square) / float(of)) if float(of) > 0 else 0.0
