"""When to look for something that can only be polled: not while it cannot be there yet, and often when it is due.

Every look costs the SuperLink some milliseconds, which the transfers of a round have to wait for.
"""

from __future__ import annotations

import time
from collections import deque

SHARE = 0.1  # of the time waited so far: the most that a pause adds to it
EARLY = 0.6  # of the time that it took before: no look until then
CAP = 0.3  # seconds: the first look is never later, because this time it may be faster


class Pace:
    """The pauses between looks, from `short` to `long` seconds, for something that takes about as long as the last times."""

    def __init__(self, short: float, long: float) -> None:
        self.short, self.long = short, long
        self.took = deque[float](maxlen=2)
        self.began, self.here = time.monotonic(), False

    def start(self) -> None:
        """Begin to wait; sleep while it cannot be there yet."""
        self.began, self.here = time.monotonic(), False
        time.sleep(min(EARLY * min(self.took, default=0.0), CAP))

    def arrived(self) -> None:
        """Remember how long it took; only the first call after start() counts."""
        if not self.here:
            self.here = True
            self.took.append(time.monotonic() - self.began)

    def pause(self, least: float = 0.0) -> None:
        """Sleep until the next look, for at least some seconds."""
        time.sleep(min(max(SHARE * (time.monotonic() - self.began), self.short, least), self.long))
