"""Every format gives the same tasks; layers of one file share its rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steelyard import data
from steelyard.data.readers import delimited, jsonl, reader
from steelyard.data.readers.registry import READERS, Dialect
from steelyard.tasks import IGNORE, Kind, Ragged, Role

Write = Callable[[str, str], Path]

ROWS = [
    {"body": f"the {w} film, number {i}\nwas {w}", "topic": t}
    for i in range(15)
    for w, t in (("good", "+"), ("bad", "-"))
]


def as_csv(path: Path, delimiter: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["body", "topic"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)


def write_all(base: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Dataset

    as_csv(base / "rows.csv", ",")
    as_csv(base / "rows.tsv", "\t")
    (base / "rows.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in ROWS), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(ROWS), base / "rows.parquet")
    Dataset.from_list(ROWS).save_to_disk(base / "rows")
    return ["rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet", "rows"]


def test_every_format_gives_the_same_task(tmp_path: Path) -> None:
    found = []
    for name in write_all(tmp_path):
        target = data.TargetData(name="t", train=name, text="body", label="topic", dev_fraction=0)
        prepared = data.build(target, base=tmp_path)
        rows = prepared.suite["t"].rows[Role.TRAIN]
        assert isinstance(rows.inputs, Ragged)
        words = [prepared.recipe.vocabulary[i] for i in rows.inputs.select(torch.tensor([1])).values.tolist()]
        found.append((words, rows.inputs.values.tolist(), rows.labels.tolist(), prepared.suite["t"].classes))
    assert found[0][0] == [
        "the",
        "bad",
        "film",
        ",",
        "number",
        "<unk>" if "0" not in found[0][0] else "0",
        "was",
        "bad",
    ]
    assert all(other == found[0] for other in found)


def test_csv_rows_know_their_lines(tmp_path: Path) -> None:
    as_csv(tmp_path / "rows.csv", ",")
    table = data.read("rows.csv", tmp_path)
    assert table.where(0) == "rows.csv, line 2"
    assert table.where(2) == "rows.csv, line 6"


def test_large_csv_is_kept_as_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_csv(tmp_path / "rows.csv", ",")
    small = data.read("rows.csv", tmp_path)
    monkeypatch.setattr(delimited, "LARGE", 10)
    monkeypatch.setattr(delimited, "CHUNK", 7)
    large = data.read("rows.csv", tmp_path)
    again = data.read("rows.csv", tmp_path)
    assert large.arrow.to_pylist() == small.arrow.to_pylist() == again.arrow.to_pylist()
    np.testing.assert_array_equal(large.lines, small.lines)
    assert list((tmp_path / "cache" / "tables").glob("*/table.arrow"))


def test_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbfbody,topic\r\nx y,a\r\n\r\nz,b\r\n")
    assert data.read("rows.csv", tmp_path).arrow.to_pylist() == [
        {"body": "x y", "topic": "a"},
        {"body": "z", "topic": "b"},
    ]


def test_jsonl_keys_may_be_missing(write: Write, tmp_path: Path) -> None:
    write("rows.jsonl", '{"a": "x", "n": 1}\n{"a": null, "n": 2.5, "tags": ["p", 3]}\n')
    assert data.read("rows.jsonl", tmp_path).arrow.to_pylist() == [
        {"a": "x", "n": "1", "tags": None},
        {"a": None, "n": "2.5", "tags": ["p", "3"]},
    ]


def test_jsonl_lists_that_begin_late(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks in which a key is missing, or always null, take the type that later lines give it."""
    monkeypatch.setattr(jsonl, "CHUNK", 2)
    write("rows.jsonl", '{"a": "x"}\n' * 2 + '{"a": "y", "tags": null}\n' * 2 + '{"a": "z", "tags": ["p"]}\n')
    found = data.read("rows.jsonl", tmp_path).arrow.to_pylist()
    assert [row["tags"] for row in found] == [None] * 4 + [["p"]]
    assert [row["a"] for row in found] == list("xxyyz")


def test_delimiter_and_format_can_be_said(write: Write, tmp_path: Path) -> None:
    write("rows.data", "body;topic\nx, y;a\nz;b\n")
    table = data.read("rows.data", tmp_path, Dialect(format="csv", delimiter=";"))
    assert table.arrow.to_pylist()[0] == {"body": "x, y", "topic": "a"}


CONLL = "".join(
    f"-DOCSTART- -X- O\n\nEU{i} NNP B-ORG\nrejects VBZ O\n\nPeter{i} NNP B-PER\nsleeps VBZ O\n. . O\n\n"
    for i in range(4)
)


def test_layers_of_one_conll_file_share_rows(write: Write, tmp_path: Path) -> None:
    write("t.conll", CONLL)
    target = data.TargetData(name="ner", train="t.conll", label=2, dev_fraction=0.25)
    source = data.SourceData(name="pos", train="t.conll", label="1", dev_fraction=0.25)
    suite = data.build(target, [source], base=tmp_path).suite
    for role in (Role.TRAIN, Role.DEV_SELECT):
        assert suite["ner"].rows[role].inputs is suite["pos"].rows[role].inputs
    assert suite["ner"].kind is Kind.TAGGING
    assert suite["ner"].classes == ("B-ORG", "B-PER", "O")
    rows = suite["pos"].rows[Role.TRAIN]
    assert suite.sizes() == {"ner": 6, "pos": 6}
    assert torch.equal(rows.labels.offsets, rows.inputs.offsets)
    assert [suite["pos"].classes[i] for i in rows.labels.select(torch.tensor([0])).values] in (
        ["NNP", "VBZ"],
        ["NNP", "VBZ", "."],
    )


def test_conllu(write: Write, tmp_path: Path) -> None:
    line = "{}\t{}\t_\t{}\t_\t_\t0\troot\t_\t_\n"
    sentence = "# text = vámonos\n1-2\tvámonos" + "\t_" * 8 + "\n" + line.format(1, "vamos", "VERB")
    write("t.conllu", (sentence + line.format(2, "nos", "_") + "\n") * 6)
    target = data.TargetData(name="upos", train="t.conllu", tags="upos", dev_fraction=0, classes=["NOUN", "VERB"])
    rows = data.build(target, base=tmp_path).suite["upos"].rows[Role.TRAIN]
    assert rows.inputs.lengths.tolist() == [2] * 6
    assert rows.labels.values[:2].tolist() == [1, IGNORE]


def test_tokens_and_tags_in_jsonl(write: Write, tmp_path: Path) -> None:
    write("t.jsonl", '{"w": ["A", "dog"], "t": ["D", "N"]}\n{"w": ["a"], "t": ["D"]}\n{"w": ["dog"]}\n')
    target = data.TargetData(name="t", train="t.jsonl", text="w", label="t", dev_fraction=0)
    rows = data.build(target, base=tmp_path).suite["t"].rows[Role.TRAIN]
    assert rows.inputs.values.tolist() == [2, 3, 2, 3]
    assert rows.labels.values.tolist() == [0, 1, 0, IGNORE]


def images(base: Path) -> None:
    from PIL import Image

    for number in range(6):
        for name, level in (("dark", 10), ("light", 250)):
            folder = base / "pictures" / name
            folder.mkdir(parents=True, exist_ok=True)
            size = (6, 4) if number else (8, 8)
            Image.new("RGB", size, (level, level, number)).save(folder / f"{number}.png")


def test_folder_of_images(tmp_path: Path) -> None:
    images(tmp_path)
    target = data.TargetData(name="t", train="pictures", label="label", dev_fraction=0)
    options = data.FeatureOptions(channels=1)
    prepared = data.build(target, base=tmp_path, features=options)
    rows = prepared.suite["t"].rows[Role.TRAIN]
    assert rows.inputs.shape == (12, 1, 8, 8)
    assert prepared.suite["t"].classes == ("dark", "light")
    assert ((rows.inputs.mean((1, 2, 3)) > 0.5).long() == rows.labels).all()
    sized = data.build(target, base=tmp_path, features=data.FeatureOptions(image_size=5))
    assert sized.suite.spec.shape == (3, 5, 5)


def test_paths_of_images_in_a_table(tmp_path: Path) -> None:
    images(tmp_path)
    lines = [f"pictures/{n}/{i}.png,{n}" for n in ("dark", "light") for i in range(1, 6)]
    (tmp_path / "t.csv").write_text("file,label\n" + "\n".join(lines))
    target = data.TargetData(name="t", train="t.csv", image="file", label="label", dev_fraction=0)
    prepared = data.build(target, base=tmp_path)
    assert prepared.suite.spec.shape == (3, 4, 6)
    prepared.recipe.save(tmp_path / "recipe.json")
    again = data.Recipe.load(tmp_path / "recipe.json").encode(tmp_path / "t.csv", "t")
    assert torch.equal(again, prepared.suite["t"].rows[Role.TRAIN].inputs)


def test_hugging_face_splits_and_class_names(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    columns: dict[str, Any] = {"text": [f"t {i}" for i in range(8)], "label": [i % 2 for i in range(8)]}
    whole = Dataset.from_dict(columns, features=features)
    parts = {"train": [3, 1, 0, 2], "validation": [4, 5], "test": [6, 7, 7]}
    DatasetDict({name: whole.select(rows) for name, rows in parts.items()}).save_to_disk(tmp_path / "set")
    target = data.TargetData(name="t", train="set", text="text", label="label")
    suite = data.build(target, base=tmp_path).suite
    assert suite["t"].classes == ("no", "yes")
    assert suite["t"].rows[Role.TRAIN].labels.tolist() == [1, 1, 0, 0]
    assert (suite["t"].size(Role.DEV_SELECT), suite["t"].size(Role.TEST)) == (2, 3)


def test_a_reader_of_ones_own(write: Write, tmp_path: Path) -> None:
    import pyarrow as pa

    @reader(".lines")
    def read_lines(path: Path, origin: str, dialect: Dialect) -> data.Table:
        del dialect
        return data.Table(pa.table({"text": path.read_text().split("\n")}), origin, "d")

    try:
        write("a.lines", "x\ny")
        assert len(data.read("a.lines", tmp_path)) == 2
    finally:
        del READERS[".lines"]
