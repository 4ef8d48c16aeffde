"""Models without convolutions: multinomial logistic regression and the multi-layer perceptron.

The softmax itself is left to the loss (cross_entropy), here and in the other models.
"""

from __future__ import annotations

import math
from itertools import pairwise

from torch import nn

from fedstride.models.network import Network, Shape


class Softmax(Network):
    """Multinomial logistic regression; its features are the inputs."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))


class MLP(Network):
    """Fully-connected layers with ReLU; `hidden` are their widths, or the only one."""

    def __init__(self, shape: Shape, classes: int, hidden: int | tuple[int, ...] = (200, 200)) -> None:
        widths = (math.prod(shape), *((hidden,) if isinstance(hidden, int) else hidden))
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        super().__init__(nn.Sequential(nn.Flatten(), *layers), nn.Linear(widths[-1], classes))
