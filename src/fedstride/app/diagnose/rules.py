"""Findings about the clients' step rules: caps, floors, bounds and line-search trials."""

from __future__ import annotations

import math

from fedstride.app.diagnose import limits
from fedstride.app.diagnose.evidence import Evidence
from fedstride.app.diagnose.finding import Finding, instead, number
from fedstride.core.capabilities import declared, setting


def line_search(e: Evidence) -> list[Finding]:
    """Check Armijo's cap, floor and trials, Polyak's clamp and cap, and Delta-SGD's growth bound."""
    return [f for judge in (_clamped, _cap, _growth_bound, _no_cap, _failures, _trials) if (f := judge(e))]


def held(e: Evidence) -> float | None:
    """Return the cap if half of the clients are at it in most of the last rounds."""
    cap, rows = setting(e.step, "capped_by"), e.quartiles()
    if cap is None or sum(row[2] >= limits.AT_CAP * cap for row in rows) <= limits.MOSTLY * len(rows):
        return None
    return float(cap)


def grows(e: Evidence) -> bool:
    """Whether every step is limited only by the growth bound."""
    first, rows = declared(e.step, "growth_bound"), e.quartiles()
    return first is not None and bool(rows) and all(row[0] >= 0.999 * first for row in rows)


def _clamped(e: Evidence) -> Finding | None:
    if not e.clamped:
        return None
    losses = e.known("train_loss")
    least, now, assumed = min(losses), losses[-1], e.least_loss
    rule = "" if e.step is not None else " (if the rule is Polyak's)"
    if now < assumed or least < assumed:
        why = f"the loss is below {number(assumed)}, the minimum that Polyak's step assumes{rule}, so the step is zero"
    else:
        why = f"the mean loss is {number(now)}, so most clients are below the minimum that the step assumes, {number(assumed)}"
    says = f"At least half of the clients do not move in most of the last rounds: {why}."
    bound = math.floor(least - max(1.0, abs(least)))  # below the smallest loss so far, with a margin
    own = (instead(e, assumed, f_star=bound),) if hasattr(e.step, "f_star") else ()
    advice = (
        "--algorithm fedsls or delta_sgd, which do not assume a minimum of the loss",
        *own,
        "add a constant to the loss, so that it cannot become negative",
    )
    return Finding("Polyak steps clamped", "cause", says, advice)


def _cap(e: Evidence) -> Finding | None:
    cap, name = held(e), declared(e.step, "capped_by")
    if cap is None:
        return None
    more = e.small or (e.state == "improving" and (e.turn or 0) > limits.AHEAD)
    says = f"At least half of the clients step at their cap, {name} = {number(cap)}, in most of the last rounds."
    advice = (
        instead(e, cap, **{name: cap * e.short_by}),
        "--algorithm auto, which moves its cap",
    )
    return Finding("step cap binds", "cause" if e.small else "watch" if more else "fine", says, advice if more else ())


def _growth_bound(e: Evidence) -> Finding | None:
    name, start = declared(e.step, "grows_from"), setting(e.step, "grows_from")
    if start is None or not grows(e):
        return None
    says = (
        f"All clients are at {type(e.step).__name__}'s growth bound: steps start at {name} = {number(start)}, grow by a few percent each "
        f"and restart every round; the largest mean step is {number(max(row[4] for row in e.quartiles()))}."
    )
    advice = (instead(e, start, **{name: start * e.short_by}), "--algorithm auto")
    return Finding("growth bound binds", "cause" if e.small else "watch", says, advice)


def _no_cap(e: Evidence) -> Finding | None:
    cap, least = declared(e.step, "capped_by"), declared(e.step, "least_loss")
    if cap is None or least is None or setting(e.step, "capped_by") is not None or not e.bad or e.small or e.clamped:
        return None
    if e.loss is not None and e.loss.level < limits.LOW * e.start:
        return None
    rows = e.quartiles()
    top, less = max((row[4] for row in rows), default=math.inf), min((row[1] for row in rows), default=1.0)
    says = (
        f"Polyak's step has no cap and assumes a minimum loss of {number(least)}, but the loss stays high; "
        f"steps reach {number(top)}."
    )
    advice = (instead(e, None, **{cap: min(1.0, less)}), "--algorithm auto, which is Polyak's step under a cap")
    return Finding("Polyak without a cap", "cause", says, advice)


def _failures(e: Evidence) -> Finding | None:
    failed, rows = e.record.total("failed"), e.quartiles()
    if not failed:
        return None
    says = f"{failed:,.0f} line searches found no step and took 1e-6 instead."
    advice = (
        "float64 or larger batches: near a minimum, rounding and noise decide the search",
        "a search that requires less decrease: c=0.01",
    )
    stuck = bool(rows) and sum(row[2] < limits.FLOOR for row in rows) > limits.MOSTLY * len(rows)
    if stuck and e.state != "converged":
        return Finding("line search fails", "cause", f"{says} At least half of the clients hardly move.", advice)
    return Finding("line search fails", "fine" if e.state == "converged" else "watch", says, advice)


def _trials(e: Evidence) -> Finding | None:
    trials, step = e.usual("trials"), e.step
    if not trials or (step is not None and not declared(step, "searches")):
        return None
    says = f"A local step takes {number(trials)} line-search trials."
    if trials <= limits.TRIALS:
        return Finding("line search", "fine", says)
    name, top, rows = declared(step, "capped_by"), setting(step, "capped_by") or 0.0, e.quartiles()
    near = 2 * rows[-1][3] if rows else math.inf
    start = (f"start closer to the accepted steps: {instead(e, top, **{name: near})}",) if near < top else ()
    advice = (*start, "coarser trials: backtrack=0.5", "--algorithm auto (no line search)")
    return Finding("line search costs", "watch", f"{says} Each is a forward pass.", advice)
