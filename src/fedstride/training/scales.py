"""The scales of the inputs: warnings if features are far apart, or if all are very small or very large."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fedstride.data.clients import TensorClient
from fedstride.data.federation import Federation, Lazy

FAR = 100  # largest tolerated ratio of scales of features, and of a mean to its deviation
UNUSUAL = 8  # largest tolerated size of the inputs, and the inverse of the smallest
LEAST = 8  # samples needed to estimate scales
LOOK = 500  # limits of what is read: samples per client, ...
CLIENTS = 8  # ... clients, ...
NUMBERS = 2**21  # ... and numbers in total


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


def look_at_size(largest: Any, private: bool) -> str:
    """Return a warning if the inputs as a whole are very small or very large, like pixels from 0 to 255; else "".

    Args:
        largest: inputs of the largest client, if they are on this machine.
        private: whether normalise=True would be refused.
    """
    if not isinstance(largest, Tensor) or largest.dim() < 2 or not largest.is_floating_point():
        return ""
    few = min(LOOK, NUMBERS // max(1, math.prod(largest.shape[1:])))
    X = largest[: max(1, few)].detach().abs()
    size = float(X[X > 0].median()) if len(X) >= LEAST and bool(X.any()) else 1.0
    if not math.isfinite(size) or 1 / UNUSUAL <= size <= UNUSUAL:
        return ""
    fix = "Divide them by a known constant" if private else "Use normalise=True, or divide them by a constant"
    return (
        f"clients: the inputs are {'large' if size > 1 else 'small'}: half of those that are not 0 are {'above' if size > 1 else 'below'} "
        f"{size:.2g} in size, and most models learn best from inputs of size 1. {fix}, unless the model scales its inputs itself."
    )
