"""Models by name, each with the `features` method that MOON needs. Any other nn.Module works as well."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from fedstride.core.errors import InvalidInput, nearest
from fedstride.models.augment import CropFlip
from fedstride.models.cnn import McMahanCNN, ReddiCNN, SmallCNN
from fedstride.models.linear import MLP, Softmax
from fedstride.models.network import Network, images
from fedstride.models.resnet import ResNet18, ResNet50
from fedstride.models.text import CharLSTM, CharMLP
from fedstride.models.transformer import Transformer

__all__ = [
    "MODELS",
    "CharLSTM",
    "CharMLP",
    "CropFlip",
    "MLP",
    "McMahanCNN",
    "Network",
    "ReddiCNN",
    "ResNet18",
    "ResNet50",
    "SmallCNN",
    "Softmax",
    "Transformer",
    "build",
]

MODELS: dict[str, Callable[..., Network]] = {
    "softmax": Softmax,
    "mlp": MLP,
    "small_cnn": SmallCNN,
    "mcmahan_cnn": McMahanCNN,
    "reddi_cnn": ReddiCNN,
    "resnet18": ResNet18,
    "resnet50": ResNet50,
    "char_lstm": CharLSTM,
    "char_mlp": CharMLP,
    "transformer": Transformer,
}


def build(name: str, /, shape: Sequence[int], classes: int, augment: bool = False, **options: Any) -> Network:
    """Build a model by name.

    Args:
        name: softmax, mlp, small_cnn, mcmahan_cnn, reddi_cnn, resnet18, resnet50, char_lstm, char_mlp or transformer.
        shape: shape of one sample.
        classes: number of scores: one per class, or 1 for regression.
        augment: whether images are cropped and flipped at random in training.
        **options: keyword arguments of the model's class, such as hidden=100.

    Returns:
        The model, with initial weights from torch's global generator.

    Raises:
        InvalidInput: if the name, an option or the shape is invalid.

    Example:
        >>> model = fs.models.build("mlp", (1, 8, 8), classes=10, hidden=100)
        >>> model(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """
    if name not in MODELS:
        raise InvalidInput(f"model={name!r} is unknown; {nearest(str(name), MODELS)}")
    kind = MODELS[name]
    known = list(inspect.signature(kind).parameters)[2:]
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "it has no options."
            raise InvalidInput(f"{name}: option {option!r} is unknown; {hint}")
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise InvalidInput(f"{name}: classes={classes!r} is invalid: expected a whole number >= 1 (regression: 1).")
    if augment:
        images(name, tuple(shape), least=1)
    try:
        model = kind(tuple(shape), classes, **options)
    except InvalidInput:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        raise InvalidInput(
            f"{name}: the model cannot be built with {options} for inputs of shape {tuple(shape)}: {error}"
        ) from error
    if augment:
        model.body = nn.Sequential(CropFlip(), model.body)
    return model
