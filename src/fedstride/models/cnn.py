"""Three small convolutional networks for images such as MNIST.

SmallCNN: Kim, Toghani, Uribe, Kyrillidis. Adaptive federated learning with auto-tuned clients. ICLR 2024 (Delta-SGD,
sec. 4: "two convolutional and two fully-connected layers, followed by dropout and ReLU"). Deviations: the paper gives no
widths; these (10 and 20 filters of 5 x 5, 50 hidden units, dropout 0.5) are from its authors' program. Dropout is optional.
McMahanCNN: McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017. Deviations: none; the paper counts 1,663,370 parameters, other programs without padding
582,026.
ReddiCNN: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive federated optimization. ICLR 2021,
app. C, for EMNIST. Deviations: none; dropout is optional.
"""

from __future__ import annotations

from torch import nn

from fedstride.core.errors import decay
from fedstride.models.network import Network, Shape, images


class SmallCNN(Network):
    """The CNN of the Delta-SGD paper for MNIST and Fashion-MNIST: 21,840 parameters for 28 x 28 pixels.

    Args:
        shape: (channels, height, width), at least 16 x 16 pixels.
        classes: number of classes.
        width: filters of the first convolution; the second has twice as many.
        hidden: units of the hidden layer.
        dropout: dropout probability; 0 removes the dropout layers, so that clients can run in parallel.

    Raises:
        InvalidInput: if an argument is invalid.

    Example:
        >>> model = fs.models.SmallCNN((1, 28, 28), classes=10, dropout=0)
        >>> sum(p.numel() for p in model.parameters())
        21840
    """

    def __init__(self, shape: Shape, classes: int, width: int = 10, hidden: int = 50, dropout: float = 0.5) -> None:
        channels, height, breadth = images("small_cnn", shape, least=16)
        decay("small_cnn", dropout=dropout)
        # Without random layers, clients can run in parallel and IAG is possible.
        drop_maps, drop = ([nn.Dropout2d(dropout)], [nn.Dropout(dropout)]) if dropout else ([], [])
        body = nn.Sequential(
            *(nn.Conv2d(channels, width, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 5), *drop_maps, nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(2 * width * _left(height) * _left(breadth), hidden), nn.ReLU(), *drop),
        )
        super().__init__(body, nn.Linear(hidden, classes))


class McMahanCNN(Network):
    """The CNN of McMahan et al.: 1,663,370 parameters for 28 x 28 pixels, or 582,026 without padding.

    Args:
        shape: (channels, height, width), at least 4 x 4 pixels, or 16 x 16 without padding.
        classes: number of classes.
        width: filters of the first convolution; the second has twice as many.
        hidden: units of the hidden layer.
        padding: whether convolutions keep the size of the image.

    Raises:
        InvalidInput: if the shape is invalid.

    Example:
        >>> model = fs.models.McMahanCNN((1, 28, 28), classes=10)
        >>> sum(p.numel() for p in model.parameters())
        1663370
    """

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


class ReddiCNN(Network):
    """The CNN of Reddi et al. for EMNIST: 1,206,590 parameters for 28 x 28 pixels and 62 classes.

    Args:
        shape: (channels, height, width), at least 6 x 6 pixels.
        classes: number of classes.
        width: filters of the first convolution; the second has twice as many.
        hidden: units of the hidden layer.
        dropout: dropout probability of the hidden layer; that of the filters is half; 0 removes the dropout layers.

    Raises:
        InvalidInput: if an argument is invalid.

    Example:
        >>> model = fs.models.ReddiCNN((1, 28, 28), classes=62)
        >>> sum(p.numel() for p in model.parameters())
        1206590
    """

    def __init__(self, shape: Shape, classes: int, width: int = 32, hidden: int = 128, dropout: float = 0.5) -> None:
        channels, height, breadth = images("reddi_cnn", shape, least=6)
        decay("reddi_cnn", dropout=dropout)
        drop_maps, drop = ([nn.Dropout(dropout / 2)], [nn.Dropout(dropout)]) if dropout else ([], [])
        sides = (height - 4) // 2, (breadth - 4) // 2
        body = nn.Sequential(
            *(nn.Conv2d(channels, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), *drop_maps, nn.Flatten()),
            *(nn.Linear(2 * width * sides[0] * sides[1], hidden), nn.ReLU(), *drop),
        )
        super().__init__(body, nn.Linear(hidden, classes))


def _left(side: int) -> int:
    """Return the side length after two unpadded 5 x 5 convolutions, each followed by pooling."""
    return ((side - 4) // 2 - 4) // 2
