"""A data set before it is federated: training and test samples, and who wrote them where that is known."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedstride.core.errors import InvalidInput


@dataclass(frozen=True)
class Table:
    """Images are float32 in [0, 1] [n, channels, height, width], tables float32 [n, features], texts int64 [n, 80]."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int | None  # None: regression
    groups: Tensor | None = None  # the natural client of each training sample
    about: str = ""  # source and licence
    columns: tuple[str, ...] = ()  # names of the features, where they have any

    def __post_init__(self) -> None:
        for part, (inputs, targets) in (("train", self.train), ("test", self.test)):
            if len(inputs) == 0 or targets.dim() == 0:
                raise InvalidInput(f"{self.name}: {part} has no samples; expected at least one.")
            if len(inputs) != len(targets):
                raise InvalidInput(f"{self.name}: {part} has {len(inputs)} inputs but {len(targets)} targets.")
            if self.classes is not None and not 0 <= targets.min() <= targets.max() < self.classes:
                raise InvalidInput(
                    f"{self.name}: {part} labels go from {int(targets.min())} to {int(targets.max())}; "
                    f"expected 0 to {self.classes - 1}."
                )
        if self.groups is not None and len(self.groups) != len(self.train[1]):
            raise InvalidInput(
                f"{self.name}: {len(self.groups)} groups for {len(self.train[1])} training samples; expected one each."
            )
