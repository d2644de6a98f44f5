"""``steelyard train`` runs with every reader: the examples of the page on data are trained on, and predicted with."""

import json
import random
import re
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs/data.md"
JOBS = [block for _, block in blocks(PAGE, "toml") if "[target]" in block]
WORDS = {"good": "great lovely fine happy", "bad": "awful broken sad terrible"}


def sentences(count, kinds=("good", "bad")):
    """Texts that no two rows share, with their label."""
    draw = random.Random(count)
    words = list(WORDS.values())
    kind = [i % len(kinds) for i in range(count)]
    return [(f"{' '.join(draw.choices(words[k % 2].split(), k=3))} case {i}", kinds[k]) for i, k in enumerate(kind)]


def write_csv(path, header, rows, delimiter=","):
    cells = [header, *rows]
    path.write_text("".join(delimiter.join(f'"{cell}"' for cell in row) + "\n" for row in cells), encoding="utf-8")


def tickets(base):
    for name, count in (("tickets.csv", 40), ("tickets_test.csv", 12)):
        rows = [("Subject, quoted", f"{text}\nand {name}", kind) for text, kind in sentences(count)]
        write_csv(base / name, ["subject", "body", "topic"], rows)
    write_csv(base / "chats.tsv", ["message", "mood"], [(f"chat {t}", k) for t, k in sentences(30)], "\t")


def sizes(base):
    rows = [(150 + i, 20 + i % 30, ("Bern", "Ulm")[i % 2], i % 3, "SML"[i % 3]) for i in range(60)]
    write_csv(base / "sizes.csv", ["height", "age", "city", "zone", "size"], rows)


def mail(base):
    rows = [{"text": text, "topics": [kind, "all"]} for text, kind in sentences(40)]
    (base / "mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def churn(base):
    columns = {
        "months": [float(i) for i in range(60)],
        "plan": ["a", "b"] * 30,
        "left": [i % 3 == 0 for i in range(60)],
    }
    pq.write_table(pa.table(columns), base / "churn.parquet")


def news(base):
    blocks = [f"Peter{i} NNP B-NP B-PER\nsleeps{i} VBZ B-VP O\n. . O O\n" for i in range(30)]
    (base / "news.conll").write_text("-DOCSTART- -X- O O\n\n" + "\n".join(blocks))


def treebank(base):
    line = "{}\t{}\t_\t{}\t_\t_\t0\t{}\t_\t_\n"
    blocks = [line.format(1, f"dog{i}", "NOUN", "nsubj") + line.format(2, "barks", "VERB", "root") for i in range(30)]
    (base / "treebank.conllu").write_text("\n".join(f"# sent_id = {i}\n{block}" for i, block in enumerate(blocks)))


def pictures(base):
    from PIL import Image

    rows = []
    for number in range(40):
        kind = ("cat", "dog")[number % 2]
        path = base / "pictures" / kind / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (6 * number, 250 * (number % 2), 9)).save(path)
        rows.append((path.relative_to(base), kind))
    write_csv(base / "pictures.csv", ["file", "kind"], rows)


def films(base):
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows = sentences(60)
    whole = Dataset.from_dict({"text": [t for t, _ in rows], "label": [k for _, k in rows]}, features=features)
    parts = {"train": range(40), "validation": range(40, 50), "test": range(50, 60)}
    DatasetDict({name: whole.select(chosen) for name, chosen in parts.items()}).save_to_disk(base / "films_on_disk")


MAKERS = {
    "tickets.csv": tickets, "sizes.csv": sizes, "mail.jsonl": mail, "churn.parquet": churn, "news.conll": news,
    "treebank.conllu": treebank, "pictures": pictures, "pictures.csv": pictures, "films_on_disk": films,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))


def test_the_page_has_an_example_of_every_format():
    assert [tomllib.loads(job)["target"]["train"] for job in JOBS] == list(MAKERS)


@pytest.mark.parametrize("job", JOBS, ids=list(MAKERS))
def test_train_and_predict(job, tmp_path, steelyard):
    file = tomllib.loads(job)["target"]["train"]
    MAKERS[file](tmp_path)
    (tmp_path / "job.toml").write_text(job + "\n[training]\nepochs = 2\nlearning_rate = 0.01\n")
    status, out, err = steelyard("train", "job.toml", "--out", "run")
    assert status == 0, err
    name = tomllib.loads(job)["target"]["name"]
    assert re.search(rf"{name} \(target\)", out)
    read = json.loads(Path("run/data.json").read_text())
    assert {entry["role"] for entry in read["entries"]} >= {"train", "dev_select"}
    assert not read["duplicates"]
    status, out, err = steelyard("predict", "run", file)
    assert status == 0, err
    assert "predicted_" in out
