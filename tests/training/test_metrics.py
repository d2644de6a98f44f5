"""Metrics against scikit-learn on all rows, however they were batched."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn import metrics as reference
from torch import nn

from steelyard import Ragged, Rows, SharedModel, SteelyardError, Suite, Task
from steelyard.tasks import IGNORE
from steelyard.training import METRICS, evaluate
from steelyard.training.metrics import metric_of


class Echo(nn.Module):
    """Gives its inputs back, so that a test chooses the outputs."""

    width = 3

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, inputs, mask=None):
        return inputs if mask is None else nn.functional.one_hot(inputs % 3, 3).float()


def value(kind, inputs, labels, metric, classes=None, batch_size=4):
    task = Task("a", kind, {"test": Rows(inputs, labels)}, classes, metric=metric, head=lambda *_: nn.Identity())
    model = SharedModel(Echo(), Suite([task]))
    return evaluate(model, task, task.rows["test"], batch_size=batch_size)[metric]


LOGITS = torch.randn(23, 3, generator=torch.Generator().manual_seed(1))
CLASSES = torch.randint(0, 3, (23,), generator=torch.Generator().manual_seed(2))
MANY = torch.randint(0, 2, (23, 3), generator=torch.Generator().manual_seed(3)).float()


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("accuracy", lambda y, c, _: reference.accuracy_score(y, c)),
        ("macro_f1", lambda y, c, _: reference.f1_score(y, c, average="macro")),
        ("micro_f1", lambda y, c, _: reference.f1_score(y, c, average="micro")),
        ("matthews", lambda y, c, _: reference.matthews_corrcoef(y, c)),
        ("auroc", lambda y, _, p: reference.roc_auc_score(y, p, multi_class="ovr")),
        ("average_precision", lambda y, _, p: reference.average_precision_score(np.eye(3)[y], p)),
    ],
)
def test_classification(metric, expected):
    found = value("classification", LOGITS, CLASSES, metric)
    assert found == pytest.approx(expected(CLASSES.numpy(), LOGITS.argmax(1).numpy(), LOGITS.softmax(1).numpy()))
    labels = torch.cat([CLASSES, torch.full((5,), IGNORE)])
    assert value("classification", torch.cat([LOGITS, LOGITS[:5]]), labels, metric) == pytest.approx(found)


@pytest.mark.parametrize("average", ["macro", "micro"])
def test_f1_counts_classes_that_are_predicted_but_never_right(average):
    """A dev set that lacks a class: what is taken for it is still wrong."""
    labels = CLASSES.clamp(max=1)
    chosen = LOGITS.argmax(1)
    assert 2 in chosen
    expected = reference.f1_score(labels, chosen, average=average)
    assert value("classification", LOGITS, labels, f"{average}_f1") == pytest.approx(expected)
    if average == "micro":
        assert expected == pytest.approx(reference.accuracy_score(labels, chosen))


def test_ranking_of_two_classes_and_of_one():
    labels = (CLASSES > 0).long()
    margin = LOGITS[:, 1] - LOGITS[:, 0]
    assert value("classification", LOGITS[:, :2], labels, "auroc") == pytest.approx(
        reference.roc_auc_score(labels, margin)
    )
    assert math.isnan(value("classification", LOGITS[:, :2], torch.ones(23).long(), "auroc"))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("metric", "each"),
    [("auroc", reference.roc_auc_score), ("average_precision", reference.average_precision_score)],
)
def test_multilabel_ranking(metric, each, missing):
    labels = MANY.clone()
    if missing:
        labels[::4, 1] = float("nan")
        labels[:, 2] = 1.0
    columns = [(labels[:, k][~labels[:, k].isnan()], LOGITS[:, k][~labels[:, k].isnan()]) for k in range(3)]
    expected = [each(y, s) for y, s in columns if len(y.unique()) == 2]
    assert value("multilabel", LOGITS, labels, metric) == pytest.approx(np.mean(expected))


def test_multilabel_f1_and_accuracy():
    chosen = (LOGITS > 0).int()
    for metric, average in (("macro_f1", "macro"), ("micro_f1", "micro")):
        expected = reference.f1_score(MANY, chosen, average=average)
        assert value("multilabel", LOGITS, MANY, metric) == pytest.approx(expected)
    assert value("multilabel", LOGITS, MANY, "accuracy") == pytest.approx((chosen == MANY).float().mean().item())


def test_regression_and_missing_values():
    labels = torch.randn(23, 3)
    assert value("regression", LOGITS[:, :1], labels[:, 0], "rmse") == pytest.approx(
        (LOGITS[:, 0] - labels[:, 0]).square().mean().sqrt().item(), rel=1e-5
    )
    labels[::3, 1] = float("nan")
    kept = [~labels[:, k].isnan() for k in range(3)]
    expected = np.mean([spearmanr(labels[k_, k], LOGITS[k_, k]).statistic for k, k_ in enumerate(kept)])
    assert value("regression", LOGITS, labels, "spearman") == pytest.approx(expected)


def test_tags_and_spans_over_batches_of_different_length():
    names = ("O", "B-PER", "I-PER")
    texts = [[1, 2, 0, 1], [0, 0], [1], [1, 2, 2, 0, 0, 1], [0, 1, 2]]
    labels = [[1, 2, 0, 0], [0, 1], [1], [1, 2, 2, 0, 0, IGNORE], [0, 1, 2]]
    inputs, tags = Ragged.of(texts), Ragged.of(labels)
    # Gold spans: 0-1, row 1's 1, row 2's 0, 0-2, row 4's 1-2 (5); found: those but row 1's, and one of row 0's (5).
    assert value("tagging", inputs, tags, "span_f1", names, batch_size=2) == pytest.approx(2 * 4 / (5 + 5))
    assert value("tagging", inputs, tags, "accuracy", names, batch_size=2) == pytest.approx(13 / 15)


def test_short_texts_are_not_padded_to_long_ones():
    seen = []

    class Watching(Echo):
        def forward(self, inputs, mask=None):
            seen.append(inputs.shape)
            return super().forward(inputs, mask)

    texts = [[1] * (20 if number % 4 == 0 else 2) for number in range(32)]
    tags = [[1] * len(text) for text in texts]
    task = Task(
        "a", "tagging", {"test": Rows(Ragged.of(texts), Ragged.of(tags))}, outputs=3, head=lambda *_: nn.Identity()
    )
    model = SharedModel(Watching(), Suite([task]))
    seen.clear()
    assert evaluate(model, task, task.rows["test"], batch_size=32)["accuracy"] == 1
    assert sorted(seen) == [(8, 2), (8, 2), (8, 2), (8, 20)]


def test_the_loss_is_the_mean_over_all_labels_not_over_batches():
    rows = Rows(LOGITS, CLASSES)
    task = Task("a", "classification", {"test": rows}, head=lambda *_: nn.Identity())
    model = SharedModel(Echo(), Suite([task]))
    expected = nn.functional.cross_entropy(LOGITS, CLASSES).item()
    assert evaluate(model, task, rows, batch_size=7)["loss"] == pytest.approx(expected, rel=1e-5)


def test_wrong_metrics_are_refused():
    task = Task("a", "regression", {}, outputs=1, metric="accuracy")
    with pytest.raises(SteelyardError, match="not for regression; choose spearman, rmse"):
        metric_of(task)
    with pytest.raises(SteelyardError, match="did you mean 'rmse'"):
        metric_of(Task("a", "regression", {}, outputs=1, metric="rmsee"))


def test_every_metric_says_its_direction():
    assert {name for name, metric in METRICS.items() if not metric.higher} == {"rmse"}
