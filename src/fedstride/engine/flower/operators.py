"""What operators asked for in a run's settings: a monitor. It watches the run, and never changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from fedstride.algorithm.text import NOTHING
from fedstride.app.monitor import monitor_at
from fedstride.engine.flower.nodes import log
from fedstride.training.rounds import Event

Callback = Callable[[Event], object]


@contextmanager
def watched(settings: Mapping[str, Any]) -> Iterator[list[Callback]]:
    """Yield the callbacks that the settings ask for."""
    with ExitStack() as stack:
        callbacks: list[Callback] = []
        if (where := settings.get("monitor") or NOTHING) != NOTHING:
            monitor = stack.enter_context(closing(monitor_at(where)))
            log.info("monitor: http://%s/", monitor.address)
            callbacks.append(monitor)
        yield callbacks
