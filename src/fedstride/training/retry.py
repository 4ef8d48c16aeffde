"""Repeated attempts at a round, and the errors that end a run when further attempts are pointless."""

from __future__ import annotations

from collections import Counter

from fedstride.core.errors import Diverged, TooFew
from fedstride.engine.admission import OWN_FAULT
from fedstride.training.attempt import Attempt, FailedAttempt
from fedstride.training.history import Row
from fedstride.training.round import advance, choose_cohort, rolled_back_too_often
from fedstride.training.setup import Setup
from fedstride.training.state import TrainingState, run_of


def complete_round(setup: Setup, state: TrainingState) -> tuple[TrainingState, Row]:
    """Run one round, with a new cohort whenever an attempt fails; the caller commits the clients' memory.

    Raises:
        Diverged: models or steps became NaN or infinite, or exploded.
        TooFew: too few clients answered, in all attempts.
    """
    attempt = None
    while True:
        try:
            return advance(setup, state, attempt)
        except FailedAttempt as failure:
            failed = failure.attempt
        setup.clients.discard()
        if is_hopeless(setup, state, failed):
            raise given_up(setup, state, failed)
        attempt = failed.again()


def is_hopeless(setup: Setup, state: TrainingState, failed: Attempt) -> bool:
    """Whether the attempts are used up, or the next one would only repeat the last one."""
    number = failed.number
    same = choose_cohort(setup, state, number + 1) == choose_cohort(setup, state, number)
    repeated = same and not failed.exploded and set(failed.lost.values()) <= set(OWN_FAULT)
    too_wild = failed.wild_step is not None and rolled_back_too_often(setup, state)
    return (number > setup.guard.retries and not failed.exploded) or repeated or too_wild


def given_up(setup: Setup, state: TrainingState, failed: Attempt) -> Diverged | TooFew:
    """Return the error for a round that is not tried again."""
    t, guard = state.round, setup.guard
    broken = [client for client, why in failed.lost.items() if why in OWN_FAULT]
    where = f"The last good model, of round {t}, and the history are in error.run."
    if failed.wild_step is not None or failed.exploded or (broken and 2 * len(broken) >= len(failed.lost)):
        step = None if failed.wild_step is None else f"the server step of size {failed.wild_step:.3g}"
        what = step or (f"the model of client {named(setup, broken[0])}" if broken else "the models of some clients")
        return Diverged(
            f"The run diverged in round {t + 1}: {what} became NaN or infinite or exploded. {where} "
            "Use smaller steps, or a rule that finds them (fs.recipes.fedsls(), delta_sgd()).",
            run_of(setup, state, "diverged"),
            t + 1,
            broken,
        )
    asked = len(failed.asked)
    return TooFew(
        f"Round {t + 1} was given up after {failed.number} attempts: {asked - len(failed.lost)} of {asked} clients "
        f"answered in the last one ({counted(Counter(failed.lost.values()))}), but quorum={guard.quorum!r} requires "
        f"{guard.least(asked)}. {where} Continue later, or with a smaller guard=fs.Guard(quorum=...).",
        run_of(setup, state, "given up"),
        t + 1,
        list(failed.lost),
    )


def named(setup: Setup, client: int) -> str:
    """Return the name of a client, or its number if it has none."""
    names = setup.task.clients.names
    return repr(names[client]) if names else str(client)


def counted(reasons: Counter[str]) -> str:
    """List reasons with their counts, for an error message."""
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
