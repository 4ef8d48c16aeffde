"""Fetch replies one by one in threads, so that an upload that never ends holds up nobody.

Flower hands out a reply as soon as its upload has begun, waits for the rest of it, for minutes if need be, and holds back
the other replies of the same call. A call is destructive: a reply that was handed out is not handed out again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Event, Thread

from flwr.app import Message
from flwr.serverapp import Grid

from fedstride.app.supernode.pace import Pace

PATIENCE = 2.0  # seconds that one reply may hold up the others
SHORT, LONG = 0.02, 0.3  # seconds between polls for replies
TOGETHER = 64  # replies that are held in memory
TURNS = 8  # while no reply arrives, a poll asks for an eighth of them, or for a single one

Found = tuple[str, list[Message] | BaseException]  # id of a message, and the replies to it


class Replies:
    """The replies of a grid. One thread fetches them; a thread whose reply takes too long gets a successor."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.box = SimpleQueue[Found]()
        self.held = set[str]()  # messages whose reply another thread is still fetching
        self.pace, self.turn = Pace(SHORT, LONG), 0
        self.came, self.cost = False, 0.0  # whether the last poll found a reply, and the seconds of one that did not

    def send_and_receive(self, messages: Iterable[Message], seconds: float) -> list[Message]:
        """Do what the grid's function of this name does. That of a deployment looks for replies every 3 s."""
        sent, found, end = list(messages), list[Message](), time.monotonic() + seconds
        if not sent:
            return found
        pending = dict.fromkeys(key for key in self.grid.push_messages(sent) if key)
        self.start()
        over = False
        while pending and not over:
            over = time.monotonic() > end
            for reply in self.last(pending) if over else self.wait(pending):
                if pending.pop(reply.metadata.reply_to_message_id, ...) is None:
                    found.append(reply)
        return found

    def start(self) -> None:
        """Call this after messages were sent, before wait()."""
        self.came, self.cost = False, 0.0
        self.pace.start()

    def wait(self, keys: Iterable[str]) -> Iterator[Message]:
        """Wait a moment, and yield replies that have arrived.

        Only the first TOGETHER are asked for. Later ones wait at the SuperLink, so replies arrive roughly in order and a sum
        needs little memory. While none arrives, some are asked for in turn: nodes need about the same time, and a poll for
        each reply would slow down their transfers.
        """
        if not self.came and self.cost:
            self.pace.pause(self.cost)
        keys = [key for key in keys if key not in self.held][:TOGETHER]
        few = 1 if self.came else max(1, min(TURNS, len(keys)))
        self.came, self.turn, began = False, self.turn + 1, time.monotonic()
        for reply in self.poll(keys[self.turn % few :: few]):
            self.came = True
            self.pace.arrived()
            yield reply
        self.cost = time.monotonic() - began

    def last(self, keys: Iterable[str]) -> Iterator[Message]:
        """Yield all replies that have arrived."""
        keys = list(keys)
        for first in range(0, len(keys), TOGETHER):
            yield from self.poll(keys[first : first + TOGETHER])

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
