"""The step rules as torch optimizers, for training in one place: `loss = optimizer.step(closure)`, no learning rate.

The rules are fedstride.client.step's own, with one row; their modules cite the papers (000 alg. 2, 001 alg. 1 and fn 4).
Deviations: a rule's memory lasts; in a federated run it is fresh in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer

from fedstride.client import step as rules
from fedstride.client.context import Plan
from fedstride.core.errors import InvalidInput, positive
from fedstride.core.rows import Col, Rows, State

Closure = Callable[[], Any]
Group = dict[str, Any]
Block = tuple[Group, list[Tensor]]  # a group and those of its parameters that take part
Chance = tuple[Tensor, Tensor | None, list[Tensor]]  # random states of CPU and GPU, buffers
NOT_HERE = ("lr", "momentum", "weight_decay", "maximize")  # other optimizers' entries: to ignore them would surprise


class Evaluations:
    """The closure as the oracle of one row; the first evaluation, where the step starts, is made at once.

    All share dropout masks and buffers: each starts from the random state and the buffers that the first one met, and the
    step leaves behind what the first one left. The buffers are those of all modules that the first evaluation called.
    """

    def __init__(self, closure: Closure, blocks: list[Block]) -> None:
        self.closure, self.cheap = closure, True
        self.params = [p for _, params in blocks for p in params]
        self.sizes = [sum(p.numel() for p in params) for _, params in blocks]
        self.W = torch.cat([p.detach().reshape(-1) for p in self.params])[None]
        self.modules: dict[tuple[nn.Module, str], Tensor] = {}  # buffers as the first evaluation met them
        chance, hook = self._chance(), register_module_forward_pre_hook(self._note)
        try:
            with torch.enable_grad():
                self.returned = closure()
        finally:
            hook.remove()
        self.before, self.after = (*chance, list(self.modules.values())), (*self._chance(), self._buffers())
        self.grads = [p.grad for p in self.params]
        if all(g is None for g in self.grads):
            raise InvalidInput("closure: it left no gradient; expected it to call backward while gradients are on.")
        self.plain = self.L, self.G = self._col(self.returned), self._gradient()  # Polyak asks for `plain`

    def loss(self, W: Rows) -> Col:
        if self.cheap:
            try:
                return self._col(self._at(W, gradients=False))
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
                self.cheap = False  # this closure calls backward whether gradients are on or off
        return self._col(self._at(W, gradients=True))

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        return self._col(self._at(W, gradients=True)), self._gradient()

    def cut(self, A: Rows) -> tuple[Rows, ...]:
        return torch.split(A, self.sizes, 1)

    def leave(self, W: Rows) -> None:
        """Put the parameters at W, and all the rest where a single evaluation would have left it."""
        self._write(W)
        self._restore(self.after)
        for p, g in zip(self.params, self.grads, strict=True):
            p.grad = g

    def _at(self, W: Rows, gradients: bool) -> Any:
        self._write(W)
        self._restore(self.before)
        for p in self.params:
            p.grad = None
        with torch.set_grad_enabled(gradients):
            return self.closure()

    def _write(self, W: Rows) -> None:
        for p, part in zip(self.params, torch.split(W[0], [p.numel() for p in self.params]), strict=True):
            p.copy_(part.view(p.shape))

    def _col(self, loss: Any) -> Col:
        if not isinstance(loss, Tensor | float) or (isinstance(loss, Tensor) and loss.numel() != 1):
            raise InvalidInput(f"closure: it returned {loss!r}; expected the loss, one number.")
        return torch.as_tensor(loss).detach().to(self.W).reshape(1, 1)

    def _gradient(self) -> Rows:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        if any(g.layout != torch.strided for g in parts):
            raise InvalidInput("closure: it left a sparse gradient; expected dense ones (nn.Embedding(sparse=False)).")
        return torch.cat([g.reshape(-1) for g in parts])[None]

    def _note(self, module: nn.Module, inputs: Any) -> None:
        for name, buffer in module.named_buffers(recurse=False):
            self.modules.setdefault((module, name), buffer.detach().clone())

    def _buffers(self) -> list[Tensor]:
        return [getattr(module, name).detach().clone() for module, name in self.modules]

    def _chance(self) -> tuple[Tensor, Tensor | None]:
        device = self.W.device
        return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def _restore(self, chance: Chance) -> None:
        cpu, cuda, buffers = chance
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, self.W.device)
        for (module, name), value in zip(self.modules, buffers, strict=True):
            getattr(module, name).data.copy_(value)


class RuleOptimizer(Optimizer):
    """What the three share: hyper-parameters, by keyword, are those of the rule; group["lr"] is the step just used.

    Within a step the closure must evaluate the same batch each time. One that skips zero_grad and backward while gradients
    are off (`if torch.is_grad_enabled(): ...`) makes trials cheap. `batches_per_epoch` stands for n/b in rules that grow
    their step by growth^(b/n). Frozen parameters stay out. p.grad is, after a step, the gradient at the point before it.
    """

    rule: ClassVar[Any]

    def __init__(self, params: Iterable[Any], **hyper: Any) -> None:
        grows = {"batches_per_epoch": hyper.pop("batches_per_epoch", 1)} if hasattr(self.rule, "growth") else {}
        super().__init__(params, {**asdict(self.rule(**hyper)), **grows})

    def add_param_group(self, param_group: Group) -> None:
        if useless := [name for name in NOT_HERE if name in param_group]:
            takes = f"it takes {', '.join(self.defaults)}"
            raise InvalidInput(f"{type(self).__name__}: a group sets {useless[0]}, which has no use here; {takes}.")
        self._check({**self.defaults, **param_group})
        super().add_param_group({**param_group, "lr": 0.0})  # no step yet; a copy, so that the user's own gets no lr
        if any(p.requires_grad for p in self.param_groups[-1]["params"]):
            self._blocks()

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step; returns the loss at the point before it."""
        if closure is None:
            raise InvalidInput("step: closure is missing; expected a function that calls backward, returns the loss.")
        blocks = self._blocks()
        seen = Evaluations(closure, blocks)
        point = seen.W
        try:
            point = seen.W + self._move(blocks, seen)
        finally:
            seen.leave(point)  # where it was, should the closure fail in a trial
        return seen.returned

    def _move(self, blocks: list[Block], seen: Evaluations) -> Rows:
        """Each group by a rule of its own."""
        moves, oracles = [], self._oracles(blocks, seen)
        for (group, _), W, G, oracle in zip(blocks, seen.cut(seen.W), seen.cut(seen.G), oracles, strict=True):
            memory = self._memory(group, W)
            moves.append(self._rule(group).step(W, seen.L, G, memory, oracle))
            group["lr"] = float(memory["eta"])
        return torch.cat(moves, 1)

    def _oracles(self, blocks: list[Block], seen: Evaluations) -> list[Any]:
        return [seen] * len(blocks)

    def _memory(self, group: Group, like: Rows) -> State:
        """What the rule remembers, kept with the group's first parameter: there state_dict finds it."""
        memory: State = self.state[group["params"][0]]
        if not memory:
            one = like.new_ones(1, 1)
            plan = Plan(0, 0, 1, (0,), (1,), size=one * group.get("batches_per_epoch", 1), batch=one)
            memory.update(self._rule(group).init(like[0], plan))
        return memory

    def _rule(self, group: Group) -> Any:
        return self.rule(**{f.name: group[f.name] for f in fields(self.rule)})

    def _blocks(self) -> list[Block]:
        blocks = [(group, [p for p in group["params"] if p.requires_grad]) for group in self.param_groups]
        kinds = sorted({f"{p.dtype} on {p.device}" for _, params in blocks for p in params})
        if len(kinds) != 1 or "complex" in kinds[0]:
            raise InvalidInput(f"params: those to train are {kinds}; expected real numbers of one type on one device.")
        return [(group, params) for group, params in blocks if params]

    def _check(self, group: Group) -> None:
        self._rule(group)  # refuses what it cannot use
        if group.get("batches_per_epoch") is not None:
            positive(self, batches_per_epoch=group["batches_per_epoch"])


class Armijo(RuleOptimizer):
    """Armijo's line search: lr_max, c, backtrack, reset, growth, batches_per_epoch.

    Groups share one search: lr_g = s lr_max_g with a common s, until f(new) <= f - c sum_g lr_g |g_g|^2. That is the
    one-row rule in coordinates stretched by the roots of lr_max_g. So groups may differ in lr_max only.
    """

    rule = rules.Armijo

    def _check(self, group: Group) -> None:
        super()._check(group)
        first = (self.param_groups or [group])[0]
        for name in self.defaults:
            if name != "lr_max" and group[name] != first[name]:
                why = "groups share one line search, and may differ in lr_max only"
                raise InvalidInput(f"Armijo: {name}={group[name]!r} in one group, {first[name]!r} in the first; {why}.")

    def _move(self, blocks: list[Block], seen: Evaluations) -> Rows:
        first, roots = self.param_groups[0], []
        for (group, _), W in zip(blocks, seen.cut(seen.W), strict=True):
            roots.append(torch.full_like(W, (group["lr_max"] / first["lr_max"]) ** 0.5))
        root, zero, memory = torch.cat(roots, 1), torch.zeros_like(seen.W), self._memory(first, seen.W)
        around = SimpleNamespace(loss=lambda Z: seen.loss(seen.W + root * Z))
        move: Rows = root * self._rule(first).step(zero, seen.L, root * seen.G, memory, around)
        for group, _ in blocks:
            group["lr"] = float(memory["eta"]) * (group["lr_max"] / first["lr_max"])
        return move


class DeltaSGD(RuleOptimizer):
    """Delta-SGD: lr0, theta0, gamma, delta, reuse_gradient (False: a second gradient, at the previous point, each step).

    Each group has a step of its own, from its part of the model's last move and of the change of gradient over it.
    """

    rule = rules.DeltaSGD

    def _oracles(self, blocks: list[Block], seen: Evaluations) -> list[Any]:
        previous, asks = [], False
        for (group, _), W in zip(blocks, seen.cut(seen.W), strict=True):
            memory = self._memory(group, W)
            live = W.new_tensor([[p.requires_grad for p in group["params"]]])
            if not torch.equal(memory.get("live", live), live):  # frozen or thawed since: y and g are of another row
                memory.pop("y", None), memory.pop("g", None)
            memory["live"] = live
            previous.append(memory.get("y", W))
            asks |= "y" in memory and not group["reuse_gradient"]
        if not asks:
            return super()._oracles(blocks, seen)
        L, G = seen.grad(torch.cat(previous, 1))
        return [SimpleNamespace(grad=lambda _, part=part: (L, part)) for part in seen.cut(G)]


class Polyak(RuleOptimizer):
    """The stochastic Polyak step: c, lr_max, f_star, growth, batches_per_epoch.

    The loss and |g|^2 are the whole model's; each group has its own hyper-parameters, and so its own step.
    """

    rule = rules.Polyak
