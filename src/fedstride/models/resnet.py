"""ResNet-18 and ResNet-50 for 32 x 32 images, with GroupNorm, because batch statistics fail for clients with few classes.

He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016. Wu, He. Group normalization. ECCV 2018.
Hsieh, Phanishayee, Mutlu, Gibbons. The non-IID data quagmire of decentralized machine learning. ICML 2020.
Deviations: 3 x 3 stem without pooling, as usual for small images. The program of the Delta-SGD paper uses BatchNorm.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedstride.core.errors import InvalidInput
from fedstride.models.network import Network, Shape, images


class ResNet18(Network):
    """ResNet-18 with GroupNorm: 11,173,962 parameters for ten classes.

    Args:
        shape: (channels, height, width), at least 8 x 8 pixels.
        classes: number of classes.
        width: filters of the stem.
        groups: groups of every GroupNorm; must divide `width`.

    Raises:
        InvalidInput: if an argument is invalid.

    Example:
        >>> model = fs.models.ResNet18((3, 32, 32), classes=10)
        >>> sum(p.numel() for p in model.parameters())
        11173962
    """

    def __init__(self, shape: Shape, classes: int, width: int = 64, groups: int = 32) -> None:
        layers = _stem("resnet18", shape, width, groups)
        inside = width
        for outside, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
            layers += [Block(inside, outside, stride, groups), Block(outside, outside, 1, groups)]
            inside = outside
        super().__init__(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(inside, classes))


class ResNet50(Network):
    """ResNet-50 with GroupNorm: 23,520,842 parameters for ten classes.

    Args:
        shape: (channels, height, width), at least 8 x 8 pixels.
        classes: number of classes.
        width: filters of the stem.
        groups: groups of every GroupNorm; must divide `width`.

    Raises:
        InvalidInput: if an argument is invalid.

    Example:
        >>> model = fs.models.ResNet50((3, 32, 32), classes=10, width=8, groups=8)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, shape: Shape, classes: int, width: int = 64, groups: int = 32) -> None:
        layers = _stem("resnet50", shape, width, groups)
        inside = width
        for times, count, stride in ((1, 3, 1), (2, 4, 2), (4, 6, 2), (8, 3, 2)):
            for i in range(count):
                layers.append(Bottleneck(inside, times * width, stride if i == 0 else 1, groups))
                inside = 4 * times * width
        super().__init__(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(inside, classes))


class Bottleneck(nn.Module):
    """A residual block with a narrow middle: relu(path(x) + shortcut(x))."""

    def __init__(self, inside: int, middle: int, stride: int, groups: int) -> None:
        super().__init__()
        outside = 4 * middle
        first, second = _convolution(inside, middle, 1, groups, side=1), _convolution(middle, middle, stride, groups)
        third = _convolution(middle, outside, 1, groups, side=1)
        self.path = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *third)
        self.shortcut = _shortcut(inside, outside, stride, groups)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.relu(self.path(inputs) + self.shortcut(inputs))


class Block(nn.Module):
    """A residual block: relu(path(x) + shortcut(x))."""

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        first, second = _convolution(inside, outside, stride, groups), _convolution(outside, outside, 1, groups)
        self.path = nn.Sequential(*first, nn.ReLU(), *second)
        self.shortcut = _shortcut(inside, outside, stride, groups)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.relu(self.path(inputs) + self.shortcut(inputs))


def _stem(model: str, shape: Shape, width: int, groups: int) -> list[nn.Module]:
    channels, _, _ = images(model, shape, least=8)
    if groups < 1 or width % groups:
        raise InvalidInput(f"{model}: groups={groups} does not divide width={width}; expected a divisor of it.")
    return [*_convolution(channels, width, 1, groups), nn.ReLU()]


def _shortcut(inside: int, outside: int, stride: int, groups: int) -> nn.Module:
    same = inside == outside and stride == 1
    return nn.Identity() if same else nn.Sequential(*_convolution(inside, outside, stride, groups, side=1))


def _convolution(inside: int, outside: int, stride: int, groups: int, side: int = 3) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inside, outside, side, stride, padding=side // 2, bias=False)
    return convolution, nn.GroupNorm(groups, outside)
