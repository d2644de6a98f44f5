"""Kinds of task and label spaces are read from train."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from steelyard import data
from steelyard.tasks import IGNORE, Kind, Role, Task

Write = Callable[[str, str], Path]


def task(base: Path, column: list[str], **settings: Any) -> tuple[Task, data.Prepared]:
    (base / "t.csv").write_text("body,y\n" + "".join(f"text {i},{value}\n" for i, value in enumerate(column)))
    spec: dict[str, Any] = {"name": "t", "train": "t.csv", "text": "body", "label": "y", "dev_fraction": 0}
    prepared = data.build(data.TargetData(**{**spec, **settings}), base=base)
    return prepared.suite["t"], prepared


@pytest.mark.parametrize(
    ("column", "kind", "classes"),
    [
        (["b", "a", "b", "a"], Kind.CLASSIFICATION, ("a", "b")),
        (["10", "2", "10", "2"], Kind.CLASSIFICATION, ("2", "10")),
        (["1.0", "2", "1", "2.0"], Kind.CLASSIFICATION, ("1", "2")),
        (["1.5", "2", "-3e1", "2.0"], Kind.REGRESSION, None),
        ([str(i) for i in range(30)], Kind.REGRESSION, None),
        (["a|b", "b", "c | a", "b"], Kind.MULTILABEL, ("a", "b", "c")),
    ],
    ids=["names", "whole", "floats that are whole", "floats", "many whole", "joined"],
)
def test_kind_is_inferred_and_said(tmp_path: Path, column: list[str], kind: Kind, classes: tuple[str, ...]) -> None:
    found, prepared = task(tmp_path, column)
    assert (found.kind, found.classes) == (kind, classes)
    assert prepared.summary.notes[0].startswith(f"t: {kind}")


def test_missing_labels(tmp_path: Path) -> None:
    found, prepared = task(tmp_path, ["a", "", "b", " ", "a", "b"])
    assert found.rows[Role.TRAIN].labels.tolist() == [0, IGNORE, 1, IGNORE, 0, 1]
    assert prepared.summary.entries[0].missing == 2
    found, _ = task(tmp_path, ["0.5", "", "nan", "2.5"])
    assert found.rows[Role.TRAIN].labels.isnan().tolist() == [False, True, True, False]
    found, _ = task(tmp_path, ["a|b", "", "b"])
    assert found.rows[Role.TRAIN].labels.isnan().tolist() == [[False, False], [True, True], [False, False]]


def test_sets_of_labels(tmp_path: Path) -> None:
    found, _ = task(tmp_path, ["a|b", "b", "c|a"])
    assert found.rows[Role.TRAIN].labels.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_several_columns(write: Write, tmp_path: Path) -> None:
    write("t.csv", "body,p,q\na b,1,0\nb c,true,\nc d,0,1.0\n")
    spec = data.TargetData(name="t", train="t.csv", text="body", label=["p", "q"], dev_fraction=0)
    found = data.build(spec, base=tmp_path).suite["t"]
    assert (found.kind, found.classes) == (Kind.MULTILABEL, ("p", "q"))
    labels = found.rows[Role.TRAIN].labels
    assert labels[[0, 2]].tolist() == [[1, 0], [0, 1]]
    assert labels[1, 0] == 1
    assert math.isnan(labels[1, 1])
    write("t.csv", "body,p,q\na b,1.5,0\nb c,2,3\n")
    found = data.build(spec, base=tmp_path).suite["t"]
    assert (found.kind, found.outputs) == (Kind.REGRESSION, 2)
    assert found.in_units(found.rows[Role.TRAIN].labels).tolist() == [[1.5, 0], [2, 3]]


def test_rare_classes(tmp_path: Path) -> None:
    column = ["a", "b", "a", "b", "once"]
    found, prepared = task(tmp_path, column, rare="drop")
    assert found.classes == ("a", "b")
    assert found.rows[Role.TRAIN].labels.tolist() == [0, 1, 0, 1, IGNORE]
    assert any("once" in note for note in prepared.summary.notes)
    found, _ = task(tmp_path, column, rare="keep")
    assert found.classes == ("a", "b", "once")


def test_label_space_can_be_named(tmp_path: Path) -> None:
    found, _ = task(tmp_path, ["b", "a", "b"], classes=["c", "b", "a"])
    assert found.classes == ("c", "b", "a")
    assert found.rows[Role.TRAIN].labels.tolist() == [1, 2, 1]


def test_parquet_labels_keep_their_types(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"x": [0.0, 1.0, 2.0, 3.0], "flag": [True, False, None, True], "real": [0.5, None, float("nan"), 1.25]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    for name, expected in (("flag", [1, 0, IGNORE, 1]), ("real", [0.5, None, None, 1.25])):
        spec = data.TargetData(name="t", train="t.parquet", features="x", label=name, dev_fraction=0, rare="keep")
        found = data.build(spec, base=tmp_path).suite["t"]
        labels = found.in_units(found.rows[Role.TRAIN].labels)
        assert [None if v != v else v for v in labels.tolist()] == expected  # noqa: PLR0124 - NaN
    assert labels.dtype == torch.float32
