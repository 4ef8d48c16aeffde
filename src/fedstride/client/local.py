"""The only local training loop: the steps of a chunk of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedstride.client.context import Context
from fedstride.client.corrected import Corrected, first_rows
from fedstride.client.objective import Terms
from fedstride.client.step import Step
from fedstride.core.capabilities import declared
from fedstride.core.rows import Col, Rows, State, Vec, repeat
from fedstride.oracle import Linear, Oracle, Perceptron
from fedstride.oracle.forms import Layers


@dataclass(frozen=True)
class LocalOptions:
    """Options of local training, for any algorithm."""

    weight_decay: float = 0.0
    clip_norm: float | None = None  # maximum gradient norm, before the drift correction


PLAIN = LocalOptions()


@dataclass(frozen=True)
class Trained:
    """The result of local training."""

    W: Rows  # local models
    total: Col  # sum of the step sizes
    first_loss: Col  # f_B at the first step
    state: State  # final state of the step rule


def run(
    step: Step,
    oracles: Callable[[int, int], Oracle],
    x: Vec,
    context: Context,
    terms: Terms,
    corr: Rows | None,
    options: LocalOptions,
) -> Trained:
    """Take tau_i steps for each client; rows are sorted by decreasing tau, so active rows come first."""
    C = len(context.clients)
    W = repeat(x, C) if terms.start is None else terms.start.clone()
    state = step.init(x, context)
    straight = is_straight(step, terms, corr, options)
    total, first_loss = torch.zeros_like(context.size), torch.zeros_like(context.size)
    form, layers, active = None, Layers(), Layers()  # a closed form, its weights, and those of the active rows
    for k in range(context.steps[0]):
        n = context.active(k)
        data = oracles(k, n)
        Y, now = (W, state) if n == C else (W[:n], {name: v[:n] for name, v in state.items()})
        if straight and isinstance(data, Linear | Perceptron):
            if form is None:
                form = data.form
                layers = active = form.by_columns(W) if context.steps[0] > 1 else form.views(W)
            if len(active[0][0]) != n:
                active = [(weight[:n], None if bias is None else bias[:n]) for weight, bias in layers]
            loss = data.descend(active, now["eta"], valued=k == 0)
            if loss is not None:
                first_loss[:n] = loss
            continue
        parts = (terms, corr) if n == C else first_rows(terms, corr, n)
        oracle = Corrected(data, *parts, options.weight_decay, options.clip_norm)
        L, G = oracle.grad(Y)
        if k == 0 and oracle.data_loss is not None:
            first_loss[:n] = oracle.data_loss
        move = step.step(Y, L, G, now, oracle)
        Y += move if terms.moves is None else move * terms.moves  # momentum and decay move frozen entries too
        total[:n] += now["eta"]
        if n < C:  # inactive rows keep their last state
            state = {name: torch.cat([v, state[name][n:]]) if name in state else v for name, v in now.items()}
    if form is not None:
        form.put_back(layers, W)
    return Trained(W, state["eta"] * context.tau if straight else total, first_loss, state)


def is_straight(step: Step, terms: Terms, corr: Rows | None, options: LocalOptions) -> bool:
    """Return whether each local step subtracts the gradient of a batch times a step size that is known beforehand."""
    return bool(declared(step, "fixed_step")) and corr is None and terms.plain and options == PLAIN
