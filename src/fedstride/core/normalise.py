"""Normalise inputs to mean 0 and deviation 1 over the whole federation, from sums over its clients; or scale them to size 1.

Features are the channels of samples with three or more dimensions (dimension 1 of a batch), else the columns (the last
dimension). Every sample counts once, regardless of the clients' weights. The deviation divides by n, as scikit-learn's
StandardScaler does. Normalise = "scale" divides all inputs by one number instead, their root mean square.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedstride.core.rows import Vec

Normalise = bool | Literal["scale"]
INPUTS = "inputs"  # name of the scaling in the server's broadcast
BLOCK = 2**22  # numbers that are converted to float64 at a time
NOISE = 1e-14  # rounding error, relative to the squared mean, if the clients' means are equal


def features_of(shape: Sequence[int]) -> int:
    """Return the number of features of a sample of this shape."""
    return shape[0] if len(shape) >= 3 else shape[-1] if shape else 1


def moments(inputs: Tensor) -> Vec:
    """Return a client's contribution in float64: its number of samples n; per feature n mean, n mean^2, n variance.

    scaling_of needs only the sums of these over the clients. The variance is around the client's own mean, because
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


def scaling_of(sums: Vec, dtype: torch.dtype, normalise: Normalise = True) -> Vec:
    """Return [means, deviations] from sums of moments, or a multiple of them; constant features get deviation 1.

    With normalise="scale", the means are 0, and the deviations are all equal to the root mean square of the inputs.
    """
    n, (total, squares, within) = sums[0], sums[1:].view(3, -1)
    if normalise == "scale":
        size = ((squares + within).mean() / n).sqrt().to(dtype)
        return torch.cat([torch.zeros_like(total), torch.ones_like(total) * torch.where(size > 0, size, 1.0)]).to(dtype)
    mean = total / n
    between = squares / n - mean.square()
    between = torch.where(between > NOISE * mean.square(), between, 0.0)
    deviation = (within / n + between).sqrt()
    constant = (deviation <= 4 * torch.finfo(dtype).eps * mean.abs()) | (deviation.to(dtype) == 0)
    return torch.cat([mean, torch.where(constant, 1.0, deviation)]).to(dtype)


def scaled(inputs: Tensor, scaling: Vec) -> Tensor:
    """Return (inputs - mean) / deviation for each feature."""
    mean, deviation = (_shaped(v, inputs.dim()) for v in scaling.to(inputs.device).chunk(2))
    return (inputs - mean) / deviation


def scaled_by_itself(inputs: Tensor, normalise: Normalise) -> Tensor:
    """Normalise a batch by its own statistics, to test a model with realistic inputs."""
    return scaled(inputs, scaling_of(moments(inputs), inputs.dtype, normalise))


class Normalised(nn.Module):
    """A wrapper that normalises raw inputs for a model. Mean and scale are buffers and are saved with it."""

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
        """Return a copy of the model, wrapped unless it already is, to load weights into."""
        own = copy.deepcopy(model)
        like = next(iter(own.parameters()), torch.empty(0))
        return own if isinstance(own, cls) else cls(own, like.new_zeros(features), like.new_ones(features))

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.model(self.normalised(inputs))
        return output

    def normalised(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the inner model."""
        return scaled(inputs, torch.cat([self.mean, self.scale]))


def _columns(inputs: Tensor) -> Tensor:
    """Reshape to [values, features]."""
    if inputs.dim() >= 4:
        return inputs.movedim(1, -1).reshape(-1, inputs.shape[1])
    return inputs.reshape(-1, inputs.shape[-1] if inputs.dim() > 1 else 1)


def _shaped(v: Vec, dims: int) -> Tensor:
    """Reshape one number per feature to broadcast against inputs with `dims` dimensions (including samples)."""
    if dims >= 4:
        return v.view(-1, *[1] * (dims - 2))
    return v if dims > 1 else v.view(())
