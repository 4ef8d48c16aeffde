"""Ctrl-C on the command line: the current round is finished and saved first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fedstride.training.rounds import Event


class Stopped(Exception):
    """Raised after Ctrl-C, once the round has been finished and saved."""


@contextmanager
def stop_after_round() -> Iterator[Any]:
    """Yield a callback that ends the run after the current round on Ctrl-C; a second Ctrl-C ends it at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    def check(event: Event) -> None:
        if asked and event.round > 0:
            raise Stopped

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
