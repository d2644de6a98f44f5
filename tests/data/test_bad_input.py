"""Every wrong input is told in one line that names the file, the place and the remedy."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steelyard import data
from steelyard.data import cache
from steelyard.errors import SteelyardError

Write = Callable[[str, str], Path]

GOOD = "body,topic\n" + "".join(f"text number {i} here,{'ab'[i % 2]}\n" for i in range(20))
NUMBERS = "x,y,label\n" + "".join(f"{i},{i * i},{'ab'[i % 2]}\n" for i in range(20))


def target(**settings: Any) -> data.TargetData:
    return data.TargetData(**{"name": "complaints", "train": "train.csv", "text": "body", "label": "topic", **settings})


def complaint(base: Path, spec: data.TargetData, *sources: data.SourceData) -> str:
    with pytest.raises(SteelyardError) as caught:
        data.build(spec, sources, base=base)
    message = str(caught.value)
    assert "\n" not in message
    return message


def says(message: str, *parts: str) -> None:
    for part in parts:
        assert part in message, f"{part!r} not in {message!r}"


def test_missing_file_suggests_its_neighbour(write: Write, tmp_path: Path) -> None:
    write("complaints.csv", GOOD)
    says(complaint(tmp_path, target(train="complaint.csv")), "complaint.csv", "did you mean 'complaints.csv'?")


def test_missing_folder(tmp_path: Path) -> None:
    says(complaint(tmp_path, target(train="nowhere/train.csv")), "nowhere", "folder")


def test_missing_column_lists_and_suggests(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    says(complaint(tmp_path, target(text="bodi")), "train.csv", "'complaints'", "'bodi'", "body, topic", "mean 'body'?")


def test_wrong_delimiter_is_suspected(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD.replace(",", ";"))
    says(complaint(tmp_path, target()), "delimiter = …")


def test_columns_that_differ_between_files(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    write("dev.csv", GOOD.replace("body", "text"))
    says(complaint(tmp_path, target(dev="dev.csv")), "dev.csv", "'body'", "text, topic")


def test_no_label_column_named(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    says(complaint(tmp_path, target(label=None)), "complaints", "label = ...")


def test_unknown_label_in_dev_names_its_line(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD.replace(",a", ",billing").replace(",b\n", ",other\n"))
    write("dev.csv", "body,topic\nsome text,other\nmore text,biling\n")
    message = complaint(tmp_path, target(dev="dev.csv"))
    says(message, "dev.csv, line 3", "'biling'", "billing, other", "mean 'billing'?", "classes = [...]")


@pytest.mark.parametrize(("content", "word"), [("", "empty"), ("body,topic\n", "no rows"), ("\n\n", "header")])
def test_empty_files(write: Write, tmp_path: Path, content: str, word: str) -> None:
    write("train.csv", content)
    says(complaint(tmp_path, target()), "train.csv", word)


def test_class_seen_once(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD + "one more,rarity\n")
    says(complaint(tmp_path, target()), "train.csv", "'complaints'", "rarity", "rare = 'drop'")


def test_only_one_class(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD.replace(",b\n", ",a\n"))
    says(complaint(tmp_path, target()), "only one class", "(a)")


@pytest.mark.parametrize(
    ("cell", "word"), [("nan", "'nan'"), ("inf", "'inf'"), ("12b", "'12b'"), ("", "is empty")], ids=str
)
def test_features_that_are_not_numbers(write: Write, tmp_path: Path, cell: str, word: str) -> None:
    write("train.csv", NUMBERS.replace("\n5,25,", f"\n5,{cell},"))
    message = complaint(tmp_path, target(text=None, label="label", dev_fraction=0))
    says(message, "train.csv, line 7", "'y'", word, "features")


@pytest.mark.parametrize("cell", [float("nan"), float("inf"), None])
def test_parquet_features_that_are_not_finite(tmp_path: Path, cell: float | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1.0, 2.0, cell, 3.0] * 3, "label": ["a", "b"] * 6}), tmp_path / "t.parquet")
    says(complaint(tmp_path, target(train="t.parquet", text=None, label="label")), "t.parquet, row 3", "'x'")


def test_inputs_that_are_not_named(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    says(complaint(tmp_path, target(text=None)), "train.csv", "body hold no numbers", "text = ...")


def test_truncated_csv(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD[: GOOD.rindex(",")])
    says(complaint(tmp_path, target()), "train.csv, line 21", "1 cells where the header has 2", "cut off")


def test_quote_that_never_closes(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD.replace("text number 4", '"text number 4'))
    says(complaint(tmp_path, target()), "train.csv, line 6", "never closes", "quote = ''")


def test_two_quotes_that_never_close(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD.replace("text number 4", '"text number 4').replace("text number 7", '"text number 7'))
    says(complaint(tmp_path, target()), "train.csv, line 6", "quote")


def test_plain_quotes_can_be_said(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD.replace("text number 4", '"text number 4'))
    prepared = data.build(target(quote="", dev_fraction=0), base=tmp_path)
    assert prepared.suite.sizes() == {"complaints": 20}


def test_mixed_encodings_name_line_and_byte(tmp_path: Path) -> None:
    content = GOOD.encode().replace(b"number 3 here", "numéro 3 là".encode() + b" caf\xe9")
    (tmp_path / "train.csv").write_bytes(content)
    offset = content.index(b"\xe9,")
    says(complaint(tmp_path, target()), "train.csv", "line 5", "0xe9", f"offset {offset}", "UTF-8")


def test_twice_the_same_column(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD.replace("body,topic", "topic,topic"))
    says(complaint(tmp_path, target()), "train.csv, line 1", "same name: topic")


@pytest.mark.parametrize(
    ("line", "word"), [('{"body": "x", "top', "not JSON"), ("[1]", "must be an object"), ('{"body": ["x"]}', "list")]
)
def test_broken_jsonl(write: Write, tmp_path: Path, line: str, word: str) -> None:
    rows = "".join(f'{{"body": "text {i}", "topic": "{"ab"[i % 2]}"}}\n' for i in range(8))
    write("train.jsonl", rows + line)
    says(complaint(tmp_path, target(train="train.jsonl")), "train.jsonl, line 9", word)


def test_broken_parquet(write: Write, tmp_path: Path) -> None:
    write("train.parquet", "PAR1 but nothing else")
    says(complaint(tmp_path, target(train="train.parquet")), "train.parquet", "not a whole parquet file")


def test_unknown_ending(write: Write, tmp_path: Path) -> None:
    write("train.xlsx", GOOD)
    says(complaint(tmp_path, target(train="train.xlsx")), "train.xlsx", "format =", "csv")


def test_conll_line_without_its_tag(write: Write, tmp_path: Path) -> None:
    write("t.conll", "The DT\ndog NN\n\nA DT\nbone\n")
    says(complaint(tmp_path, target(train="t.conll", text=None, label=1)), "t.conll, line 5", "1 columns", "have 2")


def test_conll_columns_that_do_not_fit(write: Write, tmp_path: Path) -> None:
    write("t.conll", "The DT\ndog NN\n")
    message = complaint(tmp_path, target(train="t.conll", text=None, label="pos", columns=["word", "lemma", "pos"]))
    says(message, "t.conll, line 1", "2 columns", "names 3")


def test_token_and_tag_counts_that_differ(write: Write, tmp_path: Path) -> None:
    write("t.jsonl", '{"w": ["a", "dog"], "t": ["D", "N"]}\n{"w": ["a", "bone", "."], "t": ["D", "N"]}\n')
    message = complaint(tmp_path, target(train="t.jsonl", text="w", label="t"))
    says(message, "t.jsonl, line 2", "3 tokens but 2 tags")


def test_inputs_of_two_kinds(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    write("numbers.csv", NUMBERS)
    source = data.SourceData(name="sizes", train="numbers.csv", label="label")
    says(complaint(tmp_path, target(), source), "'complaints' reads text", "'sizes' reads numbers")


def test_inputs_named_twice(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    says(complaint(tmp_path, target(features=["body"])), "names its inputs twice", "text and features")


def test_label_among_the_features(write: Write, tmp_path: Path) -> None:
    write("train.csv", NUMBERS)
    says(
        complaint(tmp_path, target(text=None, label="label", features=["x", "label"])), "label as label and as feature"
    )


def test_two_tasks_of_one_name(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    source = data.SourceData(name="complaints", train="train.csv", text="body", label="topic")
    says(complaint(tmp_path, target(), source), "two tasks are called 'complaints'")


def test_label_that_is_no_number(write: Write, tmp_path: Path) -> None:
    write("train.csv", NUMBERS)
    message = complaint(tmp_path, target(text=None, label="label", kind="regression"))
    says(message, "train.csv, line 2", "needs numbers", "'a'")


def test_flag_that_is_neither_0_nor_1(write: Write, tmp_path: Path) -> None:
    write("train.csv", "body,p,q\nx y,0,1\nz z,1,0\nw w,2,1\n")
    message = complaint(tmp_path, target(label=["p", "q"], kind="multilabel", dev_fraction=0))
    says(message, "train.csv, line 4", "'p'", "'2'")


def test_labels_that_differ_only_by_case_or_space(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD + "x,A\ny,A\nz,b \nw,b \n")
    with pytest.warns(data.DataWarning) as caught:
        data.build(target(), base=tmp_path)
    said = " ".join(str(w.message) for w in caught)
    says(said, "'complaints'", "'A', 'a'", "'b', 'b '")


def test_same_row_in_train_and_test(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    write("test.csv", "body,topic\ntext number 3 here,b\ntext number 4 here,a\nsomething new,a\n")
    with pytest.warns(data.DataWarning, match=r"'complaints': 2 of 3 rows in test \(test.csv\) are also in train"):
        prepared = data.build(target(test="test.csv", dev_fraction=0), base=tmp_path)
    assert prepared.summary.duplicates == {"complaints": {"test in train": 2}}


def test_target_test_row_in_a_source(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    write("test.csv", "body,topic\nlonely,b\n")
    write("source.csv", "body,topic\n" + "".join(f"row {i},{'ab'[i % 2]}\n" for i in range(9)) + "lonely,a\n")
    source = data.SourceData(name="other", train="source.csv", text="body", label="topic", dev_fraction=0)
    with pytest.warns(data.DataWarning, match=r"1 of 1 rows in test .* train of 'other'"):
        data.build(target(test="test.csv"), [source], base=tmp_path)


def test_group_on_both_sides(write: Write, tmp_path: Path) -> None:
    write("train.csv", "body,topic,doc\n" + "".join(f"text {i},{'ab'[i % 2]},{i // 4}\n" for i in range(20)))
    write("test.csv", "body,topic,doc\nnew,a,4\nnewer,b,9\n")
    with pytest.warns(data.DataWarning, match="1 values of 'doc' are in train and in test"):
        data.build(target(test="test.csv", group="doc"), base=tmp_path)


def test_a_key_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="lable"):
        data.TargetData.model_validate({"name": "x", "train": "t.csv", "lable": "y"})


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("suite:digit", ("'digit'", "mean 'digits'?")),
        ("suite:digits/digits", ("no task 'digits'", "mean 'digit'?")),
        ("suite:digits@many", ("'many' is not a number",)),
        ("suite:digits@99999", ("99999 rows", "1097")),
    ],
)
def test_wrong_references(tmp_path: Path, reference: str, parts: tuple[str, ...]) -> None:
    says(complaint(tmp_path, target(train=reference, text=None, label=None)), *parts)


def test_full_disk(tmp_path: Path) -> None:
    place = tmp_path / "features" / "key"

    def fill(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SteelyardError, match=re.escape("the disk is full")) as caught:
        cache.made_once(place, fill)
    says(str(caught.value), str(place), "STEELYARD_CACHE")
    assert not place.exists()
    assert [p.name for p in place.parent.iterdir()] == ["key.lock"]


def test_images_that_are_not_there(write: Write, tmp_path: Path) -> None:
    write("train.csv", "file,label\nmissing.png,a\nother.png,b\n" * 4)
    says(complaint(tmp_path, target(image="file", text=None, label="label")), "train.csv, line 2", "missing.png")


@pytest.mark.parametrize("content", ['[{"body": "x", "topic": "a"}]', '[\n {"body": "x", "topic": "a"}\n]'])
def test_json_that_is_one_array(write: Write, tmp_path: Path, content: str) -> None:
    write("train.json", content)
    says(complaint(tmp_path, target(train="train.json")), "train.json", "one JSON array", "one object per line")


def test_nested_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"id": list(range(20)), "body": [{"raw": "x"}] * 20, "topic": ["a", "b"] * 10}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    says(complaint(tmp_path, target(train="t.parquet")), "t.parquet", "'body'", "struct<raw: string>")
    says(complaint(tmp_path, target(train="t.parquet", text=None)), "body hold no numbers")
    assert data.build(target(train="t.parquet", text=None, features="id"), base=tmp_path).suite.sizes()


def test_text_views_of_arrow(tmp_path: Path) -> None:
    import pyarrow as pa

    table = pa.table({"body": pa.array([f"text {i}" for i in range(20)], pa.string_view()), "topic": ["a", "b"] * 10})
    with pa.ipc.new_file(str(tmp_path / "t.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert data.build(target(train="t.arrow"), base=tmp_path).suite.sizes() == {"complaints": 18}


def test_label_that_is_the_text(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    says(complaint(tmp_path, target(text="topic")), "'complaints'", "topic as label and as input")


def test_texts_that_are_all_empty(write: Write, tmp_path: Path) -> None:
    write("train.csv", "body,topic\n" + ",a\n,b\n" * 9)
    says(complaint(tmp_path, target(dev_fraction=0)), "train.csv", "no text in body")


def test_a_group_that_is_the_label_loses_no_class(write: Write, tmp_path: Path) -> None:
    write("train.csv", GOOD)
    prepared = data.build(target(group="topic"), base=tmp_path)
    assert prepared.suite.sizes() == {"complaints": 20}
    assert "no dev, since none of train.csv can be held out without losing a class" in prepared.summary.notes[1]
