"""The noise of a private run: normal numbers from a secret of the operating system, never from the training seed.

The stream is SHAKE-256 of the secret and of everything that the noise hides. The same sum gets the same noise, so a round that
is repeated after a crash reveals nothing more; another sum, of other data or settings, gets noise that is independent.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence
from itertools import count

import torch
from torch import Tensor

from fedstride.core.rows import State

Normals = Callable[[Sequence[int]], Tensor]  # shape -> independent standard normal numbers, float64


def fresh_secret() -> str:
    """Return 256 bits from the operating system."""
    return secrets.token_hex(32)


def normals(secret: str, *context: object, fields: State | None = None) -> Normals:
    """Return the source of noise for a context and for the fields that the noise is added to."""
    key = hashlib.sha3_256(repr((secret, context)).encode())
    for name, v in sorted((fields or {}).items()):
        key.update(f"{name} {v.dtype} {list(v.shape)}".encode())
        key.update(v.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    digest, calls = key.digest(), count()

    def draw(shape: Sequence[int]) -> Tensor:
        half = -(-math.prod(shape) // 2)
        stream = hashlib.shake_256(digest + next(calls).to_bytes(8, "little")).digest(16 * half)
        drawn = torch.frombuffer(bytearray(stream), dtype=torch.int64).view(2, half)
        u = (torch.bitwise_right_shift(drawn, 11) & (2**53 - 1)).double() + 0.5  # 53 random bits, never 0
        radius, angle = (-2 * (u[0] / 2**53).log()).sqrt(), 2 * math.pi * u[1] / 2**53  # Box, Muller. 1958
        both = torch.cat([radius * angle.cos(), radius * angle.sin()])
        return both[: math.prod(shape)].view(*shape)

    return draw
