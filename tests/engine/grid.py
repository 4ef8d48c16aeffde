"""A Flower grid without processes: messages are passed as bytes to ClientApps in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto

with suppress(ImportError):  # before Flower 1.40
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = (
        1  # of the process that Flower starts for an app
    )


class Grid:
    """Nodes by number, each with its own configuration. A pushed message is executed when its reply is pulled."""

    def __init__(self, app: ClientApp, nodes: dict[int, dict[str, Any]]) -> None:
        self.app, self.nodes = app, nodes
        self.apps: dict[int, ClientApp] = {}  # of nodes whose app is another one
        self.online = set(nodes)
        self.waiting: dict[str, bytes] = {}
        self.spoil: Callable[[Message], Message | None] = lambda reply: reply  # None: no reply, ever
        self.count, self.bytes = 0, 0
        self.lock = threading.Lock()  # nodes share a process here
        self.states: dict[int, RecordDict] = {}

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: list[Message]) -> list[str]:
        assert isinstance(messages, list) and messages
        return [self._push(message) for message in messages]

    def pull_messages(self, keys: list[str]) -> list[Message]:
        with self.lock:
            return self._pull(keys)

    def _pull(self, keys: list[str]) -> list[Message]:
        replies = []
        for key in reversed(keys):  # the order of arrival is not the order of sending
            data = self.waiting.get(key)
            if data is None:
                continue
            asked = self._travelled(data)
            if asked.metadata.dst_node_id not in self.online:
                continue
            del self.waiting[key]
            reply = self.spoil(self._worked(asked))
            if reply is not None:
                replies.append(self._travelled(message_to_proto(reply).SerializeToString()))
        return replies

    def _push(self, message: Message) -> str:
        if message.metadata.dst_node_id not in self.online:
            return ""
        self.count += 1
        proto = message_to_proto(message)
        proto.metadata.message_id = key = f"message {self.count}"
        self.waiting[key] = proto.SerializeToString()
        self.bytes += len(self.waiting[key])
        return key

    def _worked(self, asked: Message) -> Message:
        node = asked.metadata.dst_node_id
        state = self.states.setdefault(node, RecordDict())  # Flower keeps it while the node's process lives
        context = Context(1, node, dict(self.nodes[node]), state, {})
        before = torch.get_num_threads()
        try:
            return self.apps.get(node, self.app)(asked, context)
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<{error!r}>"), reply_to=asked)
        finally:
            assert torch.get_num_threads() == before

    @staticmethod
    def _travelled(data: bytes) -> Message:
        proto = Proto()
        proto.ParseFromString(data)
        return message_from_proto(proto)
