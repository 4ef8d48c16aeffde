"""Personalisation: the argument personal= of fs.train(), and the clients' own models after a run."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstride.algorithm import Algorithm
from fedstride.client.personal import MEMORY, Personal, select
from fedstride.core.capabilities import declared
from fedstride.core.errors import Corrupt, InvalidInput, Refused, nearest
from fedstride.core.files import read_tensors, write_tensors
from fedstride.core.model import Replica
from fedstride.core.rows import State, Vec
from fedstride.engine import Task
from fedstride.training.stop import EarlyStopping
from fedstride.wire import Mean

OWN, STATS = "own", "stats"  # names in a client's memory: a whole model (Ditto), and moving buffers
FILE = "personal.safetensors"


def personal_of(
    patterns: Any, steps: int, algorithm: Algorithm, model: nn.Module, stop: EarlyStopping | None = None
) -> Personal | None:
    """Return the split of the parameters, None without personal=; refuse arguments that make no sense with it."""
    chosen = [p.strip() for p in patterns.split(",")] if isinstance(patterns, str) else patterns
    if chosen is not None and (not isinstance(chosen, list | tuple) or not all(isinstance(p, str) for p in chosen)):
        raise InvalidInput(
            f'personal={patterns!r} is invalid: expected patterns of parameter names, as in personal=["head.*"].'
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InvalidInput(f"personal_steps={steps!r} is invalid: expected a whole number >= 0.")
    found = select(tuple(filter(None, chosen or ())), steps, Replica(model))
    if steps and found is None:
        raise InvalidInput(
            f'personal_steps={steps} without personal=: there are no personal parameters. Name some, as in personal=["head.*"].'
        )
    if found is not None:
        _check(algorithm)
        if stop is not None and stop.keep == "best":
            raise Refused(
                "personal= with EarlyStopping(keep='best'): clients keep their last parameters, not those of the best round. "
                "Use keep='last'."
            )
    return found


def _check(a: Algorithm) -> None:
    """Refuse parts that are not defined for clients that start from different parameters."""
    objective = type(a.objective).__name__
    if a.exchanges_gradients:
        raise Refused(
            f"personal= with {type(a.drift).__name__}: gradients are exchanged at x, and every client is elsewhere, with "
            "parameters of its own. Use drift=Scaffold(), or none."
        )
    if declared(a.gradient, "by_components"):
        raise Refused(
            f"personal= with {type(a.gradient).__name__} gradients, which start from those at x; clients with parameters of "
            "their own start elsewhere. Use the minibatch estimator."
        )
    if declared(a.objective, "half_of") or declared(a.objective, "starts_elsewhere"):
        raise Refused(
            f"personal= with {objective}: it makes the clients agree on all parameters, but personal ones differ. Use another "
            "objective, such as Plain() or Proximal()."
        )
    if declared(a.objective, "trains_own"):
        raise Refused(
            f"personal= with {objective}, which gives each client a whole model of its own already. Drop one of them."
        )


def check_tests(task: Task) -> None:
    """Refuse a common test set: with personal parameters there is no whole model to evaluate on it."""
    if task.personal is None or not task.tests:
        return
    if len(task.tests) != len(task.clients):
        raise Refused(
            "personal= with one test set: each client has a model of its own, and the returned one has the initial personal "
            "parameters. Give a test set for each client, as in test=[(inputs, targets), ...]."
        )
    if getattr(task.clients, "found", None) is not None:
        raise Refused(
            "personal= with test= on Flower: the personal parameters stay at the nodes, so the server has no whole model to test. "
            "Leave test out."
        )


def with_personal_entries(mean: Mean, personal: Personal | None, a: Algorithm) -> Mean:
    """Return the mean as a row of the model; personal parameters were not uploaded, and do not change here."""
    if personal is None:
        return mean
    rows = {"update", "raw", *(a.drift.uploads if a.drift is not None else ())}
    return replace(mean, fields={k: personal.whole(v) if k in rows else v for k, v in mean.fields.items()})


def own_model(personal: Personal | None, x: Vec, stats: Vec, memory: State) -> tuple[Vec, Vec]:
    """Return the parameters and the statistics of a client's own model; the shared ones if it never took part."""
    stats = memory.get(STATS, stats).to(x.device)
    if personal is None or MEMORY not in memory:
        return x, stats
    return personal.put(x, memory[MEMORY][None].to(x))[0], stats


def own_parameters(a: Algorithm, personal: Personal | None, model: nn.Module) -> tuple[str, tuple[str, ...]]:
    """Return where a client's memory holds parameters of its own, and their names; ("", ()) if it holds none."""
    if personal is not None:
        return MEMORY, personal.names
    return (OWN, tuple(Replica(model).names)) if declared(a.objective, "trains_own") else ("", ())


@dataclass(frozen=True, eq=False)
class PersonalModels(Mapping[int | str, nn.Module]):
    """The clients' own models by number or name. Each is made when it is asked for; of a client that never took part it is
    the shared model."""

    shared: nn.Module  # the run's model
    parameters: tuple[str, ...]  # names of the parameters that clients have for themselves
    buffers: tuple[str, ...]  # names of such buffers
    recall: Callable[[int], State]  # what a client remembers: "values" of the parameters, and "stats" of the buffers
    clients: int
    names: tuple[str, ...] = ()  # of the clients

    def __len__(self) -> int:
        return self.clients

    def __iter__(self) -> Iterator[int | str]:
        return iter(self.names or range(self.clients))

    def __repr__(self) -> str:
        own = ", ".join((*self.parameters, *self.buffers))
        return f"PersonalModels({self.clients} clients; own: {own if len(own) < 200 else own[:200] + '...'})"

    def __getitem__(self, client: int | str) -> nn.Module:
        memory, model = self.recall(self.number(client)), copy.deepcopy(self.shared)
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        _fill([parameters[name].data for name in self.parameters], memory.get("values"))
        _fill([buffers[name].data for name in self.buffers], memory.get(STATS))
        return model.eval()

    def number(self, client: int | str) -> int:
        """Return the position of a client in the federation."""
        if isinstance(client, str):
            if client not in self.names:
                known = nearest(client, self.names) if self.names else "the clients have numbers, from 0."
                raise KeyError(f"client {client!r} is unknown; {known}")
            return self.names.index(client)
        number = operator.index(client)
        if not 0 <= number < self.clients:
            raise KeyError(f"client {number} is unknown; expected a number from 0 to {self.clients - 1}.")
        return number

    def save(self, folder: Path, private: bool = False) -> None:
        """Write the clients' own parameters and buffers to a file in the folder; private: for its owner only."""
        tensors = {f"{c}/{k}": v for c in range(self.clients) for k, v in self.recall(c).items()}
        facts = {"parameters": self.parameters, "buffers": self.buffers, "names": self.names}
        write_tensors(folder / FILE, tensors, {**facts, "clients": self.clients}, private)


def load_personal(folder: Path, shared: nn.Module) -> PersonalModels | None:
    """Read the models that save() wrote; None if there are none."""
    if not (folder / FILE).is_file():
        return None
    tensors, facts = read_tensors(folder / FILE)
    try:
        kept: dict[int, State] = {}
        for key, v in tensors.items():
            client, _, name = key.partition("/")
            kept.setdefault(int(client), {})[name] = v
        parameters, buffers, names = (tuple(map(str, facts[name])) for name in ("parameters", "buffers", "names"))
        found = PersonalModels(shared, parameters, buffers, lambda c: kept.get(c, {}), int(facts["clients"]), names)
        for first in list(kept)[:1]:
            found[first]
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise Corrupt(f"load: {folder / FILE} does not hold the clients' own parameters ({error!r}).") from error
    return found


def _fill(entries: Sequence[Tensor], values: Tensor | None) -> None:
    """Copy a vector into tensors, one after another."""
    if values is None:
        return
    for entry, part in zip(entries, torch.split(values, [e.numel() for e in entries]), strict=True):
        entry.copy_((part if entry.is_floating_point() else part.round()).view(entry.shape))
