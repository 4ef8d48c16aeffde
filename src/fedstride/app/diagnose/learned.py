"""Findings about learning: comparison with a constant prediction, and inputs that hinder learning."""

from __future__ import annotations

from dataclasses import replace

from fedstride.app.diagnose import limits
from fedstride.app.diagnose.evidence import Evidence, course, end
from fedstride.app.diagnose.facts import scales_of
from fedstride.app.diagnose.finding import AVERAGE, Finding, number

WORDS = {"train_loss": "training loss", "test_loss": "test loss"}
NORMALISE = "normalise the inputs: fs.train(..., normalise=True), or --set training.normalise=true"
BY_HAND = "scale each input feature by a constant that is known beforehand, such as its range"  # with privacy


def scales(e: Evidence) -> Finding | None:
    """Detect features of very different scale."""
    found = scales_of(e.facts)
    if found is None:
        return None
    small, large = found
    says = (
        f"The features differ in scale by a factor of {_size(large.size / small.size)}: the root mean square of feature "
        f"{large.feature} is {_size(large.size)}, that of feature {small.feature} {_size(small.size)}. "
        "A step that is short enough for one feature is too short for the other."
    )
    severity = "cause" if e.bad or e.unlearned else "watch"
    return Finding("features differ in scale", severity, says, (_normalise(e),))


def beyond_constant(e: Evidence) -> Finding | None:
    """Compare the returned model with the best constant prediction; if it is no better, the outcome says so."""
    if e.state in ("diverged", "short") or e.unlearned:
        return None
    if e.same_accuracy:
        says = f"The test accuracy is {_percent(e.known('test_accuracy')[-1])} in every round: the predictions may never change."
        advice = ("check whether the model predicts one class: run.model(inputs).argmax(1).unique()", _normalise(e))
        return Finding("accuracy never changes", "watch", says, advice)
    says = _figures(e)
    if not says:
        return None
    if e.accurate is False:
        what = "The accuracy is not clearly higher, but the probabilities are better."
        advice = ("compare losses, or the accuracy of each class", "more weight for rare classes in the loss")
        return Finding("most frequent class", "watch", f"{says} {what}", advice)
    if e.accurate and e.gain is not None and e.gain <= 0:
        what = "The model is often right, but too confident when it is wrong."
        decay = "--set training.weight_decay=0.0001 (fs.train(..., weight_decay=1e-4))"
        advice = (decay, *(() if e.averaged else (AVERAGE,)), "fewer rounds, if the test loss was lower before")
        return Finding("overconfident", "watch", f"{says} {what}", advice)
    if e.accurate is None and e.predictive is False:
        what = "The gain is small, but larger than chance."
        return Finding("little was learned", "watch", f"{says} {what}", _advice(e))
    return Finding("better than a constant", "fine", says)


def nothing(e: Evidence, went: Finding) -> Finding:
    """Return the outcome of a run in which nothing was learned; `went` describes its loss."""
    if e.state == "improving":
        says = f"Nothing has been learned so far: {_lower(_evidence(e))} {went.says}"
        return Finding("nothing learned yet", "watch", says, (*went.advice, *_advice(e)))
    how_much = "Almost nothing" if e.gain is not None and e.gain > e.constant.chance else "Nothing"
    says = f"{how_much} was learned: {_lower(_evidence(e))} {went.says}"
    return replace(went, name="nothing was learned", severity="cause", says=says, advice=_advice(e))


def _evidence(e: Evidence) -> str:
    if e.accurate is not None or e.gain is not None:
        return _figures(e)
    if not e.flat:
        return f"The test accuracy is {_percent(e.known('test_accuracy')[-1])} in every round."
    values = e.known(e.watched)
    early, late = sum(values[: limits.LATE]) / limits.LATE, course(end(values)).level
    return (
        f"The {WORDS[e.watched]} was {early:.4g} in the first rounds and is {late:.4g} in the last, within its noise."
    )


def _figures(e: Evidence) -> str:
    """Compare test accuracy and loss with the best constant prediction, as far as they are known."""
    constant, sentences = e.constant, []
    if e.accurate is not None:
        assert constant.accuracy is not None
        sentences.append(
            f"The test accuracy is {_percent(e.usual('test_accuracy') or 0.0)}, and always predicting the most frequent class "
            f"gives {_percent(constant.accuracy)} (of {constant.samples:,} samples)."
        )
    if e.gain is not None:
        assert constant.loss is not None
        sentences.append(
            f"The test loss is {e.usual('test_loss') or 0.0:.4g}, and the best constant prediction has {constant.loss:.4g}."
        )
    return " ".join(sentences)


def _advice(e: Evidence) -> tuple[str, ...]:
    normalised = e.facts.get("normalised") or e.record.config.get("data", {}).get("normalise")
    return (
        *(() if normalised or scales_of(e.facts) else (_normalise(e),)),  # scales() already advises it
        "another algorithm: --algorithm fedavgm or fedadam, with a few rates",
        "train the model on 20 samples of one client: if it cannot memorise them, model, loss or labels are wrong",
    )


def _normalise(e: Evidence) -> str:
    return BY_HAND if e.algorithm is not None and e.algorithm.privacy is not None else NORMALISE


def _size(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e9 else number(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
