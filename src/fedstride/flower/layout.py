"""Flower's arrays and fedstride's rows: which arrays of a model are trained, averaged or left alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from fedstride.core.errors import InvalidInput
from fedstride.core.rows import Vec
from fedstride.engine.flower.records import tensor_of

PREFIX = "array/"  # of the stand-in's parameters: a module refuses names such as "training"


@dataclass(frozen=True)
class Layout:
    """The arrays of a model. A row holds the trained ones in the order of `trained`, another one those in `moving`."""

    initial: Mapping[str, Tensor]  # all arrays, in their order; those in neither row stay as they are
    trained: tuple[str, ...]
    moving: tuple[str, ...]  # such as BatchNorm's statistics: averaged, never extrapolated
    dtype: torch.dtype  # of both rows

    def model(self) -> nn.Module:
        """Return a stand-in for the model, which the server does not know: the same parameters and no computation."""
        module = nn.Module()
        for name in self.trained:
            module.register_parameter(_inside(name), nn.Parameter(self.initial[name].to(self.dtype)))
        for name in self.initial.keys() - set(self.trained):
            module.register_buffer(_inside(name), self.initial[name])
        module.features = unknown  # type: ignore[assignment]  # Moon asks for it; the clients check theirs
        return module

    @property
    def buffers(self) -> tuple[str, ...]:
        """Names of the moving arrays in the stand-in."""
        return tuple(map(_inside, self.moving))

    def rows(self, arrays: Mapping[str, Tensor]) -> tuple[Vec, Vec]:
        """Return the trained and the moving arrays as two vectors."""
        return self._row(self.trained, arrays), self._row(self.moving, arrays)

    def record(self, x: Vec, stats: Vec) -> ArrayRecord:
        """Return all arrays, with the types and in the order of the initial ones."""
        found = dict(self.initial)
        for names, row in ((self.trained, x), (self.moving, stats)):
            sizes = [self.initial[name].numel() for name in names]
            for name, part in zip(names, torch.split(row.detach(), sizes) if names else (), strict=True):
                like = self.initial[name]
                whole = part if like.dtype.is_floating_point else part.round()
                found[name] = whole.to(like.dtype).reshape(like.shape)
        return ArrayRecord({name: Array(v.contiguous().numpy()) for name, v in found.items()})

    def _row(self, names: Sequence[str], arrays: Mapping[str, Tensor]) -> Vec:
        parts = [arrays[name].reshape(-1).to(self.dtype) for name in names]
        return torch.cat(parts) if parts else torch.empty(0, dtype=self.dtype)


def tensors_of(record: ArrayRecord, source: str) -> dict[str, Tensor]:
    """Return the arrays of a record.

    Raises:
        InvalidInput: if one cannot be read; source: the argument or message that errors name.
    """
    found = {}
    for name, array in record.items():
        try:
            found[name] = tensor_of(array)
        except Exception as error:  # invalid bytes can raise any exception
            raise InvalidInput(
                f"{source}: the array {name!r} cannot be read ({type(error).__name__}); expected an array of numpy numbers."
            ) from error
    return found


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """Describe the first difference in names and shapes, None if there is none."""
    missing, extra = (sorted(a.keys() - b.keys()) for a, b in ((expected, found), (found, expected)))
    if missing:
        return f"{missing[0]!r} is missing"
    if extra:
        return f"{extra[0]!r} is not an array of the model"
    for name, v in found.items():
        if v.shape != expected[name].shape:
            return f"{name!r} has shape {tuple(v.shape)} instead of {tuple(expected[name].shape)}"
    return None


def guessed(initial: Mapping[str, Tensor], buffers: Sequence[str]) -> Layout:
    """Return the layout for clients that do not describe their model; buffers: patterns of names that are averaged."""
    moving = [
        name
        for name, v in initial.items()
        if not v.dtype.is_floating_point or any(fnmatch(name, pattern) for pattern in buffers)
    ]
    trained = [name for name in initial if name not in moving]
    if not trained:
        raise InvalidInput(
            f"initial_arrays: got {len(initial)} arrays, none of which is trained; expected floating point arrays, such as "
            "ArrayRecord(model.state_dict()). Arrays whose names match `buffers` are not trained."
        )
    wide = any(initial[name].dtype == torch.float64 for name in trained)
    return Layout(initial, tuple(trained), tuple(moving), torch.float64 if wide else torch.float32)


def described(initial: Mapping[str, Tensor], parameters: str, moving: Sequence[str]) -> Layout:
    """Return the layout of a model that clients describe; parameters: JSON, see engine/flower/project.py."""
    named = json.loads(parameters)
    trained = [(name, shape, dtype) for name, shape, dtype, trains in named if trains]
    for name, shape, dtype in trained:
        here = initial.get(name)
        if here is None or list(here.shape) != shape or str(here.dtype) != dtype:
            what = "missing" if here is None else f"{here.dtype} of shape {list(here.shape)}"
            raise InvalidInput(
                f"initial_arrays: {name!r} is {what}; the clients' model has {dtype} of shape {shape}. Build the same model on "
                "the server, and pass ArrayRecord(model.state_dict())."
            )
    lost = [name for name in moving if name not in initial]
    if lost:
        raise InvalidInput(
            f"initial_arrays: {lost[0]!r} is missing, a buffer that changes in training. Pass ArrayRecord(model.state_dict())."
        )
    names = tuple(name for name, _, _ in trained)
    return Layout(initial, names, tuple(moving), initial[names[0]].dtype)


def checked_initial(record: object) -> dict[str, Tensor]:
    """Return the initial arrays.

    Raises:
        InvalidInput: if there are none, or if one is not finite.
    """
    if not isinstance(record, ArrayRecord) or not len(record):
        raise InvalidInput(
            f"initial_arrays: got {'an empty record' if isinstance(record, ArrayRecord) else type(record).__name__}; expected "
            "ArrayRecord(model.state_dict())."
        )
    found = tensors_of(record, "initial_arrays")
    for name, v in found.items():
        if v.dtype.is_floating_point and not math.isfinite(float(v.double().sum())):
            raise InvalidInput(
                f"initial_arrays: {name!r} has values that are NaN or infinite; expected finite numbers."
            )
    return found


def unknown(*values: Any) -> Any:
    """Stand in for the loss and the model, which only the clients can compute."""
    raise InvalidInput("only the clients of this run can compute its model and loss.")


def _inside(name: str) -> str:
    return PREFIX + name.replace(".", "/")
