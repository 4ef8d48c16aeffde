"""Adapter to Flower's SecAgg+: its workflow on the server and its mod on the clients sum vectors of `wire.secure`.

Flower's protocol is made for its legacy strategies, of which it uses few methods; `_Round` provides them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server import Grid, LegacyContext
from flwr.server.strategy import Strategy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from torch import Tensor

from fedstride.core.errors import FedstrideError, InvalidInput
from fedstride.engine.flower import records, shares
from fedstride.wire.moments import MomentSum
from fedstride.wire.secure import LEAST, Layout

Handler = Callable[[Message, Context], Message]
Reply = tuple[int, RecordDict | str]  # index of a message, and its reply or the reason why there is none
Ask = Callable[[list[Message]], Iterable[Reply]]
Possible = Callable[[Tensor, list[int]], bool]


class NotSummed(FedstrideError, RuntimeError):
    """Too many nodes dropped out of a secure sum; `lost` has the reason of each node."""

    def __init__(self, message: str, lost: dict[int, str]) -> None:
        why = ", ".join(f"{reason}: {count}" for reason, count in sorted(Counter(lost.values()).items()))
        super().__init__(f"Secure sum: {message}" + (f" ({why})." if why else "."))
        self.lost = lost


class FalseSum(NotSummed):
    """The sum is impossible: a node has sent a false vector, and the protocol hides which one."""


@dataclass(frozen=True)
class Total:
    """The result of a secure sum: the vector, the nodes in it, and the traffic."""

    vector: Tensor
    nodes: list[int]
    lost: dict[int, str]  # node: reason
    false: int | None  # node whose shares of the others' secrets are false, so that they were not used
    bytes_up: int
    bytes_down: int


def masked(work: Callable[[Message, Context], Tensor]) -> Handler:
    """Return a function for a ClientApp's `train()`; the vector that `work` returns leaves the node only masked."""

    def answer(message: Message, context: Context) -> Message:
        vector = ndarrays_to_parameters([work(message, context).numpy()])
        return Message(fitres_to_recorddict(FitRes(Status(Code.OK, ""), vector, 1, {}), False), reply_to=message)

    def handle(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        if kind != MessageType.TRAIN:  # the mod does not mask other types
            raise InvalidInput(f"message_type={kind!r} is invalid: a secure sum expects {MessageType.TRAIN!r}.")
        accused = shares.unreadable(message, context)  # before the work, which would be in vain
        return secaggplus_mod(message, context, answer) if accused is None else Message(accused, reply_to=message)

    return handle


def secure_sum(
    ask: Ask,
    orders: Mapping[int, RecordDict],
    layout: Layout | MomentSum,
    round: int,
    possible: Possible = lambda total, nodes: True,
) -> Total:
    """Return the exact sum of the nodes' vectors, after four messages to each node.

    Every node gets its order once all have exchanged keys. If nodes drop out before, or if a node's keys or shares are
    false, the sum restarts without them; later, it succeeds as long as more than half of the nodes, and at least three,
    stay.

    Args:
        ask: sends messages, and returns the replies.
        orders: node: its order.
        layout: layout of the vectors.
        round: number of the round.
        possible: whether a vector can be the sum of the vectors of these nodes.

    Raises:
        FalseSum: if the sum is impossible.
        NotSummed: if too many nodes drop out.
    """
    if len(orders) < LEAST:
        raise InvalidInput(f"a secure sum of {len(orders)} nodes hides no client; expected at least {LEAST}.")
    run = _Round(ask, dict(orders), layout.size, len(orders))
    while run.nodes is None:
        if len(run.orders) < LEAST:
            raise run.too_few(f"at least {LEAST} must stay")
        with suppress(_Again):
            _attempt(run, layout, round, possible)
    lost = {node: why for node, why in run.lost.items() if node not in run.nodes}  # others had sent theirs
    return Total(cast(Tensor, run.total), run.nodes, lost, run.left_out, run.bytes_up, run.bytes_down)


def _attempt(run: _Round, layout: Layout | MomentSum, round: int, possible: Possible) -> None:
    """Run Flower's workflow. A sum that is impossible is unmasked again, each time without the shares of another node."""
    threshold = max(LEAST, len(run.orders) // 2 + 1)
    workflow = SecAggPlusWorkflow(
        num_shares=1.0,  # all nodes share keys with each other
        reconstruction_threshold=threshold,
        max_weight=1.0,
        clipping_range=layout.levels / 2,  # with this many levels, Flower's rounding is exact
        quantization_range=layout.levels,
    )
    grid, context, state = cast(Grid, run), _context(run, round), WorkflowState()
    run.opened, run.left_out = {}, None
    most = f"more than half, and at least {LEAST}, must stay"
    for stage in (workflow.setup_stage, workflow.share_keys_stage, workflow.collect_masked_vectors_stage):
        if not stage(grid, context, state):
            raise run.too_few(most)
    waiting: list[int | None] = [None]
    while waiting:
        run.left_out = waiting.pop(0)
        trial = copy(state)  # the stage changes it
        trial.nid_to_neighbours = {node: set(others) for node, others in state.nid_to_neighbours.items()}
        try:
            with np.errstate(all="ignore"):
                workflow.unmask_stage(grid, context, trial)
        except Exception:  # a false share can raise any exception
            if not run.opened:
                raise
        if len(run.opened) < threshold:
            raise run.too_few(most)
        if run.nodes is not None and possible(cast(Tensor, run.total), run.nodes):
            return
        run.nodes = None
        waiting = waiting if run.left_out is not None else [*run.opened] if len(run.opened) > threshold else []
    run.leave_out(shares.false_dealers(run.opened, threshold))
    raise FalseSum("the result is impossible, so a node has sent a false vector", run.lost)


class _Again(Exception):
    """Nodes dropped out before any of them got its order, or sent false keys or shares."""


@dataclass
class _Round:
    """The grid and the strategy that Flower's workflow uses."""

    ask: Ask
    orders: dict[int, RecordDict]
    size: int  # number of entries of a vector
    many: int  # number of nodes at first
    lost: dict[int, str] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    total: Tensor | None = None
    nodes: list[int] | None = None
    opened: dict[int, RecordDict] = field(default_factory=dict)  # shares for unmasking, by node
    left_out: int | None = None  # node whose shares for unmasking are not used

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self.orders]

    def aggregate_fit(self, _: int, results: list[tuple[Any, FitRes]], failures: Any) -> tuple[None, dict[str, Any]]:
        self.nodes = [proxy.node_id for proxy, _ in results]
        mean = torch.from_numpy(parameters_to_ndarrays(results[0][1].parameters)[0])
        self.total = (mean * len(results)).round()
        return None, {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = {message.metadata.dst_node_id: message for message in messages}
        stage = str(next(iter(asked.values())).content.config_records[RECORD_KEY_CONFIGS][Key.STAGE])
        if stage == Stage.COLLECT_MASKED_VECTORS:
            for node, message in asked.items():
                message.content.update(self.orders[node])
        good = self.opened or self._received(stage, asked)
        if stage == Stage.UNMASK:
            self.opened = good
        return [Message(good[node], reply_to=asked[node]) for node in good if node != self.left_out]

    def _received(self, stage: str, asked: dict[int, Message]) -> dict[int, RecordDict]:
        """Return the usable replies of a stage, by node."""
        self.bytes_down += sum(_size(message.content) for message in asked.values())
        good, sent = dict[int, RecordDict](), list(asked.values())
        for i, reply in self.ask(sent):
            node, why = sent[i].metadata.dst_node_id, reply if isinstance(reply, str) else None
            if not isinstance(reply, str):
                self.bytes_up += _size(reply)
                try:
                    good[node] = shares.checked(stage, reply, sent[i], asked, self.size)
                except records.Unusable as error:
                    why = str(error)
            if why is not None:
                self.lost[node] = why
        accusations = shares.accusations(good, asked)
        self.lost |= {node: "corrupt" for node, accused in accusations.items() if not accused}
        self.leave_out(shares.culprits(accusations) | (shares.same_keys(good) if stage == Stage.SETUP else set()))
        if len(good) < len(asked) and stage in (Stage.SETUP, Stage.SHARE_KEYS):
            self.leave_out(asked.keys() - good.keys())
        return good

    def leave_out(self, nodes: Set[int]) -> None:
        """Restart without these nodes, if there are any, and without those that have dropped out."""
        if nodes:
            self.lost = {**dict.fromkeys(sorted(nodes), shares.FALSE), **self.lost}
            self.orders = {node: order for node, order in self.orders.items() if node not in self.lost}
            raise _Again

    def too_few(self, what: str) -> NotSummed:
        return NotSummed(f"{len(self.lost)} of {self.many} nodes dropped out; {what}", self.lost)


def _context(run: _Round, round: int) -> LegacyContext:
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: round}),
            MAIN_PARAMS_RECORD: ArrayRecord(),
        }
    )
    return LegacyContext(Context(0, 0, {}, state, {}), strategy=cast(Strategy, run))


def _size(content: RecordDict) -> int:
    return int(recorddict_to_proto(content).ByteSize())  # a record's count_bytes() fails on empty values
