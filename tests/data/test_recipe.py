"""New rows become the same inputs as in training, and outputs become labels again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from steelyard import data
from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Inputs, Ragged, Role

Write = Callable[[str, str], Path]


def equal(a: Inputs, b: Inputs) -> bool:
    if isinstance(a, Ragged) and isinstance(b, Ragged):
        return torch.equal(a.values, b.values) and torch.equal(a.offsets, b.offsets)
    return torch.equal(a, b)


def saved(prepared: data.Prepared, base: Path) -> data.Recipe:
    prepared.recipe.save(base / "recipe.json")
    return data.Recipe.load(base / "recipe.json")


@pytest.mark.parametrize(
    ("name", "content", "new", "settings"),
    [
        ("t.csv", "body;y\nx y;a\nx z;b\ny;a\nz;b\n", "body\nx y\nx z\ny\nz\n", {"text": "body", "delimiter": ";"}),
        ("t.csv", "k,n,y\np,1,0.5\nq,2,1.5\np,3,2.5\nq,4,9\n", "n,k\n1,p\n2,q\n3,p\n4,q\n", {"features": ["n", "k"]}),
        ("t.conll", "w y\nx z\n\nw y\n\nv y\n\n", "w\nx\n\nw\n\nv\n", {"label": "tag", "columns": ["word", "tag"]}),
        ("t.jsonl", '{"s": "p q", "y": ["a"]}\n{"s": "q p", "y": []}\n', '{"s": "p q"}\n{"s": "q p"}\n', {"text": "s"}),
    ],
    ids=["text", "table", "tags", "sets"],
)
def test_rows_without_labels(
    write: Write, tmp_path: Path, name: str, content: str, new: str, settings: dict[str, object]
) -> None:
    write(name, content)
    target = data.TargetData.model_validate({"name": "t", "train": name, "label": "y", "dev_fraction": 0, **settings})
    prepared = data.build(target, base=tmp_path)
    recipe = saved(prepared, tmp_path)
    assert recipe.tasks == prepared.recipe.tasks
    if name == "t.conll":
        fresh = write("new.jsonl", '{"word": ["w", "x"]}\n{"word": ["w"]}\n{"word": ["v"]}\n')
    else:
        fresh = write(f"new{Path(name).suffix}", new)
    assert equal(recipe.encode(fresh, "t"), prepared.suite["t"].rows[Role.TRAIN].inputs)
    assert equal(recipe.encode(recipe.read(fresh, "t"), "t"), prepared.suite["t"].rows[Role.TRAIN].inputs)


def test_missing_columns_and_tasks(write: Write, tmp_path: Path) -> None:
    write("t.csv", "body,y\nx y,a\nx z,b\ny,a\nz,b\n")
    target = data.TargetData(name="t", train="t.csv", text="body", label="y", dev_fraction=0)
    recipe = saved(data.build(target, base=tmp_path), tmp_path)
    with pytest.raises(SteelyardError, match=r"needs the column 'body', but there are only: bodi; did you mean 'bodi'"):
        recipe.encode(write("new.csv", "bodi\nx\n"), "t")
    with pytest.raises(SteelyardError, match="no task 'u', only t"):
        recipe.encode(tmp_path / "t.csv", "u")
    with pytest.raises(SteelyardError, match="no such file"):
        recipe.encode(tmp_path / "absent.csv", "t")


def recipe_of(write: Write, base: Path, content: str, **settings: object) -> data.Recipe:
    write("t.csv", content)
    spec = {"name": "t", "train": "t.csv", "text": "body", "label": "y", "dev_fraction": 0, **settings}
    return saved(data.build(data.TargetData.model_validate(spec), base=base), base)


def test_decoded_classes(write: Write, tmp_path: Path) -> None:
    recipe = recipe_of(write, tmp_path, "body,y\nx y,no\nx z,yes\ny,no\nz,yes\n")
    columns = recipe.decode("t", torch.tensor([[0.0, torch.tensor(3.0).log()], [2.0, 2.0]]))
    assert columns["predicted_y"] == ["yes", "no"]
    assert columns["probability"] == pytest.approx([0.75, 0.5])


def test_decoded_sets(write: Write, tmp_path: Path) -> None:
    recipe = recipe_of(write, tmp_path, "body,y\nx y,a|b\nx z,c\ny,a\n")
    columns = recipe.decode("t", torch.tensor([[1.0, -1, 1], [-1, -1, -1]]))
    assert columns["predicted_y"] == ["a|c", ""]
    assert columns["probability_b"] == pytest.approx([torch.tensor(-1.0).sigmoid().item()] * 2)


def test_decoded_numbers(write: Write, tmp_path: Path) -> None:
    recipe = recipe_of(write, tmp_path, "body,y,z\nx y,1.5,2\nx z,2,3\ny,3,4\n", label=["y", "z"])
    assert recipe.decode("t", torch.tensor([[1.0, 2], [3, 4]])) == {"predicted_y": [1, 3], "predicted_z": [2, 4]}
    recipe = recipe_of(write, tmp_path, "body,y\nx y,1.5\nx z,2\ny,3\n")
    assert recipe.decode("t", torch.tensor([[1.0], [3]])) == {"predicted_y": [1, 3]}


def test_decoded_tags_need_inputs(write: Write, tmp_path: Path) -> None:
    write("t.conll", "a X\nb Y\n\nb Y\n")
    target = data.TargetData(name="t", train="t.conll", label=1, dev_fraction=0)
    recipe = saved(data.build(target, base=tmp_path), tmp_path)
    outputs = torch.tensor([[[1.0, 0], [0, 1]], [[1, 0], [9, 0]]])
    inputs = recipe.encode(tmp_path / "t.conll", "t")
    assert recipe.decode("t", outputs, inputs) == {"predicted_1": [["X", "Y"], ["X"]]}
    with pytest.raises(SteelyardError, match="need the inputs"):
        recipe.decode("t", outputs)


def test_images_of_a_suite_from_a_table(write: Write, tmp_path: Path) -> None:
    prepared = data.build(data.TargetData(name="t", train="suite:digits"), base=tmp_path)
    recipe = saved(prepared, tmp_path)
    pixels = ",".join(f"p{i}" for i in range(64)) + "\n" + ",".join(str(i % 17) for i in range(64)) + "\n"
    inputs = recipe.encode(write("new.csv", pixels), "t")
    assert inputs.shape == (1, 1, 8, 8)
    assert inputs.flatten().tolist() == pytest.approx([(i % 17) / 16 for i in range(64)])
    with pytest.raises(SteelyardError, match="64 numeric columns, but there are 1"):
        recipe.encode(write("new.csv", "p\n1\n"), "t")


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"format": 99}')
    with pytest.raises(SteelyardError, match="another version"):
        data.Recipe.load(tmp_path / "recipe.json")


def test_classes_survive_odd_names(write: Write, tmp_path: Path) -> None:
    recipe = recipe_of(write, tmp_path, 'body,y\nx,"a, ""b"""\nx,ü\ny,"a, ""b"""\nz,ü\n')
    assert recipe.tasks["t"].labels.classes == ('a, "b"', "ü")
    assert recipe.tasks["t"].labels.encode is not None
    assert IGNORE not in recipe.encode(tmp_path / "t.csv", "t").values
