"""Estimators by scikit-learn's conventions, with other labelled data to learn from.

    model = TargetClassifier(method="tawt").fit(X, y, sources={"reviews": (X_r, y_r), "prices": (X_p, y_p)})
    model.predict(X_new), model.source_weights_

Rows are vectors of numbers. For texts, images, and labels that rows lack, see `steelyard.fit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from steelyard.errors import SteelyardError
from steelyard.model import SharedModel
from steelyard.tasks import Kind, Role, Rows, Suite, Task, Units
from steelyard.training import fit

Source = tuple[ArrayLike, ArrayLike]
"""Rows and their labels: classes, numbers, or 0/1 columns."""

TARGET = "target"
"""What the estimator's own task is called where tasks have names."""

Float = NDArray[np.float64]


class _TargetEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share: sources become tasks beside the target's, and one model learns all of them."""

    def __init__(
        self,
        method: str | Mapping[str, Any] = "tawt",
        encoder: str = "mlp",
        *,
        encoder_options: Mapping[str, Any] | None = None,
        paradigm: str = "normalised_joint",
        epochs: int = 30,
        batch_size: int = 32,
        learning_rate: float = 2e-3,
        dev_fraction: float = 0.1,
        training: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.encoder = encoder
        self.encoder_options = encoder_options
        self.paradigm = paradigm
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.dev_fraction = dev_fraction
        self.training = training
        self.random_state = random_state

    def _fit(self, rows: Float, task: tuple[Kind, NDArray[Any]], sources: Mapping[str, Source] | None) -> Self:
        """Trains on the target's task, given by its kind and labels, and on the sources."""
        given = {name: self._source(name, *pair) for name, pair in (sources or {}).items()}
        self._scaler = StandardScaler().fit(np.concatenate([rows, *(part for part, _ in given.values())]))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        target, self._units = self._task(TARGET, rows, task, seed, held=True)
        others = [self._task(name, part, labels, seed)[0] for name, (part, labels) in given.items()]
        run = fit(
            Suite([target, *others], target=TARGET), self.encoder, self.method if others else "single",
            training=self.training, encoder_options=self.encoder_options, progress=False,
            paradigm="single" if not others else self.paradigm, epochs=self.epochs, batch_size=self.batch_size,
            learning_rate=self.learning_rate, seed=seed,
        )  # fmt: skip
        self.model_: SharedModel = run.model.cpu().eval()
        self.history_ = run.history
        self.weight_trace_ = run.weight_trace
        self.source_weights_ = {name: run.weights.get(name, 0.0) for name in given}
        return self

    def _source(self, name: str, rows: ArrayLike, labels: ArrayLike) -> tuple[Float, tuple[Kind, NDArray[Any]]]:
        if name == TARGET:
            raise SteelyardError(f"a source cannot be called {TARGET!r}: that is your own task's name")
        try:
            found = check_array(rows, dtype=np.float64)
            values = check_array(labels, ensure_2d=False, dtype=None)
        except ValueError as error:
            raise SteelyardError(f"source {name!r}: {error}") from None
        if len(found) != len(values):
            raise SteelyardError(f"source {name!r}: {len(found)} rows but {len(values)} labels; give one label per row")
        if found.shape[1] != self.n_features_in_:
            raise SteelyardError(
                f"source {name!r} has {found.shape[1]} features, the target {self.n_features_in_}; "
                "one encoder reads both: give the same columns"
            )
        return found, _meant(name, values)

    def _task(
        self, name: str, rows: Float, task: tuple[Kind, NDArray[Any]], seed: int, held: bool = False
    ) -> tuple[Task, Units | None]:
        """A task of the suite; regressions are learned in standard deviations of their training labels."""
        kind, labels = task
        chosen = _split(labels, kind, self.dev_fraction if held else 0.0, seed)
        inputs = torch.from_numpy(self._scaler.transform(rows).astype(np.float32))
        classes = kind is Kind.CLASSIFICATION
        values = torch.from_numpy(labels.astype(np.int64 if classes else np.float64))
        units = Units.of(values[chosen[Role.TRAIN]]) if kind is Kind.REGRESSION else None
        values = values if classes else (units.standard(values) if units else values).float()
        data = {role: Rows(inputs[index], values[index]) for role, index in chosen.items()}
        outputs = int(labels.max()) + 1 if classes else 1 if labels.ndim == 1 else labels.shape[1]
        return Task(name, kind, data, outputs=outputs), units

    def _outputs(self, rows: ArrayLike) -> Tensor:
        """What the target's head says of new rows, ``[N, outputs]`` in float64."""
        check_is_fitted(self)
        found = validate_data(self, rows, reset=False, dtype=np.float64)
        inputs = torch.from_numpy(self._scaler.transform(found).astype(np.float32))
        outputs = self.model_.predict(inputs, TARGET).double()
        return self._units.own(outputs) if self._units else outputs


class TargetClassifier(ClassifierMixin, _TargetEstimator):  # type: ignore[misc]
    """A classifier for a target with few labels, which learns from other labelled rows too.

    Args:
        method: Who decides what each source counts for: a name, or options with a ``name`` (`steelyard.methods`).
        encoder: The network that all tasks share, by name.
        encoder_options: Its options.
        paradigm: ``joint``, ``normalised_joint`` or ``pretrain``.
        epochs: Passes over as many rows as all tasks have together.
        batch_size: Rows of each task in a step.
        learning_rate: The optimiser's.
        dev_fraction: The share of the target's rows that chooses the best epoch; 0 keeps the last one.
        training: More settings of the loop (`steelyard.Training`).
        random_state: The seed: everything random follows it.

    Attributes:
        classes_: The target's classes.
        source_weights_: The last weight of each source. What a source counted for, not yet what it was worth.
        weight_trace_: ``(step, task, weight)`` over training.
        history_: One dictionary per epoch.
        model_: The trained `SharedModel`.
        n_features_in_: Numbers in a row.
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sources: Mapping[str, Source] | None = None) -> Self:  # noqa: N803
        """Learns the target's classes ``y`` of its rows ``X``, with the help of sources: ``{name: (X, y)}``."""
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self._encoder = LabelEncoder().fit(labels)
        self.classes_ = self._encoder.classes_
        if len(self.classes_) < 2:
            raise SteelyardError("the target has one class only; a classifier needs labels of at least two classes")
        return self._fit(rows, (Kind.CLASSIFICATION, self._encoder.transform(labels)), sources)

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each row, ``[N]``."""
        outputs = self._outputs(X)
        found: NDArray[Any] = self.classes_[outputs.argmax(1).numpy()]
        return found

    def predict_proba(self, X: ArrayLike) -> Float:  # noqa: N803
        """The probability of each class, ``[N, C]`` in the order of ``classes_``."""
        found: Float = self._outputs(X).softmax(1).numpy()
        return found


class TargetRegressor(RegressorMixin, _TargetEstimator):  # type: ignore[misc]
    """A regressor for a target with few labels, which learns from other labelled rows too.

    Its parameters and attributes are those of `TargetClassifier`, but for the classes. Each regression is learned in
    its own standard deviations, so that no task weighs more for its units.
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sources: Mapping[str, Source] | None = None) -> Self:  # noqa: N803
        """Learns the target's numbers ``y`` (``[N]`` or ``[N, K]``) of its rows, with the help of sources."""
        rows, labels = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self._flat = labels.ndim == 1
        return self._fit(rows, (Kind.REGRESSION, labels), sources)

    def predict(self, X: ArrayLike) -> Float:  # noqa: N803
        """The numbers of each row, ``[N]`` or ``[N, K]`` as they were given."""
        found: Float = self._outputs(X).numpy()
        return found[:, 0] if self._flat else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _meant(name: str, labels: NDArray[Any]) -> tuple[Kind, NDArray[Any]]:
    """What a source's labels are, and the numbers that stand for them."""
    kind = type_of_target(labels)
    if kind in ("binary", "multiclass"):
        return Kind.CLASSIFICATION, LabelEncoder().fit_transform(labels.ravel())
    if kind == "multilabel-indicator":
        return Kind.MULTILABEL, labels.astype(np.float64)
    if kind.startswith("continuous"):
        return Kind.REGRESSION, labels.astype(np.float64)
    raise SteelyardError(f"source {name!r}: labels that are {kind!r} cannot be learned; give classes or numbers")


def _split(labels: NDArray[Any], kind: Kind, fraction: float, seed: int) -> dict[Role, Tensor]:
    """Which rows are trained on and which choose the epoch, every class in both where that can be."""
    if not 0 <= fraction < 1:
        raise SteelyardError(f"dev_fraction = {fraction}: it is a share of the target's rows, at least 0 and below 1")
    rows, count = np.arange(len(labels)), round(fraction * len(labels))
    if not 0 < count < len(labels):
        return {Role.TRAIN: torch.from_numpy(rows)}
    counts = np.bincount(labels) if kind is Kind.CLASSIFICATION else np.zeros(1)
    balanced = kind is Kind.CLASSIFICATION and counts.min() > 1 and len(counts) <= min(count, len(labels) - count)
    parts: Sequence[Any] = train_test_split(
        rows, test_size=count, random_state=seed, stratify=labels if balanced else None
    )
    train, dev = (torch.from_numpy(np.sort(part)) for part in parts)
    return {Role.TRAIN: train, Role.DEV_SELECT: dev}
