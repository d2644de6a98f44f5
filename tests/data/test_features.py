"""Features are fitted on train alone, cached by content, and read the same in two processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from steelyard import data, encoders
from steelyard.data import cache, table
from steelyard.data.build import on_pieces
from steelyard.data.features import base as features_base
from steelyard.errors import SteelyardError
from steelyard.tasks import IGNORE, Ragged, Role

Write = Callable[[str, str], Path]


def texts(write: Write, train: str, test: str) -> None:
    write("train.csv", "body,y\n" + train)
    write("test.csv", "body,y\n" + test)


def build(base: Path, *sources: data.SourceData, **options: object) -> data.Prepared:
    target = data.TargetData(name="t", train="train.csv", test="test.csv", text="body", label="y", dev_fraction=0)
    return data.build(target, sources, base=base, features=data.FeatureOptions.model_validate(options))


def test_vocabulary_is_from_train_and_by_frequency(write: Write, tmp_path: Path) -> None:
    texts(write, "Don't go!,a\nÉtude go,b\nstop go,a\nétude once,b\n", "go Stop secret,a\n")
    prepared = build(tmp_path)
    assert prepared.recipe.vocabulary == ("<pad>", "<unk>", "go", "étude")
    assert prepared.suite["t"].rows[Role.TEST].inputs.values.tolist() == [2, 1, 1]
    assert prepared.suite["t"].rows[Role.TRAIN].inputs.values[:3].tolist() == [1, 2, 1]
    assert prepared.suite.spec.vocabulary == 4
    assert build(tmp_path, min_count=1).recipe.vocabulary[2:] == ("go", "étude", "!", "don't", "once", "stop")
    assert build(tmp_path, min_count=1, max_words=2).recipe.vocabulary[2:] == ("go", "étude")
    assert build(tmp_path, lower=False).recipe.vocabulary[2:] == ("go",)


def test_unknown_share_and_lengths_are_summed_up(write: Write, tmp_path: Path) -> None:
    texts(write, "a b,x\na b,y\na b,x\na b,y\n", "a c c c,x\n")
    train, test = build(tmp_path, max_length=3).summary.entries
    assert (train.unknown, test.unknown) == (0, pytest.approx(2 / 3))
    assert (test.lengths["longest"], test.cut, train.cut) == (3, 1, 0)


def test_sources_share_the_vocabulary(write: Write, tmp_path: Path) -> None:
    texts(write, "one two,a\none two,b\none,a\ntwo,b\n", "three one,a\n")
    write("source.csv", "body,y\nthree four,p\nthree five,q\nfour,p\nfive,q\n")
    source = data.SourceData(name="s", train="source.csv", text="body", label="y", dev_fraction=0)
    prepared = build(tmp_path, source)
    assert prepared.recipe.vocabulary[2:] == (
        "one",
        "two",
        "five",
        "four",
        "three",
    )
    assert 1 not in prepared.suite["t"].rows[Role.TEST].inputs.values


def test_empty_and_missing_texts(write: Write, tmp_path: Path) -> None:
    texts(write, ",a\na a,b\n  ,a\nb b,b\n", "a b,a\n")
    rows = build(tmp_path).suite["t"].rows[Role.TRAIN]
    assert rows.inputs.lengths.tolist() == [0, 2, 0, 2]


def test_several_text_columns(write: Write, tmp_path: Path) -> None:
    write("t.csv", "p,h,y\nit rains,it pours,yes\nit rains,,no\nit,it,yes\nit,it rains,no\n")
    target = data.TargetData(name="t", train="t.csv", text=["p", "h"], label="y", dev_fraction=0)
    prepared = data.build(target, base=tmp_path)
    words = [prepared.recipe.vocabulary[i] for i in prepared.suite["t"].rows[Role.TRAIN].inputs.values[:5]]
    assert words == ["it", "rains", "\u241e", "it", "<unk>"]


def test_tables_are_scaled_on_train_only(write: Write, tmp_path: Path) -> None:
    write(
        "train.csv",
        "x,kind,flat,y\n" + "".join(f"{v},{k},7,{y}\n" for v, k, y in zip((0, 2, 4, 6), "pqpq", "abab", strict=True)),
    )
    write("test.csv", "x,kind,flat,y\n9,q,8,a\n3,new,7,b\n")
    target = data.TargetData(
        name="t", train="train.csv", test="test.csv", features=["x", "kind", "flat"], label="y", dev_fraction=0
    )
    prepared = data.build(target, base=tmp_path)
    train, test = (prepared.suite["t"].rows[role].inputs for role in (Role.TRAIN, Role.TEST))
    deviation = 5**0.5
    assert torch.allclose(train[:, 0], (torch.tensor([0.0, 2, 4, 6]) - 3) / deviation)
    assert torch.allclose(test, torch.tensor([[6 / deviation, 1, 0, 1], [0, 0, 0, 0]]))
    assert train.dtype == torch.float32


def test_tables_are_made_by_batches_of_rows(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("t.csv", "x,kind,z,y\n" + "".join(f"{i},{'pqr'[i % 3]},{i * i},{'ab'[i % 2]}\n" for i in range(20)))
    target = data.TargetData(name="t", train="t.csv", features=["x", "kind", "z"], label="y", dev_fraction=0.3)
    whole = data.build(target, base=tmp_path).suite["t"].rows
    monkeypatch.setattr(table, "BATCH", 7)
    parts = data.build(target, base=tmp_path).suite["t"].rows
    assert all(torch.equal(whole[role].inputs, parts[role].inputs) for role in whole)
    write("t.csv", (tmp_path / "t.csv").read_text().replace("\n17,", "\nnan,"))
    with pytest.raises(SteelyardError, match="line 19"):
        data.build(target, base=tmp_path)


def test_rows_of_long_texts_come_in_smaller_batches(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts(write, "".join(f"{'word ' * 100}{i},{'ab'[i % 2]}\n" for i in range(40)), "word one,a\n")
    whole = build(tmp_path).suite["t"].rows
    monkeypatch.setattr(table, "BATCH_BYTES", 3000)
    read = data.read("train.csv", tmp_path)
    assert 4 <= read.batch <= 6
    assert [b.num_rows for b in table.View(read).batches(["y"])] == [read.batch] * (40 // read.batch) + (
        [40 % read.batch] if 40 % read.batch else []
    )
    parts = build(tmp_path).suite["t"].rows
    assert all(torch.equal(whole[role].inputs.values, parts[role].inputs.values) for role in whole)


def test_numeric_columns_are_found_and_labels_are_not_among_them(write: Write, tmp_path: Path) -> None:
    write("t.csv", "x,a,z,b\n" + "".join(f"{i},{i % 2},{i * i},{i % 3}\n" for i in range(12)))
    target = data.TargetData(name="a", train="t.csv", label="a", dev_fraction=0)
    source = data.SourceData(name="b", train="t.csv", label="b", dev_fraction=0)
    prepared = data.build(target, [source], base=tmp_path)
    assert prepared.suite.spec.shape == (2,)
    assert "features: x, z" in prepared.summary.notes
    categorical = data.TargetData(name="a", train="t.csv", label="a", features=["x"], categorical=["x"], dev_fraction=0)
    assert data.build(categorical, base=tmp_path).suite.spec.shape == (12,)


def vocabulary(base: Path) -> str:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "bark", "##s", "##ed", "loud", "##ly"]
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")  # noqa: S106
    fast.save_pretrained(base / "tokenizer")
    return "tokenizer"


def test_subwords(write: Write, tmp_path: Path) -> None:
    texts(write, "the dog barks,a\nthe dog barked loudly,b\ndog,a\nthe,b\n", "a dog,a\n")
    prepared = build(tmp_path, tokenizer=vocabulary(tmp_path), max_length=5)
    rows = prepared.suite["t"].rows[Role.TRAIN]
    assert rows.inputs.select(torch.tensor([0, 1])).values.tolist() == [2, 5, 6, 7, 3, 2, 5, 6, 7, 3]
    assert (prepared.suite.spec.vocabulary, prepared.suite.spec.padding) == (12, 0)
    assert prepared.summary.entries[0].cut == 2


def test_tags_stand_on_the_first_piece(write: Write, tmp_path: Path) -> None:
    write("t.conll", "the D\ndog N\nbarked V\nloudly R\n\ndog N\nbarks V\n\nthe D\n")
    target = data.TargetData(name="t", train="t.conll", label=1, dev_fraction=0)
    options = data.FeatureOptions(tokenizer=vocabulary(tmp_path))
    prepared = data.build(target, base=tmp_path, features=options)
    rows = prepared.suite["t"].rows[Role.TRAIN]
    assert rows.inputs.select(torch.tensor([0])).values.tolist() == [2, 5, 6, 7, 9, 10, 11, 3]
    skip = IGNORE
    assert rows.labels.select(torch.tensor([0])).values.tolist() == [skip, 0, 1, 3, skip, 2, skip, skip]
    assert rows.labels.select(torch.tensor([1])).values.tolist() == [skip, 1, 3, skip, skip]
    scores = [torch.nn.functional.one_hot(row.clamp(min=0), 4).float() for row in rows.labels.values.split([8, 5, 3])]
    inputs = prepared.recipe.encode(tmp_path / "t.conll", "t")
    assert prepared.recipe.decode("t", scores, inputs) == {
        "predicted_1": [["D", "N", "V", "R"], ["N", "V"], ["D"]],
    }
    chosen = inputs.select(torch.tensor([1]))
    tags = Ragged(torch.tensor([1, 3]), torch.tensor([0, 2]))
    assert on_pieces(tags, chosen).values.tolist() == [skip, 1, 3, skip, skip]


def test_a_tokenizer_that_is_not_there(write: Write, tmp_path: Path) -> None:
    texts(write, "x y,a\nx y,b\nx,a\ny,b\n", "x x y,a\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SteelyardError, match=r"tokenizer .* could not be loaded"):
        build(tmp_path, tokenizer="empty")


def test_vectors(write: Write, tmp_path: Path) -> None:
    texts(write, "one two,a\none two,b\nrare,a\nodd,b\n", "one,a\n")
    write("vectors.txt", "one 1 0 0\nrare 0 1 0\nunused 0 0 1\n")
    prepared = build(tmp_path, vectors="vectors.txt")
    assert prepared.recipe.vocabulary[2:] == ("one", "two", "rare")
    file = data.vectors_file("vectors.txt", tmp_path)
    table = encoders.glove(file, prepared.recipe.vocabulary)
    assert table.shape == (5, 3)
    assert table[[2, 4]].tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(SteelyardError, match=r"absent.txt.*cannot be read"):
        build(tmp_path, vectors="absent.txt")
    with pytest.raises(SteelyardError, match="nothing pretrained is called so, only minilm, glove"):
        build(tmp_path, vectors="suite:gloves")


def test_large_features_are_cached_and_mapped(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts(write, "one two,a\none two,b\nthree,a\nodd,b\n", "one,a\n")
    plain = build(tmp_path).suite["t"].rows[Role.TRAIN]
    monkeypatch.setattr(features_base, "WORTH_KEEPING", 2)
    first = build(tmp_path).suite["t"].rows[Role.TRAIN]
    kept = list((tmp_path / "cache" / "features").glob("*/values.bin"))
    assert len(kept) == 1
    stamp = kept[0].stat().st_mtime_ns
    second = build(tmp_path).suite["t"].rows[Role.TRAIN]
    assert kept[0].stat().st_mtime_ns == stamp
    for rows in (first, second):
        assert torch.equal(rows.inputs.values, plain.inputs.values)
        assert torch.equal(rows.inputs.offsets, plain.inputs.offsets)
    build(tmp_path, min_count=1)
    write("train.csv", "body,y\none two,a\none two,b\nthree,a\nother,b\n")
    build(tmp_path)
    assert len(list((tmp_path / "cache" / "features").glob("*/values.bin"))) == 3


def test_mapped_tensors_can_be_changed_without_changing_the_file(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6).view(3, 2), "empty": torch.empty(0, 4)}
    place = cache.made_once(tmp_path / "kept", lambda folder: cache.write(folder, tensors))
    read = cache.read(place)
    assert torch.equal(read["a"], tensors["a"])
    assert read["empty"].shape == (0, 4)
    read["a"][0] = 99
    assert torch.equal(cache.read(place)["a"], tensors["a"])


RACE = """
import sys, time
from pathlib import Path
from steelyard.data import cache, table
def make(folder):
    (folder / "half").write_text("x")
    time.sleep(0.3)
    (folder / "whole").write_text(sys.argv[2])
place = cache.made_once(Path(sys.argv[1]), make)
print(sorted(p.name for p in place.iterdir()), (place / "whole").read_text())
"""


def test_two_processes_that_start_together(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", RACE, str(tmp_path / "made")]
    processes = [
        subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for name in "ab"
    ]
    outputs = {process.communicate(timeout=60) for process in processes}
    assert outputs in ({("['half', 'whole'] a\n", "")}, {("['half', 'whole'] b\n", "")})


def test_importing_data_is_light() -> None:
    heavy = ("pyarrow", "transformers", "datasets", "sklearn", "PIL")
    code = f"import sys, steelyard.data; print([m for m in {heavy} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
