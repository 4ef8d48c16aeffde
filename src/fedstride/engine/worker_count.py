"""The number of workers, chosen by timing the first rounds. It does not change results."""

from __future__ import annotations

import logging
from typing import Any

TRIALS = 2  # timed rounds per number of workers; the fastest counts
WORTH = 0.97  # share of the best time below which fewer workers count as faster
log = logging.getLogger("fedstride")


class WorkerCount:
    """Starts with all workers, and halves their number while rounds become faster."""

    def __init__(self, most: int, fixed: bool) -> None:
        self.workers, self.settled = most, fixed or most == 1
        self.best: tuple[float, int] | None = None  # (seconds per local step, number of workers)
        self.times: list[float] = []
        self.now: tuple[int, float, int] | None = None  # (round, seconds, local steps) of the current round so far
        self.ignored = 0  # round that is not timed; the first one includes set-up costs

    def record(self, round: int, seconds: float, steps: int) -> None:
        """Record the time of an exchange; exchanges of one round are added up."""
        if self.settled or round == self.ignored:
            return
        if self.now is not None and self.now[0] != round:
            self.times.append(self.now[1] / self.now[2])
            self.now = None
            if len(self.times) == TRIALS:
                self._judge(min(self.times))
                self.times, self.ignored = [], round  # this round began with the old number
                return
        _, before, done = self.now or (round, 0.0, 0)
        self.now = round, before + seconds, done + steps

    def about(self) -> dict[str, Any]:
        return {"workers": self.workers}

    def _judge(self, time: float) -> None:
        if self.best is None or time < WORTH * self.best[0]:
            self.best = time, self.workers
            if self.workers > 1:
                self.workers //= 2
                return
        else:
            self.workers = self.best[1]
        self.settled = True
        log.info("local engine: %d worker(s), the fastest tried", self.workers)
