"""Flower's simulation: FedAvg with a ClientApp of the Message API, on Ray with one core per client."""

# mypy: ignore-errors
# Runs in an environment of its own, where flwr is installed.

from __future__ import annotations

import os
import sys

import flwr
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from nets import LOSSES, load, vector
from serving import Stopwatch

FOLDER = os.environ.setdefault("BENCH_WORK", sys.argv[1] if len(sys.argv) > 1 else "")  # also read by Ray's workers
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context) -> Message:
    work, model, clients, order = load(FOLDER)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    i, r = context.node_config["partition-id"], message.content["config"]["server-round"] - 1
    (X, y), loss = clients[i], LOSSES[work["loss"]]
    optimizer = torch.optim.SGD(model.parameters(), lr=work["lr"])
    for index in order[r, i]:
        batch = (X, y) if work["batch"] is None else (X[index], y[index])
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(X)})}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def main(grid, context) -> None:
    work, model, _, _ = load(FOLDER)

    def after_round(r: int, arrays: ArrayRecord) -> None:
        def now():
            model.load_state_dict(arrays.to_torch_state_dict())
            return vector(model)

        pace(now)

    n = work["clients"]
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=work["rounds"], evaluate_fn=after_round)
    pace.reply(torch=torch.__version__, version=flwr.__version__)


if __name__ == "__main__":
    pace = Stopwatch()
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=load(FOLDER)[0]["clients"], backend_config=resources)
