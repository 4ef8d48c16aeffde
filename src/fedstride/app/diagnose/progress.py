"""Outcome of the run: diverged, rising, slow, on a plateau, still improving, or converged; and overfitting."""

from __future__ import annotations

import math

from fedstride.app.diagnose import limits
from fedstride.app.diagnose.evidence import Evidence, sixths
from fedstride.app.diagnose.finding import Finding, number, share
from fedstride.app.diagnose.learned import WORDS, nothing


def outcome(e: Evidence) -> Finding:
    """Return the finding that summarises the whole run."""
    went = {
        "diverged": _diverged,
        "short": _short,
        "rising": _rising,
        "slow": _slow,
        "plateau": _plateau,
        "improving": _improving,
        "converged": _converged,
    }[e.state](e)
    return nothing(e, went) if e.unlearned else went


def overfitting(e: Evidence) -> Finding | None:
    """Detect a test loss that rises while the training loss falls."""
    test, train = e.known("test_loss"), e.known("train_loss")
    if min(len(test), len(train)) < limits.ROUNDS or e.state in ("diverged", "rising"):
        return None
    tested, trained = sixths(test), sixths(train)
    best = min(range(6), key=tested.__getitem__)
    if not e.came_back("test_loss") or trained[-1] >= trained[best]:
        if e.state == "slow":
            return None
        return Finding("overfitting", "fine", "The test loss does not rise while the training loss falls.")
    rise = tested[-1] / tested[best] - 1 if tested[best] > 0 else math.inf
    at = round((best + 0.5) * e.rounds / 6)
    says = (
        f"The test loss has risen by {share(rise)} since about round {at}, to {number(tested[-1])}, while the training loss fell "
        f"from {number(trained[best])} to {number(trained[-1])}."
    )
    advice = (
        f"stop near round {at}: --rounds {at}",
        "--set training.weight_decay=0.0001 (fs.train(..., weight_decay=1e-4))",
        "fewer local steps per round: --set training.epochs=0.5 or training.local_steps",
    )
    return Finding("overfitting", "cause", says, advice)


def unseen(e: Evidence) -> Finding | None:
    if not e.unseen:
        return None
    says = "The returned model is an average of the iterates and was not evaluated; this diagnosis uses the iterates' loss."
    return Finding(
        "returned model not evaluated", "unknown", says, ("pass test= (and evaluate_every= if it takes long)",)
    )


def unfinished(e: Evidence) -> Finding | None:
    if e.planned is None or e.rounds >= e.planned or e.state == "diverged":
        return None
    says = f"The folder has {e.rounds} of {e.planned} rounds: the run was stopped, is still running, or diverged in the next round."
    return Finding("unfinished", "watch", says, ("continue with --resume",))


def _diverged(e: Evidence) -> Finding:
    if e.broken is not None:
        says = f"The loss of round {e.broken} is not finite."
    else:
        last = [v for name in WORDS if (v := e.record.last(name)) is not None]
        says = f"The loss went from {number(e.start)} to {number(max(last))} in {_count(e.rounds)}."
    stopped = f" The run ended after {_count(e.rounds)} of {e.planned}." if e.planned and e.rounds < e.planned else ""
    return Finding("diverged", "cause", says + stopped, ("shorter steps, or a rule that finds them: --algorithm auto",))


def _short(e: Evidence) -> Finding:
    says = f"{_count(e.rounds).capitalize()} {'is' if e.rounds == 1 else 'are'} too few to see a trend; {limits.ROUNDS} are needed."
    return Finding("too short", "unknown", says, (f"--rounds {10 * limits.ROUNDS}",))


def _rising(e: Evidence) -> Finding:
    values = e.known(e.watched)
    says = (
        f"The {WORDS[e.watched]} rises: {number(min(sixths(values)))} at best, {number(sixths(values)[-1])} at the end."
    )
    return Finding("rising", "watch", says, ("--algorithm auto, whose steps follow the loss",))


def _slow(e: Evidence) -> Finding:
    went = f"fell by only {share(e.fell)}" if e.fell >= 0 else f"is {share(-e.fell)} higher than at the start"
    says = f"The {WORDS[e.watched]} {went} in {_count(e.rounds)}, from {e.start:.4g} to {e.known(e.watched)[-1]:.4g}."
    return Finding("slow", "watch", says, ("--algorithm auto, which finds its steps",))


def _plateau(e: Evidence) -> Finding:
    assert e.loss is not None
    part = f", {share(1 - e.fell)} of the first" if e.start > 0 and e.loss.level > 0 else ""
    says = f"The {WORDS[e.watched]} has stayed at {number(e.loss.level)} for the last {e.loss.values} values{part}."
    advice = ("--algorithm auto, or scaffold if clients differ", "a larger model: the loss may be the best it can do")
    return Finding("plateau", "watch", says, advice)


def _improving(e: Evidence) -> Finding:
    assert e.loss is not None
    parts = sixths(e.known(e.watched))
    gain = 1 - parts[5] / parts[3] if parts[3] > 0 else 0.0
    says = (
        f"Still improving: the {WORDS[e.watched]} fell by {share(gain)} in the last third of {_count(e.rounds)}, "
        f"to {number(e.known(e.watched)[-1])}."
    )
    return Finding("still improving", "watch", says, (f"more rounds: --resume --rounds {2 * e.rounds}",))


def _converged(e: Evidence) -> Finding:
    assert e.loss is not None
    part = f", {share(1 - e.fell)} of the first" if e.start > 0 and e.loss.level > 0 else ""
    what = f"the {WORDS[e.watched]} is {number(e.loss.level)}{part}"
    return Finding("converged", "fine", f"It converged: {what}, and the last third of the rounds changed little.")


def _count(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"
