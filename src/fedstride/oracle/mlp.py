"""Closed form for multi-layer perceptrons: one product per layer and direction for a whole chunk of clients.

H_0 = X, Z_l = H_(l-1) W_l' + b_l, H_l = a(Z_l), and back: D_l = dL/dZ_l, dL/dW_l = D_l' H_(l-1), D_(l-1) = D_l W_l * a'.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedstride.core.rows import Col, Rows
from fedstride.oracle.forms import Form, Layers
from fedstride.oracle.linear import Matrices, affine, subtract
from fedstride.oracle.protocol import Meter


class Perceptron:
    """f_B and its gradient for all rows at once, by backpropagation without automatic differentiation."""

    def __init__(self, form: Form, samples: Matrices, meter: Meter, rows: Sequence[int] | None = None) -> None:
        self.form, self.samples, self.meter = form, samples, meter
        self.rows = list(range(len(samples.sizes))) if rows is None else list(rows)  # positions in the chunk

    def loss(self, W: Rows) -> Col:
        self.samples.charge(self.meter.forwards, self.rows)
        return self.form.phi.value(self._states(self.form.views(W))[-1], self.samples.T, self.samples.w)

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        s, G, layers = self.samples, torch.empty_like(W), self.form.views(W)
        self.samples.charge(self.meter.gradients, self.rows)
        states = self._states(layers)
        L = self.form.phi.value(states[-1], s.T, s.w)
        for (weight, bias), (D, H) in zip(self.form.views(G)[::-1], self._back(layers, states), strict=True):
            torch.bmm(D.transpose(1, 2), H, out=weight)
            if bias is not None:
                torch.sum(D, 1, keepdim=True, out=bias)
        return L, G

    def descend(self, layers: Layers, eta: Col, valued: bool = False) -> Col | None:
        """Update W -= eta grad in place, given form.views(W); return the loss before if `valued`."""
        s, states = self.samples, self._states(layers)
        L = self.form.phi.value(states[-1], s.T, s.w) if valued else None
        self.samples.charge(self.meter.gradients, self.rows)
        for (weight, bias), (D, H) in zip(layers[::-1], self._back(layers, states, eta), strict=True):
            subtract(weight, D, H)
            if bias is not None:
                bias.sub_(D.sum(1, keepdim=True))
        return L

    def take(self, rows: list[int]) -> Perceptron:
        some = copy.copy(self)
        some.samples, some.rows = self.samples.take(rows), [self.rows[i] for i in rows]
        return some

    def _states(self, layers: Layers) -> list[Tensor]:
        """Return the inputs of every layer and the scores, each [C, B, units]."""
        states = [self.samples.X]
        for i, (weight, bias) in enumerate(layers):
            Z = affine(states[-1], weight, bias)
            states.append(self.form.hidden[i].activation.apply(Z) if i < len(self.form.hidden) else Z)
        return states

    def _back(self, layers: Layers, states: list[Tensor], eta: Col | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (eta dL/dZ, input) of every layer, the last one first; the caller may then change its weight."""
        s = self.samples
        D = self.form.phi.slope(states.pop(), s.T, s.w if eta is None else s.w * eta[:, :, None])
        for i in range(len(layers) - 1, 0, -1):
            H = states.pop()
            below = torch.bmm(D, layers[i][0])  # before the caller changes this layer
            yield D, H
            D = self.form.hidden[i - 1].activation.back(below, H)
        yield D, states.pop()
