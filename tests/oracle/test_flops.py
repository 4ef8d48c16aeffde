"""The counter of operations counts what PyTorch's own counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedstride import models
from fedstride.oracle.flops import FlopCounter

MODELS = {
    "linear": (nn.Linear(4, 3), torch.randn(5, 4)),
    "cnn": (models.build("small_cnn", (1, 28, 28), 10), torch.randn(5, 1, 28, 28)),
    "attention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(5, 6, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward_are_counted_as_by_pytorch(name):
    model, inputs = MODELS[name]
    counts = []
    for counter in (FlopCounterMode(display=False), FlopCounter()):
        with counter:
            found = model(inputs)
            (found[0] if isinstance(found, tuple) else found).square().sum().backward()
        counts.append(counter.get_total_flops() if isinstance(counter, FlopCounterMode) else counter.flops)
    assert counts[0] == counts[1] > 0
