"""Which models and losses have a closed form: linear models and multi-layer perceptrons with losses of known derivative.

f_B(y) = sum_j w_j phi(z_j, b_j) with scores z = a'y, or those of a perceptron, and phi = squares, logistic, binary or
multinomial cross entropy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedstride.core import losses
from fedstride.core.batch import Batch
from fedstride.core.losses import Loss
from fedstride.core.rows import Col, Rows
from fedstride.models.network import Network

CHANGED = ("forward", "features", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Part = Callable[[Tensor, Tensor, Tensor], Tensor]
Layers = list[tuple[Tensor, Tensor | None]]  # weight [C, outputs, inputs] and bias [C, 1, outputs] of every layer
FEW = 8  # outputs up to which a product is faster with samples in its columns


@dataclass(frozen=True)
class Phi:
    """A loss of scores and targets [C, B, K] (labels [C, B, 1]) with weights [C, B, 1]: value and slope of each sample.

    Both include the weights; sum the value [C, B, 1 or K] to get the loss.
    """

    each: Part
    slope: Part

    def value(self, Z: Tensor, T: Tensor, w: Tensor) -> Col:
        """Return the loss of each client."""
        return self.each(Z, T, w).sum((1, 2))[:, None]


def _onto_labels(Z: Tensor, T: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(Z, 2).mul_(w).scatter_add_(2, T, -w)


def _log_margins(Z: Tensor, T: Tensor, w: Tensor) -> Tensor:
    margin = -Z * T
    return w * torch.logaddexp(margin, torch.zeros_like(margin))


squares = Phi(lambda Z, T, w: (Z - T).square_().mul_(w), lambda Z, T, w: (Z - T).mul_(w + w))
logistic = Phi(_log_margins, lambda Z, T, w: -w * T * torch.sigmoid(-Z * T))
binary = Phi(
    lambda Z, T, w: w * F.binary_cross_entropy_with_logits(Z, T, reduction="none"),
    lambda Z, T, w: w * (torch.sigmoid(Z) - T),
)
multinomial = Phi(lambda Z, T, w: -w * torch.log_softmax(Z, 2).gather(2, T), _onto_labels)


@dataclass(frozen=True)
class Activation:
    """An activation with a derivative that follows from its output; both functions work in place."""

    apply: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor], Tensor]  # (gradient of the output, output) -> gradient of the input


def _back_relu(D: Tensor, H: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(D, H, 0, grad_input=D)  # type: ignore[no-any-return]


def _back_tanh(D: Tensor, H: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward.grad_input(D, H, grad_input=D)  # type: ignore[no-any-return]


def _back_sigmoid(D: Tensor, H: Tensor) -> Tensor:
    return torch.ops.aten.sigmoid_backward.grad_input(D, H, grad_input=D)  # type: ignore[no-any-return]


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(Tensor.relu_, _back_relu),
    nn.Tanh: Activation(Tensor.tanh_, _back_tanh),
    nn.Sigmoid: Activation(Tensor.sigmoid_, _back_sigmoid),
}


@dataclass(frozen=True)
class Layer:
    """A hidden layer of a perceptron."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation


@dataclass(frozen=True)
class Form:
    """A linear model of `inputs` features with `outputs` scores, after the hidden layers if there are any, and its loss."""

    phi: Phi
    inputs: int
    outputs: int
    bias: bool
    reduction: str  # mean or sum
    hidden: tuple[Layer, ...] = ()

    @property
    def oracle(self) -> str:
        """Name of the oracle that computes it."""
        return "mlp" if self.hidden else "linear"

    @property
    def labels(self) -> bool:
        """True if targets are class labels."""
        return self.phi is multinomial

    @property
    def features(self) -> int:
        """Number of features of a sample."""
        return self.layers[0][0]

    @property
    def layers(self) -> list[tuple[int, int, bool]]:
        """(inputs, outputs, bias) of all layers."""
        return [*((m.inputs, m.outputs, m.bias) for m in self.hidden), (self.inputs, self.outputs, self.bias)]

    def views(self, W: Rows) -> Layers:
        """Return the weights and biases of all layers as views of the rows."""
        at, found = 0, Layers()
        for inputs, outputs, bias in self.layers:
            end = at + outputs * inputs
            weight = W[:, at:end].view(W.shape[0], outputs, inputs)
            at = end + outputs * bias
            found.append((weight, W[:, None, end:at] if bias else None))
        return found

    def by_columns(self, W: Rows) -> Layers:
        """Return views(W), with a copy of the first layer's weights that is stored by columns.

        The product of samples and weights is then up to twice as fast. Products with few outputs do not gain.
        """
        (weight, bias), *rest = self.views(W)
        if weight.shape[1] > FEW:
            weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
        return [(weight, bias), *rest]

    def put_back(self, layers: Layers, W: Rows) -> None:
        """Copy weights that by_columns() has copied back into the rows."""
        (moved, _), (mine, _) = layers[0], self.views(W)[0]
        if moved.data_ptr() != mine.data_ptr():
            mine.copy_(moved)

    def flops(self, samples: int) -> float:
        """Return the FLOPs of one loss and its gradient: three matrix products per layer, two in the first."""
        products = [inputs * outputs for inputs, outputs, _ in self.layers]
        return 2.0 * samples * (3 * sum(products) - products[0])


def form_of(model: nn.Module, loss: Loss, batch: Batch) -> Form | None:
    """Return the closed form of a model and its loss, or None. Recognises only layers and losses of known types."""
    if not all(isinstance(part, Tensor) for part in batch):
        return None
    layers, form = _layers(model, batch[0].dim()), _phi(loss)
    if layers is None or form is None:
        return None
    (phi, reduction), (*hidden, (last, _)) = form, layers
    inputs, targets = batch
    n, K = len(inputs), last.out_features
    if phi is multinomial:
        fits = targets.shape == (n,) and not targets.is_floating_point() and K > 1
    else:  # our losses accept targets of any shape; torch's would broadcast [n, 1] and [n] to [n, n]
        ours = loss in (losses.mse, losses.logistic, losses.bce_with_logits)
        fits = targets.shape == (n, K) or (ours and targets.numel() == n * K)
    if not fits:
        return None
    before = tuple(Layer(m.in_features, m.out_features, m.bias is not None, a) for m, a in hidden if a is not None)
    return Form(phi, last.in_features, K, last.bias is not None, reduction, before)


def _layers(model: nn.Module, dims: int) -> list[tuple[nn.Linear, Activation | None]] | None:
    """Return the linear layers of a model in their order, each but the last with its activation, or None."""
    if any(vars(m).get(name) for m in model.modules() for name in CHANGED):
        return None
    chain = [m for m in _chain(model) if type(m) is not nn.Identity]
    flat = dims == 2 or (bool(chain) and _flattening(chain[0]))
    while chain and _flattening(chain[0]):
        chain = chain[1:]
    linear = [m for m in chain[::2] if type(m) is nn.Linear]
    between = [ACTIVATIONS[type(m)] for m in chain[1::2] if type(m) in ACTIVATIONS]
    if not flat or len(linear) + len(between) != len(chain) or len(linear) != len(between) + 1:
        return None
    parameters = [p for m in linear for p in m.parameters()]
    own = list(model.parameters())  # the same ones: the containers have none, and no layer occurs twice
    same = len(own) == len(parameters) and all(a is b for a, b in zip(own, parameters, strict=True))
    known = same and all(p.requires_grad for p in parameters)
    return list(zip(linear, [*between, None], strict=True)) if known else None


def _chain(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a model in the order of its forward pass, as far as containers of known types tell it."""
    features = getattr(type(model), "features", Network.features)
    if type(model).forward in (nn.Sequential.forward, Network.forward) and features is Network.features:
        for part in model.children():
            yield from _chain(part)
    else:
        yield model


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
