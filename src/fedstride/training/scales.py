"""The scales of the inputs: warnings if features are far apart, or if all are very small or very large.

Very small or large inputs are scaled if the algorithm's steps are relative to the weights, as those of `auto` are: they
cannot learn quickly that the weights of the first layer are of the wrong size.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.algorithm import Algorithm
from fedstride.core.capabilities import declared
from fedstride.core.model import own_randomness
from fedstride.core.normalise import Normalise, Normalised
from fedstride.data.clients import TensorClient
from fedstride.data.federation import Federation, Lazy
from fedstride.training.probe import LOOK, PROBE, Probed

FAR = 100  # largest tolerated ratio of scales of features, and of a mean to its deviation
UNUSUAL = 8  # largest tolerated size of the inputs, and the inverse of the smallest
LEAST = 8  # samples needed to estimate scales

CLIENTS = 8  # limits of what is read: clients ...
NUMBERS = 2**21  # ... and numbers in total


def judge_inputs(
    normalise: Normalise | None, algorithm: Algorithm, model: nn.Module, clients: Federation | Lazy, probed: Probed
) -> tuple[Normalise, str, list[list[Any]]]:
    """Decide whether inputs are scaled, if the user has not.

    Returns:
        The decision; a warning, "" if none is needed; and the columns that look_at_scales() returns.
    """
    if normalise or is_normalised(model):
        return normalise or False, "", []
    private = algorithm.privacy is not None
    warning, apart = look_at_scales(clients, probed.inputs, private)
    size = None if warning else unusual_size(model, probed.inputs)
    if size is None:
        return False, warning, [] if private else apart  # the clients' inputs are not released
    able = declared(algorithm.step, "scales_tensors") and not private
    if normalise is None and able and not _knows(model, probed, size):
        return "scale", "", []
    fix = "Divide them by a known constant" if private else "Use normalise=True, or divide them by a constant"
    return (
        False,
        f"clients: the inputs are {'large' if size > 1 else 'small'}: half of those that are not 0 are "
        f"{'above' if size > 1 else 'below'} {size:.2g} in size, and most models learn best from inputs of size 1. {fix}.",
        [],
    )


def is_normalised(model: nn.Module) -> bool:
    """Whether the model scales its inputs itself, like run.model after normalise=True."""
    return any(isinstance(m, Normalised) for m in model.modules())


def look_at_scales(clients: Federation | Lazy, largest: Any, private: bool) -> tuple[str, list[list[Any]]]:
    """Look for columns whose scales differ so much that no step size suits all of them.

    A column's scale is the root mean square of its non-zero entries, so that sparse and one-hot columns have the scale
    of dense ones. Constant columns are ignored. Columns that are mostly zero, or that rarely differ from their median,
    such as the pixels at the border of an image, count only if they are large.

    Args:
        clients: the federation.
        largest: inputs of the largest client, if they are on this machine.
        private: whether normalise=True would be refused.

    Returns:
        A warning, "" if none is needed; and [name or index, scale] of the smallest and the largest column, if their
        scales are far apart.
    """
    if not isinstance(largest, Tensor) or largest.dim() != 2 or not largest.is_floating_point():
        return "", []
    few = max(1, min(LOOK, NUMBERS // ((CLIENTS + 1) * max(1, largest.shape[1]))))
    others = clients[:CLIENTS] if isinstance(clients, Federation) else []
    parts = [largest, *(c.inputs for c in others if isinstance(c, TensorClient))]
    X = torch.cat([part[:few].detach().cpu().double() for part in parts])
    there, often = (X != 0).sum(0), 4 * (X.median(0).values != X).sum(0) >= len(X)
    mean, deviation = X.mean(0), X.std(0, correction=0)
    varies = deviation > 4 * torch.finfo(largest.dtype).eps * mean.abs()
    if len(X) < LEAST or not bool(varies.any()):
        return "", []
    scale = (X.square().sum(0) / there.clamp(min=1)).sqrt()
    dense = varies & often & (2 * there >= len(X))
    ratio = float(scale[varies].max() / scale[dense].min()) if bool(dense.any()) else 1.0
    offset = torch.where(varies & often, mean.abs() / deviation, 0.0)
    if ratio <= FAR and float(offset.max()) <= FAR:
        return "", []
    apart = (scale / scale[varies].median()).log().abs() if ratio > FAR else torch.zeros_like(scale)
    off = torch.where(offset > FAR, offset, 1.0).log()
    worst = torch.where(varies, torch.maximum(apart, off), -1.0).argsort(descending=True)[: min(3, int(varies.sum()))]
    columns = getattr(clients, "columns", ())
    named = [repr(columns[i]) if len(columns) == len(mean) else f"feature {i}" for i in worst.tolist()]
    shown = [f"{n} is {mean[i]:.3g} +- {deviation[i]:.3g}" for n, i in zip(named, worst.tolist(), strict=True)]
    fix = "Scale each column by a known constant" if private else "Use normalise=True, or scale the columns yourself"
    warning = (
        f"clients: the scales of the input features are far apart ({', '.join(shown)}), so no step size suits all of "
        f"them. {fix}."
    )
    if ratio <= FAR:
        return warning, []
    small = int(torch.where(dense, scale, math.inf).argmin())
    large = int(torch.where(varies, scale, 0.0).argmax())
    return warning, [[str(columns[i]) if len(columns) == len(mean) else i, float(scale[i])] for i in (small, large)]


def unusual_size(model: nn.Module, inputs: Any) -> float | None:
    """Return the median size of the inputs that are not 0 if it is far from 1, like that of pixels from 0 to 255; else None.

    It counts only if the first layer with weights sees such inputs. A model may scale them itself, or start with
    BatchNorm or LayerNorm, whose weights are vectors.
    """
    size = _size(inputs)
    if size is None:
        return None
    seen: list[tuple[bool, float | None]] = []

    def look(layer: nn.Module, given: tuple[Any, ...]) -> None:
        if not seen:
            matrices = any(p.dim() > 1 for p in layer.parameters(recurse=False))
            seen.append((matrices, _size(given[0] if given else None)))

    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if next(layer.parameters(recurse=False), None) is not None:
            layer.register_forward_pre_hook(look)
    _outputs(twin, inputs[:PROBE])
    matrices, reached = seen[0] if seen else (True, size)
    return size if matrices and reached is not None else None


def _size(inputs: Any) -> float | None:
    """Return the median size of the entries that are not 0 if it is far from 1; else None."""
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not inputs.is_floating_point() or len(inputs) < LEAST:
        return None
    few = min(LOOK, NUMBERS // max(1, math.prod(inputs.shape[1:])))
    X = inputs[: max(1, few)].detach().abs()
    size = float(X[X > 0].median()) if bool((X > 0).any()) else 1.0
    return size if math.isfinite(size) and not 1 / UNUSUAL <= size <= UNUSUAL else None


def _knows(model: nn.Module, probed: Probed, size: float) -> bool:
    """Whether the model was trained on inputs of this size: its loss would more than double if they were scaled."""
    twin, inputs = copy.deepcopy(model), probed.inputs[:PROBE]
    raw, scaled = (float(probed.loss(_outputs(twin, values), probed.targets)) for values in (inputs, inputs / size))
    return raw < scaled / 2


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Tensor) -> Any:
    device = next(model.parameters()).device
    with own_randomness(device):
        return model.eval()(inputs.to(device))
