"""Reader for the idx format of MNIST: a big-endian header with type and shape, followed by the numbers."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from fedstride.core.errors import InvalidInput

TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def decode(data: bytes, name: str = "idx") -> np.ndarray[Any, Any]:
    """Return the array in an idx file; name: of the file, for error messages."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES:
        raise InvalidInput(f"{name}: not an idx file; it begins with {data[:4]!r}.")
    head = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:head]) if len(data) >= head else ()
    kind = np.dtype(TYPES[data[2]])
    if len(data) != head + math.prod(shape) * kind.itemsize:
        raise InvalidInput(
            f"{name}: {len(data)} bytes do not match the shape {shape} in its header; it is truncated or damaged."
        )
    try:
        return np.frombuffer(data, kind, offset=head).reshape(shape).astype(kind.newbyteorder("="))
    except ValueError as error:
        raise InvalidInput(f"{name}: its header declares {len(shape)} dimensions, too many ({error}).") from error
