"""Capabilities: what a part declares about itself, as class attributes (or properties, if they depend on its settings).

Every declaration is optional. A part of your own that declares what a built-in part declares gets the same fast paths and
the same refusals.
"""

from __future__ import annotations

from typing import Any

DEFAULTS: dict[str, Any] = {
    # any part
    "slot": None,  # the argument of Algorithm that takes it: "step", "server", "objective", "gradient" or "drift"
    "recipe": None,  # the name of the algorithm that has this part, and the default parts otherwise
    "half_of": None,  # objective and server rule that need each other: the name of their algorithm
    # step rules
    "needs_loss": False,  # asks for the loss, or for a second gradient, on the batch at hand
    "searches": False,  # compares losses along the gradient
    "along_gradient": True,  # every move is -state["eta"] * G
    "scales_tensors": False,  # scales the gradient tensor by tensor
    "effective_steps_with_prox": True,  # effective_steps(context, mu) is right for mu > 0
    "rotation_invariant": False,  # the same moves along any other orthonormal axes
    "fixed_step": False,  # every move of a round is -eta * G, with the eta that init left in the state
    "least_loss": None,  # the loss at which its step becomes zero
    "growth_bound": None,  # the first step of a round if nothing but the bound on growth limits it
    "grows_from": None,  # the name of the setting that the steps of a round grow from
    # gradient estimators
    "plain_batches": False,  # begin() returns chunk.batch
    "exact_gradient": True,  # the estimate is the gradient of the loss that its oracle returns
    "gives_loss": True,  # its oracle has losses, and gradients at other points
    "by_components": False,  # updates the gradient of one component of the data at a time
    # objectives
    "prox": 0.0,  # mu of the term mu/2 |y - x|^2
    "needs_features": False,  # calls model.features(inputs)
    "corrects_drift": False,  # leaves nothing for a drift correction to do
    "starts_elsewhere": False,  # local steps do not start at x
    "needs_everyone": False,  # holds only if all clients take part and their updates arrive uncompressed
    # drift corrections
    "needs_along_gradient": False,  # divides updates by the sum of the step sizes
    # server rules
    "exact_mean": False,  # holds for exact means only: not for medians, not under noise
    "extrapolates": False,  # takes steps above 1 when the updates differ
    "has_momentum": False,  # successive moves resemble each other
    "damped_by": None,  # the name of the setting that keeps an extrapolation finite
    # step and server rules
    "scaled_by": None,  # the name of the setting that the length of every move is proportional to
    "capped_by": None,  # the name of the setting that no step exceeds
    # compressors
    "contracts": True,  # the error is shorter than the message, so it can be fed back
}
PERMISSIONS = {"rotation_invariant", "fixed_step", "plain_batches"}  # to use a shortcut in place of the part's methods


def declared(part: object, name: str) -> Any:
    """What a part declares under this name, or the default.

    Permissions are not inherited: a subclass may override the method that a shortcut would replace.
    """
    if name in PERMISSIONS and name not in vars(type(part)):
        return DEFAULTS[name]
    return getattr(part, name, DEFAULTS[name])


def setting(part: object, name: str) -> Any:
    """The value of the setting that a declaration names; None if the part declares none."""
    field = declared(part, name)
    return None if field is None else getattr(part, field)
