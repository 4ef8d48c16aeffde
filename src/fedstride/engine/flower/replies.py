"""Fetch replies one by one in threads, so that an upload that never ends holds up nobody.

Flower hands out a reply as soon as its upload has begun, waits for the rest of it, for minutes if need be, and holds back
the other replies of the same call. A call is destructive: a reply that was handed out is not handed out again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Event, Thread

from flwr.app import Message
from flwr.serverapp import Grid

PATIENCE = 2.0  # seconds that one reply may hold up the others

Found = tuple[str, list[Message] | BaseException]  # id of a message, and the replies to it


class Replies:
    """The replies of a grid. One thread fetches them; a thread whose reply takes too long gets a successor."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.box = SimpleQueue[Found]()
        self.held = set[str]()  # messages whose reply another thread is still fetching

    def poll(self, keys: Iterable[str]) -> Iterator[Message]:
        """Yield the replies that have arrived, also earlier ones that took long; each reply delays this by PATIENCE at most."""
        todo = deque(key for key in keys if key not in self.held)
        stop = self._fetch(todo)
        while todo or not self.box.empty():
            try:
                key, found = self.box.get(timeout=PATIENCE)
            except Empty:
                stop.set()
                self.held.add(todo.popleft())
                stop = self._fetch(todo)
                continue
            self.held.discard(key)
            if key in todo:
                todo.remove(key)
            if isinstance(found, BaseException):
                raise found
            yield from found

    def _fetch(self, keys: Iterable[str]) -> Event:
        """Start a thread that fetches the replies to these messages; return the event that ends it after the current one."""
        stop, keys = Event(), list(keys)

        def work() -> None:
            for key in keys:
                if stop.is_set():
                    return
                try:
                    self.box.put((key, list(self.grid.pull_messages([key]))))
                except BaseException as error:  # raised again where the replies are awaited
                    self.box.put((key, error))
                    return

        if keys:
            Thread(target=work, name="fedstride-replies", daemon=True).start()
        return stop
