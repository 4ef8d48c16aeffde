"""Signals on the command line: Ctrl-C, SIGTERM and SIGHUP end a run after the current round, which is saved first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedstride.training.rounds import Event

HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([] if HANGUP is None else [HANGUP])]


class Stopped(Exception):
    """Raised after a signal, once the round has been finished and saved.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def stop_after_round() -> Iterator[Any]:
    """Yield a callback that ends the run after the current round on a signal; a second signal ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    def check(event: Event) -> None:
        if asked and event.round > 0:
            raise Stopped(asked[0])

    nohup = HANGUP is not None and signal.getsignal(HANGUP) is signal.SIG_IGN
    before = {number: signal.signal(number, ask) for number in SIGNALS if not (nohup and number == HANGUP)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
