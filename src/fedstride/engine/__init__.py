"""Engines: run the clients of a federation in local threads, torchrun processes or Flower nodes."""

from __future__ import annotations

from collections.abc import Callable

from fedstride.core.errors import InvalidInput, nearest
from fedstride.engine.local import Local
from fedstride.engine.protocol import BEFORE as BEFORE
from fedstride.engine.protocol import Clients as Clients
from fedstride.engine.protocol import Contents as Contents
from fedstride.engine.protocol import Engine as Engine
from fedstride.engine.protocol import Order as Order
from fedstride.engine.protocol import Reply as Reply
from fedstride.engine.protocol import Task as Task
from fedstride.engine.torchrun import Torchrun

__all__ = ["Local", "Torchrun", "engine"]

ENGINES: dict[str, Callable[[], Engine]] = {"auto": Local, "local": Local, "torchrun": Torchrun}


def engine(choice: str | Engine) -> Engine:
    """Return an engine by name, or the engine itself.

    Args:
        choice: "auto", "local", "torchrun", or an engine such as fs.engine.Local(workers=2).

    Returns:
        The engine.

    Raises:
        InvalidInput: if the name is unknown, or if `choice` is not an engine.

    Example:
        >>> fs.engine.engine("local")
        Local(workers=None, oracle='auto', chunk=None)
    """
    if isinstance(choice, str):
        if choice not in ENGINES:
            raise InvalidInput(f"engine={choice!r} is unknown; {nearest(choice, ENGINES)}")
        return ENGINES[choice]()
    if not hasattr(choice, "open"):
        raise InvalidInput(
            f"engine={choice!r} is invalid: expected a name or an engine such as fs.engine.Local(workers=2)."
        )
    return choice
