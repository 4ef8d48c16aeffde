"""Model, data and training loop: nothing here knows fedstride."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def load_all() -> tuple[TensorDataset, TensorDataset]:
    """Return training and test samples, shuffled in the same way everywhere."""
    inputs, targets = load_digits(return_X_y=True)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    inputs, targets = torch.tensor(inputs / 16.0, dtype=torch.float32)[order], torch.tensor(targets)[order]
    return TensorDataset(inputs[:1437], targets[:1437]), TensorDataset(inputs[1437:], targets[1437:])


def load_data(partition: int, partitions: int) -> TensorDataset:
    """Return the samples of a client: two or three of the ten classes, so that clients differ."""
    inputs, targets = load_all()[0].tensors
    mine = torch.chunk(torch.argsort(targets, stable=True), 2 * partitions)
    index = torch.cat([mine[partition], mine[partition + partitions]])
    return TensorDataset(inputs[index], targets[index])


def train(model: nn.Module, data: TensorDataset, epochs: int, lr: float, batch_size: int) -> float:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=lr), []
    for _ in range(epochs):
        for inputs, targets in DataLoader(data, batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(model: nn.Module, data: TensorDataset) -> tuple[float, float]:
    inputs, targets = data.tensors
    with torch.no_grad():
        output = model(inputs)
    return nn.functional.cross_entropy(output, targets).item(), (output.argmax(1) == targets).float().mean().item()
