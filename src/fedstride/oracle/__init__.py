"""Loss and gradient of C clients at once, each on its own batch: one after another, together, or in closed form."""

from __future__ import annotations

from fedstride.oracle.choice import Choice, choose, step_flops
from fedstride.oracle.linear import Form, Linear, form_of
from fedstride.oracle.loop import Loop
from fedstride.oracle.protocol import Batch, Contrast, Meter, Oracle, Ray, along
from fedstride.oracle.vmap import Vmap

__all__ = [
    "Batch",
    "Choice",
    "Contrast",
    "Form",
    "Linear",
    "Loop",
    "Meter",
    "Oracle",
    "Ray",
    "Vmap",
    "along",
    "choose",
    "form_of",
    "step_flops",
]
