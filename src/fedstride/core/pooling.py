"""Max pooling before ReLU instead of after it: the same values and gradients to the bit, from a quarter of the work.

Both orders give max(0, largest value of the window); where that is 0, no gradient passes ReLU in either of them.
"""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedstride.core.batch import Tree, called, tensors_of
from fedstride.core.model import own_randomness

POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def pool_first(module: nn.Module) -> int:
    """Exchange every ReLU with the max pooling that follows it in an nn.Sequential; return their number."""
    count = 0
    for body in module.modules():
        if type(body) is not nn.Sequential:
            continue
        for (i, relu), (j, pool) in pairwise(enumerate(body)):
            if type(relu) is nn.ReLU and type(pool) in POOLS and not (pool.return_indices or _hooks(relu, pool)):
                body[i], body[j] = pool, relu
                count += 1
    return count


def can_pool_first(module: nn.Module, inputs: Tree) -> bool:
    """Return whether pool_first() speeds up the module; False if its forward() reads what lies between the two layers."""
    one, other = copy.deepcopy(module), copy.deepcopy(module)
    if not pool_first(other):
        return False
    try:
        return all(
            all(map(_same, _evaluated(one.train(mode), inputs), _evaluated(other.train(mode), inputs)))
            for mode in (True, False)
        )
    except RuntimeError:  # for example without a gradient: training reports it
        return False


def _hooks(*modules: nn.Module) -> bool:
    return any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in modules)


def _evaluated(module: nn.Module, inputs: Tree) -> list[Tensor | None]:
    """Return the outputs, and the gradients of their sum."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    device = parameters[0].device
    with own_randomness(device), torch.enable_grad():
        torch.manual_seed(0)
        outputs = list(tensors_of(called(module, inputs)))
        value = sum(v.sum() for v in outputs if v.requires_grad)
        return [*outputs, *torch.autograd.grad(value, parameters, allow_unused=True)]  # type: ignore[arg-type]


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other is None or (one is not None and other is not None and torch.equal(one, other))
