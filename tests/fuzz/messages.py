"""Messages: bytes that are none, and whole ones that say something else than was asked for."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import save

from fedstride.client.exchange import Upload
from fedstride.core.message import _digest, pack, unpack
from fedstride.engine.admission import Rules, admit, message
from tests.fuzz import junk
from tests.fuzz.law import Target

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    torch.uint8,
    torch.complex64,
]
GOOD = pack({"x": torch.arange(4.0), "n": torch.tensor(3)}, {"client": 1, "round": 2})


@st.composite
def tensors(draw: Any, good: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of other types and shapes, with other values or names, missing or too many."""
    found = dict(good)
    for name in draw(st.lists(st.sampled_from([*good]), min_size=1, max_size=2)) if good else []:
        shape = draw(st.just(good[name].shape) | st.lists(st.integers(0, 5), max_size=3))
        kind = draw(st.just(good[name].dtype) | st.sampled_from(DTYPES))
        fill = draw(st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf, 1e300]))
        act = draw(st.sampled_from(["replace", "replace", "replace", "drop", "rename"]))
        if act == "replace":
            found[name] = torch.full(shape, fill, dtype=torch.float64).to(kind)
        elif old := found.pop(name, None) is not None and act == "rename":
            found[draw(st.text(max_size=5))] = torch.zeros(2) if old is None else good[name]
    return found


@st.composite
def sealed(draw: Any, good: dict[str, torch.Tensor], meta: dict[str, Any]) -> bytes:
    """A stranger's message: its checksum is right, its content need not be."""
    content = draw(st.just(good) | tensors(good))
    try:
        whole = pack(content, draw(st.just(meta) | junk.altered(meta).filter(lambda m: isinstance(m, dict))))
    except (ValueError, RecursionError):  # what JSON cannot say
        whole = pack(content, {})
    return draw(st.just(whole) | junk.mutated(whole))


@st.composite
def headed(draw: Any) -> bytes:
    """Facts that are no object, or none at all, under a right checksum."""
    text = draw(
        st.sampled_from(["", "[]", "null", "3", '{"format": 2}', '{"format": "2"}', "[" * 3000, "\ud800"]) | junk.words
    )
    x = {"x": torch.arange(4.0)}
    try:
        return save(x, {"fedstride": f"{_digest(x, text)} {text}"})
    except (UnicodeEncodeError, ValueError):
        return save(x)


def read(data: bytes) -> None:
    found, meta = unpack(data, "a message")
    assert isinstance(meta, dict) and all(isinstance(v, torch.Tensor) for v in found.values())


CLIENTS, ROUND, LIMIT = [4, 7, 9], 5, 100.0
UPLOAD = Upload(
    {"update": torch.ones(3, 4), "square": torch.full((3, 1), 4.0)},
    {"finite": torch.ones(3, 1, dtype=torch.bool), "loss": torch.ones(3, 1)},
    {},
    [16, 16, 16],
)
SENT = {f"{part}/{k}": v[1] for part in ("fields", "metrics") for k, v in getattr(UPLOAD, part).items()}
replies = st.lists(
    sealed(SENT, {"client": 7, "round": 5}) | st.just(message(UPLOAD, 1, 7, 5)) | st.binary(max_size=9), max_size=3
)


def admitted(given: dict[int, list[bytes]]) -> None:
    """Whatever clients send, what is let in has the right form, and everybody is accounted for."""
    upload = Upload(UPLOAD.fields, UPLOAD.metrics, {}, UPLOAD.bytes, {}, given)
    found = admit(upload, CLIENTS, ROUND, Rules({"update": LIMIT}))
    assert sorted([*(CLIENTS[row] for row in found.rows), *found.lost]) == CLIENTS
    assert set(found.rows) >= {row for row in range(3) if row not in given}, "who did nothing wrong was left out"
    for part, before in ((found.fields, UPLOAD.fields), (found.metrics, UPLOAD.metrics)):
        for name, value in ((name, part[name]) for name in before):
            assert value.shape == (len(found.rows), *before[name].shape[1:]) and value.dtype == before[name].dtype
            assert bool(torch.isfinite(value).all()), f"{name} is not finite"
    assert all(float(row.norm()) <= LIMIT for row in found.fields["update"])


TARGETS = [
    Target("messages: bytes", junk.mutated(GOOD) | st.binary(max_size=60), read, 8),
    Target("messages: sealed", sealed({"x": torch.arange(4.0)}, {"client": 1, "round": 2}) | headed(), read, 6),
    Target("messages: door", st.dictionaries(st.sampled_from([1, 1, 1, 0, 2]), replies, max_size=2), admitted, 8),
]
