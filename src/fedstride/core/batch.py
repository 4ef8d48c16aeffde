"""Batches of any structure: a tensor, or tuples, lists and dicts of batches; every tensor has one row per sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.core.errors import InvalidInput

Tree = Any  # a tensor, or a tuple, list or dict of trees
Batch = tuple[Tree, Tree]  # inputs and targets
WHOLE, TARGET = "__batch__", "__target__"  # keys of what a loss gets that sees the batch
TARGETS = ("labels", "label", "targets", "target", "y")  # keys of a dict that hold the targets, if there is one


def leaves(tree: Tree) -> list[Any]:
    """Return the tensors of a tree, in order; anything that is not a tensor is a leaf too."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def mapped(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to each tensor of a tree, and to those in the same places of the others."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, Mapping):
        return {key: mapped(function, value, *(o[key] for o in others)) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [mapped(function, *values) for values in zip(tree, *others, strict=True)]
        return parts if isinstance(tree, list) else tuple(parts)
    return function(tree, *others)


def samples_of(tree: Tree) -> int:
    """Return the number of samples in a batch."""
    return len(tree) if isinstance(tree, Tensor) else len(leaves(tree)[0])


def selected(tree: Tree, index: Any) -> Tree:
    """Return tree[index] for each tensor."""
    return tree[index] if isinstance(tree, Tensor) else mapped(lambda v: v[index], tree)


def moved(tree: Tree, device: torch.device) -> Tree:
    return tree.to(device) if isinstance(tree, Tensor) else mapped(lambda v: v.to(device), tree)


def joined(trees: list[Tree], join: Callable[[list[Tensor]], Tensor] = torch.cat) -> Tree:
    """Concatenate, or stack, the tensors in the same places of several trees."""
    if isinstance(trees[0], Tensor):
        return join(trees)
    return mapped(lambda *parts: join(list(parts)), *trees)


def signature_of(tree: Tree) -> tuple[Any, ...]:
    """Return the structure of a batch with the shape and type of one sample, to compare batches by."""
    if isinstance(tree, Tensor):
        return tree.shape[1:], tree.dtype
    if isinstance(tree, Mapping):
        return tuple((key, signature_of(value)) for key, value in tree.items())
    return tuple(map(signature_of, tree))


def described(tree: Tree) -> str:
    """Describe a batch for error messages."""
    if isinstance(tree, Tensor):
        return f"{list(tree.shape)} {str(tree.dtype).removeprefix('torch.')}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key}: {described(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(map(described, tree)) + ")"
    return type(tree).__name__


def called(function: Callable[..., Any], inputs: Tree) -> Any:
    """Call a model as users of torch do: model(tensor), model(*tuple), model(**dict)."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    return function(**inputs) if isinstance(inputs, Mapping) else function(*inputs)


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output: a tree, or an object with attributes."""
    found = [leaf for leaf in leaves(output) if isinstance(leaf, Tensor)]
    if not found and hasattr(output, "__dict__"):
        found = [leaf for leaf in leaves(vars(output)) if isinstance(leaf, Tensor)]
    return found


def entry(output: Any, name: str) -> Tensor | None:
    """Return output.name or output[name], if it is a tensor."""
    found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return found if isinstance(found, Tensor) else None


def logits_of(output: Any) -> Any:
    """Return what losses and metrics by name compare with the targets: the logits if the output has them, else all.

    Tuples are those of Hugging Face models: (loss, logits, ...), or (logits,).
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list):
        has_loss = len(output) > 1 and isinstance(output[0], Tensor) and output[0].dim() == 0
        first = output[1] if has_loss else output[0] if len(output) == 1 else None
        return first if isinstance(first, Tensor) else output
    found = entry(output, "logits")
    return output if found is None else found


@dataclass(frozen=True)
class Split:
    """How a batch is divided into the model's inputs and the targets of loss and metrics."""

    keys: tuple[str, ...] | None = None  # of a dict that the model takes; None: all
    target: str | None = None  # key of a dict
    everything: bool = False  # the model gets the whole batch: it computes its own loss
    loss_sees_batch: bool = False  # the loss gets the whole batch, and metrics get the targets: both are passed on
    labels: bool = False  # targets are class labels; torch wants int64

    def __call__(self, batch: Tree) -> Batch:
        inputs, targets = self._divided(batch)
        targets = as_labels(targets) if self.labels else targets
        return inputs, {WHOLE: batch, TARGET: targets} if self.loss_sees_batch else targets

    def _divided(self, batch: Tree) -> Batch:
        if isinstance(batch, Mapping):
            targets = batch if self.target is None else batch[self.target]
            return {key: batch[key] for key in (batch if self.keys is None else self.keys)}, targets
        if isinstance(batch, Tensor):  # without targets: the loss compares the output with the input
            return batch, batch
        *inputs, targets = batch
        if self.everything:
            return tuple(batch), targets
        return inputs[0] if len(inputs) == 1 else tuple(inputs), targets


def as_labels(targets: Tree) -> Tree:
    """Return class labels of another type of whole numbers, or of bool, as int64; uint8 stays, which torch takes."""
    whole = isinstance(targets, Tensor) and not targets.is_floating_point() and targets.dtype is not torch.uint8
    return targets.long() if whole else targets


def targets_of(targets: Tree) -> Tree:
    """Return the targets for metrics."""
    return targets[TARGET] if _holds_both(targets) else targets


def batch_of(targets: Tree) -> Tree:
    """Return the whole batch, for a loss that sees it."""
    return targets[WHOLE] if _holds_both(targets) else targets


def _holds_both(targets: Tree) -> bool:
    return isinstance(targets, Mapping) and targets.keys() == {WHOLE, TARGET}


PAIR = Split()  # of batches that are (inputs, targets)


def split_of(batch: Tree, model: nn.Module, loss: Any, where: str, labels: bool = False) -> Split:
    """Decide how batches like this one are divided.

    Args:
        batch: some samples.
        model: its forward method says which entries of a dict it takes.
        loss: as in fs.train(). A loss whose second parameter is called "batch" gets the whole batch.
        where: the source of the batch, for error messages.
        labels: whether the loss is one of class labels.
    """
    own, sees_batch = loss == "model", wants_batch(loss)
    if not isinstance(batch, Mapping):
        return Split(everything=own, loss_sees_batch=sees_batch, labels=labels)
    target = next((key for key in TARGETS if key in batch), None)
    kinds = {key: p.kind for key, p in inspect.signature(model.forward).parameters.items()}
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds.values()
    keys = tuple(key for key in batch if (takes_all or key in kinds) and (own or key != target))
    if not keys:
        named = ", ".join(map(repr, batch))
        raise InvalidInput(
            f"{where}: the batch has {named}; {type(model).__name__}.forward takes {', '.join(map(repr, kinds)) or 'nothing'}. "
            "Name the entries as the model does."
        )
    return Split(keys, target, own, sees_batch, labels)


def wants_batch(loss: Any) -> bool:
    """Whether a loss is a function (output, batch)."""
    if isinstance(loss, str) or not callable(loss):
        return False
    try:
        names = list(inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters)
    except (TypeError, ValueError):  # functions written in C have none
        return False
    return len(names) > 1 and names[1] == "batch"
