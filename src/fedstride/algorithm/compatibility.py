"""Compatibility of parts: one function per reason, which refuses an algorithm and explains why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedstride.algorithm.parts import halves
from fedstride.client.context import Context
from fedstride.core.capabilities import declared
from fedstride.core.errors import InvalidInput, Refused

if TYPE_CHECKING:
    from fedstride.algorithm.compose import Algorithm

METHODS = {  # required methods of a part, by argument of Algorithm
    "server": ("init", "broadcast", "step", "output", "needs"),
    "step": ("init", "step"),
    "objective": ("memory", "terms", "finish"),
    "gradient": ("begin", "anchor"),
    "drift": ("correction", "finish", "absorb"),
    "up": ("compress", "bytes"),
    "down": ("compress", "bytes"),
    "aggregate": ("start",),
    "privacy": ("init", "shorten", "release", "follow", "epsilon"),
}
KINDS = {
    "server": "a server rule",
    "step": "a step rule",
    "objective": "an objective",
    "gradient": "a gradient estimator",
    "drift": "a drift correction",
    "up": "a compressor",
    "down": "a compressor",
    "aggregate": "an aggregation rule",
    "privacy": "a privacy mechanism",
}
OPTIONAL = ("drift", "up", "down", "aggregate", "privacy")


def check_kinds(a: Algorithm) -> None:
    """Refuse a value that is not a part, or a part in another part's slot."""
    for name, methods in METHODS.items():
        part = getattr(a, name)
        if part is None and name in OPTIONAL:
            continue
        if isinstance(part, type):
            raise InvalidInput(
                f"Algorithm: {name}={part!r} is not {KINDS[name]} but a class: pass an instance, as in {part.__name__}(...)."
            )
        slot = slot_of(part, name)
        if slot is not None and KINDS[slot] != KINDS[name]:
            raise InvalidInput(
                f"Algorithm: {name}={part!r} is {KINDS[slot]}, not {KINDS[name]}: pass it as "
                f"{slot}={type(part).__name__}(...)."
            )
        missing = [method for method in methods if not hasattr(part, method)]
        if missing:
            raise InvalidInput(f"Algorithm: {name}={part!r} is not {KINDS[name]}: it has no {missing[0]!r}.")


def slot_of(part: object, given: str) -> str | None:
    """Return the slot that a part declares, else one whose methods it has, preferably the given one."""
    slot = declared(part, "slot")
    if isinstance(slot, str) and slot in KINDS:
        return slot
    fitting = [name for name, methods in METHODS.items() if all(hasattr(part, m) for m in methods)]
    if given in fitting and (given, fitting[0]) != ("step", "server"):  # a server rule has a step rule's methods too
        return given
    return fitting[0] if fitting else None


def _needs(a: Algorithm) -> None:
    """Refuse a server that needs a number that the step rule does not provide, such as the loss for `auto`."""
    one = torch.ones(1, 1, dtype=torch.float64)
    context = Context(seed=0, round=0, rounds=1, clients=(0,), steps=(1,), size=one, batch=one)
    left = {"square", "effective_steps", *a.step.init(one[0], context)}
    missing = [name for name in a.server.needs if name not in left]
    if missing:
        raise Refused(
            f"{_name(a.server)} needs {missing[0]!r} from the clients, but {_name(a.step)} does not "
            "provide it. Use the step rule that belongs to this server."
        )


def _feedback(a: Algorithm) -> None:
    if a.error_feedback and a.up is None and a.down is None:
        raise Refused(
            "error_feedback=True without a compressor: only compression errors are fed back. Give up= or down=, or drop it."
        )
    coarse = [c for c in (a.up, a.down) if c is not None and not declared(c, "contracts")]
    if coarse and a.error_feedback is not False:
        raise Refused(
            f"{coarse[0]} with error feedback: it is not a contraction, so the residual grows without bound. "
            "Use RandomK(unbiased=False), Quantize(bits=3) or more, or error_feedback=False."
        )


def _down(a: Algorithm) -> None:
    if a.down is not None and not a.exchanges_gradients:
        raise Refused(
            "down= compresses the mean of exchanged gradients, but this algorithm exchanges none. "
            "Use drift=GradientCorrection(), or up= to compress the updates."
        )


def _scaled_tensors(a: Algorithm) -> None:
    if declared(a.step, "scales_tensors") and a.drift is not None:
        raise Refused(
            f"{_name(a.step)} with {_name(a.drift)}: it scales each tensor of the gradient, and the correction does not "
            "account for that. Use another step rule, such as Armijo() or DeltaSGD()."
        )


def _other_moves(a: Algorithm) -> None:
    if declared(a.drift, "needs_along_gradient") and not declared(a.step, "along_gradient"):
        raise Refused(
            f"{_name(a.drift)} with client {_name(a.step)}: its control variate is the mean gradient, update / sum of "
            "steps, which holds only when every move is step x gradient. Use Constant, Armijo, DeltaSGD or Polyak."
        )


def _estimates(a: Algorithm) -> None:
    step, gradient = _name(a.step), _name(a.gradient)
    if declared(a.step, "searches") and not declared(a.gradient, "exact_gradient"):
        raise Refused(
            f"{step} with {gradient} gradients: the search compares losses along the gradient of the same batch, and this "
            "estimate is not the gradient of such a loss. Use the minibatch estimator."
        )
    if declared(a.step, "needs_loss") and not declared(a.gradient, "gives_loss"):
        raise Refused(
            f"{step} with {gradient}: the rule needs the loss, or a second gradient, of the estimate, but "
            f"{gradient} provides neither. Use Constant, or DeltaSGD(reuse_gradient=True)."
        )


def _effective_steps(a: Algorithm) -> None:
    if "effective_steps" not in a.server.needs:
        return
    server = _name(a.server)
    if not hasattr(a.step, "effective_steps"):
        raise Refused(
            f"{server} with {_name(a.step)}: its weights a_i assume a known number of equal steps, which an "
            "adaptive rule does not take. Use Constant, PerStep or Momentum."
        )
    if a.prox and not declared(a.step, "effective_steps_with_prox"):
        raise Refused(
            f"{server} with {_name(a.step)} and a proximal term: no closed form of a_i is known. Drop one of them."
        )
    if declared(a.objective, "half_of") is not None:
        raise Refused(f"{server} with {_name(a.objective)}: that objective needs its own server rule.")


def _halves(a: Algorithm) -> None:
    """Refuse half of an algorithm that consists of an objective and a server rule."""
    client, server = declared(a.objective, "half_of"), declared(a.server, "half_of")
    if client != server:
        name = client or server
        raise Refused(f"{name} has two halves: {' and '.join(halves(name)) or 'objective= and server='}. Give both.")
    if client is None:
        return
    theirs = getattr(a.server, "__dict__", {})
    for name, mine in getattr(a.objective, "__dict__", {}).items():
        if mine != theirs.get(name, mine):
            raise Refused(f"{client}: {name}={mine} at the clients and {theirs[name]} at the server; use one value.")


def _objective(a: Algorithm) -> None:
    name = declared(a.objective, "half_of") or _name(a.objective)
    if a.drift is not None and declared(a.objective, "corrects_drift"):
        raise Refused(f"{name} with a drift correction: both correct the same drift. Use one of them.")
    if a.drift is not None and declared(a.objective, "starts_elsewhere"):
        raise Refused(
            f"{name} with a drift correction: the correction is computed at x, but local steps start elsewhere. Drop one of them."
        )
    if declared(a.objective, "trains_own") and declared(a.gradient, "by_components"):
        raise Refused(
            f"{name} with {_name(a.gradient)} gradients, which start from those at x; the clients' own models start elsewhere. "
            "Use the minibatch estimator."
        )
    if a.up is not None and declared(a.objective, "needs_everyone"):
        raise Refused(f"{name} with a compressor: x is the mean of the clients' points only if updates are exact.")


def _aggregate(a: Algorithm) -> None:
    """Refuse parts that need a mean: control variates, diversity and weights have no meaning for a median."""
    if a.aggregate is None or declared(a.aggregate, "changes_frozen"):
        return
    rule = _name(a.aggregate)
    if a.server.needs or declared(a.server, "exact_mean"):
        raise Refused(
            f"{rule} with {_name(a.server)}: this server rule needs means over the clients, and a {rule} is not a mean. "
            "Use Average, ServerMomentum, or one of the adaptive servers."
        )
    if a.drift is not None:
        raise Refused(f"{rule} with {_name(a.drift)}: corrections cancel only in the mean over the clients. Drop one.")
    if a.up is not None:
        raise Refused(
            f"{rule} with a compressor: most coordinates of a sparse update are 0, and so is their median. Drop one."
        )
    if a.privacy is not None:
        raise Refused(
            f"{rule} with Privacy: the noise is calibrated for a sum. Drop one; clipping bounds every client anyway."
        )


def _products(a: Algorithm) -> None:
    """Products of updates are right only for the updates of the models themselves."""
    if not declared(a.aggregate, "changes_frozen"):
        return
    rule = _name(a.aggregate)
    if a.up is not None:
        raise Refused(
            f"{rule} with a compressor: products of compressed factors are not the clients' products. Drop one."
        )
    if a.privacy is not None:
        raise Refused(
            f"{rule} with Privacy: the noise is calibrated for a sum of updates, not of products. Drop one of them."
        )
    if "effective_steps" in a.server.needs or declared(a.server, "half_of") is not None:
        raise Refused(
            f"{rule} with {_name(a.server)}: it does not start from the mean of the clients' models. Use Average, Auto, "
            "ServerMomentum or an adaptive server."
        )


def _privacy(a: Algorithm) -> None:
    if a.privacy is None:
        return
    if a.drift is not None:
        raise Refused(f"Privacy with {_name(a.drift)}: uploads for the correction are unbounded. Drop drift=.")
    if declared(a.server, "exact_mean"):
        raise Refused(
            f"Privacy with {_name(a.server)}: it requires exact sums over the clients. "
            "Use Average, FedExP, ServerMomentum, Auto, or an adaptive server."
        )
    if a.feeds_back_up:
        raise Refused("Privacy with error feedback: the clipped part would be sent later. Use error_feedback=False.")


def _name(part: object) -> str:
    return type(part).__name__


REFUSALS = (
    _needs,
    _feedback,
    _down,
    _scaled_tensors,
    _other_moves,
    _estimates,
    _effective_steps,
    _halves,
    _objective,
    _aggregate,
    _products,
    _privacy,
)
