"""Findings about the server's extrapolation and the compression of messages."""

from __future__ import annotations

from statistics import median

from fedstride.app.diagnose import limits
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.diagnose.finding import Finding, instead, number, share
from fedstride.core.capabilities import declared, setting


def server_step(e: Evidence) -> Finding | None:
    """Detect extrapolation that never starts, is capped, or explodes."""
    steps = e.late("server_step")
    if not _extrapolates(e) or not steps or e.state == "short":
        return None
    most, usual = max(e.known("server_step")), median(steps)
    if explodes(e):
        says = (
            f"The server step reached {number(most)} (median of the last rounds {number(usual)}) without improving the "
            "loss: the mean update vanishes while the clients' updates do not, and their ratio explodes."
        )
        return Finding("server step explodes", "cause", says, _bounded(e))
    if follows_noise(e):
        severity = "watch" if e.state == "plateau" and not (e.rough or e.unlearned) else "cause"
        says = (
            f"The server step is {number(usual)} in the last rounds, successive moves have a cosine of "
            f"{number(e.usual('turn') or 0)}{_by_momentum(e)}, and the loss does not fall: the server extrapolates noise."
        )
        return Finding("server extrapolates noise", severity, says, _steadier(e))
    top = capped(e)
    if top is not None:
        says = f"The server step is at its cap of {number(top)} in most of the last rounds."
        allowed = (e.diversity or 0) / 2
        advice = _limit(e, allowed) if allowed > top else ()
        return Finding("server step at its cap", "cause" if _enough(e) else "watch", says, advice)
    if hidden(e):
        return Finding("server step hidden by eps", "cause" if _enough(e) else "watch", *_hidden(e))
    if max(steps) <= 1:
        return Finding("server step", "fine", "The server step stays at 1: the updates agree too well to extrapolate.")
    return Finding("server step", "fine", f"The server step is {number(usual)} at the end and at most {number(most)}.")


def taken_back(e: Evidence) -> Finding | None:
    """Report server steps that became NaN or infinite, or were far too long."""
    times = e.record.total("rollbacks")
    if not times:
        return None
    says = f"{times:,.0f} server steps were far too long and were replaced by a plain mean of the clients' models."
    return Finding("steps taken back", "cause" if e.bad else "watch", says, _bounded(e) if _extrapolates(e) else ())


def explodes(e: Evidence) -> bool:
    """Whether the server step is far above 1 without improving the loss."""
    return _extrapolates(e) and max(e.known("server_step"), default=1.0) > limits.EXPLODES and e.bad and not e.small


def follows_noise(e: Evidence) -> bool:
    """Whether the server step is above 1 although moves agree no more than noise does, without improving the loss."""
    if not _extrapolates(e) or not e.bad or e.small or len(e.late("turn")) < 3:
        return False
    directionless = (e.usual("turn") or 0.0) <= _momentum(e) + limits.AHEAD
    return (e.usual("server_step") or 1.0) > limits.EXTRAPOLATES and directionless


def held_back(e: Evidence) -> bool:
    """Whether steps are small because the server cannot extrapolate."""
    return (capped(e) is not None or hidden(e)) and _enough(e)


def capped(e: Evidence) -> float | None:
    """Return the cap if the server step is at it in most of the last rounds."""
    top, usual = setting(e.server, "capped_by"), e.usual("server_step")
    return float(top) if top is not None and usual is not None and usual >= limits.AT_CAP * top else None


def hidden(e: Evidence) -> bool:
    """Whether an eps larger than the squared update prevents extrapolation."""
    eps, update, diversity, usual = (
        setting(e.server, "damped_by"),
        e.usual("update"),
        e.diversity,
        e.usual("server_step"),
    )
    if eps is None or not update or diversity is None or usual is None:
        return False
    return bool(eps > update**2) and diversity / 2 > limits.HIDDEN * usual


def _enough(e: Evidence) -> bool:
    """Whether the prevented extrapolation would explain most of the slow progress."""
    return e.small and (e.diversity or 1) / 2 > (e.usual("server_step") or 1) * e.short_by / 2


def _extrapolates(e: Evidence) -> bool:
    return bool(declared(e.server, "extrapolates"))


def _momentum(e: Evidence) -> float:
    """Return the cosine of successive moves for independent updates."""
    return getattr(e.server, "beta", 0.0) if declared(e.server, "has_momentum") else 0.0


def _by_momentum(e: Evidence) -> str:
    return f" (momentum alone gives {number(_momentum(e))})" if _momentum(e) else ""


def _steadier(e: Evidence) -> tuple[str, ...]:
    """Return the advice against extrapolated noise."""
    return (
        "--algorithm fedavgm (fs.recipes.fedavgm), which averages moves and does not extrapolate",
        "more data per step: larger batches (training.batch_size) or more clients per round (training.cohort)",
        *_limit(e, 1.0),
        "a server step of 1: --algorithm fedsls",
    )


def _hidden(e: Evidence) -> tuple[str, tuple[str, ...]]:
    update, eps, diversity = e.usual("update") or 0.0, setting(e.server, "damped_by") or 0.0, e.diversity or 1.0
    says = (
        f"The server step stays at {number(e.usual('server_step') or 1)}: eps = {number(eps)} is {number(eps / update**2)} "
        f"times the squared mean update and hides a diversity of {number(diversity)}, which allows a step of {number(diversity / 2)}."
    )
    return says, (
        instead(e, eps, **{declared(e.server, "damped_by"): update**2 / 100}),
        "--algorithm auto, which needs no eps",
    )


def _bounded(e: Evidence) -> tuple[str, ...]:
    """Return the advice against an exploding server step."""
    name, eps, first = declared(e.server, "damped_by"), setting(e.server, "damped_by"), e.known("update")[:1]
    more = (instead(e, eps, **{name: first[0] ** 2 / 10}),) if name is not None and first else ()
    plain = "fedavg" if declared(e.step, "scaled_by") is not None else "fedsls"  # fedsls has no rate to choose
    return (*more, *_limit(e, 2.0), f"--algorithm {plain}, whose server step is 1")


def _limit(e: Evidence, most: float) -> tuple[str, ...]:
    """Suggest a cap on the server step, if the rule has one."""
    name = declared(e.server, "capped_by")
    return () if name is None else (instead(e, setting(e.server, "capped_by"), **{f"server_{name}": most}),)


def compression(e: Evidence) -> Finding | None:
    """Detect compression that loses too much of a message."""
    a, error = e.algorithm, e.usual("compression")
    if a is not None and a.up is None and a.down is None:
        return None
    if error is None:
        return (
            Finding("compression", "unknown", "The history does not contain compression errors.")
            if a is not None
            else None
        )
    if error == 0 and a is None:
        return None
    fed = a is None or a.error_feedback is not False
    how = ("with" if fed else "without") + " error feedback" if a is not None else "of the messages"
    says = f"Compression loses {share(error)} of a message's norm ({how})."
    advice = ("keep more entries (TopK(k=0.1)), or quantise instead: fs.Quantize(8)",)
    if error > (limits.COARSE_FED_BACK if fed else limits.COARSE):
        first = () if fed else ("error_feedback=True, which sends the lost part later",)
        return Finding("compression", "cause" if e.bad else "watch", says, (*first, *advice))
    return Finding("compression", "fine", says)
