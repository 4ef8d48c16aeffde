"""Recorders: parts that pass all work on to another part and keep what they saw, for laws about single steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedstride.client.context import Context
from fedstride.client.exchange import Exchange
from fedstride.client.step import Step
from fedstride.core.rows import Col, Rows, State, Vec
from fedstride.engine import Clients, Local, Task
from fedstride.oracle import Oracle
from fedstride.server import Server
from fedstride.wire import Mean


@dataclass(frozen=True)
class RecordedServer:
    """A server rule that records x, Dbar and S of every round."""

    rule: Server
    seen: list[tuple[Vec, Vec, Tensor]] = field(default_factory=list)
    needs: ClassVar[tuple[str, ...]] = ("square",)

    def init(self, x: Vec) -> State:
        return self.rule.init(x)

    def broadcast(self, state: State) -> State:
        return self.rule.broadcast(state)

    def step(self, x: Vec, mean: Mean, state: State) -> Vec:
        self.seen.append((x, mean.update, mean.square))
        return self.rule.step(x, mean, state)

    def output(self, x: Vec, state: State) -> Vec:
        return self.rule.output(x, state)


@dataclass(frozen=True)
class Taken:
    """One local step of one client."""

    round: int
    client: int
    y: Vec  # before the step
    loss: float
    g: Vec  # the gradient that the rule received, with all corrections
    eta: float
    move: Vec


@dataclass(frozen=True)
class RecordedStep:
    """A step rule that records every local step. For engines with one client per chunk, such as `Watched`."""

    rule: Step
    seen: list[Taken] = field(default_factory=list)

    def init(self, x: Vec, context: Context) -> State:
        (client,) = context.clients
        now = {"client": client, "round": context.round}
        return {**self.rule.init(x, context), **{k: torch.full_like(context.size, v) for k, v in now.items()}}

    def step(self, W: Rows, L: Col, G: Rows, state: State, oracle: Oracle) -> Rows:
        y, g = W[0].clone(), G[0].clone()
        move = self.rule.step(W, L, G, state, oracle)
        self.seen.append(
            Taken(int(state["round"]), int(state["client"]), y, float(L), g, float(state["eta"]), move[0].clone())
        )
        return move


@dataclass
class Watched:
    """A local engine with one client per chunk, which records the clients' memory after every round."""

    leads: ClassVar[bool] = True
    memories: list[State] = field(default_factory=list)  # by round; keys such as "0/residual"

    def open(self, task: Task, exchanges: Mapping[str, Exchange], fresh: Callable[[Vec], State]) -> Clients:
        clients = Local(workers=1, chunk=1).open(task, exchanges, fresh)
        commit = clients.commit

        def commit_and_record() -> None:
            commit()
            found = [clients.memory(client) for client in range(len(task.clients))]
            self.memories.append({key.removeprefix("memory/"): v.clone() for one in found for key, v in one.items()})

        clients.commit = commit_and_record  # type: ignore[method-assign]
        return clients


@dataclass(frozen=True)
class Always:
    """A sampler that draws the same cohort in every round."""

    cohort: tuple[int, ...]

    def check(self, clients: int) -> None:
        pass

    def draw(self, sizes: Sequence[int], source: torch.Generator) -> list[int]:
        return list(self.cohort)
