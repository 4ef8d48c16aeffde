"""Gradient oracles: loss and gradient of C clients, each on its own batch, in a loop, vectorised, or in closed form."""

from __future__ import annotations

from fedstride.core.batch import Batch
from fedstride.oracle.choice import Choice, choose, step_flops
from fedstride.oracle.forms import Form, form_of
from fedstride.oracle.linear import Linear
from fedstride.oracle.loop import Loop
from fedstride.oracle.mlp import Perceptron
from fedstride.oracle.protocol import Contrast, Meter, Oracle, Ray, along
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
    "Perceptron",
    "Ray",
    "Vmap",
    "along",
    "choose",
    "form_of",
    "step_flops",
]
