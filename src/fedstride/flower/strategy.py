"""Strategy: any fedstride algorithm as a strategy of Flower's Message API."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from fedstride.algorithm import Algorithm
from fedstride.client.gradient import Minibatch
from fedstride.client.objective import Plain
from fedstride.client.step import Constant
from fedstride.core.errors import InvalidInput, Refused, nearest, positive
from fedstride.engine.flower.nodes import log
from fedstride.flower.members import Unchanged, agreeing, outcome
from fedstride.flower.session import Plan, Session
from fedstride.training import validate
from fedstride.training.checkpoint import Checkpoints
from fedstride.training.guard import Guard
from fedstride.training.history import History, Row
from fedstride.training.rounds import Event, check_callbacks
from fedstride.training.watch import ROUNDS

Aggregate = Callable[[list[RecordDict], str], MetricRecord]
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")
COLUMN = "flower"  # of the history: the metrics of Flower's Result
METRICS = ("train_loss", "server_step", "client_step", "update", "drift", "participants", "lost")  # of a round
TIMEOUT = 3600.0
UNKNOWN = 2**31  # rounds of a run that another strategy leads


class Strategy(FlowerStrategy):
    """A fedstride algorithm as a strategy: `strategy.start(grid=..., initial_arrays=..., num_rounds=...)`.

    Args:
        algorithm: a name such as "scaffold", also with arguments, "fedavg(lr=0.1)"; fs.recipes.NAME(...); or fs.Algorithm(...).
        training: where the clients' steps come from. "fedstride": the function under @app.train() returns
            fedstride.flower.train(...). "app": the app's own training loop, unchanged; the algorithm's server rule is used.
        fraction_train: share of the nodes that train in a round.
        fraction_evaluate: share of the nodes that evaluate after a round; 0 = none.
        min_train_nodes: smallest number of nodes that train in a round.
        min_evaluate_nodes: smallest number of nodes that evaluate after a round.
        min_available_nodes: nodes to wait for before the first round. With training="fedstride", those connected then are the
            clients of the run; nodes that do not describe themselves properly are left out if this many remain.
        weighted_by_key: the metric with a client's number of samples, in replies of unchanged clients and of evaluations.
        arrayrecord_key: name of the record with the arrays.
        configrecord_key: name of the record with the configuration.
        train_metrics_aggr_fn: as in Flower's FedAvg, for training="app": makes the metrics of a round.
        evaluate_metrics_aggr_fn: as in Flower's FedAvg: makes the metrics of an evaluation.
        weights: "samples" = a client's weight is its number of samples, as in Flower's FedAvg; "uniform" = all weigh the same.
        buffers: for training="app": patterns of names of arrays that are averaged, never extrapolated; by default,
            BatchNorm's statistics.
        seed: seed of all random numbers of cohorts and clients.
        checkpoint: a folder, or fs.Checkpoints(...); the run is saved there, and resumed from there when it is started again.
        guard: quorum, retries and limits, for lost clients and exploding steps: fs.Guard(...).
        callbacks: functions of an Event with .round, .x and .metrics, such as fs.loggers.Prometheus(); see fs.train(). One that
            returns fs.STOP ends the run.

    Raises:
        InvalidInput: an argument is invalid.
        Refused: the algorithm needs more than the clients do.

    Example:
        >>> strategy = fedstride.flower.Strategy("fedexp(lr=0.1)", checkpoint="checkpoints")
        >>> strategy.algorithm.name
        'fedexp'
    """

    def __init__(
        self,
        algorithm: str | Algorithm = "auto",
        *,
        training: Literal["fedstride", "app"] = "fedstride",
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
        weights: Literal["samples", "uniform"] = "samples",
        buffers: Sequence[str] = BUFFERS,
        seed: int = 0,
        checkpoint: str | Path | Checkpoints | None = None,
        guard: Guard | None = None,
        callbacks: Sequence[Callable[[Event], object]] = (),
    ) -> None:
        self.algorithm = validate.algorithm_of(algorithm)
        name = type(self).__name__ if type(self) is not Strategy else f"Strategy({self.algorithm.name!r})"
        for argument, value, allowed in (
            ("training", training, ("fedstride", "app")),
            ("weights", weights, ("samples", "uniform")),
        ):
            if value not in allowed:
                raise InvalidInput(f"{argument}={value!r} is unknown; {nearest(str(value), allowed)}")
        _check_clients(self.algorithm, training == "app", name)
        if not _number(fraction_train) or not 0 < fraction_train <= 1:
            raise InvalidInput(f"fraction_train={fraction_train!r} is invalid: expected a share in (0, 1].")
        if not isinstance(guard, Guard | None):
            raise InvalidInput(f"guard={guard!r} is invalid: expected fs.Guard(...), or None.")
        check_callbacks(callbacks)
        # Flower's own FedAvg samples nodes for evaluations, and averages metrics.
        self.metrics = FedAvg(
            fraction_evaluate=fraction_evaluate,
            min_evaluate_nodes=min_evaluate_nodes,
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
            evaluate_metrics_aggr_fn=evaluate_metrics_aggr_fn,
        )
        self.plan = Plan(
            name=name,
            algorithm=self.algorithm,
            unchanged=training == "app",
            fraction=fraction_train,
            least=validate.whole("min_train_nodes", min_train_nodes),
            available=validate.whole("min_available_nodes", min_available_nodes),
            weights=weights,
            key=weighted_by_key,
            names=(arrayrecord_key, configrecord_key),
            buffers=tuple(buffers),
            seed=validate.whole("seed", seed, least=0),
            guard=guard or Guard(),
            checkpoint=checkpoint if isinstance(checkpoint, Checkpoints | None) else Checkpoints(checkpoint),
            callbacks=callbacks,
        )
        self.session: Session | None = None

    @property
    def history(self) -> History:
        """The history of the run, one row per round: see fs.Run."""
        return History() if self.session is None else self.session.state.history

    def summary(self) -> None:
        """Log the settings."""
        plan = self.plan
        log.info("\t├──> Algorithm: %r", plan.algorithm)
        log.info("\t├──> Clients: %s", "the app's own loop" if plan.unchanged else "fedstride.flower.train")
        log.info("\t├──> Sampling: %g of the nodes, at least %d; weights: %s", plan.fraction, plan.least, plan.weights)
        log.info("\t└──> Checkpoints: %s", "none" if plan.checkpoint is None else plan.checkpoint.path)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds, from the newest checkpoint if there is one.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: the initial model, ArrayRecord(model.state_dict()).
            num_rounds: number of rounds, including those that a checkpoint has already.
            timeout: seconds that an exchange may take; later replies are lost.
            train_config: sent to the clients that train.
            evaluate_config: sent to the clients that evaluate.
            evaluate_fn: a function (round, arrays) -> metrics, called on the server before the first round and after each.

        Returns:
            Flower's Result: the arrays of the final model, and the metrics of all rounds.

        Raises:
            InvalidInput: an argument is invalid, the arrays are not those of the clients' model, or the checkpoint is
                another run's.
            Diverged: the model became NaN or infinite, or exploded; error.run has the last good one.
            TooFew: too few clients answered, in all attempts at a round; error.run has the run so far.
        """
        rounds = validate.whole("num_rounds", num_rounds)
        positive("start", timeout=timeout)
        log.info("Starting %s:", self.plan.name)
        self.summary()
        self.session = session = Session(self.plan, grid, initial_arrays, rounds, timeout)
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        with session.lock():
            session.resume()
            first: Row = {}
            if evaluate_fn is not None and not session.state.round:
                first = _packed(start=evaluate_fn(0, initial_arrays))
            goes_on = session.starts()
            while goes_on and session.state.round < rounds:
                with session.watch.phase(ROUNDS):
                    shown, found = self._round(session, configs, evaluate_fn)
                goes_on = session.goes_on({**shown, **session.state.history[-1], COLUMN: {**first, **found}})
                first = {}
        return self._result(session)

    def _round(
        self, session: Session, configs: tuple[ConfigRecord, ConfigRecord], evaluate_fn: Evaluate | None
    ) -> tuple[Row, Row]:
        """Run a round, and return its metrics by name, and by where they were measured."""
        number, (train_config, evaluate_config) = session.state.round + 1, configs
        messages = self.configure_train(number, session.shown, train_config, session.grid)
        arrays, trained = self.aggregate_train(number, session.exchange(messages, "clients"))
        if arrays is None:
            raise InvalidInput(
                f"aggregate_train: it returned no arrays in round {number}; expected those of the model."
            )
        if arrays is not session.shown:
            session.take(arrays)
        asked = self.configure_evaluate(number, arrays, evaluate_config, session.grid)
        evaluated = self.aggregate_evaluate(number, session.exchange(asked, "evaluation"))
        with session.watch.phase("evaluation"):
            tested = None if evaluate_fn is None else evaluate_fn(number, arrays)
        shown = {**(trained or {}), **(evaluated or {}), **(tested or {})}
        log.info("[ROUND %d/%d] %s", number, session.rounds, shown)
        return shown, _packed(train=trained, evaluate=evaluated, server=tested)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round: see Flower's Strategy."""
        if self.session is None:  # another strategy, around this one, leads the run
            if self.plan.checkpoint is not None:
                raise InvalidInput(
                    "checkpoint: only the strategy's own start() saves and resumes; call that, or use None."
                )
            if self.plan.callbacks:
                raise InvalidInput("callbacks: only the strategy's own start() calls them; call that, or use ().")
            if getattr(self.algorithm.step, "schedule", None) is not None:
                raise InvalidInput("schedule: only the strategy's own start() knows the number of rounds; call that.")
            self.session = Session(self.plan, grid, arrays, UNKNOWN, TIMEOUT)
        config["server-round"] = server_round
        messages = self.session.begin(server_round, arrays, config)
        log.info("configure_train: %d nodes", len(messages))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the model after a round, and metrics: see Flower's Strategy."""
        if self.session is None:
            raise InvalidInput("aggregate_train: no round is configured; call start(), or configure_train() first.")
        arrays = self.session.finish(list(replies))
        nodes, row = self.session.nodes, self.session.state.history[-1]
        own: dict[str, Any] = {}
        if isinstance(nodes, Unchanged):
            usable = [nodes.lately[i] for i in agreeing(nodes.lately, self.plan.key)]
            own = dict(self.metrics.train_metrics_aggr_fn(usable, self.plan.key)) if usable else {}
        found = {name: row[name] for name in METRICS if _number(row[name]) and name not in own}
        return arrays, MetricRecord({**own, **found})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of an evaluation, as Flower's FedAvg."""
        return self.metrics.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean metrics of an evaluation, as Flower's FedAvg. Replies that differ from most are left out."""
        came = [reply for reply in replies if not isinstance(outcome(reply), str)]
        usable = [came[i] for i in agreeing([reply.content for reply in came], self.plan.key)]
        return self.metrics.aggregate_evaluate(server_round, usable or came)  # Flower says what all of them lack

    def _result(self, session: Session) -> Result:
        result = Result(arrays=session.shown)
        for row in session.state.history:
            found = row.get(COLUMN, {})
            for name, where, number in (
                ("start", result.evaluate_metrics_serverapp, 0),
                ("train", result.train_metrics_clientapp, row["round"]),
                ("evaluate", result.evaluate_metrics_clientapp, row["round"]),
                ("server", result.evaluate_metrics_serverapp, row["round"]),
            ):
                if name in found:
                    where[number] = MetricRecord(found[name])
        return result


def _check_clients(a: Algorithm, unchanged: bool, name: str) -> None:
    """Refuse algorithms that this kind of client cannot carry out."""
    if a.privacy is not None:
        raise Refused(f"{name}: Privacy is not available in strategies; use the app of `fedstride deploy init`.")
    if getattr(a.aggregate, "changes_frozen", False):
        raise Refused(
            f"{name}: {type(a.aggregate).__name__} is not available in strategies; use the app of `fedstride deploy init`."
        )
    if not unchanged:
        return
    usual = {"step": Constant(), "objective": Plain(), "gradient": Minibatch(), "drift": None, "up": None, "down": None}
    for slot, part in usual.items():
        if getattr(a, slot) != part:
            raise Refused(
                f"{name}: {slot}={getattr(a, slot)!r} acts on the clients, which keep the app's own loop with training='app'. "
                "Use training='fedstride', with fedstride.flower.train(...) in the function under @app.train()."
            )
    needed = [field for field in a.needs if field != "square"]
    if needed:
        raise Refused(
            f"{name}: {type(a.server).__name__} needs {', '.join(needed)} from the clients, and the app's own loop does not send "
            "it. Use training='fedstride', with fedstride.flower.train(...) in the function under @app.train()."
        )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _packed(**records: MetricRecord | None) -> dict[str, Any]:
    return {name: dict(record) for name, record in records.items() if record is not None}
