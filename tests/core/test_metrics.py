"""Metrics against scikit-learn's, and what cannot be a metric."""

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from fedstride import InvalidInput
from fedstride.core import metrics, scores

torch.manual_seed(0)
LOGITS, LABELS = torch.randn(300, 4), torch.randint(0, 4, (300,))
SCORES, BINARY = torch.randn(200, 1).round(decimals=1), torch.randint(0, 2, (200,))
REAL = torch.randn(50, 1)


@pytest.mark.filterwarnings("ignore:y_pred", "ignore:Recall")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", lambda t, p: sklearn.accuracy_score(t, p)),
        ("balanced_accuracy", lambda t, p: sklearn.balanced_accuracy_score(t, p)),
        ("f1", lambda t, p: sklearn.f1_score(t, p, average="macro")),
        ("precision", lambda t, p: sklearn.precision_score(t, p, average="macro")),
        ("recall", lambda t, p: sklearn.recall_score(t, p, average="macro")),
    ],
)
def test_several_classes_as_scikit_learn_says(name, expected):
    assert scores.METRICS[name](LOGITS, LABELS) == pytest.approx(expected(LABELS, LOGITS.argmax(1)), abs=1e-12)
    few = LABELS.clamp(max=2)  # class 3 is predicted and never there
    assert scores.METRICS[name](LOGITS, few) == pytest.approx(expected(few, LOGITS.argmax(1)), abs=1e-12)


@pytest.mark.parametrize("name", ["f1", "precision", "recall"])
@pytest.mark.parametrize("negative", [0, -1])
def test_one_output_is_a_binary_classifier(name, negative):
    targets = torch.where(BINARY == 1, 1, negative)
    expected = getattr(sklearn, f"{name}_score")(BINARY, SCORES[:, 0] > 0)
    assert scores.METRICS[name](SCORES, targets) == pytest.approx(expected, abs=1e-12)


def test_auc():
    assert metrics.auc(SCORES, BINARY) == pytest.approx(sklearn.roc_auc_score(BINARY, SCORES[:, 0]), abs=1e-12)
    two = torch.cat([torch.zeros_like(SCORES), SCORES], 1)
    assert metrics.auc(two, BINARY) == pytest.approx(metrics.auc(SCORES, BINARY), abs=1e-12)
    expected = sklearn.roc_auc_score(LABELS, LOGITS.double().softmax(1), multi_class="ovr")
    assert metrics.auc(LOGITS, LABELS) == pytest.approx(expected, abs=1e-12)
    assert math.isnan(metrics.auc(SCORES, torch.ones(200)))


def test_regression():
    targets = torch.randn(50)
    assert metrics.mse(REAL, targets) == pytest.approx(sklearn.mean_squared_error(targets, REAL[:, 0]))
    assert metrics.rmse(REAL, targets) == pytest.approx(np.sqrt(sklearn.mean_squared_error(targets, REAL[:, 0])))
    assert metrics.mae(REAL, targets) == pytest.approx(sklearn.mean_absolute_error(targets, REAL[:, 0]))
    assert metrics.r2(REAL, targets[:, None]) == pytest.approx(sklearn.r2_score(targets, REAL[:, 0]))


def test_ignored_labels_do_not_count():
    ignored = torch.where(torch.arange(300) < 100, -100, LABELS)
    assert metrics.f1(LOGITS, ignored) == pytest.approx(metrics.f1(LOGITS[100:], LABELS[100:]))
    assert metrics.cross_entropy(LOGITS, ignored) == pytest.approx(metrics.cross_entropy(LOGITS[100:], LABELS[100:]))
    assert metrics.perplexity(LOGITS, LABELS) == pytest.approx(math.exp(metrics.cross_entropy(LOGITS, LABELS)))


class Counter:
    """As torchmetrics' objects are."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.n = 0

    def update(self, outputs, targets):
        self.n += len(targets)

    def compute(self):
        return torch.tensor(float(self.n))


def test_objects_that_accumulate_start_anew():
    found = scores.resolve({"count": Counter(), "f1": metrics.f1, "also": "f1"})
    for _ in range(2):
        values = scores.computed(found, LOGITS, LABELS)
        assert values["count"] == 300
    assert values["f1"] == values["also"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("f1", "metrics='f1' is invalid: expected a dict"),
        (["acuracy"], "metrics: 'acuracy' is unknown; did you mean 'accuracy'"),
        ({"a b": metrics.f1}, "'a b' is not a valid name"),
        ({"own": Counter}, r"metrics\['own'\]: got the class Counter; expected an instance"),
        ([metrics.f1], "got f1 in a list; expected names"),
        ({"own": 3}, r"metrics\['own'\]=3 is invalid"),
    ],
)
def test_what_is_not_a_metric(given, message):
    with pytest.raises(InvalidInput, match=message):
        scores.resolve(given)


@pytest.mark.parametrize("metric", [metrics.f1, metrics.perplexity])
def test_classes_in_the_last_dimension(metric):
    with pytest.raises(InvalidInput, match=r"classes in the last dimension.* with outputs.transpose\(1, -1\)"):
        metric(torch.zeros(2, 5, 3), torch.zeros(2, 5).long())
    assert metric(torch.zeros(2, 3, 5), torch.zeros(2, 5).long()) >= 0


def test_outputs_that_are_not_a_tensor():
    with pytest.raises(InvalidInput, match=r"The model returns \(\[2, 3\] float32, \[2\] float32\)"):
        scores.computed({"f1": metrics.f1}, (torch.zeros(2, 3), torch.zeros(2)), torch.zeros(2))


@pytest.mark.parametrize("value", [lambda o, t: None, lambda o, t: o, lambda o, t: 1 / 0, lambda o: 1.0])
def test_a_metric_that_fails_is_named(value):
    with pytest.raises(InvalidInput, match=r"metrics\['own'\]: "):
        scores.computed({"own": value}, LOGITS, LABELS)
