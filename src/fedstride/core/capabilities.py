"""Capabilities: the declarations of a part, as class attributes, or properties if they depend on its settings.

Every declaration is optional. User-defined parts get the same fast paths and the same refusals as built-in ones.
"""

from __future__ import annotations

from typing import Any

DEFAULTS: dict[str, Any] = {
    # any part
    "slot": None,  # the argument of Algorithm for this part: "step", "server", "objective", "gradient" or "drift"
    "recipe": None,  # name of the algorithm with this part and the defaults in all other slots
    "half_of": None,  # name of the algorithm whose objective and server rule need each other
    # step rules
    "needs_loss": False,  # evaluates the loss, or a second gradient, on the current batch
    "searches": False,  # compares losses along the gradient (line search)
    "along_gradient": True,  # every move is -state["eta"] * G
    "scales_tensors": False,  # scales the gradient tensor by tensor
    "effective_steps_with_prox": True,  # effective_steps(context, mu) is correct for mu > 0
    "rotation_invariant": False,  # moves do not depend on the choice of orthonormal axes
    "fixed_step": False,  # every move of a round is -eta * G, with the eta of init()
    "least_loss": None,  # loss at which the step becomes zero
    "growth_bound": None,  # first step of a round if only the bound on growth limits it
    "grows_from": None,  # name of the setting from which the steps of a round grow
    # gradient estimators
    "plain_batches": False,  # begin() returns chunk.batch
    "exact_gradient": True,  # the estimate is the gradient of the loss that the oracle returns
    "gives_loss": True,  # the oracle evaluates losses, and gradients at other points
    "by_components": False,  # evaluates one component of the data at a time
    # objectives
    "prox": 0.0,  # mu of the term mu/2 |y - x|^2
    "needs_features": False,  # calls model.features(inputs)
    "corrects_drift": False,  # corrects drift itself, so a drift correction is refused
    "starts_elsewhere": False,  # local steps do not start at x
    "trains_own": False,  # trains a model of each client's own beside the shared one: own_terms()
    "needs_everyone": False,  # requires full participation and uncompressed updates
    # drift corrections
    "needs_along_gradient": False,  # divides updates by the sum of the step sizes
    # server rules
    "exact_mean": False,  # requires exact means, not medians or noisy means
    "extrapolates": False,  # takes steps above 1 if the updates differ
    "has_momentum": False,  # successive moves are correlated; with extrapolation, noise of privacy is damped
    "damped_by": None,  # name of the setting that keeps the extrapolation finite
    "learned": {},  # state that step() adds to that of init(): name -> whether it has one number per tensor
    # step and server rules
    "scaled_by": None,  # name of the setting to which the length of every move is proportional
    "capped_by": None,  # name of the setting that limits the step
    # aggregation rules
    "changes_frozen": False,  # a weighted mean that changes frozen weights as well, from products of the updates
    # compressors
    "contracts": True,  # the error is smaller than the message, so error feedback converges
    # samplers
    "sampling": None,  # "poisson": each client with probability self.p; "fixed": self.size clients, without replacement
}
PERMISSIONS = {"rotation_invariant", "fixed_step", "plain_batches", "sampling"}  # promises about methods of the part


def declared(part: object, name: str) -> Any:
    """Return the declaration of a part, or the default.

    Permissions are not inherited, because a subclass may override the method that a shortcut skips or relies on.
    """
    if name in PERMISSIONS and name not in vars(type(part)):
        return DEFAULTS[name]
    return getattr(part, name, DEFAULTS[name])


def setting(part: object, name: str) -> Any:
    """Return the value of the setting that a declaration names, or None without such a declaration."""
    field = declared(part, name)
    return None if field is None else getattr(part, field)
