"""Data that is in memory already: arrays, lists of texts, scikit-learn bunches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.data import cache
from steelyard.data.build import Prepared, assemble
from steelyard.data.readers import Dialect
from steelyard.data.resolve import Resolved, Resolver
from steelyard.data.schema import DataTable, FeatureOptions
from steelyard.data.table import Table, View
from steelyard.errors import SteelyardError
from steelyard.tasks import Kind, Role

Labelled = tuple[Any, Any]
"""Inputs and labels."""

LABEL = "label"


def from_arrays(
    target: Labelled | Mapping[str, Any],
    sources: Mapping[str, Labelled | Mapping[str, Any]] | None = None,
    *,
    dev: Labelled | None = None,
    test: Labelled | None = None,
    name: str = "target",
    kinds: Mapping[str, Kind | str] | None = None,
    dev_fraction: float = 0.1,
    seed: int = 0,
) -> Prepared:
    """Arrays, or scikit-learn bunches, as tasks.

    Rows that are vectors are standardised on train; rows of more dimensions (images) are taken as they are.
    Tasks that are given the same array share its rows.

    Args:
        target: ``(X, y)`` or a bunch. ``y`` holds classes or numbers ``[N]``, or one column per label ``[N, K]``;
            NaN and None mean "no label".
        sources: The same, by name.
        dev: The target's rows to choose the best model on; by default a fraction of train.
        test: The target's rows for the final figures.
        name: The target's name.
        kinds: What is predicted, by name; by default it is read from the labels.
        dev_fraction: The share of train that becomes dev.
        seed: Of that split.
    """
    return _prepared(_array_table, target, sources, dev, test, name, kinds, dev_fraction, seed, FeatureOptions())


def from_texts(
    target: Labelled,
    sources: Mapping[str, Labelled] | None = None,
    *,
    dev: Labelled | None = None,
    test: Labelled | None = None,
    name: str = "target",
    kinds: Mapping[str, Kind | str] | None = None,
    dev_fraction: float = 0.1,
    seed: int = 0,
    features: FeatureOptions | None = None,
) -> Prepared:
    """Lists of texts as tasks; see `from_arrays`.

    Args:
        target: ``(texts, labels)``.
        sources: The same, by name.
        dev: The target's rows to choose the best model on; by default a fraction of train.
        test: The target's rows for the final figures.
        name: The target's name.
        kinds: What is predicted, by name; by default it is read from the labels.
        dev_fraction: The share of train that becomes dev.
        seed: Of that split.
        features: How text becomes ids.
    """
    options = features or FeatureOptions()
    return _prepared(_text_table, target, sources, dev, test, name, kinds, dev_fraction, seed, options)


def _prepared(
    make: Any,
    target: Any,
    sources: Mapping[str, Any] | None,
    dev: Any,
    test: Any,
    name: str,
    kinds: Mapping[str, Kind | str] | None,
    dev_fraction: float,
    seed: int,
    options: FeatureOptions,
) -> Prepared:
    resolver = Resolver(Path(), seed)
    given = {Role.TRAIN: target, Role.DEV_SELECT: dev, Role.TEST: test}
    everything = {name: {role: rows for role, rows in given.items() if rows is not None}}
    for source, rows in (sources or {}).items():
        if source == name:
            raise SteelyardError(f"the target and a source are both called {name!r}; give each its own name")
        everything[source] = {Role.TRAIN: rows}
    kind = {n: Kind(k) for n, k in (kinds or {}).items()}
    tasks = [_task(resolver, make, n, roles, kind.get(n), dev_fraction) for n, roles in everything.items()]
    return assemble(tasks, options, Path())


def _task(
    resolver: Resolver, make: Any, name: str, roles: Mapping[Role, Any], kind: Kind | None, fraction: float
) -> Resolved:
    views, inputs, labels = {}, {}, []
    for role, rows in roles.items():
        table, inputs = make(_pair(rows, name), f"{name} ({role})")
        views[role] = View(table)
        labels = [c for c in table.arrow.column_names if c == LABEL or c.startswith(f"{LABEL}-")]
    spec = DataTable(name=name, train="memory", label=labels, kind=kind, dev_fraction=fraction, **inputs)
    return resolver.complete(spec, views, Dialect())


def _pair(rows: Any, name: str) -> Labelled:
    """``(X, y)``, from a pair or a bunch; the classes of a bunch are called by their names."""
    if not isinstance(rows, Mapping):
        inputs, labels = rows
    else:
        inputs, labels = rows["data"], rows["target"]
        names = rows.get("target_names")
        if names is not None and np.issubdtype(np.asarray(labels).dtype, np.integer):
            labels = np.asarray(names)[labels]
    if len(inputs) != len(labels):
        raise SteelyardError(f"task {name!r}: {len(inputs)} inputs but {len(labels)} labels; give one label per row")
    return inputs, labels


def _array_table(rows: Labelled, origin: str) -> tuple[Table, dict[str, Any]]:
    import pyarrow as pa

    array = np.ascontiguousarray(rows[0], dtype=np.float32)
    digest = cache.digest("array", array.shape, hashlib.sha256(array.tobytes()).hexdigest())
    columns = _label_columns(rows[1])
    if array.ndim != 2:
        dense = {"x": torch.from_numpy(array)}
        return Table(pa.table(columns), origin, digest, tensors=dense), {}
    names = [f"x{i}" for i in range(array.shape[1])]
    table = pa.table({**dict(zip(names, array.T, strict=True)), **columns})
    return Table(table, origin, digest), {"features": names}


def _text_table(rows: Labelled, origin: str) -> tuple[Table, dict[str, Any]]:
    import pyarrow as pa

    texts: Sequence[str] = [str(text) for text in rows[0]]
    table = pa.table({"text": texts, **_label_columns(rows[1])})
    return Table(table, origin, cache.digest("texts", texts)), {"text": ["text"]}


def _label_columns(labels: Any) -> dict[str, Any]:
    """Labels as Arrow columns; one column per label if there are several."""
    import pyarrow as pa

    if isinstance(labels, np.ndarray) and labels.ndim == 2:
        return {f"{LABEL}-{k}": pa.array(_plain(labels[:, k])) for k in range(labels.shape[1])}
    return {LABEL: pa.array(_plain(labels))}


def _plain(labels: Any) -> list[Any]:
    """Plain values; NaN and None are nothing."""
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    return [None if isinstance(v, float) and np.isnan(v) else v for v in values]
