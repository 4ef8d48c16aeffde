"""Two small convolutional networks for images such as MNIST's.

SmallCNN: Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (001 sec. 4: "two
convolutional and two fully-connected layers, followed by dropout and ReLU"). Deviations: 001 gives no widths; these (10
and 20 filters of 5 x 5, 50 hidden units, dropout 0.5) are those of its authors' program. Dropout can be turned off.
McMahanCNN: McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017. Deviations: none; the paper counts 1,663,370 parameters, other programs 582,026, and
padding is the difference.
"""

from __future__ import annotations

from torch import nn

from fedstride.core.errors import decay
from fedstride.models.network import Network, Shape, images


class SmallCNN(Network):
    """The CNN of 001 for MNIST and Fashion-MNIST: 21,840 parameters on 28 x 28."""

    def __init__(self, shape: Shape, classes: int, width: int = 10, hidden: int = 50, dropout: float = 0.5) -> None:
        channels, height, breadth = images("small_cnn", shape, least=16)
        decay("small_cnn", dropout=dropout)
        # Without layers that draw random numbers, clients can run in parallel and IAG is possible.
        drop_maps, drop = ([nn.Dropout2d(dropout)], [nn.Dropout(dropout)]) if dropout else ([], [])
        body = nn.Sequential(
            *(nn.Conv2d(channels, width, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 5), *drop_maps, nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(2 * width * _left(height) * _left(breadth), hidden), nn.ReLU(), *drop),
        )
        super().__init__(body, nn.Linear(hidden, classes))


class McMahanCNN(Network):
    """1,663,370 parameters on 28 x 28, or 582,026 without padding."""

    def __init__(self, shape: Shape, classes: int, width: int = 32, hidden: int = 512, padding: bool = True) -> None:
        channels, height, breadth = images("mcmahan_cnn", shape, least=4 if padding else 16)
        sides = (height // 4, breadth // 4) if padding else (_left(height), _left(breadth))
        pad = 2 if padding else 0
        body = nn.Sequential(
            *(nn.Conv2d(channels, width, 5, padding=pad), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 5, padding=pad), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(2 * width * sides[0] * sides[1], hidden), nn.ReLU()),
        )
        super().__init__(body, nn.Linear(hidden, classes))


def _left(side: int) -> int:
    """What two unpadded 5 x 5 convolutions, each followed by pooling, leave of a side."""
    return ((side - 4) // 2 - 4) // 2
