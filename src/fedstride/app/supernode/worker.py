"""The node's handle of the process that runs the app: started for a run's first message, used for all others.

Requests and answers are lists of bytes on a pair of connected sockets, which have no file that others could open.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

LOOK = 1.0  # seconds between checks that the process is alive
BEAT = 10.0  # seconds between heartbeats of a task; Flower gives a task up after a minute without
END = 3.0  # seconds that a process has to end before it is killed


class Died(Exception):
    """The process ended before it answered."""


class Worker:
    """A process that answers requests, one after the other."""

    def __init__(self, key: tuple[object, ...]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "fedstride.app.supernode.process", str(theirs.fileno())]
            # A session of its own: Ctrl-C is for the node, which ends its process.
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        self.key, self.connection = key, Connection(ours.detach())
        self.asked, self.used = False, time.monotonic()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, request: Sequence[bytes], beat: Callable[[], object]) -> list[bytes]:
        """Return the answer to a request; beat() is called every few seconds until then.

        Raises:
            Died: if the process ends instead.
        """
        try:
            send(self.connection, request)
            beaten = time.monotonic()
            while not self.connection.poll(LOOK):
                if not self.alive:
                    raise Died
                if time.monotonic() > beaten + BEAT:
                    beaten = time.monotonic()
                    beat()
            return receive(self.connection)
        except (EOFError, OSError) as error:
            raise Died from error
        finally:
            self.asked, self.used = True, time.monotonic()

    def close(self) -> None:
        """End the process at once: its files are replaced as a whole, so that none is left half written."""
        self.connection.close()
        self.process.terminate()
        try:
            self.process.wait(END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def send(connection: Connection, parts: Sequence[bytes]) -> None:
    connection.send_bytes(len(parts).to_bytes(8, "big"))
    for part in parts:
        connection.send_bytes(part)


def receive(connection: Connection) -> list[bytes]:
    return [connection.recv_bytes() for _ in range(int.from_bytes(connection.recv_bytes(8), "big"))]
