"""Values that nobody expects, and valid things with a few mistakes in them."""

from __future__ import annotations

import copy
import functools
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

DEEP = 600  # levels: JSON can be read, but recursive functions of Python hardly
GIANTS = [10**18, -(10**18), 2**63, 2**64 - 1, 10**400, 1e308, -1e308, 1e-320]
numbers = st.integers(-3, 12) | st.floats(-2, 2) | st.floats() | st.sampled_from(GIANTS)
words = st.text(max_size=12) | st.sampled_from(
    ["", " ", "none", "nan", "a" * 5000, "../x", "/", "~nobody/x", "\0", "é\u202e", "\ud800", "x\udfffy"]
)
scalars = st.none() | st.booleans() | numbers | words
values: SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
odd = (
    values
    | st.builds(list)
    | st.builds(dict)
    | st.builds(lambda: functools.reduce(lambda v, _: {"a": v}, range(DEEP), 0))
)
TOKENS = [
    *(b"nan", b"inf", b"-1", b"0", b"1e999", b"9" * 400, b"true", b"null", b"{}", b"[]", b'""'),
    *(b"\0", b"\xff\xfe", b",", b"\n", b"\r", b'"', b":", b" ", b"=", b"[" * 5000, b'{"a":' * 5000, b"a" * 5000),
    *(b"\xff" * 8, b"\x7f" + b"\xff" * 3, b"\0" * 8),
    *(b'"\\ud800"', b"\xed\xa0\x80", b"[" * 200_000, b"1e308", b"-0", b"9" * 5000),
]


@st.composite
def mutated(draw: DrawFn, *seeds: bytes) -> bytes:
    """One of the seeds, with one edit, or up to four."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4, 0]))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from([0, 1, 1, 2, 4, 8, 8, len(data)]))
        before, piece, after = data[:start], data[start : start + length], data[start + length :]
        act = draw(st.sampled_from(["cut", "drop", "double", "flip", "flip", "put", "put", "put"]))
        if act == "flip":
            piece = bytes(b ^ 1 << draw(st.integers(0, 7)) for b in piece[:2])
            after = data[start + len(piece) :]
        elif act == "put":
            piece = draw(st.sampled_from(TOKENS) | st.binary(max_size=4))
        data = before if act == "cut" else before + {"drop": b"", "double": 2 * piece}.get(act, piece) + after
    return data


@st.composite
def altered(draw: DrawFn, document: Any) -> Any:
    """A JSON document in which some values are others, missing, or too many."""
    whole = {"": copy.deepcopy(document)}
    for _ in range(draw(st.sampled_from([1, 1, 2, 4]))):
        holder, key = draw(st.sampled_from(_places(whole)))
        act = draw(st.sampled_from(["replace", "replace", "delete", "add", "double"]))
        if act == "delete" and key != "":
            del holder[key]
        elif act == "add" and isinstance(holder[key], dict):
            holder[key][draw(st.text(max_size=5))] = draw(odd)
        elif act == "double" and isinstance(holder[key], list):
            holder[key] = holder[key] * 2
        else:
            holder[key] = draw(odd)
    return whole[""]


def _places(inside: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Every (holder, key) within a document, without the deepest ones."""
    if depth == 20:
        return []
    keys = list(inside) if isinstance(inside, dict) else range(len(inside)) if isinstance(inside, list) else ()
    found = [(inside, key) for key in keys]
    return found + [place for key in keys for place in _places(inside[key], depth + 1)]
