"""What happens to the updates: the server's extrapolation, and the compression of messages."""

from __future__ import annotations

from statistics import median

from fedstride.app.diagnose import limits
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.diagnose.finding import Finding, instead, number, share
from fedstride.core.capabilities import declared, setting


def server_step(e: Evidence) -> Finding | None:
    """Extrapolation that never sets in, is cut off, or blows up."""
    steps = e.late("server_step")
    if not _extrapolates(e) or not steps or e.state == "short":
        return None
    most, usual = max(e.known("server_step")), median(steps)
    if explodes(e):
        says = (
            f"The server step went up to {number(most)} (median of the last rounds {number(usual)}) and the loss is no "
            "better for it: the mean update vanishes while the clients' do not, and their quotient explodes."
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
    return Finding("server step", "fine", f"The server step is {number(usual)} at the end, {number(most)} at most.")


def taken_back(e: Evidence) -> Finding | None:
    """Steps of the server that left the finite numbers or went far too far."""
    times = e.record.total("rollbacks")
    if not times:
        return None
    says = f"{times:,.0f} steps of the server were taken back, for a plain mean of the clients' models: they went far too far."
    return Finding("steps taken back", "cause" if e.bad else "watch", says, _bounded(e) if _extrapolates(e) else ())


def explodes(e: Evidence) -> bool:
    """A server step far above 1, and nothing gained by it."""
    return _extrapolates(e) and max(e.known("server_step"), default=1.0) > limits.EXPLODES and e.bad and not e.small


def follows_noise(e: Evidence) -> bool:
    """A server step above 1 along moves that have no more in common than noise has, and nothing gained by it."""
    if not _extrapolates(e) or not e.bad or e.small or len(e.late("turn")) < 3:
        return False
    directionless = (e.usual("turn") or 0.0) <= _momentum(e) + limits.AHEAD
    return (e.usual("server_step") or 1.0) > limits.EXTRAPOLATES and directionless


def held_back(e: Evidence) -> bool:
    """Steps are small because the server may not extrapolate."""
    return (capped(e) is not None or hidden(e)) and _enough(e)


def capped(e: Evidence) -> float | None:
    """The cap that the server step is at in most of the last rounds."""
    top, usual = setting(e.server, "capped_by"), e.usual("server_step")
    return float(top) if top is not None and usual is not None and usual >= limits.AT_CAP * top else None


def hidden(e: Evidence) -> bool:
    """An eps that is larger than the updates keeps the server from extrapolating."""
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
    """The extrapolation that is held back would make up for much of what is missing."""
    return e.small and (e.diversity or 1) / 2 > (e.usual("server_step") or 1) * e.short_by / 2


def _extrapolates(e: Evidence) -> bool:
    return bool(declared(e.server, "extrapolates"))


def _momentum(e: Evidence) -> float:
    """Cosine of successive moves if the updates are independent."""
    return getattr(e.server, "beta", 0.0) if declared(e.server, "has_momentum") else 0.0


def _by_momentum(e: Evidence) -> str:
    return f" (momentum alone gives {number(_momentum(e))})" if _momentum(e) else ""


def _steadier(e: Evidence) -> tuple[str, ...]:
    """What keeps the server from extrapolating noise."""
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
        f"times the squared mean update and hides a diversity of {number(diversity)}, which allows {number(diversity / 2)}."
    )
    return says, (
        instead(e, eps, **{declared(e.server, "damped_by"): update**2 / 100}),
        "--algorithm auto, which needs no eps",
    )


def _bounded(e: Evidence) -> tuple[str, ...]:
    """What keeps the server step from exploding."""
    name, eps, first = declared(e.server, "damped_by"), setting(e.server, "damped_by"), e.known("update")[:1]
    more = (instead(e, eps, **{name: first[0] ** 2 / 10}),) if name is not None and first else ()
    plain = "fedavg" if declared(e.step, "scaled_by") is not None else "fedsls"  # which has no rate to choose
    return (*more, *_limit(e, 2.0), f"--algorithm {plain}, whose server step is 1")


def _limit(e: Evidence, most: float) -> tuple[str, ...]:
    """A cap on the server step, where the rule has one."""
    name = declared(e.server, "capped_by")
    return () if name is None else (instead(e, setting(e.server, "capped_by"), **{f"server_{name}": most}),)


def compression(e: Evidence) -> Finding | None:
    """What does not arrive."""
    a, error = e.algorithm, e.usual("compression")
    if a is not None and a.up is None and a.down is None:
        return None
    if error is None:
        return Finding("compression", "unknown", "This history has no error of compression.") if a is not None else None
    if error == 0 and a is None:
        return None
    fed = a is None or a.error_feedback is not False
    how = ("with" if fed else "without") + " error feedback" if a is not None else "of the messages"
    says = f"{share(error)} of a message's length does not arrive ({how})."
    advice = ("keep more entries (TopK(k=0.1)), or quantise instead: fs.Quantize(8)",)
    if error > (limits.COARSE_FED_BACK if fed else limits.COARSE):
        first = () if fed else ("error_feedback=True, which sends later what was left out",)
        return Finding("compression", "cause" if e.bad else "watch", says, (*first, *advice))
    return Finding("compression", "fine", says)
