"""Models by name, each with the `features` method that MOON needs. Any other nn.Module works as well."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fedstride.core.errors import InvalidInput, nearest
from fedstride.models.cnn import McMahanCNN, SmallCNN
from fedstride.models.linear import MLP, Softmax
from fedstride.models.network import Network
from fedstride.models.resnet import ResNet18
from fedstride.models.text import CharLSTM, CharMLP

__all__ = ["MODELS", "CharLSTM", "CharMLP", "MLP", "McMahanCNN", "Network", "ResNet18", "SmallCNN", "Softmax", "build"]

MODELS: dict[str, Callable[..., Network]] = {
    "softmax": Softmax,
    "mlp": MLP,
    "small_cnn": SmallCNN,
    "mcmahan_cnn": McMahanCNN,
    "resnet18": ResNet18,
    "char_lstm": CharLSTM,
    "char_mlp": CharMLP,
}


def build(name: str, /, shape: Sequence[int], classes: int, **options: Any) -> Network:
    """Build a model by name.

    Args:
        name: softmax, mlp, small_cnn, mcmahan_cnn, resnet18, char_lstm or char_mlp.
        shape: shape of one sample.
        classes: number of scores: one per class, or 1 for regression.
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
    try:
        return kind(tuple(shape), classes, **options)
    except InvalidInput:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        raise InvalidInput(
            f"{name}: the model cannot be built with {options} for inputs of shape {tuple(shape)}: {error}"
        ) from error
