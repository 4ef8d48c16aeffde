"""Flower's SecAgg+ on real uploads: the plain mean within the stated error, and no readable upload.

`python -m tests.engine.test_secagg` prints the figures of a simulation on Ray, one line of JSON each;
`python -m tests.engine.test_secagg costs` what larger sums take, in one process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import Counter
from copy import deepcopy
from functools import lru_cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedstride as fs
from fedstride.wire.secure import Layout, Secure
from tests.problems import seeded
from tests.wire.test_secure import numbers, plain_mean, uploads

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import bytes_to_ndarray, ndarray_to_bytes
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.serverapp import ServerApp
from flwr.supercore.task_identity import TaskIdentity

from fedstride.engine.flower.nodes import Nodes
from fedstride.engine.flower.secagg import NotSummed, masked, secure_sum

pytestmark = pytest.mark.slow

ALGORITHMS = {"fedexp": fs.recipes.fedexp(), "scaffold": fs.recipes.scaffold()}
SECURE = Secure(10.0, {"control": 100.0})
NODES = 4
WEIGHTS = [1.0, 0.5, 0.25, 0.75]  # in units of the largest
STAGES = list(Stage.all())
QUIET = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}


@pytest.fixture(autouse=True)
def a_run(monkeypatch):
    """Set the run that Flower's messages belong to."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@lru_cache
def digits(name):
    """Return the uploads in round 2 of a softmax regression on digits: [(fields, metrics)] by client."""
    inputs, targets = (torch.tensor(v) for v in load_digits(return_X_y=True))
    clients = [((inputs[i::NODES] / 16).float(), targets[i::NODES]) for i in range(NODES)]
    model = seeded(lambda: nn.Linear(64, 10), torch.float32)
    sent = uploads(ALGORITHMS[name], model=model, clients=clients, local_steps=5, batch_size=20, weights=WEIGHTS)
    return [(fields, metrics) for _, fields, metrics in sorted(sent["updates", 1], key=lambda one: one[0])]


def layout_of(name):
    return SECURE.layout(numbers(ALGORITHMS[name], "updates", nn.Linear(64, 10)), NODES)


def order(name, client):
    facts = {"client": client, "algorithm": name, "layout": json.dumps(dataclasses.asdict(layout_of(name)))}
    return RecordDict({"order": ConfigRecord(facts)})


def work(message, context):
    """Execute an order on a node: repeat the local steps of its client."""
    given = message.content["order"]
    fields, metrics = digits(given["algorithm"])[given["client"]]
    return Layout(**json.loads(given["layout"])).encode(fields, metrics, WEIGHTS[given["client"]])


app = ClientApp()
app.train()(masked(work))


class Wire:
    """A grid whose nodes answer at once; some fail, or stay silent, at a (stage, node)."""

    def __init__(self, handler=app, errors=(), silent=(), nodes=NODES):
        self.handler, self.errors, self.silent = handler, errors, silent
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in range(11, 11 + nodes)}
        self.replies, self.pulled = {}, []

    def push_messages(self, messages):
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name = f"{len(self.replies)}"
            stage = message.content[RECORD_KEY_CONFIGS][Key.STAGE]
            self.replies[name] = None
            if (stage, node) in self.errors:
                self.replies[name] = Message(Error(2, "boom"), reply_to=message)
            elif (stage, node) not in self.silent:
                try:
                    self.replies[name] = self.handler(deepcopy(message), self.contexts[node])
                except Exception as error:
                    self.replies[name] = Message(Error(2, repr(error)), reply_to=message)
            names.append(name)
        return names

    def pull_messages(self, ids):
        found = [self.replies[name] for name in ids if self.replies[name] is not None]
        self.pulled += found
        return found


def orders(name, wire):
    return {node: order(name, client) for client, node in enumerate(wire.contexts)}


class Listening:
    """A grid that keeps all replies."""

    def __init__(self, grid):
        self.grid, self.pulled = grid, []
        self.push_messages, self.get_node_ids = grid.push_messages, grid.get_node_ids

    def pull_messages(self, ids):
        found = list(self.grid.pull_messages(ids))
        self.pulled += found
        return found


def asking(grid, seconds=120.0):
    nodes = Nodes(grid, "", NODES, lambda moving: {})
    return lambda messages: nodes.ask(messages, seconds)


def measured(grid, nodes, name):
    """Compare the secure sum of a recipe's uploads with their plain mean."""
    start, layout = time.perf_counter(), layout_of(name)
    total = secure_sum(asking(grid), {node: order(name, client) for client, node in enumerate(nodes)}, layout, 1)
    seconds, found = time.perf_counter() - start, layout.decode(total.vector)
    here = [nodes.index(node) for node in total.nodes]
    mean, weight = plain_mean([digits(name)[client][0] for client in here], [WEIGHTS[client] for client in here])
    return {
        "algorithm": name,
        "clients": found.clients,
        "shortened": found.shortened,
        "weight_error": abs(found.weight - weight),
        "error": {k: float((found.fields[k] - v).abs().max()) for k, v in mean.items()},
        "bound": {k: v for k, v in layout.error(weight).items() if k in mean},
        "largest": {k: float(v.abs().max()) for k, v in mean.items()},
        "in_the_clear": in_the_clear(grid.pulled, name, dict(zip(nodes, range(NODES), strict=True))),
        "seconds": round(seconds, 2),
        "messages": len(grid.pulled),
        "bytes_up": total.bytes_up,
        "bytes_down": total.bytes_down,
    }


def in_the_clear(replies, name, clients):
    """Return what a reply reveals of an upload: non-empty records, bytes of its numbers, unmasked numbers."""
    found = Counter()
    for reply in replies:
        fields, metrics = digits(name)[clients[reply.metadata.src_node_id]]
        vector = layout_of(name).encode(fields, metrics, WEIGHTS[clients[reply.metadata.src_node_id]])
        records = dict(reply.content)
        answer = records.pop(RECORD_KEY_CONFIGS)
        found["records"] += len(
            records.keys() - {f"fitres.{k}" for k in ("parameters", "num_examples", "metrics", "status")}
        )
        found["arrays"] += len(records.get("fitres.parameters", {})) + len(records.get("fitres.metrics", {}))
        found["counts"] += dict(records.get("fitres.num_examples", {"num_examples": 1})) != {"num_examples": 1}
        text = b"".join(
            v
            for value in answer.values()
            for v in (value if isinstance(value, list) else [value])
            if isinstance(v, bytes)
        )
        update = fields["update"][fields["update"] != 0]
        secrets = [fields["square"].double(), *update.double()[:50, None], *update[:50].view(-1, 2)]  # 8 bytes each
        found["bytes"] += sum(secret.numpy().tobytes() in text for secret in secrets)
        if Key.MASKED_PARAMETERS in answer:
            found["masked"] += 1
            sent = torch.from_numpy(bytes_to_ndarray(answer[Key.MASKED_PARAMETERS][1]))
            half = layout_of(name).levels // 2
            found["unmasked"] += int((sent == (vector + half).long()).sum())
    return dict(found)


def check(found, clients=NODES):
    assert found["clients"] == clients
    assert found["shortened"] == {}
    assert found["weight_error"] < 1e-8
    for name, error in found["error"].items():
        assert error <= found["bound"][name], name
        assert found["bound"][name] < 1e-6 * SECURE.bound**2
    shown = found["in_the_clear"]
    assert shown.pop("masked") == clients
    assert not any(shown.values()), shown


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_secure_mean_is_the_plain_mean_and_no_upload_is_readable(name):
    wire = Wire()
    found = measured(wire, list(wire.contexts), name)
    check(found)
    assert found["messages"] == 4 * NODES


def test_an_unmasked_upload_is_detected():
    fields, metrics = digits("fedexp")[0]
    layout = layout_of("fedexp")
    bare = (layout.encode(fields, metrics, WEIGHTS[0]) + layout.levels // 2).long().numpy()
    lists = {Key.MASKED_PARAMETERS: [b"", ndarray_to_bytes(bare)], "more": fields["square"].double().numpy().tobytes()}
    content = {RECORD_KEY_CONFIGS: ConfigRecord(lists), "fields": ArrayRecord([fields["update"].numpy()])}
    content["fitres.num_examples"] = MetricRecord({"num_examples": 449})
    reply = Message(RecordDict(content), reply_to=Message(order("fedexp", 0), 11, MessageType.TRAIN))
    shown = in_the_clear([reply], "fedexp", {11: 0})
    assert shown == {"masked": 1, "records": 1, "arrays": 0, "counts": 1, "bytes": 1, "unmasked": layout.size}


def test_several_rounds_run_on_the_same_nodes():
    wire = Wire()
    for name in ("fedexp", "scaffold", "fedexp"):
        wire.pulled.clear()
        check(measured(wire, list(wire.contexts), name))


@pytest.mark.parametrize("fault", ["errors", "silent"])
@pytest.mark.parametrize("stage", STAGES[:2])
def test_nodes_that_drop_out_before_their_order_are_left_out(stage, fault):
    wire = Wire(**{fault: [(stage, 12)]})
    total = secure_sum(asking(wire, 0.0), orders("fedexp", wire), layout_of("fedexp"), 1)
    assert sorted(total.nodes) == [11, 13, 14]
    assert total.lost == {12: "crashed" if fault == "errors" else "late"}
    assert layout_of("fedexp").decode(total.vector).clients == 3


@pytest.mark.parametrize("stage", STAGES[2:])
def test_the_sum_survives_a_later_drop_out(stage):
    wire = Wire(errors=[(stage, 12)])
    total = secure_sum(asking(wire), orders("scaffold", wire), layout_of("scaffold"), 1)
    counts = [11, 12, 13, 14] if stage == Stage.UNMASK else [11, 13, 14]  # at the end its vector is there already
    assert sorted(total.nodes) == counts
    assert total.lost == ({} if stage == Stage.UNMASK else {12: "crashed"})
    mean, weight = plain_mean([digits("scaffold")[n - 11][0] for n in counts], [WEIGHTS[n - 11] for n in counts])
    found = layout_of("scaffold").decode(total.vector)
    for name, bound in layout_of("scaffold").error(weight).items():
        assert name not in mean or (found.fields[name] - mean[name]).abs().max() <= bound


@pytest.mark.parametrize("stage", STAGES)
def test_too_few_remaining_nodes_raise_an_error_with_the_lost_ones(stage):
    wire = Wire(errors=[(stage, 12), (stage, 13)])
    with pytest.raises(NotSummed, match="2 of 4") as caught:
        secure_sum(asking(wire), orders("fedexp", wire), layout_of("fedexp"), 1)
    assert caught.value.lost == {12: "crashed", 13: "crashed"}


def test_a_sum_of_two_nodes_is_never_revealed():
    wire = Wire(errors=[(Stage.COLLECT_MASKED_VECTORS, 12)])
    three = {node: one for node, one in orders("fedexp", wire).items() if node < 14}
    with pytest.raises(NotSummed, match="1 of 3"):
        secure_sum(asking(wire), three, layout_of("fedexp"), 1)


def test_vectors_of_another_length_are_left_out():
    app = ClientApp()
    app.train()(masked(lambda message, context: torch.zeros(message.content["order"]["client"] + 2).double()))
    wire = Wire(app)
    with pytest.raises(NotSummed, match="4 of 4 nodes dropped out"):
        secure_sum(asking(wire), orders("fedexp", wire), layout_of("fedexp"), 1)


def test_a_node_whose_work_fails_is_lost():
    def fails(message, context):
        if message.content["order"]["client"] == 2:
            raise ArithmeticError("too large")
        return work(message, context)

    app = ClientApp()
    app.train()(masked(fails))
    wire = Wire(app)
    total = secure_sum(asking(wire), orders("fedexp", wire), layout_of("fedexp"), 1)
    assert total.lost == {13: "crashed"}


def test_a_server_that_asks_for_the_vector_without_the_protocol_gets_nothing():
    """Flower calls the same function for this message type, and its mod would not mask the reply."""
    asked = Message(order("fedexp", 0), 11, f"{MessageType.TRAIN}.default")
    with pytest.raises(fs.InvalidInput, match="secure sum expects"):
        app(asked, Context(1, 11, {}, RecordDict(), {}))


def test_two_nodes_are_refused_before_any_message():
    wire = Wire()
    with pytest.raises(fs.InvalidInput, match="at least 3"):
        secure_sum(asking(wire), {n: order("fedexp", 0) for n in (11, 12)}, layout_of("fedexp"), 1)
    assert not wire.replies


def test_secure_sums_on_ray_actors(tmp_path):
    out = subprocess.run(
        [sys.executable, "-m", "tests.engine.test_secagg"],
        env={**os.environ, **QUIET, "FLWR_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = [json.loads(line) for line in out.stdout.splitlines() if line.startswith('{"algorithm"')]
    assert [one["algorithm"] for one in found] == list(ALGORITHMS), out.stderr
    for one in found:
        check(one)
        assert one["messages"] == 4 * NODES


server = ServerApp()


@server.main()
def main(grid, context):
    nodes = []
    while len(nodes) < NODES:
        nodes = sorted(grid.get_node_ids())
    for name in ALGORITHMS:
        print(json.dumps(measured(Listening(grid), nodes, name)), flush=True)


def costs(clients, d):
    """Return CPU seconds, bytes and relative error of a sum of updates with half the largest norm."""
    layout, update = Secure(1.0).layout({"update": d, "square": 1}, clients), torch.randn(d, dtype=torch.float64)
    update /= 2 * update.norm()
    here, spent = masked(lambda *_: layout.encode({"update": update, "square": torch.full((1,), 0.25)}, {}, 1.0)), []

    def timed(message, context):
        start = time.process_time()
        reply = here(message, context)
        spent.append(time.process_time() - start)
        return reply

    wire = Wire(timed, nodes=clients)
    start = time.process_time()
    total = secure_sum(asking(wire), {node: RecordDict() for node in wire.contexts}, layout, 1)
    server = time.process_time() - start - sum(spent)
    error = float((layout.decode(total.vector).fields["update"] - update).norm() / update.norm())
    up, down = total.bytes_up // clients, total.bytes_down // clients
    print(f"{clients} {d} node {sum(spent) / clients:.3f} s server {server:.3f} s {up} B up {down} B down {error:.1e}")


if __name__ == "__main__" and sys.argv[1:] == ["costs"]:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    for clients, d in ((4, 10_000), (4, 1_000_000), (10, 1_000_000), (30, 10_000)):
        costs(clients, d)
elif __name__ == "__main__":
    from flwr.simulation import run_simulation

    from tests.engine import test_secagg as here  # a module that Ray's actors can import

    run_simulation(
        here.server, here.app, NODES, backend_config={"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1}}
    )
