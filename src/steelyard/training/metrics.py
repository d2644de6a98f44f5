"""Metrics over all of a task's predictions at once (a mean of batches' metrics is not the metric)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.errors import SteelyardError, did_you_mean
from steelyard.model import SharedModel
from steelyard.tasks import IGNORE, Kind, Ragged, Rows, Task, collate, labelled

Array = NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """A task's outputs and labels over a set of rows, without the rows (or tokens) that have no label.

    Attributes:
        scores: Logits or predictions: ``[n, C]``, ``[n, K]``; for tags, of all labelled tokens.
        labels: ``[n]`` or ``[n, K]`` (NaN where one of several labels is missing).
        lengths: For tags, labelled tokens per row.
        classes: The names of classes or tags.
    """

    scores: Array
    labels: Array
    lengths: Array | None
    classes: tuple[str, ...] | None


@dataclass(frozen=True)
class Metric:
    """A metric, the kinds of task that it is for, and its direction."""

    value: Callable[[Kind, Predictions], float]
    kinds: tuple[Kind, ...]
    higher: bool = True


def _chosen(kind: Kind, p: Predictions) -> tuple[Array, Array]:
    """Labels and predicted labels; several labels per row are flattened to those that are given."""
    if kind is Kind.MULTILABEL:
        given = ~np.isnan(p.labels.astype(float))
        return p.labels[given].astype(int), (p.scores > 0)[given].astype(int)
    return p.labels, p.scores.argmax(-1)


def _accuracy(kind: Kind, p: Predictions) -> float:
    labels, chosen = _chosen(kind, p)
    return float((labels == chosen).mean())


def _f1(average: str) -> Callable[[Kind, Predictions], float]:
    def value(kind: Kind, p: Predictions) -> float:
        from sklearn.metrics import f1_score

        if kind is not Kind.MULTILABEL:
            return float(f1_score(*_chosen(kind, p), average=average, zero_division=0))
        if average == "micro":
            return float(f1_score(*_chosen(kind, p), zero_division=0))
        return _mean_over_labels(p, lambda y, s: float(f1_score(y, s > 0, zero_division=0)), both=False)

    return value


def _ranked(name: str) -> Callable[[Kind, Predictions], float]:
    def value(kind: Kind, p: Predictions) -> float:
        from sklearn import metrics

        score: Callable[[Array, Array], float] = getattr(metrics, name)
        if kind is Kind.MULTILABEL:
            return _mean_over_labels(p, score)
        classes = np.unique(p.labels)
        hot = (p.labels[:, None] == np.arange(p.scores.shape[1])).astype(float)
        if p.scores.shape[1] == 2:
            hot, scores = hot[:, 1:], p.scores[:, 1:] - p.scores[:, :1]
        else:
            shifted = p.scores - p.scores.max(1, keepdims=True)
            scores = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
            hot, scores = hot[:, classes.astype(int)], scores[:, classes.astype(int)]
        return _mean_over_labels(Predictions(scores, hot, None, None), score)

    return value


def _mean_over_labels(p: Predictions, value: Callable[[Array, Array], float], both: bool = True) -> float:
    """The mean over the labels that can be judged: with ``both``, those seen with both answers."""
    found = []
    for labels, scores in zip(p.labels.astype(float).T, p.scores.T, strict=True):
        given = ~np.isnan(labels)
        answers = len(np.unique(labels[given]))
        if answers == 2 or (answers == 1 and not both):
            found.append(float(value(labels[given], scores[given])))
    return float(np.mean(found)) if found else math.nan


def _matthews(kind: Kind, p: Predictions) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(*_chosen(kind, p)))


def _columns(p: Predictions, value: Callable[[Array, Array], float]) -> float:
    labels, scores = p.labels.reshape(len(p.labels), -1), p.scores.reshape(len(p.scores), -1)
    found = []
    for y, s in zip(labels.T, scores.T, strict=True):
        given = ~np.isnan(y.astype(float))
        found.append(value(y[given], s[given]))
    return float(np.mean(found))


def _spearman(kind: Kind, p: Predictions) -> float:
    from scipy.stats import spearmanr

    del kind

    def value(y: Array, s: Array) -> float:
        constant = len(y) < 2 or (y == y[0]).all() or (s == s[0]).all()
        return math.nan if constant else float(spearmanr(y, s).statistic)

    return _columns(p, value)


def _rmse(kind: Kind, p: Predictions) -> float:
    del kind
    return _columns(p, lambda y, s: float(np.sqrt(np.mean((y - s) ** 2))))


def _span_f1(kind: Kind, p: Predictions) -> float:
    try:
        from seqeval.metrics import f1_score
    except ModuleNotFoundError:
        raise SteelyardError("metric 'span_f1' needs seqeval: pip install 'steelyard[text]'") from None
    if p.classes is None or p.lengths is None:
        raise SteelyardError("metric 'span_f1' needs the names of the tags: give the task its classes")
    names = np.array(p.classes)
    ends = np.cumsum(p.lengths)[:-1]
    labels, chosen = (np.split(names[part], ends) for part in _chosen(kind, p))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(f1_score([list(x) for x in labels], [list(x) for x in chosen], zero_division=0))


_ANY_CLASS = (Kind.CLASSIFICATION, Kind.MULTILABEL, Kind.TAGGING)

METRICS: dict[str, Metric] = {
    "accuracy": Metric(_accuracy, _ANY_CLASS),
    "macro_f1": Metric(_f1("macro"), _ANY_CLASS),
    "micro_f1": Metric(_f1("micro"), _ANY_CLASS),
    "auroc": Metric(_ranked("roc_auc_score"), (Kind.CLASSIFICATION, Kind.MULTILABEL)),
    "average_precision": Metric(_ranked("average_precision_score"), (Kind.CLASSIFICATION, Kind.MULTILABEL)),
    "matthews": Metric(_matthews, _ANY_CLASS),
    "spearman": Metric(_spearman, (Kind.REGRESSION,)),
    "rmse": Metric(_rmse, (Kind.REGRESSION,), higher=False),
    "span_f1": Metric(_span_f1, (Kind.TAGGING,)),
}
"""All metrics by name."""


def metric_of(task: Task) -> Metric:
    """A task's metric; refuses names that do not exist and metrics that do not fit its kind."""
    if task.metric not in METRICS:
        hint = did_you_mean(task.metric, METRICS) or f"the metrics are {', '.join(METRICS)}"
        raise SteelyardError(f"task {task.name!r}: there is no metric {task.metric!r}; {hint}")
    metric = METRICS[task.metric]
    if task.kind not in metric.kinds:
        fitting = [name for name, m in METRICS.items() if task.kind in m.kinds]
        raise SteelyardError(
            f"task {task.name!r}: metric {task.metric!r} is not for {task.kind}; choose {', '.join(fitting)}"
        )
    return metric


@torch.no_grad()
def evaluate(model: SharedModel, task: Task, rows: Rows, padding: int = 0, batch_size: int = 256) -> dict[str, float]:
    """A task's mean loss and metric over all rows, in evaluation mode: ``{"loss": …, metric name: …}``."""
    metric = metric_of(task)
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    kept = _Kept(task, rows)
    for index in _batches(rows, batch_size):
        batch = collate([(rows.inputs, index, [(task.name, rows.labels)])], padding).to(device)
        outputs, given = model(batch)[task.name], batch.parts[0].members[0].labels
        loss, count = task.loss(outputs, given)
        total += torch.stack([loss.sum(), count.sum()]).double().cpu()
        kept.add(outputs.float(), given)
    model.train(training)
    predictions = kept.predictions()
    value = metric.value(task.kind, predictions) if len(predictions.labels) else math.nan
    return {"loss": float(total[0] / total[1].clamp(min=1)), task.metric: value}


def _batches(rows: Rows, size: int) -> tuple[Tensor, ...]:
    """All rows; texts of like length stand together, so that short ones are not padded to the longest of all."""
    if isinstance(rows.inputs, Ragged):
        return torch.split(rows.inputs.lengths.argsort(stable=True), max(1, size // 4))
    return torch.split(torch.arange(len(rows)), size)


class _Kept:
    """Outputs and labels of the labelled rows or tokens, in the task's units.

    They go into tensors that are made once: small ones that are kept between the large ones of each batch would pin
    the memory that those leave behind, and a hundred thousand rows would cost gigabytes.
    """

    def __init__(self, task: Task, rows: Rows) -> None:
        self._task, self._size = task, len(rows.labels.values if isinstance(rows.labels, Ragged) else rows.labels)
        self._scores: Tensor | None = None
        self._labels: Tensor | None = None
        self._lengths = torch.zeros(len(rows), dtype=torch.long)
        self._rows = self._used = 0

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Keeps what a batch gave."""
        given = labels != IGNORE if self._task.kind is Kind.TAGGING else labelled(labels)
        if self._task.kind is not Kind.TAGGING and given.dim() > 1:
            given = given.flatten(1).any(1)
        scores, chosen = (self._task.in_units(values[given].cpu()) for values in (outputs, labels))
        if self._scores is None or self._labels is None:
            self._scores = scores.new_empty(self._size, *scores.shape[1:])
            self._labels = chosen.new_empty(self._size, *chosen.shape[1:])
        here = slice(self._used, self._used + len(chosen))
        self._scores[here], self._labels[here] = scores, chosen
        if self._task.kind is Kind.TAGGING:
            self._lengths[self._rows : self._rows + len(labels)] = given.sum(1)
        self._rows, self._used = self._rows + len(labels), here.stop

    def predictions(self) -> Predictions:
        """All of them."""
        if self._scores is None or self._labels is None:
            raise SteelyardError(f"task {self._task.name!r} has no rows to be judged on; give it some")
        lengths = self._lengths.numpy() if self._task.kind is Kind.TAGGING else None
        scores, labels = (kept[: self._used].numpy() for kept in (self._scores, self._labels))
        return Predictions(scores, labels, lengths, self._task.classes)
