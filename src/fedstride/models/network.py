"""Networks with a body and a head; MOON compares the features between them."""

from __future__ import annotations

from torch import Tensor, nn

from fedstride.core.errors import InvalidInput

Shape = tuple[int, ...]  # shape of one sample


class Network(nn.Module):
    """A model head(features(inputs)) with features = body.

    Args:
        body: maps inputs to features.
        head: maps features to scores.

    Example:
        >>> model = fs.models.Network(nn.Sequential(nn.Linear(20, 8), nn.ReLU()), nn.Linear(8, 3))
        >>> model.features(torch.zeros(5, 20)).shape
        torch.Size([5, 8])
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features of a batch."""
        found: Tensor = self.body(inputs)
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(inputs))
        return scores


def images(model: str, shape: Shape, least: int) -> Shape:
    """Return (channels, height, width), or raise an error that names the model."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InvalidInput(
            f"{model}: samples of shape {tuple(shape)} are invalid: expected (channels, height, width) with at least "
            f"{least} x {least} pixels. Use 'softmax' or 'mlp' for other data."
        )
    return tuple(shape)
