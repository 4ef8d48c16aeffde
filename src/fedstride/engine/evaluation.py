"""Scores of a model on a test set: loss, accuracy and the user's metrics."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.client.chunk import Samples
from fedstride.core.batch import Tree, called, joined, logits_of, moved, samples_of, targets_of
from fedstride.core.errors import InvalidInput
from fedstride.core.losses import IGNORED, Loss, correct
from fedstride.core.scores import Metric, computed

EVALUATION_CHUNK = 1000  # samples; fixed, because the bits of a sum depend on it
Scores = dict[str, float | None]
Results = Sequence[tuple[Any, Tree]]  # (outputs, targets), part by part


def evaluation_parts(samples: int) -> list[Tensor]:
    """Return the indices of the parts in which a test set is evaluated."""
    size = EVALUATION_CHUNK
    return [torch.arange(i, min(i + size, samples), device="cpu") for i in range(0, samples, size)]


def outputs_of(model: nn.Module, samples: Samples) -> Results:
    """Return the outputs of a model in evaluation mode for all samples, part by part; the model is left as it was."""
    like, was_training = next(iter(model.parameters()), torch.empty(0)), model.training
    model.eval()
    results = []
    try:
        with torch.no_grad():
            for index in evaluation_parts(len(samples)):
                inputs, targets = (moved(part, like.device) for part in samples.take(index))
                results.append((called(model, inputs), targets))
    finally:
        model.train(was_training)
    return results


def score(loss: Loss, metrics: Mapping[str, Metric], results: Results) -> Scores:
    """Return "loss", "accuracy" (None if the task is not a classification) and the metrics of a model's outputs."""
    if is_plain(results):
        output, targets = (torch.cat(part) for part in zip(*results, strict=True))
        right = correct(output, targets)
        found: Scores = {"loss": float(loss(output, targets))}
        there = targets.numel() - (0 if targets.is_floating_point() else int((targets == IGNORED).sum()))
        found["accuracy"] = None if right is None or not there else float(right) / there
        return {**found, **computed(metrics, output, targets)}
    sizes = [samples_of(targets) for _, targets in results]
    parts = [float(loss(output, targets)) for output, targets in results]
    found = {"loss": sum(n * value for n, value in zip(sizes, parts, strict=True)) / sum(sizes)}
    found["accuracy"] = _accuracy(results)
    if metrics:
        both = [[logits_of(output) for output, _ in results], [targets_of(targets) for _, targets in results]]
        found |= computed(metrics, *(part[0] if len(part) == 1 else joined(part, _padded) for part in both))
    return found


def _padded(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors; if lengths differ, pad outputs with 0 and labels with -100, which losses and metrics leave out."""
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(parts)
    if any(part.dim() != parts[0].dim() for part in parts):
        raise InvalidInput("metrics: outputs or targets of the test set differ in their number of dimensions.")
    longest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    value = 0.0 if parts[0].is_floating_point() else float(IGNORED)
    blocks = [part.new_full((len(part), *longest), value) for part in parts]
    for block, part in zip(blocks, parts, strict=True):
        block[tuple(map(slice, part.shape))] = part
    return torch.cat(blocks)


def is_plain(results: Results) -> bool:
    """Whether all outputs and targets are tensors that can be put together."""
    tensors = all(isinstance(v, Tensor) for result in results for v in result)
    return tensors and len({(o.shape[1:], t.shape[1:]) for o, t in results}) == 1 and results[0][0].dim() > 0


def _accuracy(results: Results) -> float | None:
    right = total = 0.0
    for output, targets in results:
        logits, targets = logits_of(output), targets_of(targets)
        if not isinstance(logits, Tensor) or not isinstance(targets, Tensor) or logits.dim() == 0:
            return None
        hits = correct(logits, targets)
        if hits is None:
            return None
        right, total = right + float(hits), total + int((targets != IGNORED).sum())
    return right / total if total else None


def test_columns(scores: Sequence[Scores], metrics: Iterable[str]) -> Scores:
    """Return the scores of one test set; of several, one per client, their means, and how the clients differ."""
    row: Scores = {}
    for name, column in {"loss": "test_loss", "accuracy": "test_accuracy", **{m: m for m in metrics}}.items():
        values = [s[name] for s in scores]
        known = [v for v in values if v is not None]
        row[column] = sum(known) / len(known) if len(known) == len(values) else None
    if len(scores) > 1:
        losses = row["test_accuracy"] is None
        each = sorted(float(s["loss" if losses else "accuracy"] or 0.0) for s in scores)
        worst = (each[::-1] if losses else each)[: max(1, len(each) // 10)]
        row |= {"test_worst_decile": sum(worst) / len(worst), "test_spread": statistics.pstdev(each)}
    return row
