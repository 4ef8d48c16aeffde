"""Where clients run. The same algorithm, unchanged, on any engine."""

from __future__ import annotations

from fedstride.engine.local import Local
from fedstride.engine.protocol import Clients, Engine, Order, Reply, Task
from fedstride.errors import InvalidInput, nearest

__all__ = ["Clients", "Engine", "Local", "Order", "Reply", "Task", "engine"]

ENGINES = {"auto": Local, "local": Local}


def engine(choice: str | Engine) -> Engine:
    if isinstance(choice, str):
        if choice not in ENGINES:
            raise InvalidInput(f"engine={choice!r} is unknown; {nearest(choice, ENGINES)}")
        return ENGINES[choice]()
    if not hasattr(choice, "open"):
        raise InvalidInput(
            f"engine={choice!r} is not usable; expected a name or an engine such as fs.engine.Local(workers=2)."
        )
    return choice
