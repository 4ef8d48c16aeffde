"""An exchange with secure aggregation: the server sees only the sum of the uploads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedstride.algorithm import Algorithm
from fedstride.algorithm.text import NOTHING, parse_setting, split
from fedstride.client.exchange import MOMENTS, Upload
from fedstride.client.personal import Personal
from fedstride.core.errors import InvalidInput, Refused, tell
from fedstride.core.rows import State, Vec, sq
from fedstride.engine.flower import records
from fedstride.engine.flower.secagg import FalseSum, NotSummed, Total, secure_sum
from fedstride.engine.protocol import Order, Reply
from fedstride.wire.moments import MomentSum, beyond
from fedstride.wire.secure import COUNTS, LEAST, MEANS, Layout, Secure, Summed

if TYPE_CHECKING:
    from fedstride.engine.flower.clients import FlowerClients


def secure_of(setting: object) -> Secure | None:
    """Parse the setting `secure`: a bound, optionally followed by bounds of other fields, as in "10, control=100"."""
    if setting is None or setting == NOTHING:
        return None
    first, *others = split(str(setting)) or [""]
    try:
        return Secure(float(first), dict(map(parse_setting, others)))
    except ValueError as error:
        raise InvalidInput(
            f"secure={setting!r} is invalid ({error}): expected the largest norm of an update, as in 10.0, and bounds of other "
            'fields if needed, as in "10, control=100".'
        ) from error


# On the server.


def check(secure: Secure, a: Algorithm, fields: Sequence[Mapping[str, int]], clients: int) -> None:
    """Refuse uploads that cannot be summed, before the first round."""
    if a.aggregate is not None:
        raise Refused(f"secure with {type(a.aggregate).__name__}: it needs individual uploads. Drop one of them.")
    if a.up is not None:
        raise Refused(
            "secure with a compressor: masked vectors are dense, so compression saves nothing. Drop one of them."
        )
    for numbers in fields:
        secure.layout(numbers, clients)


def exchange(clients: FlowerClients, order: Order, secure: Secure, here: list[int]) -> Reply:
    """Run an exchange with the clients that are online, at the positions `here` of the cohort."""
    lost = {client: "offline" for position, (client, _) in enumerate(order.cohort) if position not in here}
    if len(here) < LEAST:
        return _nothing(order, {client: lost.get(client, "not summed") for client, _ in order.cohort})
    weights = {order.cohort[p][0]: clients.task.weights[order.cohort[p][0]] for p in here}
    at = {clients.nodes.at[client]: client for client in weights}
    layout: Layout | MomentSum
    if order.kind == MOMENTS:
        layout = MomentSum(clients.features, secure.inputs, len(here))
    else:
        layout = secure.layout(clients.layout(order)[0], len(here))
    try:
        orders = _orders(clients, order, here, layout, weights)
        total = _summed(clients, order, layout, orders, at)
    except NotSummed as error:
        tell(f"round {order.round + 1}: {error}")
        return _nothing(order, {**lost, **{c: error.lost.get(n, "not summed") for n, c in at.items()}})
    lost = lost | {at[node]: why for node, why in total.lost.items()}
    if isinstance(layout, MomentSum):
        many, sums = len(total.nodes), layout.decode(total.vector).to(order.x)
        return Reply({MOMENTS: sums / many}, float(many), {}, total.bytes_up, lost, Counter(lost.values()))
    found = layout.decode(total.vector)
    if not found.fields:
        return _nothing(order, {**lost, **{at[node]: "not finite" for node in total.nodes}})
    for name, count in found.shortened.items():
        tell(f"round {order.round + 1}: {count} clients had to clip {name!r}; give it a larger bound.")
    clients.remembered(order, [at[node] for node in total.nodes])
    return _reply(order, found, total, lost, max(weights.values()))


def _summed(
    clients: FlowerClients,
    order: Order,
    layout: Layout | MomentSum,
    orders: dict[int, RecordDict],
    at: Mapping[int, int],
) -> Total:
    """Return the sum. If it is impossible, sum again, each time without a group of nodes, the most suspicious ones first.

    Never without fewer than LEAST nodes: the difference of two sums would reveal what they sent.
    """

    def possible(vector: Tensor, nodes: list[int]) -> bool:
        if isinstance(layout, Layout):
            return layout.possible(vector, len(nodes))
        return float(layout.decode(vector)[0]) == sum(clients.task.clients.sizes[at[node]] for node in nodes)

    def attempt(orders: dict[int, RecordDict]) -> Total:
        total = secure_sum(lambda sent: _asked(clients, order, sent, at), orders, layout, order.round, possible)
        if total.false is not None:
            tell(
                f"round {order.round + 1}: {who(at[total.false])} sent false shares; the sum was possible without them."
            )
        return total

    who = clients.nodes.label
    try:
        return attempt(orders)
    except FalseSum as error:
        failed = error
    for group in groups(sorted(orders, key=lambda node: (-clients.suspects[at[node]], node))):
        if len(orders) - len(group) < LEAST:
            break
        without = ", ".join(who(at[node]) for node in group)
        tell(f"round {order.round + 1}: {failed} The sum is repeated without {without}.")
        try:
            total = attempt({node: one for node, one in orders.items() if node not in group})
        except FalseSum as error:
            failed = error
        else:
            clients.suspects.update(at[node] for node in group)
            return replace(total, lost={**total.lost, **dict.fromkeys(group, "false vector")})
    raise failed


def groups(nodes: Sequence[int]) -> list[Sequence[int]]:
    """Split nodes into groups of at least LEAST."""
    many = max(1, len(nodes) // LEAST)
    edges = [len(nodes) * i // many for i in range(many + 1)]
    return [nodes[a:b] for a, b in pairwise(edges)]


def _orders(
    clients: FlowerClients, order: Order, here: list[int], layout: Layout | MomentSum, weights: Mapping[int, float]
) -> dict[int, RecordDict]:
    largest, text, orders = max(weights.values()), json.dumps(asdict(layout)), {}
    for position, message in zip(here, clients.messages(order, here), strict=True):
        weight = weights[order.cohort[position][0]] / largest
        facts: dict[str, str | float] = {"kind": order.kind, "layout": text, "weight": weight}
        orders[message.metadata.dst_node_id] = RecordDict({**message.content, "secure": ConfigRecord({**facts})})
    return orders


def _asked(
    clients: FlowerClients, order: Order, messages: list[Message], at: Mapping[int, int]
) -> Iterator[tuple[int, RecordDict | str]]:
    for i, reply in clients.nodes.ask(messages, clients.engine.deadline):
        try:
            yield i, clients.usable(reply, order, at[messages[i].metadata.dst_node_id])
        except records.Unusable as error:
            yield i, str(error)


def _reply(order: Order, found: Summed, total: Total, lost: dict[int, str], largest: float) -> Reply:
    """Build the reply. Single clients are unknown: each gets the mean of a metric, and the first one all counts."""
    x, many = order.x, len(order.cohort) - len(lost)
    fields = {name: v.to(x) for name, v in found.fields.items()}
    square = fields["square"] if "square" in fields else sq(fields["gradient"])[None]
    metrics: dict[str, Tensor] = {name: torch.full((many,), found.metrics[name], dtype=x.dtype) for name in MEANS}
    for name in COUNTS:
        metrics[name] = torch.zeros(many, dtype=torch.int64)
        metrics[name][0] = int(found.metrics[name])
    metrics["square"] = square.expand(many)
    refused = Counter(lost.values())
    refused["not finite"] += len(total.nodes) - found.clients
    return Reply(fields, found.weight * largest, metrics, total.bytes_up, lost, +refused)


def _nothing(order: Order, lost: dict[int, str]) -> Reply:
    empty = {name: order.x.new_empty(0) for name in (*MEANS, *COUNTS, "square")}
    return Reply({}, 0.0, empty, 0, lost, Counter(lost.values()))


# On a node.


def check_inputs(setting: object, inputs: Tensor) -> None:
    """Refuse inputs beyond the range of a secure sum."""
    secure = secure_of(setting)
    if secure is not None and float(inputs.abs().max()) > secure.inputs:
        raise beyond(secure.inputs)


def asked_for(content: RecordDict) -> tuple[str, Layout | MomentSum, float]:
    """Return the exchange, the layout, and the weight relative to the largest, of an order for a secure sum."""
    facts: Mapping[str, Any] = content.config_records["secure"]
    layout = MomentSum if facts["kind"] == MOMENTS else Layout
    return facts["kind"], layout(**json.loads(facts["layout"])), float(facts["weight"])


def encoded(upload: Upload, layout: Layout | MomentSum, weight: float) -> Tensor:
    """Encode an upload for a secure sum; moments are not weighted."""
    fields = {name: v[0] for name, v in upload.fields.items()}
    if isinstance(layout, MomentSum):
        return layout.encode(fields[MOMENTS])
    return layout.encode(fields, {name: float(v) for name, v in upload.metrics.items()}, weight)


def remembered(upload: Upload, layout: Layout | None, before: State, personal: Personal | None = None) -> State:
    """Return the client's memory after an upload.

    In a secure sum, it stays as before if the upload was not finite, and a clipped control is remembered as sent.
    """
    memory = {name: v[0] for name, v in upload.memory.items()}
    if layout is None:
        return memory
    fields = {name: v[0] for name, v in upload.fields.items()}
    if not bool(upload.metrics["finite"]) or not all(bool(torch.isfinite(v).all()) for v in fields.values()):
        return before
    if "control" in fields and "control" in memory:
        sent: Vec = layout.shorten({"control": fields["control"]})[0]["control"]
        less = sent - fields["control"]
        memory["control"] = memory["control"] + (less if personal is None else personal.whole(less))
    return memory
