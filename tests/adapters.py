"""A small model with low-rank adapters, built like those of peft."""

from __future__ import annotations

import torch
from torch import nn


class Adapted(nn.Module):
    """A frozen linear layer plus s B A."""

    def __init__(self, columns: int, rows: int, rank: int = 2, scaling: float = 2.0) -> None:
        super().__init__()
        self.base_layer = nn.Linear(columns, rows).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(columns, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, rows, bias=False)})
        self.scaling = {"default": scaling}
        nn.init.zeros_(self.lora_B["default"].weight)

    def product(self) -> torch.Tensor:
        return self.scaling["default"] * self.lora_B["default"].weight @ self.lora_A["default"].weight

    def dense(self) -> torch.Tensor:
        """W + s B A."""
        return (self.base_layer.weight + self.product()).detach()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        low = self.lora_B["default"](self.lora_A["default"](inputs))
        return self.base_layer(inputs) + self.scaling["default"] * low


class Transposed(nn.Module):
    """Conv1D of transformers: a linear layer whose weight is stored as [columns, rows]."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, rows) / columns**0.5, requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight


def adapted(rank: int = 2) -> nn.Sequential:
    """Two adapted layers, one of them transposed, and a trained head, in float64."""
    torch.manual_seed(0)
    second = Adapted(6, 4, rank)
    second.base_layer, second.fan_in_fan_out = Transposed(6, 4), True
    return nn.Sequential(Adapted(5, 6, rank), nn.Tanh(), second, nn.Tanh(), nn.Linear(4, 3)).double()


def clients(count: int = 4, samples: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs around other means, with the same linear classes."""
    source = torch.Generator().manual_seed(1)
    X = torch.randn(count, samples, 5, generator=source, dtype=torch.float64)
    X += torch.randn(count, 1, 5, generator=source, dtype=torch.float64)
    truth = torch.randn(5, 3, generator=source, dtype=torch.float64)
    return [(inputs, (inputs @ truth).argmax(1)) for inputs in X]
