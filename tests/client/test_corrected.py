"""The oracle a step rule sees."""

from typing import ClassVar

import pytest
import torch

import fedstride as fs
from tests.problems import Classifier, classification, learn, seeded


def test_polyak_takes_its_length_from_the_unclipped_gradient():
    """Else a clipped, short gradient would make the step long: the length would grow as the norm bound falls."""
    free = learn(fs.recipes.fedsps(), rounds=1, local_steps=1, clients=classification()[:1])
    bound = learn(fs.recipes.fedsps(), rounds=1, local_steps=1, clients=classification()[:1], clip_norm=0.1)
    assert bound.history[0]["client_step"] == pytest.approx(free.history[0]["client_step"], rel=1e-12)


def test_moon_charges_its_two_reference_models():
    sizes = sum(len(inputs) for inputs, _ in classification())
    run = learn("moon", rounds=1, local_steps=3)
    assert run.history[0]["forwards"] == 2 * 3 * sizes
    assert torch.isfinite(run.x).all()


class Telling(Classifier):
    """Tells in which mode its features were asked for."""

    modes: ClassVar[list[bool]] = []

    def features(self, inputs):
        self.modes.append(self.training)
        return super().features(inputs)


def test_moons_reference_models_are_in_evaluation_mode():
    learn("moon", model=seeded(Telling), rounds=1, local_steps=1, clients=classification()[:1])
    assert Telling.modes.count(False) == 2
    assert Telling.modes.count(True) > 0
