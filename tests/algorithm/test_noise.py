"""The noise of private runs: normal, from a secret, and different for every sum that it hides."""

from __future__ import annotations

import math

import pytest
import torch

import fedstride as fs
from fedstride.algorithm.noise import fresh_secret, normals


def test_the_numbers_are_standard_normal():
    drawn = normals("secret")((200_001,))
    assert drawn.shape == (200_001,)
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        error = 5 * math.sqrt(math.prod(range(2 * power - 1, 0, -2)) / len(drawn))
        assert abs(float((drawn**power).mean()) - moment) < error
    assert abs(float((drawn < -1.6449).double().mean()) - 0.05) < 0.003
    half = len(drawn) // 2
    assert abs(float((drawn[:half] * drawn[half : 2 * half]).mean())) < 0.02  # the two halves of Box and Muller


def test_the_same_sum_gets_the_same_noise_and_another_sum_other_noise():
    one, other = {"update": torch.zeros(4)}, {"update": torch.tensor([0.0, 0.0, 0.0, 1e-30])}
    draws = [normals("a", 3, 1, fields=one), normals("a", 3, 1, fields=one), normals("a", 3, 1, fields=other)]
    draws += [normals("b", 3, 1, fields=one), normals("a", 4, 1, fields=one), normals("a", 3, 2, fields=one)]
    first, same, *others = (draw((5,)) for draw in draws)
    assert torch.equal(first, same)
    assert all(not torch.isclose(first, v).any() for v in others)
    assert not torch.isclose(first, draws[0]((5,))).any()  # a source does not repeat itself


def test_secrets_differ():
    assert fresh_secret() != fresh_secret()
    assert len(bytes.fromhex(fresh_secret())) == 32


@pytest.mark.parametrize("bad", ["", None, 3])
def test_a_secret_is_a_text(bad):
    with pytest.raises(fs.InvalidInput, match="secret="):
        fs.Privacy(1.0).drawn_from(bad)


def test_a_secret_is_never_shown():
    privacy = fs.Privacy(1.0).drawn_from("hidden")
    assert "hidden" not in repr(privacy) + repr(fs.Algorithm(privacy=privacy))
