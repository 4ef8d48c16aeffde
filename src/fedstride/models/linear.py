"""Models without convolutions: multinomial logistic regression and the multi-layer perceptron.

As in all models here, the softmax is part of the loss (cross_entropy).
"""

from __future__ import annotations

import math
from itertools import pairwise

from torch import nn

from fedstride.models.network import Network, Shape


class Softmax(Network):
    """Multinomial logistic regression; its features are the inputs.

    Args:
        shape: shape of one sample, which is flattened.
        classes: number of classes, or 1 for linear regression.

    Example:
        >>> model = fs.models.Softmax((20,), classes=3)
        >>> sum(p.numel() for p in model.parameters())
        63
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))


class MLP(Network):
    """Fully-connected layers with ReLU.

    Args:
        shape: shape of one sample, which is flattened.
        classes: number of classes, or 1 for regression.
        hidden: widths of the hidden layers; an int for a single layer.

    Example:
        >>> model = fs.models.MLP((1, 8, 8), classes=10, hidden=(200, 200))
        >>> model(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """

    def __init__(self, shape: Shape, classes: int, hidden: int | tuple[int, ...] = (200, 200)) -> None:
        widths = (math.prod(shape), *((hidden,) if isinstance(hidden, int) else hidden))
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        super().__init__(nn.Sequential(nn.Flatten(), *layers), nn.Linear(widths[-1], classes))
