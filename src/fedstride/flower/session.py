"""The run of a strategy: the training state on the server, advanced by the replies that Flower's loop collects."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from torch import nn

import fedstride
from fedstride.algorithm import Algorithm
from fedstride.algorithm.sampling import sampler
from fedstride.algorithm.text import text_of
from fedstride.app.supernode.retry import retry_soon
from fedstride.client.exchange import exchanges
from fedstride.client.local import LocalOptions
from fedstride.core.errors import InvalidInput
from fedstride.data.federation import elsewhere
from fedstride.engine.flower.clients import Flower, FlowerClients, left_out
from fedstride.engine.flower.nodes import WAIT, log
from fedstride.engine.flower.server import look_at_counts
from fedstride.engine.local import one_thread
from fedstride.engine.protocol import Order
from fedstride.flower.layout import Layout, checked_initial, described, difference, guessed, tensors_of, unknown
from fedstride.flower.members import Members, Relay, Unchanged
from fedstride.training import validate
from fedstride.training.checkpoint import Checkpoints, locked
from fedstride.training.guard import Guard
from fedstride.training.history import Row
from fedstride.training.resume import Recorder
from fedstride.training.retry import complete_round
from fedstride.training.round import broadcast_of, choose_cohort
from fedstride.training.rounds import Callbacks, amended, asked_to_stop, saved_when_it_fails
from fedstride.training.setup import Setup, task_of
from fedstride.training.state import TrainingState, initial_state, read_out
from fedstride.training.watch import Watch

SAY = 10.0  # seconds between log lines
NOT_REPORTED = ("client_step", "client_steps", "trials", "failed", "gradients", "forwards")  # by unchanged clients


@dataclass(frozen=True)
class Plan:
    """The settings of a strategy, checked."""

    name: str  # of the rule, for messages
    algorithm: Algorithm
    unchanged: bool  # whether the clients have their own training loop
    fraction: float
    least: int  # clients of a round, at least
    available: int  # nodes to wait for
    weights: str
    key: str  # metric with the number of samples
    names: tuple[str, str]  # of the records with the arrays and the configuration
    buffers: tuple[str, ...]
    seed: int
    guard: Guard
    checkpoint: Checkpoints | None
    callbacks: Callbacks


class Session:
    """One run of a strategy. `begin` before a round's messages are sent, `finish` with the replies."""

    def __init__(self, plan: Plan, grid: Grid, initial: ArrayRecord, rounds: int, timeout: float) -> None:
        self.plan, self.grid, self.rounds, self.timeout = plan, grid, rounds, timeout
        self.watch = Watch()
        retry_soon()
        arrays = checked_initial(initial)
        wait_for_nodes(grid, plan.available, timeout)
        self.relay = Relay(grid, plan.names, initial, ConfigRecord(), plan.name)
        self.members = self._gathered() if not plan.unchanged else None
        self.layout = self._layout(arrays)
        self.setup = self._setup(self.members or self._unchanged([0]))
        x, stats = self.layout.rows(arrays)
        self.state: TrainingState = initial_state(plan.algorithm, x, stats)
        self.recorder = None if plan.checkpoint is None else Recorder(self.setup, plan.checkpoint, self.state)
        self.shown = initial  # the arrays that the strategy returned last: the read-out of the state

    def lock(self) -> AbstractContextManager[None]:
        """Lock the folder of the checkpoints."""
        return nullcontext() if self.plan.checkpoint is None else locked(self.plan.checkpoint.path)

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one."""
        if self.recorder is None:
            return
        self.state = self.recorder.resume()
        if self.state.round > self.rounds:
            raise InvalidInput(
                f"num_rounds={self.rounds}, and the checkpoint in {self.recorder.when.path} has {self.state.round} rounds "
                "already; ask for at least as many, or use another folder."
            )
        if self.state.round:
            self.shown = self._read_out()
            log.info("continuing after round %d, from %s", self.state.round, self.recorder.when.path)

    def take(self, arrays: ArrayRecord) -> None:
        """Continue from other arrays than those returned last, such as with noise that a subclass or wrapper added."""
        found = tensors_of(arrays, "arrays")
        wrong = difference(found, self.layout.initial)
        if wrong is not None:
            raise InvalidInput(f"arrays: {wrong}; expected arrays like initial_arrays.")
        x, stats = self.layout.rows(found)
        self.state, self.shown = replace(self.state, x=x, stats=stats), arrays

    def starts(self) -> bool:
        """Call the callbacks before the first round, and return whether none of them asks to end the run."""
        return self.state.round > 0 or not self._asked_to_stop({"round": 0})

    def goes_on(self, row: Row) -> bool:
        """Take the row of the last round into the history, after the callbacks have seen it, and save the run if that is due.

        Returns:
            Whether no callback asks to end the run.
        """
        self.state = amended(self.state, row)
        with saved_when_it_fails(self.recorder, self.state):
            stopped = self._asked_to_stop(row)
        self.state = amended(self.state, row)
        if self.recorder is not None and (stopped or self.recorder.due(self.state)):
            with self.watch.phase("checkpoints"):
                self.recorder.save(self.state)
        return not stopped

    def _asked_to_stop(self, row: Row) -> bool:
        return asked_to_stop(self.setup, self.state, row, self.plan.callbacks, _no_model)

    def begin(self, number: int, arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        """Return the messages of a round; arrays: those returned last, or others to continue from."""
        if number != self.state.round + 1:
            raise InvalidInput(
                f"server_round={number} follows round {self.state.round}; expected {self.state.round + 1}. Call the strategy's "
                "own start(), which resumes from checkpoints, and use a new strategy for another run."
            )
        if arrays is not self.shown:
            self.take(arrays)
        if self.plan.unchanged:
            self.setup = self._setup(self._unchanged(list(self.grid.get_node_ids())))
        self.relay.arrays, self.relay.config = self.layout.record(self.state.x, self.state.stats), config
        order = self._first_order()
        nodes = self.nodes
        online = nodes.online([client for client, _ in order.cohort], self.timeout)
        here = [position for position, (client, _) in enumerate(order.cohort) if client in online]
        return nodes.messages(self.clients.messages(order, here))

    def exchange(self, messages: Iterable[Message], phase: str) -> list[Message]:
        """Send messages, and return the replies that arrive in time."""
        with self.watch.phase(phase):
            return self.relay.replies.send_and_receive(messages, self.timeout)

    def finish(self, replies: Sequence[Message]) -> ArrayRecord:
        """Advance the state by a round, and return the arrays to evaluate. Later exchanges of the round are made here."""
        nodes = self.nodes
        nodes.handed = list(replies)
        with one_thread():
            self.state, row = complete_round(self.setup, self.state)
        self.clients.commit()
        if isinstance(nodes, Unchanged):
            row |= {**dict.fromkeys(NOT_REPORTED), "bytes_up": nodes.received}
            self.state = replace(self.state, history=self.state.history.amended(row))
        self.shown = self._read_out()
        return self.shown

    @property
    def nodes(self) -> Members | Unchanged:
        return cast(Members | Unchanged, self.clients.nodes)

    @property
    def clients(self) -> FlowerClients:
        return cast(FlowerClients, self.setup.clients)

    def _read_out(self) -> ArrayRecord:
        return self.layout.record(read_out(self.plan.algorithm, self.state), self.state.stats)

    def _first_order(self) -> Order:
        """Return the order that training.round.advance() sends first."""
        state, setup = self.state, self.setup
        kind, cohort = next(iter(self.clients.exchanges)), choose_cohort(setup, state, 1)
        return Order(kind, state.x, state.stats, broadcast_of(setup, state), state.round, cohort)

    def _gathered(self) -> Members:
        """Ask all nodes to describe themselves, and wait for their answers."""
        plan, sent = (
            self.plan,
            {"algorithm": text_of(self.plan.algorithm), "seed": self.plan.seed, "rounds": self.rounds},
        )
        many = len(list(self.grid.get_node_ids()))
        expected = {"fedstride": fedstride.__version__}
        nodes = Members(cast(Grid, self.relay), json.dumps(sent, sort_keys=True), many, lambda moving: expected)
        nodes.left_out = set() if plan.checkpoint is None else left_out(plan.checkpoint.path, many)
        nodes.gather(self.timeout, plan.available)
        self.relay.gathering = False
        log.info("%s: %d clients are here", plan.name, len(nodes.at))
        if plan.weights == "samples":
            look_at_counts(nodes.sizes, nodes.label, 'weights="samples"')
        return nodes

    def _unchanged(self, ids: Sequence[int]) -> Unchanged:
        plan, nodes = self.plan, dict(enumerate(sorted(ids)))
        key = plan.key if plan.weights == "samples" else None
        given: dict[str, Any] = {"layout": self.layout, "weights": [1.0] * len(nodes), "key": key}
        return Unchanged(cast(Grid, self.relay), "{}", len(nodes), lambda moving: {}, at=nodes, **given)

    def _layout(self, arrays: dict[str, Any]) -> Layout:
        if self.members is None:
            return guessed(arrays, self.plan.buffers)
        first = self.members.abouts[min(self.members.abouts)]
        return described(arrays, first.identity["parameters"], first.found.moving)

    def _setup(self, nodes: Members | Unchanged) -> Setup:
        plan, a, n = self.plan, self.plan.algorithm, nodes.clients
        found = replace(nodes.found, moving=self.layout.buffers)
        if isinstance(nodes, Members):
            sizes, steps, batch_size = nodes.sizes, nodes.steps, nodes.batch_size
            weights = validate.weights_of(plan.weights, sizes)
        else:
            sizes, steps, batch_size, weights = [1] * n, [1] * n, None, nodes.weights
        given: dict[str, Any] = {"model": self.layout.model(), "loss": unknown, "clients": elsewhere(sizes, found)}
        given |= {"weights": weights, "batch_size": batch_size, "seed": plan.seed, "rounds": self.rounds}
        given |= {"buffers": "average", "keep": 1 if plan.checkpoint is None else plan.checkpoint.keep}
        task, options = task_of(a, found, given), LocalOptions()
        cohorts = sampler(min(n, max(int(n * plan.fraction), plan.least)), n)
        validate.quorum(plan.guard, cohorts, a.privacy is not None)
        validate.fits(a, task, options, cohorts, lambda round, client: steps[client], tested=False)
        clients = Flower(nodes, a, self.timeout).open(task, exchanges(a, options), a.memory)
        given = {"guard": plan.guard, "watch": self.watch}
        return Setup(a, options, task, clients, cohorts, lambda round, client: steps[client], **given)


def _no_model() -> nn.Module:
    raise InvalidInput("event.model: the server of a strategy knows the arrays of the model only; use event.x.")


def wait_for_nodes(grid: Grid, least: int, seconds: float) -> None:
    """Wait until this many nodes are connected.

    Raises:
        InvalidInput: if they are not after this time.
    """
    end = time.monotonic() + seconds
    said = time.monotonic()
    while (here := len(list(grid.get_node_ids()))) < least:
        now = time.monotonic()
        if now > end:
            raise InvalidInput(
                f"min_available_nodes={least}, but after {seconds:g} s {here} nodes are connected. Start the others, or ask "
                "for fewer."
            )
        if now > said + SAY:
            said = now
            log.info("%d of %d nodes are connected; waiting for the others", here, least)
        time.sleep(WAIT)
