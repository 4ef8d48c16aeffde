"""The rounds of a run: callbacks, checkpoints, early stopping and Ctrl-C around training.retry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import nn

from fedstride.core.errors import InvalidInput, Unsaved, nearest, tell
from fedstride.core.rows import Vec
from fedstride.engine.local import one_thread
from fedstride.training.checkpoint import Checkpoints
from fedstride.training.history import Row
from fedstride.training.result import Run
from fedstride.training.resume import Recorder
from fedstride.training.retry import complete_round
from fedstride.training.scaling import measure_inputs
from fedstride.training.setup import Setup
from fedstride.training.state import TrainingState, exported, is_over, pack, read_out, remember_best, run_of, unpack
from fedstride.training.stop import STOP, interrupts_return
from fedstride.training.watch import ROUNDS, Asked

Callbacks = Sequence[Callable[["Event"], object]]


@dataclass(frozen=True)
class Event:
    """The argument of a callback, which is called before the first round (round 0) and after each round.

    Args:
        round: number of finished rounds.
        x: the training iterate, flat, in the order of the trainable model.parameters().
        metrics: the round's row of the history. What a callback adds to it is in the history.
        make: makes the model.
        seconds: seconds that this process has spent so far, by phase: clients, server, evaluation and checkpoints.
        exchanges: the exchanges since the last event, failed attempts included: .kind, .clients and .lost, with reasons.

    Example:
        >>> def show(event):
        ...     event.metrics["length"] = float(event.x.norm())
        >>> run = fs.train(nn.Linear(4, 3), "cross_entropy", clients, rounds=2, callbacks=[show])
        >>> len(run.history["length"])
        2
    """

    round: int
    x: Vec
    metrics: Row
    make: Callable[[], nn.Module] = field(default=nn.Identity, repr=False)
    seconds: Mapping[str, float] = field(default_factory=dict, repr=False)
    exchanges: Sequence[Asked] = field(default=(), repr=False)

    @property
    def model(self) -> nn.Module:
        """The model that fs.train() would return if the run ended with this round."""
        return self.make()


def lead(setup: Setup, state: TrainingState, when: Checkpoints | None, callbacks: Callbacks) -> Run:
    """Run the rounds, in the process that holds the state."""
    recorder, outcome = None if when is None else Recorder(setup, when, state), None
    ended = "finished"
    try:
        if recorder is not None:
            state = recorder.resume()
            _check_rounds(setup, state, recorder)
        try:
            if setup.task.normalise and state.scaling is None:
                with one_thread(), setup.watch.phase(ROUNDS):
                    state = measure_inputs(setup, state)
            if state.round == 0 and asked_to_stop(setup, state, {"round": 0}, callbacks):
                ended = "stopped"
            while ended == "finished" and state.round < setup.task.rounds and not is_over(setup, state):
                with saved_when_it_fails(recorder, state), one_thread(), setup.watch.phase(ROUNDS):
                    after, row = complete_round(setup, state)
                # Not under the save: a failure from here to the assignment may leave the clients' memory one round
                # ahead of the state, and the two must not be saved together.
                setup.clients.commit()
                state = after
                with saved_when_it_fails(recorder, state):
                    if asked_to_stop(setup, state, row, callbacks):
                        ended = "stopped"
                state = remember_best(setup, amended(state, row))
                _check_metric(setup, state)
                if recorder is not None and (recorder.due(state) or ended != "finished"):
                    with setup.watch.phase("checkpoints"):
                        recorder.save(state)
            if is_over(setup, state):
                ended = "stopped"
        except KeyboardInterrupt:
            if not interrupts_return():
                raise
            setup.clients.discard()
            ended = "interrupted"
            tell(f"interrupted in round {state.round + 1}; returning the run with its {state.round} finished rounds.")
        outcome = pack(state)
        return run_of(setup, state, ended)
    except Unsaved as error:
        error.run = run_of(setup, state)
        raise
    finally:
        setup.clients.close(outcome)


def check_callbacks(callbacks: Callbacks) -> None:
    """Refuse callbacks that cannot be called."""
    if not isinstance(callbacks, list | tuple):
        raise InvalidInput(f"callbacks={callbacks!r} is invalid: expected a list of functions of one event.")
    for i, callback in enumerate(callbacks):
        if not callable(callback):
            raise InvalidInput(f"callbacks[{i}]={callback!r} is not callable; expected a function of one event.")


def _check_rounds(setup: Setup, state: TrainingState, recorder: Recorder) -> None:
    if state.round > setup.task.rounds:
        raise InvalidInput(
            f"rounds={setup.task.rounds}, and the checkpoint in {recorder.when.path} has {state.round} rounds already; "
            "ask for at least as many, or use another folder."
        )


def _check_metric(setup: Setup, state: TrainingState) -> None:
    """Warn after the first round if no callback has added the metric of early stopping."""
    if setup.stop is not None and state.round == 1 and setup.stop.metric not in (row := state.history[-1]):
        tell(
            f"stop: metric={setup.stop.metric!r} is not in the first row of the history; {nearest(setup.stop.metric, row)}"
        )


def asked_to_stop(
    setup: Setup,
    state: TrainingState,
    row: Row,
    callbacks: Callbacks,
    make: Callable[[], nn.Module] | None = None,
) -> bool:
    """Call the callbacks, and return whether one of them asks to end the run; make: instead of the model of the run."""
    with one_thread():  # torch's other threads would spin for milliseconds of the next round
        x = state.x.clone()

    def usual() -> nn.Module:
        return exported(setup, state, read_out(setup.algorithm, state), state.stats)

    event = Event(state.round, x, row, make or usual, setup.watch.phases(), setup.watch.taken())
    return any([callback(event) is STOP for callback in callbacks])


def amended(state: TrainingState, row: Row) -> TrainingState:
    """Return the state with what callbacks added to the row of the last round."""
    row = {name: value.item() if _is_number(value) else value for name, value in row.items()}
    if row == state.history[-1]:
        return state
    for name, value in row.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"callbacks: event.metrics[{name!r}] is a {type(value).__name__}; expected a number, or a list of numbers."
            ) from error
    return replace(state, history=state.history.amended(row))


def _is_number(value: object) -> bool:
    """Whether this is a number in a tensor or an array of numpy."""
    return hasattr(value, "item") and getattr(value, "shape", None) == ()


def follow(setup: Setup, state: TrainingState) -> Run:
    """Work for the process that leads until the run is over, and return the same run."""
    tensors, facts = setup.clients.follow()  # type: ignore[attr-defined]
    return run_of(setup, unpack(state, tensors, facts, "the process of rank 0"))


@contextmanager
def saved_when_it_fails(recorder: Recorder | None, state: TrainingState) -> Iterator[None]:
    """Save the finished rounds on an error or an interrupt, even if saves are rare."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        if recorder is not None and recorder.lacks(state):
            recorder.save(state)
        raise
