"""Start this SuperNode with the version of Flower that it was written for, and Flower's own SuperNode with any other."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from typing import Any

import flwr

from fedstride.app.json_logs import json_logs

VERSION = "1.41.0"  # flower.py uses its private parts
log = logging.getLogger("flwr.fedstride")  # a child of Flower's logger, which shows it


def main() -> None:
    json_logs()
    if flwr.__version__ != VERSION:
        log.warning(
            "Flower is %s, expected %s: rounds take seconds, as with flower-supernode.", flwr.__version__, VERSION
        )
        os.execvp("flower-supernode", ["flower-supernode", *sys.argv[1:]])
    command: Any = importlib.import_module("flwr.supernode.cli.flower_supernode")
    command.start_client_internal = importlib.import_module("fedstride.app.supernode.flower").start
    command.flower_supernode()


if __name__ == "__main__":
    main()
