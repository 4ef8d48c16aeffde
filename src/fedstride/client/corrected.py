"""The oracle that a step rule receives: f_B, weight decay, terms of the objective, clipping, drift correction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedstride.client.objective.terms import Terms
from fedstride.core.rows import Col, Rows, clip, dot, sq
from fedstride.oracle import Oracle, Ray, along


def _some(A: Tensor | None, rows: list[int] | slice) -> Tensor | None:
    return A[rows] if A is not None and A.dim() > 1 else A


@dataclass
class Corrected:
    """f_B(y) + decay/2 |y|^2 + curvature/2 |y - center|^2 + <linear, y>, and then + <corr, y>.

    Armijo searches on the sum of all terms. The gradient is clipped before corr is added. Polyak uses `plain`, the last
    loss and gradient without clipping and corr.
    """

    base: Oracle
    terms: Terms
    corr: Rows | None = None
    weight_decay: float = 0.0
    clip_norm: float | None = None
    data_loss: Col | None = None  # f_B with weight decay, for the history
    plain: tuple[Col, Rows] | None = None

    def loss(self, W: Rows) -> Col:
        return self._whole(W, self.base.loss(W))

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        t = self.terms
        L, G = self.base.grad(W)
        self.data_loss = getattr(self.base, "data_loss", L)  # for oracles that add terms to the loss of the data
        if self.weight_decay:
            extra = self.weight_decay / 2 * sq(W)
            L, G, self.data_loss = L + extra, G.add_(W, alpha=self.weight_decay), self.data_loss + extra
        L = self._with_terms(W, L)
        if t.curvature and t.center is not None:
            G.add_(W - t.center, alpha=t.curvature)
        if t.linear is not None:
            G.add_(t.linear)
        if t.moves is not None:
            G.mul_(t.moves)
        self.plain = (L, G)
        if self.clip_norm is not None:
            G = clip(G, self.clip_norm)
        return (L, G) if self.corr is None else (L + dot(self.corr, W), G + self.corr)

    def along(self, W: Rows, D: Rows) -> Ray:
        """Return the whole objective at W - eta D, for line searches."""
        data = along(self.base, W, D)
        if not (self.weight_decay or self.terms.curvature or self.terms.linear is not None or self.corr is not None):
            return data

        def value(eta: Col, rows: list[int]) -> Col:
            if len(rows) == len(W):
                return self._whole(W - eta * D, data(eta, rows))
            part = replace(self, terms=_rows_of(self.terms, rows), corr=_some(self.corr, rows))
            return part._whole(W[rows] - eta * D[rows], data(eta, rows))

        return value

    def take(self, rows: list[int]) -> Corrected:
        return Corrected(
            self.base.take(rows), _rows_of(self.terms, rows), _some(self.corr, rows), self.weight_decay, self.clip_norm
        )

    def _whole(self, W: Rows, L: Col) -> Col:
        """Return the whole objective, given the loss of the data."""
        L = self._with_terms(W, L + self.weight_decay / 2 * sq(W) if self.weight_decay else L)
        return L if self.corr is None else L + dot(self.corr, W)

    def _with_terms(self, W: Rows, L: Col) -> Col:
        t = self.terms
        if t.curvature and t.center is not None:
            L = L + t.curvature / 2 * sq(W - t.center)
        return L if t.linear is None else L + dot(t.linear, W)


def _rows_of(t: Terms, rows: list[int] | slice) -> Terms:
    return Terms(t.start, t.curvature, _some(t.center, rows), _some(t.linear, rows), t.contrast, t.moves)


def first_rows(t: Terms, corr: Rows | None, n: int) -> tuple[Terms, Rows | None]:
    """Return the terms and the correction of the first n rows."""
    return _rows_of(t, slice(n)), _some(corr, slice(n))
