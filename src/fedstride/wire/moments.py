"""Encode the moments of clients' inputs as integers for an exact secure sum, for features of any scale.

A number in a secure sum has at most 30 bits. The squares of features whose scales are far apart need hundreds, so each
moment is split into digits, and each digit is summed separately.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstride.core.errors import InvalidInput
from fedstride.core.rows import Vec
from fedstride.wire.secure import levels

SAMPLES = 40  # bits for a client's number of samples
FRACTION = 240  # bits below the square of the bound: a feature of 10^-30 of the bound keeps ten digits


@dataclass(frozen=True)
class MomentSum:
    """Encoding of moments (see normalise.py) in the vectors of a cohort, shared by the server and the clients."""

    features: int
    bound: float  # bound of the magnitude of inputs
    clients: int  # maximum number of clients in a sum

    @property
    def levels(self) -> int:
        return levels(self.clients)

    @property
    def numbers(self) -> int:
        return 1 + 3 * self.features

    @property
    def _base(self) -> int:
        """Bits of a digit: half of the available bits. The other half is for random carries."""
        return ((self.levels // 2).bit_length() - 1) // 2

    @property
    def _carry(self) -> int:
        return (self.levels // 2).bit_length() - 1 - self._base

    @property
    def _digits(self) -> int:
        return -(-(SAMPLES + FRACTION) // self._base)

    @property
    def size(self) -> int:
        return self._digits * self.numbers

    @property
    def _units(self) -> Vec:
        """[1, bound, bound^2, bound^2], rounded up to powers of two, so that division is exact."""
        unit = 2.0 ** math.frexp(self.bound)[1]
        one = torch.ones(self.features, dtype=torch.float64, device="cpu")
        return torch.cat([one.new_ones(1), unit * one, unit**2 * one, unit**2 * one])

    def encode(self, moments: Vec) -> Tensor:
        """Encode a client's moments as a float64 vector; refuse moments of inputs beyond the bound.

        Sums of digits would reveal more than the sum of the numbers: the number of carries. Each client therefore carries
        a random amount from every digit to the next, which does not change the numbers.
        """
        v = moments.detach().cpu() / self._units
        if not bool((v.abs() <= v[0]).all()):  # also refuses NaN
            raise beyond(self.bound)
        v, base, digits = v / 2.0**SAMPLES, 2.0**self._base, []
        for _ in range(self._digits):
            v = v * base
            digits.append(v.round())
            v = v - digits[-1]
        D = torch.stack(digits)
        C = _random(self._carry, D[1:].numel()).view_as(D[1:])
        D[:-1] += C
        D[1:] -= C * base
        return D.flatten()

    def decode(self, total: Tensor) -> Vec:
        """Decode the sums of the clients' moments: exact up to the final rounding to float64, without the random carries."""
        sums = [0] * self.numbers
        for row in total.long().view(self._digits, -1).tolist():
            sums = [(s << self._base) + d for s, d in zip(sums, row, strict=True)]
        one = 1 << (self._base * self._digits - SAMPLES)
        return torch.tensor([s / one for s in sums], dtype=torch.float64, device="cpu") * self._units


def beyond(bound: float) -> InvalidInput:
    """Return the error for inputs beyond the bound."""
    return InvalidInput(
        f"normalise=True with secure: some inputs exceed the bound inputs={bound:g}. Set a larger one in the "
        f'setting `secure`, as in secure="10, inputs={100 * bound:g}"; a generous bound has no cost.'
    )


def _random(bits: int, numbers: int) -> Tensor:
    """Return cryptographically random integers in [-2^bits / 2, 2^bits / 2)."""
    drawn = torch.frombuffer(bytearray(secrets.token_bytes(8 * numbers)), dtype=torch.int64)
    return torch.remainder(drawn, 2**bits).double() - 2.0 ** (bits - 1)
