"""Inputs with mean 0 and deviation 1: statistics of the whole federation, from sums over its clients.

Features are the channels of samples with three or more dimensions (dimension 1 of a batch), else the columns (the last
dimension). Every sample counts once, whatever the clients' weights. The deviation divides by n, as scikit-learn's
StandardScaler does.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedstride.core.rows import Vec

INPUTS = "inputs"  # name of the scaling in what the server broadcasts
BLOCK = 2**22  # numbers that are converted to float64 together
NOISE = 1e-14  # share of the squared mean that rounding may leave where the clients' means are equal


def features_of(shape: Sequence[int]) -> int:
    """Number of features of a sample of this shape."""
    return shape[0] if len(shape) >= 3 else shape[-1] if shape else 1


def moments(inputs: Tensor) -> Vec:
    """What a client contributes: its number of samples n; per feature n mean, n mean^2 and n variance, in float64.

    Sums of these over clients are all that scaling_of needs. The variance is taken around the client's own mean, because
    a small deviation would be lost in the squares of large values.
    """
    if inputs.device.type == "mps":  # it has no float64
        inputs = inputs.cpu()
    X = _columns(inputs)
    n, values, blocks = len(inputs), len(X), torch.split(X, max(1, BLOCK // X.shape[1]))
    origin = X[0].double()  # a constant feature deviates by exactly 0 from it
    shift, within = torch.zeros_like(origin), torch.zeros_like(origin)
    for block in blocks:
        shift += (block.double() - origin).sum(0) / values
    for block in blocks:
        within += (block.double() - origin - shift).square().sum(0)
    mean = origin + shift
    return torch.cat([mean.new_tensor([n]), n * mean, n * mean.square(), n * (within / values)])


def scaling_of(sums: Vec, dtype: torch.dtype) -> Vec:
    """[means, deviations] from sums of moments, or any multiple of them; constant features get the deviation 1."""
    n, (total, squares, within) = sums[0], sums[1:].view(3, -1)
    mean = total / n
    between = squares / n - mean.square()
    between = torch.where(between > NOISE * mean.square(), between, 0.0)
    deviation = (within / n + between).sqrt()
    constant = (deviation <= 4 * torch.finfo(dtype).eps * mean.abs()) | (deviation.to(dtype) == 0)
    return torch.cat([mean, torch.where(constant, 1.0, deviation)]).to(dtype)


def scaled(inputs: Tensor, scaling: Vec) -> Tensor:
    """(inputs - mean) / deviation, feature by feature."""
    mean, deviation = (_shaped(v, inputs.dim()) for v in scaling.to(inputs.device).chunk(2))
    return (inputs - mean) / deviation


def scaled_by_itself(inputs: Tensor) -> Tensor:
    """A batch by its own statistics: to try a model out on values like those that it will see."""
    return scaled(inputs, scaling_of(moments(inputs), inputs.dtype))


class Normalised(nn.Module):
    """A model for raw inputs around one for normalised inputs. Mean and scale are buffers and are saved with it."""

    mean: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    @classmethod
    def by(cls, model: nn.Module, scaling: Vec) -> Normalised:
        mean, scale = scaling.clone().chunk(2)
        return cls(model, mean.clone(), scale.clone())

    @classmethod
    def around(cls, model: nn.Module, features: int) -> Normalised:
        """One to load weights into: a copy of the model, wrapped unless it is already."""
        own = copy.deepcopy(model)
        like = next(iter(own.parameters()), torch.empty(0))
        return own if isinstance(own, cls) else cls(own, like.new_zeros(features), like.new_ones(features))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.model(self.normalised(inputs))
        return output

    def normalised(self, inputs: Tensor) -> Tensor:
        """What the inner model sees."""
        return scaled(inputs, torch.cat([self.mean, self.scale]))


def _columns(inputs: Tensor) -> Tensor:
    """[values, features]."""
    if inputs.dim() >= 4:
        return inputs.movedim(1, -1).reshape(-1, inputs.shape[1])
    return inputs.reshape(-1, inputs.shape[-1] if inputs.dim() > 1 else 1)


def _shaped(v: Vec, dims: int) -> Tensor:
    """Numbers per feature, to combine with inputs of so many dimensions, samples included."""
    if dims >= 4:
        return v.view(-1, *[1] * (dims - 2))
    return v if dims > 1 else v.view(())
