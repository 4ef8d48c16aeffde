"""Data files: CSV, LIBSVM, LEAF, idx, PNG, Shakespeare's roles, packages, and the cache's own files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import save

import fedstride as fs
from fedstride.data import fetch, idx, png, roles, sources
from fedstride.data.table import Table
from tests.data import raw
from tests.fuzz import junk
from tests.fuzz.law import Target

CSV = b"who,a,b,label\n7,1,2,cat\n8,3,4,dog\n7,5,6,cat\n9,7,8,dog\n8,9,10,cat\n7,1.5,-2,dog\n"
BARE = b"a,who,label\n1,7,0\n2,8,1\n3,8,0\n4,7,1\n"
SVM = b"+1 1:0.5 3:2\n-1 2:1\n+1 1:1 2:1 3:1\n-1 3:-4\n" * 2
PIXELS = {c: np.arange(6 * 5 * c, dtype=np.uint8).reshape(6, 5, c) for c in (1, 3, 4)}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
BOMBS = {name: pack(bytes(2**26)) for name, pack in PACKERS.items() if name}
options = st.dictionaries(
    st.sampled_from(["label", "client", "features", "test", "seed", "regression", "shape"]),
    st.sampled_from(["label", "who", "a", ["a"], ["a", "b"], 0.5, True, 3]) | junk.values,
    max_size=2,
)
usual = st.sampled_from(
    [{}, {"client": "who"}, {"features": ["a"]}, {"label": "a", "regression": True, "features": ["who"]}]
)


@st.composite
def packed(draw: Any, ending: str, *seeds: bytes) -> tuple[str, bytes]:
    """(ending, content): mistakes in the text, or in what it was packed into, or a small file that is large unpacked."""
    pack = draw(st.sampled_from(sorted(PACKERS)))
    if pack and draw(st.integers(0, 9)) == 9:
        return ending + pack, BOMBS[pack]
    inside = PACKERS[pack](draw(junk.mutated(*seeds)))
    return ending + pack, draw(junk.mutated(inside)) if pack and draw(st.booleans()) else inside


def usable(table: Table) -> None:
    """What is accepted can be trained on."""
    for inputs, targets in (table.train, table.test):
        assert len(inputs) == len(targets) > 0, "no samples"
        assert targets.dim() == 1 and inputs.dim() >= 2, f"shapes {inputs.shape} {targets.shape}"
        assert not inputs.is_floating_point() or bool(torch.isfinite(inputs).all()), "not finite"
        assert not targets.is_floating_point() or bool(torch.isfinite(targets).all()), "targets not finite"
    assert table.classes is None or table.classes >= 1
    clients = 1 if table.groups is None else len(table.groups.unique())
    scheme = (
        fs.data.partition.iid(table.train[1], 1, 0) if table.groups is None else fs.data.partition.natural(table.groups)
    )
    assert len(fs.data.federate(table, scheme)) == clients


def loaded(given: tuple[tuple[str, bytes], dict[str, Any]]) -> None:
    (ending, content), chosen = given
    with TemporaryDirectory() as folder, _bounds():
        path = Path(folder) / f"data{ending}"
        path.write_bytes(content)
        chosen = {k: str(path) if v == "label" and k == "test" else v for k, v in chosen.items()}
        named = (folder, str(chosen["test"])) if "test" in chosen else (path.name,)
        _named(named, lambda: usable(fs.data.load(path, **chosen)))


def _named(names: tuple[str, ...], act: Callable[[], object]) -> None:
    """An error must say which file is meant."""
    try:
        act()
    except fs.FedstrideError as error:
        assert any(name in str(error) for name in names), f"none of {names} is named: {error}"
        raise


@contextmanager
def _bounds() -> Iterator[None]:
    """As in the library, for small files."""
    with mock.patch("fedstride.data.files.DENSE_LIMIT", 2**24), mock.patch("fedstride.data.packed.MOST", 2**20):
        yield


def leaf(given: tuple[Any, dict[str, Any]]) -> None:
    document, chosen = given
    with TemporaryDirectory() as folder:
        for part in ("train", "test"):
            (Path(folder) / part).mkdir()
        (Path(folder) / "test" / "a.json").write_text(json.dumps(NUMBERS))
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        (Path(folder) / "train" / "a.json").write_bytes(content)
        if isinstance(document, dict) and chosen.get("test"):
            (Path(folder) / "test" / "a.json").write_bytes(content)
        _named((folder,), lambda: usable(fs.data.load(folder, **{k: v for k, v in chosen.items() if k != "test"})))


NUMBERS = {
    "users": ["u", "v"],
    "user_data": {"u": {"x": [[1, 2], [3, 4]], "y": [0, 1]}, "v": {"x": [[0, 1]], "y": [1]}},
}
TEXTS = {"users": ["u"], "user_data": {"u": {"x": ["abc", "bca"], "y": ["a", "b"]}}}
documents = (
    junk.altered(NUMBERS) | junk.altered(TEXTS) | junk.mutated(*(json.dumps(d).encode() for d in (NUMBERS, TEXTS)))
)
shapes = st.sampled_from([{}, {"test": 1}, {"shape": [1, 2]}, {"regression": True}]) | st.fixed_dictionaries(
    {"shape": junk.values}
)


def array(content: bytes) -> None:
    assert idx.decode(content, "labels.idx").nbytes <= len(content)


@st.composite
def pictures(draw: Any) -> bytes:
    """Whole chunks with other contents: a head that lies, lines that are others."""
    sides = st.integers(0, 8) | st.sampled_from([2**16, 2**31, 2**32 - 1])
    rest = [draw(st.sampled_from(good) | st.integers(0, 255)) for good in ([8], [0, 2, 6], [0], [0], [0])]
    head = struct.pack(">IIBBBBB", draw(sides), draw(sides), *rest)
    lines = draw(junk.mutated(bytes([k for _ in range(6) for k in (_ % 5, *range(15))])))
    kinds = draw(st.lists(st.sampled_from([b"IDAT", b"IHDR", b"tEXt"]), max_size=2))
    body = b"".join(raw.chunk(kind, zlib.compress(lines)) for kind in [b"IDAT", *kinds])
    return png.SIGNATURE + raw.chunk(b"IHDR", head) + body + raw.chunk(b"IEND", b"")


def picture(content: bytes) -> None:
    assert png.decode(content, "pic.png").dtype == np.uint8


def plays(content: bytes) -> None:
    made = roles.encode(content)
    assert len(made["codes"]) == made["lengths"].sum()


def collected(given: tuple[str, bytes]) -> None:
    """A file that should be in a folder, plain or packed."""
    ending, content = given
    with TemporaryDirectory() as folder, _bounds():
        (Path(folder) / f"data{ending}").write_bytes(content)
        sums = raw.sha256({"data": SVM})
        _named(("data",), lambda: fetch.collect(sums, None, Path(folder), "", lambda what: None))


PACKAGES: list[fetch.Package] = [
    fetch.Npm("thing", "1.0"),
    fetch.Pip("thing==1.0", "thing-1.0.whl", "", ()),
    fetch.Pip("plays==1.0", "plays-1.0.tar.gz", "", (), ("data", roles.prepare)),
]


def wheel(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("thing/data", content)
    return out.getvalue()


def unpacked(given: tuple[fetch.Package, bytes]) -> None:
    package, content = given
    with TemporaryDirectory() as folder, _bounds():
        (Path(folder) / package.archive).write_bytes(content)
        fetch.collect(raw.sha256({"data": SVM}), package, Path(folder), "", lambda what: None)


TEXT = "It was the best of times, it was the worst of times.\n" * 8
MADE = roles.encode(json.dumps({"a": TEXT, "b": TEXT[::-1] + "\n"}).encode())
SOURCE = replace(
    sources.SOURCES["shakespeare"], shapes={k: tuple(v.shape) for k, v in MADE.items()}, classes=len(MADE["alphabet"])
)
DTYPES = [torch.uint8, torch.int64, torch.float32, torch.bool, torch.float16, torch.int8]


@st.composite
def cache_files(draw: Any) -> bytes:
    """The cache's own format, right but for some of its contents."""
    made = dict(MADE)
    for name in draw(st.lists(st.sampled_from([*made]), max_size=2)):
        kind = draw(st.sampled_from(DTYPES))
        made[name] = (
            made[name].to(kind) if draw(st.booleans()) else torch.full_like(made[name], draw(st.integers(-9, 9)))
        )
    if draw(st.integers(0, 3)) == 3:
        made.pop(draw(st.sampled_from([*made])))
    content = save({k: v.contiguous() for k, v in made.items()})
    return draw(junk.mutated(content)) if draw(st.booleans()) else content


def cached(content: bytes) -> None:
    with _cache() as folder, mock.patch.dict(sources.SOURCES, {"shakespeare": SOURCE}):
        (folder / "shakespeare.safetensors").write_bytes(content)
        usable(fs.data.load("shakespeare"))


@contextmanager
def _cache() -> Iterator[Path]:
    """An empty one, on a machine where nothing can be fetched."""
    offline = mock.patch("fedstride.data.fetch._call", side_effect=fs.InvalidInput("there is no network here."))
    with TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"FEDSTRIDE_DATA": folder}), offline:
        yield Path(folder)


IDX = [raw.idx(np.arange(12).reshape(3, 4).astype(kind)) for kind in raw.CODES] + [
    b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"a"
]
PNG = [raw.png(PIXELS[c], [k % 5 for k in range(6)]) for c in PIXELS]
ARCHIVES = [raw.tar({"data": SVM}), raw.tar({"data": bytes(2**22)}), wheel(SVM), wheel(bytes(2**22))]
ROLES = [json.dumps({"a": "xy\nx", "b": "alone", "c": "z\nz"}).encode()]
paths = junk.words | st.sampled_from(["digits", "digit", "/dev/null", "/proc/self/mem", "hf:x", "mnist"])


def somewhere(given: tuple[Any, Any]) -> None:
    """A path or a name, out of nowhere."""
    with _cache():
        usable(fs.data.load(given[0], folder=given[1]))


TARGETS = [
    Target("data: CSV", st.tuples(packed(".csv", CSV, BARE), usual | options), loaded, 4),
    Target("data: LIBSVM", st.tuples(packed("", SVM), st.just({}) | options), loaded, 4),
    Target("data: LEAF", st.tuples(documents, shapes), leaf, 4),
    Target("data: idx", junk.mutated(*IDX), array, 4),
    Target("data: PNG", junk.mutated(*PNG) | pictures(), picture, 4),
    Target("data: roles", junk.mutated(*ROLES) | junk.values.map(json.dumps).map(str.encode), plays, 2),
    Target("data: packed", packed("", SVM), collected, 2),
    Target("data: package", st.tuples(st.sampled_from(PACKAGES), junk.mutated(*ARCHIVES)), unpacked, 2),
    Target("data: cache", cache_files(), cached, 2),
    Target("data: paths", st.tuples(paths, st.none() | junk.words), somewhere, 2),
]
