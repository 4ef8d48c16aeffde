"""Admission: check uploads before they are aggregated, and leave out those that are unusable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstride.client.exchange import MOMENTS, Exchange, Upload
from fedstride.core.errors import Corrupt
from fedstride.core.losses import Loss, inner, never_negative
from fedstride.core.message import pack, unpack
from fedstride.core.rows import State, Vec, norm, sq

OWN_FAULT = ("not finite", "too long", "out of range")  # reasons for which the same client would fail again
LENGTH = "length of "  # prefix of the metrics that hold the norms of fields
SQUARES_OF = "mean squares of tensor "  # prefix of the metrics that hold the mean squares of gradients
RANGES = {  # of fields and metrics; all others are any finite numbers, and limited in length by the cohort's median
    "square": (0.0, math.inf),
    "mean_squares": (0.0, math.inf),
    "below": (-0.5, 0.5),
    "trials": (0.0, math.inf),
    "failed": (0.0, math.inf),
    "message": (0.0, math.inf),
    "error": (0.0, math.inf),
    "gradients": (0, 2**53),
    "forwards": (0, 2**53),
}
BOUNDED = ("update", "raw", "square", "gradient", "effective_steps", "below", "samples")  # limited in another way
SQUARES = ("mean_squares", "loss", MOMENTS)  # compared by their square roots: a loss may be a squared error
SLACK = 1e-3  # relative rounding error of a field that the server knows, and absolute one of a loss


@dataclass(frozen=True)
class Admitted:
    """The admitted rows of a chunk; every tensor has one row for each of them."""

    rows: list[int]
    fields: State
    metrics: State
    lost: dict[int, str] = field(default_factory=dict)  # client: reason
    refused: Counter[str] = field(default_factory=Counter)  # number of messages left out, by reason


@dataclass(frozen=True)
class Rules:
    """What a field must satisfy beyond its declared range."""

    limits: Mapping[str, float] = field(default_factory=dict)  # largest norms, by name
    floors: Mapping[str, Tensor] = field(default_factory=dict)  # smallest values of single entries, such as variances
    known: Mapping[str, Tensor] = field(default_factory=dict)  # values that follow from the order, one row per client
    alike: bool = (
        False  # whether mean squares of gradients are compared without roots: those of cross entropies differ less
    )


def admit(upload: Upload, clients: Sequence[int], round: int, rules: Rules | None = None) -> Admitted:
    """Admit rows that are intact, from the right client and round, of the right shape, finite, and within the rules.

    Args:
        upload: the upload of a chunk.
        clients: the clients of its rows.
        round: the current round.
        rules: limits of fields beyond their ranges.
    """
    rules = rules or Rules()
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
        if "fields/square" in found:  # a client that sends a false update may send a false norm
            found["fields/square"] = sq(found.get("fields/raw", found["fields/update"])[None])[0]
        for part in (fields, metrics):
            name = "fields" if part is fields else "metrics"
            for k in part:
                part[k] = torch.cat([part[k][:row], found[f"{name}/{k}"].to(part[k].device)[None], part[k][row + 1 :]])
    wrong = _unsound(fields, metrics, rules)
    for row, reason in {**_out_of_range(fields, metrics, rules), **wrong}.items():
        if row not in lost:
            lost[row] = reason
            refused[reason] += 1
    rows = [row for row in range(len(clients)) if row not in lost]
    if len(rows) < len(clients):
        fields, metrics = ({k: v[rows] for k, v in part.items()} for part in (fields, metrics))
    return Admitted(rows, fields, metrics, {clients[row]: why for row, why in sorted(lost.items())}, refused)


def rules_of(exchange: Exchange, loss: Loss, stats: Vec, limits: Mapping[str, float], known: State) -> Rules:
    """Return the rules for the uploads of an exchange; stats: the smallest valid statistics."""
    entropy = never_negative(inner(loss))
    least = -SLACK if exchange.plain and entropy else -math.inf
    floors = {"stats": stats, **dict.fromkeys(("loss", "train_loss"), stats.new_tensor(least))}
    return Rules(limits, floors, known, entropy)


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


def _out_of_range(fields: State, metrics: State, rules: Rules) -> dict[int, str]:
    """Return the rows with a value outside of its declared range."""
    wrong: list[Tensor] = []  # True marks a wrong entry; a row per client
    for name, v in {**metrics, **fields}.items():
        low, high = RANGES.get(name, (-math.inf, math.inf))
        if low > -math.inf:
            wrong.append(v < low)
        if high < math.inf:
            wrong.append(v > high)
        if name in rules.floors:
            wrong.append(v < rules.floors[name])
        if name == MOMENTS:
            wrong.append(_false_moments(v, rules.known.get("samples"))[:, None])
        if name in rules.known:
            expected = rules.known[name]
            wrong.append((v - expected).abs() > SLACK * expected.abs())
    found = torch.cat([part.cpu() for part in wrong], 1).any(1).tolist() if wrong else []
    return {row: "out of range" for row, bad in enumerate(found) if bad}


def _false_moments(v: Tensor, samples: Tensor | None) -> Tensor:
    """Return the rows that are not moments of this many samples: see core/normalise.py."""
    n, (total, squares, within) = v[:, :1], v[:, 1:].view(len(v), 3, -1).unbind(1)
    bad = (within < 0).any(1) | ((squares - total.square() / n).abs() > SLACK * squares.abs()).any(1)
    return bad if samples is None else bad | (n != samples.to(n))[:, 0]


def _unsound(fields: State, metrics: State, rules: Rules) -> dict[int, str]:
    """Return the rows that are not finite or too long, with reasons, and add their norms to the metrics.

    The metric `square` is the squared norm of the update or gradient. Finiteness is tested on sums over rows, which read
    each number only once.
    """
    sums = torch.stack([v.sum(1) for v in (*fields.values(), *metrics.values()) if v.is_floating_point()], 1)
    finite = zip(sums.tolist(), metrics["finite"][:, 0].tolist(), strict=True)
    found = {row: "not finite" for row, (each, ok) in enumerate(finite) if not (ok and all(map(math.isfinite, each)))}
    if "gradient" in fields:
        square = sq(fields["gradient"])
    elif "square" in fields:
        square = fields["square"]
    else:  # the norm of statistics has no meaning
        square = torch.zeros_like(sums[:, :1])
    metrics["square"] = square
    lengths = {"gradient" if "gradient" in fields else "update": square.sqrt()}
    for name in fields.keys() - set(BOUNDED):
        v = fields[name]
        size = norm(v) if name != MOMENTS else norm(v[:, 1:]) / v[:, :1]
        root = name in SQUARES and not (rules.alike and name == "mean_squares")
        lengths[name] = metrics[LENGTH + name] = size.sqrt() if root else size
        if name == "mean_squares":
            metrics |= {f"{SQUARES_OF}{j}": v[:, j : j + 1] for j in range(v.shape[1])}
    long = [lengths[name][:, 0] > limit for name, limit in rules.limits.items() if name in lengths and limit < math.inf]
    beyond = torch.stack(long).any(0).tolist() if long else []
    return {row: "too long" for row, far in enumerate(beyond) if far} | found
