"""Models that predict the next character from a window of characters.

CharLSTM: McMahan et al. (AISTATS 2017), an embedding of size 8 and two LSTM layers of 256 units; Caldas et al. LEAF: a
benchmark for federated settings (2018).
Deviations: torch's LSTM has two bias vectors per layer, the papers' programs have one.
CharMLP: Bengio, Ducharme, Vincent, Jauvin. A neural probabilistic language model. JMLR 2003. Deviations: characters
instead of words, ReLU instead of tanh, no direct connections from the embedding to the output.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedstride.core.errors import InvalidInput
from fedstride.models.network import Network, Shape


class CharLSTM(Network):
    """A stacked LSTM that maps windows [n, length] of character ids to scores of the next character.

    Args:
        shape: (length,) of a window.
        classes: size of the vocabulary.
        embedding: size of a character's embedding.
        hidden: units of each LSTM layer.
        layers: number of LSTM layers.

    Example:
        >>> model = fs.models.CharLSTM((80,), classes=77, hidden=32)
        >>> model(torch.zeros(5, 80, dtype=torch.long)).shape
        torch.Size([5, 77])
    """

    def __init__(self, shape: Shape, classes: int, embedding: int = 8, hidden: int = 256, layers: int = 2) -> None:
        super().__init__(_Reader(classes, embedding, hidden, layers), nn.Linear(hidden, classes))


class CharMLP(Network):
    """A perceptron on the last `context` characters: much faster than an LSTM, and nearly as good in early training.

    Args:
        shape: (length,) of a window.
        classes: size of the vocabulary.
        context: number of characters used, at most the length of the window.
        embedding: size of a character's embedding.
        hidden: units of the hidden layer.

    Raises:
        InvalidInput: if `context` is out of range.

    Example:
        >>> model = fs.models.CharMLP((80,), classes=77, context=12)
        >>> model(torch.zeros(5, 80, dtype=torch.long)).shape
        torch.Size([5, 77])
    """

    def __init__(self, shape: Shape, classes: int, context: int = 12, embedding: int = 8, hidden: int = 128) -> None:
        if not 1 <= context <= shape[0]:
            raise InvalidInput(
                f"char_mlp: context={context!r} is invalid: expected 1 to {shape[0]}, the length of a window."
            )
        body = nn.Sequential(
            *(_Last(context), nn.Embedding(classes, embedding), nn.Flatten()),
            *(nn.Linear(context * embedding, hidden), nn.ReLU()),
        )
        super().__init__(body, nn.Linear(hidden, classes))


class _Last(nn.Module):
    """The last characters of a window."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, windows: Tensor) -> Tensor:
        return windows[:, -self.count :]


class _Reader(nn.Module):
    """The final state of an LSTM after reading a window."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)

    def forward(self, windows: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.embedding(windows))[0]
        return states[:, -1]
