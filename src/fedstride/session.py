"""A run in progress. A round is one or more exchanges with a cohort, then a server step."""

from __future__ import annotations

import math
import re
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedstride import checkpoint
from fedstride.algorithm import Algorithm
from fedstride.client.local import Options
from fedstride.client.site import Samples
from fedstride.engine import Clients, Reply, Task
from fedstride.errors import Diverged, InvalidInput
from fedstride.history import History, Row
from fedstride.model import Replica
from fedstride.result import Run
from fedstride.rows import State, Vec, dot, generator, seed_of, sq
from fedstride.sampling import Sampler
from fedstride.wire import Mean, feedback, send
from fedstride.work import send_gradients, train


@dataclass
class Session:
    """A run in progress: everything that the next round depends on."""

    algorithm: Algorithm
    options: Options
    task: Task
    clients: Clients
    sampler: Sampler
    steps: Callable[[int, int], int]
    test: Samples | None
    x: Vec
    stats: Vec
    server: State = field(init=False)
    drift: State = field(init=False)
    down: State = field(init=False)
    history: History = field(init=False, default_factory=History)
    moved: Vec = field(init=False)  # the model's last move
    mean: Vec = field(init=False)  # of the iterates, for an averaged read-out
    evaluate_every: int = 1
    weight: float = field(init=False)  # of the whole federation
    sizes: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        a = self.algorithm
        self.moved, self.mean = torch.zeros_like(self.x), self.x
        self.weight = sum(self.task.weights)
        self.sizes = array("q", self.task.clients.sizes)  # samplers turn it into a tensor at once
        self.server = a.server.init(self.x)
        self.drift = a.drift.init(self.x) if a.drift is not None else {}
        self.down = {k: v[None] for k, v in feedback.memory(self.x).items()} if a.feeds_back_down else {}

    @property
    def round(self) -> int:
        """Finished rounds."""
        return len(self.history)

    @property
    def output(self) -> Vec:
        """What is evaluated and returned; training goes on from x."""
        if self.algorithm.readout == "server":
            return self.algorithm.server.output(self.x, self.server)
        return self.mean if self.algorithm.readout == "average" else self.x

    def advance(self) -> Row:
        """One round."""
        start = time.perf_counter()
        a, x, t = self.algorithm, self.x, self.round
        cohort = self._cohort(t)
        chosen = [client for client, _ in cohort]
        item = x.element_size()
        broadcast = {**a.server.broadcast(self.server), **self.drift}
        stats = len(self.stats) if self.task.buffers == "average" else 0
        down = (len(x) + stats + sum(v.numel() for v in broadcast.values())) * item
        up, gradients, forwards, errors = 0, 0, 0, [0.0]

        if a.exchanges_gradients:
            reply = self.clients.exchange(send_gradients(a, self.options), x, self.stats, broadcast, t, cohort)
            self._refuse_broken(t, chosen, reply, "the gradient of client {} is not finite")
            self.clients.commit()
            broadcast["gradient"], size, error = self._compressed_gradient(reply.fields["gradient"])
            errors += [_relative_error(reply), error]
            down, up = down + size, reply.bytes_up
            gradients, forwards = int(reply.metrics["gradients"].sum()), int(reply.metrics["forwards"].sum())

        reply = self.clients.exchange(train(a, self.options), x, self.stats, broadcast, t, cohort)
        self._refuse_broken(t, chosen, reply, "the model of client {} became non-finite in its local steps")
        answered = [c for c in chosen if c not in reply.lost]
        new_stats = reply.fields.pop("stats", self.stats)
        mean = Mean(reply.fields, reply.weight / self.weight, len(answered), len(self.task.clients))
        drift, server = dict(self.drift), dict(self.server)
        if a.drift is not None:
            a.drift.absorb(mean.fields, mean.share, drift)
        new = a.server.step(x, mean, server)
        if not bool(torch.isfinite(new).all()):
            self._stop(t, [], f"the server step of size {float(server['eta']):.3g} left the finite numbers")
        self.clients.commit()
        self.x, self.stats, self.drift, self.server = new, new_stats, drift, server
        before, self.moved = self.moved, new - x
        if a.readout == "average":  # polynomial decay with eta = 8: Shamir, Zhang. ICML 2013, for non-smooth SGD
            self.mean = self.mean + 9 / (t + 9) * (new - self.mean)

        loss, accuracy = None, None
        if self.test is not None and ((t + 1) % self.evaluate_every == 0 or t + 1 == self.task.rounds):
            loss, accuracy = self.clients.evaluate(self.output, self.stats, self.test)
        mean_update = mean.fields.get("raw", mean.update)  # FedNova's clients upload Delta_i / a_i
        p = torch.tensor([self.task.weights[c] for c in answered], dtype=torch.float64, device="cpu")
        p /= p.sum()

        def average(name: str) -> float:
            return float((p * reply.metrics[name].double().cpu()).sum())

        row: Row = {
            "round": t + 1,
            "train_loss": average("train_loss"),
            "test_loss": loss,
            "test_accuracy": accuracy,
            "server_step": float(server["eta"]),
            "client_step": average("client_step"),
            "client_steps": _quartiles(reply.metrics["client_step"]),
            "trials": average("trials"),
            "failed": int(reply.metrics["failed"].sum()),
            "update": float(sq(mean_update).sqrt()),
            "turn": _cosine(self.moved, before),
            "drift": float((mean.square - sq(mean_update)).clamp(min=0).sqrt()),
            "compression": max(*errors, _relative_error(reply)),
            "bytes_up": up + reply.bytes_up,
            "bytes_down": down * len(chosen),
            "gradients": gradients + int(reply.metrics["gradients"].sum()),
            "forwards": forwards + int(reply.metrics["forwards"].sum()),
            "seconds": time.perf_counter() - start,
            "participants": len(answered),
            "lost": len(reply.lost),
        }
        self.history.append(row)
        return row

    def run(self) -> Run:
        """What there is so far, as a user gets it."""
        model = Replica(self.task.model, self.task.moving).exported(self.output, self.stats)
        return Run(model, self.x, self.history, self.algorithm, self.clients.about())

    def save(self, path: Path) -> None:
        parts = {"server": self.server, "drift": self.drift, "down": self.down, "clients": self.clients.state()}
        tensors = {f"{name}/{k}": v for name, part in parts.items() for k, v in part.items()}
        meta = {"kind": "checkpoint", "about": self._about, "history": list(self.history)}
        own = {"x": self.x, "stats": self.stats, "moved": self.moved, "mean": self.mean}
        checkpoint.write_tensors(path, {**own, **tensors}, meta)

    def resume(self, path: Path) -> None:
        tensors, meta = checkpoint.read_tensors(path)
        if "about" not in meta:
            raise InvalidInput(f"checkpoint: {path} is no checkpoint of a run in progress; use another folder.")
        for name, value in self._about.items():
            if meta["about"].get(name) != value:
                raise InvalidInput(
                    f"checkpoint={str(path.parent)!r} belongs to another run: {name} was {meta['about'].get(name)!r} and is "
                    f"{value!r}. Use the same arguments, or another folder."
                )
        device = self.x.device
        parts: dict[str, State] = {"server": {}, "drift": {}, "down": {}, "clients": {}}
        for key, v in tensors.items():
            name, _, rest = key.partition("/")
            if rest:
                parts[name][rest] = v.to(device)
        self.x, self.stats = tensors["x"].to(device), tensors["stats"].to(device)
        self.moved, self.mean = tensors["moved"].to(device), tensors["mean"].to(device)
        self.server, self.drift, self.down = parts["server"], parts["drift"], parts["down"]
        self.clients.restore(parts["clients"])
        self.history = History(meta["history"])

    def _cohort(self, t: int) -> list[tuple[int, int]]:
        """(client, local steps), longest first: who starts last should not be who ends last."""
        sizes, most = self.sizes, self.task.batch_size
        drawn = sorted(self.sampler.draw(sizes, generator(self.task.seed, t, "cohort")))
        cohort = [(client, self.steps(t, client)) for client in drawn]
        return sorted(cohort, key=lambda one: -one[1] * min(sizes[one[0]], most or sizes[one[0]]))

    @cached_property
    def _about(self) -> dict[str, Any]:
        task = self.task
        return {
            "algorithm": re.sub(" at 0x[0-9a-f]+", "", repr(self.algorithm)),  # a function's address changes
            "options": repr(self.options),
            "loss": getattr(task.loss, "__qualname__", repr(task.loss)),
            "sampler": repr(self.sampler),
            "seed": task.seed,
            "batch_size": task.batch_size,
            "parameters": len(self.x),
            "dtype": str(self.x.dtype),
            "clients": len(task.clients),
            "sizes": seed_of(*task.clients.sizes),  # a digest, as the next two
            "buffers": task.buffers,
            "precision": "bfloat16" if task.mixed else None,
            "oracle": _oracle(self.clients.about()),
            "weights": seed_of(*map(str, task.weights)),
            "local_steps": seed_of(*(self.steps(0, c) for c in range(len(task.clients)))),
            **({"rounds": task.rounds} if getattr(self.algorithm.step, "schedule", None) else {}),
        }

    def _compressed_gradient(self, mean: Vec) -> tuple[Vec, int, float]:
        """(what arrives, bytes, relative error)."""
        a = self.algorithm
        source = [generator(self.task.seed, self.round, "down")]
        sent, past, size = send(mean[None], a.down, a.feeds_back_down, self.down, source)  # 004 eq. (142)
        self.down = past or self.down
        error = past.get("residual", mean[None] - sent)
        return sent[0], size[0], _ratio(sq(error), sq(sent + error))

    def _refuse_broken(self, t: int, chosen: list[int], reply: Reply, what: str) -> None:
        answered = [c for c in chosen if c not in reply.lost]
        broken = [c for c, ok in zip(answered, reply.metrics["finite"].tolist(), strict=True) if not ok]
        if broken:
            self._stop(t, broken, what.format(broken[0]))

    def _stop(self, t: int, clients: list[int], what: str) -> None:
        raise Diverged(
            f"The run diverged in round {t + 1}: {what}. The last finite model, of round {t}, and the history are in "
            "error.run. Take smaller steps, or a rule that finds them (fs.recipes.fedsls(), delta_sgd()).",
            self.run(),
            t + 1,
            clients,
        )


def _oracle(about: dict[str, Any]) -> str:
    """What of the engine the bits depend on: clients one after another have the same in any company."""
    return "loop" if about["oracle"] == "loop" else f"{about['oracle']} in chunks of {about['chunk']}"


def _relative_error(reply: Reply) -> float:
    """Of the clients' compressed messages, 0 if they were not compressed."""
    return _ratio(reply.metrics["error"].sum(), reply.metrics["message"].sum()) if "error" in reply.metrics else 0.0


def _ratio(square: Tensor, of: Tensor) -> float:
    return math.sqrt(float(square) / float(of)) if float(of) > 0 else 0.0


def _cosine(u: Vec, v: Vec) -> float | None:
    both = math.sqrt(float(sq(u)) * float(sq(v)))
    return float(dot(u, v)) / both if both > 0 else None


def _quartiles(values: Tensor) -> list[float]:
    at = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64, device="cpu")
    found: list[float] = torch.quantile(values.double().cpu(), at).tolist()
    return found
