"""How many workers: tried out in the first rounds, since only the clock can tell. It changes no bit of the result."""

from __future__ import annotations

import logging
from typing import Any

TRIALS = 2  # rounds per number of workers; the fastest counts
WORTH = 0.97  # fewer workers must be faster than this
log = logging.getLogger("fedstride")


class WorkerCount:
    """Starts with all workers, and halves their number while that makes rounds faster."""

    def __init__(self, most: int, fixed: bool) -> None:
        self.workers, self.settled = most, fixed or most == 1
        self.best: tuple[float, int] | None = None  # seconds per local step, workers
        self.times: list[float] = []
        self.now: tuple[int, float, int] | None = None  # round, seconds and local steps so far
        self.ignored = 0  # a round that does not count: the first pays for what later ones find ready

    def took(self, round: int, seconds: float, steps: int) -> None:
        """An exchange is over; those of one round count together."""
        if self.settled or round == self.ignored:
            return
        if self.now is not None and self.now[0] != round:
            self.times.append(self.now[1] / self.now[2])
            self.now = None
            if len(self.times) == TRIALS:
                self._judge(min(self.times))
                self.times, self.ignored = [], round  # this one began with the old number
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
