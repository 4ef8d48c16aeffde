"""A body and a head: what MOON compares is what comes between them."""

from __future__ import annotations

from torch import Tensor, nn

from fedstride.core.errors import InvalidInput

Shape = tuple[int, ...]  # of one sample


class Network(nn.Module):
    """head(features), with features = body(inputs)."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def features(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.body(inputs)
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(inputs))
        return scores


def images(model: str, shape: Shape, least: int) -> Shape:
    """(channels, height, width), or an error that names the model."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InvalidInput(
            f"{model}: samples of shape {tuple(shape)} are invalid: expected (channels, height, width) with at least "
            f"{least} x {least} pixels. Use 'softmax' or 'mlp' for other data."
        )
    return tuple(shape)
