"""A run in progress as a checkpoint, and back: everything that its next round depends on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedstride.core.errors import Corrupt, InvalidInput
from fedstride.core.files import read_tensors
from fedstride.core.rows import State, seed_of
from fedstride.data.federation import Federation, Lazy, TensorClient
from fedstride.engine import Contents
from fedstride.training import checkpoint
from fedstride.training.checkpoint import Checkpoints
from fedstride.training.history import History, Row

if TYPE_CHECKING:
    from fedstride.training.session import Session

VECTORS = ("x", "stats", "moved", "mean")
PARTS = ("server", "drift", "down", "private")
About = dict[str, Any]


def contents(session: Session) -> Contents:
    """All but what the clients remember."""
    tensors = {f"{name}/{k}": v for name in PARTS for k, v in getattr(session, name).items()}
    tensors |= {name: getattr(session, name) for name in VECTORS}
    if session.scaling is not None:
        tensors["scaling"] = session.scaling
    tensors["history"] = torch.frombuffer(bytearray(session.history.packed()), dtype=torch.uint8)
    return tensors, {"releases": session.releases, "usual": session.usual}


def adopt(session: Session, given: Contents, history: Sequence[Row]) -> None:
    tensors, meta = given
    for name in VECTORS:
        setattr(session, name, tensors[name].to(session.x.device))
    for name in PARTS:
        setattr(session, name, {k: v.to(session.x.device) for k, v in _part(tensors, name).items()})
    if "scaling" in tensors:
        session.scaling = tensors["scaling"].to(session.x.device)
    session.history, session.releases, session.usual = History(history), meta["releases"], meta["usual"]


def save(session: Session, about: About, when: Checkpoints) -> None:
    tensors, meta = contents(session)
    memories = {f"clients/{k}": v for k, v in session.clients.state().items()}
    checkpoint.write(when, session.round, tensors | memories, {"kind": "checkpoint", "about": about, **meta})


def resume(session: Session, about: About, path: Path) -> None:
    """Go on from a checkpoint; nothing changes if it is another run's, or not what it should be."""
    tensors, meta = read_tensors(path)
    found = meta.get("about")
    if not isinstance(found, dict):
        raise Corrupt(f"{path}: no checkpoint of a run in progress.")
    for name, value in about.items():
        if found.get(name) != value:
            raise InvalidInput(
                f"checkpoint={str(path.parent)!r} belongs to another run: {name} was {found.get(name)!r} and is "
                f"{value!r}. Use the same arguments, or another folder."
            )
    history, releases, usual = checkpoint.history(path, tensors), meta.get("releases"), meta.get("usual")
    if not isinstance(releases, int) or not isinstance(usual, dict) or usual.keys() != session.usual.keys():
        raise Corrupt(f"{path}: it does not say what was released, and how long messages are.")
    if not all(isinstance(v, int | float) for v in usual.values()):
        raise Corrupt(f"{path}: lengths of messages are {usual}.")
    expected = {name: getattr(session, name) for name in VECTORS}
    expected |= {f"{name}/{k}": v for name in PARTS for k, v in getattr(session, name).items()}
    for key, v in expected.items():
        if key not in tensors or (tensors[key].shape, tensors[key].dtype) != (v.shape, v.dtype):
            raise Corrupt(f"{path}: {key!r} is not what this run needs.")
    if session.task.normalise and not _is_scaling(tensors.get("scaling"), session.x.dtype):
        raise Corrupt(f"{path}: it does not say how inputs are normalised.")
    session.clients.restore(_part(tensors, "clients"))
    adopt(session, (tensors, meta), history)


def _part(tensors: State, name: str) -> State:
    return {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}


def _is_scaling(found: Tensor | None, dtype: torch.dtype) -> bool:
    """Means and deviations, one of each per feature."""
    if found is None or found.dim() != 1 or found.dtype != dtype or not len(found) or len(found) % 2:
        return False
    return bool(torch.isfinite(found).all()) and bool((found[len(found) // 2 :] > 0).all())


def about(session: Session) -> About:
    """What a run must have in common with the checkpoint that it goes on from."""
    task = session.task
    return {
        "algorithm": re.sub(" at 0x[0-9a-f]+", "", repr(session.algorithm)),  # a function's address changes
        "options": repr(session.options),
        "loss": getattr(task.loss, "__qualname__", repr(task.loss)),
        "sampler": repr(session.sampler),
        "seed": task.seed,
        "batch_size": task.batch_size,
        "parameters": len(session.x),
        "dtype": str(session.x.dtype),
        "clients": len(task.clients),
        "sizes": seed_of(*task.clients.sizes),  # a digest, as the next ones
        "data": _digest(task.clients),
        "buffers": task.buffers,
        "normalise": task.normalise or None,
        "precision": "bfloat16" if task.mixed else None,
        "oracle": _oracle(session.clients.about()),
        "weights": seed_of(*map(str, task.weights)),
        "local_steps": seed_of(*(session.steps(0, c) for c in range(len(task.clients)))),
        **({"rounds": task.rounds} if getattr(session.algorithm.step, "schedule", None) else {}),
    }


def _digest(clients: Federation | Lazy) -> int | None:
    """Of a few samples of a few clients; None where they may be others at every look."""
    if isinstance(clients, Lazy) or not all(isinstance(c, TensorClient) for c in clients):
        return None
    few = torch.arange(1, device="cpu")
    return seed_of(*(str(v.tolist()) for i in range(min(20, len(clients))) for v in clients[i].take(few)))


def _oracle(about: dict[str, Any]) -> str:
    """What of the engine the bits depend on: clients one after another have the same in any company."""
    return "loop" if about["oracle"] == "loop" else f"{about['oracle']} in chunks of {about['chunk']}"
