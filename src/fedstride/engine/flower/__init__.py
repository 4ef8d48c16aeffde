"""The Flower engine: one node is one client. A project's server and nodes run as Flower's ServerApp and ClientApp.

Messages are defined in records.py, and the nodes' memory in memory.py. A node's data never leaves it.
"""

from __future__ import annotations

from fedstride.core.errors import InvalidInput

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise InvalidInput(f"the Flower engine needs Flower ({error}): pip install 'fedstride[flower]'.") from error

from fedstride.engine.flower.clients import Flower
from fedstride.engine.flower.node import client_app
from fedstride.engine.flower.project import Project
from fedstride.engine.flower.server import server_app, train

__all__ = ["Project", "server_app", "client_app", "Flower", "train"]
