"""Compressed files: their content, and limits against decompression bombs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile

import pytest

import fedstride as fs
from fedstride.data import fetch, packed
from tests.data import raw


def zipped(content: bytes, names=("a",)) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return out.getvalue()


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zip": zipped}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(packed, "MOST", 1000)


@pytest.mark.parametrize("ending", ["", ".txt", *PACKERS])
def test_compressed_files_are_read(ending, tmp_path):
    path, content = tmp_path / f"a{ending}", bytes(range(256)) * 8
    path.write_bytes(PACKERS.get(ending, bytes)(content))
    with packed.opened(path) as file:
        assert file.read() == content


@pytest.mark.parametrize("ending", PACKERS)
def test_decompression_bombs_are_refused(ending, tmp_path):
    path = tmp_path / f"d.csv{ending}"
    path.write_bytes(PACKERS[ending](b"x,label\n" + b"1,0\n" * 2**16))
    with pytest.raises(fs.InvalidInput, match=r"d.csv.*: not a readable table \(.*100 times its size"):
        fs.data.load(path)
    path.rename(tmp_path / f"wanted{ending}")
    with pytest.raises(fs.InvalidInput, match=r"wanted.*: truncated or damaged"):
        fetch.collect({"wanted": ""}, None, tmp_path, "", lambda what: None)


@pytest.mark.parametrize(
    ("package", "content"),
    [
        (fetch.Npm("thing", "1.0"), raw.tar({"a": bytes(2000)})),
        (fetch.Pip("thing==1.0", "thing-1.0.whl", "", ()), zipped(bytes(2000))),
    ],
    ids=["first", "second"],
)
def test_archive_members_have_a_size_limit(package, content, tmp_path):
    (tmp_path / package.archive).write_bytes(content)
    with pytest.raises(fs.InvalidInput, match="it contains a file of 2000 bytes"):
        fetch.collect({"a": ""}, package, tmp_path, "", lambda what: None)


def test_an_archive_with_several_files_is_refused(tmp_path):
    (tmp_path / "d.csv.zip").write_bytes(zipped(b"x,label\n1,0\n", ("a", "b")))
    with pytest.raises(fs.InvalidInput, match="it contains 2 files; expected one"):
        fs.data.load(tmp_path / "d.csv.zip")
