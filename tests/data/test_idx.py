"""idx files: every type, and truncated ones."""

from __future__ import annotations

import numpy as np
import pytest

import fedstride as fs
from fedstride.data import idx
from tests.data import raw


@pytest.mark.parametrize("kind", raw.CODES)
@pytest.mark.parametrize("shape", [(5,), (4, 2, 3), (0, 2)])
def test_idx_files_are_decoded(kind, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    found = idx.decode(raw.idx(array))
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


GOOD = raw.idx(np.arange(12, dtype=np.int32).reshape(3, 4))


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\1\0" + GOOD[2:], b"\0\0\7" + GOOD[3:]])
def test_other_files_are_refused(data):
    with pytest.raises(fs.InvalidInput, match="labels: not an idx file"):
        idx.decode(data, "labels")


def test_too_many_dimensions_are_refused():
    with pytest.raises(fs.InvalidInput, match="labels: its header declares 255 dimensions"):
        idx.decode(b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"a", "labels")


@pytest.mark.parametrize("data", [GOOD[:-1], GOOD + b"\0", GOOD[:9]])
def test_truncated_files_are_refused(data):
    with pytest.raises(fs.InvalidInput, match=r"labels: .* truncated or damaged"):
        idx.decode(data, "labels")
