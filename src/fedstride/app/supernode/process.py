"""The process that runs the app. It ends with its node: when the node closes its socket, or when it is killed."""

from __future__ import annotations

import os
import sys
import threading
import time
from multiprocessing.connection import Connection

from fedstride.app.json_logs import json_logs
from fedstride.app.supernode.flower import App
from fedstride.app.supernode.worker import LOOK, receive, send


def main(descriptor: int) -> None:
    json_logs()
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    connection, app = Connection(descriptor), App()
    while True:
        try:
            request = receive(connection)
        except (EOFError, OSError):
            return
        send(connection, app.answer(request))


def end_with(parent: int) -> None:
    """End this process if its parent was killed while the app computes."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
