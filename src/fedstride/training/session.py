"""A run in progress. A round is one or more exchanges with a cohort, then a server step."""

from __future__ import annotations

import math
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Size, Tensor

from fedstride.algorithm import Algorithm
from fedstride.algorithm.privacy import Privacy
from fedstride.algorithm.sampling import Sampler
from fedstride.client.chunk import Samples
from fedstride.client.exchange import MOMENTS
from fedstride.client.local import Options
from fedstride.core.errors import Diverged, TooFew
from fedstride.core.model import Replica
from fedstride.core.normalise import INPUTS, Normalised, scaling_of
from fedstride.core.rows import State, Vec, dot, generator, norm, sq
from fedstride.engine import BEFORE, Clients, Order, Reply, Task
from fedstride.engine.admission import OWN_FAULT
from fedstride.training import snapshot
from fedstride.training.checkpoint import Checkpoints
from fedstride.training.guard import Guard
from fedstride.training.history import History, Row, unpack
from fedstride.training.result import Run
from fedstride.wire import Mean, feedback, send

NOTHING = 1e-10  # messages that are no longer have no length to measure others by
RAW = ("train_loss", "client_step", "client_steps", "trials", "failed", "compression")  # withheld under privacy


@dataclass
class Tally:
    """What the attempts at a round cost, and what was left out."""

    attempts: int = 1
    calls: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0
    forwards: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    rollbacks: int = 0
    lengths: dict[str, float] = field(default_factory=dict)  # root mean squares, by kind of message
    medians: dict[str, float] = field(default_factory=dict)
    measured: bool = False  # in the last attempt: the next one knows which messages are wild
    asked: list[int] = field(default_factory=list)  # in the last attempt, as the next two
    lost: dict[int, str] = field(default_factory=dict)
    wild: float | None = None  # the server's step, if it was taken back

    def count(self, reply: Reply) -> None:
        self.calls += 1
        self.bytes_up += reply.bytes_up
        self.gradients += int(reply.metrics["gradients"].sum())
        self.forwards += int(reply.metrics["forwards"].sum())
        self.refused += reply.refused
        self.lost |= reply.lost


@dataclass(frozen=True)
class Taken:
    """What an attempt at a round came to: the next state, and what there is to say of it."""

    x: Vec
    stats: Vec
    server: State
    drift: State
    down: State
    private: State
    mean: Mean
    metrics: dict[str, Tensor]
    answered: list[int]
    compression: float


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
    guard: Guard = field(default_factory=Guard)
    facts: dict[str, Any] = field(default_factory=dict)  # of the data, for the run
    scaling: Vec | None = field(init=False, default=None)  # of the inputs: measured before the first round
    measured: int = field(init=False, default=0)  # bytes that clients sent for it
    private: State = field(init=False)
    releases: int = field(init=False, default=0)  # of private sums
    usual: dict[str, float] = field(init=False)  # longest root mean square of a round's gradients and updates
    whole: bool = field(init=False, default=True)  # False while one round's state takes the place of another's
    weight: float = field(init=False)  # of the whole federation
    sizes: Sequence[int] = field(init=False)

    def __post_init__(self) -> None:
        a = self.algorithm
        self.moved, self.mean = torch.zeros_like(self.x), self.x
        self.weight = sum(self.task.weights)
        self.sizes = array("q", self.task.clients.sizes)  # samplers turn it into a tensor at once
        self.server = a.server.init(self.x)
        self.drift = a.drift.init(self.x) if a.drift is not None else {}
        self.usual = dict.fromkeys(("gradient", "update"), 0.0)
        self.private = a.privacy.init(self.x) if a.privacy is not None else {}
        self.down = {k: v[None] for k, v in feedback.memory(self.x).items()} if a.feeds_back_down else {}

    @property
    def round(self) -> int:
        """Finished rounds."""
        return len(self.history)

    @property
    def output(self) -> Vec:
        """What is evaluated and returned; training goes on from x."""
        return self._output(self.x, self.server, self.mean)

    def _output(self, x: Vec, server: State, mean: Vec) -> Vec:
        if self.algorithm.readout == "server":
            return self.algorithm.server.output(x, server)
        return mean if self.algorithm.readout == "average" else x

    def measure(self) -> None:
        """The exchange before the first round: every client is asked for the statistics of its inputs."""
        cohort = [(client, 1) for client in range(len(self.task.clients))]
        least = self.guard.least(len(cohort))
        device = torch.device("cpu") if self.x.device.type == "mps" else self.x.device  # mps has no float64
        nothing = torch.empty(0, dtype=torch.float64, device=device)
        for call in range(self.guard.retries + 1):
            reply = self.clients.exchange(Order(MOMENTS, nothing, self.stats[:0], {}, BEFORE, cohort, call=call))
            self.measured += reply.bytes_up
            answered = [client for client, _ in cohort if client not in reply.lost]
            reasons = Counter(reply.lost.values())
            if len(answered) >= least:
                counted, known = float(reply.fields[MOMENTS][0]) * reply.weight, sum(self.sizes[c] for c in answered)
                if abs(counted - known) < 0.5:
                    self.scaling = scaling_of(reply.fields[MOMENTS], self.x.dtype).to(self.x.device)
                    return
                reasons[f"sums over {counted:g} samples instead of {known}"] += 1  # a damaged message
        why = ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
        raise TooFew(
            f"normalise=True: {len(answered)} of {len(cohort)} clients sent the statistics of their inputs in the last of "
            f"{call + 1} attempts ({why}), and quorum={self.guard.quorum!r} asks for {least} without a damaged one. Go on "
            "later, or with a smaller guard=fs.Guard(quorum=...).",
            self.run(),
            0,
            list(reply.lost),
        )

    def advance(self) -> Row:
        """One round: it is tried again with other clients if too few of them could be used."""
        start, t = time.perf_counter(), self.round
        tally = Tally(bytes_up=self.measured if t == 0 else 0)
        taken = self._attempt(t, tally)
        while taken is None:
            self.clients.discard()
            self._refuse_hopeless(t, tally)
            tally.attempts += 1
            taken = self._attempt(t, tally)
        moved, iterates = taken.x - self.x, self.mean
        if self.algorithm.readout == "average":
            # Polynomial decay with eta = 8: Shamir, Zhang. ICML 2013, for non-smooth SGD.
            iterates = iterates + 9 / (t + 9) * (taken.x - iterates)
        loss, accuracy = None, None
        if self.test is not None and ((t + 1) % self.evaluate_every == 0 or t + 1 == self.task.rounds):
            output = self._output(taken.x, taken.server, iterates)
            loss, accuracy = self.clients.evaluate(output, taken.stats, self.test, self.scaling)
        mean, metrics = taken.mean, taken.metrics
        update = mean.fields.get("raw", mean.update)  # FedNova's clients upload Delta_i / a_i
        p = torch.tensor([self.task.weights[c] for c in taken.answered], dtype=torch.float64, device="cpu")
        p /= p.sum()

        def average(name: str) -> float:
            return float((p * metrics[name].double().cpu()).sum())

        row: Row = {
            "round": t + 1,
            "train_loss": average("train_loss"),
            "test_loss": loss,
            "test_accuracy": accuracy,
            "server_step": float(taken.server["eta"]),
            "client_step": average("client_step"),
            "client_steps": _quartiles(metrics["client_step"]),
            "trials": average("trials"),
            "failed": int(metrics["failed"].sum()),
            "update": float(norm(update)),
            "turn": _cosine(moved, self.moved),
            "drift": _drift(mean, update),
            "compression": taken.compression,
            "bytes_up": tally.bytes_up,
            "bytes_down": tally.bytes_down,
            "gradients": tally.gradients,
            "forwards": tally.forwards,
            "seconds": time.perf_counter() - start,
            "participants": len(taken.answered),
            "lost": len(tally.lost),
            "refused": dict(sorted(tally.refused.items())),
            "attempts": tally.attempts,
            "rollbacks": tally.rollbacks,
            "epsilon": self._epsilon(),
        }
        if self.algorithm.privacy is not None:
            row |= dict.fromkeys(RAW)
        self.whole = False
        self.clients.commit()
        self.x, self.stats, self.moved, self.mean = taken.x, taken.stats, moved, iterates
        self.server, self.drift, self.down, self.private = taken.server, taken.drift, taken.down, taken.private
        self.usual = {kind: max(known, tally.lengths.get(kind, 0.0)) for kind, known in self.usual.items()}
        self.history.append(row)
        self.whole = True
        return row

    def _attempt(self, t: int, tally: Tally) -> Taken | None:
        """The exchanges and the server step; None if they came to nothing. Nothing of the session changes."""
        a, x = self.algorithm, self.x
        cohort = self._cohort(t, tally.attempts)
        broadcast = {**a.server.broadcast(self.server), **self.drift, **self.private}
        if self.scaling is not None:
            broadcast[INPUTS] = self.scaling
        stats = len(self.stats) if self.task.buffers == "average" else 0
        down, errors = self.down, [0.0]
        tally.asked, tally.lost, tally.wild, tally.measured = [c for c, _ in cohort], {}, None, False
        numbers = len(x) + stats + sum(v.numel() for v in broadcast.values())
        tally.bytes_down += numbers * x.element_size() * len(cohort)

        if a.exchanges_gradients:
            least, limit = self.guard.least(len(cohort)), self.guard.limit(self._measure("gradient", tally))
            reply = self._exchange("gradients", broadcast, t, cohort, limit, tally)
            cohort = [one for one in cohort if one[0] not in reply.lost]  # who sent no gradient cannot be corrected
            if len(cohort) < least or self._some_explode("gradient", reply, tally):
                return None
            broadcast["gradient"], down, size, error = self._compressed_gradient(reply.fields["gradient"])
            errors += [_relative_error(reply), error]
            tally.bytes_down += size * len(cohort)

        least, limit = self.guard.least(len(cohort)), self.guard.limit(self._measure("update", tally))
        reply = self._exchange("updates", broadcast, t, cohort, min(limit, self.guard.norm or limit), tally)
        errors.append(_relative_error(reply))
        answered = [c for c, _ in cohort if c not in reply.lost]
        if len(answered) < least or self._some_explode("update", reply, tally):
            return None
        fields, private = dict(reply.fields), dict(self.private)
        new_stats = fields.pop("stats", self.stats)
        mean = Mean(fields, reply.weight / self.weight, len(answered), len(self.task.clients), self._shapes)
        if a.privacy is not None:
            mean = self._released(
                a.privacy, mean, len(answered), private, generator(self.task.seed, t, "noise", tally.attempts)
            )
        drift, server = dict(self.drift), dict(self.server)
        if a.drift is not None:
            a.drift.absorb(mean.fields, mean.share, drift)
        new = a.server.step(x, mean, server)
        usual = max(self.usual["update"], tally.lengths["update"])
        if not self.guard.sound(new, x, usual):
            tally.rollbacks, tally.wild = 1, float(server["eta"])
            server = {**self.server, "eta": torch.ones_like(self.server["eta"])}
            new = x - mean.fields.get("raw", mean.update)  # the plain mean of the clients' models
            if not self.guard.sound(new, x, usual) or self._rolled_back_too_often():
                return None
        return Taken(new, new_stats, server, drift, down, private, mean, reply.metrics, answered, max(errors))

    def _exchange(
        self, kind: str, broadcast: State, t: int, cohort: list[tuple[int, int]], limit: float, tally: Tally
    ) -> Reply:
        reply = self.clients.exchange(Order(kind, self.x, self.stats, broadcast, t, cohort, limit, tally.calls))
        tally.count(reply)
        return reply

    def _released(self, privacy: Privacy, mean: Mean, answered: int, private: State, source: torch.Generator) -> Mean:
        """The mean as it may be known; the denominator does not depend on who answered."""
        expected = privacy.expected(self.sampler, mean.clients)
        known = {k: v for k, v in mean.fields.items() if k == "update" or k in self.algorithm.needs}
        fields = privacy.release(known, answered, expected, private, source)
        privacy.follow(fields, private)
        self.releases += 1
        return replace(mean, fields=fields, share=expected / mean.clients, participants=expected)

    def _epsilon(self) -> float | None:
        privacy = self.algorithm.privacy
        return None if privacy is None else privacy.epsilon(self.sampler, len(self.task.clients), self.releases)

    def _rolled_back_too_often(self) -> bool:
        last = self.history[-self.guard.rollbacks :] if self.guard.rollbacks else []
        return len(last) == self.guard.rollbacks and all(row["rollbacks"] for row in last)

    def _measure(self, kind: str, tally: Tally) -> float:
        """A length that is not wild: of the model, and of the messages so far; in the first round, of the cohort's median."""
        known = self.usual[kind]
        if known < NOTHING:
            return tally.medians.get(kind, 0.0)
        return max(known, float(norm(self.x))) if kind == "update" else known

    def _some_explode(self, kind: str, reply: Reply, tally: Tally) -> bool:
        """Whether messages of the first round, which has no measure yet, are wild beside the others'; then there is one."""
        lengths = reply.metrics["square"].double().sqrt()
        tally.lengths[kind] = float(lengths.square().mean().sqrt())
        median, most = float(lengths.median()), float(lengths.max())
        if self.usual[kind] >= NOTHING or kind in tally.medians or not most > self.guard.limit(median):
            return False
        tally.medians[kind], tally.measured = median, True
        tally.refused["too long"] += int((lengths > self.guard.limit(median)).sum())
        return True

    def _refuse_hopeless(self, t: int, tally: Tally) -> None:
        """Stop if the round was tried often enough, or would only be repeated."""
        same = self._cohort(t, tally.attempts + 1) == self._cohort(t, tally.attempts)
        repeated = same and not tally.measured and set(tally.lost.values()) <= set(OWN_FAULT)
        enough = tally.wild is not None and self._rolled_back_too_often()
        if tally.attempts <= self.guard.retries and not repeated and not enough:
            return
        broken = [c for c, why in tally.lost.items() if why in OWN_FAULT]
        where = f"The last good model, of round {t}, and the history are in error.run."
        if tally.wild is not None or tally.measured or (broken and 2 * len(broken) >= len(tally.lost)):
            step = None if tally.wild is None else f"the server step of size {tally.wild:.3g}"
            what = step or (f"the model of client {broken[0]}" if broken else "the models of some clients")
            raise Diverged(
                f"The run diverged in round {t + 1}: {what} left the finite numbers or exploded. {where} "
                "Take smaller steps, or a rule that finds them (fs.recipes.fedsls(), delta_sgd()).",
                self.run(),
                t + 1,
                broken,
            )
        why = ", ".join(f"{reason}: {count}" for reason, count in sorted(Counter(tally.lost.values()).items()))
        raise TooFew(
            f"Round {t + 1} was given up after {tally.attempts} attempts: {len(tally.asked) - len(tally.lost)} of "
            f"{len(tally.asked)} clients answered in the last one ({why}), and quorum={self.guard.quorum!r} asks for "
            f"{self.guard.least(len(tally.asked))}. {where} Go on later, or with a smaller guard=fs.Guard(quorum=...).",
            self.run(),
            t + 1,
            list(tally.lost),
        )

    def run(self) -> Run:
        """What there is so far, as a user gets it."""
        model = Replica(self.task.model, self.task.moving).exported(self.output, self.stats)
        engine = self.clients.about()
        if self.scaling is not None:
            model, engine = Normalised.by(model, self.scaling).eval(), {**engine, "normalise": True}
        return Run(model, self.x, self.history, self.algorithm, engine, self.facts)

    def follow(self) -> Run:
        """Work for the process that leads, until the run is over."""
        outcome = self.clients.follow(self.test)  # type: ignore[attr-defined]
        snapshot.adopt(self, outcome, list(unpack(bytes(outcome[0]["history"].numpy()))))
        return self.run()

    def save(self, when: Checkpoints) -> None:
        snapshot.save(self, self._about, when)

    def resume(self, path: Path) -> None:
        snapshot.resume(self, self._about, path)

    @cached_property
    def _shapes(self) -> tuple[Size, ...]:
        return tuple(Replica(self.task.model).shapes)

    @cached_property
    def _about(self) -> dict[str, Any]:
        return snapshot.about(self)

    def _cohort(self, t: int, attempt: int) -> list[tuple[int, int]]:
        """(client, local steps), longest first: who starts last should not be who ends last."""
        sizes, most = self.sizes, self.task.batch_size
        again = () if attempt == 1 else (attempt,)
        drawn = sorted(self.sampler.draw(sizes, generator(self.task.seed, t, "cohort", *again)))
        cohort = [(client, self.steps(t, client)) for client in drawn]
        return sorted(cohort, key=lambda one: -one[1] * min(sizes[one[0]], most or sizes[one[0]]))

    def _compressed_gradient(self, mean: Vec) -> tuple[Vec, State, int, float]:
        """(what arrives, what the server remembers, bytes, relative error)."""
        a = self.algorithm
        source = [generator(self.task.seed, self.round, "down")]
        sent, past, size = send(mean[None], a.down, a.feeds_back_down, self.down, source)  # 004 eq. (142)
        error = past.get("residual", mean[None] - sent)
        return sent[0], past or self.down, size[0], _ratio(sq(error), sq(sent + error))


def _relative_error(reply: Reply) -> float:
    """Of the clients' compressed messages, 0 if they were not compressed."""
    return _ratio(reply.metrics["error"].sum(), reply.metrics["message"].sum()) if "error" in reply.metrics else 0.0


def _ratio(square: Tensor, of: Tensor) -> float:
    return math.sqrt(float(square) / float(of)) if float(of) > 0 else 0.0


def _drift(mean: Mean, update: Vec) -> float | None:
    """None where the squares were not released."""
    return float((mean.square - sq(update)).clamp(min=0).sqrt()) if "square" in mean.fields else None


def _cosine(u: Vec, v: Vec) -> float | None:
    both = math.sqrt(float(sq(u)) * float(sq(v)))
    return float(dot(u, v)) / both if both > 0 else None


def _quartiles(values: Tensor) -> list[float]:
    at = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64, device="cpu")
    found: list[float] = torch.quantile(values.double().cpu(), at).tolist()
    return found
