"""Which parts do not go together: one small function per reason, which refuses the algorithm and says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedstride.client.context import Plan
from fedstride.client.drift import GradientCorrection, Scaffold
from fedstride.client.gradient import IAG, Noisy
from fedstride.client.objective import FedDynObjective, FedSplitProx
from fedstride.client.step import (
    NGN,
    Adagrad,
    Adam,
    AdamW,
    Armijo,
    CappedPolyak,
    DecSPS,
    DeltaSGD,
    Momentum,
    Polyak,
)
from fedstride.core.errors import InvalidInput, Refused
from fedstride.server import FedDyn, FedNova, FedSplit
from fedstride.wire import Quantize, RandomK

if TYPE_CHECKING:
    from fedstride.algorithm.compose import Algorithm


def check_kinds(a: Algorithm) -> None:
    wanted = {
        "step": ("init", "step"),
        "server": ("init", "broadcast", "step", "output", "needs"),
        "objective": ("memory", "terms", "finish"),
        "gradient": ("begin", "anchor"),
        "drift": ("correction", "finish", "absorb"),
        "up": ("compress", "bytes"),
        "down": ("compress", "bytes"),
        "aggregate": ("start", "combine"),
        "privacy": ("init", "shorten", "release", "follow", "epsilon"),
    }
    for name, methods in wanted.items():
        part = getattr(a, name)
        if part is None and name in ("drift", "up", "down", "aggregate", "privacy"):
            continue
        missing = [m for m in methods if not hasattr(part, m)]
        if missing or isinstance(part, type):
            hint = f"an instance, as in {part.__name__}(...)" if isinstance(part, type) else f"it has no {missing[0]!r}"
            raise InvalidInput(f"Algorithm: {name}={part!r} is no {name} part; {hint}.")


def _needs(a: Algorithm) -> None:
    """A server may ask for a number that a step rule leaves in its state, such as the loss for `auto`."""
    one = torch.ones(1, 1, dtype=torch.float64)
    plan = Plan(seed=0, round=0, rounds=1, clients=(0,), steps=(1,), size=one, batch=one)
    left = {"square", "effective_steps", *a.step.init(one[0], plan)}
    missing = [name for name in a.server.needs if name not in left]
    if missing:
        raise Refused(
            f"{type(a.server).__name__} needs {missing[0]!r} from the clients, and {type(a.step).__name__} leaves no such "
            "number. Use the step rule that belongs to this server."
        )


def _feedback(a: Algorithm) -> None:
    if a.error_feedback and a.up is None and a.down is None:
        raise Refused(
            "error_feedback=True without a compressor: there is no error to feed back. Give up= or down=, or leave it out."
        )
    coarse = [c for c in (a.up, a.down) if (isinstance(c, RandomK) and c.unbiased) or c == Quantize(2)]
    if coarse and a.error_feedback is not False:
        raise Refused(
            f"{coarse[0]} with error feedback: it is no contraction, and the residual grows without end. "
            "Use RandomK(unbiased=False), Quantize(bits=3) or more, or error_feedback=False."
        )


def _down(a: Algorithm) -> None:
    if a.down is not None and not a.exchanges_gradients:
        raise Refused(
            "down= compresses the mean of exchanged gradients, and this algorithm exchanges none. "
            "Use drift=GradientCorrection(), or up= to compress the updates."
        )


def _scaffold(a: Algorithm) -> None:
    if isinstance(a.drift, Scaffold) and isinstance(a.step, Momentum | Adam | AdamW | Adagrad):
        raise Refused(
            f"SCAFFOLD with client {type(a.step).__name__}: its control variate is the mean gradient, update / sum of "
            "steps, which holds only when every move is step x gradient. Use Constant, Armijo, DeltaSGD or Polyak."
        )


def _auto(a: Algorithm) -> None:
    if isinstance(a.step, CappedPolyak) and a.drift is not None:
        raise Refused(
            f"CappedPolyak with {type(a.drift).__name__}: it scales the gradient tensor by tensor, which the correction does not "
            "know of. Use another step rule, such as Armijo() or DeltaSGD()."
        )


def _iag_and_noise(a: Algorithm) -> None:
    if isinstance(a.gradient, IAG | Noisy) and isinstance(a.step, Armijo):
        raise Refused(
            f"Armijo with {type(a.gradient).__name__} gradients: the search compares losses along the gradient of the same "
            "batch, and this estimate is the gradient of no loss at hand. Use the minibatch estimator."
        )
    polyak = isinstance(a.step, Polyak | CappedPolyak | DecSPS | NGN)
    asks = polyak or (isinstance(a.step, DeltaSGD) and not a.step.reuse_gradient)
    if isinstance(a.gradient, IAG) and asks:
        raise Refused(
            f"{type(a.step).__name__} with IAG: the rule asks for the loss, or for a second gradient, of the estimate, and "
            "IAG has neither. Use Constant, or DeltaSGD(reuse_gradient=True)."
        )


def _fednova(a: Algorithm) -> None:
    if not isinstance(a.server, FedNova):
        return
    if not hasattr(a.step, "effective_steps"):
        raise Refused(
            f"FedNova with {type(a.step).__name__}: its weights a_i come from a known number of equal steps, which an "
            "adaptive rule does not have. Use Constant, PerStep or Momentum."
        )
    if isinstance(a.step, Momentum) and a.step.beta and a.prox:
        raise Refused("FedNova with momentum and a proximal term: no closed form of a_i is known. Drop one of them.")
    if isinstance(a.objective, FedDynObjective | FedSplitProx):
        raise Refused(f"FedNova with {type(a.objective).__name__}: that objective needs its own server rule.")


def _feddyn(a: Algorithm) -> None:
    client, server = isinstance(a.objective, FedDynObjective), isinstance(a.server, FedDyn)
    if client != server:
        raise Refused("FedDyn has two halves: objective=FedDynObjective(alpha) and server=FedDyn(alpha). Give both.")
    if isinstance(a.objective, FedDynObjective) and isinstance(a.server, FedDyn):
        if a.objective.alpha != a.server.alpha:
            raise Refused(
                f"FedDyn: alpha={a.objective.alpha} at the clients and {a.server.alpha} at the server; use one."
            )
        if a.drift is not None:
            raise Refused("FedDyn with a drift correction: both correct the same drift. Use one of them.")


def _fedsplit(a: Algorithm) -> None:
    client, server = isinstance(a.objective, FedSplitProx), isinstance(a.server, FedSplit)
    if client != server:
        raise Refused("FedSplit has two halves: objective=FedSplitProx(s) and server=FedSplit(). Give both.")
    if client and isinstance(a.drift, Scaffold | GradientCorrection):
        raise Refused("FedSplit with a drift correction: it starts from u, not from x, where the correction is taken.")
    if client and a.up is not None:
        raise Refused("FedSplit with a compressor: x = mean z_i holds only for exact updates.")


def _aggregate(a: Algorithm) -> None:
    """A median of updates is no mean: it has no control variates, no diversity, no weights to go with it."""
    if a.aggregate is None:
        return
    rule, server = type(a.aggregate).__name__, type(a.server).__name__
    if a.server.needs or isinstance(a.server, FedDyn | FedSplit):
        raise Refused(
            f"{rule} with {server}: this server is built on means over the clients, and a {rule} of them is none. "
            "Use Average, ServerMomentum, or one of the adaptive servers."
        )
    if a.drift is not None:
        raise Refused(
            f"{rule} with {type(a.drift).__name__}: corrections cancel in the mean over the clients only. Drop one."
        )
    if a.up is not None:
        raise Refused(
            f"{rule} with a compressor: most coordinates of a sparse update are 0, and so is their median. Drop one."
        )
    if a.privacy is not None:
        raise Refused(
            f"{rule} with Privacy: the noise is made for a sum. Drop one; clipping bounds every client anyway."
        )


def _privacy(a: Algorithm) -> None:
    if a.privacy is None:
        return
    if a.drift is not None:
        raise Refused(
            f"Privacy with {type(a.drift).__name__}: what clients upload for the correction has no bound. Leave drift out."
        )
    if isinstance(a.server, FedNova | FedDyn | FedSplit):
        raise Refused(
            f"Privacy with {type(a.server).__name__}: it holds for exact sums of what the clients know. "
            "Use Average, FedExP, ServerMomentum, Auto, or an adaptive server."
        )
    if a.feeds_back_up:
        raise Refused("Privacy with error feedback: what is clipped away would come back. Use error_feedback=False.")


REFUSALS = (
    _needs,
    _feedback,
    _down,
    _scaffold,
    _auto,
    _iag_and_noise,
    _fednova,
    _feddyn,
    _fedsplit,
    _aggregate,
    _privacy,
)
