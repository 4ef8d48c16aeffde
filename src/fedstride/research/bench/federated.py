"""The Flower side of the engine benchmarks: one app that trains all cases of a job over one grid."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from fedstride.algorithm.text import algorithm_of
from fedstride.client.exchange import Upload, layout
from fedstride.core.files import replace_file
from fedstride.core.rows import sq
from fedstride.engine import flower
from fedstride.engine.admission import admit
from fedstride.engine.flower import records
from fedstride.engine.flower.nodes import Nodes
from fedstride.engine.flower.project import Settings
from fedstride.engine.flower.server import gathered
from fedstride.engine.local import one_thread
from fedstride.engine.protocol import Order
from fedstride.research.bench.cases import LOSS, CaseTiming, Digits, Models, Square, case_of, keep, settings
from fedstride.research.bench.launch import APP, ENDED, JOB
from fedstride.training.rounds import Event
from fedstride.wire import WeightedMean

POLL = 0.02  # seconds between polls for replies, in the app without fedstride
DEADLINE = 900.0  # seconds per exchange


def _data(settings: Settings, node: Settings) -> tuple[Tensor, Tensor]:
    return case_of(settings).samples(node["partition-id"])


PROJECT = flower.Project(lambda s: case_of(s).model(), LOSS, _data, lambda s: case_of(s).test())
client = flower.client_app(PROJECT)


def serve(folder: str, grid: Grid) -> None:
    """Run the job of a folder; the outcome is written to a file, because Flower's exit codes do not report it."""
    place, why = Path(folder), ""
    try:
        job = json.loads((place / JOB).read_text())
        if job["do"] == "parity":
            _parity(place, grid, job["recipes"], job["rounds"])
        else:
            _wire(place, Counted(grid), [Square(**case) for case in job["cases"]], job["repeats"])
    except BaseException:
        why = traceback.format_exc()
        raise
    finally:
        replace_file(place / ENDED, why.encode())


def _parity(place: Path, grid: Grid, recipes: Sequence[str], rounds: int) -> None:
    nodes: Nodes | None = None
    for recipe in recipes:
        models, given = Models(), {**settings(Digits(recipe, str(place.parent)), rounds), "deadline": DEADLINE}
        nodes = nodes or gathered(PROJECT, grid, given)  # the nodes do not depend on the recipe
        done = flower.train(PROJECT, grid, given, [models], nodes)
        keep(place / f"{recipe}.safetensors", models.found, list(done.history))


class Counted:
    """A grid that counts the bytes of its messages if enabled, because counting takes time."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.counting, self.down, self.up = grid, False, 0, 0

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        self.down += self._size(sent)
        return self.grid.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self.grid.pull_messages(message_ids))
        self.up += self._size(replies)
        return replies

    def _size(self, messages: Sequence[Message]) -> int:
        return sum(message_to_proto(m).ByteSize() for m in messages) if self.counting else 0


def _wire(place: Path, grid: Counted, cases: Sequence[Square], repeats: int) -> None:
    """Alternate rounds of fedstride and of a minimal app; the first round is a warm-up in which bytes are counted."""
    for i, case in enumerate(cases):
        given = {**settings(case, repeats + 1), "deadline": DEADLINE}
        nodes = gathered(PROJECT, cast(Grid, grid), given)
        found = CaseTiming(vars(case))
        grid.down, grid.up, grid.counting = 0, 0, True
        start = time.perf_counter()

        def watch(event: Event, case: Square = case, nodes: Nodes = nodes, found: CaseTiming = found) -> None:
            nonlocal start
            seconds = time.perf_counter() - start
            if event.round == 1:
                found.counted = [event.metrics["bytes_down"], event.metrics["bytes_up"]]
                found.real = [grid.down, grid.up]
                grid.counting = False
            if event.round:
                plain = _echo(grid, [nodes.at[c] for c in range(case.clients)], event.x)
                if event.round > 1:
                    found.seconds.append(seconds)
                    found.floor.append(plain)
            start = time.perf_counter()

        flower.train(PROJECT, cast(Grid, grid), given, [watch], nodes)
        replace_file(place / f"{i}.json", json.dumps(vars(found)).encode())


def _echo(grid: Counted, nodes: Sequence[int], x: Tensor) -> float:
    """Return the seconds to send the same array to all nodes and back, in an app that does nothing else."""
    start = time.perf_counter()
    record = ArrayRecord([x.numpy()])
    messages = [Message(RecordDict({"arrays": record}), node, "train.echo", ttl=DEADLINE) for node in nodes]
    pending = set(grid.push_messages(messages))
    while pending:
        for reply in grid.pull_messages(list(pending)):
            pending.remove(reply.metadata.reply_to_message_id)
            reply.content.array_records["arrays"].to_numpy_ndarrays()
        if pending:
            time.sleep(POLL)
    return time.perf_counter() - start


def ingest(parameters: int, replies: int = 20) -> tuple[float, int]:
    """Return the median (seconds, bytes) to process a reply on one thread: parse, check, admit, add to the sum."""
    algorithm, x = algorithm_of("fedavg"), torch.zeros(parameters)
    order = Order("updates", x, x[:0], {}, 0, [(0, 1)])
    fields, metrics = layout(algorithm, "updates", [x.shape])
    update = torch.randn(1, parameters)
    numbers = {name: torch.ones(1, 1) for name in metrics}
    upload = Upload({"update": update, "square": sq(update)}, numbers, {}, [update.nbytes])
    # Flower's messages need the identity of an app's process, which this process is not.
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    data = message_to_proto(Message(records.uploaded(upload, order), 1, "train.updates")).SerializeToString()
    total, seconds = WeightedMean(), []
    with one_thread():
        for position in range(replies):
            start, proto = time.perf_counter(), Proto()
            proto.ParseFromString(data)
            found = records.admitted(message_from_proto(proto).content, order, 0, fields, metrics)
            total.add_rows(position, [1.0], admit(found, [0], 0).fields)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), len(data)


def simulate(nodes: int) -> None:
    from flwr.simulation import run_simulation

    app = importlib.import_module(APP)  # imported by name, so that Ray's workers find it
    lean: Any = {"num_cpus": os.cpu_count(), "include_dashboard": False}
    run_simulation(
        app.server, app.client, nodes, backend_config={"client_resources": {"num_cpus": 1}, "init_args": lean}
    )


if __name__ == "__main__":
    simulate(int(sys.argv[1]))
