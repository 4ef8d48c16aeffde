"""Reader for PNG images: 8 bits per channel, grey, RGB or RGBA, not interlaced, as used by data sets.

W3C. Portable Network Graphics (PNG) specification, third edition, sec. 5 (chunks) and 9 (filters).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedstride.core.errors import InvalidInput

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 6: 4}  # colour type -> samples per pixel
Array = np.ndarray[Any, Any]


def decode(data: bytes, name: str = "PNG") -> Array:
    """Decode a PNG image to uint8 [height, width, channels]."""
    try:
        chunks = list(_chunks(data))
        width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
        if depth != 8 or colour not in CHANNELS or interlaced:
            raise ValueError(f"depth {depth}, colour type {colour}, interlaced {interlaced} are not supported")
        line = 1 + width * CHANNELS[colour]
        packed = b"".join(body for kind, body in chunks if kind == b"IDAT")
        pixels = zlib.decompressobj().decompress(packed, height * line + 1)  # never more than the header declares
        lines = np.frombuffer(pixels, np.uint8).reshape(height, line)
        return _unfilter(lines, width, CHANNELS[colour])
    except (ValueError, IndexError, OverflowError, struct.error, zlib.error) as error:
        raise InvalidInput(f"{name}: not a readable PNG file ({error}).") from error


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data.startswith(SIGNATURE):
        raise ValueError("it does not start with the PNG signature")
    at, kind = len(SIGNATURE), b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        if struct.unpack_from(">I", data, at + 8 + length)[0] != zlib.crc32(kind + body):
            raise ValueError(f"chunk {kind!r} is damaged")
        yield kind, body
        at += 12 + length


def _unfilter(lines: Array, width: int, channels: int) -> Array:
    out = np.zeros((len(lines), width, channels), np.uint8)
    above = np.zeros((width, channels), np.uint8)
    for row, line in zip(out, lines, strict=True):
        kind, raw = line[0], line[1:].reshape(width, channels)
        if kind == 0:
            row[:] = raw
        elif kind == 1:  # the pixel to the left is added
            np.cumsum(raw, axis=0, dtype=np.uint8, out=row)
        elif kind == 2:  # the pixel above
            np.add(raw, above, out=row)
        elif kind in (3, 4):
            row[:] = _sequential(kind, raw.tolist(), above.tolist(), channels)
        else:
            raise ValueError(f"filter {kind} is unknown")
        above = row
    return out


def _sequential(kind: int, raw: list[list[int]], above: list[list[int]], channels: int) -> list[list[int]]:
    """The filters where a pixel needs its decoded left neighbour: average and Paeth."""
    row, left, corner = [], [0] * channels, [0] * channels
    for x, up in zip(raw, above, strict=True):
        guess = [(a + b) // 2 if kind == 3 else _paeth(a, b, c) for a, b, c in zip(left, up, corner, strict=True)]
        left, corner = [(v + g) % 256 for v, g in zip(x, guess, strict=True)], up
        row.append(left)
    return row


def _paeth(a: int, b: int, c: int) -> int:
    return min(a, b, c, key=lambda v: abs(a + b - c - v))  # ties go to the first, as the standard says
