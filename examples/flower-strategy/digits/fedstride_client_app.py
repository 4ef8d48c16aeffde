"""The client with one other line, for rules whose clients do more: Auto, FedSLS, Scaffold, FedLin, ..."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedstride.flower
from digits.client_app import evaluate
from digits.task import Net, load_data

app = ClientApp()
app.evaluate()(evaluate)


@app.train()
def train(msg: Message, context: Context) -> Message:
    model, config = Net(), context.run_config
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    options = {"epochs": config["local-epochs"], "batch_size": config["batch-size"]}
    return fedstride.flower.train(msg, context, model, "cross_entropy", data, **options)
