"""Tables: central data sets with training and test samples, and the natural client of each sample if known."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedstride.core.errors import InvalidInput


@dataclass(frozen=True)
class Table:
    """A central data set.

    Images are float32 in [0, 1] with shape [n, channels, height, width], tables float32 [n, features], and texts
    int64 [n, 80].

    Args:
        name: name of the data set, used in messages.
        train: training (inputs, targets).
        test: test (inputs, targets).
        classes: number of classes; None for regression.
        groups: the natural client of each training sample; None if unknown.
        about: source and licence.
        columns: names of the features, if they have any.

    Raises:
        InvalidInput: if a part is empty, sizes do not match, or labels are out of range.

    Example:
        >>> table = fs.data.Table("mine", train=(inputs, targets), test=(inputs, targets), classes=3)
        >>> clients = fs.data.federate(table, fs.data.partition.iid(table.train[1], 4, seed=0))
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int | None
    groups: Tensor | None = None
    about: str = ""
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, (inputs, targets) in (("train", self.train), ("test", self.test)):
            if len(inputs) == 0 or targets.dim() == 0:
                raise InvalidInput(f"{self.name}: {part} has no samples; expected at least one.")
            if len(inputs) != len(targets):
                raise InvalidInput(f"{self.name}: {part} has {len(inputs)} inputs but {len(targets)} targets.")
            if self.classes is not None and not 0 <= targets.min() <= targets.max() < self.classes:
                raise InvalidInput(
                    f"{self.name}: {part} labels range from {int(targets.min())} to {int(targets.max())}; "
                    f"expected 0 to {self.classes - 1}."
                )
        if self.groups is not None and len(self.groups) != len(self.train[1]):
            raise InvalidInput(
                f"{self.name}: {len(self.groups)} groups for {len(self.train[1])} training samples; expected one each."
            )
