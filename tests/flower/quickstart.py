"""An app as in Flower's quickstart for PyTorch, for the tests of strategies, and a grid that runs it in this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import fedstride.flower
from tests.engine import grid

SIZES = (12, 9, 15)
LR, STEPS = 0.2, 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.tanh(self.fc1(x)))


def make_model(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net().double()


def load_data(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(partition)
    inputs = torch.randn(SIZES[partition], 4, generator=source, dtype=torch.float64) + partition / 2
    return inputs, ((inputs.sum(1) > partition).long() + (inputs[:, 0] > 0).long())


def train_fn(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """The app's own training loop: full batches, so that it is easy to compare with."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    first = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        first = loss.item() if first is None else first
    return first


def unchanged_client() -> ClientApp:
    """The client of the quickstart, which knows nothing of fedstride."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = make_model(seed=9)
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        inputs, targets = load_data(context.node_config["partition-id"])
        loss = train_fn(model, inputs, targets)
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(inputs)})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)

    app.evaluate()(evaluate)
    return app


def fedstride_client(**settings: Any) -> ClientApp:
    """The same client with one other line."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        model = make_model(seed=9)
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        data = load_data(context.node_config["partition-id"])
        return fedstride.flower.train(msg, context, model, "cross_entropy", data, **settings)

    app.evaluate()(evaluate)
    return app


def evaluate(msg: Message, context: Context) -> Message:
    model = make_model(seed=9)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    inputs, targets = load_data(context.node_config["partition-id"])
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(model(inputs), targets))
    metrics = MetricRecord({"eval_loss": loss, "num-examples": len(inputs)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


def initial() -> ArrayRecord:
    return ArrayRecord(make_model().state_dict())


class Grid(grid.Grid):
    """The grid of this process, with a list of the messages that it sent."""

    def __init__(self, app: ClientApp, ids: Iterable[int] = (7, 3, 5)) -> None:
        super().__init__(app, {node: {"partition-id": i} for i, node in enumerate(ids)})
        self.sent: list[Message] = []

    def push_messages(self, messages: list[Message]) -> list[str]:
        self.sent += [message for message in messages if "run" not in message.content]  # without the roll call
        return super().push_messages(messages)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The call of Flower's own strategies."""
        return self.pull_messages([key for key in self.push_messages(list(messages)) if key])


def row(record: ArrayRecord) -> torch.Tensor:
    return torch.cat([torch.from_numpy(array.numpy()).reshape(-1) for array in record.values()])
