"""Hand-written loops: one client after the other, with PyTorch's own threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import cast

import torch
from nets import LOSSES, load, vector  # type: ignore[import-not-found]
from serving import Stopwatch  # type: ignore[import-not-found]
from torch import Tensor, nn

Batches = Iterable[tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]


def sgd(model: nn.Module, loss: Loss, batches: Batches, lr: float, correction: list[Tensor] | None = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for X, y in batches:
        optimizer.zero_grad()
        torch.autograd.backward(loss(model(X), y))
        if correction is not None:
            for p, c in zip(model.parameters(), correction, strict=True):
                cast(Tensor, p.grad).add_(c)
        optimizer.step()


def armijo(model: nn.Module, loss: Loss, batches: Batches, samples: int) -> None:
    """Armijo's line search with lr_max = 1, c = 0.1, backtracking by 0.9, growth by 2^(b/n)."""
    eta, parameters = 1.0, list(model.parameters())
    for X, y in batches:
        model.zero_grad()
        value = loss(model(X), y)
        torch.autograd.backward(value)
        with torch.no_grad():
            before = [(p.clone(), cast(Tensor, p.grad)) for p in parameters]
            square = sum(float(g.square().sum()) for _, g in before)
            while True:
                for p, (b, g) in zip(parameters, before, strict=True):
                    p.copy_(b).sub_(g, alpha=eta)
                if float(loss(model(X), y)) <= float(value) - 0.1 * eta * square:
                    break
                eta *= 0.9
        eta = min(1.0, eta * 2.0 ** (len(X) / samples))


class Scaffold:
    """Control variates: one per client, and the server's, which is updated once per round."""

    def __init__(self, model: nn.Module, clients: int) -> None:
        self.server, *self.own = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(clients + 1))
        self.changes = [torch.zeros_like(p) for p in model.parameters()]

    def client(self, i: int, model: nn.Module, loss: Loss, batches: Batches, lr: float, steps: int) -> None:
        start = [p.detach().clone() for p in model.parameters()]
        sgd(model, loss, batches, lr, [c - c_i for c, c_i in zip(self.server, self.own[i], strict=True)])
        for j, p in enumerate(model.parameters()):
            change = (start[j] - p.detach()) / (steps * lr) - self.server[j]
            self.own[i][j] += change
            self.changes[j] += change

    def finish(self) -> None:
        for c, change in zip(self.server, self.changes, strict=True):
            c += change / len(self.own)
            change.zero_()


def main(folder: str) -> None:
    pace = Stopwatch()
    work, model, clients, order = load(folder)
    loss, lr, steps, algorithm = LOSSES[work["loss"]], work["lr"], work["steps"], work["algorithm"]
    scaffold = Scaffold(model, len(clients)) if algorithm == "scaffold" else None
    pace(lambda: vector(model))
    for r in range(work["rounds"]):
        state = {name: v.clone() for name, v in model.state_dict().items()}
        total = {name: torch.zeros_like(v) for name, v in state.items()}
        for i, (X, y) in enumerate(clients):
            model.load_state_dict(state)
            batches = [(X, y)] * steps if work["batch"] is None else ((X[index], y[index]) for index in order[r, i])
            if scaffold is not None:
                scaffold.client(i, model, loss, batches, lr, steps)
            elif algorithm == "fedsls":
                armijo(model, loss, batches, len(X))
            else:
                sgd(model, loss, batches, lr)
            for name, v in model.state_dict().items():
                total[name] += v
        model.load_state_dict({name: v / len(clients) for name, v in total.items()})
        if scaffold is not None:
            scaffold.finish()
        pace(lambda: vector(model))
    pace.reply(torch=torch.__version__, threads=torch.get_num_threads())


if __name__ == "__main__":
    main(sys.argv[1])
