"""PNG: every filter, and invalid files."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image

import fedstride as fs
from fedstride.data import png
from tests.data import raw

PIXELS = {c: np.random.default_rng(c).integers(0, 256, (6, 5, c)).astype(np.uint8) for c in (1, 3, 4)}


@pytest.mark.parametrize("channels", PIXELS)
@pytest.mark.parametrize("filters", [[k] * 6 for k in range(5)] + [[4, 3, 2, 1, 0, 4]], ids=str)
def test_every_filter_is_undone(channels, filters):
    assert np.array_equal(png.decode(raw.png(PIXELS[channels], filters)), PIXELS[channels])


def test_paeth_breaks_ties_as_the_standard_does():
    close = (
        np.random.default_rng(0).integers(0, 8, (20, 20, 3)).astype(np.uint8)
    )  # left and corner are often equally near
    assert np.array_equal(png.decode(raw.png(close, [4] * 20)), close)


GOOD = raw.png(PIXELS[3], [1] * 6)
BAD = {
    "another format": (b"GIF89a", "does not start with the PNG"),
    "nothing": (b"", "does not start with the PNG"),
    "cut": (GOOD[:-20], "pic.png: not a readable PNG"),
    "cut before the end": (GOOD[:-12], "pic.png: not a readable PNG"),
    "a wrong byte": (GOOD[:70] + bytes([GOOD[70] ^ 1]) + GOOD[71:], "checksum in b'IDAT'"),
    "16 bits": (raw.png(PIXELS[3], [1] * 6, depth=16), "depth 16"),
    "palette": (raw.png(PIXELS[1], [1] * 6, colour=3), "colour type 3"),
    "interlaced": (raw.png(PIXELS[3], [1] * 6, interlaced=1), "interlaced 1"),
    "missing lines": (raw.png(PIXELS[3], [1] * 5), "pic.png: not a readable PNG file .its lines are too short"),
}


@pytest.mark.parametrize("side", [7, 2**31, 2**32 - 1])
def test_a_header_that_declares_too_much_is_refused(side):
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    start = len(png.SIGNATURE)
    data = GOOD[:start] + raw.chunk(b"IHDR", head) + GOOD[start + 25 :]
    with pytest.raises(fs.InvalidInput, match=r"pic.png: not a readable PNG"):
        png.decode(data, "pic.png")


@pytest.mark.parametrize("case", BAD)
def test_invalid_png_files_are_refused(case):
    data, message = BAD[case]
    with pytest.raises(fs.InvalidInput, match=message):
        png.decode(data, "pic.png")


def test_an_image_of_too_many_pixels_is_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(fs.InvalidInput, match=r"pic.png: not a readable PNG .*bomb"):
        png.decode(GOOD, "pic.png")
