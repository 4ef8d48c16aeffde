"""The store: what a client remembers counts once it is committed."""

from __future__ import annotations

import torch

from fedstride.engine.store import Store

X = torch.full((2,), 7.0)  # the model of the round


def store():
    return Store(lambda x: {"control": torch.zeros_like(x)})


def row(*values):
    return {"control": torch.tensor([[float(v), float(v)] for v in values])}


def test_a_newcomer_starts_from_the_model_of_the_round():
    s = Store(lambda x: {"previous": x})
    s.stage([5], {"previous": torch.ones(1, 2)})
    s.commit()
    assert torch.equal(s.rows([5, 7], X)["previous"], torch.tensor([[1.0, 1], [7, 7]]))
    assert torch.equal(s.rows([7], 2 * X)["previous"], torch.tensor([[14.0, 14]]))


def test_staged_changes_count_only_after_commit():
    s = store()
    s.stage([1, 2], row(10, 20))
    assert torch.equal(s.rows([1], X)["control"], row(0)["control"])
    s.commit()
    assert torch.equal(s.rows([2, 0, 1], X)["control"], row(20, 0, 10)["control"])


def test_what_was_staged_is_a_copy():
    s, given = store(), row(10)
    s.stage([1], given)
    given["control"].zero_()
    s.commit()
    assert torch.equal(s.rows([1], X)["control"], row(10)["control"])


def test_a_client_that_remembers_nothing_is_forgotten():
    s = Store(lambda x: {})
    s.stage([1], {"anchor": torch.ones(1, 2)})
    s.commit()
    s.stage([1], {})
    s.commit()
    assert s.rows([1, 2], X) == {}
    assert s.state() == {}


def test_state_and_restore_are_inverse():
    s, other = store(), store()
    s.stage([3, 11], row(1, 2))
    s.commit()
    other.stage([0], row(9))
    other.commit()
    other.restore(s.state(), lambda v: v.clone())
    assert torch.equal(other.rows([0, 3, 11], X)["control"], row(0, 1, 2)["control"])
