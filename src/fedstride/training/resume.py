"""Saving a run in progress, and resuming it from a checkpoint of the same run."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstride.algorithm import spelled_out
from fedstride.core.batch import leaves
from fedstride.core.capabilities import declared
from fedstride.core.errors import Corrupt, InvalidInput
from fedstride.core.files import read_tensors
from fedstride.core.losses import inner
from fedstride.core.rows import Vec, seed_of
from fedstride.data.clients import DatasetClient
from fedstride.data.federation import Federation, Lazy
from fedstride.training import checkpoint
from fedstride.training.checkpoint import Checkpoints, Clock
from fedstride.training.setup import Setup
from fedstride.training.state import TrainingState, checked, pack, part, unpack


class Recorder:
    """Saves the states of one run, with the clients' memory, and finds the last one again."""

    def __init__(self, setup: Setup, when: Checkpoints, start: TrainingState) -> None:
        self.setup, self.when, self.start = setup, when, start
        self.clock = Clock(when, start.round)

    @cached_property
    def identity(self) -> dict[str, Any]:
        return identity(self.setup, self.start.x)

    def resume(self) -> TrainingState:
        """Return the newest saved state, or the start if there is none."""
        state = checkpoint.newest(self.when.path, self._read) or self.start
        checkpoint.prune(self.when)  # in case of a crash before the last pruning
        self.clock = Clock(self.when, state.round)
        return state

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint of a state and the clients' memory."""
        tensors, facts = pack(state)
        memories = {f"clients/{k}": v for k, v in self.setup.clients.state().items()}
        meta = {"kind": "checkpoint", "about": self.identity, **facts}
        checkpoint.write(self.when, state.round, tensors | memories, meta, private=len(state.secret) > 0)
        self.clock.saved(state.round)

    def due(self, state: TrainingState) -> bool:
        """Whether a state is to be saved."""
        return self.clock.due(state.round) or state.round == self.setup.task.rounds

    def lacks(self, state: TrainingState) -> bool:
        """Whether a finished round is not saved yet."""
        return self.clock.round < state.round

    def _read(self, path: Path) -> TrainingState:
        """Read a checkpoint; refuse one of another run, or a damaged one, before anything changes."""
        tensors, meta = read_tensors(path)
        found = meta.get("about")
        if not isinstance(found, dict):
            raise Corrupt(f"{path}: not a checkpoint of a run in progress.")
        for name, value in self.identity.items():
            if found.get(name) != value:
                raise InvalidInput(
                    f"checkpoint={str(path.parent)!r} belongs to another run: {name} was {found.get(name)!r} and is now "
                    f"{value!r}. Use the same arguments, or another folder."
                )
        state = unpack(self.start, tensors, meta, path)
        if self.setup.task.normalise and not _is_scaling(state.scaling, state.x.dtype):
            raise Corrupt(f"{path}: it does not contain the scaling of the inputs.")
        self._check_learned(state, path)
        stop, best = self.setup.stop, int(state.best["round"])
        if stop is not None and best and stop.score(state.history[best - 1]) != state.best["score"]:
            raise InvalidInput(
                f"checkpoint={str(path.parent)!r} has round {best} as the best one, but not by metric={stop.metric!r}, which is "
                "that of stop= now. Use the same metric and mode, or another folder."
            )
        self.setup.clients.restore(part(tensors, "clients"))
        return state

    def _check_learned(self, state: TrainingState, path: Path) -> None:
        """Refuse a server state of which a part, added after the start, is missing or has another shape."""
        if state.squares is not None:
            checked("squares", state.squares, state.x.new_zeros(len(self.setup.shapes)), path)
        learned = declared(self.setup.algorithm.server, "learned")
        if learned.keys() & state.server.keys():
            for name, by_tensor in learned.items():
                like = state.x.new_zeros(len(self.setup.shapes) if by_tensor else ())
                checked(f"server/{name}", state.server.get(name), like, path)


def _is_scaling(found: Tensor | None, dtype: torch.dtype) -> bool:
    """Whether these are means and positive deviations, one of each per feature."""
    if found is None or found.dim() != 1 or found.dtype != dtype or not len(found) or len(found) % 2:
        return False
    return bool(torch.isfinite(found).all()) and bool((found[len(found) // 2 :] > 0).all())


def identity(setup: Setup, x: Vec) -> dict[str, Any]:
    """Describe what a run must have in common with the checkpoint that it resumes from."""
    task = setup.task
    return {
        "algorithm": re.sub(" at 0x[0-9a-f]+", "", spelled_out(setup.algorithm)),  # a function's address changes
        "options": repr(setup.options),
        "loss": getattr(inner(task.loss), "__qualname__", repr(inner(task.loss))),
        "sampler": repr(setup.sampler),
        "seed": task.seed,
        "batch_size": task.batch_size,
        "parameters": len(x),
        "frozen parameters": setup.facts.get("frozen", {}).get("sha256"),
        "dtype": str(x.dtype),
        "clients": len(task.clients),
        "sizes": seed_of(*task.clients.sizes),  # digests, here and below
        "data": _digest(task.clients),
        "buffers": task.buffers,
        "normalise": task.normalise or None,
        "personal": None if task.personal is None else repr(task.personal),
        "precision": "bfloat16" if task.mixed else None,
        "oracle": _oracle(setup.clients.about()),
        "weights": seed_of(*map(str, task.weights)),
        "local_steps": seed_of(*(setup.steps(0, c) for c in range(len(task.clients)))),
        **({"rounds": task.rounds} if getattr(setup.algorithm.step, "schedule", None) else {}),
    }


def _digest(clients: Federation | Lazy) -> int | None:
    """Return a digest of a few samples of a few clients; None for data that may differ each time it is read."""
    if isinstance(clients, Lazy) or any(isinstance(c, DatasetClient) for c in clients):
        return None
    few = torch.arange(1, device="cpu")
    return seed_of(*(str(v.tolist()) for i in range(min(20, len(clients))) for v in leaves(clients[i].take(few))))


def _oracle(about: dict[str, Any]) -> str:
    """Describe the oracle as far as results depend on it: the loop gives the same bits in chunks of any size."""
    return "loop" if about["oracle"] == "loop" else f"{about['oracle']} in chunks of {about['chunk']}"
