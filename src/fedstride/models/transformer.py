"""A small transformer that classifies sequences of tokens.

Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin. Attention is all you need. NeurIPS 2017.
Deviations: an encoder only; layers are normalised at their input, positions are learned, and there is no dropout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstride.core.errors import InvalidInput
from fedstride.models.network import Network, Shape


class Transformer(Network):
    """A transformer encoder that maps token ids [n, length] to scores; its features are the mean over the positions.

    Args:
        shape: (length,) of a sequence.
        classes: number of classes.
        vocabulary: number of different tokens; None for as many as classes, to predict the next token.
        width: size of a token's vector.
        layers: number of layers.
        heads: attention heads; must divide `width`.

    Raises:
        InvalidInput: if `heads` does not divide `width`.

    Example:
        >>> model = fs.models.Transformer((80,), classes=4, vocabulary=1000, width=32, heads=2)
        >>> model(torch.zeros(5, 80, dtype=torch.long)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        vocabulary: int | None = None,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
    ) -> None:
        if heads < 1 or width % heads:
            raise InvalidInput(f"transformer: heads={heads} does not divide width={width}; expected a divisor of it.")
        body = _Encoder(shape[0], vocabulary or classes, width, layers, heads)
        super().__init__(body, nn.Linear(width, classes))


class _Encoder(nn.Module):
    def __init__(self, length: int, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.Sequential(*(_Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.layers(self.tokens(tokens) + self.positions)
        return states.mean(1)


class _Layer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.mixed, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mixed(self.before(x)).unflatten(-1, (3, self.heads, -1))  # [n, length, 3, heads, size]
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = F.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(x)
        return out
