"""Findings about step lengths: too small, too large, or too long for the noise."""

from __future__ import annotations

from fedstride.app.diagnose import limits
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.diagnose.finding import AVERAGE, Finding, instead, number, share
from fedstride.app.diagnose.rules import grows, held
from fedstride.app.diagnose.server import explodes, held_back
from fedstride.core.capabilities import declared, setting


def step_length(e: Evidence) -> Finding | None:
    """Detect steps that are too small or too large from the angle between moves and the trend of the loss."""
    if explodes(e):
        return None  # reported by server.py
    if e.large:
        return Finding("steps too large", "cause", _too_large(e), _shorter(e))
    if e.state == "short":
        return None
    if e.small and not (held(e) or held_back(e) or grows(e)):
        return Finding("steps too small", "cause", _too_small(e), _longer(e))
    if e.peak > limits.BLOWN:
        return Finding("steps too large", "watch", _too_large(e), _shorter(e))
    if e.turn is None:
        return _no_turn(e)
    says = f"Successive moves of the model have a cosine of {number(e.turn)}"
    if e.state == "improving" and e.turn > limits.STRAIGHT:
        straight = f"{says}: the path is straight, so longer steps would be faster."
        return Finding("steps too small", "watch", straight, _longer(e))
    top = f"{number(e.peak)} times its first value" if e.peak > 1 else "its first value"
    return Finding("step length", "fine", f"{says}, and the loss never exceeded {top}.")


def noise(e: Evidence) -> Finding | None:
    """Detect a loss that oscillates about its trend."""
    if e.loss is None or e.state == "diverged":
        return None
    size = f"The loss deviates by {share(e.loss.noise / abs(e.loss.level) if e.loss.level else 0.0)} from its trend"
    turn = f", and successive moves have a cosine of {number(e.turn)}" if e.turn is not None else ""
    advice = (
        *(() if e.averaged else (AVERAGE,)),
        *(
            ("a rate that decays: schedule=fs.Stepwise() or fs.Exponential(0.99)",)
            if hasattr(e.step, "schedule") and declared(e.step, "scaled_by")
            else ()
        ),
        "more clients per round (training.cohort) or larger batches (training.batch_size)",
    )
    if e.rough:
        severity = "cause" if e.state == "plateau" and not e.unseen else "watch"
        what = ": noise hides the progress." if severity == "cause" else "."
        return Finding("noise", severity, size + turn + what, advice)
    if not e.averaged and e.turn is not None and e.turn < limits.SWINGS_HARD:
        between = f"{size}{turn}: the iterates oscillate about a better model between them."
        return Finding("noise", "watch", between, advice)
    return Finding("noise", "fine", f"{size}{turn}.")


def _too_large(e: Evidence) -> str:
    if e.state == "diverged":
        what = f"reached {number(e.peak)} times its first value" if e.peak > 1 else "became NaN or infinite"
        return f"The loss {what}; the clients' mean step was {number(e.record.last('client_step') or 0.0)}."
    if e.peak > limits.BLOWN:
        return f"The loss temporarily rose to {number(e.peak)} times its first value."
    undo = e.turn is not None and e.turn < limits.SWINGS
    turn = f"successive moves have a cosine of {number(e.turn or 0)} and undo each other" if undo else ""
    rough = f"the loss deviates by {share(e.loss.noise / e.loss.level)} from its trend" if e.loss and e.rough else ""
    what = "The loss rises" if e.state == "rising" else "Hardly any progress"
    return f"{what}: {'; '.join(filter(None, (turn, rough)))}."


def _too_small(e: Evidence) -> str:
    client, server = e.usual("client_step") or 0.0, e.usual("server_step") or 1.0
    steps = f"The clients' mean step is {number(client)}, the server's {number(server)}"
    if e.turn is not None and e.turn > limits.AHEAD:
        return f"{steps}; successive moves agree (cosine {number(e.turn)}) and the loss hardly falls."
    return f"{steps}; the loss falls smoothly, but very slowly."


def _shorter(e: Evidence) -> tuple[str, ...]:
    own = _scaled(e, 0.1)
    for limit in ("capped_by", "grows_from"):
        name, value = declared(e.step, limit), setting(e.step, limit)
        if name is not None:
            own = (instead(e, value, **{name: 1.0 if value is None else value / 10}),)
    swings = () if e.state == "diverged" or e.averaged else (AVERAGE,)
    fewer = "fewer local steps (training.local_steps), or clip: --set training.clip_norm=10"
    return (*own, "--algorithm auto, which finds its steps", *swings, fewer)


def _longer(e: Evidence) -> tuple[str, ...]:
    own = _scaled(e, e.short_by if e.small else 3.0)
    return (*own, "--algorithm auto, which finds its steps", "a server that extrapolates: --algorithm fedexp")


def _scaled(e: Evidence, times: float) -> tuple[str, ...]:
    """Suggest to multiply the rate by `times`; for adaptive servers, the server's rate sets the length of a move."""
    part, at = (e.server, "server_") if declared(e.server, "scaled_by") is not None else (e.step, "")
    name, rate = declared(part, "scaled_by"), setting(part, "scaled_by")
    return (instead(e, rate, **{f"{at}{name}": rate * times}),) if name is not None else ()


def _no_turn(e: Evidence) -> Finding:
    if not e.known("turn"):
        return Finding("step length", "unknown", "The history does not contain angles between moves (column turn).")
    says = "With momentum, successive moves are always similar; the loss shows no sign of wrong steps."
    return Finding("step length", "fine", says)
