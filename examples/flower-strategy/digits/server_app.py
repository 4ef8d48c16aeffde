"""The server of the quickstart, with a strategy of fedstride in place of Flower's FedAvg."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import fedstride.flower
from digits.task import Net, load_all
from digits.task import test as test_fn

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    rule = getattr(fedstride.flower, config["strategy"])
    strategy = rule(checkpoint=config["checkpoint"] or None)
    result = strategy.start(
        grid=grid, initial_arrays=arrays, num_rounds=config["num-server-rounds"], evaluate_fn=global_evaluate
    )
    print(result.evaluate_metrics_serverapp[config["num-server-rounds"]])


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test_fn(model, load_all()[1])
    return MetricRecord({"test_loss": loss, "test_accuracy": accuracy})
