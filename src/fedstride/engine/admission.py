"""Admission: check uploads before they are aggregated, and leave out those that are unusable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstride.client.exchange import Upload
from fedstride.core.errors import Corrupt
from fedstride.core.message import pack, unpack
from fedstride.core.rows import State, sq

OWN_FAULT = ("not finite", "too long")  # reasons for which the same client would fail again


@dataclass(frozen=True)
class Admitted:
    """The admitted rows of a chunk; every tensor has one row for each of them."""

    rows: list[int]
    fields: State
    metrics: State
    lost: dict[int, str] = field(default_factory=dict)  # client: reason
    refused: Counter[str] = field(default_factory=Counter)  # number of messages left out, by reason


def admit(upload: Upload, clients: Sequence[int], round: int, limit: float = math.inf) -> Admitted:
    """Admit rows that are intact, from the right client and round, of the right shape, finite, and within the limit.

    Args:
        upload: the upload of a chunk.
        clients: the clients of its rows.
        round: the current round.
        limit: largest norm of an admitted update or gradient.
    """
    fields, metrics = dict(upload.fields), dict(upload.metrics)
    lost = dict(upload.lost)
    refused = Counter(lost.values())
    for row, messages in upload.replies.items():
        wanted = {f"fields/{k}": v[row] for k, v in upload.fields.items()}
        wanted |= {f"metrics/{k}": v[row] for k, v in upload.metrics.items()}
        found, reasons = _first_usable(messages, wanted, clients[row], round)
        refused.update(reasons)
        if found is None:
            lost[row] = reasons[-1] if reasons else "no answer"
            continue
        for part in (fields, metrics):
            name = "fields" if part is fields else "metrics"
            for k in part:
                part[k] = torch.cat([part[k][:row], found[f"{name}/{k}"].to(part[k].device)[None], part[k][row + 1 :]])
    for row, reason in _unsound(fields, metrics, limit, bool(upload.replies)).items():
        if row not in lost:
            lost[row] = reason
            refused[reason] += 1
    rows = [row for row in range(len(clients)) if row not in lost]
    if len(rows) < len(clients):
        fields, metrics = ({k: v[rows] for k, v in part.items()} for part in (fields, metrics))
    return Admitted(rows, fields, metrics, {clients[row]: why for row, why in sorted(lost.items())}, refused)


def message(upload: Upload, row: int, client: int, round: int) -> bytes:
    """Serialise the message of one client."""
    parts = {"fields": upload.fields, "metrics": upload.metrics}
    return pack(
        {f"{name}/{k}": v[row] for name, part in parts.items() for k, v in part.items()},
        {"client": client, "round": round},
    )


def _first_usable(
    messages: Sequence[bytes], wanted: State, client: int, round: int
) -> tuple[dict[str, Tensor] | None, list[str]]:
    """Return the first usable message, None if there is none, and the reasons why others are unusable."""
    found: dict[str, Tensor] | None = None
    reasons: list[str] = []
    for data in messages:
        try:
            tensors, meta = unpack(data, f"a message of client {client}")
        except Corrupt:
            reasons.append("corrupt")
            continue
        if meta.get("client") != client or meta.get("round") != round:
            reasons.append("stale" if meta.get("client") == client else "of another client")
        elif {k: (v.shape, v.dtype) for k, v in tensors.items()} != {k: (v.shape, v.dtype) for k, v in wanted.items()}:
            reasons.append("wrong shape")
        elif found is not None:
            reasons.append("duplicate")
        else:
            found = tensors
    return found, reasons


def _unsound(fields: State, metrics: State, limit: float, distrust: bool) -> dict[int, str]:
    """Return the rows that are not finite or too long, with reasons, and add the metric `square`, their squared norm.

    Finiteness is tested on sums over rows, which read each number only once.
    """
    sums = [v.sum(1) for v in fields.values() if v.is_floating_point()]
    finite = torch.isfinite(torch.stack(sums)).all(0) & metrics["finite"][:, 0].bool().to(sums[0].device)
    found = {row: "not finite" for row, ok in enumerate(finite.tolist()) if not ok}
    if "gradient" in fields:
        square = sq(fields["gradient"])
    elif distrust and "square" in fields:  # a client that sends a false update may send a false norm
        square = torch.maximum(fields["square"], sq(fields["update"]))
    elif "square" in fields:
        square = fields["square"]
    else:  # the norm of statistics has no meaning
        square = torch.zeros_like(sums[0][:, None])
    metrics["square"] = square
    long = (square[:, 0] > limit * limit).tolist() if limit < math.inf else []
    return {row: "too long" for row, beyond in enumerate(long) if beyond} | found
