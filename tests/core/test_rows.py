"""Row-wise maths: a client gets the same bits alone and in company, with the engine's one thread."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstride.core.rows import clip, dot, generator, norm, repeat, seed_of, sq
from fedstride.engine.local import one_thread

shapes = st.tuples(st.integers(1, 7), st.sampled_from([1, 2, 7, 20, 63, 1000, 33000]))
dtypes = st.sampled_from([torch.float32, torch.float64])


def rows(shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@given(shapes, dtypes)
def test_sums_of_a_row_do_not_depend_on_the_other_rows(shape, dtype):
    A, B = rows(shape, dtype), rows(shape, dtype, seed=1)
    with one_thread():
        for i in range(len(A)):
            assert torch.equal(dot(A, B)[i], dot(A[i : i + 1], B[i : i + 1])[0])
            assert torch.equal(sq(A)[i, 0], sq(A[i]))
            assert torch.equal(norm(A)[i, 0], norm(A[i]))


@given(shapes)
def test_dot_is_the_inner_product(shape):
    A, B = rows(shape, torch.float64), rows(shape, torch.float64, seed=1)
    torch.testing.assert_close(dot(A, B)[:, 0], torch.einsum("cd,cd->c", A, B))
    torch.testing.assert_close(norm(A)[:, 0], torch.linalg.vector_norm(A, dim=1))


@pytest.mark.parametrize("C", [1, 2, 5, 16, 33, 70])
@pytest.mark.parametrize("d", [8, 40, 41, 1003])
def test_long_rows_are_summed_in_pieces_with_the_same_properties(monkeypatch, C, d):
    A, B = rows((C, d), torch.float32), rows((C, d), torch.float32, seed=1)
    whole = dot(A.double(), B.double())
    monkeypatch.setattr("fedstride.core.rows.PIECE", 8)
    with one_thread():
        found = dot(A, B)
        torch.testing.assert_close(found.double(), whole, rtol=1e-5, atol=1e-4)
        for i in range(C):
            assert torch.equal(found[i], dot(A[i : i + 1], B[i : i + 1])[0])
            assert torch.equal(found[i, 0], dot(A[i], B[i]))


@given(st.floats(1e-3, 1e3), st.integers(0, 9))
def test_clip_does_what_torch_does(limit, seed):
    A = rows((3, 20), torch.float64, seed)
    for row, clipped in zip(A, clip(A, limit), strict=True):
        p = torch.nn.Parameter(torch.zeros(20, dtype=torch.float64))
        p.grad = row.clone()
        torch.nn.utils.clip_grad_norm_([p], limit)
        torch.testing.assert_close(clipped, p.grad)


def test_clip_of_zero_is_zero():
    assert torch.equal(clip(torch.zeros(2, 3), 1.0), torch.zeros(2, 3))


def test_repeated_rows_have_memory_of_their_own():
    x = torch.zeros(3)
    W = repeat(x, 2)
    W[0] += 1
    assert torch.equal(W, torch.tensor([[1.0, 1, 1], [0, 0, 0]]))
    assert torch.equal(x, torch.zeros(3))


def test_seeds_differ_by_every_part_of_the_key_and_stay_the_same():
    keys = [(s, r, c, w) for s in range(4) for r in range(4) for c in range(4) for w in ("batches", "noise")]
    assert len({seed_of(*key) for key in keys}) == len(keys)
    assert seed_of(1, 23, "x") != seed_of(12, 3, "x")
    assert seed_of(0, 1, 2, "batches") == 1_210_487_007_306_984_941  # a run can be repeated by a later version


@pytest.mark.parametrize("key", [(0,), (1, 2, "cohort")])
def test_a_generator_follows_its_key(key):
    assert torch.equal(torch.rand(5, generator=generator(*key)), torch.rand(5, generator=generator(*key)))
