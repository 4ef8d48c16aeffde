"""train(): rounds, history, checkpoints. A round is one or more exchanges with a cohort, then a server step."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstride import check, checkpoint
from fedstride.algorithm import Algorithm
from fedstride.check import LocalSteps
from fedstride.client.local import Options
from fedstride.data.federation import Client, federation
from fedstride.engine import Clients, Engine, Task
from fedstride.engine import engine as engine_of
from fedstride.engine.local import one_thread
from fedstride.errors import Diverged, InvalidInput
from fedstride.history import History, Row
from fedstride.losses import Loss
from fedstride.model import Replica
from fedstride.rows import State, Vec, generator, sq
from fedstride.sampling import Sampler, sampler
from fedstride.wire import Mean, feedback, send
from fedstride.work import send_gradients
from fedstride.work import train as train_locally


@dataclass(frozen=True)
class Event:
    """What a callback gets: before the first round (0) and after each."""

    round: int
    x: Vec  # the training iterate, flat, in the order of the trainable model.parameters()
    metrics: Row


@dataclass
class Run:
    """A finished run, or what a divergence left of it."""

    model: nn.Module
    x: Vec
    history: History
    algorithm: Algorithm | None = None

    def save(self, folder: str | Path) -> Path:
        """Write model.safetensors, run.safetensors and history.jsonl into a folder."""
        folder = Path(folder)
        weights = self.model.state_dict()
        trainable = [name for name, p in self.model.named_parameters() if p.requires_grad]
        about = {"names": list(weights), "trainable": trainable}
        checkpoint.write_tensors(folder / "model.safetensors", weights, about)
        checkpoint.write_tensors(folder / "run.safetensors", {"x": self.x}, {"algorithm": repr(self.algorithm)})
        lines = "".join(json.dumps(row) + "\n" for row in self.history)
        checkpoint.replace_file(folder / "history.jsonl", lambda new: new.write_text(lines))
        return folder


class Weights(nn.Module):
    """The weights of a saved model, under their names; fs.load(folder, model) gives one that computes."""

    def __init__(self, tensors: dict[str, Tensor], trainable: Sequence[str]) -> None:
        super().__init__()
        for name, value in tensors.items():
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            if name in trainable:
                owner.register_parameter(last, nn.Parameter(value))
            else:
                owner.register_buffer(last, value)

    def forward(self, *inputs: Any) -> Tensor:
        raise InvalidInput("this model has weights and no code; load the run with fs.load(folder, model) to compute.")


def load(folder: str | Path, model: nn.Module | None = None) -> Run:
    """A saved run. Its weights go into a copy of the model, if one is given; a file holds no code, so none is run."""
    folder = Path(folder)
    for name in ("model.safetensors", "run.safetensors", "history.jsonl"):
        if not (folder / name).is_file():
            raise InvalidInput(f"load: {folder} holds no {name}; expected a folder that run.save() wrote.")
    found, meta = checkpoint.read_tensors(folder / "model.safetensors")
    weights = {name: found[name] for name in meta["names"]}
    own = Weights(weights, meta["trainable"]) if model is None else copy.deepcopy(model)
    try:
        own.load_state_dict(weights)
    except RuntimeError as error:
        raise InvalidInput(f"load: the weights in {folder} do not fit the model: {error}") from error
    x = checkpoint.read_tensors(folder / "run.safetensors")[0]["x"]
    rows = (folder / "history.jsonl").read_text().splitlines()
    return Run(own.eval(), x, History(json.loads(row) for row in rows))


@dataclass
class Session:
    """A run in progress: everything that the next round depends on."""

    algorithm: Algorithm
    options: Options
    task: Task
    clients: Clients
    sampler: Sampler
    steps: Callable[[int, int], int]
    test: Client | None
    x: Vec
    stats: Vec
    server: State = field(init=False)
    drift: State = field(init=False)
    down: State = field(init=False)
    history: History = field(init=False, default_factory=History)

    def __post_init__(self) -> None:
        a = self.algorithm
        self.server = a.server.init(self.x)
        self.drift = a.drift.init(self.x) if a.drift is not None else {}
        self.down = {k: v[None] for k, v in feedback.memory(self.x).items()} if a.feeds_back_down else {}

    @property
    def round(self) -> int:
        """Finished rounds."""
        return len(self.history)

    @property
    def output(self) -> Vec:
        return self.algorithm.server.output(self.x, self.server)

    def advance(self) -> Row:
        """One round."""
        start = time.perf_counter()
        a, x, t = self.algorithm, self.x, self.round
        sizes = [len(c) for c in self.task.clients]
        chosen = sorted(self.sampler.draw(sizes, generator(self.task.seed, t, "cohort")))
        cohort = [(c, self.steps(t, c)) for c in chosen]
        item = x.element_size()
        broadcast = {**a.server.broadcast(self.server), **self.drift}
        down = (len(x) + len(self.stats) + sum(v.numel() for v in broadcast.values())) * item
        up, gradients, forwards = 0, 0, 0

        if a.exchanges_gradients:
            reply = self.clients.exchange(send_gradients(a, self.options), x, self.stats, broadcast, t, cohort)
            self.clients.commit()
            broadcast["gradient"], size = self._compressed_gradient(reply.fields["gradient"])
            down, up = down + size, reply.bytes_up
            gradients, forwards = int(reply.metrics["gradients"].sum()), int(reply.metrics["forwards"].sum())

        reply = self.clients.exchange(train_locally(a, self.options), x, self.stats, broadcast, t, cohort)
        broken = [c for c, ok in zip(chosen, reply.metrics["finite"].tolist(), strict=True) if not ok]
        if broken:
            self._stop(t, broken, f"the model of client {broken[0]} became non-finite in its local steps")
        stats = reply.fields.pop("stats", self.stats)
        mean = Mean(reply.fields, reply.weight / sum(self.task.weights), len(chosen), len(sizes))
        drift, server = dict(self.drift), dict(self.server)
        if a.drift is not None:
            a.drift.absorb(mean.fields, mean.share, drift)
        new = a.server.step(x, mean, server)
        if not bool(torch.isfinite(new).all()):
            self._stop(t, [], f"the server step of size {float(server['eta']):.3g} left the finite numbers")
        self.clients.commit()
        self.x, self.stats, self.drift, self.server = new, stats, drift, server

        loss, accuracy = (None, None) if self.test is None else self.clients.evaluate(self.output, stats, self.test)
        p = torch.tensor([self.task.weights[c] for c in chosen], dtype=torch.float64)
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
            "trials": average("trials"),
            "failed": int(reply.metrics["failed"].sum()),
            "drift": float((mean.square - sq(mean.update)).clamp(min=0).sqrt()),
            "bytes_up": up + reply.bytes_up,
            "bytes_down": down * len(chosen),
            "gradients": gradients + int(reply.metrics["gradients"].sum()),
            "forwards": forwards + int(reply.metrics["forwards"].sum()),
            "seconds": time.perf_counter() - start,
            "participants": len(chosen) - len(reply.lost),
            "lost": len(reply.lost),
        }
        self.history.append(row)
        return row

    def run(self) -> Run:
        """What there is so far, as a user gets it."""
        model = Replica(self.task.model, self.task.moving).exported(self.output, self.stats)
        return Run(model, self.x, self.history, self.algorithm)

    def save(self, path: Path) -> None:
        parts = {"server": self.server, "drift": self.drift, "down": self.down, "clients": self.clients.state()}
        tensors = {f"{name}/{k}": v for name, part in parts.items() for k, v in part.items()}
        meta = {"kind": "checkpoint", "about": self._about(), "history": list(self.history)}
        checkpoint.write_tensors(path, {"x": self.x, "stats": self.stats, **tensors}, meta)

    def resume(self, path: Path) -> None:
        tensors, meta = checkpoint.read_tensors(path)
        for name, value in self._about().items():
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
        self.server, self.drift, self.down = parts["server"], parts["drift"], parts["down"]
        self.clients.restore(parts["clients"])
        self.history = History(meta["history"])

    def _about(self) -> dict[str, Any]:
        task = self.task
        return {
            "algorithm": repr(self.algorithm),
            "options": repr(self.options),
            "sampler": repr(self.sampler),
            "seed": task.seed,
            "batch_size": task.batch_size,
            "parameters": len(self.x),
            "dtype": str(self.x.dtype),
            "clients": len(task.clients),
            "buffers": task.buffers,
        }

    def _compressed_gradient(self, mean: Vec) -> tuple[Vec, int]:
        a = self.algorithm
        source = [generator(self.task.seed, self.round, "down")]
        sent, past, size = send(mean[None], a.down, a.feeds_back_down, self.down, source)  # 004 eq. (142)
        self.down = past or self.down
        return sent[0], size[0]

    def _stop(self, t: int, clients: list[int], what: str) -> None:
        raise Diverged(
            f"The run diverged in round {t + 1}: {what}. The last finite model, of round {t}, and the history are in "
            "error.run. Take smaller steps, or a rule that finds them (fs.recipes.fedsls(), delta_sgd()).",
            self.run(),
            t + 1,
            clients,
        )


def train(
    model: nn.Module,
    loss: str | Loss,
    clients: Any,
    algorithm: str | Algorithm = "auto",
    *,
    rounds: int,
    cohort: int | float | Sampler | None = None,
    local_steps: LocalSteps | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    weights: str | Sequence[float] = "uniform",
    test: Any = None,
    seed: int = 0,
    engine: str | Engine = "auto",
    checkpoint: str | Path | None = None,
    callbacks: Sequence[Callable[[Event], object]] = (),
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    buffers: str = "average",
    device: str | torch.device | None = None,
) -> Run:
    """Train a model on federated data.

    model: any nn.Module; it is copied, never changed. Frozen parameters stay frozen.
    loss: (output, target) -> scalar over the batch, or a name such as "cross_entropy" or "mse".
    clients: one (inputs, targets) pair of tensors, or one torch Dataset, per client; or a Federation.
    algorithm: a name, fs.recipes.NAME(...), or fs.Algorithm(...).
    cohort: clients per round: None = all, a number, a fraction, or a sampler such as fs.Bernoulli(0.1).
    local_steps | epochs: work per round: a number, one per client, or a function (round, client); or passes over the
        client's data, which may be fractional. Default: one epoch.
    batch_size: samples per step; None = the full batch.
    weights: of the clients in every mean: "uniform", "samples", or one number per client.
    test: (inputs, targets) to evaluate the returned model on after each round.
    engine: "auto", "local", or an engine such as fs.engine.Local(workers=2).
    checkpoint: a folder; the run is saved there after each round and goes on from there when called again.
    callbacks: functions of an Event with .round, .x and .metrics.
    weight_decay, clip_norm: part of every local loss; largest norm of its gradient, before any drift correction.
    buffers: BatchNorm's statistics: "average" over clients, "local" to each, or "frozen".
    """
    chosen = check.algorithm_of(algorithm)
    federated = federation(clients)
    if isinstance(model, nn.Module) and device is not None:
        model = copy.deepcopy(model).to(device)
    rounds, seed = check.whole("rounds", rounds), check.whole("seed", seed, least=0)
    batch_size = None if batch_size is None else check.whole("batch_size", batch_size)
    for i, callback in enumerate(callbacks):
        if not callable(callback):
            raise InvalidInput(f"callbacks[{i}]={callback!r} is not callable; expected a function of one event.")
    start = Replica(model) if isinstance(model, nn.Module) else None
    held_out = check.test_of(test, federated, start.dtype if start else torch.float32)
    probed = check.try_out(model, loss, federated, held_out)
    steps = check.steps_of(local_steps, epochs, batch_size, federated.sizes)
    check.fits(chosen, model, probed, federated, steps, batch_size, cohort, buffers, clip_norm, weight_decay)
    task = Task(
        model=model,
        loss=probed.loss,
        reduction=probed.reduction,
        clients=federated,
        weights=check.weights_of(weights, federated.sizes),
        batch_size=batch_size,
        seed=seed,
        rounds=rounds,
        moving=probed.moving,
        buffers=buffers,
        random=probed.random,
    )
    replica = Replica(model, () if buffers == "frozen" else probed.moving)
    x, stats = replica.row(), replica.stats()
    at_work = engine_of(engine).open(task, chosen.memory)
    session = Session(
        chosen,
        Options(weight_decay, clip_norm),
        task,
        at_work,
        sampler(cohort, len(federated)),
        steps,
        held_out,
        x,
        stats,
    )
    return _rounds(session, rounds, checkpoint, callbacks)


def _rounds(
    session: Session, rounds: int, folder: str | Path | None, callbacks: Sequence[Callable[[Event], object]]
) -> Run:
    path = None if folder is None else Path(folder) / checkpoint.NAME
    try:
        if path is not None and path.is_file():
            session.resume(path)
        else:
            for callback in callbacks:
                callback(Event(0, session.x.clone(), {"round": 0}))
        while session.round < rounds:
            with one_thread():
                row = session.advance()
            if path is not None:
                session.save(path)
            for callback in callbacks:
                callback(Event(session.round, session.x.clone(), row))
        return session.run()
    finally:
        session.clients.close()
