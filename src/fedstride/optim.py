"""The step rules as torch optimizers for central training, without a learning rate: `loss = optimizer.step(closure)`.

The rules are those of fedstride.client.step with one row; their modules cite the papers (FedSLS alg. 2, Delta-SGD alg. 1
and footnote 4). Deviations: the state of a rule persists, while a federated run resets it in every round.
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
from fedstride.client.context import Context
from fedstride.core.errors import InvalidInput, positive
from fedstride.core.rows import Col, Rows, State

__all__ = ["Armijo", "DeltaSGD", "Polyak"]

Closure = Callable[[], Any]
Group = dict[str, Any]
Block = tuple[Group, list[Tensor]]  # a group and its trainable parameters
Chance = tuple[Tensor, Tensor | None, list[Tensor]]  # random states of CPU and GPU, buffers
NOT_HERE = ("lr", "momentum", "weight_decay", "maximize")  # entries of other optimizers, refused instead of ignored


class Evaluations:
    """The closure as an oracle with one row; the constructor evaluates it at the current point.

    All evaluations share dropout masks and buffers: each starts from the random state and the buffers before the first
    one, and the step ends with those after the first one. Buffers are those of all modules that the first one called.
    """

    def __init__(self, closure: Closure, blocks: list[Block]) -> None:
        self.closure, self.cheap = closure, True
        self.params = [p for _, params in blocks for p in params]
        self.sizes = [sum(p.numel() for p in params) for _, params in blocks]
        self.W = torch.cat([p.detach().reshape(-1) for p in self.params])[None]
        self.modules: dict[tuple[nn.Module, str], Tensor] = {}  # buffers before the first evaluation
        chance, hook = self._chance(), register_module_forward_pre_hook(self._note)
        try:
            with torch.enable_grad():
                self.returned = closure()
        finally:
            hook.remove()
        self.before, self.after = (*chance, list(self.modules.values())), (*self._chance(), self._buffers())
        self.grads = [p.grad for p in self.params]
        if all(g is None for g in self.grads):
            raise InvalidInput(
                "closure: it produced no gradient; expected it to call backward if gradients are enabled."
            )
        self.plain = self.L, self.G = self._col(self.returned), self._gradient()  # used by Polyak

    def loss(self, W: Rows) -> Col:
        if self.cheap:
            try:
                return self._col(self._at(W, gradients=False))
            except RuntimeError as error:
                if "does not require grad" not in str(error):
                    raise
                self.cheap = False  # this closure calls backward even if gradients are disabled
        return self._col(self._at(W, gradients=True))

    def grad(self, W: Rows) -> tuple[Col, Rows]:
        return self._col(self._at(W, gradients=True)), self._gradient()

    def cut(self, A: Rows) -> tuple[Rows, ...]:
        """Split a row into the parts of the groups."""
        return torch.split(A, self.sizes, 1)

    def leave(self, W: Rows) -> None:
        """Set the parameters to W, and all other state to that after a single evaluation."""
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
            raise InvalidInput(f"closure: it returned {loss!r}; expected the loss, a single number.")
        return torch.as_tensor(loss).detach().to(self.W).reshape(1, 1)

    def _gradient(self) -> Rows:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        if any(g.layout != torch.strided for g in parts):
            raise InvalidInput(
                "closure: it produced a sparse gradient; expected dense ones (nn.Embedding(sparse=False))."
            )
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
    """Base class of the three optimizers.

    Within a step, the closure must evaluate the same batch each time. A closure that skips zero_grad and backward while
    gradients are disabled (`if torch.is_grad_enabled(): ...`) makes trials cheap. Frozen parameters do not take part.
    After a step, p.grad is the gradient before the step, and group["lr"] is the step size that was used.

    Args:
        params: parameters or parameter groups.
        **hyper: hyper-parameters of the rule. `batches_per_epoch` is n/b in rules that grow their step by growth^(b/n).

    Raises:
        InvalidInput: if a hyper-parameter is invalid or unknown to the rule, or if types or devices differ.
    """

    rule: ClassVar[Any]

    def __init__(self, params: Iterable[Any], **hyper: Any) -> None:
        grows = {"batches_per_epoch": hyper.pop("batches_per_epoch", 1)} if hasattr(self.rule, "growth") else {}
        super().__init__(params, {**asdict(self.rule(**hyper)), **grows})

    def add_param_group(self, param_group: Group) -> None:
        if useless := [name for name in NOT_HERE if name in param_group]:
            takes = f"expected only {', '.join(self.defaults)}"
            raise InvalidInput(f"{type(self).__name__}: a group sets {useless[0]}, which is not supported; {takes}.")
        self._check({**self.defaults, **param_group})
        super().add_param_group({**param_group, "lr": 0.0})  # a copy, so that the user's group is not modified
        if any(p.requires_grad for p in self.param_groups[-1]["params"]):
            self._blocks()

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Take one step.

        Args:
            closure: clears the gradients, computes the loss, calls backward, and returns the loss.

        Returns:
            The loss before the step.

        Raises:
            InvalidInput: if the closure is missing, or returns no loss or no gradient.
        """
        if closure is None:
            raise InvalidInput(
                "step: closure is missing; expected a function that calls backward and returns the loss."
            )
        blocks = self._blocks()
        seen = Evaluations(closure, blocks)
        point = seen.W
        try:
            point = seen.W + self._move(blocks, seen)
        finally:
            seen.leave(point)  # back at the start if the closure fails in a trial
        return seen.returned

    def _move(self, blocks: list[Block], seen: Evaluations) -> Rows:
        """Return the move; each group has its own rule."""
        moves, oracles = [], self._oracles(blocks, seen)
        for (group, _), W, G, oracle in zip(blocks, seen.cut(seen.W), seen.cut(seen.G), oracles, strict=True):
            memory = self._memory(group, W)
            moves.append(self._rule(group).step(W, seen.L, G, memory, oracle))
            group["lr"] = float(memory["eta"])
        return torch.cat(moves, 1)

    def _oracles(self, blocks: list[Block], seen: Evaluations) -> list[Any]:
        return [seen] * len(blocks)

    def _memory(self, group: Group, like: Rows) -> State:
        """Return the rule's state, stored with the group's first parameter so that state_dict includes it."""
        memory: State = self.state[group["params"][0]]
        if not memory:
            one = like.new_ones(1, 1)
            context = Context(0, 0, 1, (0,), (1,), size=one * group.get("batches_per_epoch", 1), batch=one)
            memory.update(self._rule(group).init(like[0], context))
        return memory

    def _rule(self, group: Group) -> Any:
        return self.rule(**{f.name: group[f.name] for f in fields(self.rule)})

    def _blocks(self) -> list[Block]:
        blocks = [(group, [p for p in group["params"] if p.requires_grad]) for group in self.param_groups]
        kinds = sorted({f"{p.dtype} on {p.device}" for _, params in blocks for p in params})
        if len(kinds) != 1 or "complex" in kinds[0]:
            raise InvalidInput(f"params: trainable ones are {kinds}; expected real numbers of one type on one device.")
        return [(group, params) for group, params in blocks if params]

    def _check(self, group: Group) -> None:
        self._rule(group)  # raises an error for invalid values
        if group.get("batches_per_epoch") is not None:
            positive(self, batches_per_epoch=group["batches_per_epoch"])


class Armijo(RuleOptimizer):
    """Armijo's line search as an optimizer: the largest step of a geometric grid that decreases the loss enough.

    Groups share one search: lr_g = s lr_max_g with a common s, until f(new) <= f - c sum_g lr_g |g_g|^2. This is the
    one-row rule in coordinates scaled by the square roots of lr_max_g. Groups can therefore differ only in lr_max.

    Args:
        params: parameters or parameter groups.
        **hyper: lr_max, c, backtrack, reset, growth, batches_per_epoch; see fs.Armijo.

    Raises:
        InvalidInput: if a hyper-parameter is invalid, or if groups differ in more than lr_max.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> optimizer = fs.optim.Armijo(model.parameters(), lr_max=1.0)
        >>> def closure():
        ...     loss = nn.functional.mse_loss(model(inputs), targets)
        ...     if torch.is_grad_enabled():
        ...         optimizer.zero_grad()
        ...         loss.backward()
        ...     return loss
        >>> before = optimizer.step(closure)
        >>> bool(closure() < before)
        True
    """

    rule = rules.Armijo

    def _check(self, group: Group) -> None:
        super()._check(group)
        first = (self.param_groups or [group])[0]
        for name in self.defaults:
            if name != "lr_max" and group[name] != first[name]:
                why = "groups share one line search and can differ only in lr_max"
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
    """Delta-SGD as an optimizer: step sizes from the local smoothness of the loss.

    Each group has its own step size, computed from the last change of its parameters and of their gradient.

    Args:
        params: parameters or parameter groups.
        **hyper: lr0, theta0, gamma, delta, reuse_gradient; see fs.DeltaSGD. With reuse_gradient=False, each step
            evaluates a second gradient, at the previous point.

    Raises:
        InvalidInput: if a hyper-parameter is invalid.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> optimizer = fs.optim.DeltaSGD(model.parameters())
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = nn.functional.mse_loss(model(inputs), targets)
        ...     loss.backward()
        ...     return loss
        >>> loss = optimizer.step(closure)
    """

    rule = rules.DeltaSGD

    def _oracles(self, blocks: list[Block], seen: Evaluations) -> list[Any]:
        previous, asks = [], False
        for (group, _), W in zip(blocks, seen.cut(seen.W), strict=True):
            memory = self._memory(group, W)
            live = W.new_tensor([[p.requires_grad for p in group["params"]]])
            if not torch.equal(
                memory.get("live", live), live
            ):  # parameters were frozen or unfrozen: y and g belong to another row
                memory.pop("y", None), memory.pop("g", None)
            memory["live"] = live
            previous.append(memory.get("y", W))
            asks |= "y" in memory and not group["reuse_gradient"]
        if not asks:
            return super()._oracles(blocks, seen)
        L, G = seen.grad(torch.cat(previous, 1))
        return [SimpleNamespace(grad=lambda _, part=part: (L, part)) for part in seen.cut(G)]


class Polyak(RuleOptimizer):
    """The stochastic Polyak step as an optimizer: the step that would reach f_star if the loss were linear.

    The loss and |g|^2 are those of the whole model; each group has its own hyper-parameters and step size.

    Args:
        params: parameters or parameter groups.
        **hyper: c, lr_max, f_star, growth, batches_per_epoch; see fs.Polyak.

    Raises:
        InvalidInput: if a hyper-parameter is invalid.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> optimizer = fs.optim.Polyak(model.parameters(), lr_max=1.0)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = nn.functional.mse_loss(model(inputs), targets)
        ...     loss.backward()
        ...     return loss
        >>> loss = optimizer.step(closure)
    """

    rule = rules.Polyak
