"""Error feedback: nothing is lost, only late."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedstride as fs
from fedstride import Quantize, RandomK, TopK
from fedstride.core.rows import generator
from fedstride.wire.feedback import memory, send
from tests.problems import learn

C, d = 3, 12


def messages(n, seed=0):
    return [torch.randn(C, d, generator=generator(seed, t), dtype=torch.float64) for t in range(n)]


def fresh():
    return {k: v.expand(C, -1) for k, v in memory(torch.zeros(d, dtype=torch.float64)).items()}


def sources(t):
    return [generator(t, i) for i in range(C)]


@given(st.integers(1, 6), st.sampled_from([TopK(2), TopK(0.5), RandomK(6), Quantize(4)]), st.integers(0, 99))
def test_what_was_sent_and_what_is_left_is_what_came_in(rounds, rule, seed):
    past, total = fresh(), torch.zeros(C, d, dtype=torch.float64)
    for t, V in enumerate(messages(rounds, seed)):
        sent, past, _ = send(V, rule, True, past, sources(t))
        total += sent
    torch.testing.assert_close(total + past["residual"], sum(messages(rounds, seed)), rtol=0, atol=1e-12)


def test_the_first_message_is_whole_and_later_ones_are_compressed():
    one, two = messages(2)
    rule = TopK(2)
    sent, past, size = send(one, rule, True, fresh(), sources(0))
    assert torch.equal(sent, one)
    assert not past["residual"].any()
    assert size == [d * 8] * C
    sent, past, size = send(two, rule, True, past, sources(1))
    assert torch.equal(sent, rule.compress(two))
    assert torch.equal(past["residual"], two - sent)
    assert size == [2 * (8 + 4)] * C


def test_each_sender_has_a_first_message_of_its_own():
    (V,) = messages(1)
    past = {**fresh(), "sent": torch.tensor([[1.0], [0.0], [1.0]], dtype=torch.float64)}
    sent, past, size = send(V, TopK(2), True, past, sources(0))
    assert (sent != 0).sum(1).tolist() == [2, d, 2]
    assert size == [24, 96, 24]
    assert past["sent"].flatten().tolist() == [1, 1, 1]


def test_without_feedback_compression_starts_at_once_and_nothing_is_remembered():
    (V,) = messages(1)
    sent, past, size = send(V, TopK(2), False, {}, sources(0))
    assert torch.equal(sent, TopK(2).compress(V))
    assert past == {}
    assert size == [24] * C


@pytest.mark.parametrize("feedback", [True, False])
def test_without_a_compressor_rows_pass_whole(feedback):
    (V,) = messages(1)
    sent, past, size = send(V, None, feedback, {}, sources(0))
    assert torch.equal(sent, V)
    assert (past, size) == ({}, [96] * C)


@dataclass(frozen=True)
class Seeds:
    """Sends everything, and records the generators that it could draw from."""

    seen: list[int]

    def compress(self, V, sources):
        self.seen.extend(source.initial_seed() for source in sources)
        return V

    def bytes(self, d, itemsize):
        return d * itemsize


@pytest.mark.parametrize("where", ["up", "down"])
def test_compressors_draw_anew_for_every_sender_and_round(where):
    seen = []
    learn(fs.recipes.fedlin(error_feedback=False, **{where: Seeds(seen)}), rounds=3)
    assert len(set(seen)) == len(seen) == 3 * (4 if where == "up" else 1)
