"""Models and data of the benchmark in plain PyTorch, for programs that run without fedstride."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from serving import read  # type: ignore[import-not-found]  # these programs run where fedstride is not installed
from torch import Tensor, nn

LOSSES = {"mse": F.mse_loss, "cross_entropy": F.cross_entropy}


class LSTM(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, windows: Tensor) -> Tensor:
        scores: Tensor = self.head(self.lstm(self.embedding(windows))[0][:, -1])
        return scores


def convolution(inside: int, outside: int, stride: int, side: int = 3) -> list[nn.Module]:
    return [nn.Conv2d(inside, outside, side, stride, side // 2, bias=False), nn.GroupNorm(32, outside)]


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *convolution(inside, outside, stride), nn.ReLU(), *convolution(outside, outside, stride=1)
        )
        same = inside == outside
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolution(inside, outside, stride, side=1))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.relu(self.path(inputs) + self.shortcut(inputs))


def resnet18(channels: int, classes: int) -> nn.Module:
    layers = [*convolution(channels, 64, 1), nn.ReLU()]
    for inside, outside, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def cnn(classes: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, classes)),
    )


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.mixed, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        self.mlp = nn.Sequential(nn.LayerNorm(width), *wide)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self, length: int, classes: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.positions, self.tokens = nn.Parameter(torch.zeros(length, width)), nn.Embedding(classes, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(self.tokens(tokens) + self.positions).mean(1))
        return scores


def build(model: str, shape: list[int], classes: int) -> nn.Module:
    if model == "lstm":
        return LSTM(classes, 8, 128)
    if model == "transformer":
        return Transformer(shape[0], classes, 64, 2, 4)
    if model == "mlp":
        return nn.Sequential(nn.Linear(math.prod(shape), 200), nn.ReLU(), nn.Linear(200, classes))
    if model == "resnet18":
        return resnet18(shape[0], classes)
    return cnn(classes) if model == "cnn" else nn.Linear(math.prod(shape), classes, bias=model == "softmax")


@functools.cache  # Flower's workers call it for every client
def load(folder: str) -> tuple[dict[str, Any], nn.Module, list[tuple[Tensor, Tensor]], Tensor]:
    """Return the workload, the initial model, the clients' data, and the order of their samples."""
    work, arrays = read(folder)
    found = {name: torch.from_numpy(array) for name, array in arrays.items()}
    dtype = getattr(torch, work["dtype"])
    model = build(work["model"], work["shape"], work["classes"]).to(dtype)
    nn.utils.vector_to_parameters(found["x"].to(dtype), model.parameters())
    X, y = (t.to(dtype) if t.is_floating_point() else t for t in (found["X"], found["y"]))
    return work, model, list(zip(X, y, strict=True)), found["order"]


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()
