"""Orders and uploads as Flower records, without rounding.

Flower transfers every record, every array and every part of an array in a request of its own, and a request costs the
SuperLink as much as many kilobytes. So small vectors travel as bytes in a record of configuration values, beside the scalars.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedstride.client.exchange import Upload
from fedstride.client.personal import Personal
from fedstride.core.errors import FedstrideError, InvalidInput, located
from fedstride.core.rows import State, sq
from fedstride.data.federation import Found
from fedstride.engine.protocol import Order
from fedstride.wire.sparse import decode, encode

T = TypeVar("T")
COUNTS = ("finite", "gradients", "forwards")  # metrics that are integers
MOST = 2**53  # larger counts are refused
NUMBER = 8  # bytes of a single number
SMALL = 5 * 2**20  # bytes of vectors that are sent in one piece; Flower cuts arrays into pieces of this size
SPARE = 4096  # bytes of headers and rounding in a vector
PARTS = 8  # arrays of a compressed vector, at most
MOST_TEXT = 2**20  # characters of a node's description of its model
LONGEST = 500  # characters of a text from a node
PACKAGE = Path(__file__).parents[2]
NPY = "numpy.ndarray"  # Flower's name of the format of .npy files
MANY = 2**20  # clients: the sum of this many numbers must be finite
QUOTED = re.compile(  # a quoted text, in which a backslash escapes a quote; not an option such as 'client=0'
    r"""(?<![^\W_])[bru]?(?!'\w+=(?:NUMBER|FILE|\d+|true|false)')(['"])(?:\\.|(?!\1)[^\\])*\1(?!\w)""", re.DOTALL
)
VALUE = re.compile(r"\b(?:labels? (?:such as )?(?!is|are|of|in|column|from)\S+|targets? (?:such as )?[-+.\d']\S*)")
_reading = (
    Lock()
)  # numpy parses headers with ast, which fails at random when two threads of CPython 3.11 use it at once


@dataclass(frozen=True)
class Errand:
    """The part of a message that is not in the order: the run's settings, and the names of memory files."""

    settings: str  # JSON: the run's configuration
    found: str  # JSON: result of the trial run of the model
    token: str  # identifies the run in the clients' memory
    base: str  # name of the memory to start from, "" for none
    keep: str  # name of the memory to write
    retain: tuple[str, ...]  # names of memory that the server may still need


class Unusable(FedstrideError):
    """An unusable reply; the message is the reason in the history."""


def arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord | ConfigRecord:
    """Convert vectors to a record, sparse ones in a compact form, small ones to the bytes of a .npy file."""
    parts = {name + part: v for name, whole in tensors.items() for part, v in encode(whole.detach()).items()}
    found = {name: Array(v.cpu().numpy()) for name, v in parts.items()}
    if sum(len(array.data) for array in found.values()) > SMALL:
        return ArrayRecord(found)
    return ConfigRecord({name: array.data for name, array in found.items()})


def tensor_of(array: Array | bytes) -> Tensor:
    """Read an array of a record; safe in threads."""
    with _reading:
        return torch.from_numpy((Array("", (), NPY, array) if isinstance(array, bytes) else array).numpy())


def tensors(record: Mapping[str, Any]) -> State:
    """Convert a record of arrays() back to vectors."""
    return {
        name: decode({part: tensor_of(array) for part, array in parts.items()})
        for name, parts in _named(record).items()
    }


def ordered(order: Order, known: bool, personal: Personal | None = None) -> dict[str, ArrayRecord | ConfigRecord]:
    """Return the records of an order that all clients share; known: whether they already have the model.

    Personal entries are not sent: nodes have their own, and the initial ones from the model that they build.
    """
    x = order.x[:0] if known else order.x if personal is None else personal.cut(order.x)
    model = {name: v for name, v in (("x", x), ("stats", order.stats)) if len(v)}
    return {name: arrays(vectors) for name, vectors in (("model", model), ("broadcast", order.broadcast)) if vectors}


def sent(
    shared: Mapping[str, ArrayRecord | ConfigRecord], order: Order, client: int, steps: int, errand: Errand
) -> RecordDict:
    """Return the content of an order to one client."""
    facts = {
        "round": order.round,
        "call": order.call,
        "client": client,
        "steps": steps,
        **vars(errand),
        "retain": " ".join(errand.retain),
    }
    return RecordDict({**shared, "order": ConfigRecord(cast(Any, facts))})


def errand_of(content: RecordDict) -> Errand:
    """Return the errand in a message of sent()."""
    facts = cast(dict[str, Any], content.config_records["order"])
    given = {f.name: facts[f.name] for f in fields_of(Errand)}
    return Errand(**{**given, "retain": tuple(given["retain"].split())})


def order_of(content: RecordDict, kind: str, device: torch.device) -> Order:
    """Return the order in a message of sent(), with a cohort of one; x is empty if the client already has it."""
    facts = cast(dict[str, Any], content.config_records["order"])
    model, broadcast = (
        {k: v.to(device) for k, v in tensors(content.get(name, ConfigRecord())).items()}
        for name in ("model", "broadcast")
    )
    cohort, empty = [(facts["client"], facts["steps"])], torch.zeros(0, device=device)
    x, stats = model.get("x", empty), model.get("stats", empty)
    return Order(kind, x, stats, broadcast, facts["round"], cohort, call=facts["call"])


def uploaded(upload: Upload, order: Order) -> RecordDict:
    """Return a single client's upload: one record if its vectors are small, else with a record of arrays beside it."""
    client, _ = order.cohort[0]
    fields = {name: v[0] for name, v in _needed(upload.fields).items()}
    vectors = {name: v for name, v in fields.items() if len(v) > 1}
    numbers = {f"fields.{name}": float(v) for name, v in fields.items() if len(v) == 1}
    for name, v in upload.metrics.items():
        numbers[f"metrics.{name}"] = int(v) if name in COUNTS else float(v)
    facts: dict[str, Any] = {"client": client, "round": order.round, "call": order.call, **numbers}
    record = arrays(vectors)
    if isinstance(record, ConfigRecord):
        return RecordDict({"upload": ConfigRecord({**facts, **record})})
    return RecordDict({"upload": ConfigRecord(facts), "fields": record})


def admitted(
    content: RecordDict, order: Order, client: int, fields: Mapping[str, int], metrics: tuple[str, ...]
) -> Upload:
    """Parse an upload of the expected layout. Its size is that of the numbers that arrived, without the squared norm.

    Raises:
        Unusable: if the content is anything else.
    """
    if not {"upload"} <= set(content) <= {"upload", "fields"}:
        raise Unusable("corrupt")
    try:
        facts = content.config_records["upload"]
        large = content.array_records["fields"] if "fields" in content else {}
        vectors = _named({**{name: v for name, v in facts.items() if isinstance(v, bytes)}, **large})
        numbers = {name: v for name, v in facts.items() if not isinstance(v, bytes)}
        came, when = numbers.pop("client"), (numbers.pop("round"), numbers.pop("call"))
    except (KeyError, TypeError) as error:
        raise Unusable("corrupt") from error
    if came != client:
        raise Unusable("of another client")
    if when != (order.round, order.call):
        raise Unusable("stale")
    needed = _needed(fields)
    single = {f"fields.{name}" for name, n in needed.items() if n == 1}
    if vectors.keys() != {name for name, n in needed.items() if n > 1}:
        raise Unusable("wrong shape")
    if numbers.keys() != single | {f"metrics.{name}" for name in metrics}:
        raise Unusable("wrong shape")
    x = order.x
    received = {name: _vector(vectors[name], n, x) for name, n in needed.items() if n > 1}
    found, size = {name: v[None] for name, (v, _) in received.items()}, sum(n for _, n in received.values())
    size += x.element_size() * len(single - {"fields.square"})
    most = torch.finfo(x.dtype).max / MANY
    found |= {name: x.new_tensor([[_number(numbers[f"fields.{name}"], most)]]) for name, n in needed.items() if n == 1}
    if "raw" in found:
        found["update"] = found["raw"] / found["effective_steps"]
    if "square" in found:  # a client that sends a false update may send a false norm
        squares = [sq(found[name]) for name in ("update", "raw") if name in found]
        found["square"] = torch.cat(squares, 1).amax(1, keepdim=True)
    values = {name: _number(numbers[f"metrics.{name}"], most) for name in metrics}
    if not all(_whole(values[name]) for name in COUNTS):
        raise Unusable("corrupt")
    counts = {name: torch.tensor([[int(values[name])]], device="cpu") for name in COUNTS}
    others = {name: x.new_tensor([[v]]) for name, v in values.items() if name not in COUNTS}
    rows = {name: {**counts, **others}[name] for name in metrics}
    return Upload({name: found[name] for name in fields}, rows, {}, [size])


def _needed(fields: Mapping[str, T]) -> dict[str, T]:
    """Return the fields to send: the server computes an update that is `raw` over the effective steps."""
    return {name: v for name, v in fields.items() if name != "update" or "raw" not in fields}


def _named(record: Mapping[str, Any]) -> dict[str, dict[str, Array | bytes]]:
    """Group the arrays of a record by vector: see wire/sparse.py."""
    found = dict[str, dict[str, Array | bytes]]()
    for key, array in record.items():
        name, dot, part = key.partition(".")
        found.setdefault(name, {})[dot + part] = array
    return found


def _vector(parts: Mapping[str, Array | bytes], numbers: int, like: Tensor) -> tuple[Tensor, int]:
    """Return a vector and the bytes of the numbers that were sent for it."""
    sizes = [len(array if isinstance(array, bytes) else array.data) for array in parts.values()]
    if len(sizes) > PARTS or sum(sizes) > numbers * like.element_size() + SPARE:
        raise Unusable("wrong shape")
    try:
        found = {part: tensor_of(array) for part, array in parts.items()}
    except Exception as error:  # invalid bytes can raise any exception
        raise Unusable("corrupt") from error
    try:
        whole = decode(found, numbers)
    except ValueError as error:
        raise Unusable("wrong shape") from error
    if whole.dtype != like.dtype:
        raise Unusable("wrong shape")
    return whole.to(like.device), sum(v.nbytes for v in found.values())


def size(content: RecordDict) -> int:
    """Return the bytes of all that a message contains, also of what was not asked for."""
    total = 0
    for name, record in content.items():
        total += len(name)
        for key, value in record.items():
            total += len(key)
            for one in value if isinstance(value, list) else [value]:
                data = one.data if isinstance(one, Array) else one
                total += len(data) if isinstance(data, str | bytes) else NUMBER
    return total


def _number(value: object, most: float) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unusable("wrong shape")
    if not abs(value) <= most:
        raise Unusable("not finite")
    return value


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def problem(content: RecordDict) -> dict[str, str] | None:
    """Return the problem that a node reports (kind, text and client), None if there is none."""
    facts = content.config_records.get("problem")
    return None if facts is None else {key: shown(facts.get(key)) for key in ("kind", "text", "client")}


def shown(text: object) -> str:
    """Return a text from a node as it may be logged: short, and without control characters."""
    start = str(text)[:LONGEST]
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in start)
    return safe if len(str(text)) <= LONGEST else f"{safe}..."


def told(error: Exception) -> str:
    """Return what a node tells the server about an error: never a text of the user's code or data.

    Of other exceptions, type and location; of those that fedstride itself raised, the message without quoted values,
    labels, and the texts of the exceptions that caused it.
    """
    last = traceback.extract_tb(error.__traceback__)[-1:]
    if not isinstance(error, FedstrideError) or any(PACKAGE not in Path(place.filename).parents for place in last):
        return located(error)
    text = str(error)
    for inner in _causes(error):
        if not isinstance(inner, FedstrideError) and str(inner):
            text = text.replace(str(inner), type(inner).__name__)
    return VALUE.sub("a label", QUOTED.sub("'...'", text))


def _causes(error: BaseException) -> list[BaseException]:
    """Return the exceptions that led to this one, however often they were wrapped."""
    found = [error]
    for one in found:  # it grows
        found += [
            e for e in (one.__cause__, one.__context__) if e is not None and all(e is not known for known in found)
        ]
    return found[1:]


def found_text(found: Found) -> str:
    return json.dumps(vars(found), sort_keys=True)


def found_of(text: str) -> Found:
    """Return the result of a trial run.

    Raises:
        InvalidInput: if the text is anything else.
    """
    try:
        given = json.loads(text)
        moving, random, features = given["moving"], given["random"], given["features"]
        kinds = isinstance(random, bool) and isinstance(features, int) and isinstance(given["reduction"], str | None)
        if len(text) > MOST_TEXT or not kinds or not all(isinstance(name, str) for name in moving):
            raise ValueError("not the result of a trial run")
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise InvalidInput(f"it does not identify itself ({type(error).__name__}).") from error
    return Found(given["reduction"], tuple(moving), random, features)


def client_number(node: Mapping[str, Any]) -> int:
    """Return the client number of a node.

    Raises:
        InvalidInput: if its configuration has no valid number.
    """
    number = node.get("client", node.get("partition-id"))
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InvalidInput(
            f"client={number!r} is invalid: expected the number of this node's client, from 0. "
            "Start the node with --node-config 'client=0'."
        )
    return number
