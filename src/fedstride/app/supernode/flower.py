"""The SuperNode's main loop and the app's side of a message. All private parts of Flower that they need are used here."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.cli.install import install_from_fab
from flwr.clientapp.client_app import ClientApp, LoadClientAppError
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedstride.app.supernode.pace import Pace
from fedstride.app.supernode.retry import retry_soon
from fedstride.app.supernode.worker import Worker
from fedstride.core.errors import located

log = logging.getLogger("flwr.fedstride")  # a child of Flower's logger, which shows it
SHORT, LONG = 0.04, 3.0  # seconds between two looks for messages; Flower's own SuperNode takes LONG
IDLE = 600.0  # seconds without a message after which the app's process ends, to free its memory


# In the node's process.


def start(**given: Any) -> None:
    """Do what flwr.supernode.start_client_internal does, with one process for all messages of a run."""
    from flwr.supercore.exit import register_signal_handlers
    from flwr.supercore.grpc_health import run_health_server_grpc_no_tls
    from flwr.supercore.telemetry import EventType
    from flwr.supernode import start_client_internal as flower

    unencrypted = given["insecure"] and given["authentication_keys"] is not None  # Flower refuses this
    if unencrypted or given["isolation"] != "subprocess" or given["runtime_dependency_install"]:
        log.warning("these arguments need Flower's own SuperNode, which starts a process for every message.")
        return flower.start_client_internal(**given)
    retry_soon()
    state = given["state_factory"].state()
    desk, health = Desk(state), given["health_server_address"]
    register_signal_handlers(
        event_type=EventType.RUN_SUPERNODE_LEAVE,
        exit_message="SuperNode terminated gracefully.",
        grpc_servers=[] if health is None else [run_health_server_grpc_no_tls(health)],
        exit_handlers=[desk.close],
    )
    names = ("server_address", "insecure", "root_certificates", "authentication_keys", "max_retries", "max_wait_time")
    with flower._init_connection(**{name: given[name] for name in names}) as connection:
        node, receive, send, get_run, get_fab, pull_object, push_object, confirm = connection
        state.set_node_id(node)
        log.info("SuperNode ID: %s", node)
        store, own, trusted = state.object_store, given["node_config"], given["trusted_entities"]
        pace = Pace(SHORT, LONG)
        while True:
            run = flower._pull_and_store_message(
                state, store, own, receive, get_run, get_fab, pull_object, confirm, trusted
            )
            if run is None:
                desk.tidy()
                pace.pause()
                continue
            pace.arrived()
            desk.work()
            flower._push_messages(state, store, send, push_object)
            pace.start()


class Desk:
    """Hands a node's messages to the process of their run. There is one such process, or none."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.worker: Worker | None = None

    def work(self) -> None:
        """Carry out the tasks that wait; each has a reply in the node's state afterwards."""
        from flwr.supernode.nodestate.in_memory_nodestate import CLIENT_APP_CRASHED_ERROR
        from flwr.supernode.start_client_internal import _insert_message

        state = self.state
        for task in state.get_tasks(statuses=[Status.PENDING], order_by="pending_at"):
            if state.claim_task(task.task_id) is None:
                continue
            state.activate_task(task.task_id)
            (message,) = state.get_messages_legacy(run_ids=[task.run_id], is_reply=False, limit=1)
            state.record_message_processing_start(message.metadata.message_id)
            try:
                details = self._perform(task, message)
            except Exception as error:  # whatever the app's process did, the node goes on
                log.error("the app's process has died or misbehaved (%r); the next message gets a new one", error)
                self.close()
                details = "The app's process has died."
                state.record_message_processing_end(message.metadata.message_id)
                _insert_message(Message(CLIENT_APP_CRASHED_ERROR, reply_to=message), state, state.object_store)
            state.finish_task(task.task_id, SubStatus.FAILED if details else SubStatus.COMPLETED, details)
            with state.lock_task_store:
                del state.task_store[task.task_id]  # Flower keeps all, and searches them for every message

    def _perform(self, task: Any, message: Message) -> str:
        """Store the reply of the app to a message; return the error, if there was one."""
        state, run = self.state, self.state.get_run(task.run_id)
        if task.type != TaskType.CLIENT_APP:
            raise ValueError(f"a task of type {task.type}; expected {TaskType.CLIENT_APP}")
        tree = state.object_store.get_object_tree(message.metadata.message_id)
        parts = {part.object_id: state.object_store.get(part.object_id) for part in iterate_object_tree(tree)}
        context = context_to_proto(state.get_run_series_context(run.series_id))
        names = {"fab_id": run.fab_id, "fab_version": run.fab_version, "fab_hash": run.fab_hash}
        asked = {"task": task.task_id, "message": tree.object_id, "parts": list(parts), **names}
        state.object_store.delete(tree.object_id)
        worker = self._of((run.run_id, run.fab_hash))
        fab = b"" if worker.asked else state.get_fab(run.fab_hash).content
        request = [json.dumps(asked).encode(), context.SerializeToString(), fab, *parts.values()]
        answer = worker.ask(request, lambda: state.acknowledge_task_heartbeat(task.task_id))
        state.record_message_processing_end(message.metadata.message_id)
        self._store(answer, message, run)
        facts = json.loads(answer[0])
        if facts["failed"]:  # it may have left anything behind: the next message gets a new process
            self.close()
        return str(facts["error"])

    def _store(self, answer: Sequence[bytes], message: Message, run: Any) -> None:
        facts, proto, tree, context, *contents = answer
        reply, store = message_from_proto(MessageProto.FromString(proto)), self.state.object_store
        if (reply.metadata.run_id, reply.metadata.reply_to_message_id) != (run.run_id, message.metadata.message_id):
            raise ValueError("a reply to another message")
        store.preregister(run.run_id, ObjectTree.FromString(tree))
        for name, content in zip(json.loads(facts)["parts"], contents, strict=True):
            store.put(name, content)
        self.state.store_message(reply)
        self.state.set_run_series_context(run.series_id, context_from_proto(ContextProto.FromString(context)))

    def _of(self, key: tuple[object, ...]) -> Worker:
        """Return the process of a run and its app: data and code are those of the time when the run began."""
        if self.worker is None or not self.worker.alive or self.worker.key != key:
            self.close()
            self.worker = Worker(key)
            log.info("Process %d runs the app for this run", self.worker.process.pid)
        return self.worker

    def tidy(self) -> None:
        if self.worker is not None and time.monotonic() > self.worker.used + IDLE:
            self.close()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None


# In the app's process.


class App:
    """A run's ClientApp, loaded at the first message."""

    def __init__(self) -> None:
        self.app: ClientApp | None = None

    def answer(self, request: Sequence[bytes]) -> list[bytes]:
        """Answer a message. An error is an answer, too, with the codes of flwr-clientapp, and without its text."""
        facts, given, fab, *contents = request
        asked, context = json.loads(facts), context_from_proto(ContextProto.FromString(given))
        message = inflate_object_from_contents(asked["message"], dict(zip(asked["parts"], contents, strict=True)))
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = asked["message"]
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = asked["task"], context.run_id, context.node_id
        reason = ""
        try:
            if self.app is None:
                install_from_fab(fab, skip_prompt=True)
                load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
                self.app = load(asked["fab_id"], asked["fab_version"], asked["fab_hash"])
            reply = self.app(message=message, context=context)
        except Exception as error:
            log.exception("ClientApp raised an exception")
            code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, located(error)
            if isinstance(error, LoadClientAppError):
                code, reason = (
                    ErrorCode.LOAD_CLIENT_APP_EXCEPTION,
                    "An exception was raised when attempting to load `ClientApp`",
                )
            reply = Message(Error(code=code, reason=reason), reply_to=message)
        failed = reply.has_error() or "problem" in reply.content
        return _deflated(reply, {"error": reason, "failed": failed}, context_to_proto(context).SerializeToString())


def _deflated(reply: Message, facts: dict[str, Any], context: bytes) -> list[bytes]:
    with no_object_id_recompute():  # each is a hash of the data
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree, parts = get_object_tree(reply), get_all_nested_objects(reply)
        contents = {name: part.deflate() for name, part in parts.items()}
    proto = message_to_proto(remove_content_from_message(reply)).SerializeToString()
    return [
        json.dumps({**facts, "parts": list(contents)}).encode(),
        proto,
        tree.SerializeToString(),
        context,
        *contents.values(),
    ]
