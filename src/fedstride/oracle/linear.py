"""Closed form for linear models: a whole chunk of clients in two matrix products, without automatic differentiation.

Batches of different sizes are padded with samples of weight zero.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedstride.core.batch import Batch
from fedstride.core.rows import Col, Rows, Vec
from fedstride.oracle.forms import FEW, Form, Layers
from fedstride.oracle.protocol import Meter, Ray


@dataclass
class Matrices:
    """The batches of a chunk as matrices: features X [C, B, F], targets T [C, B, ...], weights w [C, B, 1], and sample counts."""

    X: Tensor
    T: Tensor
    w: Tensor
    sizes: list[int]

    def take(self, rows: list[int]) -> Matrices:
        return Matrices(self.X[rows], self.T[rows], self.w[rows], [self.sizes[i] for i in rows])

    def charge(self, counts: list[int], rows: Sequence[int]) -> None:
        """Add the numbers of samples to the counts of these positions in the chunk."""
        for i, n in zip(rows, self.sizes, strict=True):
            counts[i] += n


def gathered(form: Form, batches: Sequence[Batch]) -> Matrices:
    """Stack one batch per client, padded if sizes differ."""
    sizes = [len(inputs) for inputs, _ in batches]
    B = max(sizes)
    X = _padded([inputs.reshape(n, -1) for (inputs, _), n in zip(batches, sizes, strict=True)], B)
    T = _padded([targets.reshape(n, -1) for (_, targets), n in zip(batches, sizes, strict=True)], B)
    return _weighted(form, X, T, sizes)


def ahead(form: Form, X: Tensor, T: Tensor, steps: int) -> list[Matrices]:
    """Return the equal-sized batches of several steps as views of [C, steps x B, ...] samples, fetched together."""
    C, B = len(X), X.shape[1] // steps
    X, T = (v.view(C * steps, B, -1) for v in (X, T))
    all_of_them = _weighted(form, X, T, [B] * len(X))
    X, T, w = (v.view(C, steps, *v.shape[1:]) for v in (X, all_of_them.T, all_of_them.w))
    return [Matrices(X[:, k], T[:, k], w[:, k], [B] * C) for k in range(steps)]


def _weighted(form: Form, X: Tensor, T: Tensor, sizes: list[int]) -> Matrices:
    """Convert targets for the loss, and set weights: zero for padding and ignored samples."""
    B, counts = X.shape[1], X.new_tensor(sizes)[:, None, None]
    place = torch.arange(B, device=X.device)[:, None]
    w = X.new_ones(len(sizes), B, 1) if min(sizes) == B else (place < counts).to(X.dtype)
    if form.labels:
        T = T.long()  # torch also accepts bytes
        there = T != -100  # torch's label for ignored samples
        w, T = w * there, T.clamp(min=0)
        counts = w.sum(1, keepdim=True)
    else:
        counts, T = counts * form.outputs, T.to(X.dtype)
    return Matrices(X, T, w / counts if form.reduction == "mean" else w, sizes)


def _padded(parts: list[Tensor], B: int) -> Tensor:
    if all(len(p) == B for p in parts):
        return torch.stack(parts) if len(parts) > 1 else parts[0][None]
    return torch.stack([F.pad(p, (0, 0, 0, B - len(p))) for p in parts])


def affine(X: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return X W' + b of every client: [C, B, inputs] and [C, outputs, inputs] to [C, B, outputs]."""
    if weight.shape[1] <= FEW:
        Z = torch.bmm(weight, X.transpose(1, 2)).transpose(1, 2)
    else:
        Z = torch.bmm(X, weight.transpose(1, 2))
    return Z if bias is None else Z.add_(bias)  # baddbmm would be slower


def subtract(weight: Tensor, D: Tensor, X: Tensor) -> None:
    """Compute weight -= D'X in place, in the order in which the weights are stored."""
    if weight.stride(2) == 1:
        weight.baddbmm_(D.transpose(1, 2), X, alpha=-1)
    else:
        weight.transpose(1, 2).baddbmm_(X.transpose(1, 2), D, alpha=-1)


class Linear:
    """f_B and its gradient for all rows at once, from the scores Z = X W' + offset."""

    def __init__(
        self,
        form: Form,
        samples: Matrices,
        meter: Meter,
        rows: Sequence[int] | None = None,
        offset: Tensor | None = None,
    ) -> None:
        self.form, self.samples, self.meter, self.offset = form, samples, meter, offset
        self.rows = list(range(len(samples.sizes))) if rows is None else list(rows)  # positions in the chunk
        self.last: tuple[Rows, int, Tensor] | None = None  # point of the last gradient, its version, its scores
        self.steps: tuple[Col, Tensor] | None = None  # steps of the last descend(), and their product with the weights

    def loss(self, W: Rows) -> Col:
        self.samples.charge(self.meter.forwards, self.rows)
        return self.form.phi.value(self._scores(self.form.views(W)), self.samples.T, self.samples.w)

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        phi, s, G = self.form.phi, self.samples, torch.empty_like(W)
        Z = self._scores(self.form.views(W))
        self.last = W, W._version, Z
        self.samples.charge(self.meter.gradients, self.rows)
        D = phi.slope(Z, s.T, s.w)
        ((weight, bias),) = self.form.views(G)
        torch.bmm(D.transpose(1, 2), s.X, out=weight)
        if bias is not None:
            torch.sum(D, 1, keepdim=True, out=bias)
        return phi.value(Z, s.T, s.w), G

    def descend(self, layers: Layers, eta: Col, valued: bool = False) -> Col | None:
        """Update W -= eta grad in place, given form.views(W); return the loss before if `valued`."""
        phi, s, Z = self.form.phi, self.samples, self._scores(layers)
        L = phi.value(Z, s.T, s.w) if valued else None
        self.samples.charge(self.meter.gradients, self.rows)
        if self.steps is None or self.steps[0] is not eta:
            self.steps = eta, s.w * eta[:, :, None]
        self._move(layers, phi.slope(Z, s.T, self.steps[1]))
        return L

    def along(self, W: Rows, D: Rows) -> Ray:
        """Return the loss along a direction; scores are linear in the step, so any number of trials reads samples once."""
        here = self.last is not None and self.last[0] is W and self.last[1] == W._version
        Z = self.last[2] if self.last is not None and here else self._scores(self.form.views(W))
        slope = affine(self.samples.X, *self.form.views(D)[0])
        s, phi = self.samples, self.form.phi.value

        def value(eta: Col, rows: list[int]) -> Col:
            for i in rows:
                self.meter.forwards[self.rows[i]] += s.sizes[i]
            if len(rows) == len(Z):
                return phi(torch.addcmul(Z, eta[:, :, None], slope, value=-1), s.T, s.w)
            return phi(torch.addcmul(Z[rows], eta[:, :, None], slope[rows], value=-1), s.T[rows], s.w[rows])

        return value

    def take(self, rows: list[int]) -> Linear:
        some = copy.copy(self)
        some.samples, some.rows = self.samples.take(rows), [self.rows[i] for i in rows]
        some.last = some.steps = None
        some.offset = None if self.offset is None else self.offset[rows]
        return some

    def _scores(self, layers: Layers) -> Tensor:
        """Return the scores Z [C, B, K]."""
        ((weight, bias),) = layers
        return affine(self.samples.X, weight, self.offset if bias is None else bias)

    def _move(self, layers: Layers, D: Tensor) -> None:
        """Subtract the gradient of slopes D in place."""
        ((weight, bias),) = layers
        subtract(weight, D, self.samples.X)
        if bias is not None:
            bias.sub_(D.sum(1, keepdim=True))


class Coefficients(Linear):
    """The losses in the coefficients s of y = x + A's: the features are the Gram matrix, and a step moves s by the slopes."""

    def _scores(self, layers: Layers) -> Tensor:
        ((s, _),) = layers
        gram = self.samples.X  # symmetric
        Z = torch.bmm(s, gram).transpose(1, 2) if s.shape[1] <= FEW else torch.bmm(gram, s.transpose(1, 2))
        return Z if self.offset is None else Z.add_(self.offset)

    def _move(self, layers: Layers, D: Tensor) -> None:
        layers[0][0].sub_(D.transpose(1, 2))


@dataclass
class Reduced:
    """A wide full-batch problem in the span of its samples A, with one coordinate per sample: a step costs n^2, not n d.

    With y = x + Q'z, where A = L Q and L is the Cholesky factor of the Gram matrix A A', lengths and angles are those of
    the full problem: rules that do not depend on the choice of axes take the same steps. Rules whose steps are fixed do
    not need them, and work on the coefficients s of y = x + A's.
    """

    form: Form
    samples: Matrices  # samples of the full problem
    factors: Tensor | None  # L [C, n, n]; None for coefficients
    oracle: Linear
    origin: Vec

    def oracles(self, k: int, active: int) -> Linear:
        return self.oracle if active == len(self.samples.sizes) else self.oracle.take(list(range(active)))

    def lift(self, Z: Rows) -> Rows:
        """Return Q'z = A' L^-T z, or A's, as rows of the full model."""
        form, s = self.form, Z.view(len(Z), self.form.outputs, -1)
        if self.factors is not None:
            s = torch.linalg.solve_triangular(self.factors, s, upper=False, left=False)  # s L = z
        weight = torch.bmm(s, self.samples.X).flatten(1)
        return torch.cat([weight, s.sum(2)], 1) if form.bias else weight


def reduced(form: Form, samples: Matrices, factors: Tensor | None, gram: Tensor, x: Vec, meter: Meter) -> Reduced:
    """Return the reduced problem around x, in coefficients without factors."""
    C, n, _ = samples.X.shape
    scores = affine(samples.X.view(1, C * n, -1), *form.views(x[None])[0]).view(C, n, -1)
    small = Form(form.phi, n, form.outputs, False, form.reduction)
    kind, features = (Coefficients, gram) if factors is None else (Linear, factors)
    oracle = kind(small, Matrices(features, samples.T, samples.w, samples.sizes), meter, offset=scores)
    return Reduced(form, samples, factors, oracle, x.new_zeros(form.outputs * n))


def together(factors: Sequence[Tensor | None]) -> Tensor | None:
    """Stack the factors of all clients to [C, n, n], padded to n samples; None unless all have one."""
    there = [L[0] for L in factors if L is not None]
    if len(there) < len(factors):
        return None
    n = max(len(L) for L in there)
    padded = torch.stack([torch.eye(n, dtype=there[0].dtype, device=there[0].device) for _ in there])
    for whole, L in zip(padded, there, strict=True):
        whole[: len(L), : len(L)] = L
    return padded


def factor(form: Form, inputs: Tensor) -> Tensor | None:
    """Return the Cholesky factor [1, n, n] of one client's Gram matrix; None if samples are linearly dependent."""
    A = inputs.reshape(len(inputs), -1).double()
    L, info = torch.linalg.cholesky_ex(A @ A.T + form.bias)
    singular = int(info) or float(L.diagonal().min()) < 1e-7 * float(L.diagonal().max())
    return None if singular else L[None].to(inputs.dtype)
