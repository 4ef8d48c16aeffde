"""Fine-tuning: a copy of a model takes a few more steps on one client's data, before it is evaluated there."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from fedstride.algorithm.recipes import RECIPES
from fedstride.core.errors import FedstrideWarning, InvalidInput, positive
from fedstride.core.losses import Loss
from fedstride.data.clients import Collate
from fedstride.training.train import train
from fedstride.training.validate import whole


@dataclass(frozen=True)
class FineTune:
    """How fs.evaluate() adapts a model to each client before it is evaluated on the client's test set.

    Args:
        clients: the clients' training data, as in fs.train(); as many as there are test sets, in the same order or under the
            same names.
        steps: gradient steps.
        lr: their size; None = found by a line search in each step.
        batch_size: samples per step; None = the full batch.
        parameters: patterns of the names of parameters that are adapted; the others stay as they are.
        seed: seed of the batches.

    Raises:
        InvalidInput: if an argument is out of range.

    Example:
        >>> scores = fs.evaluate(nn.Linear(4, 3), clients, fine_tune=fs.FineTune(clients, steps=5))
        >>> len(scores)
        4
    """

    clients: Any
    steps: int = 10
    lr: float | None = None
    batch_size: int | None = None
    parameters: Sequence[str] = ("*",)
    seed: int = 0

    def __post_init__(self) -> None:
        whole("FineTune: steps", self.steps)
        positive(self, lr=self.lr)

    def adapted(self, model: nn.Module, loss: str | Loss, client: Any, collate: Collate | None = None) -> nn.Module:
        """Return a copy of the model after the steps on this client's data: training with one client is central training."""
        own = copy.deepcopy(model)
        trainable = [name for name, p in own.named_parameters() if p.requires_grad]
        for name, p in own.named_parameters():
            p.requires_grad_(name in trainable and any(fnmatchcase(name, pattern) for pattern in self.parameters))
        if not any(p.requires_grad for p in own.parameters()):
            raise InvalidInput(
                f"FineTune: parameters={list(self.parameters)!r} match no trainable parameter of the model; expected patterns "
                f"of names such as {', '.join(map(repr, trainable[:3]))}."
            )
        algorithm = RECIPES["fedsls"]() if self.lr is None else RECIPES["fedavg"](lr=self.lr)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedstrideWarning)  # already given when the model was trained
            run = train(
                own,
                loss,
                [client],
                algorithm,
                rounds=1,
                local_steps=self.steps,
                batch_size=self.batch_size,
                collate=collate,
                seed=self.seed,
                engine="local",
                progress=False,
            )
        for name, p in run.model.named_parameters():
            p.requires_grad_(name in trainable)
        return run.model
