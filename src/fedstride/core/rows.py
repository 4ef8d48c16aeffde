"""Maths on matrices with one row per client.

W [C, d] holds the models of C clients; a Col [C, 1] holds one number per client; a Vec [d] is the global model.
With one torch thread, which engines ensure, row sums do not depend on C: a client's results are bit-identical in any chunk.
"""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor

Rows = Tensor  # [C, d]
Col = Tensor  # [C, 1]
Vec = Tensor  # [d]
State = dict[str, Tensor]

PIECE = 2**20  # coordinates multiplied at a time: a product as long as a large model takes new pages of memory


def dot(A: Tensor, B: Tensor) -> Tensor:
    """Return <a, b> of each row as a Col, or a scalar for two vectors."""
    if A.shape[-1] > PIECE:
        pieces = zip(torch.split(A, PIECE, -1), torch.split(B, PIECE, -1), strict=True)
        return functools.reduce(torch.add, (dot(a, b) for a, b in pieces))  # one by one: sum(0) would depend on C
    return (A * B).sum(-1, keepdim=A.dim() > 1)


def sq(A: Tensor) -> Tensor:
    """Return |a|^2 of each row as a Col, or a scalar for a vector."""
    return dot(A, A)


def norm(A: Tensor) -> Tensor:
    """Return |a| of each row as a Col, or a scalar for a vector."""
    return sq(A).sqrt()


def clip(G: Rows, clip_norm: float) -> Rows:
    """Clip the norm of each row to clip_norm, as torch.nn.utils.clip_grad_norm_ does."""
    return G * (clip_norm / (norm(G) + 1e-6)).clamp(max=1.0)


def repeat(x: Vec, C: int) -> Rows:
    """Return C copies of x in new memory."""
    return x.expand(C, -1).clone()


def seed_of(*key: int | str) -> int:
    """Return a 63-bit seed for a key such as (seed, round, client, purpose), independent of workers and arrival order."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*key: int | str) -> torch.Generator:
    """Return a CPU generator that is seeded by the key."""
    return torch.Generator().manual_seed(seed_of(*key))
