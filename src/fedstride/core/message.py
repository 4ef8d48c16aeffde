"""Serialise tensors and metadata for files and messages: safetensors with a checksum, never pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedstride.core.errors import Corrupt

FORMAT = 2
LONGEST_HEADER = 10**8  # bytes, as in safetensors
UNREADABLE = (  # exceptions that invalid bytes can cause; UnicodeEncodeError, of lone surrogates, is a ValueError
    *(SafetensorError, ValueError, AttributeError, TypeError, OverflowError, RecursionError, KeyError),
    *(MemoryError, IndexError, RuntimeError),
)


def pack(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> bytes:
    """Serialise to an ordinary safetensors file; its header holds the checksum and the metadata."""
    own = {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}
    text = json.dumps({"format": FORMAT, **meta})
    return save(own, {"fedstride": f"{_digest(own, text)} {text}"})


def unpack(data: bytes, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return (tensors, metadata) of data written by pack(); `what` names the data in error messages."""
    try:
        if int.from_bytes(data[:8], "little") > LONGEST_HEADER:
            raise ValueError("its header is too long")
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
        digest, _, text = header.get("fedstride", " {}").partition(" ")
        meta = json.loads(text)
        whole = digest == _digest(tensors, text)
    except UNREADABLE as error:
        raise Corrupt(f"{what}: not readable ({str(error) or type(error).__name__}).") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        found = meta.get("format") if isinstance(meta, dict) else None
        raise Corrupt(f"{what}: format {found!r} is unknown to this version of fedstride; expected {FORMAT}.")
    if not whole:
        raise Corrupt(f"{what}: damaged, its checksum does not match.")
    return tensors, meta


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    found = hashlib.sha256(text.encode())
    for name, v in sorted(tensors.items()):
        found.update(f"{name} {v.dtype} {list(v.shape)}".encode())
        found.update(v.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
