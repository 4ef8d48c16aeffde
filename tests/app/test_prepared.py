"""Prepared runs: scaling of the inputs."""

from fedstride import data
from fedstride.app.prepared import normalised


def test_normalised_inputs_have_mean_0_and_deviation_1():
    table = normalised(data.load("digits"))
    inputs = table.train[0]
    assert abs(float(inputs.mean())) < 1e-5 and abs(float(inputs.std()) - 1) < 1e-3
    assert table.test[0].shape == data.load("digits").test[0].shape
