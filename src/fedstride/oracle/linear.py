"""Closed forms for linear models: a whole chunk of clients in two matrix products, without automatic differentiation.

f_B(y) = sum_j w_j phi(a_j'y, b_j) with phi = squares, logistic, binary or multinomial cross entropy. Batches of different
sizes are padded with samples of weight zero.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstride.core import losses
from fedstride.core.batch import Batch
from fedstride.core.losses import Loss
from fedstride.core.rows import Col, Rows, Vec, repeat
from fedstride.models.network import Network
from fedstride.oracle.protocol import Meter, Ray

CHANGED = ("forward", "features", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Part = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Phi:
    """A loss of scores and targets [C, K, B] (labels [C, 1, B]) with weights [C, 1, B]: value and slope of each sample.

    Both include the weights; sum the value [C, 1 or K, B] to get the loss.
    """

    each: Part
    slope: Part

    def value(self, Z: Tensor, T: Tensor, w: Tensor) -> Col:
        """Return the loss of each client."""
        return self.each(Z, T, w).sum((1, 2))[:, None]


def _onto_labels(Z: Tensor, T: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(Z, 1).scatter_add_(1, T, -torch.ones_like(w)).mul_(w)


def _log_margins(Z: Tensor, T: Tensor, w: Tensor) -> Tensor:
    margin = -Z * T
    return w * torch.logaddexp(margin, torch.zeros_like(margin))


squares = Phi(lambda Z, T, w: (Z - T).square_().mul_(w), lambda Z, T, w: (Z - T).mul_(2 * w))
logistic = Phi(_log_margins, lambda Z, T, w: -w * T * torch.sigmoid(-Z * T))
binary = Phi(
    lambda Z, T, w: w * F.binary_cross_entropy_with_logits(Z, T, reduction="none"),
    lambda Z, T, w: w * (torch.sigmoid(Z) - T),
)
multinomial = Phi(lambda Z, T, w: -w * torch.log_softmax(Z, 1).gather(1, T), _onto_labels)


@dataclass(frozen=True)
class Form:
    """A linear model of `inputs` features with `outputs` scores, and its loss."""

    phi: Phi
    inputs: int
    outputs: int
    bias: bool
    reduction: str  # mean or sum

    @property
    def labels(self) -> bool:
        """True if targets are class labels."""
        return self.phi is multinomial

    def flops(self, samples: int) -> float:
        """Return the FLOPs of one loss and its gradient, one matrix product each."""
        return 4.0 * samples * self.inputs * self.outputs


def form_of(model: nn.Module, loss: Loss, batch: Batch) -> Form | None:
    """Return the closed form of a model and its loss, or None. Recognises only layers and losses of known types."""
    if not all(isinstance(part, Tensor) for part in batch):
        return None
    layer = _layer(model, batch[0].dim())
    if layer is None or not all(p.requires_grad for p in layer.parameters()):
        return None
    form = _phi(loss)
    if form is None:
        return None
    phi, reduction = form
    inputs, targets = batch
    n, K = len(inputs), layer.out_features
    if phi is multinomial:
        fits = targets.shape == (n,) and not targets.is_floating_point() and K > 1
    else:  # our losses accept targets of any shape; torch's would broadcast [n, 1] and [n] to [n, n]
        ours = loss in (losses.mse, losses.logistic, losses.bce_with_logits)
        fits = targets.shape == (n, K) or (ours and targets.numel() == n * K)
    return Form(phi, layer.in_features, K, layer.bias is not None, reduction) if fits else None


def _layer(model: nn.Module, dims: int) -> nn.Linear | None:
    """Return the linear layer of a linear model, or None."""
    before, last = list[nn.Module](), model
    features = getattr(type(model), "features", Network.features)
    if type(model).forward in (nn.Sequential.forward, Network.forward) and features is Network.features:
        *before, last = model.children()
    plain = all(type(m) is nn.Identity or _flattening(m) for m in before)
    touched = [m for m in model.modules() if any(vars(m).get(name) for name in CHANGED)]
    flat = dims == 2 or any(_flattening(m) for m in before)
    alone = len(list(model.parameters())) == len(list(last.parameters()))  # the container has no parameters
    return last if type(last) is nn.Linear and plain and flat and alone and not touched else None


def _flattening(m: nn.Module) -> bool:
    return type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1)


def _phi(loss: Loss) -> tuple[Phi, str] | None:
    """Return the closed form of a loss and its reduction, or None."""
    known: dict[Loss, Phi] = {
        losses.mse: squares,
        F.mse_loss: squares,
        losses.logistic: logistic,
        losses.bce_with_logits: binary,
        F.binary_cross_entropy_with_logits: binary,
        F.cross_entropy: multinomial,
    }
    if isinstance(loss, Hashable) and loss in known:
        return known[loss], "mean"
    kind, reduction = type(loss), getattr(loss, "reduction", None)
    if reduction not in ("mean", "sum"):
        return None
    if kind is nn.MSELoss:
        return squares, reduction
    if kind is nn.BCEWithLogitsLoss and loss.weight is None and loss.pos_weight is None:  # type: ignore[attr-defined]
        return binary, reduction
    if kind is nn.CrossEntropyLoss and loss.weight is None and loss.label_smoothing == 0:  # type: ignore[attr-defined]
        return (multinomial, reduction) if loss.ignore_index == -100 else None  # type: ignore[attr-defined]
    return None


@dataclass
class Matrices:
    """The batches of a chunk as matrices: features X [C, B, F], targets T, weights w [C, 1, B], and sample counts."""

    X: Tensor
    T: Tensor
    w: Tensor
    sizes: list[int]

    def take(self, rows: list[int]) -> Matrices:
        return Matrices(self.X[rows], self.T[rows], self.w[rows], [self.sizes[i] for i in rows])


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
    B, T = X.shape[1], T.transpose(1, 2)
    counts = X.new_tensor(sizes)[:, None, None]
    w = X.new_ones(len(sizes), 1, B) if min(sizes) == B else (torch.arange(B, device=X.device) < counts).to(X.dtype)
    if form.labels:
        T = T.long()  # torch also accepts bytes
        there = T != -100  # torch's label for ignored samples
        w, T = w * there, T.clamp(min=0)
        counts = w.sum(2, keepdim=True)
    else:
        counts, T = counts * form.outputs, T.to(X.dtype)
    return Matrices(X, T, w / counts if form.reduction == "mean" else w, sizes)


def _padded(parts: list[Tensor], B: int) -> Tensor:
    if all(len(p) == B for p in parts):
        return torch.stack(parts) if len(parts) > 1 else parts[0][None]
    return torch.stack([F.pad(p, (0, 0, 0, B - len(p))) for p in parts])


class Linear:
    """f_B and its gradient for all rows at once, from the scores Z = W X' + offset."""

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

    def loss(self, W: Rows) -> Col:
        self._charge(self.meter.forwards)
        return self.form.phi.value(self._scores(W), self.samples.T, self.samples.w)

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        form, s = self.form, self.samples
        Z = self._scores(W)
        self.last = W, W._version, Z
        L, D = form.phi.value(Z, s.T, s.w), form.phi.slope(Z, s.T, s.w)
        self._charge(self.meter.gradients)
        if not form.bias:
            return L, torch.bmm(D, s.X).flatten(1)
        G = torch.empty_like(W)
        at = form.outputs * form.inputs
        torch.bmm(D, s.X, out=G[:, :at].view(len(W), form.outputs, -1))
        torch.sum(D, 2, out=G[:, at:])
        return L, G

    def descend(self, W: Rows, eta: Col) -> None:
        """Update W -= eta grad in place."""
        form, s = self.form, self.samples
        self._charge(self.meter.gradients)
        D = form.phi.slope(self._scores(W), s.T, s.w).mul_(eta[:, :, None])
        at = form.outputs * form.inputs
        W[:, :at].view(W.shape[0], form.outputs, -1).baddbmm_(D, s.X, alpha=-1)
        if form.bias:
            W[:, at:] -= D.sum(2)

    def along(self, W: Rows, D: Rows) -> Ray:
        """Return the loss along a direction; scores are linear in the step, so any number of trials reads samples once."""
        here = self.last is not None and self.last[0] is W and self.last[1] == W._version
        Z = self.last[2] if self.last is not None and here else self._scores(W)
        slope = self._scores(D, linear=True)
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
        some.samples, some.rows, some.last = self.samples.take(rows), [self.rows[i] for i in rows], None
        some.offset = None if self.offset is None else self.offset[rows]
        return some

    def _scores(self, W: Rows, linear: bool = False) -> Tensor:
        """Return the scores Z [C, K, B]; with `linear`, those of a direction, without the offset."""
        form, X = self.form, self.samples.X
        at = form.outputs * form.inputs
        weight = W[:, :at].view(W.shape[0], form.outputs, -1)
        if form.bias:
            return torch.baddbmm(W[:, at:, None], weight, X.transpose(1, 2))
        if self.offset is None or linear:
            return torch.bmm(weight, X.transpose(1, 2))
        return torch.baddbmm(self.offset, weight, X.transpose(1, 2))

    def _charge(self, counts: list[int]) -> None:
        for i, n in zip(self.rows, self.samples.sizes, strict=True):
            counts[i] += n


@dataclass
class Reduced:
    """A wide full-batch problem in the span of its samples: y = x + Q'z, with one coordinate per sample.

    A = L Q with L the Cholesky factor of the Gram matrix A A'. This preserves lengths and angles, and a step costs n^2
    instead of n d. Rules that do not depend on the choice of axes take the same steps as in the full problem.
    """

    form: Form
    samples: Matrices  # samples of the full problem
    factors: Tensor  # L [C, n, n]
    oracle: Linear
    origin: Vec

    def oracles(self, k: int, active: int) -> Linear:
        return self.oracle if active == len(self.factors) else self.oracle.take(list(range(active)))

    def lift(self, Z: Rows) -> Rows:
        """Return Q'z = A' L^-T z as rows of the full model."""
        form, X = self.form, self.samples.X
        z = Z.view(len(Z), form.outputs, -1)
        solved = torch.linalg.solve_triangular(self.factors, z, upper=False, left=False)  # s L = z
        weight = torch.bmm(solved, X).flatten(1)
        return torch.cat([weight, solved.sum(2)], 1) if form.bias else weight


def reduced(form: Form, samples: Matrices, factors: Tensor, x: Vec, meter: Meter) -> Reduced:
    """Return the reduced problem around x."""
    scores = Linear(form, samples, Meter(len(samples.sizes)))._scores(repeat(x, len(samples.sizes)))
    n = samples.X.shape[1]
    small = Form(form.phi, n, form.outputs, False, form.reduction)
    oracle = Linear(small, Matrices(factors, samples.T, samples.w, samples.sizes), meter, offset=scores)
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
