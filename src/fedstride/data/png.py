"""Reader for PNG images: 8 bits per channel, grey, RGB or RGBA, not interlaced, as used by data sets.

Pillow decodes. Files that it accepts and the standard does not (W3C. Portable Network Graphics (PNG) specification, third
edition) are refused here.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np

from fedstride.core.errors import InvalidInput

SIGNATURE = b"\x89PNG\r\n\x1a\n"
FAILURES = (IndexError, OSError, SyntaxError, ValueError, struct.error, zlib.error)  # of Pillow and of ours
CHANNELS = {0: 1, 2: 3, 6: 4}  # colour type -> samples per pixel
Array = np.ndarray[Any, Any]


def decode(data: bytes, name: str = "PNG") -> Array:
    """Decode a PNG image to uint8 [height, width, channels]."""
    from PIL import Image

    def opened() -> Image.Image:  # refuses images of more pixels than Image.MAX_IMAGE_PIXELS allows
        return Image.open(io.BytesIO(data), formats=["PNG"])

    try:
        height, width, channels = shape = _shape(data)
        with opened() as image:
            image.verify()  # all checksums; load() skips those of the pixels
        size = height * (1 + width * channels)  # a line starts with the number of its filter
        found = len(zlib.decompressobj().decompress(_packed(data), size + 1))
        if found != size:  # Pillow would leave missing lines black
            raise ValueError(f"its lines are too {'short' if found < size else 'long'} for {height} x {width} pixels")
        with opened() as image:
            return np.array(image).reshape(shape)
    except (*FAILURES, Image.DecompressionBombError) as error:
        raise InvalidInput(f"{name}: not a readable PNG file ({error}).") from error


def _shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels from the header."""
    if not data.startswith(SIGNATURE):
        raise ValueError("it does not start with the PNG signature")
    kind, width, height, depth, colour, _, _, interlaced = struct.unpack_from(">4sIIBBBBB", data, len(SIGNATURE) + 4)
    if kind != b"IHDR":
        raise ValueError(f"its first chunk is {kind!r}; expected the header")
    if depth != 8 or colour not in CHANNELS or interlaced:
        raise ValueError(f"depth {depth}, colour type {colour}, interlaced {interlaced} are not supported")
    return height, width, CHANNELS[colour]


def _packed(data: bytes) -> bytes:
    """Return the compressed pixels, the bodies of all IDAT chunks."""
    at, kind, bodies = len(SIGNATURE), b"", []
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            bodies.append(data[at + 8 : at + 8 + length])
        at += 12 + length
    return b"".join(bodies)
