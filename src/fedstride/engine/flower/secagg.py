"""Adapter to Flower's SecAgg+: its workflow on the server and its mod on the clients sum vectors of `wire.secure`.

Flower's protocol is made for its legacy strategies, of which it uses few methods; `_Round` provides them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

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
from torch import Tensor

from fedstride.core.errors import FedstrideError, InvalidInput
from fedstride.wire.moments import MomentSum
from fedstride.wire.secure import LEAST, Layout

Handler = Callable[[Message, Context], Message]
Reply = tuple[int, RecordDict | str]  # index of a message, and its reply or the reason why there is none
Ask = Callable[[list[Message]], Iterable[Reply]]


class NotSummed(FedstrideError, RuntimeError):
    """Too many nodes dropped out of a secure sum; `lost` has the reason of each node."""

    def __init__(self, message: str, lost: dict[int, str]) -> None:
        why = ", ".join(f"{reason}: {count}" for reason, count in sorted(Counter(lost.values()).items()))
        super().__init__(f"Secure sum: {message}" + (f" ({why})." if why else "."))
        self.lost = lost


@dataclass(frozen=True)
class Total:
    """The result of a secure sum: the vector, the nodes in it, and the traffic."""

    vector: Tensor
    nodes: list[int]
    lost: dict[int, str]  # node: reason
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
        return secaggplus_mod(message, context, answer)

    return handle


def secure_sum(ask: Ask, orders: Mapping[int, RecordDict], layout: Layout | MomentSum, round: int) -> Total:
    """Return the exact sum of the nodes' vectors, after four messages to each node.

    Every node gets its order once all have exchanged keys. If nodes drop out before, the sum restarts without them;
    later, it succeeds as long as more than half of the nodes, and at least three, stay.

    Raises:
        NotSummed: if too many nodes drop out, or if their messages do not fit together.
    """
    if len(orders) < LEAST:
        raise InvalidInput(f"a secure sum of {len(orders)} nodes hides no client; expected at least {LEAST}.")
    run = _Round(ask, dict(orders))
    while run.nodes is None:
        if len(run.orders) < LEAST:
            raise NotSummed(f"{len(run.lost)} of {len(orders)} nodes dropped out; at least {LEAST} must stay", run.lost)
        workflow = SecAggPlusWorkflow(
            num_shares=1.0,  # all nodes share keys with each other
            reconstruction_threshold=max(LEAST, len(run.orders) // 2 + 1),
            max_weight=1.0,
            clipping_range=layout.levels / 2,  # with this many levels, Flower's rounding is exact
            quantization_range=layout.levels,
        )
        try:
            workflow(cast(Grid, run), _context(run, round))
        except _Again:
            continue
        except FedstrideError:
            raise
        except Exception as error:  # Flower decodes keys and shares of the nodes, whatever they contain
            raise NotSummed(f"the nodes' messages do not fit together ({type(error).__name__})", run.lost) from error
        if run.nodes is None:
            raise NotSummed(
                f"{len(run.lost)} of {len(orders)} nodes dropped out; more than half, and at least {LEAST}, must stay",
                run.lost,
            )
    lost = {node: why for node, why in run.lost.items() if node not in run.nodes}  # others had sent theirs
    return Total(cast(Tensor, run.total), run.nodes, lost, run.bytes_up, run.bytes_down)


class _Again(Exception):
    """Nodes dropped out before any of them got its order."""


@dataclass
class _Round:
    """The grid and the strategy that Flower's workflow uses."""

    ask: Ask
    orders: dict[int, RecordDict]
    lost: dict[int, str] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    total: Tensor | None = None
    nodes: list[int] | None = None

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        return [(SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {})) for node in self.orders]

    def aggregate_fit(self, _: int, results: list[tuple[Any, FitRes]], failures: Any) -> tuple[None, dict[str, Any]]:
        self.nodes = [proxy.node_id for proxy, _ in results]
        mean = torch.from_numpy(parameters_to_ndarrays(results[0][1].parameters)[0])
        self.total = (mean * len(results)).round()
        return None, {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked, good = list(messages), []
        stage = asked[0].content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if stage == Stage.COLLECT_MASKED_VECTORS:
            for message in asked:
                message.content.update(self.orders[message.metadata.dst_node_id])
        self.bytes_down += sum(_size(message.content) for message in asked)
        for i, reply in self.ask(asked):
            if isinstance(reply, str):
                self.lost[asked[i].metadata.dst_node_id] = reply
            else:
                self.bytes_up += _size(reply)
                good.append(Message(reply, reply_to=asked[i]))
        if len(good) < len(asked) and stage in (Stage.SETUP, Stage.SHARE_KEYS):
            self.orders = {node: order for node, order in self.orders.items() if node not in self.lost}
            raise _Again
        return good


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
